//! What goes to another worker on bulk streams, in one generation.
//!
//! Each lane has its own queue, task and stream, so a lane whose receiver is not ready yet holds
//! up no other. The queues to a member are bounded by the plan: a step has so many pieces, and the
//! next step's begin only when this one has committed. A learner that is no member holds nobody
//! up: what it is fed, and does not take in time, is not queued, and it asks again. Dropped, all
//! of it is given up: what is queued is forgotten, and streams under way are reset.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use everstep_kernels::buffer::Shared;
use everstep_kernels::reduce;
use everstep_transport::protocol::{Chunk, Encoding, Generation, Step, codec};
use everstep_transport::quic::{BulkSender, Link, LinkError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::traffic::Traffic;
use crate::step::event::{Lane, Parcel};

/// A parcel, and the step that names its stream.
type Queued = (Step, Parcel);

/// Bytes that may wait for a learner; with so many, it is fed nothing more.
const FEED_BYTES: usize = 64 << 20;

/// The lanes to one worker.
pub struct Lanes {
    generation: Generation,
    /// Bytes that are queued, on all lanes.
    waiting: Arc<AtomicUsize>,
    queues: BTreeMap<Lane, UnboundedSender<Queued>>,
    /// The queues' other ends, until there is a link.
    unsent: Vec<UnboundedReceiver<Queued>>,
    tasks: JoinSet<()>,
}

impl Lanes {
    /// Empty lanes that wait for a link.
    pub fn new(generation: Generation) -> Self {
        let (queues, unsent) = Lane::ALL
            .into_iter()
            .map(|lane| {
                let (sender, receiver) = unbounded_channel();
                ((lane, sender), receiver)
            })
            .unzip();
        let waiting = Arc::default();
        Self { generation, waiting, queues, unsent, tasks: JoinSet::new() }
    }

    /// The generation that they are of.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Sends what is queued and what will be.
    pub fn start(&mut self, link: &Link, traffic: &Arc<Traffic>) {
        for queue in self.unsent.drain(..) {
            let (link, traffic) = (link.clone(), traffic.clone());
            let (generation, waiting) = (self.generation, self.waiting.clone());
            self.tasks.spawn(async move {
                if let Err(error) = send(&link, (queue, &waiting), generation, &traffic).await {
                    link.close(&format!("a lane ended: {error}"));
                }
            });
        }
    }

    /// Queues a parcel of what a learner is fed, unless too much waits already.
    pub fn feed(&self, lane: Lane, step: Step, parcel: Parcel) {
        let fed = matches!(lane, Lane::Parameters | Lane::Reduced);
        if !fed || self.waiting.load(Ordering::Relaxed) < FEED_BYTES {
            self.queue(lane, step, parcel);
        }
    }

    /// Queues a parcel.
    pub fn queue(&self, lane: Lane, step: Step, parcel: Parcel) {
        self.waiting.fetch_add(bytes_of(&parcel), Ordering::Relaxed);
        // An error means that the lane's task ended with its link, which its reader tells.
        let _ = self.queues[&lane].send((step, parcel));
    }
}

/// Bytes of a tensor; messages are small.
fn bytes_of(parcel: &Parcel) -> usize {
    match parcel {
        Parcel::Message(_) => 0,
        Parcel::Tensor { values, .. } => values.as_bytes().len(),
    }
}

async fn send(
    link: &Link,
    (mut queue, waiting): (UnboundedReceiver<Queued>, &AtomicUsize),
    generation: Generation,
    traffic: &Traffic,
) -> Result<(), LinkError> {
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
        let bytes = bytes_of(&parcel);
        let (chunk, body) = encode(parcel, generation, step);
        stream.send(&chunk, body).await?;
        waiting.fetch_sub(bytes, Ordering::Relaxed);
        traffic.add_sent(chunk.body_bytes());
    }
    Ok(())
}

/// A shared buffer as the bytes that go onto the wire.
struct WireBytes(Shared);

impl AsRef<[u8]> for WireBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

fn encode(parcel: Parcel, generation: Generation, step: Step) -> (Chunk, Bytes) {
    match parcel {
        Parcel::Message(message) => {
            let bytes = Bytes::from_owner(codec::encode(&message));
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
