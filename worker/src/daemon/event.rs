//! What tasks tell the actor, and ask it.

use std::sync::Arc;

use everstep_transport::protocol::{Chunk, WorkerId};
use everstep_transport::quic::Link;

use crate::device::Device;
use crate::registry::BuildError;
use crate::step::event::{Admission, Built, Input, LinkId, Report};

/// Something happened.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Event(pub Input);

/// Something came of a link to another worker. It counts while that link is the worker's.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Heard {
    /// Which link.
    pub from: LinkOf,
    /// What.
    pub input: Input,
}

/// One link to one worker: a later one to the same worker has a higher number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOf {
    /// The worker.
    pub worker: WorkerId,
    /// The number of the link.
    pub number: u64,
}

/// What to do with a chunk?
#[derive(actix::Message)]
#[rtype(result = "Admission")]
pub struct Ask {
    /// Whose chunk.
    pub from: WorkerId,
    /// Its header.
    pub chunk: Chunk,
}

/// A link to another worker is up, whoever called.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Arrival(pub Link);

/// A link to a coordinator is up.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Connected {
    /// What the core calls it.
    pub id: LinkId,
    /// The link.
    pub link: Link,
}

/// A build is done.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct DeviceBuilt {
    /// Its number.
    pub build: u64,
    /// Lives as long as the device does.
    pub alive: Arc<()>,
    /// The device, or why there is none.
    pub built: Result<(Device, Built), BuildError>,
}

/// A device has done something.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Reported {
    /// The number of the build that made it.
    pub build: u64,
    /// What it has done.
    pub report: Report,
}
