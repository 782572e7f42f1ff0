//! The order to write a manifest: which member has it, and which one gets it next.

use std::time::Duration;

use everstep_transport::protocol::{CheckpointId, Generation, WorkerId};
use everstep_transport::time::Time;

use crate::core::roster::Roster;
use crate::core::workers::bounded;

/// How often the leader repeats the order.
const MANIFEST_ORDER_REPEAT_INTERVAL: Duration = Duration::from_secs(5);
/// A member that has not answered the order for this long gives way to the next member.
const MANIFEST_WRITER_REPLACED_AFTER: Duration = Duration::from_secs(10);

/// The order to write a manifest, and the member that has it.
#[derive(Debug)]
pub(super) struct ManifestOrder {
    pub(super) id: CheckpointId,
    /// The generation in which the order is valid.
    generation: Generation,
    writer: WorkerId,
    /// When the writer got the order first.
    since: Time,
    /// When the writer got the order last.
    told: Time,
    /// The members that cannot write it, and their words, in the order in which they said so.
    refusals: Vec<(WorkerId, String)>,
}

impl ManifestOrder {
    /// The member that gets the order for a checkpoint now, if it is time: first the step leader,
    /// then the others by rank.
    pub(super) fn next_writer(
        order: &mut Option<Self>,
        roster: Roster<'_>,
        id: CheckpointId,
    ) -> Option<WorkerId> {
        order.take_if(|order| order.id != id);
        let (now, generation) = (roster.now, roster.state.generation());
        let Some(order) = order else {
            let writer = roster.state.members().find(|worker| roster.is_linked(*worker))?;
            let refusals = Vec::new();
            *order = Some(Self { id, generation, writer, since: now, told: now, refusals });
            return Some(writer);
        };
        if !order.may_take(roster, order.writer) || order.is_late(now) {
            order.writer = order.successor(roster)?;
            (order.since, order.told, order.generation) = (now, now, generation);
            return Some(order.writer);
        }
        let repeats = order.generation != generation
            || now.since(order.told) >= MANIFEST_ORDER_REPEAT_INTERVAL;
        repeats.then(|| {
            (order.told, order.generation) = (now, generation);
            order.writer
        })
    }

    /// A worker does not write something, for this reason. Returns whether it is this manifest.
    pub(super) fn is_refused_by(
        &mut self,
        worker: WorkerId,
        id: CheckpointId,
        words: &str,
    ) -> bool {
        let has_refused = self.has_refused(worker);
        let is_this = self.id == id && (self.writer == worker || has_refused);
        if is_this && !has_refused {
            self.refusals.push((worker, bounded(words)));
        }
        is_this
    }

    fn has_refused(&self, worker: WorkerId) -> bool {
        self.refusals.iter().any(|(refused, _)| *refused == worker)
    }

    /// The newest refusal, if none of these members can write it. Without members, none has
    /// refused.
    pub(super) fn refusal_of_all(
        &self,
        mut members: impl Iterator<Item = WorkerId>,
    ) -> Option<&(WorkerId, String)> {
        let newest = self.refusals.last()?;
        let first = members.next()?;
        let all = self.has_refused(first) && members.all(|worker| self.has_refused(worker));
        all.then_some(newest)
    }

    fn is_late(&self, now: Time) -> bool {
        now.since(self.since) >= MANIFEST_WRITER_REPLACED_AFTER
    }

    fn may_take(&self, roster: Roster<'_>, worker: WorkerId) -> bool {
        roster.state.is_member(worker) && roster.is_linked(worker) && !self.has_refused(worker)
    }

    /// The next member by rank that may take the order, at last the same one again.
    fn successor(&self, roster: Roster<'_>) -> Option<WorkerId> {
        let members: Vec<WorkerId> = roster.state.members().collect();
        let place = members.iter().position(|worker| *worker == self.writer);
        let (before, after) = members.split_at(place.map_or(0, |place| place + 1));
        let mut turn = after.iter().chain(before).copied();
        turn.find(|worker| self.may_take(roster, *worker))
    }
}
