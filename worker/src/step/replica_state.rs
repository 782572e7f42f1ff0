//! The state that a worker carries from one generation into the next.
//!
//! Input: a record. Output: the jobs that bring the device to the record's resume version. A worker
//! that has missed the last commit applies it first, and drops what is of no use. The device does
//! its jobs in order, so a job counts as done once the core has given it: versions here are those
//! that the device will have. The roles of workers within a generation are not known here.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod error;
#[cfg(feature = "planted")]
mod planted;

use std::collections::BTreeMap;

use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{
    Cause, Commit, Decision, Generation, MetricsLine, Record, Shard, Step, WorkerId,
};
use everstep_transport::time::Time;

pub use self::error::EnterError;
use super::Promise;
use super::event::{Gradient, Job, ShardOrigin};
use super::gradients::Gradients;
use super::progress::Progress;
use super::version::Version;

/// Most lines of recent commits that a worker keeps until they are written. With so many, a step
/// leader commits nothing more (invariant I13: no line is dropped).
pub const MAX_LINES: usize = 65_536;
/// A worker keeps so many of the newest lines even after they are written. The coordinator that has
/// them may fail before another coordinator has them.
const KEPT_LINES: usize = 16_384;

/// All that outlives a generation.
#[derive(Debug)]
pub struct ReplicaState {
    /// The generation of the last record that judged this state. 0 before the first.
    pub(super) generation: Generation,
    /// The last commit known here. None before the first.
    pub(super) commit: Option<Commit>,
    /// When this worker heard of that commit. Before the first commit: when the first generation
    /// began.
    pub(super) committed_at: Option<Time>,
    /// The version of each parameter shard that the device computes with.
    pub(super) computing: Vec<Version>,
    /// The shards of which the device holds master weights and moments.
    pub(super) copies: BTreeMap<Shard, ShardCopy>,
    /// Reduced gradients of the step after the commit.
    pub(super) prepared: BTreeMap<Shard, ReducedShard>,
    /// The results of that step that this worker has computed.
    pub(super) gradients: Gradients,
    /// The newest lines of commits: all that are not written, and more.
    pub(super) lines: BTreeMap<Step, MetricsLine>,
    /// The newest step whose line is written, as the leader said last.
    pub(super) written: Step,
    /// The last step that no failure can undo.
    pub(super) settled: Step,
    /// The worker was a member of that last generation. It has shown what it had committed then at
    /// every Pause since, so later records resume at that step or after it.
    pub(super) was_member: bool,
    /// Whether the device holds the parameters of version 0 until newer ones come: it has begun
    /// from the beginning.
    pub(super) has_initial: bool,
    /// How far the device has followed the records.
    pub(super) device: PendingEntries,
    /// How long the device takes for a data shard.
    pub(super) progress: Progress,
    #[cfg(feature = "planted")]
    pub(super) plant: Option<crate::plant::Plant>,
}

/// Master weights and moments of one shard, on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShardCopy {
    pub version: Version,
    /// The worker syncs the shard, and does not own it yet.
    pub syncing: bool,
}

/// The sum of all data shards' gradients of a parameter shard.
#[derive(Clone, Debug)]
pub(super) struct ReducedShard {
    /// The generation in which it was reduced.
    pub generation: Generation,
    pub gradient: Gradient,
}

/// The entries that the core has given to the device, and that the device has not reported.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PendingEntries {
    /// The newest one. Until its report, updates belong to the generation before.
    pub entering: Option<Generation>,
    /// The newest one from the seed. Until its report, all other reports are void.
    pub void_until: Option<Generation>,
}

impl PendingEntries {
    /// The device has entered a generation.
    pub fn entered(&mut self, generation: Generation) {
        let ahead = |awaited: Option<Generation>| awaited.filter(|awaited| *awaited > generation);
        self.entering = ahead(self.entering);
        self.void_until = ahead(self.void_until);
    }
}

impl ReplicaState {
    /// Holds the initial parameters of a model of so many shards, and nothing else.
    pub fn initial(shards: u32) -> Self {
        Self {
            generation: Generation(0),
            commit: None,
            committed_at: None,
            computing: vec![Version::default(); shards as usize],
            copies: BTreeMap::new(),
            prepared: BTreeMap::new(),
            gradients: Gradients::default(),
            lines: BTreeMap::new(),
            written: Step(0),
            settled: Step(0),
            was_member: false,
            has_initial: false,
            device: PendingEntries::default(),
            progress: Progress::default(),
            #[cfg(feature = "planted")]
            plant: None,
        }
    }

    /// The last committed step.
    pub(super) fn committed(&self) -> Step {
        self.commit.as_ref().map_or(Step(0), |commit| commit.step)
    }

    /// The version that the last commit makes.
    pub(super) fn version(&self) -> Version {
        self.commit.as_ref().map(Version::of).unwrap_or_default()
    }

    // A generation begins.

    /// Turns the state into what the record resumes with, for an owner of these shards in it.
    /// `computes` says whether the worker is a member, or a joiner of the generation. Returns the
    /// device's jobs.
    ///
    /// # Errors
    /// If the record goes back behind what was settled, or lists this worker as owner of a shard
    /// that it cannot bring to the resume version (invariants I17 and I16). The state is of no use
    /// then.
    ///
    /// # Panics
    /// If this worker has entered the record, or a later one (invariant I1).
    pub(super) fn enter(
        &mut self,
        record: &Record,
        owned: &BTreeMap<Shard, bool>,
        computes: bool,
    ) -> Result<Vec<Job>, EnterError> {
        assert!(record.number > self.generation, "I1: a worker enters no number twice");
        let resume = Version::resumed(record);
        let follows = record.predecessor == self.generation && record.cause != Cause::Rollback;
        if follows && record.resume < self.settled {
            let (number, resume, settled) = (record.number, record.resume, self.settled);
            return Err(EnterError::Backwards { number, resume, settled });
        }
        let mut jobs = Vec::new();
        let origin = if self.is_void(record, owned, computes) {
            self.begin_anew(record, owned);
            let is_first = computes && resume == Version::default();
            self.has_initial = record.restores().is_none() && (is_first || !owned.is_empty());
            match self.has_initial {
                true => ShardOrigin::Seed,
                false => ShardOrigin::Checkpoint,
            }
        } else {
            if !follows && !self.was_member {
                // A record that this worker never saw may have undone steps that had not settled.
                self.lines.split_off(&self.settled.next());
            }
            self.roll_forward(record, owned, &mut jobs);
            self.keep(record, owned);
            ShardOrigin::Held
        };
        for &shard in owned.keys().filter(|_| origin != ShardOrigin::Checkpoint) {
            if self.copies.get(&shard).is_none_or(|copy| copy.version != resume) {
                let (number, resume) = (record.number, record.resume);
                return Err(EnterError::OutOfReach { number, shard, resume });
            }
            self.computing[shard.0 as usize] = resume;
        }
        self.generation = record.number;
        self.settled = record.resume;
        // A leader that goes back cuts its lines: those of undone steps will be written anew.
        self.written = self.written.min(record.resume);
        self.device.entering = Some(record.number);
        jobs.push(Job::Enter {
            generation: record.number,
            origin,
            owned: owned.iter().map(|(shard, primary)| (*shard, *primary)).collect(),
            syncing: self.syncing().map(|(shard, _)| shard).collect(),
        });
        Ok(jobs)
    }

    /// Whether to begin from the beginning. It does so if the run begins or rolls back. It does so
    /// if, at version 0, the worker lacks a shard or the parameters that the beginning gives. And
    /// it does so if the device computes with parameters that are not part of history. A joiner
    /// computes nothing, and may come long after the beginning of its generation: it drops what it
    /// had, and its parameters come from others.
    fn is_void(&self, record: &Record, owned: &BTreeMap<Shard, bool>, computes: bool) -> bool {
        let resume = Version::resumed(record);
        let holds = |shard| self.copies.get(shard).is_some_and(|copy| copy.version == resume);
        let initial = resume == Version::default();
        let lacks = computes && !self.has_initial || !owned.keys().all(holds);
        let foreign = |version: &Version| version.step >= resume.step && *version != resume;
        record.restores().is_some()
            || initial && (record.begins_anew() || lacks)
            || self.computing.iter().any(foreign)
    }

    fn begin_anew(&mut self, record: &Record, owned: &BTreeMap<Shard, bool>) {
        let initial = Version::default();
        self.computing.fill(initial);
        let copy = ShardCopy { version: initial, syncing: false };
        let seeded = owned.keys().filter(|_| record.restores().is_none());
        self.copies = seeded.map(|shard| (*shard, copy)).collect();
        self.prepared.clear();
        self.gradients.begin_anew(Version::resumed(record));
        self.lines.clear();
        self.commit = record.commit.clone();
        self.device.void_until = Some(record.number);
    }

    /// Applies the recorded commit if it is the one that this worker has missed.
    fn roll_forward(
        &mut self,
        record: &Record,
        owned: &BTreeMap<Shard, bool>,
        jobs: &mut Vec<Job>,
    ) {
        let missed = record.commit.as_ref().filter(|commit| commit.step > self.committed());
        let Some(commit) = missed else { return };
        if commit.step == self.committed().next() {
            let resume = Version::of(commit);
            for (shard, copy) in &mut self.copies {
                let wanted = copy.syncing || owned.contains_key(shard);
                let reduced = self.prepared.get(shard);
                let reduced = reduced.filter(|reduced| reduced.generation == commit.generation);
                let Some(reduced) = reduced.filter(|_| copy.version.step.next() == commit.step)
                else {
                    continue;
                };
                if wanted {
                    copy.version = resume;
                    #[cfg(feature = "planted")]
                    if self.plant == Some(crate::plant::Plant::SkipRollForward) {
                        continue;
                    }
                    jobs.push(update(commit, *shard, Some(reduced.gradient.clone())));
                    follow(&mut self.computing, *shard, resume);
                }
            }
            if self.generation == commit.generation {
                jobs.extend(self.skip(commit));
            }
        }
        self.lines.insert(commit.step, commit.line.clone());
    }

    /// Keeps state of the resume version, and results of the next step if they have the same
    /// history.
    fn keep(&mut self, record: &Record, owned: &BTreeMap<Shard, bool>) {
        let resume = Version::resumed(record);
        self.copies.retain(|shard, copy| {
            let owns = owned.contains_key(shard);
            let kept = copy.version == resume && (owns || copy.syncing);
            copy.syncing &= !owns;
            kept
        });
        #[cfg(feature = "planted")]
        let stale = self.prepared.clone();
        self.prepared.clear();
        #[cfg(feature = "planted")]
        self.keep_too_much(stale, resume);
        if self.gradients.base() != resume {
            self.gradients.begin(resume);
        }
        self.lines.split_off(&resume.step.next());
        self.commit = record.commit.clone();
    }

    // A step has committed.

    /// If the step was skipped: the job that gives the parameters of the version before it the new
    /// version.
    pub(super) fn skip(&mut self, commit: &Commit) -> Option<Job> {
        if commit.decision != Decision::Skip {
            return None;
        }
        // Only parameters of this history. The device may relabel more, which the worker then loads
        // again.
        let before = self.version();
        let current = self.computing.iter_mut().filter(|version| **version == before);
        current.for_each(|version| *version = Version::of(commit));
        Some(Job::Skip { step: commit.step })
    }

    /// Makes this commit the last known one.
    pub(super) fn commit(&mut self, now: Time, commit: Commit) {
        self.committed_at = Some(now);
        let twice = self.lines.insert(commit.step, commit.line.clone());
        assert!(twice.is_none(), "I13: each step of a history has one line");
        self.drop_lines();
        self.commit = Some(commit);
    }

    // Lines.

    /// Every line up to `step` is written.
    pub(super) fn written(&mut self, step: Step) {
        self.written = step;
        self.drop_lines();
    }

    /// Drops the oldest lines. A step leader with many unwritten lines commits nothing more, so it
    /// never drops one of them.
    fn drop_lines(&mut self) {
        let is_written = |step: &Step| *step <= self.written;
        while self.lines.len() > MAX_LINES
            || self.lines.len() > KEPT_LINES && self.lines.keys().next().is_some_and(is_written)
        {
            self.lines.pop_first();
        }
    }

    /// Unwritten lines of steps up to this settled step, oldest first.
    pub(super) fn lines_up_to(&self, settled: Step) -> impl Iterator<Item = &MetricsLine> {
        let first = self.written.next();
        let last = settled.max(self.written);
        self.lines.range(first..last.next()).map(|(_, line)| line)
    }

    /// Applies a commit to a held shard, with its reduced gradient.
    pub(super) fn update(
        &mut self,
        commit: &Commit,
        shard: Shard,
        gradient: Option<Gradient>,
    ) -> Job {
        let version = Version::of(commit);
        let copy = self.copies.get_mut(&shard).expect("only what is held is updated");
        assert_eq!(
            copy.version.step.next(),
            version.step,
            "I19: no update is left out or repeated"
        );
        copy.version = version;
        follow(&mut self.computing, shard, version);
        update(commit, shard, gradient)
    }

    /// The device has taken over a shard's state from another owner.
    pub(super) fn restored(&mut self, shard: Shard, version: Version) {
        self.copies.insert(shard, ShardCopy { version, syncing: true });
        follow(&mut self.computing, shard, version);
    }

    /// The device has taken over an owned shard from a checkpoint.
    pub(super) fn own_restored(&mut self, shard: Shard, version: Version) {
        self.copies.insert(shard, ShardCopy { version, syncing: false });
        self.computing[shard.0 as usize] = version;
    }

    /// The shards that the worker holds and does not own.
    pub(super) fn syncing(&self) -> impl Iterator<Item = (Shard, Version)> {
        let syncing = self.copies.iter().filter(|(_, copy)| copy.syncing);
        syncing.map(|(shard, copy)| (*shard, copy.version))
    }

    // Evidence.

    /// The worker's state, as an answer to the Pause that asked for this promise.
    pub(super) fn status(
        &self,
        promise: Promise,
        unreachable: impl Iterator<Item = WorkerId>,
    ) -> Status {
        let versions = self
            .copies
            .iter()
            .map(|(shard, ShardCopy { version, .. })| (*shard, version.step, version.generation));
        let prepared = self.prepared.iter().map(|(shard, reduced)| (*shard, reduced.generation));
        let status = Status {
            term: promise.term,
            number: promise.generation,
            commit: self.commit.clone(),
            prepared: prepared.collect(),
            versions: versions.collect(),
            under_way: self.gradients.under_way(),
            unreachable: unreachable.collect(),
        };
        #[cfg(feature = "planted")]
        let status = self.misstate(status);
        status
    }
}

/// The device computes with a held shard if it is at least as new as the parameters before.
fn follow(computing: &mut [Version], shard: Shard, version: Version) {
    let before = &mut computing[shard.0 as usize];
    if before.step <= version.step {
        *before = version;
    }
}

fn update(commit: &Commit, shard: Shard, gradient: Option<Gradient>) -> Job {
    let gradient = gradient.filter(|_| commit.decision == Decision::Apply);
    let Commit { step, norm, gradient_factor: factor, updates: update, .. } = *commit;
    Job::Update { shard, step, norm, factor, update, gradient }
}
