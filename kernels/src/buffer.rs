//! Memory that computing and the wire share: vectors of f32 that are also little-endian bytes.
//!
//! A [`Pool`] hands out [`Buffer`]s. A dropped buffer, on any thread, goes back to its pool, so
//! that a step allocates nothing that an earlier one already had. The recent peak of memory in use
//! bounds the free memory that a pool keeps. Buffers do not know their content or their readers.
//!
//! The free list is tried in every interleaving of two threads by
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p everstep-kernels --lib --target-dir target/loom loom
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

use crate::sync::{Arc, Mutex, MutexGuard};

#[cfg(target_endian = "big")]
compile_error!("the wire's elements are little-endian, and buffers go onto it as they are");

/// A buffer with several holders, which no holder writes again.
pub type Shared = std::sync::Arc<Buffer>;

/// A vector of f32 of fixed length, alone in its memory.
pub struct Buffer {
    /// At least `length` elements. The rest is the pool's reserve.
    memory: Vec<f32>,
    length: usize,
    pool: Option<Pool>,
}

impl Buffer {
    /// A buffer of no pool. Its drop frees the memory.
    pub fn detached(values: Vec<f32>) -> Self {
        Self { length: values.len(), memory: values, pool: None }
    }

    /// The values as they go onto the wire: four bytes each, little-endian.
    pub fn as_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    /// The values as they come from the wire. Any bytes are some values.
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

/// Memory for repeated use. Clones are the same pool.
#[derive(Clone, Debug)]
pub struct Pool {
    free: Arc<Mutex<Free>>,
    limit_bytes: usize,
}

/// The free list, the longest unused first, with the demand for memory.
#[derive(Debug, Default)]
struct Free {
    list: VecDeque<Vec<f32>>,
    size_bytes: usize,
    /// Bytes in use now.
    used_bytes: usize,
    /// The most bytes in use at once, in this period and in the one before.
    most_bytes: [usize; 2],
    /// Bytes handed out in this period.
    handed_bytes: usize,
}

/// A period ends when the pool has handed out this many times the most that was in use.
const PERIOD: usize = 4;

impl Pool {
    /// A pool that keeps as much free memory as was in use at once before, and will be again. Free
    /// and used memory together are at most what was in use at once, until the pool has handed out
    /// some times as much. In any case it keeps up to `limit_bytes` of free memory. It does not
    /// bound the memory in use.
    pub fn new(limit_bytes: usize) -> Self {
        Self { free: Arc::new(Mutex::new(Free::default())), limit_bytes }
    }

    /// A buffer of `length` elements. Its values are those of an earlier user, or zero.
    pub fn take(&self, length: usize) -> Buffer {
        // Outside the lock, since new memory is the slow case.
        let reused = self.lock().take(length, self.limit_bytes);
        let memory = reused.unwrap_or_else(|| vec![0.0; length]);
        Buffer { memory, length, pool: Some(self.clone()) }
    }

    fn give_back(&self, memory: Vec<f32>) {
        self.lock().give_back(memory, self.limit_bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        // A holder that panicked (none does) would still leave a sound list.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Free {
    /// The most recently used memory (it may still be in the cache) that fits without wasting half.
    /// If there is none, the caller allocates what it needs.
    fn take(&mut self, length: usize, limit_bytes: usize) -> Option<Vec<f32>> {
        let fits = |memory: &Vec<f32>| (length..=length.saturating_mul(2)).contains(&memory.len());
        let place = self.list.iter().rposition(fits);
        let memory = place.and_then(|place| self.list.remove(place));
        self.size_bytes -= memory.as_deref().map_or(0, size_bytes);
        self.hand_out(memory.as_deref().map_or(size_of::<f32>() * length, size_bytes));
        self.trim(limit_bytes);
        memory
    }

    fn hand_out(&mut self, size: usize) {
        self.used_bytes += size;
        self.handed_bytes += size;
        let [most, _] = self.most_bytes;
        if self.handed_bytes > PERIOD * most {
            self.most_bytes = [self.used_bytes, most];
            self.handed_bytes = 0;
        } else {
            self.most_bytes[0] = most.max(self.used_bytes);
        }
    }

    fn give_back(&mut self, memory: Vec<f32>, limit_bytes: usize) {
        let size = size_bytes(&memory);
        self.used_bytes -= size;
        if size > 0 {
            self.size_bytes += size;
            self.list.push_back(memory);
        }
        self.trim(limit_bytes);
    }

    fn trim(&mut self, limit_bytes: usize) {
        let [most, before] = self.most_bytes;
        let kept = limit_bytes.max(most.max(before) - self.used_bytes);
        // The memory without a request for the longest time makes room: lengths may change over a
        // run.
        while self.size_bytes > kept {
            let oldest = self.list.pop_front().expect("bytes are of the list's vectors");
            self.size_bytes -= size_bytes(&oldest);
        }
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
        for length in [10, 30, 70] {
            drop(pool.take(length));
        }
        assert_eq!(free(&pool), [30, 70]);
        drop(pool.take(0));
        assert_eq!(free(&pool), [30, 70]);
        drop(pool.take(101));
        assert_eq!(free(&pool), [101], "as much as was in use at once is kept in any case");
    }

    /// Invariant I10.
    #[test]
    fn what_was_in_use_at_once_is_kept_until_less_is_enough_for_a_while() {
        let pool = Pool::new(0);
        let step = |lengths: &[usize]| {
            let taken: Vec<_> = lengths.iter().map(|length| pool.take(*length)).collect();
            drop(taken);
            free(&pool).iter().sum::<usize>()
        };
        assert_eq!(step(&[30, 30, 30, 30]), 120);
        assert_eq!(step(&[20]), 120, "it may be needed again in the next step");
        let lasted = (0..).take_while(|_| step(&[20]) > 30).count();
        assert!((PERIOD * 120 / 30..2 * PERIOD * 120 / 20).contains(&lasted), "{lasted}");

        let [first, second] = [30, 30].map(|length| pool.take(length));
        drop(first);
        let other = pool.take(70);
        assert_eq!(free(&pool), [], "free and in use are no more than was in use at once");
        drop([second, other]);
        assert_eq!(free(&pool), [30, 70]);
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

    /// Takes and drops twice. Meanwhile no other thread writes into the held memory.
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
            let pool = Pool::new(0);
            let other = pool.clone();
            let thread = loom::thread::spawn(move || use_pool(&other, 1.0));
            use_pool(&pool, 2.0);
            thread.join().expect("the thread ends");
            let free = pool.lock();
            // As many vectors as were in use at once.
            assert!([1, 2].contains(&free.list.len()));
            assert_eq!((free.size_bytes, free.used_bytes), (8 * free.list.len(), 0));
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
