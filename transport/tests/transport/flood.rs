//! Strangers that begin handshakes and say no more. The endpoint still lets nodes in.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use everstep_transport::identity::Role;
use everstep_transport::protocol::version::{PROTOCOL_VERSIONS, alpn};
use everstep_transport::quic::{ConnectError, Endpoint, Expected};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use crate::support::{RawPeer, World, loopback, settings};

/// Handshakes that a stranger begins in a second, and for how long.
const RATE: u32 = 600;
const FLOOD_LENGTH: Duration = Duration::from_secs(4);

/// Carries first packets of handshakes to a victim, from an address of its own. Carries back only
/// the requests to prove that address. So each handshake gets as far as a stranger can.
async fn relay(front: Arc<UdpSocket>, back: UdpSocket, victim: SocketAddr) {
    let (mut client, mut out, mut back_in) = (None, [0; 2048], [0; 2048]);
    loop {
        tokio::select! {
            said = front.recv_from(&mut out) => {
                let Ok((length, from)) = said else { continue };
                client = Some(from);
                if is_of_type(out[0], 0) {
                    let _ = back.send_to(&out[..length], victim).await; // lost, as UDP may be
                }
            }
            said = back.recv_from(&mut back_in) => {
                let Ok((length, _)) = said else { continue };
                if let Some(client) = client.filter(|_| is_of_type(back_in[0], 3)) {
                    let _ = front.send_to(&back_in[..length], client).await;
                }
            }
        }
    }
}

/// Whether a packet has a long header of this type: 0 Initial, 3 Retry (RFC 9000, 17.2).
fn is_of_type(first: u8, kind: u8) -> bool {
    first & 0x80 != 0 && first >> 4 & 3 == kind
}

/// Begins handshakes with the victim from another address, until it is aborted.
async fn flood(victim: SocketAddr) -> [JoinHandle<()>; 2] {
    let front = Arc::new(UdpSocket::bind(loopback()).await.unwrap());
    let back = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, 9), 0)).await.unwrap();
    let through = front.local_addr().unwrap();
    let relay = tokio::spawn(relay(front, back, victim));
    let stranger = RawPeer { credentials: None, protocol: alpn(&PROTOCOL_VERSIONS).remove(0) };
    let endpoint = stranger.endpoint(loopback());
    let begin = tokio::spawn(async move {
        let mut pace = tokio::time::interval(Duration::from_secs(1) / RATE);
        let mut begun = Vec::new(); // a dropped handshake would announce its end
        loop {
            pace.tick().await;
            begun.push(endpoint.connect(through, "everstep").unwrap());
        }
    });
    [relay, begin]
}

#[tokio::test]
async fn nodes_and_strangers_are_let_in_while_another_host_floods_with_handshakes() {
    let world = World::new();
    let own = world.credentials(Role::Coordinator, "coordinator-1");
    let victim = Arc::new(Endpoint::bind(loopback(), &own, settings(), None).unwrap());
    let accepting = victim.clone();
    let accepted = tokio::spawn(async move {
        let mut links = Vec::new();
        while let Some(link) = accepting.accept().await {
            links.push(link);
        }
    });
    // From an address that no node has had.
    let new: SocketAddr = (Ipv4Addr::new(127, 0, 0, 3), 0).into();
    let joiner = world.credentials(Role::Worker, "worker-2");
    let joiner = Endpoint::bind(new, &joiner, settings(), None).unwrap();
    let node = world.worker("worker-1");
    let flooding = flood(victim.local_address()).await;
    tokio::time::sleep(FLOOD_LENGTH / 4).await;
    let (began, mut taken) = (Instant::now(), Vec::new());
    while began.elapsed() < FLOOD_LENGTH {
        for endpoint in [&node, &joiner] {
            let begins = Instant::now();
            let mut unanswered = 0;
            // A slow machine that is busy with the flood may answer too late. No other error may
            // come here, above all none that says that the other end is busy.
            while let Err(error) = endpoint.connect(victim.local_address(), &Expected::Anyone).await
            {
                assert!(matches!(error, ConnectError::NoAnswer { .. }), "{error}");
                unanswered += 1;
                assert!(unanswered < 10, "{error}");
            }
            taken.push(begins.elapsed());
        }
    }
    taken.sort_unstable();
    let [p50, longest] = [taken[taken.len() / 2], taken[taken.len() - 1]];
    println!("{} links amid a flood: p50 {p50:?}, longest {longest:?}", taken.len());
    flooding.iter().for_each(JoinHandle::abort);
    accepted.abort();
}
