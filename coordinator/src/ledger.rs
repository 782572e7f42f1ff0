//! Which records a coordinator's file of the history holds and lacks, and which to write.
//!
//! Events follow from the log. So the file only needs what the log has dropped, up to the log's
//! newest snapshot. A *seal* says up to which entry the file is complete. A coordinator that was
//! sent a snapshot lacks the history before it. A *gap* says so, until another coordinator has sent
//! that part. Meanwhile the coordinator writes new events as ever: perhaps no other coordinator
//! will have them.
//!
//! This module knows no file. The keeper of a file appends each record that it gets, and then notes
//! it ([`Ledger::note`]). A new process notes all records that it finds.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::VecDeque;

use everstep_transport::protocol::Frame;
use rkyv::{Archive, Deserialize, Serialize};

/// A record of the file. A record of an entry behind all others tells what happened here. A record
/// of an earlier entry comes from another coordinator, and then nothing up to that entry is missing
/// any more.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Record {
    /// The events of an entry.
    Frame(Frame),
    /// No entry between the record before and this one had events.
    Seal(u64),
    /// The events of the entries between the record before and this one are missing.
    Gap(u64),
}

impl Record {
    fn index(&self) -> u64 {
        match self {
            Self::Frame(Frame { index, .. }) | Self::Seal(index) | Self::Gap(index) => *index,
        }
    }
}

/// How far the history goes, and which parts of it are missing.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Up to this entry the file has all events, or knows them to be missing.
    reach: u64,
    /// The missing parts, in order: each from the entry after the first number up to the second.
    gaps: VecDeque<(u64, u64)>,
}

impl Ledger {
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
    pub fn take(&self, frame: Frame) -> Option<Record> {
        (frame.index > self.reach).then_some(Record::Frame(frame))
    }

    /// The record before the log begins behind this entry. Everything known of the entries before
    /// is in the file, or is missing. The keeper has to make the file durable first.
    pub fn seal(&self, index: u64) -> Option<Record> {
        (index > self.reach).then_some(Record::Seal(index))
    }

    /// The record when a snapshot has come from another coordinator: the log lacks the entries up
    /// to this one, and the file lacks their events.
    pub fn lack(&self, index: u64) -> Option<Record> {
        (index > self.reach).then_some(Record::Gap(index))
    }

    /// The record for a missing frame that another coordinator has sent, after everything before
    /// it.
    pub fn fill(&self, frame: Frame) -> Option<Record> {
        let told = frame.index.min(self.reach);
        let is_missing =
            |(before, last): &(u64, u64)| *before < frame.index && frame.index <= *last;
        // A frame without news says that the sender has nothing more up to there.
        if !frame.news.is_empty() && self.gaps.iter().any(is_missing) {
            return Some(Record::Frame(frame));
        }
        (told > self.whole()).then_some(Record::Seal(told))
    }

    /// How far this coordinator knows the history, for the end of the last page, if that is at
    /// least as far as asked. `applied` is the newest entry that it has applied.
    pub fn last_word(&self, from: u64, applied: u64) -> Option<Frame> {
        let index = if self.gaps.is_empty() { applied } else { self.whole() };
        (index >= from).then_some(Frame { index, news: Vec::new() })
    }

    /// Whether the record may follow those before. The file holds no event twice.
    pub fn is_followed_by(&self, record: &Record) -> bool {
        let index = record.index();
        index > self.reach || index > self.whole() && !matches!(record, Record::Gap(_))
    }

    /// A record stands in the file, behind all before.
    pub fn note(&mut self, record: &Record) {
        let index = record.index();
        if index > self.reach {
            if matches!(record, Record::Gap(_)) {
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
    use everstep_transport::protocol::News;
    use proptest::prelude::*;

    use super::*;

    /// Every third entry has events.
    fn frames(from: u64, to: u64) -> impl Iterator<Item = Frame> {
        let brings = (from..=to).filter(|index| index % 3 == 0);
        brings.map(|index| Frame { index, news: vec![News::Run(index)] })
    }

    #[derive(Default)]
    struct File {
        ledger: Ledger,
        records: Vec<Record>,
    }

    impl File {
        fn write(&mut self, record: Option<Record>) {
            if let Some(record) = record {
                assert!(self.ledger.is_followed_by(&record), "{record:?} after {:?}", self.ledger);
                self.ledger.note(&record);
                self.records.push(record);
            }
        }

        fn known(&self) -> Vec<u64> {
            let frame = |record: &Record| match record {
                Record::Frame(frame) => Some(frame.index),
                Record::Seal(_) | Record::Gap(_) => None,
            };
            let mut known: Vec<u64> = self.records.iter().filter_map(frame).collect();
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
                        for frame in frames(applied.saturating_sub(3) + 1, new) {
                            if frame.index > applied {
                                seen.push(frame.index);
                            }
                            let record = file.ledger.take(frame);
                            file.write(record);
                        }
                        applied = new;
                    }
                    1 => file.write(file.ledger.seal(applied)),
                    2 => {
                        applied += count;
                        file.write(file.ledger.lack(applied));
                    }
                    // A page of another coordinator, which may be ahead.
                    _ => {
                        let Some(from) = file.ledger.wanted() else { continue };
                        let to = from + 2 * count;
                        let end = Frame { index: to, news: Vec::new() };
                        for frame in frames(from, to).chain([end]) {
                            let record = file.ledger.fill(frame);
                            file.write(record);
                        }
                    }
                }
                let known = file.known();
                prop_assert!(known.windows(2).all(|pair| pair[0] < pair[1]), "{known:?}");
                prop_assert!(seen.iter().all(|index| known.contains(index)));
                let (whole, reach) = (file.ledger.whole(), file.ledger.reach());
                let brought = frames(1, whole).map(|frame| frame.index);
                prop_assert!(brought.eq(known.into_iter().filter(|index| *index <= whole)));
                let mut again = Ledger::default();
                file.records.iter().for_each(|record| again.note(record));
                prop_assert_eq!((again.whole(), again.reach()), (whole, reach));
            }
        }
    }
}
