//! How items travel: which order they keep, and which ones wait for admission.
//!
//! As in the shells, a bulk stream keeps its order, and there is one for each pair of workers,
//! generation, lane and step. An item's header comes first. Its receiver takes the item, drops
//! it, or lets it wait and decides again when it has moved on. A worker that enters a generation
//! gives up its streams of the one before, of which some have arrived already. Between two workers
//! of one host the bytes of a tensor lie in memory meanwhile (`lane_memory.rs`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use everstep_kernels::buffer::{Buffer, Pool, Shared};
use everstep_kernels::reduce;
use everstep_transport::protocol::{Chunk, ChunkKind, Encoding, Generation, Step, codec};
use everstep_worker::step::event::{Admission, Input, Lane, StreamItem};

use super::lane_memory::{LaneId, LaneMemories, Put, TensorPlace};
use super::types::{Event, LaneItem};
use super::{NodeId, World, over_the_wire};
use crate::check::{Invariant, Observation, QueueKind, Violation};
use crate::random::mix;

/// A bulk stream between two workers, by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId {
    from: usize,
    to: usize,
    lane: Lane,
    step: Step,
    generation: Generation,
    /// The number of their link.
    link: u64,
    /// Zero for a lane's own stream. Else the number of an orphan item's stream.
    orphan: u64,
}

impl StreamId {
    /// The sender and the receiver.
    pub fn ends(self) -> (NodeId, NodeId) {
        (NodeId::Worker(self.from), NodeId::Worker(self.to))
    }

    /// The lane, in the generation of the stream.
    pub fn lane_id(self) -> LaneId {
        let Self { link, from, lane, generation, .. } = self;
        LaneId { link, from, lane, generation }
    }

    /// A number for the trace that stands for the stream.
    pub fn word(self) -> u64 {
        let ends = (self.from as u64) << 32 | (self.to as u64) << 8 | self.lane as u64;
        mix(ends) ^ mix(self.step.0 << 40 | self.generation.0 << 20 | self.orphan)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, lane, step, generation, .. } = self;
        write!(f, "{lane:?} of step {step}, {generation}, from worker {from} to {to}")
    }
}

/// An item on its way.
#[derive(Debug)]
struct Travelling {
    item: StreamItem,
    body: Body,
}

/// Where the body of an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// With the sender: there is no room in memory.
    Unsent,
    /// Under way on the link.
    OnLink,
    /// In memory. The item itself has no values then.
    InMemory(TensorPlace),
}

/// All items on their way.
#[derive(Debug, Default)]
pub struct Wire {
    /// Items that have not arrived, by stream. No queue is empty.
    streams: BTreeMap<StreamId, VecDeque<Travelling>>,
    memories: LaneMemories,
    /// How many items are on their way for each pair.
    pending: BTreeMap<(usize, usize), usize>,
    orphans: u64,
    /// How many elements that members exchange for a step have arrived, by step.
    elements: BTreeMap<Step, u64>,
}

impl Wire {
    /// How many elements of sums, gradients and parameters have arrived for each step.
    pub fn elements(&self) -> &BTreeMap<Step, u64> {
        &self.elements
    }

    /// Counts the elements of a chunk that has arrived.
    fn count(&mut self, lane: Lane, chunk: &Chunk) {
        if lane.is_of_each_step() {
            *self.elements.entry(chunk.step).or_default() += u64::from(chunk.count);
        }
    }

    /// Queues an item. Returns true if it is the first of its stream.
    fn push(&mut self, stream: StreamId, item: StreamItem) -> bool {
        let queue = self.streams.entry(stream).or_default();
        queue.push_back(Travelling { item, body: Body::Unsent });
        *self.pending.entry((stream.from, stream.to)).or_default() += 1;
        queue.len() == 1
    }

    fn front(&self, stream: StreamId) -> Option<&StreamItem> {
        self.streams.get(&stream)?.front().map(|first| &first.item)
    }

    /// Sends the bodies of a stream, as many as there is room for. Returns whether the first one is
    /// sent. An orphan has no lane, and so no memory.
    fn send_bodies(&mut self, stream: StreamId, machines: [NodeId; 2], frees_early: bool) -> bool {
        let Some(queue) = self.streams.get_mut(&stream) else { return false };
        for Travelling { item, body } in queue.iter_mut().filter(|it| it.body == Body::Unsent) {
            let StreamItem::Tensor { values, .. } = item else {
                *body = Body::OnLink;
                continue;
            };
            let put = match stream.orphan {
                0 => self.memories.put(stream, machines, frees_early, values),
                _ => Put::OverLink,
            };
            *body = match put {
                Put::OverLink => Body::OnLink,
                Put::Full => break,
                Put::At(place) => {
                    *values = Shared::new(Buffer::detached(Vec::new()));
                    Body::InMemory(place)
                }
            };
        }
        self.is_sent(stream)
    }

    /// Whether the body of the first item of a stream is sent.
    fn is_sent(&self, stream: StreamId) -> bool {
        let first = self.streams.get(&stream).and_then(VecDeque::front);
        first.is_some_and(|first| first.body != Body::Unsent)
    }

    /// Removes the first item of a stream, and says whether another one follows.
    fn pop(&mut self, stream: StreamId) -> Option<(Travelling, bool)> {
        let queue = self.streams.get_mut(&stream)?;
        let item = queue.pop_front()?;
        let more = !queue.is_empty();
        if !more {
            self.streams.remove(&stream);
        }
        *self.pending.entry((stream.from, stream.to)).or_default() -= 1;
        Some((item, more))
    }

    pub fn retain(&mut self, mut keep: impl FnMut(StreamId) -> bool) {
        let lost: BTreeSet<_> =
            self.streams.keys().copied().filter(|stream| !keep(*stream)).collect();
        // What has not set out has not arrived either, where a lane gives up anything.
        let closed: BTreeSet<_> = lost.iter().map(|stream| stream.lane_id()).collect();
        let Self { streams, pending, memories, .. } = self;
        let waits = |stream: &StreamId| {
            let lane = stream.lane_id();
            closed.contains(&lane) && memories.awaits_room(lane, *stream)
        };
        streams.retain(|stream, queue| {
            let kept = !lost.contains(stream) && !waits(stream);
            if !kept {
                *pending.entry((stream.from, stream.to)).or_default() -= queue.len();
            }
            kept
        });
        let used: BTreeSet<_> = streams.keys().map(|stream| stream.lane_id()).collect();
        memories.retain(|lane| used.contains(lane));
    }
}

impl World {
    /// Puts an item on the stream of its lane and step.
    pub(super) fn stream(
        &mut self,
        from: usize,
        to: usize,
        sent: LaneItem,
    ) -> Result<(), Violation> {
        let (sender, receiver) = (NodeId::Worker(from), NodeId::Worker(to));
        if !self.network.links.is_open(sender, receiver) {
            return Ok(());
        }
        self.repeat_item(from, to, &sent);
        let LaneItem { lane, step, item } = sent;
        let items = self.network.items(sender, receiver, lane, item);
        for (position, item) in items.into_iter().enumerate() {
            if position > 0 {
                self.add_orphan(from, to, LaneItem { lane, step, item })?;
                continue;
            }
            let stream = self.stream_id(from, to, lane, step, 0);
            let is_first = self.network.wire.push(stream, item);
            if self.send_bodies(stream) && is_first {
                self.travel(Event::Header(stream), stream);
            }
            let pending = self.network.wire.pending.get(&(from, to)).copied().unwrap_or(0);
            let kind =
                if self.is_member_here(from, to) { QueueKind::Pair } else { QueueKind::Joiner };
            self.observe(Observation::Queued(kind, pending))?;
        }
        Ok(())
    }

    /// Whether a worker is a member of another's generation.
    fn is_member_here(&self, place: usize, other: usize) -> bool {
        let id = self.workers[place].peers().id_of(other);
        id.is_some_and(|id| self.checkers.invariants.lists(self.workers[place].entered(), id))
    }

    fn stream_id(&self, from: usize, to: usize, lane: Lane, step: Step, orphan: u64) -> StreamId {
        let link =
            self.network.links.number(NodeId::Worker(from), NodeId::Worker(to)).unwrap_or_default();
        let generation = self.workers[from].entered();
        StreamId { from, to, lane, step, generation, link, orphan }
    }

    /// Puts an item on a stream of its own.
    pub(super) fn add_orphan(
        &mut self,
        from: usize,
        to: usize,
        sent: LaneItem,
    ) -> Result<(), Violation> {
        if !self.network.links.is_open(NodeId::Worker(to), NodeId::Worker(from)) {
            return Ok(());
        }
        let LaneItem { lane, step, item } = sent;
        self.network.wire.orphans += 1;
        let stream = self.stream_id(from, to, lane, step, self.network.wire.orphans);
        self.network.wire.push(stream, item);
        self.travel(Event::Header(stream), stream);
        Ok(())
    }

    /// A header has arrived, or has waited until its receiver moved on.
    pub(super) fn on_header(&mut self, stream: StreamId) -> Result<(), Violation> {
        let (sender, receiver) = stream.ends();
        if !self.network.links.is_open(receiver, sender) {
            return self.next(stream).map(drop);
        }
        let Some(from) = self.workers[stream.to].peers().id_of(stream.from) else {
            return self.leave_at_the_door(receiver, Event::Header(stream));
        };
        let Some(item) = self.network.wire.front(stream) else { return Ok(()) };
        let chunk = header_of(item, stream);
        let answer = self.workers[stream.to].admit(from, &chunk);
        self.note(format_args!("{stream} with {chunk:?}: {answer:?}"));
        match answer {
            Admission::Take => {
                let (id, receiver) = self.workers[stream.to].receiver_state(chunk.shard);
                self.observe(Observation::Admitted(id, &chunk, receiver))?;
                self.travel(Event::Body(stream), stream);
            }
            Admission::Wait => self.workers[stream.to].wait_with(stream),
            Admission::Drop => {
                self.next(stream)?;
                return self.dropped(stream.to, &chunk, from);
            }
        }
        Ok(())
    }

    /// An admitted item has arrived whole.
    pub(super) fn on_body(&mut self, stream: StreamId) -> Result<(), Violation> {
        let from = self.workers[stream.to].peers().id_of(stream.from);
        let Some((item, from)) = self.next(stream)?.zip(from) else { return Ok(()) };
        let input = match item {
            StreamItem::Message(message) => Input::Peer { from, message: over_the_wire(&message) },
            StreamItem::Tensor { mut chunk, values } => {
                self.network.wire.count(stream.lane, &chunk);
                let mut values = receive(&chunk, &values, self.workers[stream.to].pool());
                match chunk.kind {
                    ChunkKind::Reduced => self.spoil(stream.to, &mut chunk, &mut values)?,
                    ChunkKind::State => self.garble_state(stream.to, &mut values),
                    _ => {}
                }
                Input::Chunk { from, chunk, values }
            }
        };
        self.step_worker(stream.to, input)
    }

    /// A worker enters a generation and gives up its streams of older ones. Half of those that can
    /// arrive have arrived already.
    pub(super) fn reset_streams(&mut self, sender: usize, entered: Generation) {
        let shut =
            |to: &usize| self.shut_until(NodeId::Worker(sender), NodeId::Worker(*to)).is_some();
        let out_of_reach: Vec<usize> = (0..self.workers.len()).filter(shut).collect();
        let (wire, random) = (&mut self.network.wire, &mut self.random);
        wire.retain(|stream| {
            let old = stream.from == sender && stream.generation < entered;
            !old || !out_of_reach.contains(&stream.to) && random.below(2) == 0
        });
    }

    /// Removes the first item of a stream. The next one sets out, and so do the streams that have
    /// waited for its place in memory.
    fn next(&mut self, stream: StreamId) -> Result<Option<StreamItem>, Violation> {
        let Some((Travelling { mut item, body }, more)) = self.network.wire.pop(stream) else {
            return Ok(None);
        };
        if let (Body::InMemory(place), StreamItem::Tensor { values, .. }) = (body, &mut item) {
            let (lane, memories) = (stream.lane_id(), &mut self.network.wire.memories);
            let read = memories.read(lane, place);
            let waiting = memories.release(lane, place);
            *values = read.ok_or_else(|| Violation {
                invariant: Invariant::I25,
                at: self.now,
                seen: format!("{stream}: other bytes lie at {place:?}"),
            })?;
            for waiting in waiting.into_iter().filter(|waiting| *waiting != stream) {
                let has_waited = !self.network.wire.is_sent(waiting);
                if self.send_bodies(waiting) && has_waited {
                    self.travel(Event::Header(waiting), waiting);
                }
            }
        }
        if more && self.send_bodies(stream) {
            self.travel(Event::Header(stream), stream);
        }
        Ok(Some(item))
    }

    /// Sends the bodies of a stream. Returns whether the first one is sent.
    fn send_bodies(&mut self, stream: StreamId) -> bool {
        let (from, to) = stream.ends();
        let machines = [from, to].map(|node| self.workers.machine(node));
        let frees_early = self.scenario.prepare.frees_early;
        self.network.wire.send_bodies(stream, machines, frees_early)
    }

    fn travel(&mut self, event: Event, stream: StreamId) {
        let (from, to) = stream.ends();
        let at = self.now + self.delay(from, to, Some(stream.lane));
        self.queue.put(at, event);
    }
}

/// The header that the shell puts before an item. A message has the header of its stream.
fn header_of(item: &StreamItem, stream: StreamId) -> Chunk {
    match item {
        StreamItem::Tensor { chunk, .. } => *chunk,
        StreamItem::Message(message) => {
            Chunk::message(stream.generation, stream.step, codec::encode(message).len())
        }
    }
}

/// The values as the receiver has them in its memory: rounded if the encoding rounds.
fn receive(chunk: &Chunk, values: &[f32], pool: &Pool) -> Buffer {
    let mut received = pool.take(values.len());
    if chunk.encoding == Encoding::Bf16 {
        let mut bytes = vec![0; chunk.encoding.width() * values.len()];
        reduce::encode_bf16(values, &mut bytes);
        reduce::decode_bf16(&bytes, &mut received);
    } else {
        received.copy_from_slice(values);
    }
    received
}
