//! The threads that share an operation. An operation is cut over rows or columns, and no sum is
//! cut, so the bits do not depend on the number of threads.

use std::ops::Range;
use std::sync::Arc;

use rayon_core::{ThreadPool, ThreadPoolBuilder};

/// An operation of less work than this is not cut, elements: it is done before another thread is
/// awake.
const MIN_WORK: usize = 32 << 10;
/// The priority of all these threads, as a nice value: that of a thread that computes alone.
#[cfg(target_os = "linux")]
const NICE: i32 = 5;
/// Pieces of a vector begin at multiples of so many elements: no two threads write one line of the
/// cache.
const LINE: usize = 64;

/// The threads of a device. Clones share them.
#[derive(Clone, Debug)]
pub struct Threads {
    /// None if there is one thread, which is the caller's.
    pool: Option<Arc<ThreadPool>>,
    count: usize,
}

/// The caller's thread alone.
impl Default for Threads {
    fn default() -> Self {
        Self { pool: None, count: 1 }
    }
}

impl Threads {
    /// Starts `count` threads, at least one. If the system has no more threads to give, there is
    /// the caller's alone.
    pub fn new(count: usize) -> Self {
        let name = |number| format!("compute-{number}");
        let begin = || {
            let builder = ThreadPoolBuilder::new().num_threads(count).thread_name(name);
            builder.start_handler(|_| give_way()).build().ok()
        };
        let pool = (count > 1).then(begin).flatten();
        let count = pool.as_ref().map_or(1, ThreadPool::current_num_threads);
        Self { pool: pool.map(Arc::new), count }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Cuts `count` rows or columns into a piece for each thread, or into fewer if there is little
    /// work. The lengths of all pieces but the last one are multiples of `unit`. `work` is that of
    /// all rows, elements.
    pub fn cut(&self, count: usize, unit: usize, work: usize) -> Vec<Range<usize>> {
        let units = count.div_ceil(unit);
        let pieces = (work / MIN_WORK).min(self.count).min(units).max(1);
        let begin = |piece: usize| (units * piece / pieces * unit).min(count);
        (0..pieces).map(|piece| begin(piece)..begin(piece + 1)).collect()
    }

    /// Copies as many values, on all threads if they are many.
    pub fn copy<T: Copy + Send + Sync>(&self, from: &[T], to: &mut [T]) {
        self.map(from, to, |from, to| to.copy_from_slice(from));
    }

    /// Does some work on pieces of as many inputs and outputs, on all threads if they are many.
    pub fn map<T: Sync, U: Send>(
        &self,
        from: &[T],
        to: &mut [U],
        work: impl Fn(&[T], &mut [U]) + Sync,
    ) {
        self.map_at_cost(from, to, 1, work);
    }

    /// As [`Self::map`], for work that takes `cost` times as long as a sum of two f32.
    pub(crate) fn map_at_cost<T: Sync, U: Send>(
        &self,
        from: &[T],
        to: &mut [U],
        cost: usize,
        work: impl Fn(&[T], &mut [U]) + Sync,
    ) {
        assert_eq!(from.len(), to.len(), "an output for each input");
        let words = size_of_val(from) / size_of::<f32>();
        let pieces = self.cut(from.len(), LINE, words * cost);
        let inputs = pieces.iter().map(|piece| &from[piece.clone()]);
        self.each(inputs.zip(rows(to, 1, &pieces)).collect(), |(from, to)| work(from, to));
    }

    /// Does two things at once, if there are two threads and `work` elements are enough.
    pub fn both<A: Send, B: Send>(
        &self,
        work: usize,
        one: impl FnOnce() -> A + Send,
        other: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        match self.pool.as_ref().filter(|_| work >= MIN_WORK) {
            Some(pool) => pool.join(one, other),
            None => (one(), other()),
        }
    }

    /// The results of some work on each of these parts, in their order, on all threads.
    pub fn results<T: Send, R: Send>(&self, parts: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
        let mut results: Vec<Option<R>> = parts.iter().map(|_| None).collect();
        let places = parts.into_iter().zip(&mut results).collect();
        self.each(places, |(part, result)| *result = Some(work(part)));
        results.into_iter().map(|it| it.expect("each part is worked on")).collect()
    }

    /// Does some work for each of these parts, on all threads.
    pub fn each<T: Send>(&self, parts: Vec<T>, work: impl Fn(T) + Sync) {
        let Some(pool) = self.pool.as_ref().filter(|_| parts.len() > 1) else {
            return parts.into_iter().for_each(work);
        };
        let work = &work;
        pool.scope(|scope| parts.into_iter().for_each(|part| scope.spawn(move |_| work(part))));
    }
}

/// The calling thread gets a lower priority than the network thread: heartbeats come first. Where
/// the system refuses, the thread computes all the same.
#[cfg(target_os = "linux")]
fn give_way() {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
}

#[cfg(not(target_os = "linux"))]
fn give_way() {}

/// The rows of a matrix in these pieces, one after the other. A row has `width` elements.
pub(crate) fn rows<'a, T>(
    mut matrix: &'a mut [T],
    width: usize,
    pieces: &[Range<usize>],
) -> Vec<&'a mut [T]> {
    let mut piece = |rows: &Range<usize>| {
        let (piece, rest) = std::mem::take(&mut matrix).split_at_mut(rows.len() * width);
        matrix = rest;
        piece
    };
    pieces.iter().map(&mut piece).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[test]
    fn every_row_is_in_one_piece() {
        for threads in 1..5 {
            let threads = Threads::new(threads);
            for (count, unit) in [(0, 1), (1, 1), (3, 14), (28, 14), (29, 14), (100, 1), (101, 32)]
            {
                for work in [1, 1 << 20] {
                    let pieces = threads.cut(count, unit, work);
                    let all: Vec<usize> = pieces.iter().cloned().flatten().collect();
                    assert_eq!(all, (0..count).collect::<Vec<_>>(), "{count} {unit} {work}");
                    assert!(
                        pieces
                            .iter()
                            .all(|piece| piece.start.is_multiple_of(unit) || piece.is_empty())
                    );
                    assert!(pieces.len() <= if work == 1 { 1 } else { threads.count });
                }
            }
        }
    }

    #[test]
    fn values_of_any_size_are_copied_whole_and_two_things_are_both_done() {
        for threads in [Threads::default(), Threads::new(3)] {
            for count in [0, 1, 100, MIN_WORK - 1, 9 * MIN_WORK + 5] {
                let bytes: Vec<u8> = (0..count).map(|index| (index % 251) as u8).collect();
                let mut copy = vec![0; count];
                threads.copy(&bytes, &mut copy);
                assert!(copy == bytes, "{count}");
                let mut doubled = vec![0.0f32; count];
                threads.map(&bytes, &mut doubled, |from, to| {
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = 2.0 * f32::from(*from));
                });
                assert!(doubled.iter().zip(&bytes).all(|(to, from)| *to == 2.0 * f32::from(*from)));
                assert_eq!(threads.both(count, || count, || count + 1), (count, count + 1));
            }
        }
    }

    #[test]
    fn every_part_is_worked_on_once() {
        for count in [1, 3] {
            let done = [const { AtomicUsize::new(0) }; 40];
            Threads::new(count).each(done.iter().collect(), |part: &AtomicUsize| {
                part.fetch_add(1, Relaxed);
            });
            assert!(done.iter().all(|part| part.load(Relaxed) == 1));
        }
    }
}
