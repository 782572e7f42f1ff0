//! Another member, as the shell sees it: a link, and what waits for it.
//!
//! Each lane of each peer has its own queue and its own stream, so a lane whose receiver is not
//! ready yet holds up no other. The queues are bounded by the plan: a step has so many pieces, and
//! the next step's begin only when this one has committed.

use std::collections::BTreeMap;
use std::sync::Arc;

use actix::Recipient;
use bytes::Bytes;
use everstep_kernels::buffer::{Pool, Shared};
use everstep_kernels::reduce;
use everstep_transport::protocol::{
    Chunk, ChunkKind, Encoding, Generation, Message, Step, WorkerId, codec,
};
use everstep_transport::quic::{BulkReceiver, BulkSender, Link, LinkError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use super::event::{Ask, Event};
use super::traffic::Traffic;
use crate::step::event::{Admission, Input, Lane, Parcel};

type Queued = (Step, Parcel);

/// One other member.
pub struct Peer {
    state: State,
    lanes: BTreeMap<Lane, UnboundedSender<Queued>>,
}

/// Whether the link is up.
enum State {
    /// Not yet: what is said and sent waits.
    Awaited { messages: Vec<Message>, queues: BTreeMap<Lane, UnboundedReceiver<Queued>> },
    /// It is.
    Linked(Link),
}

/// What the tasks of a link need.
#[derive(Clone)]
pub struct Wiring {
    /// The peer.
    pub worker: WorkerId,
    /// The generation that it is a member of.
    pub generation: Generation,
    /// Tells the actor.
    pub events: Recipient<Event>,
    /// Asks the actor.
    pub asks: Recipient<Ask>,
    /// Changes whenever the core may admit what it did not before.
    pub changed: watch::Receiver<u64>,
    /// Where buffers come from.
    pub pool: Pool,
    /// Counts bytes.
    pub traffic: Arc<Traffic>,
}

impl Peer {
    /// A peer without a link.
    pub fn awaited() -> Self {
        let mut lanes = BTreeMap::new();
        let mut queues = BTreeMap::new();
        for lane in Lane::ALL {
            let (sender, receiver) = unbounded_channel();
            lanes.insert(lane, sender);
            queues.insert(lane, receiver);
        }
        Self { state: State::Awaited { messages: Vec::new(), queues }, lanes }
    }

    /// The link is up: starts its tasks. A second link is closed.
    pub fn attach(&mut self, link: Link, wiring: &Wiring) {
        if matches!(self.state, State::Linked(_)) {
            return link.close("this pair of workers is connected already");
        }
        let before = std::mem::replace(&mut self.state, State::Linked(link.clone()));
        let State::Awaited { messages, queues } = before else { return };
        for message in messages {
            let _ = link.send(message); // an error means that the link is gone: told below
        }
        for (_, queue) in queues {
            actix::spawn(send_lane(link.clone(), queue, wiring.clone()));
        }
        actix::spawn(receive_messages(link.clone(), wiring.clone()));
        actix::spawn(receive_streams(link, wiring.clone()));
    }

    /// Says something.
    pub fn send(&mut self, message: Message) {
        match &mut self.state {
            State::Awaited { messages, .. } => messages.push(message),
            State::Linked(link) => {
                // What cannot be said ends the link, and so the generation: nobody waits in vain.
                if let Err(error) = link.send(message) {
                    link.close(&error.to_string());
                }
            }
        }
    }

    /// Queues a parcel on its lane.
    pub fn stream(&self, lane: Lane, step: Step, parcel: Parcel) {
        // An error means that the lane's task ended with its link: told by `receive_messages`.
        let _ = self.lanes[&lane].send((step, parcel));
    }
}

// Out.

async fn send_lane(link: Link, mut queue: UnboundedReceiver<Queued>, wiring: Wiring) {
    let sent: Result<(), LinkError> = async {
        let mut open = None;
        while let Some((step, parcel)) = queue.recv().await {
            let stream = match open.take() {
                Some((of, stream)) if of == step => stream,
                before => {
                    if let Some((_, stream)) = before {
                        BulkSender::finish(stream)?;
                    }
                    link.bulk().await?
                }
            };
            let (_, stream) = open.insert((step, stream));
            let (chunk, body) = encode(parcel, wiring.generation);
            stream.send(&chunk, body.clone()).await?;
            wiring.traffic.add_sent(chunk.body_bytes());
        }
        Ok(())
    }
    .await;
    if let Err(error) = sent {
        link.close(&format!("a lane ended: {error}"));
    }
}

/// A shared buffer as the bytes that go onto the wire.
struct WireBytes(Shared);

impl AsRef<[u8]> for WireBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

fn encode(parcel: Parcel, generation: Generation) -> (Chunk, Bytes) {
    match parcel {
        Parcel::Commit(commit) => {
            let step = commit.step;
            let bytes = Bytes::from_owner(codec::encode(&Message::Commit(commit)));
            (Chunk::message(generation, step, bytes.len()), bytes)
        }
        Parcel::Tensor { chunk, values } if chunk.encoding == Encoding::Bf16 => {
            let mut bytes = vec![0; chunk.body_bytes()];
            reduce::encode_bf16(&values, &mut bytes);
            (chunk, bytes.into())
        }
        Parcel::Tensor { chunk, values } => (chunk, Bytes::from_owner(WireBytes(values))),
    }
}

// In.

async fn receive_messages(link: Link, wiring: Wiring) {
    let from = wiring.worker;
    let reason = loop {
        match link.receive().await {
            Ok(message) => {
                let told = wiring.events.send(Event(Input::Peer { from, message })).await;
                if told.is_err() {
                    return; // The actor has ended, and the process with it.
                }
            }
            Err(error) => break error.to_string(),
        }
    };
    let _ = wiring.events.send(Event(Input::PeerLost { from, reason })).await;
}

async fn receive_streams(link: Link, wiring: Wiring) {
    while let Ok(stream) = link.accept_bulk().await {
        let (link, wiring) = (link.clone(), wiring.clone());
        actix::spawn(async move {
            if let Err(error) = receive_chunks(stream, &link, wiring).await {
                link.close(&format!("a stream ended: {error}"));
            }
        });
    }
}

async fn receive_chunks(
    mut stream: BulkReceiver,
    link: &Link,
    mut wiring: Wiring,
) -> Result<(), LinkError> {
    while let Some(chunk) = stream.header().await? {
        match admission(&chunk, &mut wiring).await {
            Admission::Take if chunk.kind == ChunkKind::Message => {
                let mut bytes = vec![0; chunk.body_bytes()];
                stream.body(&chunk, &mut bytes).await?;
                let Ok(message) = codec::decode(&bytes) else {
                    link.close("a garbled message on a bulk stream");
                    return Ok(());
                };
                let _ =
                    wiring.events.send(Event(Input::Peer { from: wiring.worker, message })).await;
            }
            Admission::Take => {
                let values = receive_values(&mut stream, &chunk, &wiring.pool).await?;
                wiring.traffic.add_received(chunk.body_bytes());
                let input = Input::Piece { from: wiring.worker, chunk, values };
                let _ = wiring.events.send(Event(input)).await;
            }
            Admission::Wait | Admission::Drop => {
                tracing::debug!(worker = %wiring.worker, ?chunk, "a chunk outside the plan");
                let _ = wiring.events.send(Event(Input::Refused)).await;
                stream.skip(&chunk).await?;
            }
        }
    }
    Ok(())
}

/// Asks the core until it knows what to do with the chunk. Meanwhile the body stays with its
/// sender.
async fn admission(chunk: &Chunk, wiring: &mut Wiring) -> Admission {
    loop {
        wiring.changed.mark_unchanged();
        let ask = Ask { from: wiring.worker, chunk: *chunk };
        match wiring.asks.send(ask).await {
            Ok(Admission::Wait) => {
                if wiring.changed.changed().await.is_err() {
                    return Admission::Drop; // The actor has ended.
                }
            }
            Ok(answer) => return answer,
            Err(_) => return Admission::Drop,
        }
    }
}

async fn receive_values(
    stream: &mut BulkReceiver,
    chunk: &Chunk,
    pool: &Pool,
) -> Result<everstep_kernels::buffer::Buffer, LinkError> {
    let mut values = pool.take(chunk.count as usize);
    if chunk.encoding == Encoding::Bf16 {
        let mut bytes = vec![0; chunk.body_bytes()];
        stream.body(chunk, &mut bytes).await?;
        reduce::decode_bf16(&bytes, &mut values);
    } else {
        stream.body(chunk, values.as_bytes_mut()).await?;
    }
    Ok(values)
}
