//! Links between honest nodes: messages arrive, and an endpoint turns unexpected nodes away.

use std::time::Duration;

use bytes::Bytes;
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::chunk::MAX_ELEMENTS;
use everstep_transport::protocol::generation::Ownership;
use everstep_transport::protocol::{
    Chunk, ChunkKind, Encoding, Generation, Message, Rank, Record, Shard, Step, codec, exemplars,
};
use everstep_transport::quic::{
    BulkReceiver, ConnectError, DialBackoff, DialSettings, Encoded, Endpoint, EndpointStats,
    Expected, LinkError, MAX_MTU, Settings,
};

use crate::support::{World, link, loopback, name, settings};

#[tokio::test]
async fn every_message_arrives_in_order_in_both_directions() {
    let pair = World::new().pair().await;
    for message in exemplars::all() {
        pair.here.send(message.clone()).unwrap();
        pair.there.send(message).unwrap();
    }
    for message in exemplars::all() {
        assert_eq!(pair.there.receive().await.unwrap(), message);
        assert_eq!(pair.here.receive().await.unwrap(), message);
    }
}

#[tokio::test]
async fn both_ends_know_who_the_other_is() {
    let pair = World::new().pair().await;
    let worker = |node| Identity { role: Role::Worker, name: name(node) };
    assert_eq!(*pair.here.identity(), worker("worker-2"));
    assert_eq!(*pair.there.identity(), worker("worker-1"));
    assert_eq!(pair.here.remote_address(), pair.endpoints.1.local_address());
}

/// A record of about this many bytes.
fn large_record(bytes: usize) -> Message {
    let ownership =
        |shard| Ownership { first: Shard(shard), count: 1, owners: vec![Rank(0), Rank(1)] };
    let record = exemplars::all().into_iter().find_map(|message| match message {
        Message::Announce(record) => Some(record),
        _ => None,
    });
    let owners = (0..bytes as u32 / 24).map(ownership).collect();
    Message::Announce(Record { owners, ..record.expect("an exemplar of a record") })
}

#[tokio::test]
async fn large_messages_arrive_and_keep_their_place() {
    let pair = World::new().pair().await;
    let go = |step| Message::Go { generation: Generation(1), step: Step(step) };
    let large = large_record(2 << 20);
    let messages =
        [go(1), large.clone(), go(2), large.clone(), large.clone(), large.clone(), large, go(3)];
    for message in &messages {
        pair.here.send(message.clone()).unwrap();
    }
    for message in messages {
        assert!(pair.there.receive().await.unwrap() == message);
    }
}

#[tokio::test]
async fn a_message_that_was_encoded_once_goes_to_many() {
    let (pairs, record) =
        ([World::new().pair().await, World::new().pair().await], large_record(1 << 18));
    let encoded = Encoded::new(&record);
    for pair in &pairs {
        pair.here.send_encoded(&encoded).unwrap();
        assert_eq!(pair.there.receive().await, Ok(record.clone()));
    }
}

/// Invariant I10.
#[tokio::test]
async fn a_full_queue_is_an_error_and_never_a_wait() {
    let world = World::new();
    let listener = world.worker("worker-2");
    let few = Settings { control_queue: 4, ..settings() };
    let credentials = world.credentials(Role::Worker, "worker-1");
    let sender = Endpoint::bind(loopback(), &credentials, few, None).unwrap();
    let (here, _there) = link(&sender, &listener).await;
    // The writer does not run before this task waits.
    let sent = (0..5).map(|_| here.send(Message::FetchRecord)).collect::<Vec<_>>();
    assert_eq!(sent[4], Err(LinkError::Full));
    assert!(sent[..4].iter().all(Result::is_ok));
}

/// Invariant I10.
#[tokio::test]
async fn a_queue_is_bounded_by_bytes_too_and_takes_more_when_they_are_gone() {
    let pair = World::new().pair().await;
    let large = large_record(2 << 20);
    let fit = (64 << 20) / codec::encode(&large).len();
    assert!(fit < settings().control_queue);
    // Encoded only once: this thread serves both ends, and a link that hears nothing for seconds is
    // lost.
    let encoded = Encoded::new(&large);
    for _ in 0..fit {
        pair.here.send_encoded(&encoded).unwrap();
    }
    assert_eq!(pair.here.send_encoded(&encoded), Err(LinkError::Full));
    for _ in 0..fit {
        assert!(pair.there.receive().await.unwrap() == large);
    }
    for _ in 0..fit {
        pair.here.send_encoded(&encoded).unwrap();
    }
}

fn noise(bytes: usize, seed: u8) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut noise);
    noise
}

fn tensor(shard: u32, count: u32) -> Chunk {
    let (generation, step) = (Generation(3), Step(4));
    let (kind, encoding) = (ChunkKind::Partial, Encoding::F32);
    let (shard, level, index, digest) = (Shard(shard), 1, 2, 3);
    Chunk { kind, generation, step, shard, level, index, count, encoding, digest }
}

/// 64 MiB in chunks of odd sizes, a commit record in front.
fn chunks() -> Vec<(Chunk, Bytes)> {
    let record = Bytes::from(noise(777, 1));
    let mut chunks = vec![(Chunk::message(Generation(3), Step(4), record.len()), record)];
    let mut rest = Bytes::from_owner(noise(64 << 20, 2));
    for shard in 0.. {
        let count = (shard * 40_961 % MAX_ELEMENTS + 1).min(rest.len() as u32 / 4);
        if count == 0 {
            break;
        }
        let chunk = tensor(shard, count);
        chunks.push((chunk, rest.split_to(chunk.body_bytes())));
    }
    chunks
}

async fn expect_chunks(receiver: &mut BulkReceiver, chunks: &[(Chunk, Bytes)]) {
    for (number, (sent, bytes)) in chunks.iter().enumerate() {
        let chunk = receiver.header().await.unwrap().unwrap();
        assert_eq!(chunk, *sent);
        if number % 5 == 4 {
            receiver.skip(&chunk).await.unwrap();
            continue;
        }
        let mut body = vec![0; chunk.body_bytes()];
        receiver.body(&chunk, &mut body).await.unwrap();
        assert!(body == *bytes, "chunk {number} has other bytes");
    }
    assert_eq!(receiver.header().await.unwrap(), None);
}

#[tokio::test]
async fn chunks_of_odd_sizes_arrive_byte_for_byte() {
    let pair = World::new().pair().await;
    let chunks = chunks();
    let sending = async {
        let mut sender = pair.here.bulk().await.unwrap();
        for (chunk, body) in &chunks {
            sender.send(chunk, body.clone()).await.unwrap();
        }
        sender.finish().unwrap();
    };
    let receiving = async {
        expect_chunks(&mut pair.there.accept_bulk().await.unwrap(), &chunks).await;
    };
    tokio::join!(sending, receiving);
}

#[tokio::test]
async fn bodies_that_nobody_reads_hold_up_neither_messages_nor_other_streams() {
    let world = World::new();
    let pair = world.pair().await;
    let body = Bytes::from(noise(4 << 20, 3));
    // All streams that a peer may have open, but one.
    for shard in 1..settings().bulk_streams {
        let (link, body) = (pair.here.clone(), body.clone());
        tokio::spawn(async move {
            let mut sender = link.bulk().await.unwrap();
            let _ = sender.send(&tensor(shard, 1 << 20), body).await; // never read
        });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    pair.here.send(large_record(2 << 20)).unwrap();
    let received = tokio::time::timeout(Duration::from_secs(20), pair.there.receive()).await;
    received.expect("messages pass").unwrap();

    let sending = async {
        let mut sender = pair.here.bulk().await.unwrap();
        sender.send(&tensor(0, 1 << 20), body.clone()).await.unwrap();
        sender.finish().unwrap();
    };
    let receiving = async {
        let mut waiting = Vec::new();
        loop {
            let mut receiver = pair.there.accept_bulk().await.unwrap();
            let chunk = receiver.header().await.unwrap().unwrap();
            if chunk.shard == Shard(0) {
                return receiver.skip(&chunk).await.unwrap();
            }
            waiting.push(receiver);
        }
    };
    tokio::join!(sending, receiving);
}

#[tokio::test]
async fn a_stream_that_is_given_up_ends_alone() {
    let pair = World::new().pair().await;
    let mut sender = pair.here.bulk().await.unwrap();
    sender.send(&tensor(0, 1), Bytes::from_static(&[1; 4])).await.unwrap();
    let mut receiver = pair.there.accept_bulk().await.unwrap();
    let chunk = receiver.header().await.unwrap().unwrap();
    receiver.skip(&chunk).await.unwrap();
    drop(sender);
    assert_eq!(receiver.header().await, Err(LinkError::Abandoned));

    let mut sender = pair.here.bulk().await.unwrap();
    sender.send(&tensor(0, 1), Bytes::from_static(&[1; 4])).await.unwrap();
    drop(pair.there.accept_bulk().await.unwrap());
    let body = Bytes::from(vec![0; 4 << 20]);
    let mut result = Ok(());
    while result.is_ok() {
        result = sender.send(&tensor(0, 1 << 20), body.clone()).await;
    }
    assert_eq!(result, Err(LinkError::Abandoned));

    pair.here.send(Message::FetchRecord).unwrap();
    assert_eq!(pair.there.receive().await, Ok(Message::FetchRecord));
}

#[tokio::test]
async fn a_close_tells_the_peer_why_and_at_once() {
    let pair = World::new().pair().await;
    pair.here.close("evicted");
    assert_eq!(pair.there.receive().await, Err(LinkError::Closed { reason: "evicted".into() }));
    assert_eq!(pair.here.receive().await, Err(LinkError::Ended { reason: "evicted".into() }));
    assert!(matches!(pair.there.send(Message::Dismiss), Err(LinkError::Closed { .. }) | Ok(())));
    assert!(matches!(pair.there.bulk().await, Err(LinkError::Closed { .. })));
    assert!(matches!(pair.there.accept_bulk().await, Err(LinkError::Closed { .. })));
}

#[tokio::test]
async fn a_dropped_endpoint_closes_its_links_at_once() {
    let pair = World::new().pair().await;
    let (here, there) = pair.endpoints;
    drop(here);
    let closed = tokio::time::timeout(Duration::from_secs(20), pair.there.closed()).await;
    assert!(matches!(closed, Ok(LinkError::Gone { .. })), "{closed:?}");
    there.close("done").await;
    assert!(there.accept().await.is_none());
}

#[tokio::test]
async fn a_link_that_is_let_go_closes() {
    let pair = World::new().pair().await;
    let clone = pair.here.clone();
    drop(pair.here);
    clone.send(Message::FetchRecord).unwrap();
    assert_eq!(pair.there.receive().await, Ok(Message::FetchRecord));
    drop(clone);
    assert!(matches!(pair.there.receive().await, Err(LinkError::Closed { .. })));
}

#[tokio::test]
async fn a_finished_link_loses_no_message() {
    let pair = World::new().pair().await;
    let messages = [Message::FetchRecord, large_record(3 << 20), Message::Dismiss];
    for message in &messages {
        pair.here.send(message.clone()).unwrap();
    }
    pair.here.finish().await;
    assert_eq!(pair.endpoints.1.stats().refused_peers, 0);
    for message in messages {
        assert!(pair.there.receive().await.unwrap() == message);
    }
    assert!(matches!(pair.there.receive().await, Err(LinkError::Gone { .. })));
}

#[tokio::test]
async fn another_node_than_the_expected_one_is_refused() {
    let world = World::new();
    let (here, there) = (world.worker("worker-1"), world.worker("worker-2"));
    let wrong = [
        Expected::Role(Role::Coordinator),
        Expected::Node(Identity { role: Role::Worker, name: name("worker-3") }),
        Expected::Node(Identity { role: Role::Operator, name: name("worker-2") }),
    ];
    for expected in &wrong {
        let error = here.connect(there.local_address(), expected).await.unwrap_err();
        assert!(matches!(error, ConnectError::Stranger { .. }), "{error}");
    }
    let right = Identity { role: Role::Worker, name: name("worker-2") };
    for expected in [Expected::Anyone, Expected::Role(Role::Worker), Expected::Node(right)] {
        here.connect(there.local_address(), &expected).await.unwrap();
    }
}

#[tokio::test]
async fn a_node_of_another_cluster_is_refused_on_both_sides() {
    let (here, there) = (World::new().worker("worker-1"), World::new().worker("worker-1"));
    let error = here.connect(there.local_address(), &Expected::Anyone).await.unwrap_err();
    assert!(matches!(error, ConnectError::Foreign { .. }), "{error}");
    while there.stats().failed_handshakes == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_is_no_failed_handshake() {
    let world = World::new();
    let (here, there) = (world.worker("worker-1"), world.worker("worker-2"));
    for patience in 0..20 {
        let call = here.connect(there.local_address(), &Expected::Anyone);
        let _ = tokio::time::timeout(Duration::from_micros(200 * patience), call).await;
    }
    here.connect(there.local_address(), &Expected::Anyone).await.unwrap();
    assert_eq!(there.stats().failed_handshakes, 0);
}

#[tokio::test]
async fn an_expired_certificate_is_refused_in_words() {
    let world = World::new();
    let (valid, name) = (world.worker("worker-2"), name("worker-1"));
    let identity = Identity { role: Role::Worker, name };
    let expired = world.authority.issue(&identity, Duration::ZERO).unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let expired = Endpoint::bind(loopback(), &expired, settings(), None).unwrap();
    for (from, to) in [(&expired, &valid), (&valid, &expired)] {
        let error = from.connect(to.local_address(), &Expected::Anyone).await.unwrap_err();
        assert!(matches!(error, ConnectError::Expired { .. }), "{error}");
    }
}

#[tokio::test]
async fn where_nobody_listens_nobody_answers() {
    let world = World::new();
    let silent = std::net::UdpSocket::bind(loopback()).unwrap();
    let quick = Settings { handshake_timeout: Duration::from_millis(200), ..settings() };
    let credentials = world.credentials(Role::Worker, "worker-1");
    let here = Endpoint::bind(loopback(), &credentials, quick, None).unwrap();
    let address = silent.local_addr().unwrap();
    let error = here.connect(address, &Expected::Anyone).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoAnswer { .. }), "{error}");
}

#[tokio::test]
async fn a_node_that_comes_up_late_is_found_by_a_later_dial() {
    let world = World::new();
    let here = world.worker("worker-1");
    let silent = std::net::UdpSocket::bind(loopback()).unwrap();
    let address = silent.local_addr().unwrap();
    let quick = Duration::from_millis(10);
    let pace = DialSettings { first_pause: quick, first_timeout: quick, ..DialSettings::DEFAULT };
    let mut backoff = DialBackoff::new(pace);
    let error = backoff.dial(&here, address, &Expected::Anyone).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoAnswer { .. }), "{error}");
    drop(silent);
    let credentials = world.credentials(Role::Worker, "worker-2");
    let _there = Endpoint::bind(address, &credentials, settings(), None).unwrap();
    let link = loop {
        backoff.pause().await;
        if let Ok(link) = backoff.dial(&here, address, &Expected::Anyone).await {
            break link;
        }
    };
    assert_eq!(link.remote_address(), address);
}

#[tokio::test]
async fn a_silent_peer_is_lost_after_the_idle_time_out() {
    let world = World::new();
    let impatient = Settings { idle_timeout: Duration::from_millis(2_500), ..settings() };
    let credentials = world.credentials(Role::Worker, "worker-1");
    let here = Endpoint::bind(loopback(), &credentials, impatient, None).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let (thaw, frozen) = std::sync::mpsc::channel::<()>();
    let peer = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let endpoint = world.worker("worker-2");
            tell.send(endpoint.local_address()).unwrap();
            let _link = endpoint.accept().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            let _ = frozen.recv(); // stops the runtime's only thread, as SIGSTOP would
        });
    });
    let link = here.connect(told.recv().unwrap(), &Expected::Anyone).await.unwrap();
    assert!(matches!(link.receive().await, Err(LinkError::Silent | LinkError::Forgotten)));
    drop(thaw);
    peer.join().unwrap();
}

#[tokio::test]
async fn a_crowd_of_nodes_is_let_in_in_the_end() {
    let world = World::new();
    let credentials = world.credentials(Role::Coordinator, "coordinator-1");
    let few = Settings { max_handshakes: 4, ..settings() };
    let centre = Endpoint::bind(loopback(), &credentials, few, None).unwrap();
    let address = centre.local_address();
    let mut crowd = tokio::task::JoinSet::new();
    for number in 0..24 {
        let node = world.worker(&format!("worker-{number}"));
        crowd.spawn(async move {
            loop {
                match node.connect(address, &Expected::Anyone).await {
                    Err(ConnectError::Busy { .. }) => tokio::task::yield_now().await,
                    other => return other.map(|link| (node, link)),
                }
            }
        });
    }
    let mut met = Vec::new();
    while met.len() < 24 {
        met.push(centre.accept().await.unwrap());
    }
    assert!(crowd.join_all().await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn settings_that_cannot_be_are_refused() {
    let credentials = World::new().credentials(Role::Worker, "worker-1");
    let wrong = [
        Settings { largest_mtu: 9000, ..settings() },
        Settings { initial_mtu: 1200, guaranteed_mtu: 1300, ..settings() },
        Settings { keep_alive: Duration::from_secs(3), ..settings() },
        Settings { peers: 0, ..settings() },
        Settings { control_queue: 0, ..settings() },
    ];
    for settings in wrong {
        assert!(Endpoint::bind(loopback(), &credentials, settings, None).is_err());
    }
}

/// The endpoint's counters of its links, which must never fall.
fn sums(stats: &EndpointStats) -> [u64; 2] {
    [stats.sent_packets, stats.lost_packets]
}

#[tokio::test]
async fn an_endpoint_knows_its_links_and_keeps_their_numbers_after_their_end() {
    let world = World::new();
    let (one, two, centre) = (world.worker("a"), world.worker("b"), world.worker("centre"));
    assert_eq!(centre.stats(), EndpointStats::default());
    let (outgoing, _there) = link(&centre, &one).await;
    let (peer, incoming) = link(&two, &centre).await;
    incoming.send(large_record(1 << 20)).unwrap();
    peer.receive().await.unwrap();

    let stats = centre.stats();
    assert_eq!((stats.links, stats.path_mtu), (2, MAX_MTU));
    assert!(stats.sent_packets > (1 << 20) / u64::from(MAX_MTU), "{stats:?}");
    assert_eq!((one.stats().links, two.stats().links), (1, 1));

    // This side ends one link, and the peer ends the other.
    outgoing.close("enough");
    assert_eq!(centre.stats().links, 1);
    drop(peer);
    incoming.closed().await;
    let ended = centre.stats();
    assert_eq!((ended.links, ended.path_mtu), (0, 0));
    assert!(sums(&ended).iter().zip(sums(&stats)).all(|(after, before)| *after >= before));

    // The numbers stay, and count once, after the last handles are dropped and other links follow.
    drop((outgoing, incoming));
    let (_again, _accepted) = link(&centre, &one).await;
    let later = centre.stats();
    assert_eq!(later.links, 1);
    assert!(later.sent_packets < 2 * stats.sent_packets, "{later:?}");
    assert!(sums(&later).iter().zip(sums(&ended)).all(|(after, before)| *after >= before));
}

/// How many bytes a worker can send on one unread bulk stream, if this many peers share the
/// receiver's budget.
async fn unread(peers: u32) -> usize {
    let world = World::new();
    let (sender, receiver) = (world.worker("sender"), world.worker("receiver"));
    receiver.share_among(peers);
    let (here, _there) = link(&sender, &receiver).await;
    let mut stream = here.bulk().await.unwrap();
    let (header, body) = (tensor(1, 16 << 10), Bytes::from(vec![0; 64 << 10]));
    let mut sent = 0;
    let soon = Duration::from_secs(2);
    while let Ok(written) = tokio::time::timeout(soon, stream.send(&header, body.clone())).await {
        written.unwrap();
        sent += body.len();
    }
    sent
}

#[tokio::test]
async fn the_more_peers_share_the_windows_the_less_waits_unread_of_each() {
    let [few, many] = [unread(8).await, unread(10_000).await];
    println!("{few} bytes of one of 8 peers, {many} of one of 10,000");
    assert!(few > 2 << 20 && many <= 256 << 10, "{few} {many}");
}

#[tokio::test]
async fn two_builds_speak_the_newest_version_that_both_know() {
    let world = World::new();
    let node = |name: &str, protocol_versions| {
        let credentials = world.credentials(Role::Worker, name);
        let settings = Settings { protocol_versions, ..settings() };
        Endpoint::bind(loopback(), &credentials, settings, None).unwrap()
    };
    let (old, new) = (node("old", 2..=3), node("new", 3..=5));
    for (here, there) in [(&old, &new), (&new, &old)] {
        let (here, there) = link(here, there).await;
        assert_eq!((here.protocol_version(), there.protocol_version()), (3, 3));
    }
    let newest = node("newest", 4..=5);
    let (here, _there) = link(&newest, &new).await;
    assert_eq!(here.protocol_version(), 5);
    let error = newest.connect(old.local_address(), &Expected::Anyone).await.unwrap_err();
    assert!(matches!(error, ConnectError::OtherVersion { .. }), "{error}");
    assert!(error.to_string().contains("everstep/4 to 5"), "{error}");
}
