//! A leader that hears no worker, while another coordinator does, lets that one lead.
//!
//! The log may be led by a coordinator whose roads to the workers alone are shut: it can agree on
//! anything, and has nobody to tell. Every coordinator that follows tells the leader how many
//! workers have links with it. A new leader keeps the lead for a time, whatever it hears, so that
//! leadership cannot go to and fro.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::Message;
use everstep_transport::time::Time;

use super::{Effect, Seat};
use crate::core::LinkId;
use crate::raft::ReplicaId;

/// How often a coordinator that follows tells how many workers it hears.
const TELL: Duration = Duration::from_secs(1);
/// What was told counts for this long: two of three may be lost or late.
const FRESH: Duration = Duration::from_millis(2_500);
/// A leader that has heard no worker for this long, after each was silent, is deaf. A link that
/// nothing passes has ended by then at the other coordinators, too.
const DEAF: Duration = Duration::from_secs(3);
/// A leader leads for this long before it hands over, and before it tries that again.
const KEEP: Duration = Duration::from_secs(10);

/// Who hears workers.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    /// How many workers each of the others has told of last, and when.
    told: BTreeMap<ReplicaId, (Time, u32)>,
    /// When this coordinator has told so last.
    said: Option<Time>,
    /// Since when this one, which leads, hears no worker.
    deaf_since: Option<Time>,
    /// Since when it leads, or when it last tried to hand over.
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

    /// Time has passed: a follower tells how many workers it hears, and a leader that hears none
    /// looks for one that does.
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
        // Of equals the one with most of the log, which comes first.
        if let Some(heir) = heirs.rev().max_by_key(hears) {
            self.hearing.kept_since = now;
            let _ = self.replica.transfer(heir); // refused while another transfer is under way
        }
    }
}
