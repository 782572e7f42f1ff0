//! Where the entries of the history lie in its file: stretches of the file, each with many entries.
//!
//! In: each entry with its place, as it is written or found. Out: the stretches from an entry, or
//! from an event, on. Entries of other coordinators come later in the file than newer entries, so a
//! stretch may have bytes of other entries within. The index thins itself out: its memory does not
//! grow with the file (I10).

use std::ops::Range;

use everstep_transport::protocol::{HistoryEntry, HistoryEvent};

use crate::history_coverage::HistoryCoverage;

/// How many stretches the index has at most. At more it makes them twice as long.
const MOST_STRETCHES: usize = 4_096;
/// The length of a stretch at first, in bytes.
const FIRST_SPAN: u64 = 32 << 10;

/// A part of the file. All its entries between the first and the last follow each other in the
/// history, in the order of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    first: u64,
    last: u64,
    /// The number of the newest event in it. 0 without events.
    newest_event: u64,
    /// The place of the first entry's record.
    pub(super) place: u64,
    /// Where the last entry's record ends.
    pub(super) end: u64,
}

impl Stretch {
    /// Whether an entry in these bytes belongs to the stretch.
    pub(super) fn has(&self, index: u64) -> bool {
        (self.first..=self.last).contains(&index)
    }
}

/// The stretches of a file, at most [`MOST_STRETCHES`].
#[derive(Debug)]
pub(super) struct HistoryIndex {
    /// In the order of the history.
    stretches: Vec<Stretch>,
    /// How long a stretch of several entries may be, in bytes.
    span: u64,
}

impl Default for HistoryIndex {
    fn default() -> Self {
        Self { stretches: Vec::new(), span: FIRST_SPAN }
    }
}

impl HistoryIndex {
    /// The record of an entry has these bytes of the file. `coverage` is that before the record.
    pub(super) fn note(
        &mut self,
        entry: &HistoryEntry,
        bytes: Range<u64>,
        coverage: &HistoryCoverage,
    ) {
        let numbers = entry.events.iter().map(|event| match event {
            HistoryEvent::Event(event) => event.number,
            HistoryEvent::Run(_) => 0,
        });
        let (first, newest_event) = (entry.index, numbers.max().unwrap_or(0));
        let Range { start: place, end } = bytes;
        let new = Stretch { first, last: first, newest_event, place, end };
        let at = self.stretches.partition_point(|stretch| stretch.first <= first);
        if !self.extend(at, &new, coverage) {
            self.stretches.insert(at, new);
            if self.stretches.len() > MOST_STRETCHES {
                self.thin(coverage);
            }
        }
    }

    /// The stretches that have entries from this one on.
    pub(super) fn since_entry(&self, index: u64) -> &[Stretch] {
        &self.stretches[self.stretches.partition_point(|stretch| stretch.last < index)..]
    }

    /// The stretches that have events after the one with this number.
    pub(super) fn after_event(&self, number: u64) -> &[Stretch] {
        let all = &self.stretches;
        let begin = all.iter().position(|stretch| stretch.newest_event > number);
        &all[begin.unwrap_or(all.len())..]
    }

    /// Appends a stretch to the one before this place, if they make one.
    fn extend(&mut self, at: usize, next: &Stretch, coverage: &HistoryCoverage) -> bool {
        let Some(before) = at.checked_sub(1).map(|at| &mut self.stretches[at]) else {
            return false;
        };
        let is_one = before.last < next.first
            && before.end <= next.place
            && next.end - before.place <= self.span
            && !coverage.lacks_between(before.last, next.first);
        if is_one {
            (before.last, before.end) = (next.last, next.end);
            before.newest_event = before.newest_event.max(next.newest_event);
        }
        is_one
    }

    /// Makes stretches twice as long.
    fn thin(&mut self, coverage: &HistoryCoverage) {
        self.span = self.span.saturating_mul(2);
        for stretch in std::mem::take(&mut self.stretches) {
            if !self.extend(self.stretches.len(), &stretch, coverage) {
                self.stretches.push(stretch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::RunId;

    use super::*;
    use crate::history_coverage::HistoryRecord;

    #[test]
    fn i10_the_index_does_not_grow_with_the_file() {
        let (mut index, coverage) = (HistoryIndex::default(), HistoryCoverage::default());
        let length = 8 << 10;
        for number in 1..=200_000 {
            let entry = HistoryEntry { index: number, events: vec![HistoryEvent::Run(RunId(1))] };
            index.note(&entry, number * length..(number + 1) * length, &coverage);
            assert!(index.stretches.len() <= MOST_STRETCHES);
        }
        assert!(index.stretches.len() >= MOST_STRETCHES / 4, "it still finds places");
        let [found, ..] = index.since_entry(150_000) else { panic!("a stretch") };
        assert!(found.has(150_000) && found.end - found.place <= index.span);
    }

    #[test]
    fn no_stretch_goes_over_entries_that_may_yet_come() {
        let (mut index, mut coverage) = (HistoryIndex::default(), HistoryCoverage::default());
        let mut place = 0;
        let mut note = |record: HistoryRecord| {
            if let HistoryRecord::Entry(entry) = &record {
                index.note(entry, place..place + 10, &coverage);
            }
            coverage.note(&record);
            place += 10;
            let ranges = index.stretches.iter().map(|stretch| (stretch.first, stretch.last));
            ranges.collect::<Vec<_>>()
        };
        let entry = |index| HistoryRecord::Entry(HistoryEntry { index, events: Vec::new() });
        assert_eq!(note(entry(2)), [(2, 2)]);
        assert_eq!(note(entry(4)), [(2, 4)]);
        note(HistoryRecord::Gap(9));
        assert_eq!(note(entry(10)), [(2, 4), (10, 10)]);
        assert_eq!(note(entry(6)), [(2, 6), (10, 10)]);
        assert_eq!(note(entry(11)), [(2, 6), (10, 11)]);
        assert_eq!(note(entry(9)), [(2, 9), (10, 11)]);
        assert_eq!(note(entry(12)), [(2, 9), (10, 12)]);
    }
}
