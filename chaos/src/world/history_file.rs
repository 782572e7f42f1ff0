//! A coordinator's file of the history, record by record, and how the coordinator gets missing
//! records.
//!
//! A crash takes any number of the newest records that were not synced. The [`HistoryCoverage`] of
//! production says what to write. The file, and the choice of the coordinator to ask, are simulated
//! here as the daemon does them.

use std::time::Duration;

use everstep_coordinator::core::{EventRange, HistoryCache, LinkId};
use everstep_coordinator::history_coverage::{HistoryCoverage, HistoryRecord};
use everstep_coordinator::raft::{Snapshot, WriteBatch};
use everstep_coordinator::state::State;
use everstep_transport::protocol::outcome::Event;
use everstep_transport::protocol::{HistoryEntry, HistoryEvent, Message};
use everstep_transport::time::Time;

use super::upgrade::LATER_LOG_FORMAT;
use super::{NodeId, World};
use crate::check::{Invariant, Violation};
use crate::random::Random;

/// How long a coordinator may take to send what is missing, before the next one is asked.
const HISTORY_FETCH_TIMEOUT: Duration = Duration::from_millis(500);
/// Frames in a page. They are few, so that a history takes several pages.
const PAGE_FRAMES: usize = 6;
/// Events of the file in an update. They are few, so that a watcher gets several pages.
const PAGE_EVENTS: usize = 5;
/// How many events a core keeps in memory at least. They are few, so that it reads its file.
const ROOM: usize = 4;

/// The file of events on the disk of a coordinator's machine.
#[derive(Debug, Default)]
pub struct HistoryFile {
    records: Vec<HistoryRecord>,
    /// How many of the records are durable.
    durable: usize,
    /// When true, [`HistoryFile::sync`] does nothing. A test plants this fault.
    neglected: bool,
    coverage: HistoryCoverage,
}

impl HistoryFile {
    /// The file beside a log that begins behind entry `index`. It tells nothing of earlier entries.
    pub fn begun(index: u64) -> Self {
        let mut history_file = Self::default();
        history_file.append(Some(HistoryRecord::Seal(index)));
        history_file.sync();
        history_file
    }

    /// The coverage, which knows how far the file goes and what it lacks.
    pub fn coverage(&self) -> &HistoryCoverage {
        &self.coverage
    }

    /// Whether the file has records, and lacks none.
    pub fn is_whole(&self) -> bool {
        self.coverage.reach() > 0 && self.coverage.wanted().is_none()
    }

    /// All history entries in the file, in order.
    pub fn entries(&self) -> Vec<HistoryEntry> {
        let entry = |record: &HistoryRecord| match record {
            HistoryRecord::Entry(entry) => Some(entry.clone()),
            HistoryRecord::Seal(_) | HistoryRecord::Gap(_) => None,
        };
        let mut entries: Vec<HistoryEntry> = self.records.iter().filter_map(entry).collect();
        entries.sort_by_key(|entry| entry.index);
        entries
    }

    /// A page of the events of a range that are in the file, in order.
    pub fn events(&self, range: EventRange) -> Vec<Event> {
        let all = self.entries().into_iter().flat_map(|entry| entry.events);
        let events = all.filter_map(|event| match event {
            HistoryEvent::Event(event) => Some(event),
            HistoryEvent::Run(_) => None,
        });
        let wanted = events.filter(|event| range.after < event.number && event.number <= range.to);
        wanted.take(PAGE_EVENTS).collect()
    }

    /// The history up to the entry `index`, for a core.
    pub fn cache(&self, index: u64) -> HistoryCache {
        let entries = self.entries().into_iter().filter(|entry| entry.index <= index);
        HistoryCache::with_room(ROOM).restored(entries)
    }

    /// Adds what an entry of the log has brought.
    pub fn take(&mut self, entry: HistoryEntry) {
        let record = self.coverage.take(entry);
        self.append(record);
    }

    /// Prepares for the write of a snapshot. If it `comes` from another coordinator, the file lacks
    /// all that the snapshot stands for.
    fn prepare(&mut self, index: u64, comes: bool) {
        let record = if comes { self.coverage.lack(index) } else { self.coverage.seal(index) };
        self.append(record);
    }

    fn fill(&mut self, entries: Vec<HistoryEntry>) {
        for entry in entries {
            let record = self.coverage.fill(entry);
            self.append(record);
        }
    }

    /// A page of the history from this entry on, for a coordinator that lacks them.
    fn page(&self, from: u64, applied: u64) -> Vec<HistoryEntry> {
        let entries = self.entries();
        let known = from..=self.coverage.whole();
        let mut rest = entries.into_iter().filter(|entry| known.contains(&entry.index));
        let mut page: Vec<HistoryEntry> = rest.by_ref().take(PAGE_FRAMES).collect();
        if rest.next().is_none() {
            page.extend(self.coverage.last_word(from, applied));
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
        self.coverage = HistoryCoverage::default();
        self.records.iter().for_each(|record| self.coverage.note(record));
        self.durable = self.records.len();
    }

    fn append(&mut self, record: Option<HistoryRecord>) {
        if let Some(record) = record {
            self.coverage.note(&record);
            self.records.push(record);
        }
    }
}

/// What a coordinator's process does about the parts that its file lacks.
#[derive(Debug, Default)]
pub struct HistoryFetch {
    /// When it last asked for the missing part.
    pub asked: Option<Time>,
    /// Set while the core must hear what happened before a snapshot. The core takes the snapshot on
    /// from this entry.
    pub restores: Option<u64>,
}

/// The last entry of a snapshot, Raft's own entries aside.
pub fn reach(snapshot: &Snapshot) -> u64 {
    match State::decode(&snapshot.bytes, LATER_LOG_FORMAT) {
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
        let (begins, ends) = (reach(&disk.kept().snapshot), disk.history_file().coverage().reach());
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
        let history_files: Vec<_> = members.map(|known| known.disk().history_file()).collect();
        let wanted =
            history_files.iter().filter_map(|history_file| history_file.coverage().wanted()).max();
        let Some(from) = wanted.filter(|_| !history_files.iter().any(|it| it.is_whole())) else {
            return Ok(());
        };
        let seen = format!("no coordinator has the history from entry {from} on any more");
        Err(Violation { invariant: Invariant::I13, at: self.now, seen })
    }

    /// A coordinator will write a batch. If it has a snapshot, the log will begin later.
    pub(super) fn prepare_journal(&mut self, place: usize, batch: &WriteBatch) {
        let Some(snapshot) = &batch.snapshot else { return };
        let (index, comes) = (reach(snapshot), batch.base == snapshot.position);
        let coordinator = &mut self.coordinators[place];
        coordinator.disk_mut().history_file_mut().prepare(index, comes);
        if comes {
            self.checkers.liveness.tally.installed += 1;
            coordinator.history_fetch.restores = Some(coordinator.applied());
        }
    }

    /// Asks the next coordinator for the missing part. It takes turns, since the one before may
    /// lack it too.
    pub(super) fn fetch_history(&mut self, place: usize) {
        let (own, now) = (NodeId::Coordinator(place), self.now);
        let coordinator = &self.coordinators[place];
        let Some(from) = coordinator.disk().history_file().coverage().wanted() else { return };
        if coordinator
            .history_fetch
            .asked
            .is_some_and(|asked| now.since(asked) < HISTORY_FETCH_TIMEOUT)
        {
            return;
        }
        let others = (0..self.coordinators.len()).map(NodeId::Coordinator);
        let open: Vec<_> = others.filter(|other| self.network.links.is_open(own, *other)).collect();
        let turn = (now.0 / HISTORY_FETCH_TIMEOUT.as_nanos() as u64) as usize;
        if let Some(to) = open.get(turn % open.len().max(1)) {
            self.coordinators[place].history_fetch.asked = Some(now);
            self.say(own, *to, Message::FetchHistory { from });
        }
    }

    /// Answers a coordinator that lacks the history from this entry on.
    pub(super) fn recall(&mut self, place: usize, to: LinkId, from: u64) -> Result<(), Violation> {
        let coordinator = &self.coordinators[place];
        let entries = coordinator.disk().history_file().page(from, coordinator.applied());
        self.checkers.liveness.tally.pages += 1;
        self.tell(place, to, Message::History { entries })
    }

    /// Takes the missing part, or a page of it, from another coordinator.
    pub(super) fn recalled(&mut self, place: usize, entries: Vec<HistoryEntry>) {
        let coordinator = &mut self.coordinators[place];
        let wanted = coordinator.disk().history_file().coverage().wanted();
        coordinator.disk_mut().history_file_mut().fill(entries);
        if coordinator.disk().history_file().coverage().wanted() != wanted {
            coordinator.history_fetch.asked = None;
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
        let is_there = coordinator.history_fetch.restores.is_some_and(|before| before < applied);
        if is_there && coordinator.disk().history_file().coverage().wanted().is_none() {
            let history = coordinator.disk().history_file().cache(applied);
            coordinator.disk_mut().history_file_mut().sync();
            coordinator.history_fetch.restores = None;
            if let Some(node) = coordinator.node_mut() {
                node.restore_history(history);
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
            let mut history_file = HistoryFile::begun(3);
            history_file.take(HistoryEntry { index: 5, events: Vec::new() });
            history_file.sync();
            history_file.take(HistoryEntry { index: 6, events: Vec::new() });
            history_file.take(HistoryEntry { index: 9, events: Vec::new() });
            history_file.crash(&mut Random::new(seed));
            found.insert(history_file.coverage().whole());
        }
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [5, 6, 9]);
    }
}
