//! Admits links, and takes peers' messages.
//!
//! Every link has a task, which carries the peer's messages to the actor, one at a time. So a peer
//! that sends too much waits on its own link.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use actix::Addr;
use everstep_transport::identity::Role;
use everstep_transport::quic::{Link, LinkError};
use tokio::sync::watch;

use super::actor::{CoordinatorActor, Expelled, PeerConnected, PeerInput};
use crate::core::LinkId;

/// While this many entries wait for the disk, messages wait too, since they would bring more.
/// Messages of coordinators do not wait: the log has bounds of its own, and takes silence for
/// death.
const MAX_BACKLOG: usize = 4096;

/// Carries links and their messages to the actor.
#[derive(Clone)]
pub(super) struct Acceptor {
    coordinator: Addr<CoordinatorActor>,
    /// How many entries wait for the disk.
    backlog: watch::Receiver<usize>,
    /// How many links the process has had.
    count: Arc<AtomicU64>,
}

impl Acceptor {
    pub(super) fn new(
        coordinator: Addr<CoordinatorActor>,
        backlog: watch::Receiver<usize>,
    ) -> Self {
        Self { coordinator, backlog, count: Arc::default() }
    }

    pub(super) fn coordinator(&self) -> Addr<CoordinatorActor> {
        self.coordinator.clone()
    }

    /// Takes a new link. If the actor is gone, the task that ticks it will hear of that.
    pub(super) async fn admit(&self, link: Link) {
        let id = LinkId(1 + self.count.fetch_add(1, Ordering::Relaxed));
        let connected = PeerConnected { id, link: link.clone() };
        if self.coordinator.send(connected).await.is_ok() {
            tokio::spawn(self.clone().run(id, link));
        }
    }

    /// Another coordinator refuses links with this one.
    pub(super) fn expelled(&self) {
        self.coordinator.do_send(Expelled);
    }

    /// Carries a link's messages to the actor until the link ends, and then the news of the end.
    async fn run(mut self, id: LinkId, link: Link) {
        let waits_for_disk = link.identity().role != Role::Coordinator;
        loop {
            let received = link.receive().await;
            let is_over = received.is_err();
            if received.as_ref().is_err_and(LinkError::is_expulsion) && !waits_for_disk {
                self.expelled();
            }
            let has_room = |waiting: &usize| *waiting < MAX_BACKLOG;
            if waits_for_disk && self.backlog.wait_for(has_room).await.is_err() {
                return;
            }
            let input = PeerInput { link: id, received };
            if self.coordinator.send(input).await.is_err() || is_over {
                return;
            }
        }
    }
}
