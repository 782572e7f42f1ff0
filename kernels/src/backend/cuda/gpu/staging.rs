//! Pinned memory of the host, by way of which bytes reach a GPU. (They come back by way of
//! `fetches.rs`, in slots like these.)
//!
//! The GPU copies pinned memory by itself, at full speed, while the host does other work. It is a
//! ring of slots. A user of a slot waits until the slot's last copy is done.

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::thread::available_parallelism;

use cudarc::driver::result::{self, DriverError as Failure};
use cudarc::driver::sys::{CUevent_flags, CUresult};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};

use super::super::memory::PINNED_BYTES;
use super::devices::failed;
use super::error::CudaError;
use crate::threads::Threads;

/// Bytes of a slot: large enough for full speed, small enough that copies overlap.
pub(super) const SLOT_BYTES: usize = 4 << 20;
/// One slot is filled while the others are copied.
pub(super) const SLOTS: usize = 4;

/// Threads that fill a slot together. One is slower than a GPU takes the slots, and a few are as
/// fast as the memory.
const THREADS: usize = 4;

/// The ring of pinned slots.
pub struct Staging {
    slots: Vec<Slot>,
    next: usize,
    threads: Threads,
}

/// Pinned memory for one copy at a time.
pub(super) struct Slot {
    memory: NonNull<u8>,
    /// The event after which the copy from or to the slot is done.
    pub(super) done: CudaEvent,
}

// SAFETY: the memory belongs to the slot alone, and any thread may use pinned memory.
unsafe impl Send for Slot {}

impl Staging {
    /// Allocates the ring.
    ///
    /// # Errors
    /// [`CudaError::HostFull`]: the system lets no more memory be pinned. [`CudaError::Full`],
    /// [`CudaError::Failed`].
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        let slots: Result<_, _> = (0..SLOTS).map(|_| Slot::new(context)).collect();
        let cores = available_parallelism().map_or(1, Into::into);
        Ok(Self { slots: slots?, next: 0, threads: Threads::new(cores.min(THREADS)) })
    }

    /// Enqueues a copy of `bytes` to the device.
    pub fn write(&mut self, stream: &CudaStream, to: u64, bytes: &[u8]) -> Result<(), Failure> {
        for (index, part) in bytes.chunks(SLOT_BYTES).enumerate() {
            let threads = self.threads.clone();
            let slot = self.take()?;
            threads.copy(part, slot.bytes(part.len()));
            let to = to + (index * SLOT_BYTES) as u64;
            // SAFETY: the caller names memory of the device. The slot is not touched before its
            // event.
            unsafe { result::memcpy_htod_async(to, slot.bytes(part.len()), stream.cu_stream())? };
            slot.done.record(stream)?;
        }
        Ok(())
    }

    /// The slot with the oldest use, as soon as it is free.
    fn take(&mut self) -> Result<&mut Slot, Failure> {
        let slot = &mut self.slots[self.next];
        self.next = (self.next + 1) % SLOTS;
        slot.done.synchronize()?;
        Ok(slot)
    }
}

impl Slot {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, CudaError> {
        // A thread that waits for it does not spin.
        let flags = Some(CUevent_flags::CU_EVENT_BLOCKING_SYNC);
        let done = context.new_event(flags).map_err(|error| failed("cuEventCreate", error))?;
        // SAFETY: a context is bound, by the event above. The memory is freed once.
        let memory = unsafe { result::malloc_host(SLOT_BYTES, 0) };
        let memory = memory.map_err(|error| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => CudaError::HostFull { bytes: PINNED_BYTES },
            _ => failed("cuMemHostAlloc", error),
        })?;
        let memory = NonNull::new(memory.cast()).expect("what was allocated is somewhere");
        // SAFETY: there are as many bytes. From now on they are zeros.
        unsafe { memory.write_bytes(0, SLOT_BYTES) };
        Ok(Self { memory, done })
    }

    /// The first `len` bytes. The caller has waited for `done`.
    pub(super) fn bytes(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= SLOT_BYTES, "a part fits a slot");
        // SAFETY: the memory is initialised, at least as long, and borrowed with the slot. The GPU
        // has done with it, as the caller has waited for its event.
        unsafe { slice::from_raw_parts_mut(self.memory.as_ptr(), len) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let _ = self.done.synchronize();
        // SAFETY: the counterpart of this call allocated it, and no copy uses it any more.
        let _ = unsafe { result::free_host(self.memory.as_ptr().cast()) };
    }
}
