//! The memory of one lane: segments into which it copies tensors for the other end.

use std::io;

use everstep_kernels::shared_memory::Segment;
use everstep_transport::protocol::MemoryPlace;
use twox_hash::XxHash3_64;

use super::notice::MemoryNotice;
use super::{OwnSegment, SharedMemory};
use crate::memory_ring::{LINK_BYTES, MIN_BODY_BYTES, MemoryRing, SEGMENT_TENSORS, segment_bytes};

/// The memory of one lane, in one generation. Its drop closes the segments.
#[derive(Debug)]
pub struct LaneMemory {
    shared: SharedMemory,
    /// The segments, with their numbers. The last one is in use. The others, which are too small
    /// for the lane's tensors, have something left to read.
    segments: Vec<(u32, Segment)>,
    /// Whether this system, or the other end, has refused a segment.
    is_refused: bool,
}

impl LaneMemory {
    /// No segment yet, for the lane of a link with this memory.
    pub fn new(shared: SharedMemory) -> Self {
        Self { shared, segments: Vec::new(), is_refused: false }
    }

    /// Copies a body into memory that the other end reads, and returns the place. Waits until
    /// there is room. None if the body has to go over the link.
    pub async fn put(&mut self, body: &[u8]) -> Option<MemoryPlace> {
        if self.is_refused || body.len() < MIN_BODY_BYTES || !self.shared.is_shared() {
            return None;
        }
        self.close_read();
        let needed = SEGMENT_TENSORS * body.len();
        if self.segments.last().is_none_or(|(_, segment)| segment.bytes() < needed) {
            self.open(body.len());
        }
        let (number, segment) = self.segments.last_mut()?;
        match self.shared.state().own.get(number)?.is_taken {
            Some(true) if needed <= segment.bytes() => {}
            Some(false) => {
                self.is_refused = true;
                return None;
            }
            _ => return None,
        }
        let at = self.shared.room(*number, body.len()).await?;
        segment.write(at, body);
        let digest = XxHash3_64::oneshot(body);
        Some(MemoryPlace { segment: *number, at: at as u64, digest })
    }

    /// Opens a segment for bodies of this size, if the link and the system have memory for it.
    fn open(&mut self, body: usize) {
        match self.shared.open(segment_bytes(body)) {
            Ok(segment) => self.segments.extend(segment),
            Err(error) => {
                tracing::warn!(%error, "no memory to share: tensors go over the network");
                self.is_refused = true;
            }
        }
    }

    /// Closes all segments but the last that the other end has read.
    fn close_read(&mut self) {
        let last = self.segments.len().saturating_sub(1);
        let before = self.segments.drain(..last);
        let (read, unread): (Vec<_>, Vec<_>) =
            before.partition(|(number, _)| self.shared.is_read(*number));
        self.segments.splice(..0, unread);
        read.iter().for_each(|(number, segment)| self.shared.close(*number, segment));
    }
}

impl Drop for LaneMemory {
    fn drop(&mut self) {
        self.segments.iter().for_each(|(number, segment)| self.shared.close(*number, segment));
    }
}

impl SharedMemory {
    /// Opens an own segment. None if the link may have no more memory.
    fn open(&self, bytes: usize) -> io::Result<Option<(u32, Segment)>> {
        self.change(|state| {
            if state.own_bytes + bytes > LINK_BYTES {
                return Ok(None);
            }
            let (segment, file) = Segment::create(bytes)?;
            let number = state.own_next;
            let own = OwnSegment { ring: MemoryRing::new(bytes), is_taken: None };
            state.own.insert(number, own);
            state.own_bytes += bytes;
            state.own_next += 1;
            // Under the lock, so that the numbers arrive in order.
            let open = MemoryNotice::Open { segment: number, file: Some(file) };
            state.is_shared &= self.inner.notices.try_send(open).is_ok();
            Ok(Some((number, segment)))
        })
    }

    /// Waits for a range of an own segment. None if nothing is shared any more.
    async fn room(&self, number: u32, bytes: usize) -> Option<usize> {
        let mut changed = self.inner.changed.subscribe();
        loop {
            {
                let mut state = self.state();
                let own = state.own.get_mut(&number)?;
                if let Some(at) = own.ring.take(bytes) {
                    return Some(at);
                }
                if !state.is_shared {
                    return None;
                }
            }
            let _ = changed.changed().await; // `self` holds the sender
        }
    }

    /// Whether the other end has nothing left to read in an own segment.
    fn is_read(&self, number: u32) -> bool {
        self.state().own.get(&number).is_none_or(|own| own.ring.is_free())
    }

    fn close(&self, number: u32, segment: &Segment) {
        self.change(|state| {
            state.own.remove(&number);
            state.own_bytes -= segment.bytes();
        });
        self.notify(MemoryNotice::Close { segment: number });
    }
}
