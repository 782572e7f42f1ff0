//! Certificates expire while nodes run. Links go on, and nodes that have a link get newer ones.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use everstep_transport::identity::{
    AdmissionDecision, Applicant, Credentials, Enrolment, EnrolmentError, Gatekeeper, Identity,
    NODE_LIFETIME, Refusal, Role, UnixTime,
};
use everstep_transport::protocol::{Chunk, Generation, Message, Step};
use everstep_transport::quic::{
    BindError, BoundSocket, ConnectError, Endpoint, EnrolError, Expected, Link, Settings,
};

use crate::support::{Clock, RawPeer, World, link, loopback, name, settings};

/// A worker with a link to a coordinator. Both use one clock.
struct Scene {
    world: World,
    clock: Arc<Clock>,
    worker: Endpoint,
    coordinator: Endpoint,
    /// The worker's end, the coordinator's end.
    link: (Link, Link),
}

/// Removes every node that asks to stay.
struct Strict;

impl Gatekeeper for Strict {
    fn admit(&self, _applicant: Applicant, _now: UnixTime) -> AdmissionDecision {
        unreachable!("no node joins here")
    }

    fn renew(&self, node: Identity, _now: UnixTime) -> AdmissionDecision {
        assert_eq!(node.name.as_str(), "worker-1");
        Box::pin(async { Err(Refusal::Removed) })
    }
}

impl Scene {
    /// The worker checks its certificate this often.
    async fn set(renewal_check: Duration) -> Self {
        let world = World::new();
        let enrolment = Enrolment::new(world.authority.clone(), vec![]);
        Self::with(world, enrolment, renewal_check).await
    }

    async fn with(world: World, enrolment: Enrolment, renewal_check: Duration) -> Self {
        let clock = Clock::new();
        let day = world.credentials(Role::Worker, "worker-1");
        let year = NODE_LIFETIME * 365;
        let identity = Identity { role: Role::Coordinator, name: name("coordinator-1") };
        let year = world.authority.issue(&identity, year).unwrap();
        let bind = |credentials: &Credentials, enrolment| {
            let (settings, clock) = (Settings { renewal_check, ..settings() }, clock.clone());
            let bound = BoundSocket::bind(loopback(), &settings).unwrap();
            Endpoint::open_with_clock(bound, credentials, settings, enrolment, clock).unwrap()
        };
        let (worker, coordinator) = (bind(&day, None), bind(&year, Some(enrolment)));
        let link = link(&worker, &coordinator).await;
        Self { world, clock, worker, coordinator, link }
    }

    /// Whether the worker and the coordinator can connect, each way.
    async fn connects(&self) -> [Result<(), ConnectError>; 2] {
        let connect = async |from: &Endpoint, to: &Endpoint| {
            let connected = from.connect(to.local_address(), &Expected::Anyone).await;
            connected.map(drop)
        };
        [
            connect(&self.worker, &self.coordinator).await,
            connect(&self.coordinator, &self.worker).await,
        ]
    }

    async fn speaks(&self) {
        for (from, to) in [(&self.link.0, &self.link.1), (&self.link.1, &self.link.0)] {
            from.send(Message::FetchRecord).unwrap();
            assert_eq!(to.receive().await, Ok(Message::FetchRecord));
        }
    }
}

const RENEWAL_CHECK_NEVER: Duration = Duration::from_secs(3600);
const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_millis(20);

#[tokio::test]
async fn a_link_outlives_the_certificates_of_its_ends() {
    let scene = Scene::set(RENEWAL_CHECK_NEVER).await;
    scene.clock.forward(27);
    scene.speaks().await;
    for refused in scene.connects().await {
        assert!(matches!(refused, Err(ConnectError::Expired { .. })), "{refused:?}");
    }
    scene.speaks().await;
}

#[tokio::test]
async fn an_expired_node_that_has_a_link_gets_a_newer_certificate_over_it() {
    let scene = Scene::set(RENEWAL_CHECK_NEVER).await;
    scene.clock.forward(27);
    let held = scene.worker.credentials();
    let newer = scene.link.0.renew(&held).await.unwrap();
    assert_eq!(newer.identity(), held.identity());
    scene.worker.renew(&newer).unwrap();
    assert!(scene.connects().await.iter().all(Result::is_ok));
    scene.speaks().await;
}

#[tokio::test]
async fn a_running_node_renews_its_certificate_when_it_is_due_and_not_before() {
    let scene = Scene::set(RENEWAL_CHECK_INTERVAL).await;
    let first = scene.worker.credentials();
    scene.clock.forward(17);
    tokio::time::sleep(RENEWAL_CHECK_INTERVAL * 5).await;
    assert_eq!(scene.worker.credentials().chain(), first.chain());

    // This goes on to the third day: no certificate lasts so long, and no link is lost.
    for hours in [1, 18, 18] {
        let held = scene.worker.credentials();
        scene.clock.forward(hours);
        while scene.worker.credentials().expires() == held.expires() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(scene.connects().await.iter().all(Result::is_ok));
        scene.speaks().await;
    }
    assert_eq!(scene.worker.credentials().identity(), first.identity());
    assert_eq!(scene.worker.credentials().key(), first.key());
}

#[tokio::test]
async fn a_renewal_under_traffic_loses_nothing_and_holds_up_nothing() {
    let scene = Scene::set(RENEWAL_CHECK_INTERVAL).await;
    let held = scene.worker.credentials();
    let go = |step| Message::Go { generation: Generation(1), step: Step(step) };
    let body = Bytes::from(vec![7; 1 << 20]);
    let chunk = Chunk::message(Generation(1), Step(1), body.len());
    let speaking = async {
        let mut bulk = scene.link.0.bulk().await.unwrap();
        let mut step = 0;
        while scene.worker.credentials().expires() == held.expires() || step < 100 {
            if step == 20 {
                scene.clock.forward(18);
            }
            scene.link.0.send(go(step)).unwrap();
            bulk.send(&chunk, body.clone()).await.unwrap();
            step += 1;
            assert!(step < 10_000, "not renewed");
        }
        bulk.finish().unwrap();
        scene.link.0.send(Message::Dismiss).unwrap();
        step
    };
    let hearing = async {
        let mut step = 0;
        loop {
            match scene.link.1.receive().await.unwrap() {
                Message::Dismiss => return step,
                message => assert_eq!(message, go(step)),
            }
            step += 1;
        }
    };
    let taking = async {
        let mut bulk = scene.link.1.accept_bulk().await.unwrap();
        let mut chunks = 0;
        while let Some(chunk) = bulk.header().await.unwrap() {
            bulk.skip(&chunk).await.unwrap();
            chunks += 1;
        }
        chunks
    };
    let (said, heard, taken) = tokio::join!(speaking, hearing, taking);
    assert_eq!((heard, taken), (said, said));
    assert_eq!(scene.coordinator.stats().refused_peers, 0);
}

fn is_refused(error: &EnrolError, why: Refusal) -> bool {
    matches!(error, EnrolError::Enrolment(EnrolmentError::Refused(refusal)) if *refusal == why)
}

#[tokio::test]
async fn a_removed_node_gets_no_newer_certificate_and_is_told_so() {
    let world = World::new();
    let strict = Enrolment::decided_by(world.authority.clone(), Strict);
    let scene = Scene::with(world, strict, RENEWAL_CHECK_INTERVAL).await;
    let held = scene.worker.credentials();
    let error = scene.link.0.renew(&held).await.unwrap_err();
    assert!(is_refused(&error, Refusal::Removed), "{error}");
    assert!(error.to_string().contains("removed from the cluster"), "{error}");
    // The worker also asks by itself, again and again, without success.
    scene.clock.forward(18);
    tokio::time::sleep(RENEWAL_CHECK_INTERVAL * 5).await;
    scene.speaks().await;
    assert_eq!(scene.worker.credentials().chain(), held.chain());
}

#[tokio::test]
async fn a_node_that_issues_no_certificates_says_so() {
    let pair = World::new().pair().await;
    let held = pair.endpoints.0.credentials();
    let error = pair.here.renew(&held).await.unwrap_err();
    assert!(is_refused(&error, Refusal::NotHere), "{error}");
}

#[tokio::test]
async fn a_link_that_ends_ends_the_wish_for_a_renewal() {
    let scene = Scene::set(RENEWAL_CHECK_NEVER).await;
    scene.link.1.close("enough");
    let error = scene.link.0.renew(&scene.worker.credentials()).await.unwrap_err();
    assert!(matches!(error, EnrolError::Link(_)), "{error}");
}

#[tokio::test]
async fn credentials_of_another_key_do_not_replace_those_that_work() {
    let scene = Scene::set(RENEWAL_CHECK_NEVER).await;
    let held = scene.worker.credentials();
    let dir = tempfile::tempdir().unwrap();
    held.save(dir.path()).unwrap();
    let twin = tempfile::tempdir().unwrap();
    scene.world.credentials(Role::Worker, "worker-1").save(twin.path()).unwrap();
    std::fs::copy(twin.path().join("node.key"), dir.path().join("node.key")).unwrap();
    let mixed = Credentials::load(dir.path()).unwrap();
    assert!(matches!(scene.worker.renew(&mixed), Err(BindError::Credentials(_))));
    assert_eq!(scene.worker.credentials().chain(), held.chain());
    assert!(scene.connects().await.iter().all(Result::is_ok));
}

/// The length on the lane that announces a renewal.
const RENEWAL: u32 = u32::MAX - 1;

#[tokio::test]
async fn what_a_peer_says_on_the_stream_of_a_renewal_is_not_listened_to() {
    let scene = Scene::set(RENEWAL_CHECK_NEVER).await;
    let rogue = RawPeer::member(&scene.world).connect(scene.coordinator.local_address()).await;
    let connection = rogue.connection.as_ref().unwrap();
    let (mut lane, _) = connection.accept_bi().await.unwrap();
    let link = scene.coordinator.accept().await.unwrap();
    for _ in 0..20 {
        lane.write_all(&RENEWAL.to_le_bytes()).await.unwrap();
        let (mut junk, mut answer) = connection.open_bi().await.unwrap();
        let _ = junk.write_all(&[0xa5; 1 << 14]).await; // the peer may get a request to stop
        assert!(!answer.read_to_end(1 << 14).await.unwrap().is_empty());
    }
    // A stream that is announced and never opened holds up only its own lane.
    lane.write_all(&RENEWAL.to_le_bytes()).await.unwrap();
    scene.speaks().await;
    assert_eq!(link.ended(), None);
}
