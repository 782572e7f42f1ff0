//! One generation follows another: what must hold of the next, and what becomes of its workers.
//!
//! A change that breaks a rule changes nothing, no matter which coordinator proposed it. So a
//! number stands for one record (I1), and history goes only forwards (I17).

use std::collections::BTreeSet;

use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::{Cause, Record, Shard, Step, Term, WorkerId};

use super::{AwaitedOwners, Change, Loss, Standing, State, Verdict};
#[cfg(feature = "planted")]
use crate::plant::Plant;

impl State {
    pub(super) fn follow(
        &mut self,
        unix_ms: u64,
        term: Term,
        change: &Change,
    ) -> Result<Verdict, String> {
        let record = &change.record;
        let number = record.number;
        #[cfg(feature = "planted")]
        let term = if self.plant == Some(Plant::IgnoreTerm) { record.term } else { term };
        if record.term != term {
            let planned = record.term;
            return Err(format!("generation {number} was planned in term {planned}, not {term}"));
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
        Ok(Verdict::Accepted)
    }

    /// Checks that the record follows the current one, is whole, and lists workers that are there.
    fn fits(&self, record: &Record) -> Result<(), String> {
        let (number, current) = (record.number, self.generation());
        if record.predecessor != current || number != current.next() {
            let predecessor = record.predecessor;
            return Err(format!("generation {number} follows {predecessor}, not {current}"));
        }
        let (Some(run), Some(shards)) = (&self.run, self.shards()) else {
            return Err(format!("generation {number} has no run"));
        };
        record.validate(run.batch.data_shards, shards).map_err(|error| error.to_string())?;
        let present = |id| self.workers.get(&id).is_some_and(|known| known.standing.is_present());
        match record.members.iter().find(|member| !present(member.worker)) {
            Some(gone) => {
                Err(format!("generation {number} lists worker {}, which is gone", gone.worker))
            }
            None if record.resume > Step(run.steps) => {
                Err(format!("generation {number} goes on beyond the last step"))
            }
            None => Ok(()),
        }
    }

    /// Checks that the change drops no member in silence: each still is one, or was lost, or has
    /// left.
    fn accounts_for_all(&self, change: &Change) -> Result<(), String> {
        let stay: BTreeSet<WorkerId> = change.record.members.iter().map(|m| m.worker).collect();
        let before = self.record.iter().flat_map(|record| &record.members).map(|m| m.worker);
        let gone: BTreeSet<WorkerId> = before.filter(|worker| !stay.contains(worker)).collect();
        let lost = change.lost.iter().map(|loss| loss.worker);
        let told: BTreeSet<WorkerId> = lost.chain(change.left.iter().copied()).collect();
        if gone == told && change.lost.len() + change.left.len() == told.len() {
            Ok(())
        } else {
            let number = change.record.number;
            Err(format!("generation {number} tells of {told:?}, but is without {gone:?}"))
        }
    }

    /// Checks I17, and that a resume step has its commit, of the generation that it ends or before.
    fn goes_forwards(&self, change: &Change) -> Result<(), String> {
        let Change { record, rollback, .. } = change;
        let number = record.number;
        let reached = self.record.as_ref().map_or(Step(0), |current| current.resume);
        if record.resume < reached && rollback.is_none() {
            return Err(format!("generation {number} goes back to step {}", record.resume));
        }
        if rollback.is_some() && record.cause != Cause::Rollback {
            return Err(format!("generation {number} goes back, but for another cause"));
        }
        let committed = record.commit.as_ref().map_or(Step(0), |commit| commit.step);
        if committed != record.resume {
            let resume = record.resume;
            return Err(format!("generation {number} resumes at {resume} by another commit"));
        }
        Ok(())
    }

    fn part_with(&mut self, unix_ms: u64, change: &Change) {
        for loss in &change.lost {
            self.depart(loss.worker, Standing::Lost);
            if !self.mourned.remove(&loss.worker) {
                self.note(unix_ms, lost(loss));
            }
        }
        for &worker in &change.left {
            self.depart(worker, Standing::Left);
            self.note(unix_ms, EventKind::Left { worker });
        }
    }

    /// Tells the history at once of a member that has ended: the next generation may take long, or
    /// never come.
    pub(super) fn mourn(&mut self, unix_ms: u64, loss: &Loss) -> Result<Verdict, String> {
        let worker = loss.worker;
        if !self.is_member(worker) {
            return Err(format!("worker {worker} is no member"));
        }
        if self.mourned.insert(worker) {
            self.note(unix_ms, lost(loss));
        }
        Ok(Verdict::Accepted)
    }

    fn enrol(&mut self, unix_ms: u64, record: &Record) {
        let under_way = self.record.replace(record.clone()).is_some();
        self.generation = record.number;
        for member in &record.members {
            // A member that was taken for dead, and answers all the same, joins anew.
            let returns = self.mourned.remove(&member.worker);
            if under_way && (returns || !self.is_member(member.worker)) {
                self.note(unix_ms, EventKind::Joined { worker: member.worker });
            }
            if !self.is_member(member.worker) {
                self.stand(member.worker, Standing::Member);
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
