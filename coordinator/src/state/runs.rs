//! One run after the other: how each begins, settles its steps, and ends.
//!
//! A cluster trains one run at a time. Worker ids and the numbers of generations continue from run
//! to run. So an entry or a message of an older run is never taken for one of the next run.

use std::collections::VecDeque;

use everstep_transport::protocol::figures::RunFigures;
use everstep_transport::protocol::message::Registration;
use everstep_transport::protocol::outcome::{EventKind, Outcome, state_hash};
use everstep_transport::protocol::reason::FailReason;
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::run::Units;
use everstep_transport::protocol::{
    CheckpointId, Generation, Lineage, NodeName, RunId, RunOrigin, RunSpec, Step,
};
use rkyv::{Archive, Deserialize, Serialize};

use super::checkpoint_progress::CheckpointProgress;
use super::directives::Directives;
use super::fingerprint::RunFingerprint;
use super::probes::{Divergence, ProbeDigests};
use super::{Checkpoints, EntryOutcome, LineHistory, RunSoFar, State};

/// How many of the newest finished runs the state still tells of.
const REMEMBERED: usize = 100;

/// A run that is over.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct PastRun {
    /// The index of the entry that submitted the run.
    pub id: RunId,
    /// The name in the run's specification.
    pub name: String,
    /// The units of its figures.
    pub units: Units,
    /// How many of its steps are settled.
    pub steps: Step,
    /// Why it failed, if it did.
    pub failure: Option<FailReason>,
    /// The state hash, if it is complete.
    pub hash: Option<[u8; 32]>,
    /// Why its bits are not those of any other such run, if they are not.
    pub divergence: Option<Divergence>,
    /// How the run did, as far as the proposer of its end knew.
    pub figures: RunFigures,
}

/// The checkpoint from which a run goes on that another cluster has begun.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub(super) struct Origin {
    step: Step,
    /// Whether an older checkpoint may take its place.
    falls_back: bool,
}

/// The run that goes on, or went on last, and the runs before it.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub(super) struct Runs {
    /// The index of the entry that submitted the run. 0 before the first run.
    pub(super) id: RunId,
    pub(super) spec: Option<RunSpec>,
    pub(super) fingerprint: Option<RunFingerprint>,
    pub(super) probes: ProbeDigests,
    /// What the run goes on from, if another cluster has begun it.
    pub(super) origin: Option<Origin>,
    /// The step to which an operator wants the run to go back.
    pub(super) goes_back: Option<Step>,
    pub(super) directives: Directives,
    pub(super) outcome: Outcome,
    /// The newest runs that are over, in the order of their ends.
    pub(super) past: VecDeque<PastRun>,
}

impl Runs {
    /// Whether the run has not ended, or there is none yet.
    fn is_running(&self) -> bool {
        self.outcome == Outcome::Running
    }

    /// Refuses an entry that comes after the end of the run.
    pub(super) fn must_run(&self) -> Result<(), Rejection> {
        if self.is_running() { Ok(()) } else { Err(Rejection::RunIsOver) }
    }

    /// Refuses an entry of another run: it may come into the log after the end of its own run.
    pub(super) fn must_be(&self, run: RunId) -> Result<(), Rejection> {
        if self.id == run { Ok(()) } else { Err(Rejection::NotTheRun(run)) }
    }

    /// What the state tells of the run, if it has ended.
    pub(super) fn ended(&self) -> Option<&PastRun> {
        self.past.back().filter(|past| past.id == self.id)
    }

    /// The `first` worker fixes the fingerprint. Every other worker must have the same.
    pub(super) fn admit(
        &mut self,
        first: bool,
        name: &NodeName,
        registration: &Registration,
    ) -> Result<(), Rejection> {
        if self.spec.is_none() {
            return Err(Rejection::NoRunToJoin);
        }
        if registration.model.as_ref().is_some_and(|place| !place.is_valid()) {
            return Err(Rejection::ModelPath);
        }
        if registration.host.as_ref().is_some_and(|host| !host.is_valid()) {
            return Err(Rejection::Host);
        }
        match &self.fingerprint {
            Some(fingerprint) if !first => fingerprint.check(name, registration)?,
            _ => {
                self.fingerprint = Some(RunFingerprint::first(name, registration)?);
                self.probes = ProbeDigests::default();
            }
        }
        Ok(())
    }

    fn begin(&mut self, id: RunId, run: &RunSpec) {
        let past = std::mem::take(&mut self.past);
        *self = Self { id, spec: Some(run.clone()), past, ..Self::default() };
    }

    fn end(&mut self, outcome: Outcome, past: PastRun) {
        self.past.push_back(past);
        if self.past.len() > REMEMBERED {
            self.past.pop_front();
        }
        (self.outcome, self.goes_back) = (outcome, None);
        self.directives = Directives::default();
    }
}

impl State {
    /// The run, once an operator has submitted one.
    pub fn run(&self) -> Option<&RunSpec> {
        self.runs.spec.as_ref()
    }

    /// The run's id: the index of the entry that submitted it. 0 before the first run.
    pub fn run_id(&self) -> RunId {
        self.runs.id
    }

    /// Whether there is a run that has not ended.
    pub fn is_training(&self) -> bool {
        self.run().is_some() && self.runs.is_running()
    }

    /// How the run stands.
    pub fn outcome(&self) -> &Outcome {
        &self.runs.outcome
    }

    /// How many parameter shards every worker of the run sees, once one has registered.
    pub fn shards(&self) -> Option<u32> {
        self.runs.fingerprint.as_ref().map(RunFingerprint::shards)
    }

    /// Why the run's bits are not those of any other such run, if they are not: the probe digests
    /// of its workers differ.
    pub fn divergence(&self) -> Option<Divergence> {
        self.runs.probes.divergence()
    }

    /// The newest runs that are over, in the order of their ends.
    pub fn past_runs(&self) -> &VecDeque<PastRun> {
        &self.runs.past
    }

    /// Whether an operator wants the run to go back, and it has not done so yet.
    pub fn is_to_go_back(&self) -> bool {
        self.runs.goes_back.is_some()
    }

    /// The step to which an operator wants the run to go back, if it has not done so yet.
    pub fn goes_back_to(&self) -> Option<Step> {
        self.runs.goes_back
    }

    pub(super) fn submit(
        &mut self,
        unix_ms: u64,
        run: &RunSpec,
    ) -> Result<EntryOutcome, Rejection> {
        match self.run() {
            Some(current) if self.is_training() && current == run => {}
            Some(current) if self.is_training() => {
                return Err(Rejection::OtherRun(current.name.clone()));
            }
            Some(_) if self.is_ephemeral() => return Err(Rejection::RunIsOver),
            _ => self.begin(unix_ms, run),
        }
        Ok(EntryOutcome::Run(self.run_id()))
    }

    /// Begins a run after a step that another cluster has trained. Generations follow the newest
    /// one that the run's store names.
    pub(super) fn submit_continued(
        &mut self,
        unix_ms: u64,
        run: &RunSpec,
        origin: &RunOrigin,
    ) -> Result<EntryOutcome, Rejection> {
        match self.run() {
            Some(current) if self.is_training() => {
                return Err(Rejection::OtherRun(current.name.clone()));
            }
            Some(_) if self.is_ephemeral() => return Err(Rejection::RunIsOver),
            _ => self.begin(unix_ms, run),
        }
        let (step, falls_back) = (origin.step(), origin.falls_back);
        self.runs.origin = Some(Origin { step, falls_back });
        self.checkpoints = Checkpoints::of_origin(origin);
        self.generation.follow_up_to(origin.generation);
        self.lines.begin_after(step);
        self.events.note(unix_ms, EventKind::Continued { step });
        Ok(EntryOutcome::Run(self.run_id()))
    }

    /// Why a run that another cluster has begun cannot go on, if `damaged` is the checkpoint that
    /// its members restore: it does not begin from the initial state without a word.
    pub(crate) fn cannot_resume(&self, damaged: CheckpointId) -> Option<FailReason> {
        let origin = self.runs.origin.as_ref()?;
        let listed = self.checkpoints.find(damaged).and_then(|listed| listed.damage.as_ref());
        let (step, damage) = (damaged.step, listed?.clone());
        if !origin.falls_back && step == origin.step {
            return Some(FailReason::OriginDamaged { step, damage });
        }
        let is_last = self.checkpoints.to_restore(step).is_err();
        is_last.then_some(FailReason::NoWholeCheckpoint { step, damage })
    }

    /// Begins a run. Nothing is left of the run before but what the state tells of it.
    fn begin(&mut self, unix_ms: u64, run: &RunSpec) {
        let id = RunId(self.applied);
        self.runs.begin(id, run);
        self.workers.begin_run();
        self.generation.begin_run();
        self.checkpoints = Checkpoints::default();
        let lineage = Lineage { run: id, rollback: Generation(0) };
        self.lines = LineHistory { lineage, ..LineHistory::default() };
        self.events.begin_run(id);
        self.events.note(unix_ms, EventKind::Submitted { run: run.name.clone() });
    }

    /// Ends this run, and no other that was begun since. The proposer knew so much of it.
    pub(super) fn cancel(
        &mut self,
        unix_ms: u64,
        run: RunId,
        so_far: &RunSoFar,
    ) -> Result<EntryOutcome, Rejection> {
        self.runs.must_run()?;
        let Some(spec) = self.run() else { return Err(Rejection::NoRun) };
        let figures = so_far.figures.clone();
        let figures = figures.unwrap_or(RunFigures { steps: spec.steps, ..RunFigures::default() });
        self.runs.must_be(run)?;
        let outcome = Outcome::Failed { name: None, reason: FailReason::Cancelled };
        self.end(unix_ms, outcome, figures, so_far.steps);
        Ok(EntryOutcome::Accepted)
    }

    /// The run is over, with these figures and settled steps, as far as the proposer knows them.
    pub(super) fn end(
        &mut self,
        unix_ms: u64,
        outcome: Outcome,
        figures: RunFigures,
        settled: Step,
    ) {
        let run = self.run();
        let stated = |run: &RunSpec| (run.name.clone(), run.steps, run.model.units());
        let (name, steps, units) = run.map_or_else(Default::default, stated);
        let (failure, hash) = match &outcome {
            Outcome::Running => return,
            Outcome::Complete(results) => {
                let model = figures.model.clone();
                self.events.note(unix_ms, EventKind::Complete { step: Step(steps), model });
                (None, state_hash(steps, results))
            }
            Outcome::Failed { reason, .. } => {
                self.events.note(unix_ms, EventKind::Failed { reason: reason.clone() });
                (Some(reason.clone()), None)
            }
        };
        let (id, steps) = (self.run_id(), settled.max(self.settled()));
        let divergence = self.divergence();
        let figures = RunFigures { ended_unix_ms: Some(unix_ms), ..figures };
        let past = PastRun { id, name, units, steps, failure, hash, divergence, figures };
        self.runs.end(outcome, past);
        self.checkpoints.progress = CheckpointProgress::default();
    }

    /// An operator wants the run to go back to this step: the next generation does.
    pub(super) fn want_rollback(
        &mut self,
        run: RunId,
        step: Step,
        known: Generation,
    ) -> Result<EntryOutcome, Rejection> {
        self.runs.must_run()?;
        self.runs.must_be(run)?;
        let rollback = self.lines.lineage.rollback;
        if known > Generation(0) && rollback > known {
            return Err(Rejection::GoneBack(rollback));
        }
        if self.record().is_none() {
            return Err(Rejection::NotBegun);
        }
        self.can_go_back_to(step)?;
        self.runs.goes_back = Some(step);
        Ok(EntryOutcome::Accepted)
    }
}
