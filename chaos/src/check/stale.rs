//! I7: no worker takes a chunk of an older generation, or of a step that is over.

use everstep_transport::protocol::{Chunk, ChunkKind, Generation, Step};

use super::{Breach, Invariant};

/// The state of a chunk's receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverState {
    /// The newest generation that it is in, or has promised.
    pub floor: Generation,
    /// Its last commit, if it is a member.
    pub committed: Option<Step>,
    /// Whether it owns the chunk's shard. A shard that it only syncs may lag behind.
    pub owns: bool,
}

pub(super) fn admitted(chunk: &Chunk, receiver: ReceiverState) -> Result<(), Breach> {
    let ReceiverState { floor, committed, owns } = receiver;
    let over = match chunk.kind {
        // A commit that the receiver knows already changes nothing.
        ChunkKind::Message | ChunkKind::State => false,
        ChunkKind::Reduced if !owns => false,
        ChunkKind::Partial | ChunkKind::Reduced => committed.is_some_and(|last| chunk.step <= last),
        ChunkKind::Parameters | ChunkKind::Master => {
            committed.is_some_and(|last| chunk.step < last)
        }
    };
    if chunk.generation >= floor && !over {
        return Ok(());
    }
    Err((Invariant::I7, format!("a worker with {receiver:?} takes {chunk:?}")))
}
