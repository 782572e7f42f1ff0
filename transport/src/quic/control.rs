//! The control lane: messages in order, each with its length in front.
//!
//! A frame is a length (u32, little-endian) and that many bytes of message. Three lengths are
//! special: [`EMPTY`], [`ELSEWHERE`] and [`RENEWAL`]. A node says goodbye by ending the stream at
//! the boundary of a frame: it has nothing more to say and leaves. The reader of that end closes
//! the connection, for only the reader knows that all has arrived.

use std::sync::Arc;

use bytes::Bytes;
use quinn::{ReadExactError, RecvStream, SendStream};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::bulk::{BulkReceiver, BulkSender};
use super::endpoint_state::EndpointState;
use super::error::LinkError;
use super::renewal;
use super::wire::Wire;
use crate::protocol::codec::{self, MAX_CONTROL};
use crate::protocol::{Chunk, ChunkKind, Generation, Message, Step};

/// No message follows. The acceptor sends this as its first frame. It shows the lane to the
/// connecting node, which learns from it that the acceptor let it in.
pub(super) const EMPTY: u32 = 0;
/// The next message is too large for the lane and follows on a bidirectional stream of its own, as
/// one message chunk.
const ELSEWHERE: u32 = u32::MAX;
/// The sender wants a new certificate. It opens a bidirectional stream, sends nothing on it, and
/// waits for the answer. Messages go on meanwhile.
const RENEWAL: u32 = u32::MAX - 1;

/// Control messages leave before waiting bulk data.
pub(super) const PRIORITY: i32 = 1;

/// Work that waits for the writer of the lane.
pub(super) enum Outgoing {
    /// An encoded message, and the room that it takes in the queue until it is written.
    Message(Bytes, OwnedSemaphorePermit),
    /// A request for a new certificate. The sender gives the asker the stream of the answer.
    Renewal(oneshot::Sender<RecvStream>),
    /// The end of the lane. Nothing comes after this.
    End,
}

/// Writes what is queued, until the link or the queue ends.
pub(super) async fn write(
    wire: Wire,
    mut lane: SendStream,
    mut queue: mpsc::Receiver<Outgoing>,
) -> Result<(), LinkError> {
    loop {
        match queue.recv().await {
            Some(Outgoing::Message(message, _room)) => {
                write_message(&wire, &mut lane, message).await?;
            }
            Some(Outgoing::Renewal(tell)) => {
                let written = lane.write_all(&RENEWAL.to_le_bytes()).await;
                written.map_err(|error| wire.write_failure(error))?;
                let opened = wire.connection.open_bi().await;
                let (mut question, answer) = opened.map_err(|_| wire.failure())?;
                let _ = question.finish(); // an error means that the link is gone
                let _ = tell.send(answer); // an asker that has stopped waiting needs no answer
            }
            Some(Outgoing::End) | None => break,
        }
    }
    let _ = lane.finish(); // an error means that the link is gone
    Ok(())
}

async fn write_message(
    wire: &Wire,
    lane: &mut SendStream,
    message: Bytes,
) -> Result<(), LinkError> {
    let inline = message.len() <= MAX_CONTROL;
    let length = if inline { message.len() as u32 } else { ELSEWHERE };
    let length = Bytes::copy_from_slice(&length.to_le_bytes());
    let body = if inline { message.clone() } else { Bytes::new() };
    let written = lane.write_all_chunks(&mut [length, body]).await;
    written.map_err(|error| wire.write_failure(error))?;
    if !inline {
        write_elsewhere(wire, message).await?;
    }
    Ok(())
}

async fn write_elsewhere(wire: &Wire, message: Bytes) -> Result<(), LinkError> {
    let (stream, _) = wire.connection.open_bi().await.map_err(|_| wire.failure())?;
    let _ = stream.set_priority(PRIORITY); // an error means that the link is gone
    let mut sender = BulkSender::new(wire.clone(), stream);
    sender.send(&Chunk::message(Generation(0), Step(0), message.len()), message).await?;
    sender.finish()
}

/// Reads messages until the link ends. Bytes that no honest node sends end it.
pub(super) async fn read(
    shared: Arc<EndpointState>,
    wire: Wire,
    mut lane: RecvStream,
    arrivals: mpsc::Sender<Message>,
) -> Result<(), LinkError> {
    while let Some(length) = read_length(&wire, &mut lane).await? {
        let message = match length {
            EMPTY => continue,
            ELSEWHERE => read_elsewhere(&wire).await?,
            RENEWAL => {
                let (answer, _) = wire.connection.accept_bi().await.map_err(|_| wire.failure())?;
                // The number at once is at most the number of streams that a peer may open.
                tokio::spawn(renewal::serve(shared.clone(), wire.clone(), answer));
                continue;
            }
            _ if length as usize <= MAX_CONTROL => {
                let mut bytes = vec![0; length as usize];
                let read = lane.read_exact(&mut bytes).await;
                read.map_err(|error| end_of_lane(&wire, error))?;
                decode(&wire, &bytes)?
            }
            _ => return Err(wire.refuse(format!("a control message of {length} bytes"))),
        };
        if arrivals.send(message).await.is_err() {
            return Ok(()); // the owner of the link has dropped it
        }
    }
    wire.done();
    Ok(())
}

/// The next frame's length. `None` at the end of the lane.
async fn read_length(wire: &Wire, lane: &mut RecvStream) -> Result<Option<u32>, LinkError> {
    let mut length = [0; 4];
    match lane.read_exact(&mut length).await {
        Ok(()) => Ok(Some(u32::from_le_bytes(length))),
        Err(ReadExactError::FinishedEarly(0)) => Ok(None),
        Err(error) => Err(end_of_lane(wire, error)),
    }
}

async fn read_elsewhere(wire: &Wire) -> Result<Message, LinkError> {
    // The sending half of the stream is dropped, which ends it.
    let (_, stream) = wire.connection.accept_bi().await.map_err(|_| wire.failure())?;
    let mut receiver = BulkReceiver::new(wire.clone(), stream);
    let chunk = match receiver.header().await? {
        Some(chunk) if chunk.kind == ChunkKind::Message => chunk,
        _ => return Err(wire.refuse("no message on a stream that is for one")),
    };
    let mut bytes = vec![0; chunk.body_bytes()];
    receiver.body(&chunk, &mut bytes).await?;
    if receiver.header().await?.is_some() {
        return Err(wire.refuse("more than one message on a stream that is for one"));
    }
    decode(wire, &bytes)
}

fn decode(wire: &Wire, bytes: &[u8]) -> Result<Message, LinkError> {
    codec::decode(bytes).map_err(|error| wire.refuse(error.to_string()))
}

fn end_of_lane(wire: &Wire, error: ReadExactError) -> LinkError {
    match error {
        ReadExactError::FinishedEarly(_) => wire.refuse("a control lane that ends within a frame"),
        ReadExactError::ReadError(error) => match wire.read_failure(error) {
            LinkError::Abandoned => wire.refuse("a control lane that was given up"),
            failure => failure,
        },
    }
}
