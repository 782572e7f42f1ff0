//! Two ends that share memory, with a real socket between them.

use std::net::Ipv4Addr;
use std::time::Duration;

use everstep_kernels::shared_memory::Segment;
use everstep_transport::identity::{Authority, Credentials, Identity, NODE_LIFETIME, Role};
use everstep_transport::protocol::NodeName;
use everstep_transport::quic::{Endpoint, Expected, Settings};
use tokio::time::timeout;

use super::socket::MemorySocket;
use super::*;

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
    state.standing == Standing::Sharing
}

fn body(first: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| first.wrapping_add(at as u8)).collect()
}

async fn read(end: &SharedMemory, place: &MemoryPlace, bytes: usize) -> Vec<u8> {
    let mut into = vec![0; bytes];
    timeout(TEST_TIMEOUT, end.read(place, &mut into)).await.expect("soon").expect("it is there");
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
            let place = memory.put(&sent).await.expect("there is memory");
            assert!(read(to, &place, *bytes).await == sent, "turn {turn}");
        }
        drop(memory);
        until(to, |state| state.foreign.is_empty()).await;
        until(from, |state| state.rings.is_empty() && state.own_bytes == 0).await;
    }
}

#[tokio::test]
async fn a_lane_waits_for_a_reader_that_is_slow_and_not_for_that_of_another_lane() {
    let pair = Pair::new().await;
    let ([one, other], _tasks) = pair.shared().await;
    let bytes = 1 << 20;
    let mut slow = LaneMemory::new(one.clone());
    let first = slow.put(&body(1, bytes)).await.expect("there is memory");
    slow.put(&body(2, bytes)).await.expect("there is memory");
    let third = body(3, bytes);
    assert!(timeout(LITTLE, slow.put(&third)).await.is_err(), "it is full");
    let mut lane = LaneMemory::new(one.clone());
    let place = lane.put(&body(4, bytes)).await.expect("there is memory");
    assert!(read(&other, &place, bytes).await == body(4, bytes));
    let waiting = tokio::spawn(async move { slow.put(&third).await.map(|place| (slow, place)) });
    assert!(read(&other, &first, bytes).await == body(1, bytes));
    let (_slow, third) = timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap().expect("memory");
    assert_eq!((third.segment, third.at), (first.segment, first.at));
    assert!(read(&other, &third, bytes).await == body(3, bytes));
}

#[tokio::test]
async fn a_range_that_nobody_wants_is_used_again() {
    let pair = Pair::new().await;
    let ([one, other], _tasks) = pair.shared().await;
    let mut memory = LaneMemory::new(one);
    for turn in 0..10 {
        let place = memory.put(&body(turn, 1 << 20)).await.expect("there is memory");
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
    assert!(large.put(&vec![7; LINK_BYTES / 2]).await.is_some());
    assert_eq!(second.put(&[7; 20_000]).await, None, "the other lane has all of it");
    drop(large);
    assert!(second.put(&[7; 20_000]).await.is_some());
}

#[tokio::test]
async fn what_a_lane_has_announced_is_of_no_use_after_its_end() {
    let pair = Pair::new().await;
    let ([one, other], _tasks) = pair.shared().await;
    let mut memory = LaneMemory::new(one);
    let place = memory.put(&body(1, 20_000)).await.expect("there is memory");
    drop(memory);
    until(&other, |state| state.foreign_next == 1 && state.foreign.is_empty()).await;
    let mut into = vec![0; 20_000];
    assert_eq!(other.read(&place, &mut into).await, Err(MemoryReadError::Closed));
}

#[tokio::test]
async fn i25_other_bytes_than_were_announced_are_not_taken() {
    let pair = Pair::new().await;
    let ([one, other], _tasks) = pair.shared().await;
    let mut memory = LaneMemory::new(one);
    let place = memory.put(&body(1, 20_000)).await.expect("there is memory");
    let mut into = vec![0; 20_000];
    for wrong in [
        MemoryPlace { digest: place.digest ^ 1, ..place },
        MemoryPlace { at: 64, ..place },
        MemoryPlace { at: u64::MAX - 5, ..place },
    ] {
        let segment = other.foreign(wrong.segment).await.unwrap();
        let damaged = segment.read(wrong.at, &mut into).is_err()
            || XxHash3_64::oneshot(&into) != wrong.digest;
        assert!(damaged, "{wrong:?}");
    }
    let wrong = MemoryPlace { digest: place.digest ^ 1, ..place };
    assert_eq!(other.read(&wrong, &mut into).await, Err(MemoryReadError::Damaged));
}

#[tokio::test]
async fn when_the_other_end_is_gone_a_lane_waits_no_more_and_what_is_there_can_be_read() {
    let pair = Pair::new().await;
    let mut tasks = [JoinSet::new(), JoinSet::new()];
    let [one, other] = [0, 1].map(|end| SharedMemory::begin(&pair.links[end], &mut tasks[end]));
    until(&one, shares).await;
    until(&other, shares).await;
    let mut memory = LaneMemory::new(one.clone());
    let place = memory.put(&body(1, 1 << 20)).await.expect("there is memory");
    memory.put(&body(2, 1 << 20)).await.expect("there is memory");
    until(&other, |state| state.foreign_next == 1).await;
    let third = body(3, 1 << 20);
    let waiting = tokio::spawn(async move { (memory.put(&third).await, memory) });
    let [task_of_one, task_of_other] = tasks;
    drop(task_of_other);
    let (third, mut memory) = timeout(TEST_TIMEOUT, waiting).await.unwrap().unwrap();
    assert_eq!(third, None, "it goes over the link");
    assert_eq!(memory.put(&body(4, 1 << 20)).await, None);
    assert!(read(&other, &place, 1 << 20).await == body(1, 1 << 20));
    drop(task_of_one);
}

/// A worker that is no member for a generation keeps the link, and not its tasks.
#[tokio::test]
async fn an_end_that_begins_again_is_met_again() {
    for (begins_again, stays) in [(0, 1), (1, 0)] {
        let pair = Pair::new().await;
        let mut kept = JoinSet::new();
        let stays = SharedMemory::begin(&pair.links[stays], &mut kept);
        let mut memory = LaneMemory::new(stays.clone());
        for turn in 0..3 {
            let mut tasks = JoinSet::new();
            let again = SharedMemory::begin(&pair.links[begins_again], &mut tasks);
            until(&again, shares).await;
            until(&stays, |state| shares(state) && state.met == turn + 1).await;
            // So much is never read that the ranges of one meeting would not do for the next.
            for sent in 0..2 {
                let place = memory.put(&body(sent, 1 << 20)).await.expect("there is memory");
                if sent == 0 {
                    assert!(read(&again, &place, 1 << 20).await == body(sent, 1 << 20));
                }
            }
            drop(tasks);
            until(&stays, |state| !shares(state)).await;
        }
    }
}

#[tokio::test]
async fn memory_that_nobody_shares_is_not_read() {
    let place = MemoryPlace { segment: 0, at: 0, digest: 0 };
    assert_eq!(SharedMemory::none().read(&place, &mut [0; 8]).await, Err(MemoryReadError::Apart));
    assert_eq!(LaneMemory::new(SharedMemory::none()).put(&[7; 1 << 20]).await, None);
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
    let intruder = MemorySocket::connect_as(&pair.links[0]).await.unwrap();
    let intruding = intruder.prove_as(&third.links[0]);
    assert!(timeout(TEST_TIMEOUT, intruding).await.expect("soon").is_err());
    let right = MemorySocket::meet(&pair.links[0]);
    timeout(TEST_TIMEOUT, right).await.expect("soon").expect("it is let in");
    timeout(TEST_TIMEOUT, meeting).await.expect("soon").unwrap().expect("it lets it in");
}

#[tokio::test]
async fn notices_that_no_honest_process_sends_end_the_session() {
    let ready = || {
        let shared = SharedMemory::none();
        shared.change(|state| {
            state.standing = Standing::Sharing;
            state.rings.insert(0, Ring::new(1 << 20));
        });
        shared
    };
    let file = || Segment::create(4096).unwrap().descriptor().try_clone_to_owned().unwrap();
    let other_file = || tempfile::tempfile().unwrap().into();
    let told = |notice| ready().hear(notice).map_err(|error| error.to_string());
    assert_eq!(told(MemoryNotice::Open { segment: 0, file: file() }), Ok(()));
    assert_eq!(told(MemoryNotice::Close { segment: 7 }), Ok(()));
    assert_eq!(told(MemoryNotice::Release { segment: 7, at: 0 }), Ok(()));
    let shared = ready();
    shared.hear(MemoryNotice::Open { segment: 5, file: file() }).unwrap();
    for segment in [0, 5] {
        let error = shared.hear(MemoryNotice::Open { segment, file: file() }).unwrap_err();
        assert_eq!(error.to_string(), "it opens segments that it may not open");
    }
    let error = told(MemoryNotice::Open { segment: 0, file: other_file() });
    assert_eq!(error, Err("its memory is not sealed".into()));
    for at in [0, 64, u64::MAX] {
        let error = told(MemoryNotice::Release { segment: 0, at });
        assert_eq!(error, Err("it releases what it did not hold".into()));
    }
    let shared = ready();
    for segment in 0..MAX_FOREIGN_SEGMENTS as u32 {
        shared.hear(MemoryNotice::Open { segment, file: file() }).unwrap();
    }
    let more = MemoryNotice::Open { segment: MAX_FOREIGN_SEGMENTS as u32, file: file() };
    assert!(shared.hear(more).is_err());
}
