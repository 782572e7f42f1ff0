//! How the one worker that writes the model makes its file.
//!
//! ```text
//! Opening -- the file has its room --> Gathering -- every shard is durable --> written
//!    ^  \---- it cannot be opened ----\     |
//!    |                                 v    v a write fails
//!    +-------- after a pause -------- Resting
//! ```
//!
//! The worker asks for weights only once the file can take them, so an error of the disk costs no
//! traffic and no memory: owners keep their state until the run is over. This module does not know
//! the owners, nor why the leader chose this worker.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::time::Duration;

use everstep_transport::protocol::Shard;
use everstep_transport::time::Time;

/// The pause after the first error. Each further pause is twice as long.
pub const MODEL_WRITE_BACKOFF: Duration = Duration::from_secs(1);
/// The longest pause after an error.
pub const MODEL_WRITE_BACKOFF_MAX: Duration = Duration::from_secs(30);
/// The worker asks owners again if nothing has come for so long.
const MASTERS_RETRY_AFTER: Duration = Duration::from_secs(10);

/// A model's file under way.
#[derive(Debug)]
pub(super) struct ModelWriter {
    stage: WriterStage,
    /// How many shards the file has.
    shards: u32,
    pause: Duration,
    /// The newest error. None once the file is open again.
    error: Option<String>,
}

#[derive(Debug)]
enum WriterStage {
    /// The device opens the file.
    Opening,
    /// These shards are still missing, and nothing has come since this time.
    Gathering(BTreeSet<Shard>, Time),
    /// The file failed. The device opens it again at this time.
    Resting(Time),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriterAction {
    /// The device shall open the file.
    Open,
    /// The worker shall ask the owners for their weights.
    Ask,
}

impl ModelWriter {
    /// A file that the device shall open now.
    pub fn begin(shards: u32) -> Self {
        Self { stage: WriterStage::Opening, shards, pause: MODEL_WRITE_BACKOFF, error: None }
    }

    /// Why the file cannot be written. None while it can.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// The shards that the file still lacks.
    pub fn missing(&self) -> BTreeSet<Shard> {
        match &self.stage {
            WriterStage::Gathering(missing, _) => missing.clone(),
            WriterStage::Opening | WriterStage::Resting(_) => BTreeSet::new(),
        }
    }

    /// The file is open: it lacks every shard, and the worker asks the owners.
    pub fn opened(&mut self, now: Time) {
        self.stage = WriterStage::Gathering((0..self.shards).map(Shard).collect(), now);
        self.error = None;
    }

    /// A shard's weights have come. Returns whether the file lacked them.
    pub fn takes(&mut self, now: Time, shard: Shard) -> bool {
        let WriterStage::Gathering(missing, since) = &mut self.stage else { return false };
        let awaited = missing.remove(&shard);
        if awaited {
            *since = now;
        }
        awaited
    }

    /// The device could not open or write the file.
    pub fn failed(&mut self, now: Time, reason: String) {
        self.stage = WriterStage::Resting(now + self.pause);
        self.pause = (2 * self.pause).min(MODEL_WRITE_BACKOFF_MAX);
        self.error = Some(reason);
    }

    /// The action that is due now, if any.
    pub fn tick(&mut self, now: Time) -> Option<WriterAction> {
        match &mut self.stage {
            WriterStage::Resting(until) if now >= *until => {
                self.stage = WriterStage::Opening;
                Some(WriterAction::Open)
            }
            WriterStage::Gathering(missing, since)
                if !missing.is_empty() && now.since(*since) >= MASTERS_RETRY_AFTER =>
            {
                *since = now;
                Some(WriterAction::Ask)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(0) + Duration::from_secs(seconds)
    }

    #[test]
    fn an_error_is_waited_out_twice_as_long_each_time_and_at_most_half_a_minute() {
        let mut writer = ModelWriter::begin(2);
        let (mut now, mut pauses) = (0, Vec::new());
        for _ in 0..7 {
            writer.failed(at(now), "no space".into());
            assert_eq!(writer.error(), Some("no space"));
            assert_eq!(writer.tick(at(now)), None);
            let due = (now..).find(|second| writer.tick(at(*second)) == Some(WriterAction::Open));
            let due = due.expect("it is tried again");
            pauses.push(due - now);
            now = due;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn weights_are_taken_once_and_only_while_the_file_is_open() {
        let mut writer = ModelWriter::begin(2);
        assert!(!writer.takes(at(0), Shard(0)), "it is not open yet");
        writer.opened(at(0));
        assert!(writer.takes(at(1), Shard(0)));
        assert!(!writer.takes(at(1), Shard(0)), "it has come");
        assert!(!writer.takes(at(1), Shard(2)), "there is no such shard");
        writer.failed(at(2), "no space".into());
        assert!(!writer.takes(at(2), Shard(1)));
        writer.opened(at(3));
        assert!(writer.takes(at(3), Shard(0)), "an error voids what has come");
        assert_eq!(writer.error(), None);
    }

    #[test]
    fn owners_that_send_nothing_are_asked_again() {
        let mut writer = ModelWriter::begin(2);
        writer.opened(at(0));
        assert!(writer.takes(at(5), Shard(1)));
        assert_eq!(writer.tick(at(14)), None);
        assert_eq!(writer.tick(at(15)), Some(WriterAction::Ask));
        assert_eq!(writer.tick(at(16)), None);
        assert!(writer.takes(at(16), Shard(0)));
        assert_eq!(writer.tick(at(60)), None, "the device has all of it");
    }
}
