//! The data of a run: data sets, the order of their samples, and batches filled ahead.
//!
//! - [`Dataset`]: the trait of a data set. A user can implement it.
//! - [`sampler`]: which sample stands where in which step, and which samples were lost or repeated.
//!   Pure.
//! - [`loader`]: a thread that fills the batches of coming steps.
//! - [`text`]: files of text as a data set. [`text_files`] finds them, or [`default_text`] if the
//!   user names none. [`text_samples`] cuts the text into samples. [`bigram`] measures it.
//! - [`validation`]: which part of the held-out samples each data shard evaluates. Pure.
//!
//! Input: a run specification's data and batch. Output: micro-batches with the indices of the
//! samples in them. Nothing here knows of workers, generations or models.

pub mod bigram;
pub mod default_text;
pub mod loader;
pub mod sampler;
pub mod text;
pub mod text_files;
pub mod text_samples;
pub mod validation;

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
/// use everstep_worker::data::Dataset;
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
///     fn fill(&self, index: u64, batch: &mut Batch) {
///         let x = index as f32 / 1_000.0;
///         batch.features.extend([x, 3.0 * x]);
///         batch.rows += 1;
///     }
///     fn validation_len(&self) -> u64 {
///         0
///     }
///     fn fill_validation(&self, _index: u64, _batch: &mut Batch) {}
/// }
///
/// let mut batch = Batch::default();
/// Line.fill(500, &mut batch);
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
    /// A loading thread may call this, not only the computing one. There is no error to return: a
    /// data set should find unreadable samples when it is opened. A panic stops the run with its
    /// message.
    fn fill(&self, index: u64, batch: &mut Batch);

    /// The number of held-out samples. With none the run reports no validation loss.
    fn validation_len(&self) -> u64;

    /// Appends the held-out sample `index`, below [`Dataset::validation_len`], like
    /// [`Dataset::fill`].
    fn fill_validation(&self, index: u64, batch: &mut Batch);
}
