//! Gradients on their way to the host, while the GPU goes on computing. Also all other reads.
//!
//! Copies have a stream of their own. Before each copy it waits for an event. The computing stream
//! passes that event after all work enqueued before the request. Nothing on the computing stream
//! ever waits for a copy.
//!
//! Copies go to a ring of pinned slots, a long copy in parts of a slot each. A copy without a free
//! slot waits in a queue of addresses. So the pinned memory is that of the ring, however large the
//! model is. No work changes the requested memory, so the time of the copy does not matter.

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError as Failure};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};

use super::super::memory::PINNED_BYTES;
use super::devices::failed;
use super::error::CudaError;
use super::staging::{self, SLOT_BYTES, Slot};

/// One slot is lent while copies go to the others: 16 MiB in all.
const SLOTS: usize = 4;
const _: () = assert!((SLOTS + staging::SLOTS) * SLOT_BYTES == PINNED_BYTES);

/// The stream, the ring and the queue.
///
/// A slot is *free*, then *under way*, then lent. For the ring a lent slot is free again: the lent
/// values borrow from here, so no copy goes to the slot before the borrow has ended.
pub struct Fetches {
    slots: Vec<Slot>,
    /// The slot of the oldest part under way. Those of the others follow it around the ring.
    oldest: usize,
    /// The bytes of each part under way, oldest first.
    under_way: VecDeque<usize>,
    /// Copies without a free slot, oldest first.
    asked: VecDeque<Asked>,
    /// Dropped after the slots, which wait for their copies.
    stream: Arc<CudaStream>,
}

/// A requested copy, without the parts that are under way.
struct Asked {
    from: u64,
    bytes: usize,
    /// The event after which there is something to copy. The first part takes it: the others come
    /// later.
    computed: Option<CudaEvent>,
}

/// A part that has come: its slot, and its number of bytes.
#[derive(Clone, Copy)]
pub struct FetchedPart(usize, usize);

impl Fetches {
    /// Makes the stream, and allocates the ring.
    ///
    /// # Errors
    /// [`CudaError::HostFull`]: the system lets no more memory be pinned. [`CudaError::Full`],
    /// [`CudaError::Failed`].
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let stream = context.new_stream().map_err(|error| failed("cuStreamCreate", error))?;
        let slots: Result<_, _> = (0..SLOTS).map(|_| Slot::new(context)).collect();
        let (under_way, asked) = (VecDeque::new(), VecDeque::new());
        Ok(Self { slots: slots?, oldest: 0, under_way, asked, stream })
    }

    /// Requests a copy of the memory as it is after all work enqueued on `computing`.
    pub fn ask(&mut self, computing: &CudaStream, from: u64, bytes: usize) -> Result<(), Failure> {
        let computed = Some(computing.record_event(None)?);
        self.asked.push_back(Asked { from, bytes, computed });
        self.fill()
    }

    /// Copies the memory as it is after all work enqueued on `computing`, and returns when the copy
    /// has come. No earlier request is then left to come.
    pub fn read(
        &mut self,
        computing: &CudaStream,
        from: u64,
        into: &mut [u8],
    ) -> Result<(), Failure> {
        let nothing_is_left = self.under_way.is_empty() && self.asked.is_empty();
        assert!(nothing_is_left, "what was asked for is fetched before anything is read");
        self.ask(computing, from, into.len())?;
        let mut left = into;
        while let Some(FetchedPart(slot, bytes)) = self.next(true)? {
            let (part, rest) = left.split_at_mut(bytes);
            part.copy_from_slice(self.slots[slot].bytes(bytes));
            left = rest;
        }
        Ok(())
    }

    /// The oldest part that was not yet lent, if it has come. With `wait`, as soon as it has come.
    pub fn next(&mut self, wait: bool) -> Result<Option<FetchedPart>, Failure> {
        self.fill()?;
        let Some(bytes) = self.under_way.front().copied() else { return Ok(None) };
        let Slot { done, .. } = &self.slots[self.oldest];
        if wait {
            done.synchronize()?;
        } else if !done.try_is_complete()? {
            return Ok(None);
        }
        let part = FetchedPart(self.oldest, bytes);
        self.under_way.pop_front();
        self.oldest = (self.oldest + 1) % SLOTS;
        Ok(Some(part))
    }

    /// The values of the part that came last.
    pub fn values(&mut self, FetchedPart(slot, bytes): FetchedPart) -> &[f32] {
        // The system begins pinned memory at a page, and parts are cut at multiples of a slot.
        bytemuck::cast_slice(self.slots[slot].bytes(bytes))
    }

    /// Waits for all copies under way. Nothing reads the device's memory after it.
    pub fn finish(&self) -> Result<(), Failure> {
        self.stream.synchronize()
    }

    /// Enqueues copies to all free slots.
    fn fill(&mut self) -> Result<(), Failure> {
        while self.under_way.len() < SLOTS {
            let Some(asked) = self.asked.front_mut() else { break };
            if let Some(computed) = asked.computed.take() {
                // The stream keeps what it waits for, so the event itself may go.
                self.stream.wait(&computed)?;
            }
            let slot = &mut self.slots[(self.oldest + self.under_way.len()) % SLOTS];
            let bytes = asked.bytes.min(SLOT_BYTES);
            let to = slot.bytes(bytes);
            // SAFETY: the asker has named memory of the device. The slot is free: its last copy had
            // ended before it was lent, and the borrow of the lent values has ended, as this
            // borrows all of the ring. The slot is not touched again before `done`.
            unsafe { result::memcpy_dtoh_async(to, asked.from, self.stream.cu_stream())? };
            slot.done.record(&self.stream)?;
            self.under_way.push_back(bytes);
            asked.from += bytes as u64;
            asked.bytes -= bytes;
            if asked.bytes == 0 {
                self.asked.pop_front();
            }
        }
        Ok(())
    }
}
