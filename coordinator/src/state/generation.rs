//! One generation follows another: what must hold of the next, and what becomes of its workers.
//!
//! A change that breaks a rule changes nothing, no matter which coordinator proposed it. So a
//! number stands for one record (I1), and history goes only forwards (I17).

use std::collections::BTreeSet;

use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{Cause, Commit, Record, Shard, Step, Term, WorkerId};

use super::{AwaitedOwners, Change, EntryOutcome, Loss, State, WorkerPhase};
#[cfg(feature = "planted")]
use crate::plant::CorePlant;

impl State {
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
        self.accounts_for_all(change)?;
        self.goes_forwards(change)?;
        if change.rollback.is_some() {
            self.go_back(number, record.resume);
        }
        self.part_with(unix_ms, change);
        self.enrol(unix_ms, record);
        self.note_unreachable(unix_ms, change);
        if let Some((from, reason)) = &change.rollback {
            let (from, to, reason) = (*from, record.resume, reason.clone());
            self.note(unix_ms, EventKind::Rollback { from, to, reason });
        }
        self.awaited = AwaitedOwners::default();
        self.waiting_since = record.waiting.then(|| self.waiting_since.unwrap_or(unix_ms));
        let began = self.began(change);
        self.note(unix_ms, began);
        Ok(EntryOutcome::Accepted)
    }

    /// Checks that the record follows the current one, is whole, and lists workers that are there.
    fn fits(&self, record: &Record) -> Result<(), Rejection> {
        let (number, current) = (record.number, self.generation());
        if record.predecessor != current || number != current.next() {
            let predecessor = record.predecessor;
            return Err(Rejection::OtherPredecessor { number, predecessor, current });
        }
        let (Some(run), Some(shards)) = (&self.run, self.shards()) else {
            return Err(Rejection::GenerationWithoutRun(number));
        };
        record
            .validate(run.batch.data_shards, shards)
            .map_err(|error| Rejection::Malformed { number, problem: error.problem })?;
        let present = |id| self.workers.get(&id).is_some_and(|known| known.phase.is_present());
        match record.members.iter().find(|member| !present(member.worker)) {
            Some(gone) => Err(Rejection::ListsGone { number, worker: gone.worker }),
            None if record.resume > Step(run.steps) => Err(Rejection::BeyondTheEnd(number)),
            None => Ok(()),
        }
    }

    /// Checks that the change drops no member in silence: each still is one, or was lost, or has
    /// left.
    fn accounts_for_all(&self, change: &Change) -> Result<(), Rejection> {
        let stay: BTreeSet<WorkerId> = change.record.members.iter().map(|m| m.worker).collect();
        let before = self.record.iter().flat_map(|record| &record.members).map(|m| m.worker);
        let gone: BTreeSet<WorkerId> = before.filter(|worker| !stay.contains(worker)).collect();
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
    fn goes_forwards(&self, change: &Change) -> Result<(), Rejection> {
        let Change { record, rollback, .. } = change;
        let number = record.number;
        let resumed = self.record.as_ref().map_or(Step(0), |current| current.resume);
        let reached = resumed.max(self.checkpoints.newest_step());
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
        if rollback.is_some() {
            return self.restores(record);
        }
        Ok(())
    }

    /// Checks that a rollback goes to the initial state, or to a checkpoint that can be restored, by
    /// its commit.
    fn restores(&self, record: &Record) -> Result<(), Rejection> {
        self.can_go_back_to(record.resume)?;
        let listed = self.checkpoints.newest_up_to(record.resume);
        let listed = listed.map(|listed| Commit { hold: false, ..listed.commit.clone() });
        match listed.filter(|commit| commit.step == record.resume) == record.commit {
            true => Ok(()),
            false => Err(Rejection::OtherCommit { number: record.number, step: record.resume }),
        }
    }

    fn part_with(&mut self, unix_ms: u64, change: &Change) {
        for loss in &change.lost {
            self.depart(loss.worker, WorkerPhase::Lost);
            if !self.reported_dead.remove(&loss.worker) {
                self.note(unix_ms, lost(loss));
            }
        }
        for &worker in &change.left {
            self.depart(worker, WorkerPhase::Left);
            self.note(unix_ms, EventKind::Left { worker });
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
        if self.reported_dead.insert(worker) {
            self.note(unix_ms, lost(loss));
        }
        Ok(EntryOutcome::Accepted)
    }

    fn enrol(&mut self, unix_ms: u64, record: &Record) {
        let under_way = self.record.replace(record.clone()).is_some();
        self.generation = record.number;
        for member in &record.members {
            // A member that was taken for dead, and answers all the same, joins anew.
            let returns = self.reported_dead.remove(&member.worker);
            if under_way && (returns || !self.is_member(member.worker)) {
                self.note(unix_ms, EventKind::Joined { worker: member.worker });
            }
            if !self.is_member(member.worker) {
                self.set_phase(member.worker, WorkerPhase::Member);
            }
        }
    }

    /// Tells of each pair once, as long as both are members.
    fn note_unreachable(&mut self, unix_ms: u64, change: &Change) {
        let mut known = std::mem::take(&mut self.unreachable);
        known.retain(|(one, other)| self.is_member(*one) && self.is_member(*other));
        for &workers in &change.unreachable {
            if known.insert(workers) {
                self.note(unix_ms, EventKind::Unreachable { workers });
            }
        }
        self.unreachable = known;
    }

    fn began(&self, change: &Change) -> EventKind {
        let record = &change.record;
        let copies = self.run.as_ref().map_or(0, |run| run.copies as usize);
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
