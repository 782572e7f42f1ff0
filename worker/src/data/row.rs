//! One row of a batch: asked for until the data set gives it or refuses it.
//!
//! A data set that cannot read a sample yet stalls its caller, and ends nothing. The pauses between
//! tries grow. The log says so once the row is late, and then again now and then.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use everstep_kernels::compute::Batch;
use tracing::{info, warn};

use super::{DataError, Dataset};

/// The pause before the second try. Each later one is twice as long.
const RETRY_BACKOFF: Duration = Duration::from_millis(20);
/// The longest pause between two tries.
const RETRY_BACKOFF_MAX: Duration = Duration::from_secs(1);
/// A row that comes later than this is a line in the log.
const LATE_AFTER: Duration = Duration::from_secs(2);
/// The interval at which the log repeats that a row is late.
const LATE_REPEAT_INTERVAL: Duration = Duration::from_secs(60);

/// A sample of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleIndex {
    /// One to train on.
    Training(u64),
    /// A held-out sample, by its number.
    HeldOut(u64),
}

/// Why there is no row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowError {
    /// The data set refuses the sample, or fails. In words.
    Refused(String),
    /// The caller does not want the row any more.
    Abandoned,
}

/// Appends `sample` as a row. Returns how long the data set kept its caller waiting by
/// [`DataError::Retry`]. Asks `is_wanted` before each further try.
pub fn append(
    dataset: &dyn Dataset,
    sample: SampleIndex,
    batch: &mut Batch,
    is_wanted: &mut dyn FnMut() -> bool,
) -> Result<Duration, RowError> {
    let start = RowStart::of(batch);
    let mut retries = Retries::default();
    loop {
        let filled = catch_unwind(AssertUnwindSafe(|| match sample {
            SampleIndex::Training(index) => dataset.fill(index, batch),
            SampleIndex::HeldOut(index) => dataset.fill_validation(index, batch),
        }));
        match filled {
            Ok(Ok(())) if batch.rows == start.rows + 1 => return Ok(retries.end(sample)),
            Ok(Ok(())) => {
                let (rows, expected) = (batch.rows, start.rows + 1);
                let words = format!("the batch has {rows} rows instead of {expected}");
                return Err(RowError::Refused(words));
            }
            Ok(Err(DataError::Retry(reason))) => {
                start.restore(batch);
                if !is_wanted() {
                    return Err(RowError::Abandoned);
                }
                retries.pause(sample, &reason);
            }
            Ok(Err(DataError::Refuse(reason))) => return Err(RowError::Refused(reason)),
            // A half-filled batch is cleared or dropped. The data set vouches for its own state.
            Err(panic) => return Err(RowError::Refused(message(&*panic))),
        }
    }
}

/// The length of a batch before a row.
struct RowStart {
    rows: usize,
    lengths: [usize; 3],
}

impl RowStart {
    fn of(batch: &Batch) -> Self {
        let lengths = [batch.tokens.len(), batch.targets.len(), batch.features.len()];
        Self { rows: batch.rows, lengths }
    }

    /// Takes back everything that a failed try has appended.
    fn restore(&self, batch: &mut Batch) {
        let [tokens, targets, features] = self.lengths;
        batch.rows = self.rows;
        batch.tokens.truncate(tokens);
        batch.targets.truncate(targets);
        batch.features.truncate(features);
    }
}

/// The tries of one row.
#[derive(Default)]
struct Retries {
    began: Option<Instant>,
    tries: u32,
    /// When the log last said that the row is late.
    said: Option<Instant>,
}

impl Retries {
    fn pause(&mut self, sample: SampleIndex, reason: &str) {
        let now = Instant::now();
        let began = *self.began.get_or_insert(now);
        let is_due = match self.said {
            None => now.duration_since(began) >= LATE_AFTER,
            Some(said) => now.duration_since(said) >= LATE_REPEAT_INTERVAL,
        };
        if is_due {
            self.said = Some(now);
            let seconds = now.duration_since(began).as_secs();
            warn!(?sample, seconds, reason, "a sample cannot be read yet: it is tried again");
        }
        let pause = RETRY_BACKOFF.saturating_mul(1 << self.tries.min(16));
        thread::sleep(pause.min(RETRY_BACKOFF_MAX));
        self.tries += 1;
    }

    /// The row is there. Returns how long it was waited for.
    fn end(&self, sample: SampleIndex) -> Duration {
        let waited = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        if self.said.is_some() {
            info!(?sample, seconds = waited.as_secs(), "the sample is read after all");
        }
        waited
    }
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let literal = panic.downcast_ref::<&str>().map(|message| message.to_string());
    literal.or_else(|| panic.downcast_ref().cloned()).unwrap_or_else(|| "a panic".into())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// What a data set answers, one try after the other. Before each answer it appends a half.
    struct Script(Mutex<Vec<Result<(), DataError>>>);

    impl Script {
        fn of(answers: &[Result<(), DataError>]) -> Self {
            Self(Mutex::new(answers.iter().rev().cloned().collect()))
        }
    }

    impl Dataset for Script {
        fn len(&self) -> u64 {
            1
        }
        fn fingerprint(&self) -> [u8; 32] {
            [0; 32]
        }
        fn fill(&self, _index: u64, batch: &mut Batch) -> Result<(), DataError> {
            batch.tokens.push(7);
            batch.features.push(0.5);
            let answer = self.0.lock().expect("nothing panics here").pop();
            answer.expect("no more tries than answers")?;
            batch.targets.push(8);
            batch.rows += 1;
            Ok(())
        }
        fn validation_len(&self) -> u64 {
            1
        }
        fn fill_validation(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
            self.fill(index, batch)
        }
    }

    fn retry() -> Result<(), DataError> {
        Err(DataError::Retry("the server sleeps".into()))
    }

    #[test]
    fn a_sample_that_comes_later_is_one_row_all_the_same() {
        for sample in [SampleIndex::Training(0), SampleIndex::HeldOut(0)] {
            let dataset = Script::of(&[Ok(()), retry(), retry(), Ok(())]);
            let mut batch = Batch::default();
            let mut row = || append(&dataset, sample, &mut batch, &mut || true).expect("a row");
            assert_eq!(row(), Duration::ZERO);
            assert!(row() >= 3 * RETRY_BACKOFF, "two pauses, the second twice as long");
            let expected =
                Batch { rows: 2, tokens: vec![7; 2], targets: vec![8; 2], features: vec![0.5; 2] };
            assert_eq!(batch, expected);
        }
    }

    #[test]
    fn a_refusal_is_not_tried_again() {
        let refusal = Err(DataError::Refuse("the page is torn".into()));
        let dataset = Script::of(&[retry(), refusal]);
        let mut batch = Batch::default();
        let row = append(&dataset, SampleIndex::Training(0), &mut batch, &mut || true);
        assert_eq!(row, Err(RowError::Refused("the page is torn".into())));
    }

    #[test]
    fn a_row_that_is_not_wanted_any_more_is_abandoned() {
        let dataset = Script::of(&[retry(), retry(), retry()]);
        let (mut batch, mut tries) = (Batch::default(), 0);
        let mut is_wanted = || {
            tries += 1;
            tries < 3
        };
        let row = append(&dataset, SampleIndex::Training(0), &mut batch, &mut is_wanted);
        assert_eq!((row, batch), (Err(RowError::Abandoned), Batch::default()));
    }
}
