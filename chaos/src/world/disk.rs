//! A coordinator's disk: what is durable, and what is on its way there, batch by batch.
//!
//! A crash loses what is on its way, but for what was written in time: the first batches of it, any
//! number of them, for a batch is written whole or not at all. Before a batch with a snapshot the
//! file of the history is made durable. A disk that stalls writes nothing for a while.

use std::collections::VecDeque;
use std::time::Duration;

use everstep_coordinator::raft::{Batch, Entry, Kept};
use everstep_transport::time::Time;

use super::journal::Journal;
use crate::random::Random;

/// What survives a process, and what may.
#[derive(Debug)]
pub struct Disk {
    kept: Kept,
    journal: Journal,
    under_way: VecDeque<Batch>,
    /// When the newest batch will be durable.
    last: Time,
    stalled: Time,
}

impl Disk {
    /// A disk with this on it.
    pub fn new(kept: Kept, journal: Journal) -> Self {
        Self { kept, journal, under_way: VecDeque::new(), last: Time(0), stalled: Time(0) }
    }

    /// What a process finds that starts now.
    pub fn kept(&self) -> Kept {
        self.kept.clone()
    }

    /// The file of the history.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The file of the history.
    pub fn journal_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// A batch is to become durable; returns when it will be.
    pub fn write(&mut self, now: Time, takes: Duration, batch: Batch) -> Time {
        self.under_way.push_back(batch);
        self.last = (now + takes).max(self.last).max(self.stalled);
        self.last
    }

    /// Until then nothing becomes durable.
    pub fn stall(&mut self, until: Time) {
        self.stalled = self.stalled.max(until);
    }

    /// When it writes again, if it does not now.
    pub fn stalled(&self, now: Time) -> Option<Time> {
        (self.stalled > now).then_some(self.stalled)
    }

    /// The next batch is durable; returns its number.
    pub fn written(&mut self) -> Option<u64> {
        let batch = self.under_way.pop_front()?;
        if batch.snapshot.is_some() {
            self.journal.sync();
        }
        self.kept.absorb(&batch);
        Some(batch.number)
    }

    /// Whatever is on its way arrives.
    pub fn finish(&mut self) {
        while self.written().is_some() {}
        self.journal.sync();
    }

    /// The process is gone.
    pub fn crash(&mut self, random: &mut Random) {
        for _ in 0..random.below(self.under_way.len() as u64 + 1) {
            self.written();
        }
        self.under_way.clear();
        self.journal.crash(random);
    }

    /// The entry at a place, as it was written last.
    pub fn entry(&self, index: u64) -> Option<&Entry> {
        let batches = self.under_way.iter().rev().map(|batch| &batch.entries);
        let newest = batches.flat_map(|entries| entries.iter().rev());
        newest.chain(self.kept.entries.iter().rev()).find(|entry| entry.place.index == index)
    }
}

#[cfg(test)]
mod tests {
    use everstep_coordinator::raft::{HardState, ReplicaId};
    use everstep_transport::protocol::Term;

    use super::*;

    fn batch(number: u64) -> Batch {
        let kept = Kept::founded_by(ReplicaId(1));
        let hard_state = HardState { term: Term(number), ..kept.hard_state };
        Batch { number, hard_state, snapshot: None, base: kept.base, entries: Vec::new() }
    }

    #[test]
    fn a_crash_leaves_the_first_batches_and_never_a_later_one_without_them() {
        let mut found = [0; 4];
        for seed in 0..100 {
            let mut disk = Disk::new(Kept::founded_by(ReplicaId(1)), Journal::default());
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
    fn a_disk_that_stalls_writes_later_and_in_order() {
        let mut disk = Disk::new(Kept::founded_by(ReplicaId(1)), Journal::default());
        let ms = |ms| Time(0) + Duration::from_millis(ms);
        disk.stall(ms(500));
        assert_eq!(disk.write(ms(1), Duration::from_millis(2), batch(2)), ms(500));
        assert_eq!(disk.write(ms(499), Duration::from_millis(2), batch(3)), ms(501));
        assert_eq!((disk.stalled(ms(499)), disk.stalled(ms(500))), (Some(ms(500)), None));
        assert_eq!((disk.written(), disk.written(), disk.written()), (Some(2), Some(3), None));
    }
}
