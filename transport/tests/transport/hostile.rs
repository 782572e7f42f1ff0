//! Peers that misbehave. They lose their own connection, with a reason, and nothing else happens.

use std::time::Duration;

use everstep_transport::identity::{Enrolment, Role};
use everstep_transport::protocol::version::{PROTOCOL_VERSIONS, alpn, spoken};
use everstep_transport::protocol::{
    Chunk, ChunkKind, Encoding, Generation, Message, Shard, Step, exemplars,
};
use everstep_transport::quic::{ConnectError, Endpoint, Expected, Link, LinkError, Settings};
use quinn::{Connection, ConnectionError, SendStream};

use crate::support::{Raw, RawPeer, World, counts_failed_handshakes, link, loopback, settings};

/// An honest pair of nodes, and a member of the cluster that speaks raw QUIC to one of them.
struct Scene {
    honest: (Link, Link),
    victim: Endpoint,
    _friend: Endpoint,
    rogue: Raw,
    lane: SendStream,
    link: Link,
}

impl Scene {
    async fn set() -> Self {
        let world = World::new();
        let (victim, friend) = (world.worker("victim"), world.worker("friend"));
        let honest = link(&friend, &victim).await;
        let rogue = RawPeer::member(&world).connect(victim.local_address()).await;
        let (lane, _) = rogue.connection.as_ref().unwrap().accept_bi().await.unwrap();
        let link = victim.accept().await.unwrap();
        Self { honest, victim, _friend: friend, rogue, lane, link }
    }

    fn connection(&self) -> &Connection {
        self.rogue.connection.as_ref().unwrap()
    }

    /// Checks that the victim closed the rogue's link for what it sent, told it the reason, and
    /// still serves its friend.
    async fn ends_by(self, what: &str) {
        assert!(matches!(self.link.closed().await, LinkError::Refused { .. }));
        let ConnectionError::ApplicationClosed(close) = self.connection().closed().await else {
            panic!("the rogue was not told");
        };
        let reason = String::from_utf8_lossy(&close.reason);
        assert!(reason.contains(what), "{reason:?} does not say {what:?}");
        assert_eq!(self.victim.stats().refused_peers, 1);
        self.honest.0.send(Message::FetchRecord).unwrap();
        assert_eq!(self.honest.1.receive().await, Ok(Message::FetchRecord));
    }
}

#[tokio::test]
async fn an_oversized_control_message_is_refused_by_its_length() {
    let mut scene = Scene::set().await;
    scene.lane.write_all(&70_000_u32.to_le_bytes()).await.unwrap();
    assert!(matches!(scene.link.receive().await, Err(LinkError::Refused { .. })));
    scene.ends_by("a control message of 70000 bytes").await;
}

#[tokio::test]
async fn a_garbled_control_message_is_refused() {
    let mut scene = Scene::set().await;
    scene.lane.write_all(&[9, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]).await.unwrap();
    assert!(matches!(scene.link.receive().await, Err(LinkError::Refused { .. })));
    scene.ends_by("9 bytes that are not a message").await;
}

#[tokio::test]
async fn a_control_lane_that_ends_within_a_message_is_refused() {
    let mut scene = Scene::set().await;
    scene.lane.write_all(&[9, 0, 0, 0, 1, 2]).await.unwrap();
    scene.lane.finish().unwrap();
    scene.ends_by("a control lane that ends within a frame").await;
}

#[tokio::test]
async fn a_control_lane_that_is_given_up_is_refused() {
    let mut scene = Scene::set().await;
    scene.lane.reset(3_u32.into()).unwrap();
    scene.ends_by("a control lane that was given up").await;
}

#[tokio::test]
async fn a_large_message_that_is_none_is_refused() {
    let tensor = Chunk {
        kind: ChunkKind::Master,
        encoding: Encoding::F32,
        ..Chunk::message(Generation(1), Step(1), 1)
    };
    let message = Chunk::message(Generation(0), Step(0), 4);
    let table = [
        (tensor.encode().to_vec(), "no message on a stream that is for one"),
        (vec![], "no message on a stream that is for one"),
        ([&message.encode()[..], &[1, 2, 3, 4]].concat(), "4 bytes that are not a message"),
    ];
    for (bytes, what) in table {
        let mut scene = Scene::set().await;
        scene.lane.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
        let (mut stream, _receive) = scene.connection().open_bi().await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        stream.finish().unwrap();
        scene.ends_by(what).await;
    }
}

async fn bulk(scene: &Scene, bytes: &[u8]) {
    let mut stream = scene.connection().open_uni().await.unwrap();
    stream.write_all(bytes).await.unwrap();
    stream.finish().unwrap();
}

#[tokio::test]
async fn a_garbled_chunk_header_is_refused() {
    let scene = Scene::set().await;
    bulk(&scene, &[0xa5; 64]).await;
    let mut receiver = scene.link.accept_bulk().await.unwrap();
    assert!(matches!(receiver.header().await, Err(LinkError::Refused { .. })));
    scene.ends_by("chunk of unknown kind").await;
}

#[tokio::test]
async fn a_stream_that_ends_within_a_header_is_refused() {
    let scene = Scene::set().await;
    bulk(&scene, &[0; 7]).await;
    let mut receiver = scene.link.accept_bulk().await.unwrap();
    assert!(matches!(receiver.header().await, Err(LinkError::Refused { .. })));
    scene.ends_by("a stream that ends within a header").await;
}

#[tokio::test]
async fn a_stream_that_ends_within_a_body_is_refused() {
    for skips in [false, true] {
        let scene = Scene::set().await;
        let chunk = Chunk { shard: Shard(1), ..Chunk::message(Generation(1), Step(1), 100) };
        bulk(&scene, &[&chunk.encode()[..], &[0; 99]].concat()).await;
        let mut receiver = scene.link.accept_bulk().await.unwrap();
        assert_eq!(receiver.header().await, Ok(Some(chunk)));
        let read = match skips {
            true => receiver.skip(&chunk).await,
            false => receiver.body(&chunk, &mut [0; 100]).await,
        };
        assert!(matches!(read, Err(LinkError::Refused { .. })));
        scene.ends_by("a stream that ends within a body").await;
    }
}

#[tokio::test]
async fn no_message_of_the_vocabulary_with_a_changed_byte_harms_the_node() {
    let world = World::new();
    let victim = world.worker("victim");
    for message in exemplars::all() {
        let mut bytes = everstep_transport::protocol::codec::encode(&message).to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        let rogue = RawPeer::member(&world).connect(victim.local_address()).await;
        let (mut lane, _) = rogue.connection.as_ref().unwrap().accept_bi().await.unwrap();
        let link = victim.accept().await.unwrap();
        lane.write_all(&(bytes.len() as u32).to_le_bytes()).await.unwrap();
        lane.write_all(&bytes).await.unwrap();
        let received = link.receive().await;
        assert!(matches!(received, Ok(_) | Err(LinkError::Refused { .. })), "{received:?}");
    }
}

#[tokio::test]
async fn a_node_without_a_certificate_is_not_let_in() {
    for enrols in [false, true] {
        let world = World::new();
        let enrolment = enrols.then(|| Enrolment::new(world.authority.clone(), vec![]));
        let credentials = world.credentials(Role::Coordinator, "coordinator-1");
        let victim = Endpoint::bind(loopback(), &credentials, settings(), enrolment).unwrap();
        let stranger = RawPeer { credentials: None, protocol: alpn(&PROTOCOL_VERSIONS).remove(0) };
        let stranger = stranger.connect(victim.local_address()).await;
        // In TLS 1.3 the client is done first. The refusal follows.
        if let Ok(connection) = &stranger.connection {
            let error = connection.closed().await.to_string();
            assert!(error.contains("ertificate"), "{error}");
        }
        let let_in = tokio::time::timeout(Duration::from_millis(50), victim.accept()).await;
        assert!(let_in.is_err());
        counts_failed_handshakes(&victim, 1).await;
    }
}

#[tokio::test]
async fn handshakes_that_stall_are_bounded_and_give_way() {
    let world = World::new();
    let enrolment = Enrolment::new(world.authority.clone(), vec![]);
    // The silent peers' connections do not end before their handshakes are given up.
    let few = Settings { max_handshakes: 4, idle_timeout: Duration::from_secs(60), ..settings() };
    let credentials = world.credentials(Role::Coordinator, "coordinator-1");
    let victim = Endpoint::bind(loopback(), &credentials, few, Some(enrolment)).unwrap();
    let mut silent = Vec::new();
    for _ in 0..2 {
        let peer = RawPeer { credentials: None, protocol: b"everstep-enrol/2".to_vec() };
        silent.push(peer.connect(victim.local_address()).await);
    }
    let honest = world.worker("worker-1");
    let connect = || honest.connect(victim.local_address(), &Expected::Anyone);
    let error = connect().await.unwrap_err();
    assert!(matches!(error, ConnectError::Busy { .. }), "{error}");
    for raw in silent {
        raw.connection.unwrap().closed().await;
    }
    connect().await.unwrap();
}

#[tokio::test]
async fn a_host_that_floods_with_handshakes_keeps_no_other_host_out() {
    let world = World::new();
    let enrolment = Enrolment::new(world.authority.clone(), vec![]);
    let credentials = world.credentials(Role::Coordinator, "coordinator-1");
    let victim = Endpoint::bind(loopback(), &credentials, settings(), Some(enrolment)).unwrap();
    let (mut stalled, mut refused) = (Vec::new(), 0);
    for _ in 0..2 * settings().max_handshakes {
        let peer = RawPeer { credentials: None, protocol: b"everstep-enrol/2".to_vec() };
        let raw = peer.connect_from(([127, 0, 0, 2], 0).into(), victim.local_address()).await;
        match raw.connection {
            Ok(_) => stalled.push(raw),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0, "the flood is not large enough");
    let honest = world.worker("worker-1");
    honest.connect(victim.local_address(), &Expected::Anyone).await.unwrap();
    assert!(!stalled.is_empty());
}

#[tokio::test]
async fn another_version_is_refused_in_words() {
    let world = World::new();
    let victim = world.worker("victim");
    let future = RawPeer { protocol: b"everstep/65535".to_vec(), ..RawPeer::member(&world) };
    let raw = future.connect(victim.local_address()).await;
    assert!(raw.connection.is_err());
    counts_failed_handshakes(&victim, 1).await;

    // The other way round: this node meets a node that speaks another version.
    let server = future_server(&world);
    let address = server.local_addr().unwrap();
    tokio::spawn(async move { server.accept().await.unwrap().await });
    let error = victim.connect(address, &Expected::Anyone).await.unwrap_err();
    assert!(matches!(error, ConnectError::OtherVersion { .. }), "{error}");
    assert!(error.to_string().contains(&spoken(&PROTOCOL_VERSIONS)), "{error}");
}

fn future_server(world: &World) -> quinn::Endpoint {
    let credentials = world.credentials(Role::Worker, "future");
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(credentials.chain(), credentials.key().into())
        .unwrap();
    tls.alpn_protocols = vec![b"everstep/65535".to_vec()];
    let tls = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(std::sync::Arc::new(tls));
    quinn::Endpoint::server(config, loopback()).unwrap()
}
