//! What must hold at every moment of a simulation: one checker for each invariant.
//!
//! Inputs: [`Observation`]s, with their virtual time. Output: the first [`Violation`]; in the end a
//! [`Chronicle`], with which later runs of the same specification are compared. The checkers see
//! what the cores say and what the devices compute; how it travelled they do not know.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod bounds;
mod commits;
mod copies;
mod lines;
mod parameters;
mod records;
mod samples;
mod stale;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{
    Chunk, Commit, Decision, Generation, MetricsLine, Record, RunSpec, Shard, Step, WorkerId,
};
use everstep_transport::time::Time;
use everstep_worker::data::Sampler;

use bounds::Bounds;
use commits::Commits;
use copies::Copies;
use lines::Lines;
use parameters::Parameters;
use records::Records;
use samples::Samples;

/// A promise of the design, by its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// One generation record per number.
    I1,
    /// All who commit a step record the same norm, loss and decision.
    I2,
    /// Every copy of a parameter shard at one version has the same bits, those of the fault-free
    /// run.
    I3,
    /// Every sample of the plan contributes to exactly one committed step.
    I4,
    /// Commits come one by one, and settled steps never go backwards.
    I5,
    /// Nothing of an older generation, nor of a step that is over, is taken.
    I7,
    /// No worker is lost, and no run fails, without a fault that explains it.
    I8,
    /// Queues are bounded.
    I10,
    /// Whatever goes wrong, the run has failed or goes on within a stated time; and once nothing
    /// goes wrong any more, it becomes complete.
    I11,
    /// Metrics are those of one history: each settled step once, in order.
    I13,
    /// Each partial is added exactly once: where nothing is sent twice, nothing is refused.
    I18,
    /// All contributions to a step were computed from one history's version before it.
    I19,
}

/// An invariant did not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant:?} did not hold after {:.3} ms: {seen}", .at.0 as f64 / 1e6)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// When.
    pub at: Time,
    /// What was seen.
    pub seen: String,
}

/// Something that a checker wants to know of.
#[derive(Clone, Copy, Debug)]
pub enum Observation<'a> {
    /// A worker became a member.
    Entered(WorkerId, &'a Record),
    /// A device begins with the gradients of a step.
    Began(WorkerId, Step),
    /// A device has computed a data shard.
    Computed(Step, &'a Contribution),
    /// A member has learned, or decided, that a step is committed.
    Committed(WorkerId, &'a Commit),
    /// A member takes this step, and all before, for settled.
    Settled(WorkerId, Step),
    /// An owner holds a new version of a shard.
    Updated(WorkerId, Copy<'a>),
    /// A member computes with another's new version of a shard.
    Loaded(WorkerId, Copy<'a>),
    /// A watcher was told a line.
    Written(&'a MetricsLine),
    /// Somebody refused something.
    Refused(fmt::Arguments<'a>),
    /// A member whose generation and last commit these are takes a chunk.
    Admitted(&'a Chunk, (Generation, Step)),
    /// So many wait in a queue of this kind.
    Queued(&'static str, usize),
    /// The memory of a worker is not what it should be: its copies may differ from now on.
    Corrupted(WorkerId),
}

/// One version of one parameter shard.
#[derive(Clone, Copy, Debug)]
pub struct Copy<'a> {
    /// The step that made it.
    pub version: Step,
    /// The shard.
    pub shard: Shard,
    /// The digest of master weights and moments; none for who only computes with it.
    pub digest: Option<u64>,
    /// What is computed with, where it is to be seen.
    pub parameters: Option<&'a [f32]>,
}

/// What a step's commit says, as far as it must be the same for all members and in all runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The bits of the norm.
    norm: u64,
    /// The bits of the loss.
    loss: u64,
    /// Apply or skip.
    decision: Decision,
}

/// The history of a complete run, for comparison: the verdict on each step, and the digest of every
/// version of every parameter shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chronicle {
    verdicts: BTreeMap<Step, Verdict>,
    digests: BTreeMap<(Step, Shard), u64>,
}

impl Chronicle {
    /// Committed steps that changed nothing.
    pub fn skipped(&self) -> impl Iterator<Item = Step> {
        let skipped = |verdict: &Verdict| verdict.decision == Decision::Skip;
        self.verdicts.iter().filter(move |(_, verdict)| skipped(verdict)).map(|(step, _)| *step)
    }
}

/// What a checker found: the invariant, and in words what was seen.
type Found = (Invariant, String);

/// All checkers of one simulation.
#[derive(Debug)]
pub struct Checks {
    steps: u64,
    bounds: Bounds,
    /// Nobody meddles with what is sent: whatever is refused was sent in error.
    honest: bool,
    records: Records,
    commits: Commits,
    copies: Copies,
    parameters: Parameters,
    samples: Samples,
    lines: Lines,
}

impl Checks {
    /// Checkers of `run` on `samples` samples. With a `reference`, the same run without faults,
    /// every step is compared with it.
    pub fn new(run: &RunSpec, samples: u64, reference: Option<Arc<Chronicle>>) -> Self {
        Self {
            steps: run.steps,
            bounds: Bounds::new(run.batch.data_shards),
            honest: true,
            records: Records::default(),
            commits: Commits::new(reference.clone()),
            copies: Copies::new(reference),
            parameters: Parameters::default(),
            samples: Samples::new(Sampler::new(run.seed, samples, run.batch), samples),
            lines: Lines::default(),
        }
    }

    /// Somebody meddles with what is sent: refusing it is no fault.
    pub fn expect_refusals(&mut self) {
        self.honest = false;
    }

    /// Looks at what happens `now`.
    ///
    /// # Errors
    /// The invariant that does not hold any more. What comes after it proves nothing.
    pub fn observe(&mut self, now: Time, seen: Observation<'_>) -> Result<(), Violation> {
        let found = match seen {
            Observation::Entered(_, record) => {
                self.commits.entered(record);
                self.bounds.entered(record);
                self.records.entered(record)
            }
            Observation::Began(worker, step) => self.commits.began(worker, step),
            Observation::Computed(step, contribution) => self.samples.computed(step, contribution),
            Observation::Committed(worker, commit) => {
                let agreed = self.copies.committed(commit.step);
                let known = agreed.and_then(|()| self.commits.committed(worker, commit));
                known.and_then(|()| self.samples.committed(commit.step))
            }
            Observation::Settled(worker, step) => self.commits.settled(worker, step),
            Observation::Updated(worker, copy) => {
                let committed = self.commits.updated(worker, copy.version);
                let same = committed.and_then(|()| self.copies.updated(worker, copy));
                same.map(|()| self.parameters.announced(copy))
            }
            Observation::Loaded(worker, copy) => self.parameters.loaded(worker, copy),
            Observation::Written(line) => self.lines.written(line, &self.commits),
            Observation::Refused(what) if self.honest => Err((Invariant::I18, what.to_string())),
            Observation::Refused(_) => Ok(()),
            Observation::Admitted(chunk, standing) => stale::admitted(chunk, standing),
            Observation::Queued(kind, waiting) => self.bounds.queued(kind, waiting),
            Observation::Corrupted(worker) => {
                self.copies.corrupted(worker);
                Ok(())
            }
        };
        found.map_err(|found| violation(now, found))
    }

    /// The last step that anyone has committed.
    pub fn committed(&self) -> Step {
        self.commits.newest()
    }

    /// Looks at the whole of a complete run.
    ///
    /// # Errors
    /// The invariant that does not hold for it.
    pub fn conclude(&self, now: Time) -> Result<Chronicle, Violation> {
        let lines = self.lines.conclude(Step(self.steps));
        let found = lines.and_then(|()| self.samples.conclude());
        found.map_err(|found| violation(now, found))?;
        Ok(Chronicle { verdicts: self.commits.verdicts(), digests: self.copies.digests() })
    }
}

fn violation(at: Time, (invariant, seen): Found) -> Violation {
    Violation { invariant, at, seen }
}

#[cfg(test)]
mod tests;
