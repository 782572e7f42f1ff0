//! Examples of what members say about a step.

use super::{GENERATION, STEP};
use crate::protocol::ids::{DataShard, Shard};
use crate::protocol::outcome::PartEvaluation;
use crate::protocol::scalar::{Scalar, ScalarName, ScalarSum};
use crate::protocol::step::{Commit, Contribution, Decision, LossScale, MetricsLine, Prepared};

pub(super) fn evaluation() -> PartEvaluation {
    PartEvaluation { part: DataShard(0), samples: 4, loss: 2.0, metric: Some(0.5) }
}

fn scalar() -> Scalar {
    Scalar { name: ScalarName::parse("accuracy").expect("a valid name"), value: 0.5 }
}

/// A line without anything that only later formats have.
pub(super) fn line() -> MetricsLine {
    MetricsLine { step: STEP, generation: GENERATION, world_size: 2, ..MetricsLine::default() }
}

/// A line with everything.
pub(super) fn line_with_scalars() -> MetricsLine {
    let scalars = vec![scalar()];
    MetricsLine { validation_loss: Some(2.25), metric: Some(0.5), scalars, ..line() }
}

pub(super) fn commit() -> Commit {
    Commit {
        generation: GENERATION,
        step: STEP,
        norm: 0.5,
        loss: 2.5,
        decision: Decision::Apply,
        gradient_factor: 1.0,
        updates: 5,
        loss_scale: LossScale { exponent: 15, good: 2 },
        hold: false,
        line: line(),
    }
}

pub(super) fn vote() -> Prepared {
    Prepared {
        generation: GENERATION,
        step: STEP,
        squares: vec![(Shard(0), 1.5)],
        contributions: vec![Contribution {
            data_shard: DataShard(1),
            loss: 2.5,
            weight: 7.0,
            samples: vec![4, 2],
            samples_lost: 8,
            samples_repeated: 9,
            evaluation: Some(evaluation()),
            scalars: vec![ScalarSum { name: scalar().name, sum: 3.5, weight: 7.0 }],
        }],
        digests: vec![(Shard(0), 6)],
        compute_seconds: 0.25,
        commit_seconds: 0.125,
    }
}
