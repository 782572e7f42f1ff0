//! The update of one parameter shard, which one thread makes from beginning to end: the next state
//! with its digests, and the parameters to compute with. Updates of several shards share nothing
//! that they write, so any number of threads makes them at once, with the same bits.

use everstep_kernels::buffer::{Buffer, Pool, Shared};
use everstep_kernels::layout::Layout;
use everstep_kernels::optimizer::{Digests, Optimizer, ShardState, UpdateInputs};
use everstep_kernels::reduce;
use everstep_transport::protocol::{Shard, Step};

use super::rounding::Rounding;
use super::saved_states::SavedStates;
use super::shard_store::copied;
use super::stored_shard::{ShardError, ShardRole, StoredShard};
use crate::step::event::Gradient;

/// The change that a step makes to a shard.
pub(super) struct ShardChange {
    pub shard: Shard,
    /// The number of this update in the run's history, from 1.
    pub update: u64,
    pub clip: f32,
    pub gradient: Gradient,
}

/// What the updates of a step have in common.
pub(super) struct UpdateContext<'a> {
    pub optimizer: &'a Optimizer,
    pub layout: &'a Layout,
    pub pool: &'a Pool,
    pub rounding: Rounding,
    pub step: Step,
    pub learning_rate: f32,
}

/// The old state of a shard, and the gradient that is about to be applied to it.
pub(super) struct ShardUpdate {
    change: ShardChange,
    copy: StoredShard,
    /// Memory for the next state, while a checkpoint of the present one is being written.
    beside: Option<ShardState>,
}

/// The new state of a shard. Its gradient is gone, since the device may make many updates at once.
pub(super) struct MadeUpdate {
    pub shard: Shard,
    copy: StoredShard,
    beside: Option<ShardState>,
    /// The digests as the update saw them.
    seen: Digests,
    /// Whether the gradient is what its primary made.
    is_intact: bool,
    /// The parameters to compute with. None if they are the master weights, and nobody gets them.
    parameters: Option<Buffer>,
}

impl ShardUpdate {
    /// The update of this copy by this change.
    pub fn new(change: ShardChange, mut copy: StoredShard, saved: &mut SavedStates) -> Self {
        let beside = copy.beside(saved);
        Self { change, copy, beside }
    }

    /// Makes the update: the next state with its digests, and the parameters to compute with.
    pub fn make(self, context: &UpdateContext<'_>) -> MadeUpdate {
        let UpdateContext { optimizer, layout, pool, rounding, step, learning_rate } = *context;
        let Self { change, mut copy, mut beside } = self;
        let ShardChange { shard, update, clip, gradient } = change;
        let range = reduce::shard_range(layout.count(), shard.0 as usize);
        let start = range.start;
        let inputs =
            UpdateInputs { step: update, run_step: step.0, learning_rate, clip, layout, range };
        let versions = copy.versions_to(step);
        let target = copy.target(beside.as_mut());
        let seen = optimizer.update(target, &gradient.values, &inputs, versions);
        let is_intact = gradient.digest == seen.gradient;
        drop(gradient);
        let is_copied = copy.role == ShardRole::Primary || rounding != Rounding::None;
        let parameters = is_copied.then(|| {
            let state = beside.as_ref().unwrap_or(&copy.state);
            let mut parameters = copied(&state.master, pool);
            rounding.round(start, &mut parameters);
            parameters
        });
        MadeUpdate { shard, copy, beside, seen, is_intact, parameters }
    }
}

impl MadeUpdate {
    /// Ends the update: the shard, with its next state, and the parameters to hand out if this
    /// worker is its primary. Gives the parameters to compute with to `write`.
    ///
    /// # Errors
    /// If the old version's bits have changed since it was made, or if the gradient is not what its
    /// primary made.
    pub fn end(
        self,
        step: Step,
        saved: &mut SavedStates,
        write: impl FnOnce(&[f32]),
    ) -> Result<(StoredShard, Option<Shared>), ShardError> {
        let Self { shard, mut copy, beside, seen, is_intact, parameters } = self;
        copy.check(shard, seen.before)?;
        if !is_intact {
            return Err(ShardError::Gradient { shard, step });
        }
        copy.replace(beside).into_iter().for_each(|state| saved.keep(state));
        (copy.version, copy.digest) = (step, seen.after);
        write(parameters.as_deref().unwrap_or(&copy.state.master));
        let is_primary = copy.role == ShardRole::Primary;
        Ok((copy, parameters.filter(|_| is_primary).map(Shared::new)))
    }

    /// A planted bug: the gradient counts as what its primary made.
    #[cfg(feature = "planted")]
    pub fn believe(&mut self) {
        self.is_intact = true;
    }
}
