//! Batches filled ahead: a thread that does `load` while the worker computes.
//!
//! Input: the data shards of one step after the other. Output, in that order: each data shard's
//! micro-batches and the indices of the samples that were really filled into them. Steps resemble
//! each other, so the thread fills coming steps like the last one, until the caller asks for other
//! data shards. At most `depth` filled data shards wait, the thread fills one more, and it reuses
//! returned memory. With a depth of 0 there is no thread: the caller's thread fills a data shard on
//! request.
//!
//! This file knows neither why steps differ, nor the use of the batches.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Instant;

use everstep_kernels::compute::Batch;
use everstep_transport::protocol::{DataShard, Step};

use super::Dataset;
use super::sampler::Sampler;

/// The worker's end of the loading thread. The thread ends soon after the loader is dropped.
pub struct Loader {
    source: Source,
    spare: SyncSender<Vec<Batch>>,
}

/// The source of filled data shards.
enum Source {
    /// A thread that fills ahead.
    Ahead(Ahead),
    /// The caller's own thread.
    Asked(Filler),
}

/// The thread that fills ahead, and its current plan.
struct Ahead {
    plans: Sender<Plan>,
    /// The output of the current plan. None before the first plan and after an error.
    filled: Option<Receiver<Filled>>,
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
    /// The data shard.
    pub data_shard: DataShard,
    /// Its `accumulate` micro-batches, of `micro_batch` rows each.
    pub batches: Vec<Batch>,
    /// The sample in each row, micro-batch after micro-batch, noted while filling.
    pub samples: Vec<u64>,
    /// Seconds that a thread ahead took to fill it. 0 without a thread, because the caller has then
    /// waited for it.
    pub seconds: f64,
}

/// Why there is no batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// The data set failed, and it would fail again.
    #[error("the data set cannot fill sample {index}: {message}")]
    Fill {
        /// The sample.
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
        let filler = Filler { dataset, sampler, spares };
        if depth == 0 {
            return Self { source: Source::Asked(filler), spare };
        }
        let (plans, planned) = channel();
        let thread = thread::Builder::new().name("load".into());
        thread.spawn(move || filler.run(planned)).expect("the system gives a process a thread");
        let (step, usual) = (Step(0), Vec::new());
        let ahead = Ahead { plans, filled: None, depth, step, usual };
        Self { source: Source::Ahead(ahead), spare }
    }

    /// Asks for these data shards of a step, in this order. If the thread fills just these for the
    /// step after the last one, it continues. Otherwise the loader discards the filled ones.
    ///
    /// A repeated step asks for the data shards that it lacks, because other workers that had them
    /// are gone. From the next step on the thread fills these and the earlier ones.
    pub fn plan(&mut self, step: Step, data_shards: &[DataShard]) {
        if let Source::Ahead(ahead) = &mut self.source
            && !data_shards.is_empty()
        {
            ahead.plan(step, data_shards);
        }
    }

    /// Waits for a data shard of the plan, and discards the data shards before it.
    pub fn next(&mut self, step: Step, data_shard: DataShard) -> Result<Loaded, LoadError> {
        let Self { source, spare } = self;
        let filled = match source {
            Source::Asked(filler) => return filler.fill(step, data_shard),
            Source::Ahead(Ahead { filled, .. }) => filled,
        };
        let receiver = filled.take();
        while let Some(next) = receiver.as_ref().and_then(|filled| filled.recv().ok()) {
            let loaded = next?;
            if (loaded.step, loaded.data_shard) == (step, data_shard) {
                *filled = receiver;
                return Ok(loaded);
            }
            if loaded.step > step {
                break;
            }
            let _ = spare.try_send(loaded.batches); // As in `recycle`.
        }
        Err(LoadError::NotPlanned { step, data_shard })
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
        // Dropping the old receiver ends the older plan: its next send fails.
        let (filled, receiver) = sync_channel(self.depth);
        let (now, later) = (data_shards.to_vec(), self.usual.clone());
        let sent = self.plans.send(Plan { step, now, later, filled });
        self.filled = sent.is_ok().then_some(receiver);
    }
}

/// The data shards to fill until the receiver of `filled` is gone. There is at least one.
struct Plan {
    step: Step,
    /// The data shards of this step.
    now: Vec<DataShard>,
    /// The data shards of every step after it.
    later: Vec<DataShard>,
    filled: SyncSender<Filled>,
}

/// Fills batches, on the loading thread or the caller's.
struct Filler {
    dataset: Arc<dyn Dataset>,
    sampler: Sampler,
    spares: Receiver<Vec<Batch>>,
}

impl Filler {
    /// Follows plans until the loader, which holds the other end of `plans`, is dropped.
    fn run(self, plans: Receiver<Plan>) {
        while let Ok(plan) = plans.recv() {
            // The caller waits for the newest plan only.
            self.follow(plans.try_iter().last().unwrap_or(plan));
        }
    }

    /// Fills until the receiver is gone, or filling fails.
    fn follow(&self, Plan { mut step, now, later, filled }: Plan) {
        for data_shards in std::iter::once(&now).chain(std::iter::repeat(&later)) {
            for &data_shard in data_shards {
                let began = Instant::now();
                let loaded = self.fill(step, data_shard).map(|loaded| {
                    let seconds = began.elapsed().as_secs_f64();
                    Loaded { seconds, ..loaded }
                });
                let failed = loaded.is_err();
                if filled.send(loaded).is_err() || failed {
                    return;
                }
            }
            step = step.next();
        }
    }

    fn fill(&self, step: Step, data_shard: DataShard) -> Filled {
        let shape = self.sampler.batch();
        let mut batches = self.spares.try_recv().unwrap_or_default();
        batches.resize_with(shape.accumulate as usize, Batch::default);
        let mut samples = Vec::with_capacity(shape.shard_samples() as usize);
        let mut planned = self.sampler.shard_samples(step, data_shard);
        for batch in &mut batches {
            batch.clear();
            for index in planned.by_ref().take(shape.micro_batch as usize) {
                self.append(index, batch).map_err(|message| LoadError::Fill { index, message })?;
                samples.push(index);
            }
        }
        Ok(Loaded { step, data_shard, batches, samples, seconds: 0.0 })
    }

    /// Appends one row. An error says what the data set did instead.
    fn append(&self, index: u64, batch: &mut Batch) -> Result<(), String> {
        let expected = batch.rows + 1;
        // A half-filled batch is cleared or dropped. The data set vouches for its own state.
        catch_unwind(AssertUnwindSafe(|| self.dataset.fill(index, batch)))
            .map_err(|panic| message(&*panic))?;
        if batch.rows != expected {
            return Err(format!("the batch has {} rows instead of {expected}", batch.rows));
        }
        Ok(())
    }
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let literal = panic.downcast_ref::<&str>().map(|message| message.to_string());
    literal.or_else(|| panic.downcast_ref().cloned()).unwrap_or_else(|| "a panic".into())
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::time::Duration;

    use everstep_transport::protocol::run::BatchSpec;

    use super::*;

    const SHAPE: BatchSpec = BatchSpec { data_shards: 4, micro_batch: 3, accumulate: 2 };

    /// 1,000 samples that are their own index. Some cannot be filled.
    struct Numbers {
        bad: Option<u64>,
        rowless: Option<u64>,
    }

    impl Dataset for Numbers {
        fn len(&self) -> u64 {
            1_000
        }
        fn fingerprint(&self) -> [u8; 32] {
            [0; 32]
        }
        fn fill(&self, index: u64, batch: &mut Batch) {
            assert!(self.bad != Some(index), "sample {index} is torn");
            batch.tokens.push(index as u32);
            batch.rows += usize::from(self.rowless != Some(index));
        }
        fn validation_len(&self) -> u64 {
            0
        }
        fn fill_validation(&self, _index: u64, _batch: &mut Batch) {}
    }

    const GOOD: Numbers = Numbers { bad: None, rowless: None };

    fn sampler() -> Sampler {
        Sampler::new(1, 1_000, SHAPE)
    }

    fn loader(dataset: Numbers) -> Loader {
        Loader::new(Arc::new(dataset), sampler(), 2)
    }

    fn check(loaded: &Loaded, step: Step, data_shard: DataShard) {
        let planned: Vec<u64> = sampler().shard_samples(step, data_shard).collect();
        assert_eq!((loaded.step, loaded.data_shard), (step, data_shard));
        assert_eq!(loaded.samples, planned);
        assert!(loaded.batches.iter().all(|batch| batch.rows == 3));
        let tokens = loaded.batches.iter().flat_map(|batch| &batch.tokens);
        assert!(tokens.map(|&token| u64::from(token)).eq(planned));
    }

    #[test]
    fn batches_come_in_the_order_of_the_plan() {
        let mut loader = loader(GOOD);
        loader.plan(Step(5), &[DataShard(3), DataShard(1)]);
        for step in (5..40).map(Step) {
            for data_shard in [3, 1].map(DataShard) {
                let loaded = loader.next(step, data_shard).expect("a batch");
                check(&loaded, step, data_shard);
                loader.recycle(loaded.batches);
            }
        }
    }

    #[test]
    fn a_thread_that_is_ahead_says_how_long_it_took() {
        let (mut ahead, mut asked) = (loader(GOOD), Loader::new(Arc::new(GOOD), sampler(), 0));
        for (loader, takes_time) in [(&mut ahead, true), (&mut asked, false)] {
            loader.plan(Step(1), &[DataShard(0)]);
            let loaded = loader.next(Step(1), DataShard(0)).expect("a batch");
            assert_eq!(loaded.seconds > 0.0, takes_time);
        }
    }

    #[test]
    fn without_a_thread_any_data_shard_is_filled_when_it_is_asked_for() {
        let mut loader = Loader::new(Arc::new(GOOD), sampler(), 0);
        loader.plan(Step(1), &[DataShard(0)]);
        for (step, data_shard) in [(3, 1), (3, 0), (1, 2)] {
            let (step, data_shard) = (Step(step), DataShard(data_shard));
            let loaded = loader.next(step, data_shard).expect("a batch");
            check(&loaded, step, data_shard);
            loader.recycle(loaded.batches);
        }
    }

    #[test]
    fn what_was_not_foreseen_is_filled_all_the_same() {
        let mut loader = loader(GOOD);
        loader.plan(Step(1), &[DataShard(0)]);
        loader.next(Step(1), DataShard(0)).expect("a batch");
        loader.plan(Step(1), &[DataShard(2), DataShard(0)]);
        let loaded = loader.next(Step(1), DataShard(2)).expect("a batch");
        check(&loaded, Step(1), DataShard(2));
    }

    #[test]
    fn what_comes_as_foreseen_is_not_begun_anew() {
        let (plans, planned) = channel();
        let (step, usual) = (Step(0), Vec::new());
        let mut ahead = Ahead { plans, filled: None, depth: 2, step, usual };
        let [a, b, c] = [0, 1, 2].map(DataShard);
        let table = [
            (1, vec![a, c], Some((vec![a, c], vec![a, c]))),
            (2, vec![a, c], None),
            (2, vec![b], Some((vec![b], vec![a, b, c]))), // the step again, by fewer workers
            (3, vec![a, b, c], None),
            (4, vec![a, b], Some((vec![a, b], vec![a, b]))),
            (9, vec![a, b], Some((vec![a, b], vec![a, b]))),
        ];
        for (step, asked, expected) in table {
            ahead.plan(Step(step), &asked);
            let begun = planned.try_iter().last().map(|plan: Plan| (plan.now, plan.later));
            assert_eq!(begun, expected, "step {step}");
        }
        ahead.filled = None; // as after an error
        ahead.plan(Step(10), &[a, b]);
        assert!(planned.try_recv().is_ok());
    }

    #[test]
    fn a_step_done_anew_is_followed_by_the_usual_data_shards_and_those_it_lacked() {
        let mut loader = loader(GOOD);
        let [kept, gained] = [0, 2].map(DataShard);
        for (step, asked) in
            [(1, vec![kept]), (1, vec![gained]), (1, vec![]), (2, vec![kept, gained])]
        {
            loader.plan(Step(step), &asked);
            for data_shard in asked {
                let loaded = loader.next(Step(step), data_shard).expect("a batch");
                check(&loaded, Step(step), data_shard);
            }
        }
    }

    #[test]
    fn a_place_of_the_plan_may_be_skipped() {
        let mut loader = loader(GOOD);
        loader.plan(Step(1), &[DataShard(0), DataShard(1), DataShard(2)]);
        for (step, data_shard) in [(1, 1), (2, 0), (9, 2)] {
            let (step, data_shard) = (Step(step), DataShard(data_shard));
            check(&loader.next(step, data_shard).expect("a batch"), step, data_shard);
        }
    }

    #[test]
    fn what_is_not_planned_is_an_error_until_the_next_plan() {
        let mut loader = loader(GOOD);
        let absent = |step, data_shard| {
            let (step, data_shard) = (Step(step), DataShard(data_shard));
            Err(LoadError::NotPlanned { step, data_shard })
        };
        let mut ask = |plan: Option<Vec<u32>>, step, data_shard| {
            if let Some(data_shards) = plan {
                let data_shards: Vec<_> = data_shards.into_iter().map(DataShard).collect();
                loader.plan(Step(3), &data_shards);
            }
            loader.next(Step(step), DataShard(data_shard)).map(|loaded| loaded.step)
        };
        assert_eq!(ask(None, 1, 0), absent(1, 0));
        assert_eq!(ask(Some(vec![]), 3, 0), absent(3, 0));
        assert_eq!(ask(Some(vec![0]), 3, 1), absent(3, 1));
        assert_eq!(ask(None, 4, 0), absent(4, 0));
        assert_eq!(ask(Some(vec![0]), 2, 0), absent(2, 0));
        assert_eq!(ask(Some(vec![0]), 3, 0), Ok(Step(3)));
    }

    #[test]
    fn memory_is_filled_again() {
        let mut loader = loader(GOOD);
        loader.plan(Step(1), &[DataShard(0)]);
        let mut first = loader.next(Step(1), DataShard(0)).expect("a batch");
        // This recognises the batch when it comes back, since nothing fills features here.
        first.batches[1].features.reserve(12_345);
        loader.recycle(first.batches);
        let again = (2..9).map(Step).any(|step| {
            let loaded = loader.next(step, DataShard(0)).expect("a batch");
            check(&loaded, step, DataShard(0));
            loaded.batches[1].features.capacity() >= 12_345
        });
        assert!(again, "the batches did not come back");
    }

    #[test]
    fn a_panic_of_the_data_set_is_an_error_with_its_message() {
        let bad = sampler().sample(Step(2), DataShard(1), 1, 0).index;
        let mut loader = loader(Numbers { bad: Some(bad), ..GOOD });
        loader.plan(Step(2), &[DataShard(0), DataShard(1)]);
        loader.next(Step(2), DataShard(0)).expect("a batch");
        let error = loader.next(Step(2), DataShard(1)).expect_err("torn");
        let message = format!("sample {bad} is torn");
        assert_eq!(error, LoadError::Fill { index: bad, message });

        loader.plan(Step(3), &[DataShard(0)]);
        loader.next(Step(3), DataShard(0)).expect("the thread goes on with another plan");
    }

    #[test]
    fn a_row_that_is_not_counted_is_an_error() {
        let rowless = sampler().sample(Step(1), DataShard(0), 0, 1).index;
        let mut loader = loader(Numbers { rowless: Some(rowless), ..GOOD });
        loader.plan(Step(1), &[DataShard(0)]);
        let error = loader.next(Step(1), DataShard(0)).expect_err("a row is missing");
        let message = "the batch has 1 rows instead of 2".to_string();
        assert_eq!(error, LoadError::Fill { index: rowless, message });
    }

    #[test]
    fn the_thread_ends_with_the_loader() {
        let dataset = Arc::new(GOOD);
        let held: Weak<Numbers> = Arc::downgrade(&dataset);
        let mut loader = Loader::new(dataset, sampler(), 2);
        loader.plan(Step(1), &[DataShard(0)]);
        loader.next(Step(1), DataShard(0)).expect("a batch");
        drop(loader);
        let gone = (0..1_000).any(|_| {
            thread::sleep(Duration::from_millis(10));
            held.upgrade().is_none()
        });
        assert!(gone, "the thread still holds the data set");
    }
}
