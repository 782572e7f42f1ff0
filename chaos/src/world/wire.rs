//! How messages and pieces travel: what keeps its order, and what waits for admission.
//!
//! As in the shells, a control lane keeps its order; so does each bulk stream, and there is one for
//! each pair of workers, lane and step. A piece's header comes first. Its receiver takes the piece,
//! drops it, or lets it wait, and then is asked again when it has moved on.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use everstep_kernels::buffer::{Buffer, Pool};
use everstep_kernels::reduce;
use everstep_transport::protocol::{Chunk, Encoding, Message, Step, WorkerId, codec};
use everstep_transport::time::Time;
use everstep_worker::step::event::{Admission, Input, Lane, Parcel};

use super::{Happening, Node, Passing, World, over_the_wire};
use crate::check::{Observation, Violation};

/// A bulk stream between two workers, by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId {
    from: usize,
    to: usize,
    lane: Lane,
    step: Step,
    /// 0, or the number of something that a meddler added.
    stray: u64,
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, lane, step, .. } = self;
        write!(f, "{lane:?} of step {step} from worker {from} to {to}")
    }
}

/// What is on its way.
#[derive(Debug, Default)]
pub struct Wire {
    /// When the last that was put on a control lane arrives.
    arrivals: BTreeMap<(Node, Node), Time>,
    /// What has not arrived, by stream.
    streams: BTreeMap<StreamId, VecDeque<Parcel>>,
    strays: u64,
}

impl Wire {
    /// When something arrives that would like to at `soonest`.
    pub fn arrival(&mut self, lane: (Node, Node), soonest: Time) -> Time {
        let last = self.arrivals.entry(lane).or_default();
        *last = soonest.max(*last);
        *last
    }

    /// Queues a parcel; true if it is the first of its stream.
    fn push(&mut self, stream: StreamId, parcel: Parcel) -> bool {
        let queue = self.streams.entry(stream).or_default();
        queue.push_back(parcel);
        queue.len() == 1
    }

    fn front(&self, stream: StreamId) -> Option<&Parcel> {
        self.streams.get(&stream)?.front()
    }

    fn pop(&mut self, stream: StreamId) -> Option<Parcel> {
        self.streams.get_mut(&stream)?.pop_front()
    }
}

impl World {
    /// Puts a parcel on the stream of its lane and step.
    pub(super) fn stream(&mut self, from: usize, to: WorkerId, parcel: (Lane, Step, Parcel)) {
        let Some(&to) = self.places.get(&to) else { return };
        let (lane, step, parcel) = parcel;
        let mut parcels = vec![parcel];
        if let Some(meddler) = &mut self.meddler {
            let (from, to) = (Node::Worker(from), Node::Worker(to));
            meddler(Passing::Parcels { from, to, lane, parcels: &mut parcels });
        }
        for (position, parcel) in parcels.into_iter().enumerate() {
            let added = position > 0;
            self.wire.strays += u64::from(added);
            let stray = if added { self.wire.strays } else { 0 };
            let stream = StreamId { from, to, lane, step, stray };
            if self.wire.push(stream, parcel) {
                self.later(Happening::Header(stream));
            }
        }
    }

    /// A header has arrived, or has waited long enough to ask again.
    pub(super) fn header(&mut self, stream: StreamId) -> Result<(), Violation> {
        let Some(parcel) = self.wire.front(stream) else { return Ok(()) };
        let (chunk, from) = (header_of(parcel), self.workers[stream.from].id());
        let answer = self.workers[stream.to].admit(from, &chunk);
        self.note(format_args!("{stream} with {chunk:?}: {answer:?}"));
        match answer {
            Admission::Take => self.later(Happening::Body(stream)),
            Admission::Wait => self.workers[stream.to].wait_with(stream),
            Admission::Drop => {
                self.next(stream);
                if !self.workers[stream.to].ended() {
                    return self.observe(Observation::Refused(format_args!("{chunk:?}")));
                }
            }
        }
        Ok(())
    }

    /// A piece that was admitted has arrived whole.
    pub(super) fn body(&mut self, stream: StreamId) -> Result<(), Violation> {
        let from = self.workers[stream.from].id();
        let Some(parcel) = self.next(stream) else { return Ok(()) };
        let input = match parcel {
            Parcel::Commit(commit) => {
                Input::Peer { from, message: over_the_wire(&Message::Commit(commit)) }
            }
            Parcel::Tensor { chunk, values } => {
                let values = receive(&chunk, &values, self.workers[stream.to].pool());
                Input::Piece { from, chunk, values }
            }
        };
        self.feed(stream.to, input)
    }

    /// Takes the front of a stream off; what is behind it comes next.
    fn next(&mut self, stream: StreamId) -> Option<Parcel> {
        let parcel = self.wire.pop(stream);
        if self.wire.front(stream).is_some() {
            self.later(Happening::Header(stream));
        }
        parcel
    }

    /// Lets something happen after a delay of its own.
    pub(super) fn later(&mut self, happening: Happening) {
        let at = self.now + self.random.delay();
        self.queue.put(at, happening);
    }
}

fn header_of(parcel: &Parcel) -> Chunk {
    match parcel {
        Parcel::Tensor { chunk, .. } => *chunk,
        Parcel::Commit(commit) => {
            let bytes = codec::encode(&Message::Commit(commit.clone())).len();
            Chunk::message(commit.generation, commit.step, bytes)
        }
    }
}

/// The values as they are after the wire: in the receiver's memory, rounded if it rounds.
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
