//! Memory that two workers of one host share, as in the shells. A lane writes a tensor into it when
//! the tensor's header sets out. The receiver reads it when the body arrives, compares its digest,
//! and gives the range back. If there is no room, the stream waits. Half of all pairs of machines
//! are of one host, and every eighth lane finds no memory there. Its bytes go as between hosts.

use std::collections::{BTreeMap, VecDeque};

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_kernels::reduce;
use everstep_transport::protocol::Generation;
use everstep_worker::memory_ring::{ALIGNMENT, MemoryRing, SEGMENT_TENSORS};
use everstep_worker::step::event::Lane;

use super::NodeId;
use super::wire::StreamId;
use crate::random::mix;

/// Bytes of an element.
const WIDTH: usize = size_of::<f32>();

/// A lane of a link, in one generation of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneId {
    pub link: u64,
    pub from: usize,
    pub lane: Lane,
    pub generation: Generation,
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorPlace {
    at: usize,
    count: usize,
    digest: u64,
}

/// The end of an attempt to put a tensor into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The tensor lies at this place.
    At(TensorPlace),
    /// There is no room until the receiver has read something.
    Full,
    /// It has to go over the link.
    OverLink,
}

/// The memory of all lanes.
#[derive(Debug, Default)]
pub struct LaneMemories {
    lanes: BTreeMap<LaneId, LaneSegment>,
}

#[derive(Debug)]
struct LaneSegment {
    ring: MemoryRing,
    values: Vec<f32>,
    /// The streams that wait for room, the longest first.
    waiting: VecDeque<StreamId>,
}

/// Whether the tensors of this lane go through memory.
fn is_shared(lane: LaneId, machines: [NodeId; 2]) -> bool {
    let [NodeId::Worker(one), NodeId::Worker(other)] = machines else { return false };
    lane.lane.is_of_each_step()
        && one % 2 == other % 2
        && !mix(lane.link ^ mix(lane.generation.0)).is_multiple_of(8)
}

impl LaneMemories {
    /// Writes a tensor that sets out on a stream. With the planted bug `frees_early`
    /// the range counts as read at once.
    pub fn put(
        &mut self,
        stream: StreamId,
        machines: [NodeId; 2],
        frees_early: bool,
        values: &[f32],
    ) -> Put {
        let lane = stream.lane_id();
        if !is_shared(lane, machines) {
            return Put::OverLink;
        }
        let bytes = SEGMENT_TENSORS * (WIDTH * values.len()).next_multiple_of(ALIGNMENT);
        let memory = self.lanes.entry(lane).or_insert_with(|| LaneSegment::new(bytes));
        if WIDTH * memory.values.len() < bytes {
            return Put::OverLink;
        }
        let Some(at) = memory.ring.take(WIDTH * values.len()) else {
            if !memory.waiting.contains(&stream) {
                memory.waiting.push_back(stream);
            }
            return Put::Full;
        };
        memory.values[at / WIDTH..][..values.len()].copy_from_slice(values);
        if frees_early {
            memory.ring.release(at);
        }
        Put::At(TensorPlace { at, count: values.len(), digest: reduce::digest(0, values) })
    }

    /// What lies at this place. None if it is not what was put there.
    pub fn read(&self, lane: LaneId, place: TensorPlace) -> Option<Shared> {
        let values = &self.lanes.get(&lane)?.values[place.at / WIDTH..][..place.count];
        (reduce::digest(0, values) == place.digest)
            .then(|| Shared::new(Buffer::detached(values.to_vec())))
    }

    /// The receiver is done with this place. Returns the streams that may try again.
    pub fn release(&mut self, lane: LaneId, place: TensorPlace) -> VecDeque<StreamId> {
        let Some(memory) = self.lanes.get_mut(&lane) else { return VecDeque::new() };
        memory.ring.release(place.at);
        std::mem::take(&mut memory.waiting)
    }

    /// Whether a stream waits for room in the memory of its lane.
    pub fn awaits_room(&self, lane: LaneId, stream: StreamId) -> bool {
        self.lanes.get(&lane).is_some_and(|memory| memory.waiting.contains(&stream))
    }

    /// Keeps the memory of these lanes. That of other lanes is closed, and nothing in it is of use.
    pub fn retain(&mut self, is_used: impl Fn(&LaneId) -> bool) {
        self.lanes.retain(|lane, _| is_used(lane));
    }
}

impl LaneSegment {
    /// Memory of so many bytes.
    fn new(bytes: usize) -> Self {
        let (ring, values) = (MemoryRing::new(bytes), vec![0.0; bytes / WIDTH]);
        Self { ring, values, waiting: VecDeque::new() }
    }
}
