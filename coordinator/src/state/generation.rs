//! One generation follows another: what must hold of the next, and what becomes of its workers.
//!
//! A change that breaks a rule changes nothing, no matter which coordinator proposed it. So a
//! number stands for one record (I1), and history goes only forwards (I17).

use std::collections::BTreeSet;

use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::reason::RollbackReason;
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{
    Cause, CheckpointId, Generation, Record, Shard, Step, Term, WorkerId,
};
use rkyv::{Archive, Deserialize, Serialize};

use super::{Change, EntryOutcome, Loss, OwnerWaits, State, WorkerPhase, is_same};
#[cfg(feature = "planted")]
use crate::plant::CorePlant;

/// The generation that trains, and what its successor has to account for.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub(super) struct CurrentGeneration {
    /// The newest generation there was, of whatever run.
    pub(super) number: Generation,
    /// None before the first generation of a run.
    pub(super) record: Option<Record>,
    /// Pairs of members that cannot reach each other, and that an event has told of.
    pub(super) unreachable: BTreeSet<(WorkerId, WorkerId)>,
    /// Since when the generations start no step, milliseconds of Unix time.
    pub(super) waiting_since: Option<u64>,
    /// Members with a loss that an event has already told of.
    pub(super) reported_dead: BTreeSet<WorkerId>,
    /// Those of them that have left in good order, since a checkpoint has all that they held.
    pub(super) departed: BTreeSet<WorkerId>,
    /// The owners that a change of generation waits for.
    pub(super) awaited: OwnerWaits,
}

impl CurrentGeneration {
    /// A run begins without a generation. The numbers go on.
    pub(super) fn begin_run(&mut self) {
        *self = Self { number: self.number, ..Self::default() };
    }

    /// The next generation follows this one, which another cluster has had.
    pub(super) fn follow_up_to(&mut self, newest: Generation) {
        self.number = self.number.max(newest);
    }

    /// The members, by rank.
    fn members(&self) -> impl Iterator<Item = WorkerId> {
        self.record.iter().flat_map(|record| &record.members).map(|member| member.worker)
    }

    /// Checks that the change drops no member in silence: each still is one, or was lost, or has
    /// left.
    fn accounts_for_all(&self, change: &Change) -> Result<(), Rejection> {
        let stay: BTreeSet<WorkerId> = change.record.members.iter().map(|m| m.worker).collect();
        let gone: BTreeSet<WorkerId> =
            self.members().filter(|worker| !stay.contains(worker)).collect();
        let lost = change.lost.iter().map(|loss| loss.worker);
        let told: BTreeSet<WorkerId> = lost.chain(change.left.iter().copied()).collect();
        if gone == told && change.lost.len() + change.left.len() == told.len() {
            Ok(())
        } else {
            let number = change.record.number;
            let (told, gone) = (told.into_iter().collect(), gone.into_iter().collect());
            Err(Rejection::UntoldLosses { number, told, gone })
        }
    }

    /// Checks I17, and that a resume step has its commit, of the generation that it ends or before.
    /// `listed` is the step of the newest checkpoint.
    fn goes_forwards(&self, change: &Change, listed: Step) -> Result<(), Rejection> {
        let Change { record, rollback, .. } = change;
        let number = record.number;
        let resumed = self.record.as_ref().map_or(Step(0), |current| current.resume);
        let reached = resumed.max(listed);
        if record.resume < reached && rollback.is_none() {
            return Err(Rejection::Backwards { number, step: record.resume });
        }
        if rollback.is_some() != (record.cause == Cause::Rollback) {
            return Err(Rejection::OtherCause(number));
        }
        let committed = record.commit.as_ref().map_or(Step(0), |commit| commit.step);
        if committed != record.resume {
            return Err(Rejection::OtherCommit { number, step: record.resume });
        }
        Ok(())
    }

    /// The record of the next generation takes the place of this one's. Returns whether there was
    /// one.
    fn replace(&mut self, unix_ms: u64, record: &Record) -> bool {
        self.number = record.number;
        self.waiting_since = record.waiting.then(|| self.waiting_since.unwrap_or(unix_ms));
        self.record.replace(record.clone()).is_some()
    }
}

impl State {
    /// The current generation's record, once there is one.
    pub fn record(&self) -> Option<&Record> {
        self.generation.record.as_ref()
    }

    /// The members of the current generation, by rank.
    pub(crate) fn members(&self) -> impl Iterator<Item = WorkerId> {
        self.generation.members()
    }

    /// The number of the newest generation there was, of this run or an earlier one. 0 if there was
    /// none.
    pub fn generation(&self) -> Generation {
        self.generation.number
    }

    /// Since when the generations start no step, milliseconds of Unix time. `None` if they do.
    pub fn waiting_since(&self) -> Option<u64> {
        self.generation.waiting_since
    }

    /// The owners that a change of generation waits for, if it does.
    pub fn awaited(&self) -> &OwnerWaits {
        &self.generation.awaited
    }

    /// Whether an event has told of the loss of this member, though every generation still lists
    /// it.
    pub fn is_reported_dead(&self, worker: WorkerId) -> bool {
        self.generation.reported_dead.contains(&worker)
    }

    /// Whether this member has left in good order, though every generation still lists it.
    pub fn has_departed(&self, worker: WorkerId) -> bool {
        self.generation.departed.contains(&worker)
    }

    /// Whether all workers that are there are to leave, and a checkpoint can take what they hold.
    pub fn is_closing(&self) -> bool {
        let mut present = self.present().map(|(_, known)| known.phase).peekable();
        let saves = self.run().is_some_and(|run| run.checkpoint.is_some());
        saves && present.peek().is_some() && present.all(|phase| phase == WorkerPhase::Leaving)
    }

    /// Whether a checkpoint has the state that the current generation began with, or the seed has.
    pub fn is_saved(&self) -> bool {
        let commit = self.record().and_then(|record| record.commit.as_ref());
        commit.is_none_or(|commit| self.checkpoints.find_whole(CheckpointId::of(commit)).is_some())
    }

    /// Whether the run takes no step, and a checkpoint of its state is listed. It may be damaged,
    /// and is not saved again: its manifest would have the name of the damaged one's.
    pub fn rests_at_listed(&self) -> bool {
        let Some(record) = self.record().filter(|record| record.waiting) else { return false };
        let id = record.commit.as_ref().map(CheckpointId::of);
        id.is_none_or(|id| self.checkpoints.find(id).is_some())
    }

    /// Whether all members may leave together: they take no step, and a checkpoint has all that
    /// they hold.
    pub fn may_leave_together(&self) -> bool {
        let rests = self.record().is_some_and(|record| record.waiting);
        let is_saved = self.is_saved();
        #[cfg(feature = "planted")]
        let is_saved = is_saved || self.plant == Some(CorePlant::LeaveUnsaved);
        rests && self.is_closing() && is_saved
    }

    /// The members leave together. The generation has begun no step, so the checkpoint of its
    /// beginning has all that they hold.
    pub(super) fn leave_all(
        &mut self,
        unix_ms: u64,
        generation: Generation,
    ) -> Result<EntryOutcome, Rejection> {
        if generation != self.generation() || !self.may_leave_together() {
            return Err(Rejection::StillNeeded(generation));
        }
        let members: Vec<WorkerId> = self.members().collect();
        for worker in members {
            self.generation.reported_dead.insert(worker);
            if self.generation.departed.insert(worker) {
                self.events.note(unix_ms, EventKind::Left { worker });
            }
        }
        Ok(EntryOutcome::Accepted)
    }

    pub(super) fn follow(
        &mut self,
        unix_ms: u64,
        term: Term,
        change: &Change,
    ) -> Result<EntryOutcome, Rejection> {
        let record = &change.record;
        let number = record.number;
        #[cfg(feature = "planted")]
        let term = if self.plant == Some(CorePlant::IgnoreTerm) { record.term } else { term };
        if record.term != term {
            let planned = record.term;
            return Err(Rejection::OtherTerm { number, planned, term });
        }
        self.fits(record)?;
        self.generation.accounts_for_all(change)?;
        self.generation.goes_forwards(change, self.checkpoints.newest_step())?;
        if change.rollback.is_some() || self.record().is_none() {
            self.restores(record)?;
        }
        if let Some((_, reason)) = &change.rollback
            && *reason != RollbackReason::Asked
        {
            self.restores_newest(record)?;
        }
        if change.rollback.is_some() {
            self.runs.goes_back = None;
            self.checkpoints.go_back(record.resume);
            self.lines.go_back(number, record.resume);
        }
        self.end_wait(unix_ms);
        self.part_with(unix_ms, change);
        self.enrol(unix_ms, record);
        self.note_unreachable(unix_ms, change);
        if let Some((from, reason)) = &change.rollback {
            let (from, to, reason) = (*from, record.resume, reason.clone());
            self.events.note(unix_ms, EventKind::Rollback { from, to, reason });
        }
        let copies = self.run().map_or(0, |run| run.copies as usize);
        self.events.note(unix_ms, began(change, copies));
        self.direct(unix_ms, record);
        Ok(EntryOutcome::Accepted)
    }

    /// Checks that a run that has lost shards goes back no further than it must. A checkpoint may
    /// have been listed since the change was planned, or found to be damaged: then it is planned
    /// again.
    fn restores_newest(&self, record: &Record) -> Result<(), Rejection> {
        let newest = self.checkpoints.to_restore(Step(u64::MAX));
        let newest = newest.ok().map(|listed| listed.map_or(Step(0), |listed| listed.commit.step));
        match newest {
            Some(newest) if newest == record.resume => Ok(()),
            _ => Err(Rejection::Backwards { number: record.number, step: record.resume }),
        }
    }

    /// Checks that a run begins with, or goes back to, the initial state, or a checkpoint that can
    /// be restored, by its commit.
    fn restores(&self, record: &Record) -> Result<(), Rejection> {
        self.can_go_back_to(record.resume)?;
        let listed = self.checkpoints.newest_up_to(record.resume);
        let listed = listed.map(|listed| &listed.commit);
        let listed = listed.filter(|commit| commit.step == record.resume);
        match (listed, &record.commit) {
            (None, None) => Ok(()),
            (Some(listed), Some(commit)) if is_same(listed, commit) => Ok(()),
            _ => Err(Rejection::OtherCommit { number: record.number, step: record.resume }),
        }
    }

    /// Checks that the record follows the current one, is whole, and lists workers that are there.
    fn fits(&self, record: &Record) -> Result<(), Rejection> {
        let (number, current) = (record.number, self.generation());
        // Numbers are left out where a recovery has lost generations that workers have entered.
        if record.predecessor != current || number <= current {
            let predecessor = record.predecessor;
            return Err(Rejection::OtherPredecessor { number, predecessor, current });
        }
        let (Some(run), Some(shards)) = (self.run(), self.shards()) else {
            return Err(Rejection::GenerationWithoutRun(number));
        };
        record
            .validate(run.batch.data_shards, shards)
            .map_err(|error| Rejection::Malformed { number, problem: error.problem })?;
        let is_gone = |worker| !self.is_present(worker) || self.has_departed(worker);
        match record.members.iter().find(|member| is_gone(member.worker)) {
            Some(gone) => Err(Rejection::ListsGone { number, worker: gone.worker }),
            None if record.resume > Step(run.steps) => Err(Rejection::BeyondTheEnd(number)),
            None => Ok(()),
        }
    }

    fn part_with(&mut self, unix_ms: u64, change: &Change) {
        for loss in &change.lost {
            let has_left = self.generation.departed.remove(&loss.worker);
            let phase = if has_left { WorkerPhase::Left } else { WorkerPhase::Lost };
            self.workers.depart(loss.worker, phase);
            if !self.generation.reported_dead.remove(&loss.worker) {
                self.events.note(unix_ms, lost(loss));
            }
        }
        for &worker in &change.left {
            self.workers.depart(worker, WorkerPhase::Left);
            self.events.note(unix_ms, EventKind::Left { worker });
        }
    }

    /// Tells the history at once of a member that has ended: the next generation may take long, or
    /// never come.
    pub(super) fn report_death(
        &mut self,
        unix_ms: u64,
        loss: &Loss,
    ) -> Result<EntryOutcome, Rejection> {
        let worker = loss.worker;
        if !self.is_member(worker) {
            return Err(Rejection::NoMember(worker));
        }
        if self.generation.reported_dead.insert(worker) {
            self.events.note(unix_ms, lost(loss));
        }
        Ok(EntryOutcome::Accepted)
    }

    fn enrol(&mut self, unix_ms: u64, record: &Record) {
        let under_way = self.generation.replace(unix_ms, record);
        for worker in record.members.iter().map(|member| member.worker) {
            // A member that was taken for dead, and answers all the same, joins anew.
            let returns = self.generation.reported_dead.remove(&worker);
            let is_member = self.workers.is_member(worker);
            if under_way && (returns || !is_member) {
                self.events.note(unix_ms, EventKind::Joined { worker });
            }
            if !is_member {
                self.workers.set_phase(worker, WorkerPhase::Member);
            }
        }
    }

    /// Tells of each pair once, as long as both are members.
    fn note_unreachable(&mut self, unix_ms: u64, change: &Change) {
        let is_member = |worker: WorkerId| self.workers.is_member(worker);
        let known = &mut self.generation.unreachable;
        known.retain(|(one, other)| is_member(*one) && is_member(*other));
        for &workers in &change.unreachable {
            if known.insert(workers) {
                self.events.note(unix_ms, EventKind::Unreachable { workers });
            }
        }
    }
}

fn began(change: &Change, copies: usize) -> EventKind {
    let record = &change.record;
    EventKind::Generation {
        generation: record.number,
        cause: record.cause,
        workers: record.members.iter().map(|member| member.worker).collect(),
        at_step: record.resume,
        redone: change.redone,
        waiting: record.waiting,
        under_protected: under_protected(record, copies),
    }
}

fn lost(loss: &Loss) -> EventKind {
    let Loss { worker, reason, detect_ms, pause_ms } = loss.clone();
    EventKind::Lost { worker, reason, detect_ms, pause_ms }
}

/// Runs of parameter shards with fewer owners than the run asks for: the first shard, and how many.
fn under_protected(record: &Record, copies: usize) -> Vec<(Shard, u32)> {
    let mut runs: Vec<(Shard, u32)> = Vec::new();
    for ownership in record.owners.iter().filter(|ownership| ownership.owners.len() < copies) {
        match runs.last_mut() {
            Some((first, count)) if first.0 + *count == ownership.first.0 => {
                *count += ownership.count;
            }
            _ => runs.push((ownership.first, ownership.count)),
        }
    }
    runs
}
