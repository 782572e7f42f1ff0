//! The state of one parameter shard on the device: its version, its digest, and why it is held.

use std::sync::Arc;

use everstep_checkpoint::digest::shard_digest;
use everstep_kernels::optimizer::{ShardState, UpdateTarget};
use everstep_transport::protocol::{Shard, Step};

use super::DeviceError;
use super::initial::InitError;
use super::saved_states::SavedStates;

/// The state of a held shard.
pub(super) struct StoredShard {
    /// The state. It is shared while a checkpoint of it is being written.
    pub state: Arc<ShardState>,
    pub version: Step,
    /// The digest that the version was made with.
    pub digest: u64,
    /// Why the device holds it.
    pub role: ShardRole,
}

/// Why the device holds a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShardRole {
    Primary,
    Backup,
    Syncing,
}

impl StoredShard {
    /// A state of this version.
    pub fn new(state: ShardState, version: Step, role: ShardRole) -> Self {
        let digest = state.digest(version.0);
        Self { state: Arc::new(state), version, digest, role }
    }

    /// Memory for the next state beside this one, while a checkpoint of this one is being written.
    pub fn beside(&mut self, saved: &mut SavedStates) -> Option<ShardState> {
        let is_shared = Arc::get_mut(&mut self.state).is_none();
        is_shared.then(|| saved.take_free(&self.state))
    }

    /// What an update changes: the state in place, or the memory beside it.
    pub fn target<'a>(&'a mut self, beside: Option<&'a mut ShardState>) -> UpdateTarget<'a> {
        match beside {
            Some(state) => UpdateTarget { state, source: Some(&self.state) },
            None => Arc::get_mut(&mut self.state).expect("nobody shares it").into(),
        }
    }

    /// Has the state that an update has made beside the present one, if it has. Returns the
    /// present one then.
    pub fn replace(&mut self, beside: Option<ShardState>) -> Option<Arc<ShardState>> {
        beside.map(|state| std::mem::replace(&mut self.state, Arc::new(state)))
    }

    /// The numbers of its version and of the next one, which is that of `step`.
    pub fn versions_to(&self, step: Step) -> [u64; 2] {
        assert_eq!(self.version.next(), step, "I3: versions follow each other");
        [self.version.0, step.0]
    }

    /// Returns an error if the digest is not the one that the version was made with.
    pub fn check(&self, shard: Shard, digest: u64) -> Result<(), ShardError> {
        match digest == self.digest {
            true => Ok(()),
            false => Err(ShardError::Changed { shard, version: self.version }),
        }
    }

    /// Returns an error if the copy has changed in memory.
    pub fn verify(&self, shard: Shard) -> Result<(), ShardError> {
        self.check(shard, self.state.digest(self.version.0))
    }

    /// BLAKE3 of its step, master weights and moments: a leaf of the state hash.
    pub fn seal(&self) -> [u8; 32] {
        let slots = std::iter::once(&self.state.master).chain(&self.state.moments);
        shard_digest(self.version, slots.map(Vec::as_slice)).0
    }
}

impl ShardRole {
    /// The role of an owner.
    pub fn of_owner(primary: bool) -> Self {
        if primary { Self::Primary } else { Self::Backup }
    }
}

/// A fault of this machine, or something that it lacks.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// A state no longer has the bits that its version was made with.
    #[error(
        "parameter shard {shard} changed in memory since step {version}: this machine's memory \
         cannot be trusted"
    )]
    Changed {
        /// The parameter shard whose state is meant.
        shard: Shard,
        /// The version of its state.
        version: Step,
    },
    /// A gradient does not have the digest that its primary stated.
    #[error(
        "the gradient of parameter shard {shard} for step {step} is not what its primary made: it \
         changed in memory, here or there"
    )]
    Gradient {
        /// The parameter shard whose state is meant.
        shard: Shard,
        /// The step of the gradient.
        step: Step,
    },
    /// The record begins with the initial weights, and they cannot be read.
    #[error(transparent)]
    Initial(#[from] InitError),
}

impl From<ShardError> for DeviceError {
    fn from(error: ShardError) -> Self {
        match error {
            ShardError::Initial(_) => Self::Place(error.to_string()),
            ShardError::Changed { .. } | ShardError::Gradient { .. } => {
                Self::Failed(error.to_string())
            }
        }
    }
}
