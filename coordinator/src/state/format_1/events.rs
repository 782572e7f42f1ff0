//! Events and ends of runs of format 1, which held sentences in place of reasons.

use everstep_transport::protocol::figures::RunFigures;
use everstep_transport::protocol::outcome::{Event, EventKind, Inability, Outcome, WorkerResult};
use everstep_transport::protocol::reason::{
    FailReason, LossReason, RollbackReason, StandstillReason,
};
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::run::Units;
use everstep_transport::protocol::{
    Cause, CoordinatorId, Generation, ModelPlace, NodeName, RunId, Shard, Step, Term, WorkerId,
    WriteFailure,
};
use rkyv::{Archive, Deserialize, Serialize};

use super::record::RecordV1;
use crate::state::probes::Divergence;
use crate::state::{Change, Loss, PastRun};

#[derive(Archive, Serialize, Deserialize)]
pub(crate) struct EventV1 {
    number: u64,
    unix_ms: u64,
    kind: EventKindV1,
}

impl From<EventV1> for Event {
    fn from(event: EventV1) -> Self {
        let EventV1 { number, unix_ms, kind } = event;
        Self { number, unix_ms, kind: kind.into() }
    }
}

#[derive(Archive, Serialize, Deserialize)]
pub(crate) enum EventKindV1 {
    Submitted {
        run: String,
    },
    Registered {
        worker: WorkerId,
        name: NodeName,
        number: u32,
    },
    Refused {
        name: NodeName,
        reason: String,
    },
    Leading {
        term: Term,
        coordinator: CoordinatorId,
    },
    Generation {
        generation: Generation,
        cause: Cause,
        workers: Vec<WorkerId>,
        at_step: Step,
        redone: bool,
        waiting: bool,
        under_protected: Vec<(Shard, u32)>,
    },
    Joined {
        worker: WorkerId,
    },
    Draining {
        worker: WorkerId,
    },
    Left {
        worker: WorkerId,
    },
    Lost {
        worker: WorkerId,
        reason: String,
        detect_ms: u64,
        pause_ms: u64,
    },
    Unreachable {
        workers: (WorkerId, WorkerId),
    },
    Rollback {
        from: Step,
        to: Step,
        reason: String,
    },
    Recovered {
        coordinator: CoordinatorId,
    },
    Unable {
        name: NodeName,
        reason: String,
        inability: Inability,
    },
    Unwritten {
        failure: WriteFailure,
    },
    NoStore,
    LinesLost {
        from: Step,
        to: Step,
    },
    Complete {
        step: Step,
        model: Option<ModelPlace>,
    },
    Failed {
        reason: String,
    },
    Standstill {
        reason: String,
    },
}

impl From<EventKindV1> for EventKind {
    fn from(kind: EventKindV1) -> Self {
        use EventKindV1 as V1;
        match kind {
            V1::Submitted { run } => Self::Submitted { run },
            V1::Registered { worker, name, number } => Self::Registered { worker, name, number },
            V1::Refused { name, reason } => {
                Self::Refused { name, reason: Rejection::Words(reason) }
            }
            V1::Leading { term, coordinator } => Self::Leading { term, coordinator },
            V1::Generation {
                generation,
                cause,
                workers,
                at_step,
                redone,
                waiting,
                under_protected,
            } => Self::Generation {
                generation,
                cause,
                workers,
                at_step,
                redone,
                waiting,
                under_protected,
            },
            V1::Joined { worker } => Self::Joined { worker },
            V1::Draining { worker } => Self::Draining { worker },
            V1::Left { worker } => Self::Left { worker },
            V1::Lost { worker, reason, detect_ms, pause_ms } => {
                Self::Lost { worker, reason: LossReason::Words(reason), detect_ms, pause_ms }
            }
            V1::Unreachable { workers } => Self::Unreachable { workers },
            V1::Rollback { from, to, reason } => {
                Self::Rollback { from, to, reason: RollbackReason::Words(reason) }
            }
            V1::Recovered { coordinator } => Self::Recovered { coordinator },
            V1::Unable { name, reason, inability } => Self::Unable { name, reason, inability },
            V1::Unwritten { failure } => Self::Unwritten { failure },
            V1::NoStore => Self::NoStore,
            V1::LinesLost { from, to } => Self::LinesLost { from, to },
            V1::Complete { step, model } => Self::Complete { step, model },
            V1::Failed { reason } => Self::Failed { reason: FailReason::Words(reason) },
            V1::Standstill { reason } => {
                Self::Standstill { reason: StandstillReason::Words(reason) }
            }
        }
    }
}

#[derive(Archive, Serialize, Deserialize)]
pub(super) enum RunOutcomeV1 {
    Running,
    Complete(Vec<WorkerResult>),
    Failed { name: Option<NodeName>, reason: String },
}

impl From<RunOutcomeV1> for Outcome {
    fn from(outcome: RunOutcomeV1) -> Self {
        match outcome {
            RunOutcomeV1::Running => Self::Running,
            RunOutcomeV1::Complete(results) => Self::Complete(results),
            RunOutcomeV1::Failed { name, reason } => {
                Self::Failed { name, reason: FailReason::Words(reason) }
            }
        }
    }
}

#[derive(Archive, Serialize, Deserialize)]
pub(super) struct PastRunV1 {
    id: RunId,
    name: String,
    steps: Step,
    failure: Option<String>,
    hash: Option<[u8; 32]>,
    divergence: Option<String>,
    figures: RunFiguresV1,
}

impl From<PastRunV1> for PastRun {
    fn from(run: PastRunV1) -> Self {
        let PastRunV1 { id, name, steps, failure, hash, divergence, figures } = run;
        let failure = failure.map(FailReason::Words);
        let divergence = divergence.map(Divergence::Words);
        let units = Units::default();
        let figures = figures.into();
        Self { id, name, units, steps, failure, hash, divergence, figures }
    }
}

#[derive(Archive, Serialize, Deserialize)]
pub(super) struct ChangeV1 {
    record: RecordV1,
    lost: Vec<LossV1>,
    left: Vec<WorkerId>,
    redone: bool,
    unreachable: Vec<(WorkerId, WorkerId)>,
    rollback: Option<(Step, String)>,
}

impl From<ChangeV1> for Change {
    fn from(change: ChangeV1) -> Self {
        let ChangeV1 { record, lost, left, redone, unreachable, rollback } = change;
        let lost = lost.into_iter().map(Into::into).collect();
        let rollback = rollback.map(|(from, reason)| (from, RollbackReason::Words(reason)));
        let record = record.into();
        Self { record, lost, left, redone, unreachable, rollback }
    }
}

#[derive(Archive, Serialize, Deserialize)]
pub(super) struct LossV1 {
    worker: WorkerId,
    reason: String,
    detect_ms: u64,
    pause_ms: u64,
}

impl From<LossV1> for Loss {
    fn from(loss: LossV1) -> Self {
        let LossV1 { worker, reason, detect_ms, pause_ms } = loss;
        Self { worker, reason: LossReason::Words(reason), detect_ms, pause_ms }
    }
}

/// The figures of format 1 have trouble as a sentence.
#[derive(Archive, Serialize, Deserialize)]
pub(super) struct RunFiguresV1 {
    steps: u64,
    world_size: u32,
    submitted_unix_ms: Option<u64>,
    ended_unix_ms: Option<u64>,
    first_loss: Option<f64>,
    loss: Option<f64>,
    validation_loss: Option<f64>,
    metric: Option<f64>,
    tokens_per_second: Option<f64>,
    eta_seconds: Option<f64>,
    generations: u32,
    steps_redone: u32,
    workers_lost: u32,
    rollbacks: u32,
    longest_stall_ms: Option<f64>,
    model: Option<ModelPlace>,
    trouble: Option<TroubleV1>,
}

#[derive(Archive, Serialize, Deserialize)]
struct TroubleV1 {
    unix_ms: u64,
    words: String,
}

impl From<RunFiguresV1> for RunFigures {
    /// A sentence says nothing of which event it is, so the trouble of a run of format 1 is gone.
    /// The history has its event.
    fn from(figures: RunFiguresV1) -> Self {
        Self {
            steps: figures.steps,
            world_size: figures.world_size,
            submitted_unix_ms: figures.submitted_unix_ms,
            ended_unix_ms: figures.ended_unix_ms,
            first_loss: figures.first_loss,
            loss: figures.loss,
            validation_loss: figures.validation_loss,
            metric: figures.metric,
            tokens_per_second: figures.tokens_per_second,
            eta_seconds: figures.eta_seconds,
            generations: figures.generations,
            steps_redone: figures.steps_redone,
            workers_lost: figures.workers_lost,
            rollbacks: figures.rollbacks,
            longest_stall_ms: figures.longest_stall_ms,
            model: figures.model,
            trouble: None,
        }
    }
}
