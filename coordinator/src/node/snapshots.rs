//! When a node takes its next snapshot.

/// The node also takes a snapshot after this many bytes of entries since the last snapshot.
const SNAPSHOT_BYTES: usize = 4 << 20;

/// The entries applied since the newest snapshot.
#[derive(Debug)]
pub(super) struct SnapshotSchedule {
    /// The node takes a snapshot after this many entries.
    interval_entries: u64,
    entries: u64,
    bytes: usize,
}

impl SnapshotSchedule {
    pub(super) fn new(interval_entries: u64) -> Self {
        Self { interval_entries, entries: 0, bytes: 0 }
    }

    /// An entry of this size was applied. Returns whether a snapshot is due.
    pub(super) fn applied(&mut self, bytes: usize) -> bool {
        self.entries += 1;
        self.bytes += bytes;
        self.entries >= self.interval_entries || self.bytes >= SNAPSHOT_BYTES
    }

    /// There is a new snapshot.
    pub(super) fn restart(&mut self) {
        (self.entries, self.bytes) = (0, 0);
    }
}
