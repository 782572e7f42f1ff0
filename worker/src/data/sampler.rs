//! Which sample stands where: a pure function of seed and position. It has no memory and no clock.
//!
//! The samples of a run stand in one endless row: step after step, within a step data shard after
//! data shard, within a data shard its micro-batches, within a micro-batch its rows. Each `len`
//! places are an epoch. Every sample stands in it once, and each epoch has its own order. So the
//! place in the data *is* the step: there is nothing to save, and nothing can be lost.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod permutation;

use std::collections::BTreeMap;

use everstep_transport::protocol::run::BatchSpec;
use everstep_transport::protocol::{DataShard, Step};
use permutation::Permutation;

/// The order of a run's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    seed: u64,
    len: u64,
    batch: BatchSpec,
}

/// The sample at one place of the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The pass over the data, from 0.
    pub epoch: u64,
    /// The sample, below the data set's length.
    pub index: u64,
}

/// How the samples of committed steps differ from those of the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Samples that were planned, but not used.
    pub lost: u64,
    /// Samples that were used, but not planned: of another step, or one more time than planned.
    pub repeated: u64,
}

impl Account {
    fn of(planned: impl Iterator<Item = u64> + Clone, recorded: Vec<u64>) -> Self {
        if planned.clone().eq(recorded.iter().copied()) {
            return Self::default(); // the usual case: only a difference needs a count
        }
        let mut missing = BTreeMap::<u64, i64>::new();
        for index in planned {
            *missing.entry(index).or_default() += 1;
        }
        for index in recorded {
            *missing.entry(index).or_default() -= 1;
        }
        let mut account = Self::default();
        for count in missing.into_values() {
            let side = if count > 0 { &mut account.lost } else { &mut account.repeated };
            *side += count.unsigned_abs();
        }
        account
    }
}

impl Sampler {
    /// The order of `samples` samples in global batches like `batch`.
    ///
    /// # Panics
    ///
    /// If there are no samples. The caller must refuse such a data set before.
    pub fn new(seed: u64, samples: u64, batch: BatchSpec) -> Self {
        assert!(samples > 0, "there is nothing to sample in an empty data set");
        Self { seed, len: samples, batch }
    }

    /// The sizes of the global batch.
    pub fn batch(&self) -> BatchSpec {
        self.batch
    }

    /// The sample in `row` of `micro_batch` of `data_shard` in `step`. Each number is below its
    /// count in the batch.
    pub fn sample(&self, step: Step, data_shard: DataShard, micro_batch: u32, row: u32) -> Sample {
        let before = u64::from(micro_batch) * u64::from(self.batch.micro_batch);
        self.at(self.shard_position(step, data_shard) + before + u64::from(row))
    }

    /// The indices of a data shard's samples, micro-batch after micro-batch, in row order.
    pub fn shard_samples(
        &self,
        step: Step,
        data_shard: DataShard,
    ) -> impl Iterator<Item = u64> + Clone + use<> {
        let sampler = *self;
        let first = sampler.shard_position(step, data_shard);
        (0..sampler.batch.shard_samples()).map(move |place| sampler.at(first + place).index)
    }

    /// Compares the recorded indices of `step`, in any order, with the plan.
    pub fn account(&self, recorded: impl Iterator<Item = u64>, step: Step) -> Account {
        let data_shards = (0..self.batch.data_shards).map(DataShard);
        let planned = data_shards.flat_map(|data_shard| self.shard_samples(step, data_shard));
        Account::of(planned, recorded.collect())
    }

    /// The same for one data shard. If every data shard contributes once, and each of them its
    /// planned samples, the step has its planned samples too.
    pub fn account_of(&self, recorded: &[u64], step: Step, data_shard: DataShard) -> Account {
        Account::of(self.shard_samples(step, data_shard), recorded.to_vec())
    }

    /// The place of a data shard's first sample. A valid run's last place still fits 64 bits.
    fn shard_position(&self, step: Step, data_shard: DataShard) -> u64 {
        (step.0 - 1) * self.batch.samples() + u64::from(data_shard.0) * self.batch.shard_samples()
    }

    fn at(&self, position: u64) -> Sample {
        let epoch = position / self.len;
        let index = Permutation::new(self.len, self.seed, epoch).apply(position % self.len);
        Sample { epoch, index }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BATCH: BatchSpec = BatchSpec { data_shards: 4, micro_batch: 3, accumulate: 2 };

    fn step_samples(sampler: &Sampler, step: Step) -> Vec<u64> {
        let shard = |shard| sampler.shard_samples(step, DataShard(shard));
        (0..sampler.batch.data_shards).flat_map(shard).collect()
    }

    #[test]
    fn a_data_shards_samples_come_in_row_order() {
        let sampler = Sampler::new(1, 1_000, BATCH);
        let (step, shard) = (Step(7), DataShard(2));
        let rows = (0..2).flat_map(|micro| (0..3).map(move |row| (micro, row)));
        let by_row = rows.map(|(micro, row)| sampler.sample(step, shard, micro, row).index);
        assert!(by_row.eq(sampler.shard_samples(step, shard)));
    }

    #[test]
    fn the_order_of_a_seed_never_changes() {
        // Checkpoints of older versions continue in this order.
        let sampler = Sampler::new(1, 1_000, BATCH);
        let first: Vec<u64> = sampler.shard_samples(Step(1), DataShard(0)).collect();
        assert_eq!(first, [267, 353, 219, 366, 893, 535]);
    }

    #[test]
    fn seeds_and_epochs_have_orders_of_their_own() {
        let order = |seed, epoch: u64| {
            let places = epoch * 240..(epoch + 1) * 240;
            places.map(|place| Sampler::new(seed, 240, BATCH).at(place).index).collect::<Vec<_>>()
        };
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), order(1, 1));
    }

    #[test]
    fn a_step_may_span_epochs_of_a_small_data_set() {
        let sampler = Sampler::new(3, 5, BATCH);
        assert_eq!(sampler.sample(Step(1), DataShard(3), 1, 2).epoch, 4);
        assert_eq!(sampler.account(step_samples(&sampler, Step(1)).into_iter(), Step(1)).lost, 0);
    }

    #[test]
    fn a_skip_in_the_data_counts_one_lost_and_one_repeated() {
        let sampler = Sampler::new(1, 1_000, BATCH);
        let mut recorded = step_samples(&sampler, Step(2));
        recorded[5] = recorded[6];
        let account = sampler.account(recorded.into_iter(), Step(2));
        assert_eq!(account, Account { lost: 1, repeated: 1 });
    }

    #[test]
    fn a_data_shard_is_held_against_its_own_plan() {
        let sampler = Sampler::new(1, 1_000, BATCH);
        let samples: Vec<u64> = sampler.shard_samples(Step(2), DataShard(1)).collect();
        assert_eq!(sampler.account_of(&samples, Step(2), DataShard(1)), Account::default());
        let foreign = Account { lost: 6, repeated: 6 };
        assert_eq!(sampler.account_of(&samples, Step(2), DataShard(0)), foreign);
        assert_eq!(sampler.account_of(&samples[1..], Step(2), DataShard(1)).lost, 1);
    }

    #[test]
    fn a_missing_data_shard_is_lost_and_one_added_twice_is_repeated() {
        let sampler = Sampler::new(1, 1_000, BATCH);
        let shards = [0, 1, 1, 2].map(|shard| sampler.shard_samples(Step(2), DataShard(shard)));
        let account = sampler.account(shards.into_iter().flatten(), Step(2));
        assert_eq!(account, Account { lost: 6, repeated: 6 });
    }

    proptest! {
        #[test]
        fn every_sample_is_used_once_an_epoch(
            seed: u64, len in 1..500u64, epochs in 1..4u64, micro_batch in 1u32..9,
        ) {
            let sampler = Sampler::new(seed, len, BatchSpec { micro_batch, ..BATCH });
            let row = (1..).map(Step).flat_map(|step| step_samples(&sampler, step));
            let row: Vec<u64> = row.take((epochs * len) as usize).collect();
            for epoch in row.chunks(len as usize) {
                let mut epoch = epoch.to_vec();
                epoch.sort();
                prop_assert!(epoch.into_iter().eq(0..len));
            }
        }

        #[test]
        fn a_step_has_the_same_samples_however_its_data_shards_are_dealt_out(
            len in 1..500u64,
            step in (1..1_000u64).prop_map(Step),
            owner in [0..3, 0..3, 0..3, 0..3],
        ) {
            let sampler = Sampler::new(9, len, BATCH);
            let shards = |worker| (0..4).filter(move |&shard| owner[shard as usize] == worker);
            let recorded = (0..3)
                .flat_map(shards)
                .flat_map(|shard| sampler.shard_samples(step, DataShard(shard)));
            prop_assert_eq!(sampler.account(recorded, step), Account::default());
        }
    }
}
