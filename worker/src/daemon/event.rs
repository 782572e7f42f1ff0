//! Events and questions that tasks send to the actor.

use std::sync::Arc;

use everstep_kernels::buffer::Buffer;
use everstep_transport::protocol::{Chunk, Generation, Message};
use everstep_transport::quic::Link;

use crate::device::Device;
use crate::registry::BuildError;
use crate::step::event::{Admission, Built, FileReport, Input, LinkId, Report, StoreReport};

/// An input for the core.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct CoreInput(pub Input);

/// What came from a link to another worker. It counts only while that link is a peer's current one.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct PeerInput {
    /// The number of the link that it came from.
    pub link: u64,
    /// What has come over it.
    pub heard: Heard,
}

/// Input from a link to another worker. The actor knows the worker at the other end, whose id may
/// change while the link lives on.
pub enum Heard {
    /// A message that is not a chunk.
    Message(Box<Message>),
    /// A chunk that was admitted has arrived whole.
    Chunk(Chunk, Buffer),
    /// A chunk that the core does not take.
    Refused,
    /// The link is gone, for this reason.
    Lost(String),
}

/// A task asks what to do with a chunk.
#[derive(actix::Message)]
#[rtype(result = "Admission")]
pub struct AdmitChunk {
    /// The number of the link that it comes from.
    pub link: u64,
    /// The header of the chunk.
    pub chunk: Chunk,
}

/// A link to another worker is up. Either end may have dialled.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct PeerConnected(pub Link);

/// A link to a coordinator is up.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct CoordinatorConnected {
    /// The core's number for it.
    pub id: LinkId,
    /// The new link to the coordinator.
    pub link: Link,
}

/// A build is done.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct DeviceBuilt {
    /// Its number, which counts builds of this process.
    pub build: u64,
    /// Shared with the device's thread, which drops it at its end.
    pub alive: Arc<()>,
    /// The device, or why there is none.
    pub built: Result<(Device, Built), BuildError>,
}

/// A report of the device, with the build that it belongs to.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct DeviceReported {
    /// The number of the build that made it.
    pub build: u64,
    /// What the device has done.
    pub report: Report,
}

/// The thread that reads and writes checkpoints reports.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct StoreReported {
    /// The number of the build that the thread is for.
    pub build: u64,
    /// What the thread has done.
    pub report: StoreReport,
}

/// The thread that writes the model's file reports.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct FileReported {
    /// The number of the build that the thread is for.
    pub build: u64,
    /// The generation that the file is of.
    pub generation: Generation,
    /// What the thread has done.
    pub report: FileReport,
}
