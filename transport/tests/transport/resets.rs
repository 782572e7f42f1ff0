//! Stateless resets: an answer of QUIC to packets of a link that its receiver does not know. It
//! ends the link if it comes from the same node, started again. That of any other node is worth
//! nothing.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use everstep_transport::identity::{Credentials, Enrolment, Role};
use everstep_transport::protocol::{Message, exemplars};
use everstep_transport::quic::{Endpoint, Expected};
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};

use crate::support::{World, loopback, settings};

const RESET_TIMEOUT: Duration = Duration::from_secs(20);
/// A packet is answered with a reset only if it is longer than one.
const LONGER_THAN_A_RESET: usize = 100;

/// A router between a worker and a coordinator, which sees and sends what it likes.
struct Router {
    /// The address that the worker takes for the coordinator's.
    front: UdpSocket,
    back: UdpSocket,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    worker: Option<SocketAddr>,
    /// The newest long packet of the link from the worker.
    packet: Option<Vec<u8>>,
}

impl Router {
    async fn before(coordinator: SocketAddr) -> Arc<Self> {
        let front = UdpSocket::bind(loopback()).await.unwrap();
        let back = UdpSocket::bind(loopback()).await.unwrap();
        back.connect(coordinator).await.unwrap();
        let router = Arc::new(Self { front, back, seen: Mutex::default() });
        tokio::spawn({
            let router = router.clone();
            async move { router.carry().await }
        });
        router
    }

    /// Carries packets both ways.
    async fn carry(&self) {
        let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        loop {
            tokio::select! {
                got = self.front.recv_from(&mut up) => {
                    let Ok((length, from)) = got else { continue };
                    self.see(from, &up[..length]);
                    let _ = self.back.send(&up[..length]).await;
                }
                got = self.back.recv(&mut down) => {
                    let Ok(length) = got else { continue };
                    self.send_to_worker(&down[..length]).await;
                }
            }
        }
    }

    fn see(&self, from: SocketAddr, packet: &[u8]) {
        let mut seen = self.seen.lock().unwrap();
        seen.worker = Some(from);
        let is_of_a_link = packet[0] >> 6 == 1;
        if is_of_a_link && packet.len() > LONGER_THAN_A_RESET {
            seen.packet = Some(packet.to_vec());
        }
    }

    async fn send_to_worker(&self, packet: &[u8]) {
        let worker = self.seen.lock().unwrap().worker;
        self.front.send_to(packet, worker.expect("the worker began")).await.unwrap();
    }

    /// What a node answers to the worker's packet, which was for another process.
    async fn answer_of(&self, node: &Endpoint) -> Option<Vec<u8>> {
        let packet = self.seen.lock().unwrap().packet.clone().expect("a packet of the link");
        let stranger = UdpSocket::bind(loopback()).await.unwrap();
        stranger.send_to(&packet, node.local_address()).await.unwrap();
        let mut answer = vec![0; 1 << 16];
        let length =
            timeout(Duration::from_secs(1), stranger.recv(&mut answer)).await.ok()?.unwrap();
        answer.truncate(length);
        Some(answer)
    }
}

fn coordinator(world: &World, credentials: &Credentials) -> Endpoint {
    let enrolment = Enrolment::new(world.authority.clone(), vec![]);
    Endpoint::bind(loopback(), credentials, settings(), Some(enrolment)).unwrap()
}

#[tokio::test]
async fn a_reset_of_one_coordinator_ends_no_link_of_another() {
    let world = World::new();
    let own = world.credentials(Role::Coordinator, "coordinator-1");
    let (first, worker) = (coordinator(&world, &own), world.worker("worker-1"));
    let router = Router::before(first.local_address()).await;
    let address = router.front.local_addr().unwrap();
    let connected = worker.connect(address, &Expected::Anyone);
    let (here, there) = tokio::join!(connected, first.accept());
    let (here, there) = (here.unwrap(), there.unwrap());
    let told = exemplars::all();
    for message in &told {
        here.send(message.clone()).unwrap();
        assert_eq!(there.receive().await.unwrap(), *message);
    }

    let other = world.credentials(Role::Coordinator, "coordinator-2");
    let other = coordinator(&world, &other);
    if let Some(reset) = router.answer_of(&other).await {
        router.send_to_worker(&reset).await;
    }
    sleep(Duration::from_millis(200)).await;
    here.send(Message::FetchRecord).expect("the link lives");
    assert_eq!(there.receive().await.unwrap(), Message::FetchRecord);

    // The same coordinator, started again.
    let again = coordinator(&world, &own);
    let end = timeout(RESET_TIMEOUT, async {
        loop {
            // An answer counts only if its packet went to the connection ID that is in use now.
            let _ = told.iter().try_for_each(|message| here.send(message.clone()));
            if let Some(reset) = router.answer_of(&again).await {
                router.send_to_worker(&reset).await;
            }
            if let Ok(end) = timeout(Duration::from_millis(500), here.closed()).await {
                break end;
            }
        }
    });
    let end = end.await.expect("the link ends");
    assert!(end.to_string().contains("has forgotten the link"), "{end}");
}
