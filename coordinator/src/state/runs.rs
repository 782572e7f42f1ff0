//! One run after the other: how each begins, settles its steps, and ends.
//!
//! A cluster trains one run at a time. Worker ids and the numbers of generations continue from run
//! to run. So an entry or a message of an older run is never taken for one of the next run.

use std::collections::{BTreeSet, VecDeque};

use everstep_transport::protocol::figures::RunFigures;
use everstep_transport::protocol::outcome::{EventKind, Outcome, state_hash};
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{Generation, HistoryEvent, Lineage, RunId, RunSpec, Step};
use rkyv::{Archive, Deserialize, Serialize};

use super::probes::Probes;
use super::{AwaitedOwners, Checkpoints, EntryOutcome, LineHistory, State};

/// How many of the newest finished runs the state still tells of.
const REMEMBERED: usize = 100;

/// A run that is over.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct PastRun {
    /// The index of the entry that submitted the run.
    pub id: RunId,
    /// The name in the run's specification.
    pub name: String,
    /// How many of its steps are settled.
    pub steps: Step,
    /// Why it failed, if it did.
    pub failure: Option<String>,
    /// The state hash, if it is complete.
    pub hash: Option<[u8; 32]>,
    /// Why its bits are not those of any other such run, if they are not.
    pub divergence: Option<String>,
    /// How the run did, as far as the proposer of its end knew.
    pub figures: RunFigures,
}

impl State {
    /// The run's id: the index of the entry that submitted it. 0 before the first run.
    pub fn run_id(&self) -> RunId {
        self.run_id
    }

    /// The newest runs that are over, in the order of their ends.
    pub fn past_runs(&self) -> &VecDeque<PastRun> {
        &self.past_runs
    }

    pub(super) fn must_run(&self) -> Result<(), Rejection> {
        if self.outcome == Outcome::Running { Ok(()) } else { Err(Rejection::RunIsOver) }
    }

    /// Refuses an entry of another run: it may come into the log after the end of its own run.
    pub(super) fn must_be(&self, run: RunId) -> Result<(), Rejection> {
        if self.run_id == run { Ok(()) } else { Err(Rejection::NotTheRun(run)) }
    }

    pub(super) fn submit(
        &mut self,
        unix_ms: u64,
        run: &RunSpec,
    ) -> Result<EntryOutcome, Rejection> {
        match &self.run {
            Some(current) if self.outcome == Outcome::Running && current == run => {}
            Some(current) if self.outcome == Outcome::Running => {
                let name = &current.name;
                return Err(Rejection::OtherRun(name.clone()));
            }
            Some(_) if self.ephemeral => return Err(Rejection::RunIsOver),
            _ => self.begin(unix_ms, run),
        }
        Ok(EntryOutcome::Run(self.run_id))
    }

    /// Begins a run. Nothing is left of the run before but what the state tells of it.
    fn begin(&mut self, unix_ms: u64, run: &RunSpec) {
        (self.run_id, self.run) = (self.applied, Some(run.clone()));
        (self.run_fingerprint, self.probes) = (None, Probes::default());
        self.workers.clear();
        self.gone.clear();
        self.numbers.retain(|name, _| self.nodes.contains_key(name));
        self.nodes.clear();
        self.unreachable.clear();
        (self.record, self.waiting_since, self.goes_back) = (None, None, None);
        self.checkpoints = Checkpoints::default();
        (self.reported_dead, self.awaited) = (BTreeSet::new(), AwaitedOwners::default());
        let lineage = Lineage { run: self.run_id, rollback: Generation(0) };
        self.lines = LineHistory { lineage, ..LineHistory::default() };
        self.outcome = Outcome::Running;
        self.new_events.push(HistoryEvent::Run(self.run_id));
        self.note(unix_ms, EventKind::Submitted { run: run.name.clone() });
    }

    /// Ends this run, and no other that was begun since. The steps up to `settled` are settled.
    pub(super) fn cancel(
        &mut self,
        unix_ms: u64,
        run: RunId,
        settled: Step,
    ) -> Result<EntryOutcome, Rejection> {
        self.must_run()?;
        if self.run.is_none() {
            return Err(Rejection::NoRun);
        }
        self.must_be(run)?;
        let outcome = Outcome::Failed { name: None, reason: "it was cancelled".into() };
        let steps = self.run.as_ref().map_or(0, |run| run.steps);
        self.end(unix_ms, outcome, RunFigures { steps, ..RunFigures::default() }, settled);
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
        let run = self.run.as_ref();
        let (name, steps) = run.map_or((String::new(), 0), |run| (run.name.clone(), run.steps));
        let (failure, hash) = match &outcome {
            Outcome::Running => return,
            Outcome::Complete(results) => {
                let model = figures.model.clone();
                self.note(unix_ms, EventKind::Complete { step: Step(steps), model });
                (None, state_hash(steps, results))
            }
            Outcome::Failed { reason, .. } => {
                self.note(unix_ms, EventKind::Failed { reason: reason.clone() });
                (Some(reason.clone()), None)
            }
        };
        let (id, steps) = (self.run_id, settled.max(self.settled()));
        let divergence = self.divergence();
        let figures = RunFigures { ended_unix_ms: Some(unix_ms), ..figures };
        let past = PastRun { id, name, steps, failure, hash, divergence, figures };
        self.past_runs.push_back(past);
        if self.past_runs.len() > REMEMBERED {
            self.past_runs.pop_front();
        }
        (self.outcome, self.goes_back) = (outcome, None);
    }

    /// An operator wants the run to go back to this step: the next generation does.
    pub(super) fn want_rollback(
        &mut self,
        run: RunId,
        step: Step,
        known: Generation,
    ) -> Result<EntryOutcome, Rejection> {
        self.must_run()?;
        self.must_be(run)?;
        let rollback = self.lines.lineage.rollback;
        if known > Generation(0) && rollback > known {
            return Err(Rejection::GoneBack(rollback));
        }
        if self.record.is_none() {
            return Err(Rejection::NotBegun);
        }
        self.can_go_back_to(step)?;
        self.goes_back = Some(step);
        Ok(EntryOutcome::Accepted)
    }

    /// Whether an operator wants the run to go back, and it has not done so yet.
    pub fn is_to_go_back(&self) -> bool {
        self.goes_back.is_some()
    }

    /// The step to which an operator wants the run to go back, if it has not done so yet.
    pub fn goes_back_to(&self) -> Option<Step> {
        self.goes_back
    }
}
