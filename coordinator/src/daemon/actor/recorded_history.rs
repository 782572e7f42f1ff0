//! The history as this coordinator records it: the file, the sums for the API, and the part that
//! is missing after a snapshot of another coordinator.
//!
//! In: what entries bring, and pages of other coordinators. Out: the events that are new here, and
//! the history for the core once it is whole and durable.

use std::time::Duration;

use everstep_transport::protocol::outcome::Event;
use everstep_transport::protocol::{HistoryEntry, HistoryEvent};
use everstep_transport::time::Time;

use super::restored_node::RecalledHistory;
use crate::core::HistoryCache;
use crate::daemon::history_file::{HistoryFile, HistoryFileError};
use crate::history::HistorySummary;
use crate::log::SyncFile;

/// How long a coordinator may take to send the missing part of the history file, before the actor
/// asks another one.
const HISTORY_FETCH_TIMEOUT: Duration = Duration::from_millis(500);

/// The file of the history, its sums, and the search for what it lacks.
pub(super) struct RecordedHistory {
    pub(super) file: HistoryFile,
    pub(super) summary: HistorySummary,
    /// The newest entry that the sums include.
    summed_to: u64,
    /// Set while the core needs the history before a snapshot, which takes it on from this entry.
    restores: Option<u64>,
    /// Whether that history is here, and a thread makes it durable.
    is_syncing: bool,
    /// When the actor last asked for the missing part of the file.
    asked: Option<Time>,
}

impl RecordedHistory {
    /// The history that a predecessor left. It may have lacked a part.
    pub(super) fn new(file: HistoryFile, summary: HistorySummary, summed_to: u64) -> Self {
        let restores = file.wanted().map(|_| 0);
        Self { file, summary, summed_to, restores, is_syncing: false, asked: None }
    }

    /// Records what an entry brings. `on_event` hears each event that is new here.
    pub(super) fn record(
        &mut self,
        entry: HistoryEntry,
        on_event: impl Fn(&Event),
    ) -> Result<(), HistoryFileError> {
        if entry.index > self.summed_to {
            self.summed_to = entry.index;
            for event in &entry.events {
                match event {
                    HistoryEvent::Event(event) => {
                        on_event(event);
                        self.summary.event(event);
                    }
                    HistoryEvent::Run(_) => self.summary.begin(),
                }
            }
        }
        self.file.take(entry)
    }

    /// A snapshot of another coordinator stands for the log up to `index`. The core takes it on
    /// from the entry `applied`.
    pub(super) fn lack(&mut self, index: u64, applied: u64) -> Result<(), HistoryFileError> {
        self.file.lack(index)?;
        self.restores = Some(applied);
        Ok(())
    }

    /// Another coordinator has sent the missing part of the file, or a page of it.
    pub(super) fn fill(&mut self, entries: Vec<HistoryEntry>) -> Result<(), HistoryFileError> {
        let wanted = self.file.wanted();
        self.file.fill(entries)?;
        // If that coordinator had no more, the actor does not ask again at once.
        if self.file.wanted() != wanted {
            self.asked = None;
        }
        Ok(())
    }

    /// Where the missing part of the file begins, and which coordinator has its turn to be asked
    /// for it now: one after the other, since each may lack that part too.
    pub(super) fn to_fetch(&self, now: Time) -> Option<(u64, usize)> {
        let from = self.file.wanted()?;
        let is_asked = |asked: Time| now.since(asked) < HISTORY_FETCH_TIMEOUT;
        let turn = (now.0 / HISTORY_FETCH_TIMEOUT.as_nanos() as u64) as usize;
        (!self.asked.is_some_and(is_asked)).then_some((from, turn))
    }

    /// The actor has asked a coordinator.
    pub(super) fn fetches(&mut self, now: Time) {
        self.asked = Some(now);
    }

    /// The file to make durable, once a snapshot of another coordinator is installed and no part is
    /// missing, and the entry from which on the history was missing. None while a thread does so.
    pub(super) fn begin_sync(
        &mut self,
        applied: u64,
    ) -> Result<Option<(u64, SyncFile)>, HistoryFileError> {
        let Some(before) = self.is_whole_since(applied).filter(|_| !self.is_syncing) else {
            return Ok(None);
        };
        let file = self.file.file()?;
        self.is_syncing = true;
        Ok(Some((before, file)))
    }

    /// The thread that made the file durable has ended.
    pub(super) fn synced(&mut self) {
        self.is_syncing = false;
    }

    /// The durable history for the core, which has applied this entry. None if another snapshot has
    /// come since the sync began.
    pub(super) fn restored(
        &mut self,
        before: u64,
        applied: u64,
    ) -> Result<Option<HistoryCache>, HistoryFileError> {
        if self.is_whole_since(applied) != Some(before) {
            return Ok(None);
        }
        // The core gets the history ahead of this coordinator when it applies those entries.
        let recalled = RecalledHistory::read(&self.file, applied, applied)?;
        (self.restores, self.summed_to) = (None, applied);
        self.summary = recalled.summary;
        Ok(Some(recalled.cache))
    }

    /// The entry from which on the history was missing. None if a part still is, or the core has
    /// all of it.
    fn is_whole_since(&self, applied: u64) -> Option<u64> {
        let is_whole = self.file.wanted().is_none();
        self.restores.filter(|before| *before < applied && is_whole)
    }
}
