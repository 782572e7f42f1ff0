//! Memory that computing and the wire share: vectors of f32 that are also little-endian bytes.
//!
//! A [`Pool`] hands out [`Buffer`]s; one that is dropped, on whatever thread, goes back to its
//! pool, so that a step allocates nothing that an earlier one already had. The free memory that a
//! pool keeps is bounded. Buffers know nothing of what they hold or of who reads it.
//!
//! The free list is tried in every interleaving of two threads by
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p everstep-kernels --lib --release \
//!     --target-dir target/loom loom
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use crate::sync::{Arc, Mutex, MutexGuard};

#[cfg(target_endian = "big")]
compile_error!("the wire's elements are little-endian, and buffers go onto it as they are");

/// A buffer that several hold and nobody writes again.
pub type Shared = std::sync::Arc<Buffer>;

/// A vector of f32 of fixed length, alone in its memory.
pub struct Buffer {
    /// At least `length` elements; what is beyond is the pool's reserve.
    memory: Vec<f32>,
    length: usize,
    pool: Option<Pool>,
}

impl Buffer {
    /// A buffer of no pool: its memory is freed when it is dropped.
    pub fn detached(values: Vec<f32>) -> Self {
        Self { length: values.len(), memory: values, pool: None }
    }

    /// The values as they go onto the wire, four bytes each, little-endian.
    pub fn as_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    /// The values as they come from the wire; any bytes are some values.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self)
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[..self.length]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[..self.length]
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(formatter)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.give_back(std::mem::take(&mut self.memory));
        }
    }
}

/// Memory to be used again. Clones are the same pool.
#[derive(Clone, Debug)]
pub struct Pool {
    free: Arc<Mutex<Free>>,
    limit_bytes: usize,
}

/// The free list, the longest unused first.
#[derive(Debug, Default)]
struct Free {
    list: VecDeque<Vec<f32>>,
    size_bytes: usize,
}

impl Pool {
    /// A pool that keeps at most `limit_bytes` of free memory; how much is in use is not bounded
    /// here.
    pub fn new(limit_bytes: usize) -> Self {
        Self { free: Arc::new(Mutex::new(Free::default())), limit_bytes }
    }

    /// A buffer of `length` elements. Its values are whatever an earlier user left, or zero.
    pub fn take(&self, length: usize) -> Buffer {
        // Outside the lock: new memory is the slow case.
        let reused = self.lock().take(length);
        let memory = reused.unwrap_or_else(|| vec![0.0; length]);
        Buffer { memory, length, pool: Some(self.clone()) }
    }

    fn give_back(&self, memory: Vec<f32>) {
        let size = size_bytes(&memory);
        if size == 0 || size > self.limit_bytes {
            return;
        }
        let mut free = self.lock();
        free.size_bytes += size;
        free.list.push_back(memory);
        // What was not asked for longest makes room: lengths may change over a run.
        while free.size_bytes > self.limit_bytes {
            let oldest = free.list.pop_front().expect("bytes are of the list's vectors");
            free.size_bytes -= size_bytes(&oldest);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        // A holder that panicked (none does) would leave a list that is sound all the same.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Free {
    /// The most recently used memory (it may still be in the cache) that fits without wasting half.
    fn take(&mut self, length: usize) -> Option<Vec<f32>> {
        let fits = |memory: &Vec<f32>| (length..=length.saturating_mul(2)).contains(&memory.len());
        let memory = self.list.remove(self.list.iter().rposition(fits)?)?;
        self.size_bytes -= size_bytes(&memory);
        Some(memory)
    }
}

fn size_bytes(memory: &[f32]) -> usize {
    size_of_val(memory)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Lengths of the free vectors, the longest unused first.
    fn free(pool: &Pool) -> Vec<usize> {
        let free = pool.lock();
        let lengths: Vec<usize> = free.list.iter().map(Vec::len).collect();
        assert_eq!(free.size_bytes, 4 * lengths.iter().sum::<usize>());
        lengths
    }

    #[test]
    fn dropped_memory_is_used_again() {
        let pool = Pool::new(1 << 10);
        let mut first = pool.take(10);
        first.fill(7.0);
        let address = first.as_ptr();
        drop(first);
        let again = pool.clone().take(8);
        assert_eq!((again.as_ptr(), again.len()), (address, 8));
        assert!(free(&pool).is_empty());
        drop(again);
        assert_eq!(free(&pool), [10]);
    }

    #[test]
    fn memory_twice_as_long_as_asked_for_is_left_to_others() {
        let pool = Pool::new(1 << 10);
        drop(pool.take(21));
        assert_eq!(pool.take(10).memory.len(), 10);
        assert_eq!(free(&pool), [21, 10]);
    }

    /// Invariant I10.
    #[test]
    fn free_memory_is_bounded_and_the_longest_unused_goes_first() {
        let pool = Pool::new(4 * 100);
        let buffers = [40, 30, 50].map(|length| pool.take(length));
        drop(buffers);
        assert_eq!(free(&pool), [30, 50]);
        drop(pool.take(101));
        drop(pool.take(0));
        assert_eq!(free(&pool), [30, 50]);
    }

    #[test]
    fn buffers_outlive_their_pool_and_other_threads_give_them_back() {
        let pool = Pool::new(1 << 10);
        let shared = Shared::new(pool.take(4));
        let other = Shared::clone(&shared);
        drop(shared);
        assert!(free(&pool).is_empty());
        std::thread::spawn(move || drop(other)).join().expect("the thread ends");
        assert_eq!(free(&pool), [4]);
        let last = pool.take(4);
        drop(pool);
        assert_eq!(last.len(), 4);
    }

    #[test]
    fn bytes_are_the_elements_in_little_endian_order() {
        let mut buffer = Buffer::detached(vec![1.0, -2.5]);
        let bytes: Vec<u8> = [1.0f32, -2.5].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(buffer.as_bytes(), bytes);
        buffer.as_bytes_mut()[4..].copy_from_slice(&0.5f32.to_le_bytes());
        assert_eq!(*buffer, [1.0, 0.5]);
        assert!(Pool::new(0).take(0).as_bytes().is_empty());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// Takes and drops twice; meanwhile nobody else writes into what it holds.
    fn use_pool(pool: &Pool, mark: f32) {
        for _ in 0..2 {
            let mut buffer = pool.take(2);
            buffer.fill(mark);
            loom::thread::yield_now();
            assert_eq!(*buffer, [mark; 2]);
        }
    }

    #[test]
    fn no_two_threads_hold_the_same_memory_and_the_limit_holds() {
        loom::model(|| {
            // Room for one of the two buffers.
            let pool = Pool::new(8);
            let other = pool.clone();
            let thread = loom::thread::spawn(move || use_pool(&other, 1.0));
            use_pool(&pool, 2.0);
            thread.join().expect("the thread ends");
            let free = pool.lock();
            assert_eq!((free.list.len(), free.size_bytes), (1, 8));
        });
    }

    #[test]
    fn a_shared_buffer_goes_back_once_whoever_drops_it_last() {
        loom::model(|| {
            let pool = Pool::new(64);
            let shared = loom::sync::Arc::new(pool.take(2));
            let other = loom::sync::Arc::clone(&shared);
            let thread = loom::thread::spawn(move || drop(other));
            drop(shared);
            thread.join().expect("the thread ends");
            assert_eq!(pool.lock().list.len(), 1);
        });
    }
}
