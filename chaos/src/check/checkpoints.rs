//! I12: the log lists a checkpoint only if its step is settled.
//!
//! Whether the store has all of it, and that no deletion and no power failure takes a part of it,
//! is checked where the store is, `chaos/src/world/store.rs`. That restored shards have the bits of
//! the history is what I3 says of every copy.

use everstep_transport::protocol::CheckpointId;

use super::commits::Commits;
use super::{Breach, Invariant};

/// The log lists a checkpoint.
pub(super) fn listed(id: CheckpointId, commits: &Commits) -> Result<(), Breach> {
    let CheckpointId { step, generation } = id;
    if commits.was_settled(step) {
        return Ok(());
    }
    let seen = format!("step {step} of generation {generation} is listed: it is not settled");
    Err((Invariant::I12, seen))
}
