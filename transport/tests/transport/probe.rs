//! An endpoint notices a dead process at once. A node that only closes, pauses or is silent is not
//! dead.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use everstep_transport::identity::{Enrolment, JoinToken, Role};
use everstep_transport::protocol::Message;
use everstep_transport::quic::{Endpoint, Expected, Link, LinkError, Settings, enrol};

use crate::enrolment::Slow;
use crate::support::{World, link, loopback, settings};

/// The only way between two endpoints. To each endpoint it is the other's port. After its drop no
/// process listens there any more, as after a kill.
struct Relay {
    front: SocketAddr,
    there: Arc<Mutex<SocketAddr>>,
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Relay {
    fn to(there: SocketAddr) -> Self {
        let sockets = [(); 2].map(|()| UdpSocket::bind(loopback()).unwrap());
        let front = sockets[0].local_addr().unwrap();
        let (over, there) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(there)));
        let (stop, end) = (over.clone(), there.clone());
        let thread = thread::spawn(move || carry(&sockets, &end, &stop));
        Self { front, there, over, thread: Some(thread) }
    }

    /// Puts another endpoint at the other end, which has not heard of this link.
    fn turn_to(&self, there: SocketAddr) {
        *self.there.lock().unwrap() = there;
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// No QUIC packet is as short.
const LONGEST_PROBE: usize = 20;

/// Carries QUIC both ways. Probes end here, as at any living port.
fn carry(sockets: &[UdpSocket; 2], there: &Mutex<SocketAddr>, over: &AtomicBool) {
    let [front, back] = sockets;
    front.set_nonblocking(true).unwrap();
    back.set_nonblocking(true).unwrap();
    let (mut caller, mut packet) = (None, [0; 1 << 16]);
    while !over.load(Ordering::Relaxed) {
        while let Ok((bytes, from)) = front.recv_from(&mut packet) {
            if bytes > LONGEST_PROBE {
                caller = Some(from);
                let _ = back.send_to(&packet[..bytes], *there.lock().unwrap());
            }
        }
        while let Ok((bytes, _)) = back.recv_from(&mut packet) {
            if let Some(caller) = caller.filter(|_| bytes > LONGEST_PROBE) {
                let _ = front.send_to(&packet[..bytes], caller);
            }
        }
        thread::sleep(Duration::from_micros(200));
    }
}

fn node(world: &World, role: Role, name: &str, settings: Settings) -> Endpoint {
    Endpoint::bind(loopback(), &world.credentials(role, name), settings, None).unwrap()
}

fn centre(world: &World) -> Endpoint {
    node(world, Role::Coordinator, "coordinator-1", settings())
}

/// The ends of the link that a worker and a coordinator hold, through a relay.
async fn relayed(worker: &Endpoint, centre: &Endpoint) -> (Link, Link, Relay) {
    let relay = Relay::to(centre.local_address());
    let connected = worker.connect(relay.front, &Expected::Anyone);
    let (here, there) = tokio::join!(connected, centre.accept());
    (here.unwrap(), there.unwrap(), relay)
}

#[tokio::test]
async fn both_ends_notice_that_nobody_listens_at_the_others_port() {
    notice(false).await;
}

/// At rest the ends notice it later, but long before the idle time-out.
#[tokio::test]
async fn both_ends_notice_it_at_rest() {
    notice(true).await;
}

async fn notice(rests: bool) {
    let world = World::new();
    let patient = Settings { idle_timeout: Duration::from_secs(60), ..settings() };
    let worker = node(&world, Role::Worker, "worker-1", patient.clone());
    let centre = node(&world, Role::Coordinator, "coordinator-1", patient);
    worker.rest(rests);
    centre.rest(rests);
    let (here, there, relay) = relayed(&worker, &centre).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((here.ended(), there.ended()), (None, None));
    drop(relay);
    let died = Instant::now();
    let limit = Duration::from_secs(30);
    let noticed = async |link: &Link| {
        let error = tokio::time::timeout(limit, link.closed()).await.expect("long before time-out");
        assert!(matches!(error, LinkError::Unreachable { .. }), "{error}");
        assert!(!error.is_gone(), "a refusal is no proof");
        died.elapsed()
    };
    let (here, there) = tokio::join!(noticed(&here), noticed(&there));
    println!("noticed by the worker after {here:?}, by the coordinator after {there:?}");
}

/// This is so quick that no probe has found the port closed.
#[tokio::test]
async fn a_coordinator_that_is_started_again_tells_that_it_knows_the_link_no_more() {
    let world = World::new();
    let coordinator = || {
        let credentials = world.credentials(Role::Coordinator, "coordinator-1");
        let enrolment = Enrolment::new(world.authority.clone(), Vec::new());
        Endpoint::bind(loopback(), &credentials, settings(), Some(enrolment)).unwrap()
    };
    let (worker, before, after) = (world.worker("worker-1"), coordinator(), coordinator());
    let (here, _there, relay) = relayed(&worker, &before).await;
    relay.turn_to(after.local_address());
    let error = loop {
        let _ = here.send(Message::Hello { worker: None }); // fails once it is noticed
        if let Ok(error) = tokio::time::timeout(Duration::from_millis(50), here.closed()).await {
            break error;
        }
    };
    assert_eq!(error, LinkError::Forgotten);
}

/// A coordinator's answer to a packet of another coordinator's link must not end that link. Any
/// host can carry such an answer.
#[tokio::test]
async fn another_coordinator_of_the_cluster_cannot_say_that_a_link_is_forgotten() {
    let world = World::new();
    let coordinator = |name| {
        let enrolment = Enrolment::new(world.authority.clone(), Vec::new());
        let credentials = world.credentials(Role::Coordinator, name);
        Endpoint::bind(loopback(), &credentials, settings(), Some(enrolment)).unwrap()
    };
    let (worker, own) = (world.worker("worker-1"), coordinator("coordinator-1"));
    let other = coordinator("coordinator-2");
    let (here, _there, relay) = relayed(&worker, &own).await;
    relay.turn_to(other.local_address());
    for _ in 0..20 {
        here.send(Message::Hello { worker: None }).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(here.ended(), None);
}

#[tokio::test]
async fn a_coordinator_that_is_started_again_is_worth_another_try_to_enrol() {
    let world = World::new();
    let token = JoinToken::create(&world.authority);
    // A coordinator answers after half of this that it has not decided: before the applicant's own
    // time-out, and long after the applicant's next keep-alive.
    let late = Settings { handshake_timeout: Duration::from_secs(5), ..settings() };
    let coordinator = || {
        let gatekeeper = Slow::accepting(&token, Duration::from_secs(600));
        let asked = gatekeeper.asked.clone();
        let enrolment = Enrolment::decided_by(world.authority.clone(), gatekeeper);
        let credentials = world.credentials(Role::Coordinator, "coordinator-1");
        let bound = Endpoint::bind(loopback(), &credentials, late.clone(), Some(enrolment));
        (bound.unwrap(), asked)
    };
    let ((before, asked), (after, _)) = (coordinator(), coordinator());
    let relay = Relay::to(before.local_address());
    let turn = async {
        asked.notified().await;
        relay.turn_to(after.local_address());
    };
    let (enrolled, ()) = tokio::join!(enrol(relay.front, &token, Role::Worker), turn);
    let error = enrolled.map(|_| ()).unwrap_err();
    assert!(error.may_pass(), "{error}");
    assert!(!error.to_string().contains("Try again"), "nobody told it: {error}");
}

#[tokio::test]
async fn without_a_probe_and_between_workers_only_time_tells() {
    let world = World::new();
    let blind = Settings { probe: None, ..settings() };
    let centre = node(&world, Role::Coordinator, "coordinator-1", blind.clone());
    let blind = node(&world, Role::Worker, "worker-1", blind);
    let (worker, other) = (world.worker("worker-2"), world.worker("worker-3"));
    for (worker, centre) in [(&blind, &centre), (&worker, &other)] {
        let (here, there, relay) = relayed(worker, centre).await;
        drop(relay);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!((here.ended(), there.ended()), (None, None));
    }
}

#[tokio::test]
async fn who_is_paused_is_not_gone() {
    let world = World::new();
    let impatient = Settings { idle_timeout: Duration::from_millis(2_500), ..settings() };
    let here = node(&world, Role::Worker, "worker-1", impatient);
    let (tell, told) = std::sync::mpsc::channel();
    let (thaw, frozen) = std::sync::mpsc::channel::<()>();
    let peer = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let endpoint = centre(&world);
            tell.send(endpoint.local_address()).unwrap();
            let _link = endpoint.accept().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
            let _ = frozen.recv(); // stops the runtime's only thread, as SIGSTOP would
        });
    });
    let link = here.connect(told.recv().unwrap(), &Expected::Anyone).await.unwrap();
    let error = link.closed().await;
    assert!(
        matches!(error, LinkError::Silent | LinkError::Forgotten) && !error.is_gone(),
        "{error}"
    );
    drop(thaw);
    peer.join().unwrap();
}

#[tokio::test]
async fn who_says_goodbye_is_gone_and_who_closes_a_link_is_not() {
    let world = World::new();
    let (worker, centre) = (world.worker("worker-1"), centre(&world));
    for link_again in 0..2 {
        let (here, there) = link(&worker, &centre).await;
        match link_again {
            0 => here.close("a newer link took its place"),
            _ => drop(here),
        }
        let error = there.closed().await;
        assert!(matches!(error, LinkError::Closed { .. }) && !error.is_gone(), "{error}");
    }
    let (here, there) = link(&worker, &centre).await;
    here.finish().await;
    assert!(there.closed().await.is_gone());
    assert!(!here.closed().await.is_gone(), "who leaves does not take the other for dead");

    let (_here, there) = link(&worker, &centre).await;
    worker.close("the worker is done").await;
    assert!(there.closed().await.is_gone());
}

#[tokio::test]
async fn a_probe_is_neither_answered_nor_taken_for_anything() {
    let world = World::new();
    let (worker, centre) = (world.worker("worker-1"), centre(&world));
    let (here, there) = link(&worker, &centre).await;
    let prober = UdpSocket::bind(loopback()).unwrap();
    prober.connect(centre.local_address()).unwrap();
    for _ in 0..100 {
        for byte in 0..=255 {
            prober.send(&[byte]).unwrap();
            prober.send(&[byte & 0x3f; 13]).unwrap();
        }
        tokio::task::yield_now().await;
    }
    here.send(Message::FetchRecord).unwrap();
    assert_eq!(there.receive().await, Ok(Message::FetchRecord));
    prober.set_nonblocking(true).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let answer = prober.recv(&mut [0; 64]);
    assert_eq!(answer.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    let stats = centre.stats();
    assert_eq!((stats.links, stats.failed_handshakes, stats.refused_peers), (1, 0, 0));
}
