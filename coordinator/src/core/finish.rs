//! The end of a run: whether the members' results are those of one history, and what the workers do
//! then.

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::outcome::{Outcome, PausedBy, RunPause, WorkerResult};
use everstep_transport::protocol::reason::FailReason;
use everstep_transport::protocol::{Message, Record, Shard, Step, WorkerId};
use everstep_transport::time::Time;

use super::links::PeerPhase;
use super::model::ModelWriting;
use super::unable::UnableWorkers;
use super::{Command, Core, LinkId};
use crate::raft::MAX_ENTRY_BYTES;

/// Whether a result is of this generation: of all that the worker owns in it, and of nothing else.
/// A result does not name its generation, and may have been on its way when the generation began.
fn belongs(record: &Record, result: &WorkerResult) -> bool {
    let Some(rank) = record.rank(result.worker) else { return false };
    let owned: BTreeSet<Shard> =
        record.owned_by(rank).into_iter().map(|(shard, _)| shard).collect();
    let digests: BTreeSet<Shard> = result.digests.iter().map(|(shard, _)| *shard).collect();
    let parts = &record.member(rank).data_shards;
    owned == digests && result.evaluations.iter().all(|found| parts.contains(&found.part))
}

/// Checks that all owners of every parameter shard report the same digest (I3). The error names the
/// shard and two workers that differ.
fn agreement(
    record: &Record,
    results: &BTreeMap<WorkerId, WorkerResult>,
) -> Result<(), FailReason> {
    let mut first = BTreeMap::new();
    for member in &record.members {
        let digests = results.get(&member.worker).map_or(&[][..], |result| &result.digests);
        for (shard, digest) in digests {
            let (name, expected) = *first.entry(shard).or_insert((&member.name, digest));
            if digest != expected {
                let owners = (name.clone(), member.name.clone());
                return Err(FailReason::OwnersDiffer { owners, shard: *shard });
            }
        }
    }
    Ok(())
}

/// What the end of the run depends on.
#[derive(Debug, Default)]
pub(super) struct Completion {
    /// The results of members of the current generation, by worker.
    results: BTreeMap<WorkerId, WorkerResult>,
    pub(super) model: ModelWriting,
    pub(super) unable: UnableWorkers,
}

impl Completion {
    /// A generation begins. `is_last` says whether it begins after the last step.
    pub(super) fn begin(&mut self, is_last: bool) {
        self.results.clear();
        self.model.renew(is_last);
    }

    /// Whether a worker has finished the current generation.
    pub(super) fn has_finished(&self, worker: WorkerId) -> bool {
        self.results.contains_key(&worker)
    }

    /// The outcome of a run with this last record. Every member's result is here.
    fn outcome(&self, record: &Record) -> Outcome {
        match agreement(record, &self.results) {
            Ok(()) => Outcome::Complete(self.results.values().cloned().collect()),
            Err(reason) => Outcome::Failed { name: None, reason },
        }
    }
}

impl Core {
    /// A member has finished, with this result.
    pub(super) fn finished(&mut self, now: Time, result: WorkerResult) {
        if self.state.record().is_some_and(|record| belongs(record, &result)) {
            self.completion.results.insert(result.worker, result);
            self.conclude(now);
        } else {
            self.links.ignore();
        }
    }

    /// Ends the run when this coordinator has every member's result and the line of every step,
    /// most others have the lines or are late, and the last checkpoint is listed or has failed.
    pub(super) fn conclude(&mut self, now: Time) {
        let (Some(run), Some(record)) = (self.state.run(), self.state.record()) else { return };
        let is_durable = self.is_model_durable(now);
        #[cfg(feature = "planted")]
        let is_durable =
            is_durable || self.state.plant == Some(crate::plant::CorePlant::FinishUnwritten);
        if !is_durable || self.written() < Step(run.steps) || !self.running() {
            return;
        }
        // A generation that is on its way into the log may undo the last step.
        if self.change.is_proposed() {
            return;
        }
        // If its last checkpoint has failed, the run may ask for an operator first.
        let is_held = |pause: &RunPause| pause.by == PausedBy::FailedCheckpoint;
        if self.lacks_last_checkpoint() || self.state.pause().is_some_and(is_held) {
            return;
        }
        if self.completion.results.len() < record.members.len() {
            return;
        }
        // An earlier checkpoint that was asked for comes no more.
        if let Some(asked) = self.state.asked_checkpoint() {
            return self.fail_incomplete(now, asked.id);
        }
        if self.are_lines_copied(now)
            && let Some(record) = self.state.record()
        {
            let outcome = self.completion.outcome(record);
            self.propose_end(now, outcome);
        }
    }

    /// Ends the run if it has waited long enough for the other coordinators' copies of its lines.
    pub(super) fn see_to_end(&mut self, now: Time) {
        if self.awaits_line_copies() {
            self.conclude(now);
        }
    }

    pub(super) fn propose_end(&mut self, now: Time, outcome: Outcome) {
        self.check_end(now, &outcome);
        let (run, figures) = (self.state.run_id(), self.last_figures(&outcome));
        let steps = self.newest_step();
        self.propose(now, Command::End { run, outcome, figures, steps });
    }

    /// The log takes no entry of so many bytes. The leader would propose it again and again, and
    /// could not agree on anything else for this run: only records of generations can be so large.
    pub(crate) fn entry_too_large(&mut self, now: Time, bytes: usize) {
        if self.running() {
            let (bytes, most) = (bytes as u64, MAX_ENTRY_BYTES as u64);
            let reason = FailReason::RecordTooLarge { bytes, most };
            self.propose_end(now, Outcome::Failed { name: None, reason });
        }
    }

    /// The run is over: every worker may go, or waits for the next run. The leader misses no worker
    /// any more.
    pub(super) fn dismiss(&mut self, now: Time) {
        self.begin_anew(now);
        for link in
            self.workers_in(|phase| !matches!(phase, PeerPhase::Connected | PeerPhase::Released))
        {
            match self.links.find(link).map(|link| link.phase) {
                _ if self.state.is_ephemeral() => self.release(link, Message::Dismiss),
                Some(PeerPhase::Greeted(None)) => {}
                _ => self.set_free(link),
            }
        }
    }

    /// The worker's run is over. It may say Hello again, without an id.
    pub(super) fn set_free(&mut self, link: LinkId) {
        let Some(term) = self.leader() else { return };
        self.links.enter(link, PeerPhase::Connected);
        self.outbox.send(link, Message::Released { term });
    }
}
