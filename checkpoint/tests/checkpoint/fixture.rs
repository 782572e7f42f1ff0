//! Checkpoints of small models, with states that follow from a seed.

use everstep_checkpoint::manifest::{CommitRecord, Facts, Manifest};
use everstep_checkpoint::names::PartName;
use everstep_checkpoint::part::PartSummary;
use everstep_checkpoint::part::writer::{PartPlan, PartWriter};
use everstep_checkpoint::slots::Slots;
use everstep_checkpoint::store::{Created, Store, StoreError};
use everstep_kernels::layout::{Init, Layout};
use everstep_kernels::optimizer::ShardState;
use everstep_kernels::reduce;
use everstep_transport::protocol::message::Fingerprint;
use everstep_transport::protocol::{Generation, RunSpec, Shard, Step, WorkerId, exemplars};

/// The identity of the fixture's run.
pub const RUN: &str = "0123456789abcdef";

/// A run whose checkpoints are written.
pub struct Run {
    pub identity: String,
    pub spec: RunSpec,
    pub layout: Layout,
    pub slots: Slots,
    pub seed: u64,
}

impl Run {
    /// A run with 5,000 parameters in five shards, and so many moments.
    pub fn with_moments(moments: usize) -> Self {
        let mut layout = Layout::new();
        layout.push("wte.weight", &[40, 100], Init::Normal { deviation: 0.02 });
        layout.push("ln_f.bias", &[1_000], Init::Constant(0.5));
        let slots = Slots::of_moments(moments);
        Self { identity: RUN.into(), spec: exemplars::run(), layout, slots, seed: 1 }
    }

    pub fn shards(&self) -> u32 {
        reduce::shard_count(self.layout.count()) as u32
    }

    /// The state of a shard after a step: any bits, but those of this step alone.
    pub fn state(&self, step: Step, shard: Shard) -> ShardState {
        let range = reduce::shard_range(self.layout.count(), shard.0 as usize);
        let vector = |slot: u64| {
            let mut values = vec![0.0; range.len()];
            let seed = self.seed ^ step.0 << 8 ^ slot << 40;
            self.layout.init(seed, range.clone(), &mut values);
            values.iter_mut().for_each(|value| *value += slot as f32);
            values
        };
        let moments = (1..self.slots.count() as u64).map(vector).collect();
        ShardState { master: vector(0), moments }
    }

    pub fn plan(&self, step: Step, worker: u64, shards: &[u32]) -> PartPlan {
        PartPlan {
            step,
            name: PartName { generation: Generation(7), worker: WorkerId(worker), claim: 1 },
            run: self.identity.clone(),
            parameters: self.layout.count(),
            slots: self.slots.clone(),
            shards: shards.iter().copied().map(Shard).collect(),
        }
    }

    /// Writes a part, with the shards in the order of their indices from the last one on.
    pub fn write_part(&self, store: &dyn Store, plan: PartPlan) -> Result<PartSummary, StoreError> {
        let (step, shards) = (plan.step, plan.shards.clone());
        let mut writer = PartWriter::begin(store, plan)?;
        for shard in shards.into_iter().rev() {
            let ShardState { master, moments } = self.state(step, shard);
            let slots: Vec<&[f32]> =
                std::iter::once(&master).chain(&moments).map(Vec::as_slice).collect();
            writer.write(shard, &slots)?;
        }
        writer.finish()
    }

    pub fn manifest(&self, step: Step, parts: &[PartSummary]) -> Manifest {
        let fingerprint = Fingerprint {
            model: [1; 32],
            data: [2; 32],
            parameters: self.layout.count() as u64,
            shards: self.shards(),
            samples: 1_000,
        };
        let facts = Facts {
            run: &self.identity,
            spec: &self.spec,
            fingerprint: &fingerprint,
            layout: &self.layout,
            slots: &self.slots,
            step,
            generation: Generation(7),
            commit: (step > Step(0)).then_some(COMMIT),
            bitwise: true,
        };
        Manifest::assemble(&facts, parts).expect("whole")
    }

    /// Writes a checkpoint of two primaries: one has the even shards, the other one the odd ones.
    pub fn write(&self, store: &dyn Store, step: Step) -> Manifest {
        let of = |rest: u32| -> Vec<u32> { (0..self.shards()).filter(|s| s % 2 == rest).collect() };
        let mut parts = Vec::new();
        for worker in 0..2 {
            let plan = self.plan(step, 11 + u64::from(worker), &of(worker));
            parts.push(self.write_part(store, plan).expect("written"));
        }
        let manifest = self.manifest(step, &parts);
        let created = store.put_new(&manifest.name(), &manifest.to_bytes()).expect("put");
        assert_eq!(created, Created::Mine);
        manifest
    }
}

pub const COMMIT: CommitRecord = CommitRecord {
    norm: 1.0 / 3.0,
    loss: 0.1 + 0.2,
    applied: true,
    updates: 499,
    loss_scale_exponent: 0,
    loss_scale_good: 0,
};
