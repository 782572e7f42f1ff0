//! The part of the history that the log has dropped: where the core gets it from after a restart,
//! or after a snapshot of another coordinator.

use std::time::Duration;

use everstep_transport::time::Time;

use crate::core::{HISTORY_LOST_AFTER, HistoryCache};

/// How long a leader waits for a leaving coordinator that has lost its link to return.
const LEAVING_COORDINATOR_GONE_AFTER: Duration = Duration::from_secs(10);

/// The history that the log has dropped, on its way to the core.
pub(super) struct HistoryRestore {
    /// The history up to the snapshot on the disk, until the node has installed that snapshot.
    restored: Option<HistoryCache>,
    /// Another coordinator has to send the history before the snapshot.
    is_lacking: bool,
    /// Set after `begin`: a later snapshot comes from another coordinator, not from the disk.
    has_begun: bool,
    /// Set while a leaving coordinator keeps its links because it may send the missing history.
    sender: Option<HistorySender>,
}

/// Since when the leader keeps a leaving coordinator that may send the missing history.
#[derive(Clone, Copy, Debug)]
struct HistorySender {
    /// When the leader found that it needs one, or when the newest page came.
    since: Time,
    /// When a link to a leaving coordinator existed last.
    linked: Time,
}

/// The leaving coordinators, which may still send the missing history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeavingSenders {
    /// No coordinator is leaving.
    None,
    /// Coordinators are leaving, and none of them has a link.
    CutOff,
    /// At least one leaving coordinator has a link.
    Linked,
}

impl HistoryRestore {
    /// A node restarts with this history up to the snapshot on its disk.
    pub(super) fn new(restored: HistoryCache, is_lacking: bool) -> Self {
        Self { restored: Some(restored), is_lacking, has_begun: false, sender: None }
    }

    /// The log on the disk is replayed.
    pub(super) fn begin(&mut self) {
        self.has_begun = true;
    }

    /// A snapshot is installed.
    pub(super) fn on_snapshot(&mut self) {
        self.is_lacking |= self.has_begun;
    }

    /// The whole history is here.
    pub(super) fn complete(&mut self) {
        self.is_lacking = false;
    }

    /// The history from the disk, once, if no part is missing.
    pub(super) fn take(&mut self) -> Option<HistoryCache> {
        self.restored.take().filter(|_| !self.is_lacking)
    }

    /// Another coordinator leads the log from now on, or this one does anew.
    pub(super) fn forget_sender(&mut self) {
        self.sender = None;
    }

    /// Whether a leaving coordinator, perhaps the only one, may still send the missing history, or
    /// lines if this one `lacks_lines`.
    pub(super) fn awaits_sender(
        &mut self,
        now: Time,
        lacks_lines: bool,
        leaving: LeavingSenders,
    ) -> bool {
        if !(self.is_lacking || lacks_lines) || leaving == LeavingSenders::None {
            self.sender = None;
            return false;
        }
        let sender = self.sender.get_or_insert(HistorySender { since: now, linked: now });
        if leaving == LeavingSenders::Linked {
            sender.linked = now;
        }
        now.since(sender.linked) < LEAVING_COORDINATOR_GONE_AFTER
            && now.since(sender.since) < HISTORY_LOST_AFTER
    }

    /// A page of the missing history has come. The leader waits as long again for the rest.
    pub(super) fn on_page(&mut self, now: Time) {
        if let Some(sender) = &mut self.sender {
            sender.since = now;
        }
    }
}
