//! Dials the coordinators to which there is no link.
//!
//! In: the list of those coordinators, from the actor, whenever it changes. Out: links. Of two
//! coordinators, the one with the lower id dials first, so that seldom both do. But each does in
//! the end, for perhaps only one of them knows where the other is.

use std::sync::Arc;
use std::time::Duration;

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::{CoordinatorId, CoordinatorView};
use everstep_transport::quic::{DialSettings, Dialer, Endpoint, Expected};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Acceptor;

/// How long the coordinator with the higher id waits for the other to dial.
const HIGHER_ID_DIAL_DELAY: Duration = Duration::from_millis(200);

/// Dials every coordinator on the `missing` list. Returns when the sender of the list is dropped.
pub(super) async fn run(
    own: CoordinatorId,
    endpoint: Arc<Endpoint>,
    mut missing: watch::Receiver<Vec<CoordinatorView>>,
    acceptor: Acceptor,
) {
    let mut dialer = Dialer::new(DialSettings::DEFAULT);
    loop {
        let wanted = missing.borrow_and_update().clone();
        dialer.retain(|id| wanted.iter().any(|view| view.id == *id));
        let now = Instant::now();
        let mut wake = now + DialSettings::DEFAULT.longest_pause;
        for CoordinatorView { id, name, address, .. } in wanted {
            let delay = if own < id { Duration::ZERO } else { HIGHER_ID_DIAL_DELAY };
            let expected = Expected::Node(Identity { role: Role::Coordinator, name });
            let endpoint = endpoint.clone();
            let due = dialer.dial(id, now + delay, |limit| async move {
                endpoint.connect_within(address, &expected, limit).await
            });
            wake = due.map_or(wake, |due| due.min(wake));
        }
        tokio::select! {
            changed = missing.changed() => if changed.is_err() { return },
            (coordinator, dialed) = dialer.dialed() => match dialed {
                Ok(link) => acceptor.admit(link).await,
                Err(error) => {
                    if error.is_expulsion() {
                        acceptor.expelled();
                    }
                    let coordinator = coordinator.0;
                    tracing::debug!(coordinator, %error, "no link to a coordinator: dials again");
                }
            },
            () = sleep_until(wake) => {}
        }
    }
}
