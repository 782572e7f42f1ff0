//! How much memory a worker needs: the formula, from the run alone.

use everstep_kernels::compute::Compute;
use everstep_kernels::optimizer::InvalidSetting;
use everstep_kernels::reduce::Tree;
use everstep_transport::protocol::RunSpec;

use crate::optimize;

/// The memory of one worker of a run, bytes, part by part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    device: u64,
    optimizer: u64,
    partials: u64,
    reduced: u64,
}

/// What the program, its threads, its connections' windows and its pool of free buffers take.
pub const CONSTANT_BYTES: u64 = 96 << 20;

impl Memory {
    /// The memory of the worker with the most data shards, where `workers` share the run.
    ///
    /// With `N` parameters, `W` workers, `C = min(copies, W)` owners of each shard, and `d` data
    /// shards of the worker, which make up subtrees of at most `2^k`:
    ///
    /// - device: parameters, gradient and activations;
    /// - optimizer: `C N / W` times master weights and moments;
    /// - partials: `4 N` for each subtree sent (they are kept until the commit), and `4 N` for each
    ///   level of the largest;
    /// - reduced: `4 N C / W` for the reduced gradients, `4 N / W` for partials that have arrived.
    pub fn of_worker(
        run: &RunSpec,
        compute: &dyn Compute,
        workers: u32,
    ) -> Result<Self, InvalidSetting> {
        let parameters = compute.layout().count() as u64;
        let workers = u64::from(workers);
        let owners = u64::from(run.copies).min(workers);
        let bytes_per_parameter = optimize::optimizer(run)?.bytes_per_parameter() as u64;
        let share = |bytes: u64, times: u64| (bytes * parameters * times).div_ceil(workers);
        let mine = u64::from(run.batch.data_shards).div_ceil(workers) as u32;
        let subtrees = Tree::new(run.batch.data_shards).subtrees(&(0..mine).collect());
        let levels = subtrees.iter().map(|node| u64::from(node.level)).max().unwrap_or(0);
        Ok(Self {
            device: compute.device_bytes() as u64,
            optimizer: share(bytes_per_parameter, owners),
            partials: 4 * parameters * (subtrees.len() as u64 + levels),
            reduced: share(4, owners) + share(4, 1),
        })
    }

    /// The parts, with their names.
    pub fn parts(&self) -> [(&'static str, u64); 5] {
        [
            ("model and activations", self.device),
            ("optimizer share", self.optimizer),
            ("partial sums", self.partials),
            ("reduced shards", self.reduced),
            ("program and network", CONSTANT_BYTES),
        ]
    }

    /// All parts together.
    pub fn total(&self) -> u64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }
}
