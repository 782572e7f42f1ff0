//! Messages to bytes and back. Bytes from a peer are hostile: this code validates and bounds them,
//! and never panics.

use rkyv::rancor::Error as Failure;
use rkyv::util::AlignedVec;

use super::cluster::{HistoryEvent, OperatorCommand};
use super::device::Device;
use super::ids::{NodeName, Zone};
use super::message::{ArchivedMessage, Message};
use super::outcome::{Event, EventKind, Outcome};
use super::question::Reply;

/// Most bytes of a message on the control stream. A larger message travels as a message chunk.
pub const MAX_CONTROL: usize = 64 << 10;

/// Most messages take less. The buffer of a larger one grows.
const USUAL_BYTES: usize = 512;

/// Bytes that are no message.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not the archive of any message.
    #[error("{bytes} bytes that are not a message: {source}")]
    Garbled {
        /// Number of bytes received.
        bytes: usize,
        /// The error of the validation.
        source: Failure,
    },
    /// A node's name in the message is not valid.
    #[error("a node's name that cannot be")]
    Name,
    /// A zone's label in the message is not valid.
    #[error("a zone's label that cannot be")]
    Zone,
    /// A device's name in the message is not valid.
    #[error("a device's name that cannot be")]
    Device,
    /// A run specification in the message is not valid.
    #[error("a run specification that cannot be: {0}")]
    Spec(#[from] super::run::SpecError),
}

/// The bytes of a message.
pub fn encode(message: &Message) -> AlignedVec {
    let bytes = AlignedVec::with_capacity(USUAL_BYTES);
    let encoded = rkyv::api::high::to_bytes_in::<_, Failure>(message, bytes);
    encoded.expect("a message is finite and needs no shared pointers")
}

/// Reads a message. The caller has bounded `bytes`, so nothing inside can be larger.
pub fn decode(bytes: &[u8]) -> Result<Message, DecodeError> {
    let mut aligned = AlignedVec::<16>::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    let garbled = |source| DecodeError::Garbled { bytes: bytes.len(), source };
    let archived = rkyv::access::<ArchivedMessage, Failure>(&aligned).map_err(garbled)?;
    let message = rkyv::deserialize::<Message, Failure>(archived).map_err(garbled)?;
    match &message {
        Message::Welcome { run, .. } => run.validate()?,
        Message::Request { command: OperatorCommand::Submit(run), .. } => run.validate()?,
        Message::Request { command: OperatorCommand::Continue { run, origin }, .. } => {
            run.validate()?;
            origin.validate(run)?;
        }
        _ => {}
    }
    if !names(&message).iter().all(|name| NodeName::parse(name.as_str()).is_some()) {
        return Err(DecodeError::Name);
    }
    if !zones(&message).iter().all(|zone| Zone::parse(zone.as_str()).is_some()) {
        return Err(DecodeError::Zone);
    }
    if !devices(&message).iter().all(|device| device.is_valid()) {
        return Err(DecodeError::Device);
    }
    Ok(message)
}

/// The names in a message. The archive holds them as any text.
fn names(message: &Message) -> Vec<&NodeName> {
    match message {
        Message::Request { command: OperatorCommand::Revoke(node), .. } => vec![&node.name],
        Message::Announce(record) => record.members.iter().map(|member| &member.name).collect(),
        Message::Feed { name, .. } | Message::Exited { name, .. } => vec![name],
        Message::Update(update) => {
            let events = update.events.iter().flat_map(names_in);
            let failed = match &update.outcome {
                Outcome::Failed { name, reason } => name.iter().chain(reason.names()).collect(),
                _ => Vec::new(),
            };
            let workers = update.workers.iter().map(|view| &view.name);
            let unable = update.unable.iter().map(|(name, _)| name);
            let unregistered = update.idle.iter().chain(&update.building).map(|it| &it.name);
            events.chain(workers).chain(unregistered).chain(failed).chain(unable).collect()
        }
        Message::WriteManifest(order) => order.events.iter().flat_map(names_in).collect(),
        Message::Coordinators { members, .. } => members.iter().map(|view| &view.name).collect(),
        Message::Reply(Reply::Coordinators { coordinators, .. }) => {
            coordinators.iter().map(|coordinator| &coordinator.view.name).collect()
        }
        Message::Reply(Reply::Revoked(revoked)) => revoked.iter().map(|view| &view.name).collect(),
        Message::Reply(Reply::Operators(operators)) => operators.iter().collect(),
        Message::History { entries } => {
            let brought = entries.iter().flat_map(|entry| &entry.events);
            let events = brought.filter_map(|event| match event {
                HistoryEvent::Event(event) => Some(event),
                _ => None,
            });
            events.flat_map(names_in).collect()
        }
        Message::Answer { refusal: Some(rejection), .. } => rejection.names(),
        _ => Vec::new(),
    }
}

/// The names of nodes in an event.
fn names_in(event: &Event) -> Vec<&NodeName> {
    match &event.kind {
        EventKind::Registered { name, .. } | EventKind::Unable { name, .. } => vec![name],
        EventKind::Refused { name, reason } => [vec![name], reason.names()].concat(),
        EventKind::Failed { reason } => reason.names(),
        _ => Vec::new(),
    }
}

/// The zones in a message. The archive holds them as any text.
fn zones(message: &Message) -> Vec<&Zone> {
    match message {
        Message::Register(registration) => registration.zone.iter().collect(),
        Message::Update(update) => update.workers.iter().flat_map(|view| &view.zone).collect(),
        _ => Vec::new(),
    }
}

/// The devices in a message. The archive holds their names as any text.
fn devices(message: &Message) -> Vec<&Device> {
    match message {
        Message::Register(registration) => vec![&registration.device],
        Message::Update(update) => update.workers.iter().map(|view| &view.device).collect(),
        _ => Vec::new(),
    }
}
