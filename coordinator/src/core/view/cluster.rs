//! How a cluster stands at one moment, for a reader.

use std::time::Duration;

use everstep_transport::protocol::outcome::{Outcome, RunPause, WaitNotice, Waiting, WorkerView};
use everstep_transport::protocol::question::RunView;
use everstep_transport::protocol::reason::FailReason;
use everstep_transport::protocol::{
    Generation, MetricsLine, ModelAwaited, ModelPlace, NodeName, RunSpec, Step, Term, WorkerId,
};
use everstep_transport::time::Time;

use super::Core;
use crate::core::{CheckpointStoreError, RestoreProgress, Standstill, UnableWorker};
use crate::run_status::{ended, run_status};
use crate::state::PastRun;

/// How a cluster stands.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterView {
    /// The term in which this coordinator leads, if it does.
    pub leads: Option<Term>,
    /// The run, once an operator has submitted one.
    pub run: Option<RunSpec>,
    /// The current generation. 0 before the first.
    pub generation: Generation,
    /// How many members the generation has.
    pub world_size: u32,
    /// Whether a change of generation is under way.
    pub changing: bool,
    /// The line of the newest settled step.
    pub line: Option<MetricsLine>,
    /// The workers that are there, and the newest of those that are gone, by id.
    pub workers: Vec<WorkerView>,
    /// What the run waits for, where it waits.
    pub waiting: Option<Waiting>,
    /// Why the run is paused, if it is.
    pub paused: Option<RunPause>,
    /// Whether the run rests because all of its workers are to leave.
    pub closes: bool,
    /// The owners that the run waits for, since no other worker holds their parameter shards.
    pub owners_awaited: Option<WaitNotice>,
    /// Why the model of a trained run waits.
    pub model_awaited: Option<ModelAwaited>,
    /// Why the run's store does not take or give what a worker wants.
    pub store_error: Option<CheckpointStoreError>,
    /// The step of the newest checkpoint that can be restored. 0 if there is none.
    pub checkpoint: Step,
    /// Since when the run has to go back and cannot, as each of its checkpoints is damaged.
    /// Milliseconds of Unix time.
    pub lacks_checkpoint: Option<u64>,
    /// The checkpoint that the members restore: no later step was committed since.
    pub restores: Option<RestoreProgress>,
    /// Why no device of the run gets on, while none does.
    pub standstill: Option<Standstill>,
    /// Why workers cannot compute the run. Before it has begun these are all such workers, later
    /// only those with a place that is the reason.
    pub unable: Vec<(NodeName, UnableWorker)>,
    /// How many workers wait for a run, a thousand at most. While one is under way, these are the
    /// workers that cannot compute it.
    pub idle: usize,
    /// How many workers build the model of the run, a thousand at most.
    pub building: usize,
    /// How many workers are silent, and for how long, if so many fell silent together that the
    /// coordinator's own network is the likelier cause.
    pub outage: Option<(usize, Duration)>,
    /// The wall clock, milliseconds of Unix time.
    pub now_unix_ms: u64,
    /// Pairs of members that cannot reach each other, of which neither can be left out.
    pub unreachable: Vec<(WorkerId, WorkerId)>,
    /// Why the run's bits are not those of any other such run, if they are not.
    pub divergence: Option<String>,
    /// How the run ended, if it did.
    pub end: Option<RunEnd>,
    /// How many messages this coordinator ignored, since their sender might not send them, or not
    /// then.
    pub ignored: u64,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// With its last step, and its model durable at this place, as far as the log says.
    Complete(Option<ModelPlace>),
    /// Before its last step, for this reason.
    Failed(String),
}

impl ClusterView {
    /// The newest settled step, 0 for none.
    pub fn step(&self) -> Step {
        self.line.as_ref().map_or(Step(0), |line| line.step)
    }

    /// The time since a moment, which is given in milliseconds of Unix time.
    pub fn since(&self, unix_ms: u64) -> Duration {
        Duration::from_millis(self.now_unix_ms.saturating_sub(unix_ms))
    }

    /// Each thing that the run may wait for, by name, and for how long it has waited. A pause is no
    /// wait: no alert is to fire.
    pub fn waits(&self) -> [(&'static str, Option<Duration>); 5] {
        let passed = |since: u64| self.since(since);
        let owners = self.owners_awaited.as_ref().map(|awaited| awaited.since_unix_ms);
        let model = self.model_awaited.as_ref().map(|awaited| awaited.since_unix_ms);
        let away = self.store_error.as_ref().filter(|error| error.waits);
        let store = model.or(away.map(|error| error.since_unix_ms)).or(self.lacks_checkpoint);
        let devices = self.standstill.as_ref().map(|standstill| standstill.since_unix_ms);
        [
            ("workers", self.waiting.map(|waiting| passed(waiting.since_unix_ms))),
            ("owners", owners.map(passed)),
            ("store", store.map(passed)),
            ("devices", devices.map(passed)),
            ("network", self.outage.map(|(_, span)| span)),
        ]
    }
}

impl Core {
    /// How the cluster stands.
    pub fn cluster_view(&self, now: Time) -> ClusterView {
        ClusterView {
            leads: self.leader(),
            run: self.state.run().cloned(),
            generation: self.state.generation(),
            world_size: self.state.record().map_or(0, |record| record.world_size()),
            changing: !self.change.is_steady(),
            line: self.lines.recent().next_back().cloned(),
            workers: self.views(now),
            waiting: self.waiting(),
            paused: self.paused(),
            closes: self.closes(),
            owners_awaited: self.owners_awaited(),
            model_awaited: self.model_awaited(),
            store_error: self.store_error(),
            checkpoint: self.newest_checkpoint(),
            lacks_checkpoint: self.change.lacks_checkpoint().map(|since| self.unix_ms(since)),
            restores: self.restore_progress(),
            standstill: self.standstill(),
            idle: self.idle().len(),
            building: self.building().len(),
            unable: self.unable(),
            outage: self.health.detector.outage(now).filter(|_| self.running()),
            now_unix_ms: self.unix_ms(now),
            unreachable: self.unreachable(now),
            divergence: self.state.divergence().map(|it| it.to_string()),
            end: match self.state.outcome() {
                Outcome::Running => None,
                Outcome::Complete(_) => {
                    let ended = self.state.past_runs().back();
                    Some(RunEnd::Complete(ended.and_then(|run| run.figures.model.clone())))
                }
                Outcome::Failed { reason, .. } => Some(RunEnd::Failed(reason.to_string())),
            },
            ignored: self.ignored(),
        }
    }

    /// The newest runs that are over, in the order of their ends, and last the one under way.
    pub fn runs(&self, now: Time) -> Vec<RunView> {
        let mut runs: Vec<RunView> = self.state.past_runs().iter().map(past).collect();
        if let Some(run) = self.state.run().filter(|_| self.running()) {
            let (state, status) = run_status(&self.cluster_view(now));
            let (id, name, step) = (self.state.run_id(), run.name.clone(), self.newest_step());
            let divergence = self.state.divergence().map(|it| it.to_string());
            let (generation, units) = (self.state.generation(), run.model.units());
            runs.push(RunView {
                id,
                name,
                state: state.into(),
                status,
                step,
                generation,
                hash: None,
                divergence,
                units,
                figures: self.figures(),
            });
        }
        runs
    }

    /// The newest step of which the line is here, or is lost.
    pub fn newest_step(&self) -> Step {
        self.lines.reach()
    }
}

fn past(run: &PastRun) -> RunView {
    let PastRun { id, ref name, units, steps: step, ref failure, hash, .. } = *run;
    let PastRun { divergence, figures, .. } = run;
    let complete = || RunEnd::Complete(figures.model.clone());
    let failed = |reason: &FailReason| RunEnd::Failed(reason.to_string());
    let end = failure.as_ref().map_or_else(complete, failed);
    let (state, status) = ended(&end, step);
    let divergence = divergence.as_ref().map(ToString::to_string);
    let (name, state) = (name.clone(), state.into());
    let (generation, figures) = (Generation(0), figures.clone());
    RunView { id, name, state, status, step, generation, hash, divergence, units, figures }
}
