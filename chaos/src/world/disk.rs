//! A coordinator's disk: the durable batches, and those that are on their way there.
//!
//! A crash loses the batches on their way, except those that were written in time: a random number
//! of the first ones. The disk writes a batch whole or not at all. Before a batch with a snapshot,
//! it makes the file of the history durable. A stalled disk writes nothing for a while. A full disk
//! refuses the next batch and all later ones, and keeps no part of them. This is as in redb, whose
//! transactions are whole or not at all.

use std::collections::VecDeque;
use std::time::Duration;

use everstep_coordinator::raft::{DurableState, RaftEntry, WriteBatch};
use everstep_transport::time::Time;

use super::history_file::HistoryFile;
use super::lines::LineFiles;
use crate::random::Random;

/// What survives a process, and what may survive it.
#[derive(Debug)]
pub struct CoordinatorDisk {
    kept: DurableState,
    history_file: HistoryFile,
    lines: LineFiles,
    under_way: VecDeque<WriteBatch>,
    /// When the newest batch will be durable.
    last: Time,
    stalled: Time,
    /// Set when it is full: how long after the refusal of a batch it has room again.
    full: Option<Duration>,
}

impl CoordinatorDisk {
    /// A disk with this on it.
    pub fn new(kept: DurableState, history_file: HistoryFile) -> Self {
        let (under_way, last, stalled) = (VecDeque::new(), Time(0), Time(0));
        Self {
            kept,
            history_file,
            lines: LineFiles::default(),
            under_way,
            last,
            stalled,
            full: None,
        }
    }

    /// The log as a process finds it that starts now.
    pub fn kept(&self) -> DurableState {
        self.kept.clone()
    }

    /// The file of the history.
    pub fn history_file(&self) -> &HistoryFile {
        &self.history_file
    }

    /// The file of the history.
    pub fn history_file_mut(&mut self) -> &mut HistoryFile {
        &mut self.history_file
    }

    /// The files of metrics lines.
    pub fn lines(&self) -> &LineFiles {
        &self.lines
    }

    /// The files of metrics lines.
    pub fn lines_mut(&mut self) -> &mut LineFiles {
        &mut self.lines
    }

    /// Takes a batch to write. Returns when it will be durable.
    pub fn write(&mut self, now: Time, takes: Duration, batch: WriteBatch) -> Time {
        self.under_way.push_back(batch);
        self.last = (now + takes).max(self.last).max(self.stalled);
        self.last
    }

    /// Makes nothing durable until `until`.
    pub fn stall(&mut self, until: Time) {
        self.stalled = self.stalled.max(until);
    }

    /// The end of the stall, if the disk stalls now.
    pub fn stalled(&self, now: Time) -> Option<Time> {
        (self.stalled > now).then_some(self.stalled)
    }

    /// Makes the disk full. It has room again `room` after it has refused the next batch.
    pub fn fill(&mut self, room: Duration) {
        self.full = Some(room);
    }

    /// Refuses all waiting batches, if the disk is full. Returns in how long there is room.
    pub fn refuse(&mut self) -> Option<Duration> {
        let room = self.full.filter(|_| !self.under_way.is_empty())?;
        self.under_way.clear();
        Some(room)
    }

    /// Makes the next batch durable, and returns its number.
    pub fn written(&mut self) -> Option<u64> {
        let batch = self.under_way.pop_front()?;
        if batch.snapshot.is_some() {
            self.history_file.sync();
        }
        self.kept.absorb(&batch);
        Some(batch.number)
    }

    /// Makes everything durable that is on its way.
    pub fn finish(&mut self) {
        if self.full.is_some() {
            return;
        }
        while self.written().is_some() {}
        self.history_file.sync();
        self.lines.sync();
    }

    /// Ends the process. The next process finds room again.
    pub fn crash(&mut self, random: &mut Random) {
        let in_time = random.below(self.under_way.len() as u64 + 1);
        if self.full.take().is_none() {
            (0..in_time).for_each(|_| _ = self.written());
        }
        self.under_way.clear();
        self.history_file.crash(random);
        self.lines.crash(random);
    }

    /// The newest entry with this index, durable or not.
    pub fn entry(&self, index: u64) -> Option<&RaftEntry> {
        let batches = self.under_way.iter().rev().map(|batch| &batch.entries);
        let newest = batches.flat_map(|entries| entries.iter().rev());
        newest.chain(self.kept.entries.iter().rev()).find(|entry| entry.position.index == index)
    }
}

#[cfg(test)]
mod tests {
    use everstep_coordinator::raft::{HardState, ReplicaId};
    use everstep_transport::protocol::Term;

    use super::*;

    fn batch(number: u64) -> WriteBatch {
        let kept = DurableState::founded_by(ReplicaId(1));
        let hard_state = HardState { term: Term(number), ..kept.hard_state };
        WriteBatch { number, hard_state, snapshot: None, base: kept.base, entries: Vec::new() }
    }

    #[test]
    fn a_crash_leaves_the_first_batches_and_never_a_later_one_without_them() {
        let mut found = [0; 4];
        for seed in 0..100 {
            let mut disk = CoordinatorDisk::new(
                DurableState::founded_by(ReplicaId(1)),
                HistoryFile::default(),
            );
            for number in 2..5 {
                disk.write(Time(0), Duration::from_millis(1), batch(number));
            }
            disk.crash(&mut Random::new(seed));
            found[disk.kept().hard_state.term.0 as usize - 1] += 1;
            assert_eq!(disk.written(), None, "the rest is gone");
        }
        assert!(found.iter().all(|count| *count > 5), "{found:?}");
    }

    #[test]
    fn a_full_disk_refuses_what_comes_and_keeps_what_is_there() {
        let mut disk =
            CoordinatorDisk::new(DurableState::founded_by(ReplicaId(1)), HistoryFile::default());
        let ms = Duration::from_millis;
        disk.write(Time(0), ms(1), batch(2));
        assert_eq!((disk.refuse(), disk.written()), (None, Some(2)));
        disk.fill(ms(70));
        assert_eq!(disk.refuse(), None, "nothing is to be written");
        for number in 3..5 {
            disk.write(Time(0), ms(1), batch(number));
        }
        assert_eq!((disk.refuse(), disk.written()), (Some(ms(70)), None));
        disk.write(Time(0), ms(1), batch(3));
        disk.crash(&mut Random::new(1));
        assert_eq!(disk.kept().hard_state.term, Term(2));
        disk.write(Time(0), ms(1), batch(3));
        assert_eq!((disk.refuse(), disk.written()), (None, Some(3)), "there is room again");
    }

    #[test]
    fn a_disk_that_stalls_writes_later_and_in_order() {
        let mut disk =
            CoordinatorDisk::new(DurableState::founded_by(ReplicaId(1)), HistoryFile::default());
        let ms = |ms| Time(0) + Duration::from_millis(ms);
        disk.stall(ms(500));
        assert_eq!(disk.write(ms(1), Duration::from_millis(2), batch(2)), ms(500));
        assert_eq!(disk.write(ms(499), Duration::from_millis(2), batch(3)), ms(501));
        assert_eq!((disk.stalled(ms(499)), disk.stalled(ms(500))), (Some(ms(500)), None));
        assert_eq!((disk.written(), disk.written(), disk.written()), (Some(2), Some(3), None));
    }
}
