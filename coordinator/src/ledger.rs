//! What a coordinator's file of the history holds, and what it lacks: which records are to be
//! written, and how far the history goes by those that are.
//!
//! What happened follows from the log, so the file need only have what is no longer in the log, up
//! to the log's newest snapshot: a *seal* says up to which entry all is here. A coordinator that
//! was sent a snapshot lacks what came before: a *gap* says so, until another one has told. Frames
//! that come meanwhile are left out: they are fetched with the rest.
//!
//! It knows no file: whoever keeps one writes each record that it is given at the end, and then
//! notes it ([`Ledger::note`]); a new process notes all that it finds.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_transport::protocol::Frame;
use rkyv::{Archive, Deserialize, Serialize};

/// What a record says.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Record {
    /// What an entry brought.
    Frame(Frame),
    /// All is here up to this entry.
    Seal(u64),
    /// Something is missing here, up to this entry.
    Gap(u64),
}

/// How far the history goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ledger {
    /// All is here up to this entry.
    whole: u64,
    /// Behind that, something is missing up to this one.
    gap: Option<u64>,
}

impl Ledger {
    /// All is here up to this entry.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    /// Up to this entry all is here, or is known to be missing.
    pub fn reach(&self) -> u64 {
        self.whole.max(self.gap.unwrap_or(0))
    }

    /// The entry from which on something is missing.
    pub fn wanted(&self) -> Option<u64> {
        self.gap.map(|_| self.whole + 1)
    }

    /// An entry has brought this.
    pub fn take(&mut self, frame: Frame) -> Option<Record> {
        let index = frame.index;
        match &mut self.gap {
            _ if index <= self.whole => None,
            Some(gap) => {
                *gap = (*gap).max(index);
                None
            }
            None => Some(Record::Frame(frame)),
        }
    }

    /// The log is to begin behind this entry: what is known of the entries before is here, or
    /// missing. The file is to be made durable first.
    pub fn seal(&self, index: u64) -> Option<Record> {
        match self.gap {
            _ if index <= self.whole => None,
            Some(gap) => Some(Record::Gap(gap.max(index))),
            None => Some(Record::Seal(index)),
        }
    }

    /// Entries up to this one are not in the log, and what they brought is not here: a snapshot has
    /// come from another coordinator.
    pub fn lack(&self, index: u64) -> Option<Record> {
        (index > self.whole).then(|| Record::Gap(self.gap.unwrap_or(0).max(index)))
    }

    /// Another coordinator has told this, of what is missing.
    pub fn fill(&self, frame: Frame) -> Option<Record> {
        if self.gap.is_none() || frame.index <= self.whole {
            return None;
        }
        // One without news tells that there is nothing more up to there.
        Some(match frame.news.is_empty() {
            true => Record::Seal(frame.index),
            false => Record::Frame(frame),
        })
    }

    /// How far this one knows the history, if that is at least as far as asked, for the end of the
    /// last page; `applied` is the newest entry that was applied here.
    pub fn last_word(&self, from: u64, applied: u64) -> Option<Frame> {
        let index = if self.gap.is_some() { self.whole } else { applied };
        (index >= from).then_some(Frame { index, news: Vec::new() })
    }

    /// A record stands in the file, behind all before.
    pub fn note(&mut self, record: &Record) {
        match record {
            Record::Frame(Frame { index, .. }) | Record::Seal(index) => self.whole = *index,
            Record::Gap(index) => self.gap = Some(*index),
        }
        self.gap = self.gap.filter(|gap| *gap > self.whole);
    }
}
