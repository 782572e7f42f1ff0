//! The newest records of a history that grows without end: metrics lines, or events.
//!
//! In: records with ascending numbers. Out: the newest of them, as a slice. The coordinators have
//! all of them: the launcher asks again for older ones that it needs.

use std::ops::Deref;

use everstep_transport::protocol::MetricsLine;
use everstep_transport::protocol::outcome::Event;

/// How many of the newest records stay in memory at least.
pub(super) const ROOM: usize = 4_096;

/// A record with a number of its own, from 1.
pub(super) trait Numbered {
    /// The number: a later record has a greater one.
    fn number(&self) -> u64;
}

impl Numbered for MetricsLine {
    fn number(&self) -> u64 {
        self.step.0
    }
}

impl Numbered for Event {
    fn number(&self) -> u64 {
        self.number
    }
}

/// The newest records of a history, in order, as a slice. Older ones are gone from memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Recent<T> {
    records: Vec<T>,
    /// The number of the newest record that is gone. 0 if none is.
    before: u64,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { records: Vec::new(), before: 0 }
    }
}

impl<T> Deref for Recent<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.records
    }
}

#[allow(private_bounds)] // a user of the slice needs no number
impl<T: Numbered> Recent<T> {
    /// Adds the next record.
    pub(super) fn push(&mut self, record: T) {
        self.records.push(record);
    }

    /// Drops the oldest records where there are twice as many as have room.
    pub(super) fn trim(&mut self) {
        if self.records.len() < 2 * ROOM {
            return;
        }
        let old = self.records.drain(..self.records.len() - ROOM);
        self.before = old.last().map_or(self.before, |record| record.number());
    }

    /// Whether the first record of the history is here, or will come next.
    pub(super) fn is_whole(&self) -> bool {
        self.before == 0
    }

    /// The number of the newest record, here or gone. 0 before the first.
    pub(super) fn newest(&self) -> u64 {
        self.records.last().map_or(self.before, Numbered::number)
    }

    /// The records after this number. None if some of them are gone.
    pub(super) fn after(&self, number: u64) -> Option<&[T]> {
        let from = self.records.partition_point(|record| record.number() <= number);
        (number >= self.before).then(|| &self.records[from..])
    }

    /// Takes the records after this number out.
    pub(super) fn cut(&mut self, number: u64) -> Vec<T> {
        let from = self.records.partition_point(|record| record.number() <= number);
        self.records.split_off(from)
    }

    /// Forgets all records. The ones after this number come next.
    pub(super) fn rewind(&mut self, number: u64) {
        *self = Self { records: Vec::new(), before: number };
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    impl Numbered for u64 {
        fn number(&self) -> u64 {
            *self
        }
    }

    /// A history of these records, of which the one with the number `before` is gone.
    pub(in crate::cluster) fn recent(before: u64, records: &[u64]) -> Recent<u64> {
        Recent { records: records.to_vec(), before }
    }

    #[test]
    fn the_newest_records_stay_and_the_number_of_those_that_are_gone_is_known() {
        let mut all = Recent::default();
        let mut most = 0;
        for number in 1..=100_000 {
            all.push(number);
            all.trim();
            most = most.max(all.len());
        }
        assert!(most < 2 * ROOM && all.len() >= ROOM);
        assert_eq!((all.newest(), all.last()), (100_000, Some(&100_000)));
        assert!(!all.is_whole());
        assert_eq!(all.after(99_998), Some(&[99_999, 100_000][..]));
        assert_eq!(all.after(all.before).map(<[u64]>::len), Some(all.len()));
        assert_eq!(all.after(all.before - 1), None, "that one is gone");
    }

    #[test]
    fn records_that_were_taken_out_or_are_gone_come_again() {
        let mut all = recent(0, &[1, 2, 4, 7]);
        assert_eq!(all.cut(3), [4, 7]);
        assert_eq!((all.newest(), all.is_whole()), (2, true));
        all.rewind(9);
        assert_eq!((all.newest(), all.is_empty(), all.is_whole()), (9, true, false));
        assert_eq!(all.after(9), Some(&[][..]));
    }
}
