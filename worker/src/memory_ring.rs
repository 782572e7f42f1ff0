//! Shared memory: which ranges of a segment hold bytes that the reader has not read yet.
//!
//! Ranges are handed out in a circle, and come back in any order. No range is handed out again
//! before the reader has said that it is done with it: there is no other way for memory to be
//! used again.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::VecDeque;

use crate::step::event::Lane;

/// The distance of the beginnings of ranges, bytes: that of cache lines.
pub const ALIGNMENT: usize = 64;

/// The most bytes of the segments that one end of a link has open. What finds no room goes over
/// the link.
pub const LINK_BYTES: usize = 24 << 20;
/// A body of fewer bytes goes over the link, which is as fast then.
pub const MIN_BODY_BYTES: usize = 16 << 10;
/// How many tensors a segment has room for: one that is read while the next is written.
pub const SEGMENT_TENSORS: usize = 2;
/// The least bytes of a segment. Many small tensors may wait in it.
const MIN_SEGMENT_BYTES: usize = 1 << 20;

/// The bytes of a segment for bodies of so many bytes.
pub fn segment_bytes(body: usize) -> usize {
    MIN_SEGMENT_BYTES.max(SEGMENT_TENSORS * body.next_multiple_of(4096))
}

/// The most bytes of the segments that one end of a link has open for bodies of so many bytes.
pub fn link_bytes(body: usize) -> usize {
    let lanes = Lane::ALL.into_iter().filter(|lane| lane.is_of_each_step()).count();
    match body {
        ..MIN_BODY_BYTES => 0,
        _ => segment_bytes(body) * (LINK_BYTES / segment_bytes(body)).min(lanes),
    }
}

/// The ranges of one segment.
#[derive(Debug)]
pub struct MemoryRing {
    bytes: usize,
    /// The ranges that are handed out, and those between them that have come back: the oldest
    /// first. Each begins where the one before ends, or at the segment's beginning.
    ranges: VecDeque<LeasedRange>,
}

#[derive(Debug)]
struct LeasedRange {
    begin: usize,
    end: usize,
    is_released: bool,
}

impl MemoryRing {
    /// A segment of `bytes` bytes, all of it free.
    pub fn new(bytes: usize) -> Self {
        Self { bytes, ranges: VecDeque::new() }
    }

    /// Hands out a range of `bytes` bytes, and returns where it begins. None if there is no room
    /// now.
    pub fn take(&mut self, bytes: usize) -> Option<usize> {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        let begin = match (self.ranges.front(), self.ranges.back()) {
            (Some(oldest), Some(newest)) if newest.begin >= oldest.begin => {
                let fits_behind = bytes <= self.bytes - newest.end;
                let fits_before = bytes <= oldest.begin;
                fits_behind.then_some(newest.end).or(fits_before.then_some(0))
            }
            // The circle has begun again: what is free lies between the newest and the oldest.
            (Some(oldest), Some(newest)) => {
                (bytes <= oldest.begin - newest.end).then_some(newest.end)
            }
            _ => (bytes <= self.bytes).then_some(0),
        }?;
        self.ranges.push_back(LeasedRange { begin, end: begin + bytes, is_released: false });
        Some(begin)
    }

    /// The reader is done with the range that begins here. Returns whether it had one.
    pub fn release(&mut self, begin: usize) -> bool {
        let held = |range: &&mut LeasedRange| range.begin == begin && !range.is_released;
        let Some(range) = self.ranges.iter_mut().find(held) else { return false };
        range.is_released = true;
        while self.ranges.pop_front_if(|range| range.is_released).is_some() {}
        true
    }

    /// Whether the reader has nothing left to read.
    pub fn is_free(&self) -> bool {
        self.ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_link_has_a_segment_for_each_lane_as_far_as_its_bytes_go() {
        let mib = |bytes: usize| bytes / (1 << 20);
        assert_eq!([0, MIN_BODY_BYTES - 1].map(link_bytes), [0, 0]);
        assert_eq!([MIN_BODY_BYTES, 1 << 20, 4 << 20].map(|it| mib(link_bytes(it))), [3, 6, 24]);
        assert_eq!([6 << 20, 12 << 20, 13 << 20].map(|it| mib(link_bytes(it))), [24, 24, 0]);
    }

    #[test]
    fn ranges_are_handed_out_in_a_circle() {
        let mut ring = MemoryRing::new(256);
        assert_eq!([100, 60, 64].map(|bytes| ring.take(bytes)), [Some(0), Some(128), Some(192)]);
        assert_eq!(ring.take(1), None, "it is full");
        assert!(ring.release(0));
        assert_eq!(ring.take(129), None);
        assert_eq!(ring.take(128), Some(0));
        assert!(!ring.is_free() && ring.take(1).is_none());
    }

    #[test]
    fn a_range_that_comes_back_early_waits_for_the_older_ones() {
        let mut ring = MemoryRing::new(128);
        assert_eq!([64, 64].map(|bytes| ring.take(bytes)), [Some(0), Some(64)]);
        assert!(ring.release(64));
        assert_eq!(ring.take(64), None, "the oldest is still read");
        assert!(ring.release(0) && ring.is_free());
        assert_eq!(ring.take(128), Some(0));
    }

    #[test]
    fn a_range_comes_back_once() {
        let mut ring = MemoryRing::new(128);
        assert_eq!([64, 64].map(|bytes| ring.take(bytes)), [Some(0), Some(64)]);
        assert!(ring.release(64));
        assert!(!ring.release(64) && !ring.release(32) && !ring.release(usize::MAX));
    }

    #[test]
    fn what_is_larger_than_the_segment_gets_no_range() {
        assert_eq!(MemoryRing::new(128).take(129), None);
    }

    proptest! {
        #[test]
        fn i25_no_two_ranges_overlap_and_a_reader_of_everything_frees_everything(
            turns in prop::collection::vec((1..400_usize, any::<prop::sample::Index>()), 1..200),
        ) {
            let mut ring = MemoryRing::new(1024);
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (bytes, which) in turns {
                match ring.take(bytes) {
                    Some(begin) => {
                        let end = begin + bytes;
                        prop_assert!(end <= 1024);
                        let apart = held.iter().all(|(from, to)| end <= *from || *to <= begin);
                        prop_assert!(apart, "{begin}..{end} beside {held:?}");
                        held.push((begin, end));
                    }
                    None => {
                        prop_assert!(!held.is_empty(), "an empty ring has room");
                        let (begin, _) = held.swap_remove(which.index(held.len()));
                        prop_assert!(ring.release(begin));
                    }
                }
            }
            for (begin, _) in held {
                prop_assert!(ring.release(begin));
            }
            prop_assert!(ring.is_free());
        }
    }
}
