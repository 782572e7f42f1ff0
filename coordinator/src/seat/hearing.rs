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

use super::{Effect, Seat};
use crate::core::LinkId;
use crate::raft::ReplicaId;

/// How often a follower tells the leader how many workers it hears.
const TELL: Duration = Duration::from_secs(1);
/// How long a follower's count is valid. Two of three messages may be lost or late.
const FRESH: Duration = Duration::from_millis(2_500);
/// A leader that has heard no worker for this long, after each was silent, is deaf. By then, links
/// on which no packet passes have ended at the other coordinators, too.
const DEAF: Duration = Duration::from_secs(3);
/// How long a leader leads before it hands over, and before it tries that again.
const KEEP: Duration = Duration::from_secs(10);

/// How many workers the coordinators hear.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    /// The count that each follower told last, and when.
    told: BTreeMap<ReplicaId, (Time, u32)>,
    /// When this coordinator last counted its workers for the leader.
    said: Option<Time>,
    /// Since when this leader hears no worker.
    deaf_since: Option<Time>,
    /// Since when this coordinator leads, or when it last tried to hand over.
    kept_since: Time,
}

impl Hearing {
    /// This coordinator leads from now on.
    pub(super) fn lead(&mut self, now: Time) {
        *self = Self { kept_since: now, ..Self::default() };
    }
}

impl Seat {
    /// Another coordinator tells how many workers it hears.
    pub(super) fn told_hearing(&mut self, now: Time, from: LinkId, workers: u32) {
        if let Some(id) = self.peers.id_of(self.replica.members(), from) {
            self.hearing.told.insert(id, (now, workers));
        }
    }

    /// Time has passed. A follower tells how many workers it hears. A leader that hears none looks
    /// for a follower that does.
    pub(super) fn compare_hearing(&mut self, now: Time) {
        match (self.leads, self.leader) {
            (Some(_), _) => self.yield_to_hearing(now),
            (None, Some(leader)) => self.tell_hearing(now, leader),
            (None, None) => {}
        }
    }

    fn tell_hearing(&mut self, now: Time, leader: ReplicaId) {
        if self.hearing.said.is_some_and(|said| now.since(said) < TELL) {
            return; // counting the links of a large cluster takes a while
        }
        self.hearing.said = Some(now);
        let workers = self.core.linked_workers();
        let link = self.peers.link_of(self.replica.members(), leader);
        if let Some(to) = link.filter(|_| workers > 0) {
            self.effects.push_back(Effect::Send { to, message: Message::Hears { workers } });
        }
    }

    fn yield_to_hearing(&mut self, now: Time) {
        if !self.core.is_deaf(now) {
            self.hearing.deaf_since = None;
            return;
        }
        let since = *self.hearing.deaf_since.get_or_insert(now);
        if now.since(since) < DEAF || now.since(self.hearing.kept_since) < KEEP {
            return;
        }
        let hears = |id: &ReplicaId| {
            let told = self.hearing.told.get(id);
            told.filter(|(at, _)| now.since(*at) < FRESH).map_or(0, |(_, workers)| *workers)
        };
        let heirs = self.heirs(now).into_iter().filter(|id| hears(id) > 0);
        // Among equals the coordinator with most of the log wins. It comes first in `heirs`.
        if let Some(heir) = heirs.rev().max_by_key(hears) {
            self.hearing.kept_since = now;
            let _ = self.replica.transfer(heir); // refused while another transfer is under way
        }
    }
}
