//! What must hold at every moment of a simulation: one checker for each invariant.
//!
//! Inputs: [`Observation`]s, with their virtual time. Output: the first [`Violation`], and in the
//! end a [`RunHistory`] to compare later runs of the same specification with. The checkers see the
//! messages of the cores and the results of the devices. They do not know how these travelled.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod agreement;
mod bounds;
mod checkpoints;
mod commits;
mod copies;
mod durable;
mod held_versions;
mod invariant;
pub mod linear;
mod lines;
mod observation;
mod parameters;
mod pauses;
mod promises;
mod records;
mod requests;
mod rests;
mod resumes;
mod rollbacks;
mod samples;
mod scales;
mod stale;
mod subtrees;
mod sums;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use everstep_transport::protocol::outcome::Event;
use everstep_transport::protocol::{
    CheckpointId, Commit, CoordinatorId, Decision, Generation, LossScale, Record, RunOrigin,
    RunSpec, Shard, Step, Term, WorkerId,
};
use everstep_transport::time::Time;
use everstep_worker::data::Sampler;

use agreement::Agreement;
use bounds::Bounds;
pub use bounds::QueueKind;
use commits::Commits;
use copies::Copies;
use durable::Durable;
use held_versions::HeldVersions;
use lines::Lines;
use parameters::Parameters;
use pauses::Pauses;
use promises::Promises;
use records::Records;
use requests::RequestHistory;
use rests::Rests;
use resumes::Resumes;
use samples::Samples;
use scales::Scales;
use sums::PartialSums;

pub use invariant::Invariant;
pub use observation::{Observation, ShardCopy};
pub use pauses::PAUSE_SERVED_WITHIN;
pub use requests::{TOKENS, TokenAnswer, TokenRequest};
pub use stale::ReceiverState;

/// An invariant did not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant:?} did not hold after {:.3} ms: {seen}", .at.0 as f64 / 1e6)]
pub struct Violation {
    /// The invariant that does not hold.
    pub invariant: Invariant,
    /// The virtual time at which a checker noticed it.
    pub at: Time,
    /// The evidence, in words.
    pub seen: String,
}

/// The part of a step's commit that must be the same for all members and in all runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The bits of the norm.
    norm: u64,
    /// The bits of the loss.
    loss: u64,
    /// Those of the loss over held-out samples, if the step evaluates them.
    validation: Option<u64>,
    decision: Decision,
}

/// The history of a complete run, for comparison: the verdict on each step, and the digest of every
/// version of every parameter shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunHistory {
    verdicts: BTreeMap<Step, Verdict>,
    digests: BTreeMap<(Step, Shard), u64>,
}

impl RunHistory {
    /// Committed steps that changed nothing.
    pub fn skipped(&self) -> impl Iterator<Item = Step> {
        let skipped = |verdict: &Verdict| verdict.decision == Decision::Skip;
        self.verdicts.iter().filter(move |(_, verdict)| skipped(verdict)).map(|(step, _)| *step)
    }
}

/// What a checker found: the invariant, and the evidence in words.
type Breach = (Invariant, String);

/// All checkers of one simulation.
#[derive(Debug)]
pub struct InvariantChecks {
    steps: u64,
    /// The number of owners that each parameter shard should have.
    copies_wanted: u32,
    bounds: Bounds,
    /// No interceptor changes messages, so a worker refuses only what was sent in error.
    honest: bool,
    agreement: Agreement,
    records: Records,
    promises: Promises,
    held_versions: HeldVersions,
    resumes: Resumes,
    pauses: Pauses,
    commits: Commits,
    scales: Scales,
    copies: Copies,
    parameters: Parameters,
    samples: Samples,
    sums: PartialSums,
    lines: Lines,
    durable: Durable,
    rests: Rests,
    /// Checkpoints that a fault has damaged: the run goes back behind them.
    torn: BTreeSet<CheckpointId>,
    /// The newest generation that all members have left together.
    left_together: Option<Generation>,
    requests: RequestHistory,
}

impl InvariantChecks {
    /// Checkers of `run` on `samples` samples. A `reference` is the same run without faults: the
    /// checkers compare every step with it.
    pub fn new(run: &RunSpec, samples: u64, reference: Option<Arc<RunHistory>>) -> Self {
        Self {
            steps: run.steps,
            copies_wanted: run.copies,
            bounds: Bounds::new(run.batch.data_shards),
            honest: true,
            agreement: Agreement::default(),
            records: Records::default(),
            promises: Promises::default(),
            held_versions: HeldVersions::default(),
            resumes: Resumes::default(),
            pauses: Pauses::default(),
            commits: Commits::new(reference.clone()),
            scales: Scales::new(run.model.precision),
            copies: Copies::new(reference),
            parameters: Parameters::default(),
            samples: Samples::new(Sampler::new(run.seed, samples, run.batch), samples),
            sums: PartialSums::default(),
            lines: Lines::default(),
            durable: Durable::of(run),
            rests: Rests::new(run.steps),
            torn: BTreeSet::new(),
            left_together: None,
            requests: RequestHistory::default(),
        }
    }

    /// Another cluster has trained the first steps of the run, and these checkers have watched it.
    pub fn follow(&mut self, before: &Self) {
        self.samples.follow(&before.samples);
        self.scales.follow(&before.scales);
        self.torn.clone_from(&before.torn);
    }

    /// The run goes on from checkpoints of another cluster.
    pub fn begin_from(&mut self, origin: &RunOrigin) {
        self.samples.begin_after(origin.step());
        self.commits.begin_after(origin.step());
        self.lines.begin_after(origin.step());
        self.resumes.begin_from(origin);
    }

    /// An interceptor changes messages from now on, so a refusal is no fault.
    pub fn expect_refusals(&mut self) {
        self.honest = false;
    }

    /// Checks an observation of the moment `now`.
    ///
    /// # Errors
    /// The first invariant that does not hold. Later observations prove nothing.
    pub fn observe(&mut self, now: Time, seen: Observation<'_>) -> Result<(), Violation> {
        let found = match seen {
            Observation::Paused(number) => {
                self.pauses.paused(now, number);
                Ok(())
            }
            Observation::Passes(able) => self.pauses.passes(now, able),
            Observation::Promised(worker, term, number) => self.promised(worker, term, number),
            Observation::Proposed(record) => {
                let promised = self.promises.proposed(record);
                let (before, copies) = (self.records.current(), self.copies_wanted);
                promised.and_then(|()| self.held_versions.proposed(record, before, copies))
            }
            Observation::Recorded(record, term, lost) => {
                let led = promises::recorded(record, term);
                led.and_then(|()| self.recorded(now, record, lost))
            }
            Observation::Entered(worker, record, committed) => {
                let history = self.records.lineage(record.number);
                let entered = self.records.entered(record);
                entered.and_then(|()| self.commits.entered(worker, record, history, committed))
            }
            Observation::Gone(worker) => {
                self.held_versions.gone(worker);
                Ok(())
            }
            Observation::Said(worker, generation) => {
                self.promises.acts(worker, generation, format_args!("says something"))
            }
            Observation::Began(worker, step, scale) => self.began(worker, step, scale),
            Observation::Computed(worker, (generation, step), part) => {
                self.samples.computed(worker, generation, step, part)
            }
            Observation::Committed(worker, commit) => self.committed(worker, commit),
            Observation::Shown(worker, commit) => self.resumes.shown(worker, commit),
            Observation::Settled(worker, (generation, step)) => {
                self.commits.settled(worker, generation, step, &self.records)
            }
            Observation::Checkpoint(id) => checkpoints::listed(id, &self.commits),
            Observation::Asked(client, call) => {
                self.requests.asked(client, call);
                Ok(())
            }
            Observation::Answered(client, answer) => self.requests.answered(client, answer),
            Observation::Told(event) => self.told(event),
            Observation::Written(line) => {
                let follows = self.lines.written(line, &self.commits);
                follows.and_then(|()| self.scales.written(line))
            }
            Observation::Refused(what) if self.honest => Err((Invariant::I18, what.to_string())),
            Observation::Refused(_) => Ok(()),
            Observation::Admitted(worker, chunk, standing) => {
                let taken = stale::admitted(chunk, standing);
                let once =
                    |()| if self.honest { self.sums.admitted(worker, chunk) } else { Ok(()) };
                taken.and_then(once)
            }
            Observation::Queued(kind, waiting) => self.bounds.queued(kind, waiting),
            Observation::Corrupted(worker) => {
                self.copies.corrupted(worker);
                Ok(())
            }
            of_copies_or_the_log => self
                .agreed(now, of_copies_or_the_log)
                .and_then(|()| self.held(of_copies_or_the_log)),
        };
        found.map_err(|found| violation(now, found))
    }

    fn told(&mut self, event: &Event) -> Result<(), Breach> {
        self.durable.told(event)?;
        self.rests.told(event)?;
        self.lines.told(event)
    }

    /// Checks an observation of the coordinators' log.
    fn agreed(&mut self, now: Time, seen: Observation<'_>) -> Result<(), Breach> {
        match seen {
            Observation::Leads(life, term) => {
                self.pauses.led_anew(now);
                self.agreement.leads(life, term)
            }
            Observation::Applied(index, term, bytes) => self.agreement.applied(index, term, bytes),
            Observation::Stands(index, state) => self.agreement.stands(index, state),
            Observation::Listed(revision, ids) => {
                self.agreement.listed(revision, ids);
                Ok(())
            }
            Observation::Dismissed(id) => self.agreement.dismissed(id),
            Observation::Brought(entry) => self.agreement.brought(entry),
            Observation::Evicted(worker) => self.agreement.evicted(worker),
            Observation::LeftTogether(listed) => {
                let Some(record) = self.records.current() else { return Ok(()) };
                self.left_together = Some(record.number);
                rollbacks::left_together(record, listed)
            }
            _ => Ok(()),
        }
    }

    /// Checks an observation of copies of shards, or of the final model.
    fn held(&mut self, seen: Observation<'_>) -> Result<(), Breach> {
        match seen {
            Observation::Holds(worker, owned, resume) => {
                for (shard, version, digest) in owned {
                    let (version, shard, digest) = (*version, *shard, Some(*digest));
                    let copy = ShardCopy { version, shard, digest, parameters: None };
                    self.copies.updated(worker, copy)?;
                }
                self.held_versions.entered(worker, owned, resume)
            }
            Observation::Updated(worker, copy, of_now) => {
                if of_now {
                    self.commits.updated(worker, copy.version)?;
                }
                self.copies.updated(worker, copy)?;
                self.held_versions.holds(worker, copy.shard, copy.version);
                self.announced(worker, copy)
            }
            Observation::Shared(worker, copy) => self.announced(worker, copy),
            Observation::Offered(worker, copy) => self.copies.offered(worker, copy),
            Observation::Restored(worker, copy) => {
                self.held_versions.restored(worker, copy.shard, copy.version);
                Ok(())
            }
            Observation::Given(worker, shard, version) => {
                self.held_versions.given(worker, shard, version);
                Ok(())
            }
            Observation::Loaded(worker, copy) => self.parameters.loaded(worker, copy),
            Observation::Durable(place) => {
                self.durable.written(place);
                Ok(())
            }
            Observation::Outdone => {
                self.durable.outdone();
                Ok(())
            }
            Observation::Torn(id) => {
                self.torn.insert(id);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn announced(&mut self, worker: WorkerId, copy: ShardCopy<'_>) -> Result<(), Breach> {
        self.parameters.announced(worker, copy, self.copies.are_trusted())
    }

    fn recorded(
        &mut self,
        now: Time,
        record: &Record,
        lost: Option<&BTreeSet<WorkerId>>,
    ) -> Result<(), Breach> {
        let before = self.records.current();
        let history = self.records.lineage(record.predecessor);
        let settled = self.commits.newest_settled(history);
        match lost.zip(before) {
            Some((lost, before)) => {
                let restored = before.restores();
                let is_torn = restored.is_some_and(|id| self.torn.contains(&id));
                // Members that left together have left the step with which their record begins.
                let is_left =
                    self.left_together == Some(before.number) && record.resume >= before.resume;
                if !(is_torn || is_left) {
                    rollbacks::rolled_back(before, lost, record.resume, settled)?;
                }
            }
            None => self.resumes.recorded(record, before, settled)?,
        }
        subtrees::recorded(record, before, self.bounds.data_shards)?;
        self.records.recorded(record, lost.is_some())?;
        self.commits.recorded(self.records.lineage(record.number), record.resume);
        self.bounds.recorded(record);
        self.pauses.recorded(now, record.number);
        Ok(())
    }

    fn promised(&mut self, worker: WorkerId, term: Term, number: Generation) -> Result<(), Breach> {
        self.pauses.promised(number);
        self.promises.promised(worker, term, number)
    }

    fn began(&mut self, worker: WorkerId, step: Step, scale: LossScale) -> Result<(), Breach> {
        self.commits.began(worker, step)?;
        self.scales.began(worker, step, scale)
    }

    fn committed(&mut self, worker: WorkerId, commit: &Commit) -> Result<(), Breach> {
        self.promises.acts(worker, commit.generation, format_args!("commits {}", commit.step))?;
        if let Some(record) = self.records.record_of(commit.generation) {
            self.copies.committed(commit.step, record)?;
            Rests::committed(record, commit)?;
        }
        let first = self.resumes.committed(commit)?;
        // A member that does not know that its generation is over may yet commit in it, to no
        // effect.
        let current = self.records.current().filter(|it| it.number == commit.generation);
        let history = self.records.lineage(commit.generation);
        self.commits.committed(worker, commit, history, current.is_some(), first)?;
        // Other samples make another verdict. This check comes first, since it finds the cause.
        if let Some(record) = current.filter(|_| first) {
            self.samples.committed(commit.step, record)?;
        }
        self.commits.compare(worker, commit)?;
        self.scales.committed(worker, commit)
    }

    /// Whether no coordinator has applied an entry yet.
    pub fn is_new(&self, index: u64) -> bool {
        self.agreement.is_new(index)
    }

    /// Whether the log lists a coordinator, as far as any coordinator has applied it.
    pub fn is_listed(&self, id: CoordinatorId) -> bool {
        self.agreement.is_listed(id)
    }

    /// Whether a coordinator has ended since the others do without it.
    pub fn was_dismissed(&self, id: CoordinatorId) -> bool {
        self.agreement.was_dismissed(id)
    }

    /// Whether a coordinator has shown what an entry has brought to the history.
    pub fn is_reported(&self, index: u64) -> bool {
        self.agreement.is_reported(index)
    }

    /// How many steps were committed. Steps that were done again count again.
    pub fn steps(&self) -> u64 {
        self.commits.count()
    }

    /// The longest time from a Pause to its record.
    pub fn longest_change(&self) -> Duration {
        self.pauses.longest()
    }

    /// The record of the current generation.
    pub fn current_record(&self) -> Option<&Record> {
        self.records.current()
    }

    /// The record of a generation.
    pub fn record_of(&self, generation: Generation) -> Option<&Record> {
        self.records.record_of(generation)
    }

    /// Whether a worker is a member of a generation.
    pub fn lists(&self, generation: Generation, worker: WorkerId) -> bool {
        self.records.lists(generation, worker)
    }

    /// Ends the run: no open Pause needs a record any more.
    pub fn over(&mut self) {
        self.pauses.over();
    }

    /// Checks a complete run as a whole.
    ///
    /// # Errors
    /// The invariant that does not hold for it.
    pub fn conclude(&self, now: Time) -> Result<RunHistory, Violation> {
        let lines = self.lines.conclude(Step(self.steps));
        let found = lines.and_then(|()| self.samples.conclude());
        found.map_err(|found| violation(now, found))?;
        Ok(RunHistory { verdicts: self.commits.verdicts(), digests: self.copies.digests() })
    }
}

fn violation(at: Time, (invariant, seen): Breach) -> Violation {
    Violation { invariant, at, seen }
}

#[cfg(test)]
mod tests;
