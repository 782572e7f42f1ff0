//! One micro-batch of one data shard, between the model and the network.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use everstep_kernels::compute::{Batch, Compute, Exchange, Pass};
use everstep_kernels::reduce;
use everstep_transport::protocol::Step;

use super::Port;
use super::accumulate::{Accumulator, Final};
use crate::step::event::{Job, Report};

/// The exchange of one pass: waits for parameters, sends off gradients.
pub struct ShardPass<'a> {
    /// Where parameters come from and partial sums go.
    pub port: &'a mut dyn Port,
    /// How many parameters the model has.
    pub parameters: usize,
    /// The version of each parameter shard on the device.
    pub versions: &'a mut Vec<Step>,
    /// The version that the pass computes with.
    pub wanted: Step,
    /// Adds data shards up to subtrees.
    pub accumulator: &'a mut Accumulator,
    /// Jobs that are not parameters, for later.
    pub deferred: &'a mut VecDeque<Job>,
    /// The step.
    pub step: Step,
    /// Whether to wait and to send range by range, or all at once.
    pub overlap: bool,
    /// Without overlap: what is sent when the pass is done.
    pub held: Vec<Final>,
    /// How long it has waited for parameters.
    pub waited: Duration,
    /// There will be no more jobs: the worker is ending, and the result of the pass is void.
    pub closed: bool,
    /// A planted bug: parameters are not waited for.
    #[cfg(feature = "planted")]
    pub torn: bool,
}

impl ShardPass<'_> {
    /// Runs the pass; returns the loss.
    pub fn compute(
        &mut self,
        compute: &mut dyn Compute,
        batch: &Batch,
        pass: Pass,
    ) -> Result<f64, String> {
        if !self.overlap {
            // The model asks again, range by range, and finds everything there.
            let all = 0..self.parameters;
            let mut arrived = Vec::new();
            self.need(all, &mut |offset, values: &[f32]| arrived.push((offset, values.to_vec())));
            for (offset, values) in arrived {
                compute.load(offset, &values);
            }
        }
        let loss = compute.gradient(batch, pass, self).map_err(|error| error.to_string())?;
        for part in std::mem::take(&mut self.held) {
            self.send(part);
        }
        if self.closed {
            return Err("the worker is ending".into());
        }
        match self.accumulator.unannounced().filter(|_| pass.last) {
            Some(shard) => Err(format!(
                "the model announced no gradient for all of parameter shard {shard}: a last pass \
                 must announce every range once"
            )),
            None => Ok(loss),
        }
    }

    fn is_there(&self, shards: &Range<usize>) -> bool {
        self.versions[shards.clone()].iter().all(|version| *version == self.wanted)
    }

    fn send(&mut self, part: Final) {
        let Final { shard, node, sum } = part;
        self.port.report(Report::Partial { step: self.step, shard, node, sum });
    }
}

impl Exchange for ShardPass<'_> {
    fn need(&mut self, range: Range<usize>, write: &mut dyn FnMut(usize, &[f32])) {
        if range.is_empty() {
            return;
        }
        #[cfg(feature = "planted")]
        if self.torn {
            return;
        }
        let length = reduce::shard_length(self.parameters);
        let shards = range.start / length..(range.end - 1) / length + 1;
        let began = self.port.now();
        let mut idle = false;
        while !self.is_there(&shards) && !self.closed {
            idle = true;
            match self.port.wait() {
                Some(Job::Load { shard, version, values }) => {
                    let range = reduce::shard_range(self.parameters, shard.0 as usize);
                    write(range.start, &values);
                    self.versions[shard.0 as usize] = version;
                }
                Some(job) => self.deferred.push_back(job),
                None => self.closed = true,
            }
        }
        if idle {
            self.waited += self.port.now().since(began);
        }
    }

    fn ready(&mut self, range: Range<usize>, gradient: &[f32]) {
        for part in self.accumulator.add(range, gradient) {
            if self.overlap {
                self.send(part);
            } else {
                self.held.push(part);
            }
        }
    }
}
