//! The device: everything a worker computes, job after job, on a thread of its own.
//!
//! Input: [`Job`]s in order. Output: [`Report`]s. A job blocks its thread and nothing else. While a
//! pass waits for parameters, it takes the jobs that arrive, and does them or puts them off. The
//! same code runs under a simulator, which calls [`Device::handle`] with a [`DeviceChannel`] of its
//! own. The device knows no members and no votes. At a change it knows which shards to keep.

pub mod accumulate;
pub mod build;
pub mod checkpoint_facts;
mod coverage;
pub mod initial;
pub mod model_file;
pub mod model_path;
mod pass;
mod rounding;
mod saved_states;
mod shard_store;
mod stored_shard;
pub mod thread;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use everstep_kernels::buffer::Pool;
use everstep_kernels::compute::{Batch, Compute, ComputeError, Evaluation, Pass, STAGES};
use everstep_kernels::optimizer::Optimizer;
use everstep_kernels::reduce;
use everstep_transport::protocol::message::Fingerprint;
use everstep_transport::protocol::outcome::PartEvaluation;
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{DataShard, LossScale, RunSpec, Shard, Step};
use everstep_transport::time::Time;
use tracing::trace_span;

use crate::data::loader::{LoadError, Loaded, Loader};
use crate::data::row::{self, RowError, SampleIndex};
use crate::data::validation::validation_part;
use crate::data::{Dataset, Sampler};
use crate::step::event::{Job, Report, Summary, Work};
use accumulate::Accumulator;
use checkpoint_facts::CheckpointFacts;
use model_file::ModelFile;
use pass::ShardPass;
use shard_store::ShardStore;

/// The device's view of its driver: a thread or a simulator.
pub trait DeviceChannel {
    /// Hands a report over. May block until there is room.
    fn report(&mut self, report: Report);

    /// Waits for the next job. `None` when there will be no more.
    fn wait(&mut self) -> Option<Job>;

    /// A [`Job::Share`], [`Job::Export`] or [`Job::Save`] that has come meanwhile, if no job before
    /// it concerns its shards. Never blocks.
    fn next_request(&mut self) -> Option<Job> {
        None
    }

    /// Whether no job will come any more. The work under way is then in vain.
    fn is_over(&mut self) -> bool {
        false
    }

    /// The time, for measurements only.
    fn now(&self) -> Time;
}

/// The parts that a device is made of.
pub struct DeviceParts {
    /// The specification of the run.
    pub run: RunSpec,
    /// The run's model, with the initial parameters loaded.
    pub compute: Box<dyn Compute>,
    /// The run's optimizer.
    pub optimizer: Optimizer,
    /// The run's data set.
    pub dataset: Arc<dyn Dataset>,
    /// Fills batches ahead.
    pub loader: Loader,
    /// The parameters before the first step.
    pub initial: initial::InitialParameters,
    /// The pool of the buffers for tensors.
    pub pool: Pool,
    /// The model's file. None if this worker has no directory, and the run no store.
    pub model_file: Option<ModelFile>,
    /// Sends gradients while the backward pass goes on, and begins the forward pass before all
    /// parameters are there. Off only to measure what that saves.
    pub overlap: bool,
}

/// A model, its data, and the parameter shards that this worker holds.
pub struct Device {
    parts: DeviceParts,
    /// Tells which samples a data shard should contain.
    sampler: Sampler,
    store: ShardStore,
    accumulator: Accumulator,
    /// The work of the newest gradient job.
    work: Arc<Work>,
    /// Jobs that came while a pass waited for parameters.
    deferred: VecDeque<Job>,
    /// Whether training goes on: from the first pass to the end. Waiting is exposed communication
    /// then.
    training: bool,
    /// The code of the model or the data set is running.
    in_user_code: bool,
    summary: Summary,
    #[cfg(feature = "planted")]
    plant: Option<crate::plant::Plant>,
}

/// The most held-out targets that the device evaluates at the end.
const VALIDATION_TARGETS: u64 = 64 << 10;
/// The interval at which a device that waits for a data shard's samples looks around.
const LOAD_POLL_INTERVAL: Duration = Duration::from_millis(50);

impl Device {
    /// A device that holds nothing yet.
    pub fn new(parts: DeviceParts) -> Self {
        let layout = parts.compute.layout().clone();
        let parameters = layout.count();
        Self {
            store: ShardStore::of(&parts, layout),
            accumulator: Accumulator::new(parameters, parts.pool.clone()),
            work: Arc::default(),
            deferred: VecDeque::new(),
            training: false,
            in_user_code: false,
            summary: Summary {
                flops_per_sample: parts.compute.report().flops_per_sample,
                ..Summary::default()
            },
            #[cfg(feature = "planted")]
            plant: None,
            sampler: Sampler::new(parts.run.seed, parts.dataset.len(), parts.run.batch),
            parts,
        }
    }

    /// What checkpoints state of the run. None if the run writes none.
    pub fn checkpoint_facts(&self, fingerprint: &Fingerprint) -> Option<CheckpointFacts> {
        let DeviceParts { run, optimizer, model_file, .. } = &self.parts;
        let facts = CheckpointFacts::of(run, fingerprint, self.store.layout(), optimizer)?;
        Some(CheckpointFacts { model: model_file.as_ref().map(|it| it.path().into()), ..facts })
    }

    /// The device has this bug from now on.
    #[cfg(feature = "planted")]
    pub fn plant(&mut self, plant: crate::plant::Plant) {
        self.plant = Some(plant);
        self.store.believes_gradients = plant == crate::plant::Plant::BelieveGradients;
    }

    /// Does jobs until there are no more, or until the device cannot go on.
    pub fn run(&mut self, channel: &mut dyn DeviceChannel) {
        loop {
            let idle = channel.now();
            let Some(job) = channel.wait() else { return };
            if self.training {
                self.summary.exposed_seconds += channel.now().since(idle).as_secs_f64();
            }
            if let Err(error) = self.handle(job, channel) {
                return channel.report(error.into());
            }
        }
    }

    /// Does one job, and then the jobs that it put off.
    pub fn handle(&mut self, job: Job, channel: &mut dyn DeviceChannel) -> Result<(), DeviceError> {
        self.perform(job, channel)?;
        while let Some(job) = self.deferred.pop_front() {
            self.perform(job, channel)?;
        }
        Ok(())
    }

    fn perform(&mut self, job: Job, channel: &mut dyn DeviceChannel) -> Result<(), DeviceError> {
        match job {
            Job::Gradient { step, scale, work } => {
                return self.gradients((step, scale), work, channel);
            }
            Job::Finish { version, data_shards } => {
                return self.finish(version, data_shards, channel);
            }
            Job::Masters { to } => {
                for master in self.store.masters() {
                    let (shard, values) = master?;
                    channel.report(Report::Exported { to, shard, values });
                }
                return Ok(());
            }
            Job::Open => {
                self.open(channel);
                return Ok(());
            }
            Job::Write { shard, values } => {
                self.write(shard, &values, channel);
                return Ok(());
            }
            // The file of the generation before may be incomplete.
            Job::Enter { .. } => self.parts.model_file.iter_mut().for_each(ModelFile::close),
            _ => {}
        }
        let compute = &mut self.parts.compute;
        self.store.handle(job, channel, &mut |offset, values| compute.load(offset, values))?;
        Ok(())
    }

    // Gradients.

    fn gradients(
        &mut self,
        (step, scale): (Step, LossScale),
        work: Arc<Work>,
        channel: &mut dyn DeviceChannel,
    ) -> Result<(), DeviceError> {
        self.training = true;
        let batch = self.parts.run.batch;
        self.accumulator.plan(batch.data_shards, work.subtrees.clone(), scale);
        let share = (batch.data_shards * batch.accumulate) as f32;
        let scale = scale.factor() as f32 / share;
        self.parts.loader.plan(step, &work.data_shards);
        self.work = Arc::clone(&work);
        for data_shard in &work.data_shards {
            let Some(computed) = self.gradient(step, *data_shard, scale, channel)? else { break };
            channel.report(computed);
        }
        Ok(())
    }

    /// Computes a data shard. None if the result has become void.
    fn gradient(
        &mut self,
        step: Step,
        data_shard: DataShard,
        scale: f32,
        channel: &mut dyn DeviceChannel,
    ) -> Result<Option<Report>, DeviceError> {
        let began = channel.now();
        let (step_number, number) = (step.0, data_shard.0);
        let span =
            trace_span!(target: STAGES, "data_shard", step = step_number, data_shard = number);
        let _span = span.entered();
        #[cfg(not(feature = "planted"))]
        let sampled = data_shard;
        #[cfg(feature = "planted")]
        let sampled = self.sampled_as(data_shard);
        let load = || self.load((step, sampled), channel);
        let loaded = trace_span!(target: STAGES, "load").in_scope(load)?;
        let Some(loaded) = loaded else { return Ok(None) };
        self.accumulator.begin(data_shard);
        let mut waited = Duration::ZERO;
        let (mut loss, mut weight) = (0.0, 0.0);
        for (index, micro_batch) in loaded.batches.iter().enumerate() {
            let pass = Pass::new((step.0, data_shard.0), (index, loaded.batches.len()), scale);
            let mut shard_pass = ShardPass {
                channel: &mut *channel,
                store: &mut self.store,
                accumulator: &mut self.accumulator,
                deferred: &mut self.deferred,
                step,
                overlap: self.parts.overlap,
                held: Vec::new(),
                waited: Duration::ZERO,
                weight: 1.0,
                end: None,
                #[cfg(feature = "planted")]
                torn: self.plant == Some(crate::plant::Plant::LoadUnderWay),
            };
            let compute = self.parts.compute.as_mut();
            self.in_user_code = true;
            let part = shard_pass.compute(compute, micro_batch, pass);
            self.in_user_code = false;
            let part = part?;
            waited += shard_pass.waited;
            weight += shard_pass.weight;
            let Some(part) = part else { return Ok(None) };
            loss += part / f64::from(self.parts.run.batch.accumulate);
        }
        let seconds = channel.now().since(began).saturating_sub(waited).as_secs_f64();
        self.summary.compute_seconds += seconds;
        self.summary.exposed_seconds += waited.as_secs_f64();
        self.summary.data_shards_computed += 1;
        self.parts.loader.recycle(loaded.batches);
        let account = self.sampler.account_of(&loaded.samples, step, data_shard);
        let contribution = Contribution {
            data_shard,
            loss,
            weight,
            samples: loaded.samples,
            samples_lost: account.lost,
            samples_repeated: account.repeated,
        };
        Ok(Some(Report::Computed { step, contribution, seconds, load_seconds: loaded.seconds }))
    }

    /// Waits for a data shard's samples. While the data set cannot read one yet, the device says
    /// so, and answers questions about its shards. None if the worker is ending.
    fn load(
        &mut self,
        (step, data_shard): (Step, DataShard),
        channel: &mut dyn DeviceChannel,
    ) -> Result<Option<Loaded>, DeviceError> {
        let mut is_stalled = false;
        let loaded = loop {
            let loader = &mut self.parts.loader;
            if let Some(loaded) = loader.next_within(step, data_shard, LOAD_POLL_INTERVAL)? {
                break Some(loaded);
            }
            if channel.is_over() {
                break None;
            }
            if loader.is_stalled() != is_stalled {
                is_stalled = !is_stalled;
                channel.report(Report::LoadStalled(is_stalled));
            }
            if is_stalled {
                self.answer(channel)?;
            }
        };
        if is_stalled {
            channel.report(Report::LoadStalled(false));
        }
        Ok(loaded)
    }

    /// Answers the questions about its shards that have come, unless a job that was put off may
    /// change them.
    fn answer(&mut self, channel: &mut dyn DeviceChannel) -> Result<(), DeviceError> {
        while let Some(request) = channel.next_request() {
            match self.deferred.is_empty() {
                true => self.store.handle(request, channel, &mut |_, _| {})?,
                false => self.deferred.push_back(request),
            }
        }
        Ok(())
    }

    /// The bug takes samples by place. The true samples are the data shard's own.
    #[cfg(feature = "planted")]
    fn sampled_as(&self, data_shard: DataShard) -> DataShard {
        if self.plant != Some(crate::plant::Plant::SampleByRank) {
            return data_shard;
        }
        let place = self.work.data_shards.iter().position(|mine| *mine == data_shard);
        place.map_or(data_shard, |place| DataShard(place as u32))
    }

    // The end.

    /// Validates and digests. If the end comes again, the counts of the run continue.
    fn finish(
        &mut self,
        version: Step,
        data_shards: Vec<DataShard>,
        channel: &mut dyn DeviceChannel,
    ) -> Result<(), DeviceError> {
        assert!(
            self.store.versions().iter().all(|held| *held == version),
            "the member has gathered every shard before it finishes"
        );
        self.training = false;
        self.in_user_code = true;
        let limit = (VALIDATION_TARGETS / self.targets_of_a_sample()?).max(1);
        self.summary.evaluations.clear();
        for part in data_shards {
            let evaluation = self.evaluate(part, limit)?;
            self.summary.evaluations.extend(evaluation);
        }
        self.in_user_code = false;
        self.summary.digests = self.store.seal()?;
        self.summary.optimizer_bytes = self.store.bytes();
        channel.report(Report::Finished(self.summary.clone()));
        Ok(())
    }

    fn targets_of_a_sample(&self) -> Result<u64, DeviceError> {
        let mut batch = Batch::default();
        append(&*self.parts.dataset, SampleIndex::Training(0), &mut batch)?;
        Ok(batch.targets.len().max(1) as u64)
    }

    fn evaluate(
        &mut self,
        part: DataShard,
        limit: u64,
    ) -> Result<Option<PartEvaluation>, DeviceError> {
        let DeviceParts { run, dataset, compute, .. } = &mut self.parts;
        let held_out = dataset.validation_len();
        let indices: Vec<u64> =
            validation_part(part, run.batch.data_shards, held_out, limit).collect();
        let mut batch = Batch::default();
        let mut sum = Evaluation::default();
        for rows in indices.chunks(run.batch.micro_batch as usize) {
            batch.clear();
            for index in rows {
                append(&**dataset, SampleIndex::HeldOut(*index), &mut batch)?;
            }
            let found = compute.evaluate(&batch)?;
            sum.loss += found.loss * rows.len() as f64;
            let metric = found.metric.map(|metric| metric * rows.len() as f64);
            sum.metric = metric.map(|metric| metric + sum.metric.unwrap_or(0.0));
        }
        let samples = indices.len() as u64;
        Ok((samples > 0).then(|| PartEvaluation {
            part,
            samples,
            loss: sum.loss / samples as f64,
            metric: sum.metric.map(|metric| metric / samples as f64),
        }))
    }

    /// Errors of the file end nothing. The worker that asked gets a report, and asks again.
    fn open(&mut self, channel: &mut dyn DeviceChannel) {
        let Some(file) = &mut self.parts.model_file else {
            return channel.report(Report::Unwritten("this worker has no directory".into()));
        };
        channel.report(match file.open() {
            Ok(()) => Report::Opened,
            Err(error) => Report::Unwritten(error.to_string()),
        });
    }

    fn write(&mut self, shard: Shard, values: &[f32], channel: &mut dyn DeviceChannel) {
        let range = reduce::shard_range(self.store.layout().count(), shard.0 as usize);
        let Some(file) = &mut self.parts.model_file else { return };
        match file.write(range, values) {
            Ok(false) => {}
            Ok(true) => channel.report(Report::Written),
            Err(error) => channel.report(Report::Unwritten(error.to_string())),
        }
    }

    /// The error for a panic. A panic in the model's or the data set's own code would recur on
    /// every worker.
    pub fn panicked(&self, words: &str) -> DeviceError {
        match self.in_user_code {
            true => DeviceError::Unable(format!("the model or the data set panicked: {words}")),
            false => DeviceError::Failed(format!("the device panicked: {words}")),
        }
    }
}

/// Appends a row, however long it takes until it can be read.
fn append(
    dataset: &dyn Dataset,
    sample: SampleIndex,
    batch: &mut Batch,
) -> Result<(), DeviceError> {
    let row = row::append(dataset, sample, batch, &mut || true);
    let (SampleIndex::Training(index) | SampleIndex::HeldOut(index)) = sample;
    match row {
        Err(RowError::Refused(message)) => Err(LoadError::Fill { index, message }.into()),
        Ok(_) | Err(RowError::Abandoned) => Ok(()),
    }
}

/// Why a device cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The reason is this device's own: another worker may take its place.
    #[error("{0}")]
    Failed(String),
    /// The reason follows from the run, and would recur on every worker.
    #[error("{0}")]
    Unable(String),
}

impl From<LoadError> for DeviceError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Fill { .. } => Self::Unable(error.to_string()),
            LoadError::NotPlanned { .. } => Self::Failed(error.to_string()),
        }
    }
}

impl From<ComputeError> for DeviceError {
    fn from(error: ComputeError) -> Self {
        match error {
            ComputeError::Batch(_) | ComputeError::Program(_) => Self::Unable(error.to_string()),
            ComputeError::Device(_) => Self::Failed(error.to_string()),
        }
    }
}

impl From<DeviceError> for Report {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Failed(reason) => Self::Failed(reason),
            DeviceError::Unable(reason) => Self::Unable(reason),
        }
    }
}
