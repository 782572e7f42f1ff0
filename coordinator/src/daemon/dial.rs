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

use super::Desk;

/// How long the coordinator with the higher id waits for the other to dial.
const COURTESY: Duration = Duration::from_millis(200);
/// The pause between two calls of one coordinator, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long one call may take, at first and at most: QUIC asks a silent port ever less often.
const CALLS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));

/// A coordinator that this one dials.
struct Callee {
    /// When the next call may begin.
    due: Instant,
    is_called: bool,
    pause: Duration,
    limit: Duration,
}

type Calls = JoinSet<(CoordinatorView, Option<Link>)>;

/// Dials every coordinator on the `missing` list. Returns when the sender of the list is dropped.
pub(super) async fn attend(
    own: CoordinatorId,
    endpoint: Arc<Endpoint>,
    mut missing: watch::Receiver<Vec<CoordinatorView>>,
    desk: Desk,
) {
    let mut callees: BTreeMap<CoordinatorId, Callee> = BTreeMap::new();
    let mut calls = Calls::new();
    loop {
        let wanted = missing.borrow_and_update().clone();
        callees.retain(|id, callee| callee.is_called || wanted.iter().any(|view| view.id == *id));
        let now = Instant::now();
        let mut wake = now + PAUSES.1;
        for view in wanted {
            let courtesy = if own < view.id { Duration::ZERO } else { COURTESY };
            let callee = callees.entry(view.id).or_insert_with(|| Callee::new(now + courtesy));
            if callee.is_called || callee.due > now {
                wake = wake.min(callee.due.max(now + PAUSES.0));
                continue;
            }
            callee.is_called = true;
            calls.spawn(call(endpoint.clone(), desk.clone(), view, callee.limit));
        }
        tokio::select! {
            changed = missing.changed() => if changed.is_err() { return },
            Some(Ok((view, link))) = calls.join_next() => {
                if let Some(callee) = callees.get_mut(&view.id) {
                    callee.put_off();
                }
                if let Some(link) = link {
                    desk.admit(link).await;
                }
            }
            () = sleep_until(wake) => {}
        }
    }
}

async fn call(
    endpoint: Arc<Endpoint>,
    desk: Desk,
    view: CoordinatorView,
    limit: Duration,
) -> (CoordinatorView, Option<Link>) {
    let identity = Identity { role: Role::Coordinator, name: view.name.clone() };
    let called = timeout(limit, endpoint.connect(view.address, &Expected::Node(identity))).await;
    let silent = Err(ConnectError::NoAnswer { address: view.address });
    let link = called.unwrap_or(silent).inspect_err(|error| {
        if error.is_expulsion() {
            desk.expelled();
        }
        tracing::debug!(coordinator = view.id, %error, "it is called again");
    });
    (view, link.ok())
}

impl Callee {
    fn new(due: Instant) -> Self {
        Self { due, is_called: false, pause: PAUSES.0, limit: CALLS.0 }
    }

    /// Schedules the next call, also after an answer: the new link may be lost at once.
    fn put_off(&mut self) {
        self.is_called = false;
        self.due = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSES.1);
        self.limit = (self.limit * 2).min(CALLS.1);
    }
}
