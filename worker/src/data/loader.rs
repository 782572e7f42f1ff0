//! Batches filled ahead: a thread that does `load` while the worker computes.
//!
//! Input: the data shards of one step after the other. Output, in that order: each data shard's
//! micro-batches and the indices of the samples that were really filled into them. Steps resemble
//! each other, so the thread fills coming steps like the last one, until the caller asks for other
//! data shards. At most `depth` filled data shards wait, the thread fills one more, and it reuses
//! returned memory. With a depth of 0 there is no thread: the caller's thread fills a data shard on
//! request.
//!
//! A sample that the data set cannot read yet stalls the thread, not the caller: it may look how
//! the thread does, and ask again.
//!
//! This file knows neither why steps differ, nor the use of the batches.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use everstep_kernels::compute::Batch;
use everstep_transport::protocol::{DataShard, Step};

use super::Dataset;
use super::row::{self, RowError, SampleIndex};
use super::sampler::Sampler;

/// The worker's end of the loading thread. The thread ends soon after the loader is dropped.
pub struct Loader {
    source: BatchSource,
    spare: SyncSender<Vec<Batch>>,
    /// Whether the data set cannot read a sample yet.
    is_stalled: Arc<AtomicBool>,
}

/// The source of filled data shards.
enum BatchSource {
    /// A thread that fills ahead.
    Ahead(Ahead),
    /// The caller's own thread.
    Asked(Filler),
}

/// The thread that fills ahead, and its current plan.
struct Ahead {
    plans: Sender<LoadPlan>,
    /// The output of the current plan. None before the first plan and after an error.
    filled: Option<Receiver<Filled>>,
    /// Exists as long as the current plan is wanted.
    wanted: Arc<()>,
    depth: usize,
    /// The last step that the caller asked for.
    step: Step,
    /// The data shards that the current plan has in every later step.
    usual: Vec<DataShard>,
}

/// One data shard of one step.
#[derive(Debug)]
pub struct Loaded {
    /// The step that it is for.
    pub step: Step,
    /// The data shard that the batch is a part of.
    pub data_shard: DataShard,
    /// Its `accumulate` micro-batches, of `micro_batch` rows each.
    pub batches: Vec<Batch>,
    /// The sample in each row, micro-batch after micro-batch, noted while filling.
    pub samples: Vec<u64>,
    /// Seconds that a thread ahead took to fill it, without stalls. 0 without a thread, because the
    /// caller has then waited for it.
    pub seconds: f64,
    /// How long samples that the data set could not read yet were waited for.
    pub stalled: Duration,
}

/// Why there is no batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The data set failed, and it would fail again.
    #[error("the data set cannot fill sample {index}: {message}")]
    Fill {
        /// The index of the sample in the data set.
        index: u64,
        /// The panic's message, or the error in the row.
        message: String,
    },
    /// The plan does not lead there: it has passed this place, never had it, or ended in an error.
    #[error("no plan leads to data shard {data_shard} of step {step}: plan anew")]
    NotPlanned {
        /// The step asked for.
        step: Step,
        /// The data shard asked for.
        data_shard: DataShard,
    },
}

type Filled = Result<Loaded, LoadError>;

impl Loader {
    /// Starts the thread. At most `depth` filled data shards wait for [`Loader::next`]. With 0
    /// there is no thread, and the caller needs no plan.
    ///
    /// # Panics
    ///
    /// If the system refuses a thread.
    pub fn new(dataset: Arc<dyn Dataset>, sampler: Sampler, depth: usize) -> Self {
        // The most that can be out at once: the waiting data shards, and one at each end.
        let (spare, spares) = sync_channel(depth + 2);
        let is_stalled = Arc::new(AtomicBool::new(false));
        let filler = Filler { dataset, sampler, spares, is_stalled: is_stalled.clone() };
        if depth == 0 {
            return Self { source: BatchSource::Asked(filler), spare, is_stalled };
        }
        let (plans, planned) = channel();
        let thread = thread::Builder::new().name("load".into());
        thread.spawn(move || filler.run(planned)).expect("the system gives a process a thread");
        let (step, usual) = (Step(0), Vec::new());
        let ahead = Ahead { plans, filled: None, wanted: Arc::default(), depth, step, usual };
        Self { source: BatchSource::Ahead(ahead), spare, is_stalled }
    }

    /// Asks for these data shards of a step, in this order. If the thread fills just these for the
    /// step after the last one, it continues. Otherwise the loader discards the filled ones.
    ///
    /// A repeated step asks for the data shards that it lacks, because other workers that had them
    /// are gone. From the next step on the thread fills these and the earlier ones.
    pub fn plan(&mut self, step: Step, data_shards: &[DataShard]) {
        if let BatchSource::Ahead(ahead) = &mut self.source
            && !data_shards.is_empty()
        {
            ahead.plan(step, data_shards);
        }
    }

    /// Waits for a data shard of the plan, however long it takes, and discards the data shards
    /// before it.
    pub fn next(&mut self, step: Step, data_shard: DataShard) -> Result<Loaded, LoadError> {
        loop {
            if let Some(loaded) = self.next_within(step, data_shard, Duration::from_secs(60))? {
                return Ok(loaded);
            }
        }
    }

    /// As [`Loader::next`], but `None` if the thread fills nothing for so long. Without a thread it
    /// waits as [`Loader::next`] does.
    pub fn next_within(
        &mut self,
        step: Step,
        data_shard: DataShard,
        timeout: Duration,
    ) -> Result<Option<Loaded>, LoadError> {
        let Self { source, spare, .. } = self;
        let filled = match source {
            BatchSource::Asked(filler) => {
                return filler.fill(step, data_shard, &|| true).map(Some);
            }
            BatchSource::Ahead(Ahead { filled, .. }) => filled,
        };
        let Some(receiver) = filled.take() else {
            return Err(LoadError::NotPlanned { step, data_shard });
        };
        loop {
            let loaded = match receiver.recv_timeout(timeout) {
                Ok(next) => next?,
                Err(RecvTimeoutError::Timeout) => {
                    *filled = Some(receiver);
                    return Ok(None);
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if (loaded.step, loaded.data_shard) == (step, data_shard) {
                *filled = Some(receiver);
                return Ok(Some(loaded));
            }
            if loaded.step > step {
                break;
            }
            let _ = spare.try_send(loaded.batches); // As in `recycle`.
        }
        Err(LoadError::NotPlanned { step, data_shard })
    }

    /// Whether the data set cannot read a sample yet.
    pub fn is_stalled(&self) -> bool {
        self.is_stalled.load(Ordering::Relaxed)
    }

    /// Returns the memory of computed batches, for later batches.
    pub fn recycle(&self, batches: Vec<Batch>) {
        // If there are enough spares, or the thread is gone, the memory is freed.
        let _ = self.spare.try_send(batches);
    }
}

impl Ahead {
    fn plan(&mut self, step: Step, data_shards: &[DataShard]) {
        let last = std::mem::replace(&mut self.step, step);
        if self.filled.is_some() && step == last.next() && self.usual == data_shards {
            return;
        }
        if step == last {
            self.usual.extend(data_shards);
            self.usual.sort();
            self.usual.dedup();
        } else {
            self.usual = data_shards.to_vec();
        }
        // Dropping the old receiver ends the older plan: its next send fails. If a stall keeps it
        // from sending, it sees that it is not wanted any more.
        let (filled, receiver) = sync_channel(self.depth);
        self.wanted = Arc::new(());
        let (now, later) = (data_shards.to_vec(), self.usual.clone());
        let wanted = Arc::downgrade(&self.wanted);
        let sent = self.plans.send(LoadPlan { step, now, later, filled, wanted });
        self.filled = sent.is_ok().then_some(receiver);
    }
}

/// The data shards to fill until the receiver of `filled` is gone. There is at least one.
struct LoadPlan {
    step: Step,
    /// The data shards of this step.
    now: Vec<DataShard>,
    /// The data shards of every step after it.
    later: Vec<DataShard>,
    filled: SyncSender<Filled>,
    /// Dead as soon as the caller has another plan.
    wanted: Weak<()>,
}

/// Fills batches, on the loading thread or the caller's.
struct Filler {
    dataset: Arc<dyn Dataset>,
    sampler: Sampler,
    spares: Receiver<Vec<Batch>>,
    is_stalled: Arc<AtomicBool>,
}

impl Filler {
    /// Follows plans until the loader, which holds the other end of `plans`, is dropped.
    fn run(self, plans: Receiver<LoadPlan>) {
        while let Ok(plan) = plans.recv() {
            // The caller waits for the newest plan only.
            self.follow(plans.try_iter().last().unwrap_or(plan));
        }
    }

    /// Fills until the receiver is gone, or filling fails.
    fn follow(&self, plan: LoadPlan) {
        let LoadPlan { mut step, now, later, filled, wanted } = plan;
        let is_wanted = || wanted.strong_count() > 0;
        for data_shards in std::iter::once(&now).chain(std::iter::repeat(&later)) {
            for &data_shard in data_shards {
                let began = Instant::now();
                let loaded = self.fill(step, data_shard, &is_wanted).map(|loaded| {
                    let took = began.elapsed().saturating_sub(loaded.stalled);
                    Loaded { seconds: took.as_secs_f64(), ..loaded }
                });
                let failed = loaded.is_err();
                if filled.send(loaded).is_err() || failed {
                    return;
                }
            }
            step = step.next();
        }
    }

    fn fill(&self, step: Step, data_shard: DataShard, is_wanted: &dyn Fn() -> bool) -> Filled {
        let shape = self.sampler.batch();
        let mut batches = self.spares.try_recv().unwrap_or_default();
        batches.resize_with(shape.accumulate as usize, Batch::default);
        let mut samples = Vec::with_capacity(shape.shard_samples() as usize);
        let mut planned = self.sampler.shard_samples(step, data_shard);
        let mut stalled = Duration::ZERO;
        for batch in &mut batches {
            batch.clear();
            for index in planned.by_ref().take(shape.micro_batch as usize) {
                stalled += self.append(index, batch, is_wanted).map_err(|error| match error {
                    RowError::Refused(message) => LoadError::Fill { index, message },
                    RowError::Abandoned => LoadError::NotPlanned { step, data_shard },
                })?;
                samples.push(index);
            }
        }
        Ok(Loaded { step, data_shard, batches, samples, seconds: 0.0, stalled })
    }

    /// Appends one row. Returns how long it stalled.
    fn append(
        &self,
        index: u64,
        batch: &mut Batch,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Duration, RowError> {
        let mut is_wanted = || {
            self.is_stalled.store(true, Ordering::Relaxed);
            is_wanted()
        };
        let row = row::append(&*self.dataset, SampleIndex::Training(index), batch, &mut is_wanted);
        self.is_stalled.store(false, Ordering::Relaxed);
        row
    }
}

#[cfg(test)]
mod tests;
