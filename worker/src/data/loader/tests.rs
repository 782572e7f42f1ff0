//! The loading thread: order, plans, errors and stalls.

use everstep_transport::protocol::run::BatchSpec;

use super::*;
use crate::data::DataError;

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
    fn fill(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        assert!(self.bad != Some(index), "sample {index} is torn");
        batch.tokens.push(index as u32);
        batch.rows += usize::from(self.rowless != Some(index));
        Ok(())
    }
    fn validation_len(&self) -> u64 {
        0
    }
    fn fill_validation(&self, _index: u64, _batch: &mut Batch) -> Result<(), DataError> {
        Err(DataError::Refuse("nothing is held out".into()))
    }
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
    let wanted = Arc::default();
    let mut ahead = Ahead { plans, filled: None, wanted, depth: 2, step, usual };
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
        let begun = planned.try_iter().last().map(|plan: LoadPlan| (plan.now, plan.later));
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
    for (step, asked) in [(1, vec![kept]), (1, vec![gained]), (1, vec![]), (2, vec![kept, gained])]
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

/// Numbers that cannot be read before a switch is set.
struct Remote {
    is_up: AtomicBool,
}

impl Dataset for Remote {
    fn len(&self) -> u64 {
        1_000
    }
    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
    fn fill(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        if !self.is_up.load(Ordering::Relaxed) {
            return Err(DataError::Retry("the store is down".into()));
        }
        GOOD.fill(index, batch)
    }
    fn validation_len(&self) -> u64 {
        0
    }
    fn fill_validation(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        self.fill(index, batch)
    }
}

#[test]
fn a_stall_is_seen_and_its_batches_come_when_it_ends() {
    let dataset = Arc::new(Remote { is_up: AtomicBool::new(false) });
    let mut loader = Loader::new(dataset.clone(), sampler(), 2);
    loader.plan(Step(1), &[DataShard(0)]);
    let soon = Duration::from_millis(50);
    // The thread may begin late.
    while !loader.is_stalled() {
        let loaded = loader.next_within(Step(1), DataShard(0), soon).expect("no error");
        assert!(loaded.is_none());
    }
    thread::sleep(soon);
    dataset.is_up.store(true, Ordering::Relaxed);
    let loaded = loader.next(Step(1), DataShard(0)).expect("a batch");
    check(&loaded, Step(1), DataShard(0));
    assert!(loaded.stalled >= soon, "{:?}", loaded.stalled);
    assert!(!loader.is_stalled());
}

#[test]
fn a_stall_ends_with_its_plan_and_with_the_loader() {
    let dataset = Arc::new(Remote { is_up: AtomicBool::new(false) });
    let held: Weak<Remote> = Arc::downgrade(&dataset);
    let mut loader = Loader::new(dataset, sampler(), 2);
    for step in [3, 7] {
        loader.plan(Step(step), &[DataShard(0)]);
        let soon = Duration::from_millis(50);
        let loaded = loader.next_within(Step(step), DataShard(0), soon);
        assert!(loaded.expect("no error").is_none());
    }
    let dataset = held.upgrade().expect("the thread holds it");
    dataset.is_up.store(true, Ordering::Relaxed);
    check(&loader.next(Step(7), DataShard(0)).expect("a batch"), Step(7), DataShard(0));
    dataset.is_up.store(false, Ordering::Relaxed);
    drop((loader, dataset));
    let gone = (0..1_000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        held.upgrade().is_none()
    });
    assert!(gone, "the thread still holds the data set");
}
