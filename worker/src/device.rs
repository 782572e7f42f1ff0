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
mod device_error;
pub mod directory;
mod evaluation;
pub mod initial;
pub mod model_file;
pub mod model_path;
mod pass;
mod rounding;
mod saved_states;
mod shard_store;
mod shard_update;
mod stored_shard;
pub mod thread;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use everstep_kernels::buffer::Pool;
use everstep_kernels::compute::{Batch, Compute, Pass, PassPlace, STAGES};
use everstep_kernels::optimizer::Optimizer;
use everstep_kernels::threads::Threads;
use everstep_transport::protocol::message::Fingerprint;
use everstep_transport::protocol::scalar::ScalarSum;
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{DataShard, LossScale, RunSpec, Step};
use everstep_transport::time::Time;
use tracing::trace_span;

use crate::data::loader::{Loaded, Loader};
use crate::data::{Dataset, Sampler};
use crate::step::event::{Job, Report, Summary, Work};
use accumulate::Accumulator;
use checkpoint_facts::CheckpointFacts;
pub use device_error::DeviceError;
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

    /// The updates of this step that wait next, at most so many. Never blocks.
    fn next_updates(&mut self, _step: Step, _most: usize) -> Vec<Job> {
        Vec::new()
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
    /// The run's model, with the initial parameters loaded if they are at hand.
    pub compute: Box<dyn Compute>,
    /// The optimizer with the run's settings.
    pub optimizer: Optimizer,
    /// The run's data set.
    pub dataset: Arc<dyn Dataset>,
    /// The thread that fills batches ahead of the passes.
    pub loader: Loader,
    /// The parameters before the first step.
    pub initial: initial::InitialParameters,
    /// The pool of the buffers for tensors.
    pub pool: Pool,
    /// The model's file. None if this worker has no directory, and the run no store.
    pub model_file: Option<ModelFile>,
    /// The threads that share an update of parameter shards.
    pub threads: Threads,
    /// Sends gradients while the backward pass goes on, and begins the forward pass before all
    /// parameters are there. Off only to measure what that saves.
    pub overlap: bool,
}

/// What came of the micro-batches of a data shard.
struct Passes {
    /// The mean of their losses, each times its weight.
    loss: f64,
    /// The sum of their weights.
    weight: f64,
    /// How long they have waited for parameters.
    waited: Duration,
    /// What they have logged.
    scalars: Vec<ScalarSum>,
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

/// The interval at which a device that waits for a data shard's samples looks around.
const LOAD_POLL_INTERVAL: Duration = Duration::from_millis(50);

impl Device {
    /// A device that holds nothing yet.
    pub fn new(parts: DeviceParts) -> Self {
        let layout = parts.compute.layout().clone();
        let parameters = layout.count();
        Self {
            store: ShardStore::of(&parts, layout),
            accumulator: Accumulator::new(parameters, parts.pool.clone(), parts.threads.clone()),
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

    /// The model's file, for the thread that writes it.
    pub fn take_model_file(&mut self) -> Option<ModelFile> {
        self.parts.model_file.take()
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
                return self.gradients(step, scale, work, channel);
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
            _ => {}
        }
        let Self { parts: DeviceParts { compute, .. }, store, deferred, in_user_code, .. } = self;
        let mut load = |offset: usize, values: &[f32]| {
            *in_user_code = true;
            compute.load(offset, values);
            *in_user_code = false;
        };
        match deferred.is_empty() {
            true => store.handle_with_next(job, channel, &mut load)?,
            false => store.handle(job, channel, &mut load)?, // all that was put off comes first
        }
        Ok(())
    }

    // Gradients.

    fn gradients(
        &mut self,
        step: Step,
        scale: LossScale,
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
        let (step_number, number) = (step.0, data_shard.0);
        let span =
            trace_span!(target: STAGES, "data_shard", step = step_number, data_shard = number);
        let _span = span.entered();
        let mut evaluation = None;
        if self.is_evaluated(step) {
            if !self.await_parameters(step, channel)? {
                return Ok(None);
            }
            evaluation = self.evaluate(data_shard, channel)?;
        }
        let began = channel.now();
        #[cfg(not(feature = "planted"))]
        let sampled = data_shard;
        #[cfg(feature = "planted")]
        let sampled = self.sampled_as(data_shard);
        let load = || self.load(step, sampled, channel);
        let loaded = trace_span!(target: STAGES, "load").in_scope(load)?;
        let Some(loaded) = loaded else { return Ok(None) };
        self.in_user_code = true;
        let passes = self.passes(step, data_shard, &loaded.batches, scale, channel);
        self.in_user_code = false;
        let Some(Passes { loss, weight, waited, scalars }) = passes? else { return Ok(None) };
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
            evaluation,
            scalars,
        };
        Ok(Some(Report::Computed { step, contribution, seconds, load_seconds: loaded.seconds }))
    }

    /// Computes the micro-batches of a data shard. None if the result has become void.
    fn passes(
        &mut self,
        step: Step,
        data_shard: DataShard,
        batches: &[Batch],
        scale: f32,
        channel: &mut dyn DeviceChannel,
    ) -> Result<Option<Passes>, DeviceError> {
        self.accumulator.begin(data_shard);
        let (mut shard_pass, parts) = self.shard_pass(step, channel);
        let mut loss = 0.0;
        for (micro_batch, batch) in (0..).zip(batches) {
            let place = PassPlace { step: step.0, data_shard: data_shard.0, micro_batch };
            let pass = Pass::new(place, batches.len() as u32, scale);
            let part = shard_pass.compute(parts.compute.as_mut(), batch, pass)?;
            let Some(part) = part else { return Ok(None) };
            loss += part / f64::from(parts.run.batch.accumulate);
        }
        let ShardPass { weight, waited, scalars, .. } = shard_pass;
        Ok(Some(Passes { loss, weight, waited, scalars }))
    }

    /// Waits for all parameters that the step computes with. Returns false if it has become void.
    fn await_parameters(
        &mut self,
        step: Step,
        channel: &mut dyn DeviceChannel,
    ) -> Result<bool, DeviceError> {
        let (mut shard_pass, parts) = self.shard_pass(step, channel);
        let is_there = shard_pass.await_all(parts.compute.as_mut())?;
        let waited = shard_pass.waited.as_secs_f64();
        self.summary.exposed_seconds += waited;
        Ok(is_there)
    }

    /// A pass of the step, and beside it what it computes with.
    fn shard_pass<'a>(
        &'a mut self,
        step: Step,
        channel: &'a mut dyn DeviceChannel,
    ) -> (ShardPass<'a>, &'a mut DeviceParts) {
        let shard_pass = ShardPass {
            channel,
            store: &mut self.store,
            accumulator: &mut self.accumulator,
            deferred: &mut self.deferred,
            step,
            overlap: self.parts.overlap,
            held: Vec::new(),
            waited: Duration::ZERO,
            weight: 0.0,
            stated_weight: None,
            scalars: Vec::new(),
            stated_scalars: Vec::new(),
            end: None,
            #[cfg(feature = "planted")]
            torn: self.plant == Some(crate::plant::Plant::LoadUnderWay),
        };
        (shard_pass, &mut self.parts)
    }

    /// Waits for a data shard's samples. While the data set cannot read one yet, the device says
    /// so, and answers questions about its shards. None if the worker is ending.
    fn load(
        &mut self,
        step: Step,
        data_shard: DataShard,
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
        self.summary.evaluations.clear();
        for part in data_shards {
            let evaluation = self.evaluate(part, channel)?;
            self.summary.evaluations.extend(evaluation);
        }
        channel.report(Report::Evaluating);
        self.summary.digests = self.store.seal()?;
        channel.report(Report::Evaluated);
        self.summary.optimizer_bytes = self.store.bytes();
        channel.report(Report::Finished(self.summary.clone()));
        Ok(())
    }

    /// The error for a panic. A panic in the code of the model, the data set or the optimizer would
    /// recur on every worker.
    pub fn panicked(&self, words: &str) -> DeviceError {
        if self.store.in_optimizer() {
            return DeviceError::Unable(format!("the optimizer panicked: {words}"));
        }
        match self.in_user_code {
            true => DeviceError::Unable(format!("the model or the data set panicked: {words}")),
            false => DeviceError::Failed(format!("the device panicked: {words}")),
        }
    }
}
