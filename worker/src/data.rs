//! The data of a run: data sets, the order of their samples, and batches filled ahead.
//!
//! - [`Dataset`]: the trait of a data set. A user can implement it.
//! - [`sampler`]: which sample stands where in which step, and which samples were lost or repeated.
//!   Pure.
//! - [`loader`]: a thread that fills the batches of coming steps.
//! - [`text`]: files of text as a data set. [`text_files`] finds them, or [`default_text`] if the
//!   user names none. [`text_samples`] cuts the text into samples. [`bigram`] measures it.
//!   [`text_cache`] knows the text that is in memory already.
//! - [`tokens`]: files of tokens, read in place. [`token_samples`] makes them a data set.
//!   [`windows`] says how either is cut.
//! - [`row`]: one row of a batch, asked for again as long as the data set says so.
//! - [`validation`]: which part of the held-out samples each data shard evaluates. Pure.
//!
//! Input: a run specification's data and batch. Output: micro-batches with the indices of the
//! samples in them. Nothing here knows of workers, generations or models.

pub mod bigram;
pub mod default_text;
pub mod loader;
pub mod row;
pub mod sampler;
pub mod text;
pub mod text_cache;
pub mod text_files;
pub mod text_samples;
pub mod token_samples;
pub mod tokens;
pub mod validation;
pub mod windows;

use std::any::Any;
use std::sync::Arc;

use everstep_kernels::compute::Batch;

pub use loader::Loader;
pub use sampler::Sampler;
pub use text::{Text, TextError};

/// A fixed, numbered set of samples to train on, and a second set to validate with.
///
/// Every worker of a run opens the same data set. A run may ask any worker for any sample, at any
/// time, again and again. So a sample is a pure function of its index. It has no shuffling (the
/// [`sampler::Sampler`] does that), and no random augmentation unless the index keys it.
///
/// ```
/// use everstep_kernels::compute::Batch;
/// use everstep_worker::data::{DataError, Dataset};
///
/// /// Points of a line with slope 3, learned from 1,000 of them.
/// struct Line;
///
/// impl Dataset for Line {
///     fn len(&self) -> u64 {
///         1_000
///     }
///     fn fingerprint(&self) -> [u8; 32] {
///         *b"a line with slope 3, version one"
///     }
///     fn fill(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
///         let x = index as f32 / 1_000.0;
///         batch.features.extend([x, 3.0 * x]);
///         batch.rows += 1;
///         Ok(())
///     }
///     fn validation_len(&self) -> u64 {
///         0
///     }
///     fn fill_validation(&self, index: u64, _batch: &mut Batch) -> Result<(), DataError> {
///         Err(DataError::Refuse(format!("there is no held-out point {index}")))
///     }
/// }
///
/// let mut batch = Batch::default();
/// assert_eq!(Line.fill(500, &mut batch), Ok(()));
/// assert_eq!((batch.rows, batch.features), (1, vec![0.5, 1.5]));
/// ```
pub trait Dataset: Send + Sync {
    /// The number of samples to train on. A run needs at least one.
    fn len(&self) -> u64;

    /// Whether there is no sample to train on.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A digest of everything that the samples follow from. The coordinator refuses a worker with
    /// another fingerprint than the run's.
    fn fingerprint(&self) -> [u8; 32];

    /// Appends the sample `index`, below [`Dataset::len`], as one row: the same number of tokens,
    /// targets and features for every sample, and one more in `batch.rows`.
    ///
    /// A loading thread may call this, not only the computing one. What it appended before an error
    /// is taken back.
    ///
    /// # Errors
    ///
    /// [`DataError`]. A panic counts as [`DataError::Refuse`] with its message.
    fn fill(&self, index: u64, batch: &mut Batch) -> Result<(), DataError>;

    /// The number of held-out samples. With none the run reports no validation loss.
    fn validation_len(&self) -> u64;

    /// Appends the held-out sample `index`, below [`Dataset::validation_len`], like
    /// [`Dataset::fill`].
    fn fill_validation(&self, index: u64, batch: &mut Batch) -> Result<(), DataError>;

    /// What is costly to read, if the next data set of the same specification can have it. The
    /// worker keeps it until that data set is built, or one of another specification is to be. A
    /// builder that has a [`Weak`](std::sync::Weak) to it need not read it again.
    fn reusable(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
}

/// Why a data set does not give a sample, in words for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// The sample may come later: a server does not answer, say. The worker asks again, without
    /// end. It stays in the run meanwhile, and the run waits for it.
    #[error("{0}")]
    Retry(String),
    /// The sample cannot be had: it is damaged, say. The run fails with these words.
    #[error("{0}")]
    Refuse(String),
}
