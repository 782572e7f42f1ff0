//! What a coordinator's file of the history holds, and what it lacks: which records are to be
//! written, and how far the history goes by those that are.
//!
//! What happened follows from the log, so the file need only have what is no longer in the log, up
//! to the log's newest snapshot: a *seal* says up to which entry all is here. A coordinator that
//! was sent a snapshot lacks what came before: a *gap* says so, until another one has told. What
//! happens meanwhile is written as ever: perhaps nobody else will have it.
//!
//! It knows no file: whoever keeps one writes each record that it is given at the end, and then
//! notes it ([`Ledger::note`]); a new process notes all that it finds.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::VecDeque;

use everstep_transport::protocol::Frame;
use rkyv::{Archive, Deserialize, Serialize};

/// What a record says. One of an entry behind all others is of what happened; one of an entry
/// before that is of what another coordinator told, and nothing is missing up to there any more.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Record {
    /// What an entry brought.
    Frame(Frame),
    /// No entry brought anything between the record before and this one.
    Seal(u64),
    /// What entries brought between the record before and this one is missing.
    Gap(u64),
}

impl Record {
    fn index(&self) -> u64 {
        match self {
            Self::Frame(Frame { index, .. }) | Self::Seal(index) | Self::Gap(index) => *index,
        }
    }
}

/// How far the history goes.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// Up to this entry all is here, or is known to be missing.
    reach: u64,
    /// What is missing, in order: each from the entry after the first number up to the second.
    gaps: VecDeque<(u64, u64)>,
}

impl Ledger {
    /// All is here up to this entry.
    pub fn whole(&self) -> u64 {
        self.gaps.front().map_or(self.reach, |(before, _)| *before)
    }

    /// Up to this entry all is here, or is known to be missing.
    pub fn reach(&self) -> u64 {
        self.reach
    }

    /// The entry from which on something is missing.
    pub fn wanted(&self) -> Option<u64> {
        self.gaps.front().map(|(before, _)| before + 1)
    }

    /// An entry has brought this.
    pub fn take(&self, frame: Frame) -> Option<Record> {
        (frame.index > self.reach).then_some(Record::Frame(frame))
    }

    /// The log is to begin behind this entry: what is known of the entries before is here, or
    /// missing. The file is to be made durable first.
    pub fn seal(&self, index: u64) -> Option<Record> {
        (index > self.reach).then_some(Record::Seal(index))
    }

    /// Entries up to this one are not in the log, and what they brought is not here: a snapshot has
    /// come from another coordinator.
    pub fn lack(&self, index: u64) -> Option<Record> {
        (index > self.reach).then_some(Record::Gap(index))
    }

    /// Another coordinator has told this, of what is missing, and everything before.
    pub fn fill(&self, frame: Frame) -> Option<Record> {
        let told = frame.index.min(self.reach);
        let is_missing =
            |(before, last): &(u64, u64)| *before < frame.index && frame.index <= *last;
        // One without news tells that there is nothing more up to there.
        if !frame.news.is_empty() && self.gaps.iter().any(is_missing) {
            return Some(Record::Frame(frame));
        }
        (told > self.whole()).then_some(Record::Seal(told))
    }

    /// How far this one knows the history, if that is at least as far as asked, for the end of the
    /// last page; `applied` is the newest entry that was applied here.
    pub fn last_word(&self, from: u64, applied: u64) -> Option<Frame> {
        let index = if self.gaps.is_empty() { applied } else { self.whole() };
        (index >= from).then_some(Frame { index, news: Vec::new() })
    }

    /// Whether the record can stand behind those before: what is here already is not written again.
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

    /// Every third entry brings something.
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
        /// I13: entries are applied, replaced by snapshots and told, in any order; whatever was
        /// applied here is here, and once nothing is missing, all of it is there once.
        #[test]
        fn i13_what_happens_while_something_is_missing_is_kept(
            events in prop::collection::vec((0u8..4, 1u64..20), 1..40),
        ) {
            let (mut file, mut applied, mut seen) = (File::default(), 0, Vec::new());
            for (event, count) in events {
                match event {
                    // Entries are applied, some of them for the second time.
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
                    // A page of another one, who may be ahead.
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
