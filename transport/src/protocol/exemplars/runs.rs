//! Examples of a run's specification.

use crate::protocol::chunk::Encoding;
use crate::protocol::figures::{RunFigures, Trouble};
use crate::protocol::outcome::EventKind;
use crate::protocol::reason::LossReason;
use crate::protocol::run::{
    BatchSpec, DataSpec, InitSpec, LossUnit, ModelSpec, OptimizerSpec, OptionMap, OptionValue,
    Precision, Rounding, RunSpec, ScheduleKind, TargetUnit, TokenType,
};
use crate::protocol::{
    CheckpointId, CheckpointSpec, Generation, ListedCheckpoint, OnFailure, RunOrigin, Step,
    WorkerId, WorkerLabel,
};

/// A small valid run specification.
pub fn run() -> RunSpec {
    RunSpec {
        name: "example".into(),
        seed: 1,
        steps: 10,
        min_workers: 1,
        start_workers: 2,
        model: ModelSpec {
            kind: "gpt".into(),
            layers: 1,
            heads: 2,
            width: 8,
            context: 4,
            vocabulary: ModelSpec::VOCABULARY,
            precision: Precision::F32,
            recompute: false,
            init: None,
            unit: TargetUnit::default(),
            loss_unit: LossUnit::default(),
            options: OptionMap::default(),
        },
        data: DataSpec {
            kind: "text".into(),
            path: "/text".into(),
            validation: 0.05,
            dtype: None,
            validation_every: 0,
        },
        batch: BatchSpec { data_shards: 4, micro_batch: 2, accumulate: 1 },
        optimizer: OptimizerSpec {
            kind: "adamw".into(),
            learning_rate: 1e-3,
            warmup_steps: 2,
            schedule: ScheduleKind::Cosine,
            floor: OptimizerSpec::FLOOR,
            weight_decay: 0.1,
            clip_norm: Some(1.0),
            betas: None,
            epsilon: None,
            momentum: None,
            options: OptionMap::default(),
        },
        all_gather: Encoding::F32,
        rounding: Rounding::Nearest,
        copies: 2,
        give_up_after_ms: None,
        hang_after_ms: RunSpec::HANG_AFTER_MS,
        checkpoint: None,
    }
}

/// As [`run`], with all that a run may leave out, and an option of each type.
pub(super) fn stated_run() -> RunSpec {
    let options = [
        ("flag", OptionValue::Flag(true)),
        ("integer", OptionValue::Integer(-3)),
        ("number", OptionValue::Number(0.5)),
        ("text", OptionValue::Text("cosine".into())),
    ];
    let options = OptionMap(options.map(|(name, value)| (name.into(), value)).into());
    let mut run = run();
    run.model.init = Some(InitSpec::unread("s3://bucket/weights".into()));
    (run.model.unit, run.model.loss_unit) = (TargetUnit::Sample, LossUnit::None);
    run.model.options = options.clone();
    run.data.dtype = Some(TokenType::U32);
    let optimizer = &mut run.optimizer;
    (optimizer.betas, optimizer.epsilon) = (Some([0.9, 0.95]), Some(1e-8));
    (optimizer.momentum, optimizer.options) = (Some(0.9), options);
    run.give_up_after_ms = Some(600_000);
    run.checkpoint = Some(CheckpointSpec {
        path: "/store".into(),
        every: 5,
        keep: 3,
        keep_every: 100,
        on_failure: OnFailure::Pause,
    });
    run
}

/// A run that goes on from the checkpoint of its step 8, and what its store has.
pub fn resumed_run() -> (RunOrigin, RunSpec) {
    let listed = |step, generation| {
        let mut listed = super::listed_checkpoint();
        let commit = &mut listed.commit;
        (commit.step, commit.generation) = (Step(step), Generation(generation));
        (commit.line.step, commit.line.generation) = (commit.step, commit.generation);
        listed
    };
    let checkpoints: Vec<ListedCheckpoint> = vec![listed(4, 1), listed(8, 2)];
    let undone = vec![CheckpointId { step: Step(10), generation: Generation(2) }];
    let origin = RunOrigin { checkpoints, undone, generation: Generation(3), falls_back: true };
    (origin, stated_run())
}

/// A loss of a worker that the state has not forgotten.
pub fn trouble() -> Trouble {
    let worker = WorkerId(7);
    let kind = EventKind::Lost { worker, reason: LossReason::Revoked, detect_ms: 60, pause_ms: 5 };
    let label = WorkerLabel { number: 2, worker, host: None };
    Trouble { unix_ms: 6, kind, labels: vec![label] }
}

/// A run in figures.
pub fn figures() -> RunFigures {
    RunFigures {
        steps: 9,
        world_size: 2,
        submitted_unix_ms: Some(1),
        ended_unix_ms: Some(2),
        first_loss: Some(5.5),
        loss: Some(2.5),
        validation_loss: Some(2.75),
        metric: Some(0.5),
        tokens_per_second: Some(1024.0),
        eta_seconds: Some(3.0),
        generations: 4,
        steps_redone: 1,
        workers_lost: 3,
        rollbacks: 5,
        longest_stall_ms: Some(60.0),
        model: Some(super::place()),
        trouble: Some(trouble()),
    }
}
