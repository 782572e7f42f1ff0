//! The bulk streams to another worker, in one generation.
//!
//! Each lane has its own queue, task and stream, so a lane with a slow receiver blocks no other.
//! The plan bounds the queues to a member: a step has so many chunks, and those of the next step
//! begin only when this one has committed. A worker that catches up blocks no other worker. The
//! lanes do not queue a feed that it does not take in time, and it asks again later. They queue all
//! of a step or nothing. When the lanes are dropped, queued items are forgotten, and streams under
//! way are reset.
//!
//! The tensors that each step has go through memory that both ends share, where there is such
//! memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use everstep_transport::protocol::{Chunk, Generation, Step};
use everstep_transport::quic::{BulkSender, Link, LinkError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::shared_memory::{LaneMemory, SharedMemory};
use super::traffic::Traffic;
use super::wire_item::WireItem;
use crate::step::event::Lane;

/// An item, the step that names its stream, and whether it counts as fed.
struct QueuedItem {
    step: Step,
    item: WireItem,
    is_fed: bool,
}

/// A worker that catches up gets more while fewer bytes than this wait for it.
const FEED_BYTES: usize = 64 << 20;
/// So many steps may wait for it at any size: it takes one while the primaries reduce the next.
const FEED_STEPS: usize = 2;

/// Bytes that wait for a worker that catches up, by step.
#[derive(Debug, Default)]
struct FeedBacklog(Mutex<BTreeMap<Step, usize>>);

impl FeedBacklog {
    /// Adds bytes that shall wait. Returns whether there is room for them.
    fn put(&self, step: Step, bytes: usize) -> bool {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = waiting.contains_key(&step)
            || waiting.len() < FEED_STEPS
            || waiting.values().sum::<usize>() < FEED_BYTES;
        if room {
            *waiting.entry(step).or_default() += bytes;
        }
        room
    }

    /// Removes bytes that the lane has sent.
    fn sent(&self, step: Step, bytes: usize) {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = waiting.get_mut(&step) {
            *left = left.saturating_sub(bytes);
            if *left == 0 {
                waiting.remove(&step);
            }
        }
    }
}

/// The lanes to one worker.
pub struct Lanes {
    generation: Generation,
    fed: Arc<FeedBacklog>,
    queues: BTreeMap<Lane, UnboundedSender<QueuedItem>>,
    /// The receiving ends of the queues, until there is a link.
    unsent: Vec<(Lane, UnboundedReceiver<QueuedItem>)>,
    tasks: JoinSet<()>,
}

impl Lanes {
    /// Empty lanes that wait for a link.
    pub fn new(generation: Generation) -> Self {
        let (queues, unsent) = Lane::ALL
            .into_iter()
            .map(|lane| {
                let (sender, receiver) = unbounded_channel();
                ((lane, sender), (lane, receiver))
            })
            .unzip();
        Self { generation, fed: Arc::default(), queues, unsent, tasks: JoinSet::new() }
    }

    /// The generation of these lanes.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Sends queued and later items over this link, and through its memory.
    pub fn start(&mut self, link: &Link, memory: &SharedMemory, traffic: &Arc<Traffic>) {
        for (lane, queue) in self.unsent.drain(..) {
            let (link, traffic) = (link.clone(), traffic.clone());
            // Memory for a lane that sends once in a while would lie idle.
            let shares = lane.is_of_each_step();
            let memory = if shares { memory.clone() } else { SharedMemory::none() };
            let sending = Sending { generation: self.generation, fed: self.fed.clone(), traffic };
            self.tasks.spawn(async move {
                if let Err(error) = sending.run(&link, LaneMemory::new(memory), queue).await {
                    link.close(&format!("a lane ended: {error}"));
                }
            });
        }
    }

    /// Queues an item for a worker that catches up, unless too much waits already.
    pub fn feed(&self, lane: Lane, step: Step, item: WireItem) {
        if self.fed.put(step, item.tensor_bytes()) {
            self.put(lane, QueuedItem { step, item, is_fed: true });
        }
    }

    /// Queues an item without a limit here. The plan bounds these items.
    pub fn queue(&self, lane: Lane, step: Step, item: WireItem) {
        self.put(lane, QueuedItem { step, item, is_fed: false });
    }

    fn put(&self, lane: Lane, queued: QueuedItem) {
        // An error means that the lane's task ended with its link. The link's reader reports that.
        let _ = self.queues[&lane].send(queued);
    }
}

/// The task of one lane.
struct Sending {
    generation: Generation,
    fed: Arc<FeedBacklog>,
    traffic: Arc<Traffic>,
}

impl Sending {
    /// Sends what is queued, in order. Each step has a stream of its own.
    async fn run(
        &self,
        link: &Link,
        mut memory: LaneMemory,
        mut queue: UnboundedReceiver<QueuedItem>,
    ) -> Result<(), LinkError> {
        let mut open = None;
        while let Some(QueuedItem { step, item, is_fed }) = queue.recv().await {
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
            let bytes = item.tensor_bytes();
            self.send(stream, &mut memory, step, item).await?;
            if is_fed {
                self.fed.sent(step, bytes);
            }
        }
        Ok(())
    }

    async fn send(
        &self,
        stream: &mut BulkSender,
        memory: &mut LaneMemory,
        step: Step,
        item: WireItem,
    ) -> Result<(), LinkError> {
        let (chunk, body) = match item {
            WireItem::Message(body) => (Chunk::message(self.generation, step, body.len()), body),
            WireItem::Tensor { chunk, body } => match memory.put(&body).await {
                None => (chunk, body),
                Some(place) => {
                    drop(body); // whatever computes may use its memory again
                    stream.announce(&chunk, &place).await?;
                    self.traffic.add_sent(chunk.body_bytes());
                    return Ok(());
                }
            },
        };
        stream.send(&chunk, body).await?;
        self.traffic.add_sent(chunk.body_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_steps_of_any_size_wait_for_a_worker_that_learns_and_no_third() {
        let fed = FeedBacklog::default();
        assert!(fed.put(Step(1), FEED_BYTES) && fed.put(Step(1), FEED_BYTES));
        assert!(fed.put(Step(2), FEED_BYTES));
        assert!(!fed.put(Step(3), 1), "the bound is reached");
        fed.sent(Step(1), FEED_BYTES);
        assert!(!fed.put(Step(3), 1), "a part of the first step still waits");
        fed.sent(Step(1), FEED_BYTES);
        assert!(fed.put(Step(3), 1));
    }

    #[test]
    fn many_small_steps_may_wait_for_a_worker_that_learns() {
        let fed = FeedBacklog::default();
        assert!((1..100).all(|step| fed.put(Step(step), 1 << 10)));
    }
}
