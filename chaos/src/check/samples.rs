//! I4: every sample of the plan contributes to exactly one committed step.
//!
//! The contributions to a committed step are those that each member of its generation has computed
//! of its own data shards, in any generation.

use std::collections::BTreeMap;

use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{DataShard, Generation, Record, Step, WorkerId};
use everstep_worker::data::Sampler;
use everstep_worker::data::sampler::Account;

use super::{Breach, Invariant};

#[derive(Debug)]
pub(super) struct Samples {
    sampler: Sampler,
    /// The number of samples of the data set.
    count: u64,
    /// The samples that a worker recorded, and the last generation in which its device did.
    recorded: BTreeMap<(Step, WorkerId, DataShard), (Generation, Vec<u64>)>,
    /// The samples that have contributed to the newest commit of each step.
    used: BTreeMap<Step, Vec<u64>>,
}

/// Steps whose contributions may yet be part of a commit.
const KEPT: u64 = 2;

impl Samples {
    pub(super) fn new(sampler: Sampler, count: u64) -> Self {
        Self { sampler, count, recorded: BTreeMap::new(), used: BTreeMap::new() }
    }

    /// What another cluster has used counts as well.
    pub(super) fn follow(&mut self, before: &Self) {
        self.used.clone_from(&before.used);
    }

    /// The steps after this one are trained again.
    pub(super) fn begin_after(&mut self, step: Step) {
        self.used.retain(|used, _| *used <= step);
    }

    pub(super) fn computed(
        &mut self,
        worker: WorkerId,
        generation: Generation,
        step: Step,
        part: &Contribution,
    ) -> Result<(), Breach> {
        let key = (step, worker, part.data_shard);
        let before = self.recorded.insert(key, (generation, part.samples.clone()));
        if before.is_none_or(|(then, _)| then != generation) {
            return Ok(());
        }
        let shard = part.data_shard;
        let seen = format!("worker {worker} has computed data shard {shard} of step {step} twice");
        Err((Invariant::I4, seen))
    }

    /// The first commit of a step in a generation.
    pub(super) fn committed(&mut self, step: Step, record: &Record) -> Result<(), Breach> {
        let mut used = Vec::new();
        for member in &record.members {
            for shard in &member.data_shards {
                let recorded = self.recorded.get(&(step, member.worker, *shard));
                used.extend(recorded.iter().flat_map(|(_, samples)| samples));
            }
        }
        let account = self.sampler.account(used.iter().copied(), step);
        self.used.insert(step, used);
        let oldest = (Step(step.0.saturating_sub(KEPT)), WorkerId(0), DataShard(0));
        self.recorded = self.recorded.split_off(&oldest);
        if account == Account::default() {
            return Ok(());
        }
        Err((Invariant::I4, format!("step {step} is committed with {account:?}")))
    }

    /// Each epoch uses every sample once, in any order. So the counts of the most and the least
    /// used sample differ by one at most.
    pub(super) fn conclude(&self) -> Result<(), Breach> {
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for sample in self.used.values().flatten() {
            *counts.entry(*sample).or_default() += 1;
        }
        let most = counts.values().max().copied().unwrap_or_default();
        let all = counts.len() as u64 == self.count;
        let least = if all { counts.values().min().copied().unwrap_or_default() } else { 0 };
        if most - least <= 1 {
            return Ok(());
        }
        Err((Invariant::I4, format!("one sample was used {most} times, another {least} times")))
    }
}
