//! What a run learns from: data sets, the order of their samples, and batches filled ahead.
//!
//! - [`Dataset`]: what a data set must do; a user's own implements it.
//! - [`sampler`]: which sample stands where in which step, and what was lost or repeated. Pure.
//! - [`loader`]: a thread that fills the batches of coming steps.
//! - [`text`]: files of text as a data set, found by [`text_files`] or, where the user names none,
//!   by [`default_text`]; cut into samples by [`text_samples`]; measured by [`bigram`].
//! - [`validation`]: who evaluates which held-out samples. Pure.
//!
//! In goes a run specification's data and batch; out come micro-batches with the indices of the
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

/// A fixed, numbered set of samples to train on, and another one to validate with.
///
/// Every worker of a run opens the same data set, and any of them may be asked for any sample, at
/// any time, again and again. So a sample is a pure function of its index: no shuffling here (the
/// [`sampler::Sampler`] does it), no random augmentation unless it is keyed by the index.
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
    /// How many samples there are to train on. A run needs at least one.
    fn len(&self) -> u64;

    /// Whether there is nothing to train on.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A digest of everything that the samples follow from. A worker whose data set has another
    /// fingerprint than the run's is refused.
    fn fingerprint(&self) -> [u8; 32];

    /// Appends the sample `index`, below [`Dataset::len`], as one row: the same number of tokens,
    /// targets and features for every sample, and one more in `batch.rows`.
    ///
    /// It is called from another thread than the one that computes. There is no error to return:
    /// what cannot be read should fail when the data set is opened. A panic stops the run with its
    /// message.
    fn fill(&self, index: u64, batch: &mut Batch);

    /// How many held-out samples there are. With none the run reports no validation loss.
    fn validation_len(&self) -> u64;

    /// Appends the held-out sample `index`, below [`Dataset::validation_len`], like
    /// [`Dataset::fill`].
    fn fill_validation(&self, index: u64, batch: &mut Batch);
}
