//! I4: every sample of the plan contributes to exactly one committed step.

use std::collections::BTreeMap;

use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{DataShard, Step};
use everstep_worker::data::Sampler;
use everstep_worker::data::sampler::Account;

use super::{Found, Invariant};

#[derive(Debug)]
pub(super) struct Samples {
    sampler: Sampler,
    /// How many there are.
    count: u64,
    /// The samples in each data shard of the steps under way, as they were recorded.
    recorded: BTreeMap<Step, BTreeMap<DataShard, Vec<u64>>>,
    committed: Step,
    /// How often each sample has contributed to a committed step.
    used: BTreeMap<u64, u64>,
}

impl Samples {
    pub(super) fn new(sampler: Sampler, count: u64) -> Self {
        let (recorded, used) = Default::default();
        Self { sampler, count, recorded, committed: Step(0), used }
    }

    pub(super) fn computed(&mut self, step: Step, part: &Contribution) -> Result<(), Found> {
        let recorded = self.recorded.entry(step).or_default();
        if recorded.insert(part.data_shard, part.samples.clone()).is_none() {
            return Ok(());
        }
        let seen = format!("data shard {} of step {step} was computed twice", part.data_shard);
        Err((Invariant::I4, seen))
    }

    pub(super) fn committed(&mut self, step: Step) -> Result<(), Found> {
        if step <= self.committed {
            return Ok(());
        }
        self.committed = step;
        let recorded = self.recorded.remove(&step).unwrap_or_default();
        let samples = || recorded.values().flatten().copied();
        for sample in samples() {
            *self.used.entry(sample).or_default() += 1;
        }
        let account = self.sampler.account(samples(), step);
        if account == Account::default() {
            return Ok(());
        }
        Err((Invariant::I4, format!("step {step} is committed with {account:?}")))
    }

    /// Epoch after epoch every sample is used once, whatever the order: so the counts of the most
    /// and the least used differ by one at most.
    pub(super) fn conclude(&self) -> Result<(), Found> {
        let most = self.used.values().max().copied().unwrap_or_default();
        let all = self.used.len() as u64 == self.count;
        let least = if all { self.used.values().min().copied().unwrap_or_default() } else { 0 };
        if most - least <= 1 {
            return Ok(());
        }
        Err((Invariant::I4, format!("one sample was used {most} times, another {least} times")))
    }
}
