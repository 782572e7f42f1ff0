//! Dials the coordinators to which there is no link.
//!
//! In: the list of those coordinators, from the actor, whenever it changes. Out: links. Of two
//! coordinators, the one with the lower id dials first, so that seldom both do. But each does in
//! the end, for perhaps only one of them knows where the other is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::{CoordinatorId, CoordinatorView};
use everstep_transport::quic::{ConnectError, Endpoint, Expected, Link};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::Acceptor;

/// How long the coordinator with the higher id waits for the other to dial.
const HIGHER_ID_DIAL_DELAY: Duration = Duration::from_millis(200);
/// The pause between two calls of one coordinator, at first and at most.
const DIAL_BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long one call may take, at first and at most: QUIC asks a silent port ever less often.
const DIAL_TIMEOUT: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));

/// A coordinator that this one dials.
struct DialTarget {
    /// When the next call may begin.
    due: Instant,
    is_dialing: bool,
    pause: Duration,
    limit: Duration,
}

type Dials = JoinSet<(CoordinatorView, Option<Link>)>;

/// Dials every coordinator on the `missing` list. Returns when the sender of the list is dropped.
pub(super) async fn run(
    own: CoordinatorId,
    endpoint: Arc<Endpoint>,
    mut missing: watch::Receiver<Vec<CoordinatorView>>,
    acceptor: Acceptor,
) {
    let mut targets: BTreeMap<CoordinatorId, DialTarget> = BTreeMap::new();
    let mut dials = Dials::new();
    loop {
        let wanted = missing.borrow_and_update().clone();
        targets.retain(|id, target| target.is_dialing || wanted.iter().any(|view| view.id == *id));
        let now = Instant::now();
        let mut wake = now + DIAL_BACKOFF.1;
        for view in wanted {
            let delay = if own < view.id { Duration::ZERO } else { HIGHER_ID_DIAL_DELAY };
            let target = targets.entry(view.id).or_insert_with(|| DialTarget::new(now + delay));
            if target.is_dialing || target.due > now {
                wake = wake.min(target.due.max(now + DIAL_BACKOFF.0));
                continue;
            }
            target.is_dialing = true;
            dials.spawn(dial(endpoint.clone(), acceptor.clone(), view, target.limit));
        }
        tokio::select! {
            changed = missing.changed() => if changed.is_err() { return },
            Some(Ok((view, link))) = dials.join_next() => {
                if let Some(target) = targets.get_mut(&view.id) {
                    target.schedule_next();
                }
                if let Some(link) = link {
                    acceptor.admit(link).await;
                }
            }
            () = sleep_until(wake) => {}
        }
    }
}

async fn dial(
    endpoint: Arc<Endpoint>,
    acceptor: Acceptor,
    view: CoordinatorView,
    limit: Duration,
) -> (CoordinatorView, Option<Link>) {
    let identity = Identity { role: Role::Coordinator, name: view.name.clone() };
    let dialed = timeout(limit, endpoint.connect(view.address, &Expected::Node(identity))).await;
    let silent = Err(ConnectError::NoAnswer { address: view.address });
    let link = dialed.unwrap_or(silent).inspect_err(|error| {
        if error.is_expulsion() {
            acceptor.expelled();
        }
        tracing::debug!(coordinator = view.id, %error, "it is called again");
    });
    (view, link.ok())
}

impl DialTarget {
    fn new(due: Instant) -> Self {
        Self { due, is_dialing: false, pause: DIAL_BACKOFF.0, limit: DIAL_TIMEOUT.0 }
    }

    /// Schedules the next call, also after an answer: the new link may be lost at once.
    fn schedule_next(&mut self) {
        self.is_dialing = false;
        self.due = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(DIAL_BACKOFF.1);
        self.limit = (self.limit * 2).min(DIAL_TIMEOUT.1);
    }
}
