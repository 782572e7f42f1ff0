//! The parameters before the first step: those that follow from the seed, or weights from
//! elsewhere.
//!
//! A worker reads all weights once when it builds its device, and compares them with the digest in
//! the run's specification. So no worker begins with other bytes. If the run goes back to step 0,
//! each owner reads its shards again.

use std::ops::Range;
use std::sync::Arc;

use everstep_checkpoint::import::{ImportError, InitialWeights, WeightsPlace};
use everstep_checkpoint::store::{Environment, ErrorKind};
use everstep_kernels::compute::Compute;
use everstep_kernels::layout::Layout;
use everstep_kernels::reduce;
use everstep_transport::protocol::RunSpec;

use crate::registry::BuildError;

/// The weights with which a run begins.
#[derive(Clone)]
pub enum InitialParameters {
    /// They follow from this seed.
    Seed(u64),
    /// Those that a file has.
    Weights(Arc<InitialWeights>),
}

impl InitialParameters {
    /// Finds the initial parameters of a run's model: in the file that the model brings, or where
    /// the run says.
    ///
    /// # Errors
    /// If there are no weights where the run says, or they do not fit the model.
    pub fn of(run: &RunSpec, compute: &dyn Compute) -> Result<Self, BuildError> {
        let Some(init) = &run.model.init else { return Ok(Self::Seed(run.seed)) };
        let layout = compute.layout();
        let own = compute.initial_weights().map(|path| path.to_string_lossy().into_owned());
        let place = own.unwrap_or_else(|| init.path.clone()).parse::<WeightsPlace>();
        let place = place.map_err(ImportError::from);
        let weights = place
            .and_then(|place| InitialWeights::open(&place, &Environment::of_process(), layout));
        weights
            .map(|weights| Self::Weights(Arc::new(weights)))
            .map_err(|error| refused(error.into()))
    }

    /// Hands out all of them, piece by piece in their order: where a piece begins, and its values.
    ///
    /// # Errors
    /// If weights cannot be read, or are not those that the run was submitted with.
    pub fn read_all(
        &self,
        run: &RunSpec,
        layout: &Layout,
        take: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), BuildError> {
        let (Self::Weights(weights), Some(init)) = (self, &run.model.init) else {
            for shard in 0..reduce::shard_count(layout.count()) {
                let range = reduce::shard_range(layout.count(), shard);
                let mut values = vec![0.0; range.len()];
                self.read(layout, range.clone(), &mut values).map_err(refused)?;
                take(range.start, &mut values);
            }
            return Ok(());
        };
        let digest = weights.digest(take).map_err(|error| refused(error.into()))?;
        if digest.to_string() != init.digest {
            return Err(BuildError::Run(format!(
                "the initial weights in {} are not those that the run was submitted with: their \
                 digest is {digest}, and the run's is {}. Bring those weights back, or submit the \
                 run again",
                init.path, init.digest
            )));
        }
        Ok(())
    }

    /// The values of a range of the flat vector.
    ///
    /// # Errors
    /// If weights cannot be read any more.
    pub fn read(
        &self,
        layout: &Layout,
        range: Range<usize>,
        values: &mut [f32],
    ) -> Result<(), InitError> {
        match self {
            Self::Seed(seed) => {
                layout.init(*seed, range, values);
                Ok(())
            }
            Self::Weights(weights) => Ok(weights.read(range, values)?),
        }
    }
}

/// The initial weights cannot be read, or do not fit the model.
#[derive(Debug, thiserror::Error)]
#[error("the initial weights (model.init) cannot be used: {0}")]
pub struct InitError(#[from] ImportError);

/// A store that does not answer is an error of this place, and everything else one of the run.
fn refused(error: InitError) -> BuildError {
    match &error.0 {
        ImportError::Store(store) if store.kind == ErrorKind::Retry => {
            BuildError::Place(error.to_string())
        }
        _ => BuildError::Run(error.to_string()),
    }
}
