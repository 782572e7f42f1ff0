//! From master weights to the parameters that travel, and that every member computes with.

use everstep_kernels::reduce;
use everstep_transport::protocol::{self, Encoding, RunSpec};

/// How a run rounds weights: a function of a weight and its place alone. So all owners of a shard
/// compute with the same values as the members that get them from the primary, when the values were
/// made and at any time after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Weights stay as they are.
    None,
    /// To the nearest bf16.
    Nearest,
    /// To one of the two neighbours in bf16, at random.
    Stochastic {
        /// The seed of the run.
        seed: u64,
    },
}

impl Rounding {
    /// The rounding of a run.
    pub fn of(run: &RunSpec) -> Self {
        match (run.all_gather, run.rounding) {
            (Encoding::Bf16, protocol::Rounding::Nearest) => Self::Nearest,
            (Encoding::Bf16, protocol::Rounding::Stochastic) => Self::Stochastic { seed: run.seed },
            _ => Self::None,
        }
    }

    /// Rounds weights. The first one is at `start` in the flat vector.
    pub fn round(self, start: usize, values: &mut [f32]) {
        match self {
            Self::None => {}
            Self::Nearest => reduce::round_bf16(values),
            Self::Stochastic { seed } => {
                reduce::round_bf16_stochastically(values, seed, start as u64);
            }
        }
    }
}
