//! The parameters before the first step: those that follow from the seed, or weights from
//! elsewhere.
//!
//! A device reads weights from elsewhere when a record begins with them: the first record of a run,
//! or one that goes back to step 0. It reads all of them, and compares them with the digest in the
//! run's specification, so no worker begins with other bytes. A worker that joins, or that restores
//! a checkpoint, does not read them: its parameters come from owners or from the store. So a run
//! that has left step 0 needs these weights no more.
//!
//! A device that could not read the weights gives up its place. The next build of its worker reads
//! them first, and fails until they are there: otherwise that worker would enter one generation
//! after the other in vain.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use everstep_checkpoint::import::{ImportError, InitialWeights, WeightsPlace};
use everstep_checkpoint::store::{Environment, ErrorKind};
use everstep_kernels::compute::Compute;
use everstep_kernels::layout::Layout;
use everstep_kernels::reduce;
use everstep_transport::protocol::run::InitSpec;
use everstep_transport::protocol::{RunSpec, Shard};

use crate::registry::BuildError;

/// The weights with which a run begins.
#[derive(Clone)]
pub enum InitialParameters {
    /// They follow from this seed.
    Seed(u64),
    /// Those in a file that the model brings along, with their digest.
    Brought(Arc<InitialWeights>, InitSpec),
    /// Those at the place that the run states. They may be gone.
    Stated(InitSpec),
}

impl InitialParameters {
    /// Finds the initial parameters of a run's model: in the file that the model brings, or where
    /// the run says.
    ///
    /// # Errors
    /// If the model brings weights that do not fit it.
    pub fn of(run: &RunSpec, compute: &dyn Compute) -> Result<Self, BuildError> {
        let Some(init) = run.model.init.clone() else { return Ok(Self::Seed(run.seed)) };
        let Some(own) = compute.initial_weights() else { return Ok(Self::Stated(init)) };
        match open(&own.to_string_lossy(), compute.layout()) {
            Ok(weights) => Ok(Self::Brought(Arc::new(weights), init)),
            Err(error) if error.is_transient() => Err(BuildError::Place(error.to_string())),
            Err(error) => Err(BuildError::Run(error.to_string())),
        }
    }

    /// Whether a build loads them into the model. All workers of a run load the same ones: a build
    /// computes the first micro-batch with them, and states a digest of the result.
    pub fn is_at_hand(&self) -> bool {
        !matches!(self, Self::Stated(_))
    }

    /// Hands out all of them, piece by piece in their order: where a piece begins, and its values.
    ///
    /// # Errors
    /// If weights cannot be read, or are not those that the run was submitted with. The pieces so
    /// far are void then.
    pub fn read_all(
        &self,
        layout: &Layout,
        take: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), InitError> {
        match self {
            Self::Seed(seed) => {
                for shard in 0..reduce::shard_count(layout.count()) {
                    let range = reduce::shard_range(layout.count(), shard);
                    let mut values = vec![0.0; range.len()];
                    layout.init(*seed, range.clone(), &mut values);
                    take(range.start, &mut values);
                }
                Ok(())
            }
            Self::Brought(weights, init) => read_verified(weights, init, take),
            Self::Stated(init) => read_verified(&open(&init.path, layout)?, init, take),
        }
    }

    /// The values of these shards. Hands out all parameters besides, as [`Self::read_all`] does.
    ///
    /// # Errors
    /// As [`Self::read_all`].
    pub fn read_all_and_keep(
        &self,
        layout: &Layout,
        shards: impl Iterator<Item = Shard>,
        take: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<BTreeMap<Shard, Vec<f32>>, InitError> {
        let range = |shard: Shard| reduce::shard_range(layout.count(), shard.0 as usize);
        let mut kept: BTreeMap<Shard, Vec<f32>> =
            shards.map(|shard| (shard, Vec::with_capacity(range(shard).len()))).collect();
        self.read_all(layout, &mut |start, values| {
            for (shard, kept) in &mut kept {
                let Range { start: first, end } = range(*shard);
                let [first, end] = [first, end].map(|at| at.clamp(start, start + values.len()));
                kept.extend_from_slice(&values[first - start..end - start]);
            }
            take(start, values);
        })?;
        Ok(kept)
    }

    /// The values of these shards alone. None if all must be read, since their digest is that of
    /// all.
    ///
    /// # Errors
    /// If weights cannot be read any more.
    pub fn read_shards(
        &self,
        layout: &Layout,
        shards: impl Iterator<Item = Shard>,
    ) -> Option<Result<BTreeMap<Shard, Vec<f32>>, InitError>> {
        let read = |shard: Shard| {
            let range = reduce::shard_range(layout.count(), shard.0 as usize);
            let mut values = vec![0.0; range.len()];
            match self {
                Self::Brought(weights, _) => weights.read(range, &mut values)?,
                Self::Seed(seed) => layout.init(*seed, range, &mut values),
                Self::Stated(_) => unreachable!("these are not at hand"),
            }
            Ok((shard, values))
        };
        self.is_at_hand().then(|| shards.map(read).collect())
    }
}

fn open(path: &str, layout: &Layout) -> Result<InitialWeights, InitError> {
    let place = path.parse::<WeightsPlace>().map_err(ImportError::from)?;
    Ok(InitialWeights::open(&place, &Environment::of_process(), layout)?)
}

fn read_verified(
    weights: &InitialWeights,
    init: &InitSpec,
    take: &mut dyn FnMut(usize, &mut [f32]),
) -> Result<(), InitError> {
    let digest = weights.digest(take)?.to_string();
    match digest == init.digest {
        true => Ok(()),
        false => Err(InitError::Other { init: init.clone(), digest }),
    }
}

/// A run at step 0 cannot begin with its initial weights.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// They cannot be read, or do not fit the model.
    #[error(
        "the initial weights (model.init) cannot be used: {0}. A run at step 0 begins with them: \
         bring them back, or submit the run again"
    )]
    Unusable(#[from] ImportError),
    /// There are other weights in their place.
    #[error(
        "the initial weights in {} are not those that the run was submitted with: their digest is \
         {digest}, and the run's is {}. Bring those weights back, or submit the run again",
        init.path, init.digest
    )]
    Other {
        /// What the run states.
        init: InitSpec,
        /// The digest of the weights that are there.
        digest: String,
    },
}

impl InitError {
    /// Whether a store does not answer now, and may do so later.
    fn is_transient(&self) -> bool {
        matches!(self, Self::Unusable(ImportError::Store(error)) if error.kind == ErrorKind::Retry)
    }
}
