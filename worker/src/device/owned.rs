//! The parameter shards that this worker owns: f32 master weights and optimizer state.

use std::collections::BTreeMap;

use everstep_kernels::layout::Layout;
use everstep_kernels::optimizer::{Apply, Optimizer, ShardState};
use everstep_kernels::reduce;
use everstep_kernels::schedule::Schedule;
use everstep_transport::protocol::{RunSpec, Shard, Step};

use crate::optimize;
use crate::step::event::Report;

/// One owned shard.
struct Copy {
    state: ShardState,
    version: Step,
    digest: u64,
    primary: bool,
}

/// All owned shards, and how they are updated.
pub struct Owned {
    seed: u64,
    layout: Layout,
    optimizer: Optimizer,
    schedule: Schedule,
    copies: BTreeMap<Shard, Copy>,
}

impl Owned {
    /// Owns nothing yet. The run has been validated, and its optimizer with it.
    pub fn new(run: &RunSpec, layout: Layout) -> Self {
        let optimizer = optimize::optimizer(run).expect("the run's optimizer was built before");
        let schedule = optimize::schedule(run);
        Self { seed: run.seed, layout, optimizer, schedule, copies: BTreeMap::new() }
    }

    /// Takes these shards on at version 0; each is reported.
    pub fn enter(&mut self, owned: Vec<(Shard, bool)>, mut report: impl FnMut(Report)) {
        self.copies.clear();
        for (shard, primary) in owned {
            let range = reduce::shard_range(self.layout.count(), shard.0 as usize);
            let mut master = vec![0.0; range.len()];
            self.layout.init(self.seed, range, &mut master);
            let state = self.optimizer.state(master);
            let digest = state.digest(0);
            self.copies.insert(shard, Copy { state, version: Step(0), digest, primary });
            report(Report::Updated { version: Step(0), shard, digest, parameters: None });
        }
    }

    /// Applies a committed step to a shard, and refuses one whose old bits are not those that the
    /// last update left.
    pub fn update(
        &mut self,
        shard: Shard,
        step: Step,
        update: u64,
        (gradient, clip): (&[f32], f32),
    ) -> Result<(), String> {
        let copy = self.copies.get_mut(&shard).expect("a plan updates what it owns");
        assert_eq!(copy.version.next(), step, "I3: versions follow each other");
        if copy.state.digest(copy.version.0) != copy.digest {
            return Err(format!(
                "parameter shard {shard} changed in memory since step {}: this machine's memory \
                 cannot be trusted",
                copy.version
            ));
        }
        let apply = Apply {
            step: update,
            learning_rate: self.schedule.rate(step.0),
            clip,
            layout: &self.layout,
            range: reduce::shard_range(self.layout.count(), shard.0 as usize),
        };
        self.optimizer.update(&mut copy.state, gradient, &apply);
        copy.version = step;
        copy.digest = copy.state.digest(step.0);
        Ok(())
    }

    /// Relabels every shard: the step changed nothing.
    pub fn skip(&mut self, step: Step, mut report: impl FnMut(Report)) {
        for (shard, copy) in &mut self.copies {
            copy.version = step;
            copy.digest = copy.state.digest(step.0);
            let (shard, digest) = (*shard, copy.digest);
            report(Report::Updated { version: step, shard, digest, parameters: None });
        }
    }

    /// Master weights, digest, and whether this worker is primary.
    pub fn state(&self, shard: Shard) -> (&[f32], u64, bool) {
        let copy = &self.copies[&shard];
        (&copy.state.master, copy.digest, copy.primary)
    }

    /// The shards of which this worker is primary, with their master weights.
    pub fn primaries(&self) -> impl Iterator<Item = (Shard, &[f32])> {
        let primaries = self.copies.iter().filter(|(_, copy)| copy.primary);
        primaries.map(|(shard, copy)| (*shard, copy.state.master.as_slice()))
    }

    /// BLAKE3 of each shard's step, master weights and moments, little-endian, in this order.
    pub fn seal(&self) -> Vec<(Shard, [u8; 32])> {
        let seal = |copy: &Copy| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&copy.version.0.to_le_bytes());
            for values in std::iter::once(&copy.state.master).chain(&copy.state.moments) {
                for value in values.chunks(1024) {
                    let bytes: Vec<u8> = value.iter().flat_map(|v| v.to_le_bytes()).collect();
                    hasher.update(&bytes);
                }
            }
            *hasher.finalize().as_bytes()
        };
        self.copies.iter().map(|(shard, copy)| (*shard, seal(copy))).collect()
    }

    /// Bytes of master weights and moments.
    pub fn bytes(&self) -> u64 {
        let parameters: usize = self.copies.values().map(|copy| copy.state.master.len()).sum();
        (parameters * self.optimizer.bytes_per_parameter()) as u64
    }
}
