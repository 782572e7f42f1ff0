//! How the one worker that writes the model makes its file.
//!
//! ```text
//! Opening -- the file has its room --> Gathering -- every shard is durable --> written
//!    ^  \---- it cannot be opened ----\     |
//!    |                                 v    v a write fails
//!    +-------- after a pause -------- Resting
//! ```
//!
//! The worker asks for weights only once the file can take them, so a disk without room costs no
//! traffic and no memory: owners keep their state until the run is over. A directory that does not
//! answer, such as that of a file server that is away, is an error, too. The file's thread goes on
//! when it answers again. This module does not know the owners, nor why the leader chose this
//! worker.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::time::Duration;

use everstep_transport::protocol::Shard;
use everstep_transport::time::Time;

use super::event::DIRECTORY_ANSWER_TIMEOUT;
use super::progress::MAX_COUNTED_GAP;

/// The pause after the first error. Each further pause is twice as long.
pub const MODEL_WRITE_BACKOFF: Duration = Duration::from_secs(1);
/// The longest pause after an error.
pub const MODEL_WRITE_BACKOFF_MAX: Duration = Duration::from_secs(30);
/// The worker asks owners again if nothing has come for so long.
const MASTERS_RETRY_AFTER: Duration = Duration::from_secs(10);
/// A directory that writes fewer bytes in a second may count as one that does not answer: the
/// answer to the last shard comes when all of the file is durable.
const SLOWEST_BYTES_PER_SECOND: u64 = 32 << 20;

/// A model's file under way.
#[derive(Debug)]
pub(super) struct ModelWriter {
    stage: WriterStage,
    /// How many shards the file has.
    shards: u32,
    /// How long the directory may owe an answer.
    answers_within: Duration,
    pause: Duration,
    /// The newest error. None once the directory answers as it should.
    error: Option<String>,
    /// How long the directory has owed an answer.
    silence: Duration,
    /// The time of the last tick.
    ticked: Time,
}

#[derive(Debug)]
enum WriterStage {
    /// The file's thread opens the file.
    Opening,
    /// The file is open.
    Gathering {
        /// The shards that have not come yet.
        missing: BTreeSet<Shard>,
        /// How many have come that are not in the file yet.
        unwritten: usize,
        /// Since when none has come.
        since: Time,
    },
    /// The file failed. The file's thread opens it again at this time.
    Resting(Time),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriterAction {
    /// The file's thread shall open the file.
    Open,
    /// The worker shall ask the owners for their weights.
    Ask,
}

impl ModelWriter {
    /// A file of so many shards and bytes that its thread shall open now.
    pub fn begin(now: Time, shards: u32, bytes: u64) -> Self {
        let writing = Duration::from_secs(bytes / SLOWEST_BYTES_PER_SECOND);
        Self {
            stage: WriterStage::Opening,
            shards,
            answers_within: DIRECTORY_ANSWER_TIMEOUT + writing,
            pause: MODEL_WRITE_BACKOFF,
            error: None,
            silence: Duration::ZERO,
            ticked: now,
        }
    }

    /// Why the file cannot be written. None while it can.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// The shards that have not come yet.
    pub fn missing(&self) -> BTreeSet<Shard> {
        match &self.stage {
            WriterStage::Gathering { missing, .. } => missing.clone(),
            WriterStage::Opening | WriterStage::Resting(_) => BTreeSet::new(),
        }
    }

    /// The file is open: it lacks every shard, and the worker asks the owners.
    pub fn opened(&mut self, now: Time) {
        let missing = (0..self.shards).map(Shard).collect();
        self.stage = WriterStage::Gathering { missing, unwritten: 0, since: now };
        self.answered();
    }

    /// A shard's weights have come. Returns whether they go to the file's thread.
    pub fn takes(&mut self, now: Time, shard: Shard) -> bool {
        let WriterStage::Gathering { missing, unwritten, since } = &mut self.stage else {
            return false;
        };
        let awaited = missing.remove(&shard);
        if awaited {
            *since = now;
            *unwritten += 1;
        }
        awaited
    }

    /// The file has one more shard.
    pub fn taken(&mut self) {
        if let WriterStage::Gathering { unwritten, .. } = &mut self.stage {
            *unwritten = unwritten.saturating_sub(1);
        }
        self.answered();
    }

    /// The file could not be opened or written.
    pub fn failed(&mut self, now: Time, reason: String) {
        self.stage = WriterStage::Resting(now + self.pause);
        self.pause = (2 * self.pause).min(MODEL_WRITE_BACKOFF_MAX);
        self.answered();
        self.error = Some(reason);
    }

    /// The action that is due now, if any.
    pub fn tick(&mut self, now: Time) -> Option<WriterAction> {
        self.count_silence(now);
        match &mut self.stage {
            WriterStage::Resting(until) if now >= *until => {
                self.stage = WriterStage::Opening;
                Some(WriterAction::Open)
            }
            WriterStage::Gathering { missing, since, .. }
                if !missing.is_empty() && now.since(*since) >= MASTERS_RETRY_AFTER =>
            {
                *since = now;
                Some(WriterAction::Ask)
            }
            _ => None,
        }
    }

    fn answered(&mut self) {
        (self.silence, self.error) = (Duration::ZERO, None);
    }

    fn count_silence(&mut self, now: Time) {
        let passed = now.since(std::mem::replace(&mut self.ticked, now)).min(MAX_COUNTED_GAP);
        let owes = match &self.stage {
            WriterStage::Opening => true,
            WriterStage::Gathering { unwritten, .. } => *unwritten > 0,
            WriterStage::Resting(_) => false,
        };
        self.silence = if owes { self.silence + passed } else { Duration::ZERO };
        if self.silence >= self.answers_within {
            let seconds = self.answers_within.as_secs();
            let reason = format!("the directory has not answered for {seconds} s");
            self.error.get_or_insert(reason);
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
        let mut writer = ModelWriter::begin(at(0), 2, 0);
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
        let mut writer = ModelWriter::begin(at(0), 2, 0);
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
        let mut writer = ModelWriter::begin(at(0), 2, 0);
        writer.opened(at(0));
        assert!(writer.takes(at(5), Shard(1)));
        assert_eq!(writer.tick(at(14)), None);
        assert_eq!(writer.tick(at(15)), Some(WriterAction::Ask));
        assert_eq!(writer.tick(at(16)), None);
        assert!(writer.takes(at(16), Shard(0)));
        assert_eq!(writer.tick(at(60)), None, "the file's thread has all of it");
    }

    /// The error after so many further seconds, with a tick in each half of a second.
    fn error_after(writer: &mut ModelWriter, from: &mut u64, seconds: u64) -> bool {
        for half in 1..=2 * seconds {
            writer.tick(at(*from) + Duration::from_millis(500 * half));
        }
        *from += seconds;
        writer.error().is_some_and(|error| error.contains("not answered"))
    }

    #[test]
    fn a_directory_that_does_not_answer_is_an_error_until_it_does() {
        let (mut writer, mut now) = (ModelWriter::begin(at(0), 3, 0), 0);
        assert!(!error_after(&mut writer, &mut now, 19));
        assert!(error_after(&mut writer, &mut now, 1), "it does not open");
        writer.opened(at(now));
        assert_eq!(writer.error(), None);
        assert!(!error_after(&mut writer, &mut now, 40), "no weights have come");
        assert!(writer.takes(at(now), Shard(0)) && writer.takes(at(now), Shard(1)));
        assert!(!error_after(&mut writer, &mut now, 19));
        writer.taken();
        assert!(!error_after(&mut writer, &mut now, 19), "the second is under way");
        assert!(error_after(&mut writer, &mut now, 1));
        writer.taken();
        assert_eq!(writer.error(), None);
        assert!(!error_after(&mut writer, &mut now, 40), "it owes nothing");
        assert!(writer.takes(at(now), Shard(2)));
        assert!(error_after(&mut writer, &mut now, 20), "it is not durable");
    }

    #[test]
    fn a_large_file_has_the_time_that_a_slow_disk_takes() {
        let (mut writer, mut now) = (ModelWriter::begin(at(0), 1, 64 << 30), 0);
        assert!(!error_after(&mut writer, &mut now, 2_067));
        assert!(error_after(&mut writer, &mut now, 1));
    }

    #[test]
    fn a_process_that_stood_still_has_not_waited_for_its_directory() {
        let mut writer = ModelWriter::begin(at(0), 1, 0);
        writer.tick(at(600));
        assert_eq!(writer.error(), None);
    }

    #[test]
    fn the_words_of_an_error_stay_while_the_next_attempt_goes_on() {
        let (mut writer, mut now) = (ModelWriter::begin(at(0), 1, 0), 1);
        writer.failed(at(0), "no space".into());
        assert_eq!(writer.tick(at(1)), Some(WriterAction::Open));
        assert!(!error_after(&mut writer, &mut now, 60));
        assert_eq!(writer.error(), Some("no space"));
    }
}
