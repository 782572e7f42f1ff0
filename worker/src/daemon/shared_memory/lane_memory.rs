//! The memory of one lane: segments into which it copies tensors for the other end.

use everstep_kernels::shared_memory::Segment;
use everstep_transport::protocol::MemoryPlace;
use twox_hash::XxHash3_64;

use super::notice::MemoryNotice;
use super::ring::Ring;
use super::{LINK_BYTES, SharedMemory, Standing};

/// A body of fewer bytes goes over the link, which is as fast then.
const MIN_BYTES: usize = 16 << 10;
/// How many tensors a segment has room for: one that is read while the next is written.
const TENSORS: usize = 2;
/// The least bytes of a segment. Many small tensors may wait in it.
const MIN_SEGMENT_BYTES: usize = 1 << 20;

/// The memory of one lane, in one generation. Its drop closes the segments.
#[derive(Debug)]
pub struct LaneMemory {
    shared: SharedMemory,
    /// The meeting of the two ends after which the segments were opened.
    met: u64,
    /// The segments, with their numbers. The last one is in use. What is left to read in the
    /// others was too small for later tensors.
    segments: Vec<(u32, Segment)>,
}

impl LaneMemory {
    /// No segment yet, for the lane of a link with this memory.
    pub fn new(shared: SharedMemory) -> Self {
        Self { shared, met: 0, segments: Vec::new() }
    }

    /// Copies a body into memory that the other end reads, and returns the place. Waits until
    /// there is room. None if the body has to go over the link.
    pub async fn put(&mut self, body: &[u8]) -> Option<MemoryPlace> {
        let met = self.shared.meeting().filter(|_| body.len() >= MIN_BYTES)?;
        if std::mem::replace(&mut self.met, met) != met {
            self.close_all();
        }
        self.close_read();
        if self.segments.last().is_none_or(|(_, segment)| segment.bytes() < TENSORS * body.len()) {
            self.open(body.len())?;
        }
        let (number, segment) = self.segments.last_mut()?;
        let at = self.shared.room((met, *number), body.len()).await?;
        segment.write(at, body);
        let digest = XxHash3_64::oneshot(body);
        Some(MemoryPlace { segment: *number, at: at as u64, digest })
    }

    /// Opens a segment for bodies of this size. None if the link has no more memory, or the system.
    fn open(&mut self, body: usize) -> Option<()> {
        let bytes = MIN_SEGMENT_BYTES.max(TENSORS * body.next_multiple_of(4096));
        let created = |segment: &Segment| segment.descriptor().try_clone_to_owned();
        let opened = self.shared.change(|state| {
            if state.own_bytes + bytes > LINK_BYTES {
                return Ok(None);
            }
            let segment = Segment::create(bytes)?;
            let (number, file) = (state.own_next, created(&segment)?);
            state.own_bytes += bytes;
            state.own_next += 1;
            state.rings.insert(number, Ring::new(bytes));
            // Under the lock, so that the numbers arrive in order.
            self.shared.notify(MemoryNotice::Open { segment: number, file });
            Ok::<_, std::io::Error>(Some((number, segment)))
        });
        match opened {
            Ok(segment) => self.segments.push(segment?),
            Err(error) => {
                tracing::warn!(%error, "no memory to share: tensors go over the network");
                self.shared.change(|state| state.is_refused = true);
                return None;
            }
        }
        Some(())
    }

    /// Closes all segments but the last that the other end has read.
    fn close_read(&mut self) {
        let last = self.segments.len().saturating_sub(1);
        let before = self.segments.drain(..last);
        let (read, unread): (Vec<_>, Vec<_>) = before.partition(|(number, _)| {
            self.shared.state().rings.get(number).is_none_or(Ring::is_free)
        });
        self.segments.splice(..0, unread);
        read.iter().for_each(|segment| self.close(segment));
    }

    fn close_all(&mut self) {
        let segments = std::mem::take(&mut self.segments);
        segments.iter().for_each(|segment| self.close(segment));
    }

    fn close(&self, (number, segment): &(u32, Segment)) {
        self.shared.change(|state| {
            state.rings.remove(number);
            state.own_bytes -= segment.bytes();
        });
        self.shared.notify(MemoryNotice::Close { segment: *number });
    }
}

impl Drop for LaneMemory {
    fn drop(&mut self) {
        self.close_all();
    }
}

impl SharedMemory {
    /// The meeting since which the two ends share memory. None if they share none that this end
    /// could write.
    fn meeting(&self) -> Option<u64> {
        let state = self.state();
        let may_put = state.standing == Standing::Sharing && !state.is_refused;
        may_put.then_some(state.met)
    }

    /// Waits for a range of an own segment that was opened after this meeting. None if it ends.
    async fn room(&self, (met, number): (u64, u32), bytes: usize) -> Option<usize> {
        let mut changed = self.inner.changed.subscribe();
        loop {
            {
                let mut state = self.state();
                if state.standing != Standing::Sharing || state.met != met {
                    return None;
                }
                let ring = state.rings.get_mut(&number)?;
                if let Some(at) = ring.take(bytes) {
                    return Some(at);
                }
            }
            let _ = changed.changed().await; // `self` holds the sender
        }
    }
}
