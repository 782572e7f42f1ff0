//! Which records a coordinator's file of the history holds and lacks, and which to write.
//!
//! Events follow from the log. So the file only needs what the log has dropped, up to the log's
//! newest snapshot. A *seal* says up to which entry the file is complete. A coordinator that was
//! sent a snapshot lacks the history before it. A *gap* says so, until another coordinator has sent
//! that part. Meanwhile the coordinator writes new events as ever: perhaps no other coordinator
//! will have them.
//!
//! This module knows no file. The owner of a file appends each record that it gets, and then notes
//! it ([`HistoryCoverage::note`]). A new process notes all records that it finds.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::VecDeque;

use everstep_transport::protocol::HistoryEntry;
use rkyv::{Archive, Deserialize, Serialize};

/// A record of the file. A record of an entry behind all others tells what happened here. A record
/// of an earlier entry comes from another coordinator, and then nothing up to that entry is missing
/// any more.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum HistoryRecord {
    /// The events of an entry.
    Entry(HistoryEntry),
    /// No entry between the record before and this one had events.
    Seal(u64),
    /// The events of the entries between the record before and this one are missing.
    Gap(u64),
}

impl HistoryRecord {
    fn index(&self) -> u64 {
        match self {
            Self::Entry(HistoryEntry { index, .. }) | Self::Seal(index) | Self::Gap(index) => {
                *index
            }
        }
    }
}

/// How far the history goes, and which parts of it are missing.
#[derive(Clone, Debug, Default)]
pub struct HistoryCoverage {
    /// Up to this entry the file has all events, or knows them to be missing.
    reach: u64,
    /// The missing parts, in order: each from the entry after the first number up to the second.
    gaps: VecDeque<(u64, u64)>,
}

impl HistoryCoverage {
    /// The file has all events up to this entry.
    pub fn whole(&self) -> u64 {
        self.gaps.front().map_or(self.reach, |(before, _)| *before)
    }

    /// Up to this entry the file has all events, or knows them to be missing.
    pub fn reach(&self) -> u64 {
        self.reach
    }

    /// The first entry of the first missing part.
    pub fn wanted(&self) -> Option<u64> {
        self.gaps.front().map(|(before, _)| before + 1)
    }

    /// The record for the events of an entry. None if the file has reached that entry already.
    pub fn take(&self, entry: HistoryEntry) -> Option<HistoryRecord> {
        (entry.index > self.reach).then_some(HistoryRecord::Entry(entry))
    }

    /// The record before the log begins behind this entry. Everything known of the entries before
    /// is in the file, or is missing. The owner has to make the file durable first.
    pub fn seal(&self, index: u64) -> Option<HistoryRecord> {
        (index > self.reach).then_some(HistoryRecord::Seal(index))
    }

    /// The record when a snapshot has come from another coordinator: the log lacks the entries up
    /// to this one, and the file lacks their events.
    pub fn lack(&self, index: u64) -> Option<HistoryRecord> {
        (index > self.reach).then_some(HistoryRecord::Gap(index))
    }

    /// The record for a missing history entry that another coordinator has sent, after everything
    /// before it.
    pub fn fill(&self, entry: HistoryEntry) -> Option<HistoryRecord> {
        let told = entry.index.min(self.reach);
        let is_missing =
            |(before, last): &(u64, u64)| *before < entry.index && entry.index <= *last;
        // A history entry without events says that the sender has nothing more up to there.
        if !entry.events.is_empty() && self.gaps.iter().any(is_missing) {
            return Some(HistoryRecord::Entry(entry));
        }
        (told > self.whole()).then_some(HistoryRecord::Seal(told))
    }

    /// How far this coordinator knows the history, for the end of the last page, if that is at
    /// least as far as asked. `applied` is the newest entry that it has applied.
    pub fn last_word(&self, from: u64, applied: u64) -> Option<HistoryEntry> {
        let index = if self.gaps.is_empty() { applied } else { self.whole() };
        (index >= from).then_some(HistoryEntry { index, events: Vec::new() })
    }

    /// Whether entries between these two are missing, and may yet come.
    pub fn lacks_between(&self, before: u64, next: u64) -> bool {
        self.gaps.iter().any(|(_, last)| before < *last && *last < next)
    }

    /// Whether the record may follow those before. The file holds no event twice.
    pub fn is_followed_by(&self, record: &HistoryRecord) -> bool {
        let index = record.index();
        index > self.reach || index > self.whole() && !matches!(record, HistoryRecord::Gap(_))
    }

    /// A record stands in the file, behind all before.
    pub fn note(&mut self, record: &HistoryRecord) {
        let index = record.index();
        if index > self.reach {
            if matches!(record, HistoryRecord::Gap(_)) {
                self.gaps.push_back((self.reach, index));
            }
            self.reach = index;
            return;
        }
        while self.gaps.pop_front_if(|(_, last)| *last <= index).is_some() {}
        if let Some((before, _)) = self.gaps.front_mut() {
            *before = index.max(*before);
        }
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::{HistoryEvent, RunId};
    use proptest::prelude::*;

    use super::*;

    /// Every third entry has events.
    fn entries(from: u64, to: u64) -> impl Iterator<Item = HistoryEntry> {
        let brings = (from..=to).filter(|index| index % 3 == 0);
        brings.map(|index| HistoryEntry { index, events: vec![HistoryEvent::Run(RunId(index))] })
    }

    #[derive(Default)]
    struct File {
        coverage: HistoryCoverage,
        records: Vec<HistoryRecord>,
    }

    impl File {
        fn write(&mut self, record: Option<HistoryRecord>) {
            if let Some(record) = record {
                assert!(
                    self.coverage.is_followed_by(&record),
                    "{record:?} after {:?}",
                    self.coverage
                );
                self.coverage.note(&record);
                self.records.push(record);
            }
        }

        fn known(&self) -> Vec<u64> {
            let entry = |record: &HistoryRecord| match record {
                HistoryRecord::Entry(entry) => Some(entry.index),
                HistoryRecord::Seal(_) | HistoryRecord::Gap(_) => None,
            };
            let mut known: Vec<u64> = self.records.iter().filter_map(entry).collect();
            known.sort_unstable();
            known
        }
    }

    proptest! {
        /// I13: entries are applied, replaced by snapshots and told, in any order. The file has all
        /// events applied here. Once nothing is missing, it has all events once.
        #[test]
        fn i13_what_happens_while_something_is_missing_is_kept(
            events in prop::collection::vec((0u8..4, 1u64..20), 1..40),
        ) {
            let (mut file, mut applied, mut seen) = (File::default(), 0, Vec::new());
            for (event, count) in events {
                match event {
                    // A replica applies entries, some of them for the second time.
                    0 => {
                        let new = applied + count;
                        for entry in entries(applied.saturating_sub(3) + 1, new) {
                            if entry.index > applied {
                                seen.push(entry.index);
                            }
                            let record = file.coverage.take(entry);
                            file.write(record);
                        }
                        applied = new;
                    }
                    1 => file.write(file.coverage.seal(applied)),
                    2 => {
                        applied += count;
                        file.write(file.coverage.lack(applied));
                    }
                    // A page of another coordinator, which may be ahead.
                    _ => {
                        let Some(from) = file.coverage.wanted() else { continue };
                        let to = from + 2 * count;
                        let end = HistoryEntry { index: to, events: Vec::new() };
                        for entry in entries(from, to).chain([end]) {
                            let record = file.coverage.fill(entry);
                            file.write(record);
                        }
                    }
                }
                let known = file.known();
                prop_assert!(known.windows(2).all(|pair| pair[0] < pair[1]), "{known:?}");
                prop_assert!(seen.iter().all(|index| known.contains(index)));
                let (whole, reach) = (file.coverage.whole(), file.coverage.reach());
                let brought = entries(1, whole).map(|entry| entry.index);
                prop_assert!(brought.eq(known.into_iter().filter(|index| *index <= whole)));
                let mut again = HistoryCoverage::default();
                file.records.iter().for_each(|record| again.note(record));
                prop_assert_eq!((again.whole(), again.reach()), (whole, reach));
            }
        }
    }
}
