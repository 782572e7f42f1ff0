//! A device under test: the test gives the jobs, also those that come while a pass waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use everstep_kernels::buffer::{Buffer, Pool, Shared};
use everstep_kernels::compute::Batch;
use everstep_kernels::device::DeviceChoice;
use everstep_kernels::reduce::{self, Addend, Sum, Tree, TreeNode};
use everstep_transport::protocol::run::{
    BatchSpec, DataSpec, InitSpec, LossUnit, ModelSpec, OptimizerSpec, OptionMap, Precision,
    ScheduleKind, TargetUnit,
};
use everstep_transport::protocol::{
    DataShard, Encoding, Generation, LossScale, Rounding, RunSpec, Shard, Step,
};
use everstep_transport::time::Time;
use everstep_worker::builtin;
use everstep_worker::data::{DataError, Dataset};
use everstep_worker::device::build::{BuildContext, build};
use everstep_worker::device::{Device, DeviceChannel};
use everstep_worker::registry::BuildError;
use everstep_worker::step::event::{Gradient, Job, Report, ShardOrigin, Work};

/// Data shards of [`run`].
pub const DATA_SHARDS: u32 = 8;
/// Parameter shards of its model.
pub const SHARDS: u32 = 7;

/// Eight data shards of one micro-batch, for an MLP with real numbers everywhere.
pub fn run() -> RunSpec {
    RunSpec {
        name: "bench".into(),
        seed: 1,
        steps: 6,
        min_workers: 1,
        start_workers: 1,
        model: ModelSpec {
            kind: "mlp".into(),
            layers: 1,
            heads: 1,
            width: 8,
            context: 2,
            vocabulary: ModelSpec::VOCABULARY,
            precision: Precision::F32,
            recompute: false,
            init: None,
            unit: TargetUnit::default(),
            loss_unit: LossUnit::default(),
            options: OptionMap::default(),
        },
        data: DataSpec {
            kind: "sums".into(),
            path: "none".into(),
            validation: 0.05,
            dtype: None,
            validation_every: 0,
        },
        batch: BatchSpec { data_shards: DATA_SHARDS, micro_batch: 2, accumulate: 1 },
        optimizer: OptimizerSpec {
            kind: "adamw".into(),
            learning_rate: 1e-2,
            warmup_steps: 2,
            schedule: ScheduleKind::Cosine,
            floor: OptimizerSpec::FLOOR,
            weight_decay: 0.1,
            clip_norm: Some(1.0),
            betas: None,
            epsilon: None,
            momentum: None,
            options: OptionMap::default(),
        },
        all_gather: Encoding::F32,
        rounding: Rounding::Nearest,
        copies: 2,
        give_up_after_ms: None,
        hang_after_ms: RunSpec::HANG_AFTER_MS,
        checkpoint: None,
    }
}

/// Two digits a row, and their sum as the target.
struct Sums {
    /// How often a sample cannot be read yet. The tries count from the first job on.
    failures: Arc<AtomicUsize>,
}

impl Dataset for Sums {
    fn len(&self) -> u64 {
        100
    }
    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
    fn fill(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        let count_down = |left: usize| left.checked_sub(1);
        if self.failures.fetch_update(Relaxed, Relaxed, count_down).is_ok() {
            return Err(DataError::Retry("the store is down".into()));
        }
        let (a, b) = (index as u32 / 10, index as u32 % 10);
        batch.tokens.extend([a, b]);
        batch.targets.push(a + b);
        batch.rows += 1;
        Ok(())
    }
    fn validation_len(&self) -> u64 {
        20
    }
    fn fill_validation(&self, index: u64, batch: &mut Batch) -> Result<(), DataError> {
        self.fill(index, batch)
    }
}

/// A device, the jobs for it, and its reports.
pub struct TestDevice {
    device: Device,
    script: Script,
    failures: Arc<AtomicUsize>,
}

/// Jobs that come one after the other while a pass waits. Then no more come.
#[derive(Default)]
struct Script {
    coming: VecDeque<Job>,
    /// Questions that come while a pass computes.
    beside: VecDeque<Job>,
    reports: Vec<Report>,
}

impl DeviceChannel for Script {
    fn report(&mut self, report: Report) {
        self.reports.push(report);
    }
    fn wait(&mut self) -> Option<Job> {
        self.coming.pop_front()
    }
    fn next_request(&mut self) -> Option<Job> {
        self.beside.pop_front()
    }
    fn now(&self) -> Time {
        Time(0)
    }
}

impl TestDevice {
    /// A device of [`run`].
    pub fn new() -> Self {
        Self::of(&run())
    }

    /// A device of a run.
    pub fn of(run: &RunSpec) -> Self {
        Self::try_after(run, None).expect("a device")
    }

    /// A device of a run, after one that lacked these initial weights.
    pub fn try_after(run: &RunSpec, lacked: Option<InitSpec>) -> Result<Self, BuildError> {
        let failures = Arc::new(AtomicUsize::new(0));
        let counted = failures.clone();
        let registry = builtin::registry()
            .dataset("sums", move |_| Ok(Arc::new(Sums { failures: counted.clone() })));
        let address = "127.0.0.1:1".parse().expect("an address");
        let (zone, overlap) = (None, true);
        let device = DeviceChoice::Cpu;
        let place = BuildContext {
            incarnation: 1,
            address,
            machine: None,
            zone,
            dir: None,
            device,
            overlap,
            prefetch: 2,
            lacked,
        };
        let (device, _) = build(&registry, run, &place, Pool::new(1 << 20))?;
        Ok(Self { device, script: Script::default(), failures })
    }

    /// The next so many tries to read a sample fail, and may be repeated.
    pub fn fail_reads(&mut self, failures: usize) {
        self.failures.store(failures, Relaxed);
    }

    /// A device that has entered from the seed, as primary of these shards.
    pub fn primary_of(shards: Range<u32>) -> Self {
        let mut test_device = Self::new();
        test_device.give(enter(1, ShardOrigin::Seed, shards.clone()));
        test_device
    }

    /// Does a job. Returns the reports of it.
    pub fn give(&mut self, job: Job) -> Vec<Report> {
        self.attempt(job).expect("the device goes on")
    }

    /// Does a job, or says why the device cannot go on.
    pub fn attempt(&mut self, job: Job) -> Result<Vec<Report>, String> {
        self.device.handle(job, &mut self.script).map_err(|error| error.to_string())?;
        Ok(std::mem::take(&mut self.script.reports))
    }

    /// Does a job. The jobs of `coming` come, one after the other, whenever a pass waits.
    pub fn give_while(&mut self, job: Job, coming: Vec<Job>) -> Vec<Report> {
        self.script.coming = coming.into();
        self.give(job)
    }

    /// Does a job. These questions come beside it.
    pub fn give_beside(&mut self, job: Job, questions: Vec<Job>) -> Vec<Report> {
        self.script.beside = questions.into();
        self.give(job)
    }

    /// The number of jobs that have not come yet.
    pub fn left(&self) -> usize {
        self.script.coming.len()
    }

    /// Computes a whole step and updates these shards with it. Returns their digests.
    pub fn train(&mut self, step: u64, shards: Range<u32>) -> Vec<u64> {
        let gradients = reduce(&self.give(gradient(step, 0..DATA_SHARDS)));
        shards.map(|shard| updated(&self.give(update(step, shard, &gradients)))).collect()
    }

    /// Computes a whole step. Returns the reduced gradients.
    pub fn reduced(&mut self, step: u64) -> Gradients {
        reduce(&self.give(gradient(step, 0..DATA_SHARDS)))
    }

    /// The digests of these shards. The device owns them from now on.
    pub fn digests(&mut self, shards: Range<u32>) -> Vec<(Shard, Step, u64)> {
        match self.give(enter(9, ShardOrigin::Held, shards)).as_slice() {
            [Report::Entered { owned, .. }] => owned.clone(),
            other => panic!("{other:?}"),
        }
    }
}

/// Reduced gradients, by shard.
pub type Gradients = BTreeMap<Shard, Shared>;

/// Adds the partials of all data shards up, in whatever chunks the device reported them.
pub fn reduce(reports: &[Report]) -> Gradients {
    let tree = Tree::new(DATA_SHARDS);
    let mut sums = BTreeMap::new();
    let mut gradients = Gradients::new();
    for report in reports {
        if let Report::Partial { shard, node, sum, .. } = report {
            let new = || Sum::new(tree, sum.len(), Pool::new(0));
            let whole: &mut Sum = sums.entry(*shard).or_insert_with(new);
            let root = whole.insert(*node, Addend::Kept(Shared::clone(sum))).expect("in the tree");
            gradients.extend(root.map(|root| (*shard, root.into_shared())));
        }
    }
    assert_eq!(gradients.len() as u32, SHARDS, "every shard is complete");
    gradients
}

/// The job of computing data shards.
pub fn gradient(step: u64, data_shards: impl IntoIterator<Item = u32>) -> Job {
    scaled(step, LossScale::default(), data_shards)
}

/// The job of computing data shards with a loss scale.
pub fn scaled(step: u64, scale: LossScale, data_shards: impl IntoIterator<Item = u32>) -> Job {
    let leaves: BTreeSet<u32> = data_shards.into_iter().collect();
    let subtrees: Vec<TreeNode> = Tree::new(DATA_SHARDS).subtrees(&leaves);
    let data_shards = leaves.into_iter().map(DataShard).collect();
    Job::Gradient { step: Step(step), scale, work: Arc::new(Work { data_shards, subtrees }) }
}

/// The job of entering a generation as primary of these shards, syncing nothing.
pub fn enter(generation: u64, origin: ShardOrigin, primary: Range<u32>) -> Job {
    let owned = primary.map(|shard| (Shard(shard), true)).collect();
    Job::Enter { generation: Generation(generation), origin, owned, syncing: Vec::new() }
}

/// The job of entering a generation in which this worker only syncs.
pub fn sync(generation: u64, syncing: Range<u32>) -> Job {
    let syncing = syncing.map(Shard).collect();
    let (generation, origin) = (Generation(generation), ShardOrigin::Held);
    Job::Enter { generation, origin, owned: Vec::new(), syncing }
}

/// The job of updating a shard.
pub fn update(step: u64, shard: u32, gradients: &Gradients) -> Job {
    weighed_update(step, shard, gradients, 1.0)
}

/// The job of updating a shard in a step of weighted micro-batches.
pub fn weighed_update(step: u64, shard: u32, gradients: &Gradients, factor: f32) -> Job {
    let values = Shared::clone(&gradients[&Shard(shard)]);
    let gradient = Some(Gradient { digest: reduce::digest(0, &values), values });
    let (shard, update, step) = (Shard(shard), step, Step(step));
    Job::Update { shard, step, norm: 2.0, factor, update, gradient }
}

/// The job of relabelling a shard.
pub fn relabel(step: u64, shard: u32) -> Job {
    let (shard, step) = (Shard(shard), Step(step));
    Job::Update { shard, step, norm: f64::NAN, factor: 1.0, update: 0, gradient: None }
}

/// The job of loading parameters.
pub fn load(shard: u32, version: u64, values: &Shared) -> Job {
    let values = Buffer::detached(values.to_vec());
    Job::Load { shard: Shard(shard), version: Step(version), values }
}

/// The new parameters that primaries report.
pub fn parameters(reports: &[Report]) -> Vec<(Shard, Shared)> {
    let parameters = reports.iter().filter_map(|report| match report {
        Report::Updated { shard, parameters, .. } => Some((*shard, parameters.clone()?)),
        Report::Shared { shard, values, .. } => Some((*shard, Shared::clone(values))),
        _ => None,
    });
    parameters.collect()
}

/// The digest in the only report, which is of an update.
pub fn updated(reports: &[Report]) -> u64 {
    match reports {
        [Report::Updated { digest, .. }] => *digest,
        other => panic!("{other:?}"),
    }
}

/// The data shards that were computed.
pub fn computed(reports: &[Report]) -> Vec<u32> {
    let computed = reports.iter().filter_map(|report| match report {
        Report::Computed { contribution, .. } => Some(contribution.data_shard.0),
        _ => None,
    });
    computed.collect()
}

/// The bits of gradients.
pub fn bits(gradients: &Gradients) -> Vec<u32> {
    gradients.values().flat_map(|values| values.iter().map(|value| value.to_bits())).collect()
}
