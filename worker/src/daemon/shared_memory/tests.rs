//! Two ends that share memory, with a real socket between them.

mod golden;

use std::net::Ipv4Addr;
use std::time::Duration;

use everstep_kernels::shared_memory::Segment;
use everstep_transport::identity::{Authority, Credentials, Identity, NODE_LIFETIME, Role};
use everstep_transport::protocol::NodeName;
use everstep_transport::quic::{Endpoint, Expected, Settings};
use tokio::time::timeout;

use super::socket::MemorySocket;
use super::*;
use crate::memory_ring::LINK_BYTES;

/// Longer than anything takes here, however busy the machine is.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Nothing comes that has not come after this.
const LITTLE: Duration = Duration::from_millis(100);

/// Two workers, and the two ends of the link between them.
struct Pair {
    links: [Link; 2],
    _endpoints: [Endpoint; 2],
}

impl Pair {
    async fn new() -> Self {
        let authority = Authority::create().unwrap();
        let [dialling, dialled] = ["worker-1", "worker-2"].map(|name| worker(&authority, name));
        let expected = Expected::Node(identity("worker-2"));
        let address = dialled.local_address();
        let (one, other) = tokio::join!(dialling.connect(address, &expected), dialled.accept());
        Self { links: [one.unwrap(), other.unwrap()], _endpoints: [dialling, dialled] }
    }

    /// Both ends, once they share memory.
    async fn shared(&self) -> ([SharedMemory; 2], JoinSet<()>) {
        let mut tasks = JoinSet::new();
        let ends = [0, 1].map(|end| SharedMemory::begin(&self.links[end], &mut tasks));
        for end in &ends {
            until(end, shares).await;
        }
        (ends, tasks)
    }
}

fn identity(name: &str) -> Identity {
    Identity { role: Role::Worker, name: NodeName::parse(name).unwrap() }
}

fn worker(authority: &Authority, name: &str) -> Endpoint {
    let credentials: Credentials = authority.issue(&identity(name), NODE_LIFETIME).unwrap();
    let loopback = Ipv4Addr::LOCALHOST.into();
    let settings = Settings::for_address(loopback);
    Endpoint::bind((loopback, 0).into(), &credentials, settings, None).unwrap()
}

/// Waits until the state of this end is so.
async fn until(end: &SharedMemory, is_so: impl Fn(&State) -> bool) {
    let mut changed = end.inner.changed.subscribe();
    let waiting = async {
        while !is_so(&end.state()) {
            changed.changed().await.unwrap();
        }
    };
    timeout(TEST_TIMEOUT, waiting).await.expect("it comes about");
}

fn shares(state: &State) -> bool {
    state.is_shared
}

/// Puts a body into memory, once the other end has the lane's segment.
async fn put(memory: &mut LaneMemory, body: &[u8]) -> MemoryPlace {
    let putting = async {
        loop {
            match memory.put(body).await {
                Some(place) => return place,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    };
    timeout(TEST_TIMEOUT, putting).await.expect("there is memory")
}

fn body(first: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| first.wrapping_add(at as u8)).collect()
}

fn read(end: &SharedMemory, place: &MemoryPlace, bytes: usize) -> Vec<u8> {
    let mut into = vec![0; bytes];
    end.read(place, &mut into).expect("it is there");
    into
}

#[tokio::test]
async fn what_one_end_puts_the_other_one_reads_in_both_directions() {
    let pair = Pair::new().await;
    let ([one, other], _tasks) = pair.shared().await;
    for (from, to) in [(&one, &other), (&other, &one)] {
        let mut memory = LaneMemory::new(from.clone());
        // Of several sizes: the segment of the first one is too small for the last ones.
        for (turn, bytes) in [20_000, 1 << 20, 70_000, 1 << 22, 1 << 22, 1 << 22].iter().enumerate()
        {
            let sent = body(turn as u8, *bytes);
            let place = put(&mut memory, &sent).await;
            assert!(read(to, &place, *bytes) == sent, "turn {turn}");
        }
        drop(memory);
        until(to, |state| state.foreign.is_empty()).await;
        until(from, |state| state.own.is_empty() && state.own_bytes == 0).await;
    }
}

#[tokio::test]
async fn a_lane_waits_for_a_reader_that_is_slow_and_not_for_that_of_another_lane() {
    let pair = Pair::new().await;
    let ([one, other], _tasks) = pair.shared().await;
    let bytes = 1 << 20;
    let mut slow = LaneMemory::new(one.clone());
    let first = put(&mut slow, &body(1, bytes)).await;
    put(&mut slow, &body(2, bytes)).await;
    let third = body(3, bytes);
    assert!(timeout(LITTLE, slow.put(&third)).await.is_err(), "it is full");
    let mut lane = LaneMemory::new(one.clone());
    let place = put(&mut lane, &body(4, bytes)).await;
    assert!(read(&other, &place, bytes) == body(4, bytes));
    let waiting = tokio::spawn(async move { slow.put(&third).await.map(|place| (slow, place)) });
    assert!(read(&other, &first, bytes) == body(1, bytes));
    let (_slow, third) = timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap().expect("memory");
    assert_eq!((third.segment, third.at), (first.segment, first.at));
    assert!(read(&other, &third, bytes) == body(3, bytes));
}

#[tokio::test]
async fn a_range_that_nobody_wants_is_used_again() {
    let pair = Pair::new().await;
    let ([one, other], _tasks) = pair.shared().await;
    let mut memory = LaneMemory::new(one);
    for turn in 0..10 {
        let place = put(&mut memory, &body(turn, 1 << 20)).await;
        other.release(&place);
    }
}

#[tokio::test]
async fn a_small_body_and_one_beyond_the_memory_of_a_link_go_over_the_link() {
    let pair = Pair::new().await;
    let ([one, _other], _tasks) = pair.shared().await;
    let mut memory = LaneMemory::new(one.clone());
    assert_eq!(memory.put(&[7; 1 << 10]).await, None);
    assert_eq!(memory.put(&vec![7; LINK_BYTES / 2 + 1]).await, None);
    let [mut large, mut second] = [(); 2].map(|()| LaneMemory::new(one.clone()));
    put(&mut large, &vec![7; LINK_BYTES / 2]).await;
    for _ in 0..20 {
        assert_eq!(second.put(&[7; 20_000]).await, None, "the other lane has all of it");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(large);
    put(&mut second, &[7; 20_000]).await;
}

#[tokio::test]
async fn what_a_lane_has_announced_is_of_no_use_after_its_end() {
    let pair = Pair::new().await;
    let ([one, other], _tasks) = pair.shared().await;
    let mut memory = LaneMemory::new(one);
    let place = put(&mut memory, &body(1, 20_000)).await;
    drop(memory);
    until(&other, |state| state.foreign_next == 1 && state.foreign.is_empty()).await;
    let mut into = vec![0; 20_000];
    assert_eq!(other.read(&place, &mut into), Err(MemoryReadError::Closed));
}

#[tokio::test]
async fn i25_other_bytes_than_were_announced_are_not_taken() {
    let pair = Pair::new().await;
    let ([one, other], _tasks) = pair.shared().await;
    let mut memory = LaneMemory::new(one);
    let place = put(&mut memory, &body(1, 20_000)).await;
    let mut into = vec![0; 20_000];
    for wrong in [
        MemoryPlace { digest: place.digest ^ 1, ..place },
        MemoryPlace { at: place.at + 64, ..place },
        MemoryPlace { at: u64::MAX - 5, ..place },
    ] {
        assert_eq!(other.read(&wrong, &mut into), Err(MemoryReadError::Damaged), "{wrong:?}");
    }
    let unknown = MemoryPlace { segment: place.segment + 1, ..place };
    assert_eq!(other.read(&unknown, &mut into), Err(MemoryReadError::Unknown));
}

#[tokio::test]
async fn when_the_other_end_is_gone_a_lane_waits_no_more_and_what_is_there_can_be_read() {
    let pair = Pair::new().await;
    let mut tasks = [JoinSet::new(), JoinSet::new()];
    let [one, other] = [0, 1].map(|end| SharedMemory::begin(&pair.links[end], &mut tasks[end]));
    until(&one, shares).await;
    until(&other, shares).await;
    let mut memory = LaneMemory::new(one.clone());
    let place = put(&mut memory, &body(1, 1 << 20)).await;
    put(&mut memory, &body(2, 1 << 20)).await;
    until(&other, |state| state.foreign_next == 1).await;
    let third = body(3, 1 << 20);
    let waiting = tokio::spawn(async move { (memory.put(&third).await, memory) });
    let [task_of_one, task_of_other] = tasks;
    drop(task_of_other);
    let (third, mut memory) = timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap();
    assert_eq!(third, None, "it goes over the link");
    assert_eq!(memory.put(&body(4, 1 << 20)).await, None);
    assert!(read(&other, &place, 1 << 20) == body(1, 1 << 20));
    drop(task_of_one);
}

/// A process without a free descriptor gets a packet without one.
#[tokio::test]
async fn an_end_that_cannot_take_a_segment_gets_its_tensors_over_the_link() {
    let pair = Pair::new().await;
    let ([one, other], _tasks) = pair.shared().await;
    let segment = other.change(|state| state.own_next);
    other.notify(MemoryNotice::Open { segment, file: None });
    other.change(|state| {
        let ring = MemoryRing::new(1 << 20);
        state.own.insert(segment, OwnSegment { ring, is_taken: None });
        state.own_next += 1;
    });
    until(&other, |state| state.own[&segment].is_taken == Some(false)).await;
    assert!(one.is_shared() && other.is_shared());
    let mut memory = LaneMemory::new(other.clone());
    let place = put(&mut memory, &body(1, 20_000)).await;
    assert_eq!(place.segment, segment + 1);
    assert!(read(&one, &place, 20_000) == body(1, 20_000));
    // The lane of the segment that was refused puts nothing more.
    other.change(|state| state.own.get_mut(&place.segment).unwrap().is_taken = Some(false));
    for _ in 0..2 {
        assert_eq!(memory.put(&body(2, 20_000)).await, None);
    }
}

#[tokio::test]
async fn memory_that_nobody_shares_is_not_read() {
    let place = MemoryPlace { segment: 0, at: 0, digest: 0 };
    let none = SharedMemory::none();
    assert_eq!(none.read(&place, &mut [0; 8]), Err(MemoryReadError::Unknown));
    none.release(&place);
    assert_eq!(LaneMemory::new(none).put(&[7; 1 << 20]).await, None);
}

#[tokio::test]
async fn an_end_that_does_not_listen_costs_the_memory_and_not_the_link() {
    let pair = Pair::new().await;
    let mut tasks = JoinSet::new();
    let end = SharedMemory::begin(&pair.links[0], &mut tasks);
    let _socket = MemorySocket::meet(&pair.links[1]).await.unwrap();
    until(&end, shares).await;
    for segment in 0..=MAX_NOTICES as u32 * 4 {
        end.notify(MemoryNotice::Close { segment });
        tokio::task::yield_now().await;
    }
    until(&end, |state| !state.is_shared).await;
    assert_eq!(LaneMemory::new(end).put(&body(1, 20_000)).await, None);
    timeout(TEST_TIMEOUT, tasks.join_next()).await.expect("soon").unwrap().expect("no panic");
    for link in &pair.links {
        let closed = timeout(Duration::from_millis(50), link.closed()).await;
        assert!(closed.is_err(), "{closed:?}");
    }
}

#[tokio::test]
async fn another_process_does_not_get_in_and_the_right_one_does() {
    let pair = Pair::new().await;
    let third = Pair::new().await;
    let meeting = tokio::spawn({
        let link = pair.links[1].clone();
        async move { MemorySocket::meet(&link).await }
    });
    // It knows the name, as all of the host do, and not the proof.
    let intruding = async {
        while let Err(error) = MemorySocket::intrude(&pair.links[0], &third.links[0]).await {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                return; // it was there, and was not let in
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("it was let in");
    };
    timeout(TEST_TIMEOUT, intruding).await.expect("soon");
    let right = MemorySocket::meet(&pair.links[0]);
    timeout(TEST_TIMEOUT, right).await.expect("soon").expect("it is let in");
    timeout(TEST_TIMEOUT, meeting).await.expect("soon").unwrap().expect("it lets it in");
}

#[tokio::test]
async fn notices_that_no_honest_process_sends_end_the_session() {
    // The receiver of its notices lives: it may answer.
    let ready = || {
        let (shared, notices) = SharedMemory::new();
        shared.change(|state| {
            let ring = MemoryRing::new(1 << 20);
            state.own.insert(0, OwnSegment { ring, is_taken: Some(true) });
        });
        (shared, notices)
    };
    let file = || Some(Segment::create(4096).unwrap().1);
    let other_file = || Some(tempfile::tempfile().unwrap().into());
    let told = |notice| ready().0.hear(notice).map_err(|error| error.to_string());
    assert_eq!(told(MemoryNotice::Open { segment: 0, file: file() }), Ok(()));
    assert_eq!(told(MemoryNotice::Opened { segment: 7, is_taken: true }), Ok(()));
    assert_eq!(told(MemoryNotice::Close { segment: 7 }), Ok(()));
    assert_eq!(told(MemoryNotice::Release { segment: 7, at: 0 }), Ok(()));
    let error = told(MemoryNotice::Open { segment: 1, file: file() });
    assert_eq!(error, Err("it opens segments that it may not open".into()));
    let error = told(MemoryNotice::Open { segment: 0, file: other_file() });
    assert_eq!(error, Err("its memory is not sealed".into()));
    for at in [0, 64, u64::MAX] {
        let error = told(MemoryNotice::Release { segment: 0, at });
        assert_eq!(error, Err("it releases what it does not hold".into()));
    }
    let (shared, _notices) = ready();
    for segment in 0..MAX_FOREIGN_SEGMENTS as u32 {
        shared.hear(MemoryNotice::Open { segment, file: file() }).unwrap();
    }
    let more = MemoryNotice::Open { segment: MAX_FOREIGN_SEGMENTS as u32, file: file() };
    assert!(shared.hear(more).is_err());
}
