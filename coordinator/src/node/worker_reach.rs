//! A leader that hears no worker, while another coordinator does, hands over to that coordinator.
//!
//! The leader of the log may be a coordinator with roads to the other coordinators, but none to the
//! workers. It can agree on anything, and can tell no worker. Every follower tells the leader how
//! many workers have links with it. A new leader keeps the lead for a time, whatever it hears, so
//! that leadership cannot go to and fro.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::Message;
use everstep_transport::time::Time;

use super::Node;
use crate::core::{LinkId, ShellEffect};
use crate::raft::ReplicaId;

/// How often a follower tells the leader how many workers it hears.
const WORKER_COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// How long a follower's count is valid. Two of three messages may be lost or late.
const WORKER_COUNT_VALID_FOR: Duration = Duration::from_millis(2_500);
/// A leader that has heard no worker for this long, after each was silent, hands over. By then,
/// links on which no packet passes have ended at the other coordinators, too.
const UNREACHED_HAND_OVER_AFTER: Duration = Duration::from_secs(3);
/// How long a leader leads before it hands over, and before it tries that again.
const LEADERSHIP_KEPT_FOR: Duration = Duration::from_secs(10);

/// How many workers the coordinators hear.
#[derive(Debug, Default)]
pub(super) struct WorkerReach {
    /// The count that each follower told last, and when.
    told: BTreeMap<ReplicaId, (Time, u32)>,
    /// When this coordinator last counted its workers for the leader.
    said: Option<Time>,
    /// Since when this leader hears no worker.
    unreached_since: Option<Time>,
    /// Since when this coordinator leads, or when it last tried to hand over.
    kept_since: Time,
}

impl WorkerReach {
    /// This coordinator leads from now on.
    pub(super) fn lead(&mut self, now: Time) {
        *self = Self { kept_since: now, ..Self::default() };
    }
}

impl Node {
    /// Another coordinator tells how many workers it hears.
    pub(super) fn on_worker_count(&mut self, now: Time, from: LinkId, workers: u32) {
        if let Some(id) = self.peers.id_of(self.replica.members(), from) {
            self.worker_reach.told.insert(id, (now, workers));
        }
    }

    /// Time has passed. A follower tells how many workers it hears. A leader that hears none looks
    /// for a follower that does.
    pub(super) fn compare_reach(&mut self, now: Time) {
        match (self.leadership.term(), self.leadership.leader()) {
            (Some(_), _) => self.yield_to_reachable(now),
            (None, Some(leader)) => self.send_worker_count(now, leader),
            (None, None) => {}
        }
    }

    fn send_worker_count(&mut self, now: Time, leader: ReplicaId) {
        if self.worker_reach.said.is_some_and(|said| now.since(said) < WORKER_COUNT_INTERVAL) {
            return; // counting the links of a large cluster takes a while
        }
        self.worker_reach.said = Some(now);
        let workers = self.core.linked_workers();
        let link = self.peers.link_of(self.replica.members(), leader);
        if let Some(to) = link.filter(|_| workers > 0) {
            self.push(ShellEffect::Send { to, message: Message::Hears { workers } });
        }
    }

    fn yield_to_reachable(&mut self, now: Time) {
        if !self.core.hears_no_worker(now) {
            self.worker_reach.unreached_since = None;
            return;
        }
        let since = *self.worker_reach.unreached_since.get_or_insert(now);
        if now.since(since) < UNREACHED_HAND_OVER_AFTER
            || now.since(self.worker_reach.kept_since) < LEADERSHIP_KEPT_FOR
        {
            return;
        }
        let hears = |id: &ReplicaId| {
            let told = self.worker_reach.told.get(id);
            told.filter(|(at, _)| now.since(*at) < WORKER_COUNT_VALID_FOR)
                .map_or(0, |(_, workers)| *workers)
        };
        let heirs = self.heirs(now).into_iter().filter(|id| hears(id) > 0);
        // Among equals the coordinator with most of the log wins. It comes first in `heirs`.
        if let Some(heir) = heirs.rev().max_by_key(hears) {
            self.worker_reach.kept_since = now;
            let _ = self.replica.transfer(heir); // refused while another transfer is under way
        }
    }
}
