//! I7: nothing of an older generation, nor of a step that is over, is taken.

use everstep_transport::protocol::{Chunk, ChunkKind, Generation, Step};

use super::{Found, Invariant};

pub(super) fn admitted(chunk: &Chunk, standing: (Generation, Step)) -> Result<(), Found> {
    let (generation, committed) = standing;
    let over = match chunk.kind {
        // A commit that is known already is no news.
        ChunkKind::Message => false,
        ChunkKind::Partial | ChunkKind::Reduced => chunk.step <= committed,
        ChunkKind::Parameters | ChunkKind::Master => chunk.step < committed,
    };
    if chunk.generation >= generation && !over {
        return Ok(());
    }
    let seen = format!(
        "a member of generation {generation}, whose last commit is {committed}, takes {chunk:?}"
    );
    Err((Invariant::I7, seen))
}
