//! What tasks tell the actor, and ask it.

use everstep_transport::protocol::{Chunk, WorkerId};

use crate::step::event::{Admission, Input};

/// Something happened.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Event(pub Input);

/// What to do with a chunk?
#[derive(actix::Message)]
#[rtype(result = "Admission")]
pub struct Ask {
    /// Whose chunk.
    pub from: WorkerId,
    /// Its header.
    pub chunk: Chunk,
}
