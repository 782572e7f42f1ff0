//! How parcels travel: which order they keep, and which ones wait for admission.
//!
//! As in the shells, a bulk stream keeps its order, and there is one for each pair of workers,
//! generation, lane and step. A parcel's header comes first. Its receiver takes the parcel, drops
//! it, or lets it wait and decides again when it has moved on. A worker that enters a generation
//! gives up its streams of the one before, of which some have arrived already.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use everstep_kernels::buffer::{Buffer, Pool};
use everstep_kernels::reduce;
use everstep_transport::protocol::{Chunk, ChunkKind, Encoding, Generation, Step, codec};
use everstep_worker::step::event::{Admission, Input, Lane, Parcel};

use super::types::Happening;
use super::{Node, Passing, World, over_the_wire};
use crate::check::{Observation, Violation};
use crate::random::mix;

/// A bulk stream between two workers, by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId {
    from: usize,
    to: usize,
    lane: Lane,
    step: Step,
    /// The sender's generation.
    generation: Generation,
    /// The number of their link.
    link: u64,
    /// Zero for a lane's own stream. Else the number of a stray parcel's stream.
    stray: u64,
}

impl StreamId {
    /// The sender and the receiver.
    pub fn ends(self) -> (Node, Node) {
        (Node::Worker(self.from), Node::Worker(self.to))
    }

    /// A number for the trace that stands for the stream.
    pub fn word(self) -> u64 {
        let ends = (self.from as u64) << 32 | (self.to as u64) << 8 | self.lane as u64;
        mix(ends) ^ mix(self.step.0 << 40 | self.generation.0 << 20 | self.stray)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, lane, step, generation, .. } = self;
        write!(f, "{lane:?} of step {step}, {generation}, from worker {from} to {to}")
    }
}

/// All parcels on their way.
#[derive(Debug, Default)]
pub struct Wire {
    /// Parcels that have not arrived, by stream. No queue is empty.
    streams: BTreeMap<StreamId, VecDeque<Parcel>>,
    /// How many parcels are on their way for each pair.
    pending: BTreeMap<(usize, usize), usize>,
    strays: u64,
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
        if matches!(lane, Lane::Partials | Lane::Reduced | Lane::Parameters) {
            *self.elements.entry(chunk.step).or_default() += u64::from(chunk.count);
        }
    }

    /// Queues a parcel. Returns true if it is the first of its stream.
    fn push(&mut self, stream: StreamId, parcel: Parcel) -> bool {
        let queue = self.streams.entry(stream).or_default();
        queue.push_back(parcel);
        *self.pending.entry((stream.from, stream.to)).or_default() += 1;
        queue.len() == 1
    }

    fn front(&self, stream: StreamId) -> Option<&Parcel> {
        self.streams.get(&stream)?.front()
    }

    /// Removes the first parcel of a stream, and says whether another one follows.
    fn pop(&mut self, stream: StreamId) -> Option<(Parcel, bool)> {
        let queue = self.streams.get_mut(&stream)?;
        let parcel = queue.pop_front()?;
        let more = !queue.is_empty();
        if !more {
            self.streams.remove(&stream);
        }
        *self.pending.entry((stream.from, stream.to)).or_default() -= 1;
        Some((parcel, more))
    }

    fn retain(&mut self, mut keep: impl FnMut(StreamId) -> bool) {
        let Self { streams, pending, .. } = self;
        streams.retain(|stream, queue| {
            let kept = keep(*stream);
            if !kept {
                *pending.entry((stream.from, stream.to)).or_default() -= queue.len();
            }
            kept
        });
    }
}

impl World {
    /// Puts a parcel on the stream of its lane and step.
    pub(super) fn stream(
        &mut self,
        from: usize,
        to: usize,
        (lane, step, parcel): (Lane, Step, Parcel),
    ) -> Result<(), Violation> {
        let (sender, receiver) = (Node::Worker(from), Node::Worker(to));
        if !self.links.is_open(sender, receiver) {
            return Ok(());
        }
        self.repeat_parcel((from, to), (lane, step, &parcel));
        let mut parcels = vec![parcel];
        if let Some(meddler) = &mut self.meddler {
            let parcels = &mut parcels;
            meddler(Passing::Parcels { from: sender, to: receiver, lane, parcels });
        }
        for (position, parcel) in parcels.into_iter().enumerate() {
            if position > 0 {
                self.add_stray(from, to, (lane, step, parcel))?;
                continue;
            }
            let stream = self.stream_id((from, to), lane, step, 0);
            if self.wire.push(stream, parcel) {
                self.travel(Happening::Header(stream), stream);
            }
            let pending = self.wire.pending.get(&(from, to)).copied().unwrap_or(0);
            let kind = if self.is_member_here(from, to) { "pair of workers" } else { "learner" };
            self.observe(Observation::Queued(kind, pending))?;
        }
        Ok(())
    }

    /// Whether a worker is a member of another's generation.
    fn is_member_here(&self, place: usize, other: usize) -> bool {
        let id = self.workers[place].peers().id_of(other);
        id.is_some_and(|id| self.checks.lists(self.workers[place].entered(), id))
    }

    fn stream_id(
        &self,
        (from, to): (usize, usize),
        lane: Lane,
        step: Step,
        stray: u64,
    ) -> StreamId {
        let link = self.links.number(Node::Worker(from), Node::Worker(to)).unwrap_or_default();
        let generation = self.workers[from].entered();
        StreamId { from, to, lane, step, generation, link, stray }
    }

    /// Puts a parcel on a stream of its own.
    pub(super) fn add_stray(
        &mut self,
        from: usize,
        to: usize,
        (lane, step, parcel): (Lane, Step, Parcel),
    ) -> Result<(), Violation> {
        if !self.links.is_open(Node::Worker(to), Node::Worker(from)) {
            return Ok(());
        }
        self.wire.strays += 1;
        let stream = self.stream_id((from, to), lane, step, self.wire.strays);
        self.wire.push(stream, parcel);
        self.travel(Happening::Header(stream), stream);
        Ok(())
    }

    /// A header has arrived, or has waited until its receiver moved on.
    pub(super) fn header(&mut self, stream: StreamId) -> Result<(), Violation> {
        let (sender, receiver) = stream.ends();
        if !self.links.is_open(receiver, sender) {
            self.next(stream);
            return Ok(());
        }
        let Some(from) = self.workers[stream.to].peers().id_of(stream.from) else {
            return self.leave_at_the_door(receiver, Happening::Header(stream));
        };
        let Some(parcel) = self.wire.front(stream) else { return Ok(()) };
        let chunk = header_of(parcel, stream);
        let answer = self.workers[stream.to].admit(from, &chunk);
        self.note(format_args!("{stream} with {chunk:?}: {answer:?}"));
        match answer {
            Admission::Take => {
                let (id, standing) = self.workers[stream.to].standing_for(chunk.shard);
                self.observe(Observation::Admitted(id, &chunk, standing))?;
                self.travel(Happening::Body(stream), stream);
            }
            Admission::Wait => self.workers[stream.to].wait_with(stream),
            Admission::Drop => {
                self.next(stream);
                return self.dropped(stream.to, &chunk, from);
            }
        }
        Ok(())
    }

    /// An admitted parcel has arrived whole.
    pub(super) fn body(&mut self, stream: StreamId) -> Result<(), Violation> {
        let from = self.workers[stream.to].peers().id_of(stream.from);
        let Some((parcel, from)) = self.next(stream).zip(from) else { return Ok(()) };
        let input = match parcel {
            Parcel::Message(message) => Input::Peer { from, message: over_the_wire(&message) },
            Parcel::Tensor { mut chunk, values } => {
                self.wire.count(stream.lane, &chunk);
                let mut values = receive(&chunk, &values, self.workers[stream.to].pool());
                match chunk.kind {
                    ChunkKind::Reduced => self.spoil(stream.to, &mut chunk, &mut values)?,
                    ChunkKind::State => self.garble_state(stream.to, &mut values),
                    _ => {}
                }
                Input::Piece { from, chunk, values }
            }
        };
        self.feed(stream.to, input)
    }

    /// A worker enters a generation and gives up its streams of older ones. Half of those that can
    /// arrive have arrived already.
    pub(super) fn reset_streams(&mut self, sender: usize, entered: Generation) {
        let shut = |to: &usize| self.shut_until(Node::Worker(sender), Node::Worker(*to)).is_some();
        let out_of_reach: Vec<usize> = (0..self.workers.len()).filter(shut).collect();
        let Self { wire, random, .. } = self;
        wire.retain(|stream| {
            let old = stream.from == sender && stream.generation < entered;
            !old || !out_of_reach.contains(&stream.to) && random.below(2) == 0
        });
    }

    /// Nothing more arrives from this sender.
    pub(super) fn drop_streams(&mut self, from: Node, to: Node) {
        self.wire.retain(|stream| stream.ends() != (from, to));
    }

    /// A process is gone. Some of the streams that it sent to another process are lost, and all
    /// that the other sent to it.
    pub(super) fn cut_streams(&mut self, gone: Node, peer: Node) {
        let Self { wire, random, .. } = self;
        wire.retain(|stream| {
            let (from, to) = stream.ends();
            let incoming = (from, to) == (peer, gone);
            let lost = (from, to) == (gone, peer) && random.below(2) == 0;
            !incoming && !lost
        });
    }

    /// Removes the first parcel of a stream. The next one sets out.
    fn next(&mut self, stream: StreamId) -> Option<Parcel> {
        let (parcel, more) = self.wire.pop(stream)?;
        if more {
            self.travel(Happening::Header(stream), stream);
        }
        Some(parcel)
    }

    fn travel(&mut self, happening: Happening, stream: StreamId) {
        let (from, to) = stream.ends();
        let at = self.now + self.delay(from, to, Some(stream.lane));
        self.queue.put(at, happening);
    }
}

/// The header that the shell puts before a parcel. A message has the header of its stream.
fn header_of(parcel: &Parcel, stream: StreamId) -> Chunk {
    match parcel {
        Parcel::Tensor { chunk, .. } => *chunk,
        Parcel::Message(message) => {
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
