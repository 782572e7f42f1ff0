//! A coordinator's file of the history, record by record, and how the coordinator gets missing
//! records.
//!
//! A crash takes any number of the newest records that were not synced. The [`Ledger`] of
//! production says what to write. The file, and the choice of the coordinator to ask, are simulated
//! here as the daemon does them.

use std::time::Duration;

use everstep_coordinator::core::LinkId;
use everstep_coordinator::ledger::{Ledger, Record};
use everstep_coordinator::raft::{Batch, Snapshot};
use everstep_coordinator::state::State;
use everstep_transport::protocol::{Frame, Message};
use everstep_transport::time::Time;

use super::{Node, World};
use crate::check::{Invariant, Violation};
use crate::random::Random;

/// How long a coordinator may take to send what is missing, before the next one is asked.
const PATIENCE: Duration = Duration::from_millis(500);
/// Frames in a page. They are few, so that a history takes several pages.
const PAGE: usize = 6;

/// The file.
#[derive(Debug, Default)]
pub struct Journal {
    records: Vec<Record>,
    /// How many of the records are durable.
    durable: usize,
    /// When true, [`Journal::sync`] does nothing. A test plants this fault.
    neglected: bool,
    ledger: Ledger,
}

impl Journal {
    /// The file beside a log that begins behind entry `index`. It tells nothing of earlier entries.
    pub fn begun(index: u64) -> Self {
        let mut journal = Self::default();
        journal.append(Some(Record::Seal(index)));
        journal.sync();
        journal
    }

    /// The ledger, which knows how far the file goes and what it lacks.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether the file has records, and lacks none.
    pub fn is_whole(&self) -> bool {
        self.ledger.reach() > 0 && self.ledger.wanted().is_none()
    }

    /// All frames in the file, in order.
    pub fn frames(&self) -> Vec<Frame> {
        let frame = |record: &Record| match record {
            Record::Frame(frame) => Some(frame.clone()),
            Record::Seal(_) | Record::Gap(_) => None,
        };
        let mut frames: Vec<Frame> = self.records.iter().filter_map(frame).collect();
        frames.sort_by_key(|frame| frame.index);
        frames
    }

    /// Adds the frame that an entry has brought.
    pub fn take(&mut self, frame: Frame) {
        let record = self.ledger.take(frame);
        self.append(record);
    }

    /// Prepares for the write of a snapshot. If it `comes` from another coordinator, the file lacks
    /// all that the snapshot stands for.
    fn prepare(&mut self, index: u64, comes: bool) {
        let record = if comes { self.ledger.lack(index) } else { self.ledger.seal(index) };
        self.append(record);
    }

    fn fill(&mut self, frames: Vec<Frame>) {
        for frame in frames {
            let record = self.ledger.fill(frame);
            self.append(record);
        }
    }

    /// A page of frames from this entry on, for a coordinator that lacks them.
    fn page(&self, from: u64, applied: u64) -> Vec<Frame> {
        let frames = self.frames();
        let known = from..=self.ledger.whole();
        let mut rest = frames.into_iter().filter(|frame| known.contains(&frame.index));
        let mut page: Vec<Frame> = rest.by_ref().take(PAGE).collect();
        if rest.next().is_none() {
            page.extend(self.ledger.last_word(from, applied));
        }
        page
    }

    /// Makes all records durable, unless the file is neglected.
    pub fn sync(&mut self) {
        if !self.neglected {
            self.durable = self.records.len();
        }
    }

    /// From now on no sync makes the file durable.
    pub fn neglect(&mut self) {
        self.neglected = true;
    }

    /// Ends the process. A random number of the newest records is lost, of those that were not
    /// durable.
    pub fn crash(&mut self, random: &mut Random) {
        let cached = self.records.len() - self.durable;
        self.records.truncate(self.durable + random.below(cached as u64 + 1) as usize);
        self.ledger = Ledger::default();
        self.records.iter().for_each(|record| self.ledger.note(record));
        self.durable = self.records.len();
    }

    fn append(&mut self, record: Option<Record>) {
        if let Some(record) = record {
            self.ledger.note(&record);
            self.records.push(record);
        }
    }
}

/// What a coordinator's process does about the parts that its file lacks.
#[derive(Debug, Default)]
pub struct Lacking {
    /// When it last asked for the missing part.
    pub asked: Option<Time>,
    /// Set while the core must hear what happened before a snapshot. The core takes the snapshot on
    /// from this entry.
    pub restores: Option<u64>,
}

/// The last entry of a snapshot, Raft's own entries aside.
pub fn reach(snapshot: &Snapshot) -> u64 {
    match State::decode(&snapshot.bytes) {
        Ok(state) if !snapshot.bytes.is_empty() => state.index(),
        _ => 0,
    }
}

impl World {
    /// The file that a process finds must tell all that its log does not tell, or say what it
    /// lacks. In the second case another coordinator must have that part.
    ///
    /// # Errors
    /// I13.
    pub(super) fn judge_journal(&self, place: usize) -> Result<(), Violation> {
        let disk = self.coordinators[place].disk();
        let (begins, ends) = (reach(&disk.kept().snapshot), disk.journal().ledger().reach());
        if begins <= ends {
            return self.judge_history();
        }
        let seen = format!(
            "the history of coordinator {place} ends after entry {ends}, and its log begins behind \
             {begins}"
        );
        Err(Violation { invariant: Invariant::I13, at: self.now, seen })
    }

    /// While any coordinator lacks a part of the history, at least one must have all of it.
    ///
    /// # Errors
    /// I13.
    pub(super) fn judge_history(&self) -> Result<(), Violation> {
        let members = self.coordinators.iter().filter(|known| known.directory.id.is_some());
        let journals: Vec<_> = members.map(|known| known.disk().journal()).collect();
        let wanted = journals.iter().filter_map(|journal| journal.ledger().wanted()).max();
        let Some(from) = wanted.filter(|_| !journals.iter().any(|it| it.is_whole())) else {
            return Ok(());
        };
        let seen = format!("no coordinator has the history from entry {from} on any more");
        Err(Violation { invariant: Invariant::I13, at: self.now, seen })
    }

    /// A coordinator will write a batch. If it has a snapshot, the log will begin later.
    pub(super) fn prepare_journal(&mut self, place: usize, batch: &Batch) {
        let Some(snapshot) = &batch.snapshot else { return };
        let (index, comes) = (reach(snapshot), batch.base == snapshot.place);
        let coordinator = &mut self.coordinators[place];
        coordinator.disk_mut().journal_mut().prepare(index, comes);
        if comes {
            self.course.tally.installed += 1;
            coordinator.lacking.restores = Some(coordinator.applied());
        }
    }

    /// Asks the next coordinator for the missing part. It takes turns, since the one before may
    /// lack it too.
    pub(super) fn seek_history(&mut self, place: usize) {
        let (own, now) = (Node::Coordinator(place), self.now);
        let coordinator = &self.coordinators[place];
        let Some(from) = coordinator.disk().journal().ledger().wanted() else { return };
        if coordinator.lacking.asked.is_some_and(|asked| now.since(asked) < PATIENCE) {
            return;
        }
        let others = (0..self.coordinators.len()).map(Node::Coordinator);
        let open: Vec<_> = others.filter(|other| self.links.is_open(own, *other)).collect();
        let turn = (now.0 / PATIENCE.as_nanos() as u64) as usize;
        if let Some(to) = open.get(turn % open.len().max(1)) {
            self.coordinators[place].lacking.asked = Some(now);
            self.say(own, *to, Message::FetchHistory { from });
        }
    }

    /// Answers a coordinator that lacks the history from this entry on.
    pub(super) fn recall(&mut self, place: usize, to: LinkId, from: u64) -> Result<(), Violation> {
        let coordinator = &self.coordinators[place];
        let frames = coordinator.disk().journal().page(from, coordinator.applied());
        self.course.tally.pages += 1;
        self.tell(place, to, Message::History { frames })
    }

    /// Takes the missing part, or a page of it, from another coordinator.
    pub(super) fn recalled(&mut self, place: usize, frames: Vec<Frame>) {
        let coordinator = &mut self.coordinators[place];
        let wanted = coordinator.disk().journal().ledger().wanted();
        coordinator.disk_mut().journal_mut().fill(frames);
        if coordinator.disk().journal().ledger().wanted() != wanted {
            coordinator.lacking.asked = None;
        }
    }

    /// Tells the core of the history, once a snapshot of another coordinator is installed and the
    /// file has all that happened before. The file is made durable first.
    pub(super) fn restore_history(&mut self, place: usize) {
        let now = self.now;
        let coordinator = &mut self.coordinators[place];
        if coordinator.disk().stalled(now).is_some() {
            return;
        }
        let applied = coordinator.applied();
        let is_there = coordinator.lacking.restores.is_some_and(|before| before < applied);
        if is_there && coordinator.disk().journal().ledger().wanted().is_none() {
            let mut frames = coordinator.disk().journal().frames();
            frames.retain(|frame| frame.index <= applied);
            coordinator.disk_mut().journal_mut().sync();
            coordinator.lacking.restores = None;
            if let Some(seat) = coordinator.seat_mut() {
                seat.restore_history(frames);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_takes_only_the_newest_records_that_are_not_durable() {
        let mut found = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let mut journal = Journal::begun(3);
            journal.take(Frame { index: 5, news: Vec::new() });
            journal.sync();
            journal.take(Frame { index: 6, news: Vec::new() });
            journal.take(Frame { index: 9, news: Vec::new() });
            journal.crash(&mut Random::new(seed));
            found.insert(journal.ledger().whole());
        }
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [5, 6, 9]);
    }
}
