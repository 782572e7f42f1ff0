//! The device: everything a worker computes, job after job, on a thread of its own.
//!
//! Input: [`Job`]s in order. Output: [`Report`]s. A job blocks its thread and nothing else; while a
//! pass waits for parameters it takes what arrives. The same code runs under a simulator, which
//! calls [`Device::handle`] with a [`Port`] of its own. The device does not know who the members
//! are, nor what a vote is.

pub mod accumulate;
pub mod build;
pub mod model_file;
mod owned;
mod pass;
pub mod thread;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use everstep_kernels::buffer::{Buffer, Pool, Shared};
use everstep_kernels::compute::{Batch, Compute, Evaluation};
use everstep_kernels::layout::Layout;
use everstep_kernels::reduce;
use everstep_transport::protocol::outcome::PartEvaluation;
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{DataShard, Encoding, RunSpec, Shard, Step};
use everstep_transport::time::Time;

use crate::data::Dataset;
use crate::data::loader::Loader;
use crate::data::validation::validation_part;
use crate::step::event::{Job, Report, Summary};
use accumulate::Accumulator;
use model_file::ModelFile;
use owned::Owned;
use pass::ShardPass;

/// What the device needs from whoever drives it.
pub trait Port {
    /// Hands a report over. May block until there is room.
    fn report(&mut self, report: Report);

    /// The next job, as soon as there is one; `None` when there will be none.
    fn wait(&mut self) -> Option<Job>;

    /// The time, for measurements only.
    fn now(&self) -> Time;
}

/// What a device is made of.
pub struct Parts {
    /// The run.
    pub run: RunSpec,
    /// Its model, with the initial parameters loaded.
    pub compute: Box<dyn Compute>,
    /// Its data.
    pub dataset: Arc<dyn Dataset>,
    /// Fills batches ahead.
    pub loader: Loader,
    /// Where buffers come from.
    pub pool: Pool,
    /// Where the model goes at the end, if it goes anywhere.
    pub model_file: Option<ModelFile>,
    /// Send gradients while the backward pass goes on, and begin the forward pass before all
    /// parameters are there. Off only to measure what that saves.
    pub overlap: bool,
}

/// A model, its data, and the parameter shards that this worker owns.
pub struct Device {
    parts: Parts,
    layout: Layout,
    owned: Owned,
    accumulator: Accumulator,
    data_shards: Vec<DataShard>,
    /// The version of each shard of the computing parameters.
    versions: Vec<Step>,
    /// Jobs that came while a pass waited for parameters.
    deferred: VecDeque<Job>,
    /// When the first pass began; from then on waiting is exposed communication.
    training: bool,
    /// Parameters whose master weights have not come to be written.
    unwritten: usize,
    summary: Summary,
    #[cfg(feature = "planted")]
    plant: Option<crate::plant::Plant>,
}

/// Held-out targets that are evaluated at the end, at most.
const VALIDATION_TARGETS: u64 = 64 << 10;

impl Device {
    /// A device that owns nothing yet.
    pub fn new(parts: Parts) -> Self {
        let layout = parts.compute.layout().clone();
        let shards = reduce::shard_count(layout.count());
        Self {
            owned: Owned::new(&parts.run, layout.clone()),
            accumulator: Accumulator::new(layout.count(), parts.pool.clone()),
            data_shards: Vec::new(),
            versions: vec![Step(0); shards],
            deferred: VecDeque::new(),
            training: false,
            unwritten: layout.count(),
            summary: Summary::default(),
            #[cfg(feature = "planted")]
            plant: None,
            parts,
            layout,
        }
    }

    /// From now on the device has this bug.
    #[cfg(feature = "planted")]
    pub fn plant(&mut self, plant: crate::plant::Plant) {
        self.plant = Some(plant);
    }

    /// Does jobs until there are no more, or until it cannot go on.
    pub fn run(&mut self, port: &mut dyn Port) {
        loop {
            let idle = port.now();
            let Some(job) = self.deferred.pop_front().or_else(|| port.wait()) else { return };
            if self.training {
                self.summary.exposed_seconds += port.now().since(idle).as_secs_f64();
            }
            if let Err(reason) = self.handle(job, port) {
                return port.report(Report::Failed(reason));
            }
        }
    }

    /// Does one job.
    pub fn handle(&mut self, job: Job, port: &mut dyn Port) -> Result<(), String> {
        match job {
            Job::Enter { generation: _, data_shards, subtrees, owned } => {
                let data_shard_count = self.parts.run.batch.data_shards;
                self.accumulator.plan(data_shard_count, subtrees);
                self.parts.loader.plan(Step(1), data_shards.clone());
                self.data_shards = data_shards;
                self.owned.enter(owned, |report| port.report(report));
            }
            Job::Gradient { step } => {
                self.training = true;
                for data_shard in self.data_shards.clone() {
                    self.gradient(step, data_shard, port)?;
                }
            }
            Job::Load { shard, version, values } => self.load(shard, version, &values),
            Job::Update { shard, step, norm, update, gradient } => {
                let clip_norm = self.parts.run.optimizer.clip_norm;
                let clip = everstep_kernels::optimizer::clip_factor(norm, clip_norm);
                self.owned.update(shard, step, update, (&gradient, clip))?;
                drop(gradient);
                self.refresh(shard, step, port);
            }
            Job::Skip { step } => {
                self.versions.fill(step);
                self.owned.skip(step, |report| port.report(report));
            }
            Job::Finish { version } => self.finish(version, port)?,
            Job::Write { shard, values } => self.write(shard, &values, port)?,
        }
        Ok(())
    }

    // Gradients.

    fn gradient(
        &mut self,
        step: Step,
        data_shard: DataShard,
        port: &mut dyn Port,
    ) -> Result<(), String> {
        let began = port.now();
        #[cfg(not(feature = "planted"))]
        let sampled = data_shard;
        #[cfg(feature = "planted")]
        let sampled = self.sampled_as(data_shard);
        let loaded = self.parts.loader.next(step, sampled).map_err(|error| error.to_string())?;
        self.accumulator.begin(data_shard);
        let batch = self.parts.run.batch;
        let scale = 1.0 / (batch.data_shards * batch.accumulate) as f32;
        let mut waited = Duration::ZERO;
        let mut loss = 0.0;
        for (index, micro_batch) in loaded.batches.iter().enumerate() {
            let mut exchange = ShardPass {
                port: &mut *port,
                parameters: self.layout.count(),
                versions: &mut self.versions,
                wanted: Step(step.0 - 1),
                accumulator: &mut self.accumulator,
                deferred: &mut self.deferred,
                step,
                overlap: self.parts.overlap,
                held: Vec::new(),
                waited: Duration::ZERO,
                closed: false,
                #[cfg(feature = "planted")]
                torn: self.plant == Some(crate::plant::Plant::LoadUnderWay),
            };
            let pass = everstep_kernels::compute::Pass {
                first: index == 0,
                last: index + 1 == loaded.batches.len(),
                scale,
            };
            let compute = &mut self.parts.compute;
            let part = exchange.compute(compute.as_mut(), micro_batch, pass)?;
            loss += part / f64::from(batch.accumulate);
            waited += exchange.waited;
        }
        let seconds = port.now().since(began).saturating_sub(waited).as_secs_f64();
        self.summary.compute_seconds += seconds;
        self.summary.exposed_seconds += waited.as_secs_f64();
        self.summary.data_shards_computed += 1;
        self.parts.loader.recycle(loaded.batches);
        let contribution = Contribution { data_shard, loss, samples: loaded.samples };
        port.report(Report::Computed { step, contribution, seconds });
        Ok(())
    }

    /// In truth a data shard's samples are its own.
    #[cfg(feature = "planted")]
    fn sampled_as(&self, data_shard: DataShard) -> DataShard {
        if self.plant != Some(crate::plant::Plant::SampleByRank) {
            return data_shard;
        }
        let place = self.data_shards.iter().position(|mine| *mine == data_shard);
        place.map_or(data_shard, |place| DataShard(place as u32))
    }

    // Parameters.

    fn load(&mut self, shard: Shard, version: Step, values: &[f32]) {
        let range = reduce::shard_range(self.layout.count(), shard.0 as usize);
        self.parts.compute.load(range.start, values);
        self.versions[shard.0 as usize] = version;
    }

    /// Computes with an owned shard's new version, and hands it out if this worker is primary.
    fn refresh(&mut self, shard: Shard, version: Step, port: &mut dyn Port) {
        let (master, digest, primary) = self.owned.state(shard);
        let mut values = self.parts.pool.take(master.len());
        values.copy_from_slice(master);
        if self.parts.run.all_gather == Encoding::Bf16 {
            reduce::round_bf16(&mut values);
        }
        self.load(shard, version, &values);
        let parameters = primary.then(|| Shared::new(values));
        port.report(Report::Updated { version, shard, digest, parameters });
    }

    // The end.

    fn finish(&mut self, version: Step, port: &mut dyn Port) -> Result<(), String> {
        assert!(
            self.versions.iter().all(|held| *held == version),
            "the member has gathered every shard before it finishes"
        );
        self.training = false;
        let limit = (VALIDATION_TARGETS / self.targets_of_a_sample()).max(1);
        for part in self.data_shards.clone() {
            let evaluation = self.evaluate(part, limit)?;
            self.summary.evaluations.extend(evaluation);
        }
        self.summary.digests = self.owned.seal();
        self.summary.optimizer_bytes = self.owned.bytes();
        for (shard, master) in self.owned.primaries() {
            let values = Shared::new(Buffer::detached(master.to_vec()));
            port.report(Report::Exported { shard, values });
        }
        port.report(Report::Finished(self.summary.clone()));
        Ok(())
    }

    fn targets_of_a_sample(&self) -> u64 {
        let mut batch = Batch::default();
        self.parts.dataset.fill(0, &mut batch);
        batch.targets.len().max(1) as u64
    }

    fn evaluate(&mut self, part: DataShard, limit: u64) -> Result<Option<PartEvaluation>, String> {
        let Parts { run, dataset, compute, .. } = &mut self.parts;
        let held_out = dataset.validation_len();
        let indices: Vec<u64> =
            validation_part(part, run.batch.data_shards, held_out, limit).collect();
        let mut batch = Batch::default();
        let mut sum = Evaluation::default();
        for rows in indices.chunks(run.batch.micro_batch as usize) {
            batch.clear();
            for index in rows {
                dataset.fill_validation(*index, &mut batch);
            }
            let found = compute.evaluate(&batch).map_err(|error| error.to_string())?;
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

    fn write(&mut self, shard: Shard, values: &[f32], port: &mut dyn Port) -> Result<(), String> {
        let range = reduce::shard_range(self.layout.count(), shard.0 as usize);
        self.unwritten -= range.len();
        if let Some(file) = &mut self.parts.model_file {
            file.write(range, values).map_err(|error| error.to_string())?;
        }
        if self.unwritten == 0 {
            port.report(Report::Written);
        }
        Ok(())
    }
}
