//! Memory of tensors, which PyTorch or JAX owns.
//!
//! Only this file turns an address into memory. Its users are the two ends of a pass: the thread of
//! the script, which keeps the tensors, and the device's thread, which reads gradients and writes
//! parameters while the script's thread waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The f32 elements of one contiguous tensor.
pub struct TensorMemory {
    address: *mut f32,
    count: usize,
    writes: Writes,
}

/// How often a tensor was written here. The script's thread asks for that where it computes with a
/// copy of the tensor.
#[derive(Clone, Default)]
pub struct Writes(Arc<AtomicU64>);

impl Writes {
    /// The number of writes. A thread that waits for the writing one finds all that were before.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

// SAFETY: the elements are plain numbers, and `TensorMemory::new` requires that no other thread
// uses them while this value does.
unsafe impl Send for TensorMemory {}

impl TensorMemory {
    /// The memory at an address.
    ///
    /// # Safety
    /// `count` initialized f32 elements lie there, aligned. They stay there as long as the value
    /// lives, and no other thread writes to them while it is read, or uses them while it is
    /// written.
    pub unsafe fn new(address: usize, count: usize) -> Self {
        let address = std::ptr::with_exposed_provenance_mut(address);
        Self { address, count, writes: Writes::default() }
    }

    /// The count of the writes.
    pub fn writes(&self) -> Writes {
        self.writes.clone()
    }

    pub fn values(&self) -> &[f32] {
        if self.count == 0 {
            return &[];
        }
        // SAFETY: `new` requires that they are there, and that no thread writes to them meanwhile.
        unsafe { std::slice::from_raw_parts(self.address, self.count) }
    }

    /// Overwrites the elements from `offset` on.
    ///
    /// # Panics
    /// If they are not inside the tensor.
    pub fn write(&mut self, offset: usize, values: &[f32]) {
        assert!(offset + values.len() <= self.count, "the values lie inside the tensor");
        // SAFETY: they lie inside the memory, and `new` requires that no other thread uses it.
        unsafe {
            let to = self.address.add(offset);
            std::ptr::copy_nonoverlapping(values.as_ptr(), to, values.len());
        }
        self.writes.0.fetch_add(1, Ordering::Release);
    }
}
