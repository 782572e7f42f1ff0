//! I12: the log lists a checkpoint only if its step is settled and the store has all of it.
//!
//! That restored shards have the bits of the history is what I3 says of every copy.

use everstep_transport::protocol::CheckpointId;

use super::commits::Commits;
use super::{Found, Invariant};

/// The log lists a checkpoint, and the store lacks so many of its shards.
pub(super) fn listed(id: CheckpointId, missing: u32, commits: &Commits) -> Result<(), Found> {
    let CheckpointId { step, generation } = id;
    let found = |why: String| {
        let seen = format!("step {step} of generation {generation} is listed: {why}");
        Err((Invariant::I12, seen))
    };
    match missing {
        0 if commits.was_settled(step) => Ok(()),
        0 => found("it is not settled".into()),
        missing => found(format!("the store lacks {missing} parameter shards of it")),
    }
}
