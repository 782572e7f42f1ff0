//! One micro-batch of one data shard, between the model and the network.
//!
//! A pass does not block other workers. It answers their questions about this worker's shards
//! beside it, whenever the model needs a range or announces one, since a pass may take as long as a
//! step. While it waits for parameters it answers at once, so no two members wait for each other's
//! parameters. It ends early, and reports nothing more, when its result has become void. Since a
//! model is never interrupted, it then computes on to the end of the micro-batch with the
//! parameters that it has.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use everstep_kernels::compute::{Batch, Compute, GradientSink, ParameterSource, Pass, STAGES};
use everstep_kernels::reduce;
use everstep_transport::protocol::scalar::{
    MAX_SCALARS, Scalar, ScalarName, ScalarSum, add_micro_batch,
};
use everstep_transport::protocol::{Shard, Step};
use tracing::trace_span;

use super::accumulate::{Accumulator, SubtreeSum};
use super::shard_store::{ShardStore, Write};
use super::{DeviceChannel, DeviceError};
use crate::step::event::{Job, Report, ShardOrigin};

/// The passes of a data shard: each waits for parameters, and publishes gradients.
pub struct ShardPass<'a> {
    /// The source of jobs, and the receiver of partial sums.
    pub channel: &'a mut dyn DeviceChannel,
    /// The parameters and the held state of each parameter shard.
    pub store: &'a mut ShardStore,
    /// Adds data shards up to subtrees.
    pub accumulator: &'a mut Accumulator,
    /// Jobs that must wait until the pass ends.
    pub deferred: &'a mut VecDeque<Job>,
    /// The step. The pass computes with the version before it.
    pub step: Step,
    /// Whether to wait and to send range by range. If not, all at once.
    pub overlap: bool,
    /// Without overlap: the sums to send when the pass is done.
    pub held: Vec<SubtreeSum>,
    /// How long the passes have waited for parameters.
    pub waited: Duration,
    /// The weights of the micro-batches that are done: 1 each unless the model states another one.
    pub weight: f64,
    /// The weight that the model states of the micro-batch under way.
    pub stated_weight: Option<f64>,
    /// The scalars of the micro-batches that are done.
    pub scalars: Vec<ScalarSum>,
    /// The scalars of the micro-batch under way.
    pub stated_scalars: Vec<Scalar>,
    /// Why the result no longer counts. None while it counts.
    pub end: Option<PassEnd>,
    /// A planted bug: the pass does not wait for parameters.
    #[cfg(feature = "planted")]
    pub torn: bool,
}

/// Why a pass ends before its time.
#[derive(Debug)]
pub enum PassEnd {
    /// The step is over without this pass, or history begins again: other jobs are due.
    Void,
    /// The worker is ending, the machine cannot be trusted, or the model is at fault.
    Broken(DeviceError),
}

impl ShardPass<'_> {
    /// Runs the pass. Returns the loss. None if the pass has become void.
    pub fn compute(
        &mut self,
        compute: &mut dyn Compute,
        batch: &Batch,
        pass: Pass,
    ) -> Result<Option<f64>, DeviceError> {
        if !self.overlap {
            // The model asks again, range by range, and then finds all parameters.
            self.load_all(compute);
        }
        let loss = compute.gradient(batch, pass, self)?;
        let weight = self.stated_weight.take().unwrap_or(1.0);
        self.weight += weight;
        add_micro_batch(&mut self.scalars, &std::mem::take(&mut self.stated_scalars), weight);
        if !self.goes_on()? {
            return Ok(None);
        }
        for part in std::mem::take(&mut self.held) {
            self.send(part);
        }
        match self.accumulator.unannounced().filter(|_| pass.last) {
            Some(shard) => Err(DeviceError::Unable(format!(
                "the model announced no gradient for all of parameter shard {shard} of this \
                 micro-batch: a last pass must announce every range once"
            ))),
            None => Ok(Some(loss)),
        }
    }

    /// Waits for all parameters. Returns false if the pass has become void.
    pub fn await_all(&mut self, compute: &mut dyn Compute) -> Result<bool, DeviceError> {
        self.load_all(compute);
        self.goes_on()
    }

    fn load_all(&mut self, compute: &mut dyn Compute) {
        let all = 0..self.store.layout().count();
        self.await_parameters(all, &mut |offset, values: &[f32]| compute.load(offset, values));
    }

    /// Whether the result still counts.
    fn goes_on(&mut self) -> Result<bool, DeviceError> {
        match self.end.take() {
            Some(PassEnd::Void) => Ok(false),
            Some(PassEnd::Broken(error)) => Err(error),
            None => Ok(true),
        }
    }

    fn is_there(&self, shards: &Range<usize>) -> bool {
        self.store.versions()[shards.clone()].iter().all(|version| version.next() == self.step)
    }

    fn send(&mut self, part: SubtreeSum) {
        let SubtreeSum { shard, node, sum } = part;
        self.channel.report(Report::Partial { step: self.step, shard, node, sum });
    }

    /// Does a job that comes while the pass waits, or puts it off.
    fn take(&mut self, job: Job, write: &mut Write<'_>) {
        if matches!(&job, Job::Enter { origin, .. } if *origin != ShardOrigin::Held) {
            self.deferred.clear();
            self.end_with(job);
        } else if settles(&job).is_some_and(|version| version >= self.step) {
            // The step has committed, so no member needs this worker's share of it.
            self.deferred.retain(|job| !matches!(job, Job::Gradient { .. }));
            self.end_with(job);
        } else if self.is_done_at_once(&job) {
            // An update is done at once only if no job is put off, so none is overtaken.
            let done = self.store.handle_with_next(job, self.channel, write);
            self.end = done.err().map(|reason| PassEnd::Broken(reason.into()));
        } else {
            self.deferred.push_back(job);
        }
    }

    /// Answers one question that came while the model computed.
    fn answer(&mut self) {
        let Some(job) = self.channel.next_request() else { return };
        if !self.is_done_at_once(&job) {
            return self.deferred.push_back(job);
        }
        let done = self.store.handle(job, self.channel, &mut |_, _| {});
        self.end = done.err().map(|reason| PassEnd::Broken(reason.into()));
    }

    fn end_with(&mut self, next: Job) {
        self.deferred.push_back(next);
        self.end = Some(PassEnd::Void);
    }

    /// Whether to do a job at once. The pass waits for parameters, also of held shards. A question
    /// is answered unless a waiting job will change its shards.
    fn is_done_at_once(&self, job: &Job) -> bool {
        let changed_by = |job: &Job| match job {
            Job::Update { shard, .. } | Job::Restore { shard, .. } => Some(*shard),
            _ => None,
        };
        let changes: Vec<Shard> = self.deferred.iter().filter_map(changed_by).collect();
        match job {
            Job::Load { .. } => true,
            Job::Share { shards, .. } | Job::Export { shards, .. } | Job::Save { shards, .. } => {
                !shards.iter().any(|shard| changes.contains(shard))
            }
            _ => changed_by(job).is_some() && self.deferred.is_empty(),
        }
    }
}

/// The step that must have committed before the core gives this job. None if there is no such step.
fn settles(job: &Job) -> Option<Step> {
    match job {
        Job::Load { version: step, .. } | Job::Update { step, .. } | Job::Skip { step } => {
            Some(*step)
        }
        Job::Gradient { step, .. } => Some(Step(step.0 - 1)),
        _ => None,
    }
}

impl ParameterSource for ShardPass<'_> {
    fn await_parameters(&mut self, range: Range<usize>, write: &mut dyn FnMut(usize, &[f32])) {
        if range.is_empty() {
            return;
        }
        #[cfg(feature = "planted")]
        if self.torn {
            return;
        }
        let length = reduce::shard_length(self.store.layout().count());
        let shards = range.start / length..(range.end - 1) / length + 1;
        let began = self.channel.now();
        let mut wait = None;
        while !self.is_there(&shards) && self.end.is_none() {
            wait.get_or_insert_with(|| trace_span!(target: STAGES, "all_gather").entered());
            match self.channel.wait() {
                Some(job) => self.take(job, write),
                None => {
                    let ending = DeviceError::Failed("the worker is ending".into());
                    self.end = Some(PassEnd::Broken(ending));
                }
            }
        }
        if wait.is_some() {
            self.waited += self.channel.now().since(began);
        }
        if self.end.is_none() {
            self.answer();
        }
    }
}

impl GradientSink for ShardPass<'_> {
    fn publish_weight(&mut self, weight: f64) {
        self.stated_weight = Some(weight);
    }

    fn publish_scalar(&mut self, name: &str, value: f64) {
        let Some(name) = ScalarName::parse(name) else { return };
        self.stated_scalars.retain(|stated| stated.name != name);
        if self.stated_scalars.len() < MAX_SCALARS {
            self.stated_scalars.push(Scalar { name, value });
        }
    }

    fn publish_gradient(&mut self, range: Range<usize>, gradient: &[f32]) {
        if self.end.is_some() {
            return;
        }
        let subtree_sums = match self.accumulator.add(range, gradient) {
            Ok(subtree_sums) => subtree_sums,
            Err(repeated) => {
                self.end = Some(PassEnd::Broken(DeviceError::Unable(repeated.to_string())));
                return;
            }
        };
        for part in subtree_sums {
            if self.overlap {
                self.send(part);
            } else {
                self.held.push(part);
            }
        }
        self.answer();
    }
}
