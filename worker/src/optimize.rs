//! What a run specification means for the schedule of its optimizer.

use std::sync::Arc;

use everstep_kernels::schedule::{Kind, LearningRateSchedule, LearningRates};
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::run::ScheduleKind;

/// The learning rates of the run: those of the `table` that its optimizer brings, or the schedule
/// of its specification.
pub fn rates(run: &RunSpec, table: Option<Arc<[f32]>>) -> LearningRates {
    table.map_or_else(|| LearningRates::Curve(schedule(run)), LearningRates::Table)
}

/// The learning rate of every step of the run, as its specification states it.
pub fn schedule(run: &RunSpec) -> LearningRateSchedule {
    let kind = match run.optimizer.schedule {
        ScheduleKind::Constant => Kind::Constant,
        ScheduleKind::Cosine => Kind::Cosine,
        ScheduleKind::Linear => Kind::Linear,
    };
    LearningRateSchedule {
        kind,
        warmup_steps: run.optimizer.warmup_steps,
        steps: run.steps,
        learning_rate: run.optimizer.learning_rate as f32,
        floor: (run.optimizer.learning_rate * run.optimizer.floor) as f32,
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::exemplars;

    use super::*;

    /// The rate of the last step, as a share of the full one.
    fn last(kind: ScheduleKind, steps: u64, floor: Option<f64>) -> f32 {
        let mut run = exemplars::run();
        (run.steps, run.optimizer.schedule, run.optimizer.warmup_steps) = (steps, kind, 0);
        run.optimizer.floor = floor.unwrap_or(run.optimizer.floor);
        schedule(&run).rate(steps) / run.optimizer.learning_rate as f32
    }

    #[test]
    fn the_last_step_changes_weights_whatever_the_schedule() {
        for steps in [1, 2, 400] {
            for kind in [ScheduleKind::Linear, ScheduleKind::Cosine] {
                let share = last(kind, steps, None);
                assert!((share - 0.1).abs() < 1e-6, "{kind:?} of {steps} steps: {share}");
                assert_eq!(last(kind, steps, Some(0.0)), 0.0, "as a run may ask for");
            }
            assert_eq!(last(ScheduleKind::Constant, steps, None), 1.0);
        }
    }
}
