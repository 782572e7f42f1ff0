//! What a run specification means for the optimizer and its schedule.

use everstep_kernels::optimizer::{InvalidSetting, Optimizer, Rule};
use everstep_kernels::schedule::{Kind, Schedule};
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::run::{OptimizerKind, ScheduleKind};

/// The learning rate of every step of the run.
pub fn schedule(run: &RunSpec) -> Schedule {
    let kind = match run.optimizer.schedule {
        ScheduleKind::Constant => Kind::Constant,
        ScheduleKind::Cosine => Kind::Cosine,
        ScheduleKind::Linear => Kind::Linear,
    };
    Schedule {
        kind,
        warmup_steps: run.optimizer.warmup_steps,
        steps: run.steps,
        learning_rate: run.optimizer.learning_rate as f32,
        floor: 0.0,
    }
}

/// The run's optimizer, with the settings that the papers propose for what the specification does
/// not name.
pub fn optimizer(run: &RunSpec) -> Result<Optimizer, InvalidSetting> {
    let rule = match run.optimizer.kind {
        OptimizerKind::Adamw => Rule::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8 },
        OptimizerKind::Sgd => Rule::Sgd { momentum: 0.9 },
        OptimizerKind::Lion => Rule::Lion { beta1: 0.9, beta2: 0.99 },
    };
    Optimizer::new(rule, run.optimizer.weight_decay as f32)
}
