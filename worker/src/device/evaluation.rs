//! Held-out samples: which of them a data shard stands for, and what the model makes of them.
//!
//! In: a data shard, and the parameters as they are. Out: mean loss and metric over its part. A
//! step that evaluates does so before it computes a gradient, so its line has both losses of the
//! same parameters. After the last step the device evaluates once more.

use everstep_kernels::compute::{Batch, Evaluation};
use everstep_transport::protocol::outcome::PartEvaluation;
use everstep_transport::protocol::{DataShard, Step};

use super::{Device, DeviceChannel, DeviceError};
use crate::data::loader::LoadError;
use crate::data::row::{self, RowError, SampleIndex};
use crate::data::validation::validation_part;
use crate::step::event::Report;

/// The most held-out targets that all data shards evaluate together.
const VALIDATION_TARGETS: u64 = 64 << 10;

impl Device {
    /// Whether the run evaluates the parameters that this step computes with.
    pub(super) fn is_evaluated(&self, step: Step) -> bool {
        let every = self.parts.run.data.validation_every;
        every > 0 && step.0.is_multiple_of(every)
    }

    /// Evaluates a data shard's part of the held-out samples. While training goes on, the device
    /// answers questions about shards between two micro-batches. None if the part is empty.
    pub(super) fn evaluate(
        &mut self,
        part: DataShard,
        channel: &mut dyn DeviceChannel,
    ) -> Result<Option<PartEvaluation>, DeviceError> {
        self.in_user_code = true;
        let evaluated = self.evaluate_part(part, channel);
        self.in_user_code = false;
        channel.report(Report::Evaluated);
        evaluated
    }

    fn evaluate_part(
        &mut self,
        part: DataShard,
        channel: &mut dyn DeviceChannel,
    ) -> Result<Option<PartEvaluation>, DeviceError> {
        channel.report(Report::Evaluating);
        let limit = (VALIDATION_TARGETS / self.targets_of_a_sample(channel)?).max(1);
        let held_out = self.parts.dataset.validation_len();
        let shape = self.parts.run.batch;
        let indices: Vec<u64> = validation_part(part, shape.data_shards, held_out, limit).collect();
        let (mut batch, mut sum) = (Batch::default(), Evaluation::default());
        for rows in indices.chunks(shape.micro_batch as usize) {
            if self.training {
                self.answer(channel)?;
            }
            channel.report(Report::Evaluating);
            batch.clear();
            for index in rows {
                self.append(SampleIndex::HeldOut(*index), &mut batch, channel)?;
            }
            let found = self.parts.compute.evaluate(&batch)?;
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

    fn targets_of_a_sample(&self, channel: &mut dyn DeviceChannel) -> Result<u64, DeviceError> {
        let mut batch = Batch::default();
        self.append(SampleIndex::Training(0), &mut batch, channel)?;
        Ok(batch.targets.len().max(1) as u64)
    }

    /// Appends a row, however long it takes until it can be read.
    fn append(
        &self,
        sample: SampleIndex,
        batch: &mut Batch,
        channel: &mut dyn DeviceChannel,
    ) -> Result<(), DeviceError> {
        let mut is_stalled = false;
        let row = row::append(&*self.parts.dataset, sample, batch, &mut || {
            if !is_stalled {
                is_stalled = true;
                channel.report(Report::LoadStalled(true));
            }
            true
        });
        if is_stalled {
            channel.report(Report::LoadStalled(false));
        }
        let (SampleIndex::Training(index) | SampleIndex::HeldOut(index)) = sample;
        match row {
            Err(RowError::Refused(message)) => Err(LoadError::Fill { index, message }.into()),
            Ok(_) | Err(RowError::Abandoned) => Ok(()),
        }
    }
}
