//! The memory that a worker needs: a formula of the run alone.

use std::collections::BTreeSet;

use everstep_kernels::models::ModelPlan;
use everstep_kernels::optimizer::Optimizer;
use everstep_kernels::reduce::{self, Tree, TreeNode};
use everstep_transport::protocol::RunSpec;

use crate::memory_ring::link_bytes;
use crate::step::MAX_STATE_BYTES_UNDER_WAY;

/// The memory of one worker of a run, bytes, part by part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerMemory {
    device: u64,
    pinned: u64,
    optimizer: u64,
    partials: u64,
    reduced: u64,
    checkpoint: u64,
    joining: u64,
    writing: u64,
    shared: u64,
    faster: u64,
}

/// What a model and its optimizer take, however many workers there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelNeeds {
    /// The number of parameters.
    pub parameters: u64,
    /// Bytes for parameters, gradient and activations on the device that computes.
    pub device_bytes: u64,
    /// Bytes of a parameter's master weight and moments.
    pub bytes_per_parameter: u64,
}

impl ModelNeeds {
    /// What they take on the CPU, with so many threads.
    pub fn on_cpu(model: &ModelPlan, optimizer: &Optimizer, threads: usize) -> Self {
        Self {
            parameters: model.layout.count() as u64,
            device_bytes: model.bytes_on(threads) as u64,
            bytes_per_parameter: optimizer.bytes_per_parameter() as u64,
        }
    }
}

/// Bytes of the program, its threads, its connections' windows and its pool of free buffers.
/// Measured, with 22 to 97 MB, over many models and numbers of workers.
pub const CONSTANT_BYTES: u64 = 58 << 20;

impl WorkerMemory {
    /// The memory of a worker at the run's start, when `workers` share it. It is that of the worker
    /// that needs most.
    ///
    /// With `N` parameters, `W` workers and `C = min(copies, W)` owners of each shard:
    ///
    /// - device: parameters, gradient and activations, as the model plans them, and what each
    ///   thread needs to compute. A `gpt` with `recompute` has only the input of each block, and
    ///   one block's activations.
    /// - optimizer: `C N / W` times master weights and moments.
    /// - partials: `4 N` for each complete subtree, and for each level of the one under way.
    /// - reduced: `4 N (C - 1) / W` from the primaries that this worker backs up, and `4 N / W` for
    ///   each partial of its own shards that can wait for its sibling: one of every two that come.
    ///   A worker that is alone keeps its one partial, which is the sum.
    /// - checkpoint copies, in a run that has checkpoints: `1 / W` of master weights and moments,
    ///   the state of the shards of which the worker is primary. A thread writes it while training
    ///   goes on in other memory.
    ///
    /// After a planned change of generation that leaves fewer workers, the formula for fewer
    /// workers holds. After a loss there is one partial more for each orphaned block, until the
    /// next planned change. For a while a worker needs more than that. The excess is always
    /// bounded, and the pool of free buffers keeps it some steps longer:
    ///
    /// - A repeated step keeps the partials of its first try until it commits, and adds them up to
    ///   those of the new plan in other memory: at most the partials once more.
    /// - A syncing shard counts as an owned one, and at most four of its reduced gradients wait, 16
    ///   bytes for each of its parameters. If steps outrun a state, more of them wait, but no more
    ///   than 64 MiB of all shards.
    /// - The parameters of the shards that several threads update at once: two shards for each
    ///   thread, 32 MiB at most.
    /// - States under way: the bytes that arrive at a joiner in two seconds, 64 MiB at least, 512
    ///   MiB or its part of the state at most. The owners that it asks need the same:
    ///   [`Self::passing`].
    /// - States of a second part, which waits while the first one is not written yet: the
    ///   checkpoint copies once more.
    /// - At the end, the master weights that the model's file has not taken. The worker that writes
    ///   it holds all of them at most, if its disk is slower than the network. Each primary holds
    ///   those of its shards: [`Self::passing`].
    /// - Where other workers are slower, a worker has more data shards than they, and so more
    ///   partials: at most those of all data shards but one for each other worker. This lasts:
    ///   [`Self::passing`].
    /// - With each worker of the same host: memory for two shards of each lane, 24 MiB at most.
    ///   This lasts: [`Self::passing`] has it since most workers may be on other hosts.
    pub fn of_worker(run: &RunSpec, model: ModelNeeds, workers: u32) -> Self {
        let ModelNeeds { parameters, device_bytes, bytes_per_parameter } = model;
        let owners = u64::from(run.copies.min(workers));
        let share =
            |bytes: u64, times: u64| (bytes * parameters * times).div_ceil(u64::from(workers));
        let subtrees: Vec<_> = subtrees(run.batch.data_shards, workers).collect();
        let partials = subtrees.iter().map(|mine| partials_held(mine)).max().unwrap_or(0);
        let waiting = match subtrees.iter().map(Vec::len).sum::<usize>() as u64 {
            1 => 0,
            coming => coming.div_ceil(2),
        };
        Self {
            device: device_bytes,
            pinned: 0,
            optimizer: share(bytes_per_parameter, owners),
            partials: 4 * parameters * partials,
            reduced: share(4, owners - 1 + waiting),
            checkpoint: run.checkpoint.as_ref().map_or(0, |_| share(bytes_per_parameter, 1)),
            joining: share(bytes_per_parameter, owners).min(MAX_STATE_BYTES_UNDER_WAY as u64),
            writing: 4 * parameters,
            faster: 4
                * parameters
                * most_partials(run.batch.data_shards, workers).saturating_sub(partials),
            shared: link_bytes(4 * reduce::shard_length(parameters as usize)) as u64
                * u64::from(workers - 1),
        }
    }

    /// The memory on the host if another device computes, with so many bytes of buffers for copies.
    /// CUDA's own libraries take some hundred MB more, and the formula does not know them.
    pub fn beside_device(self, host_bytes: usize) -> Self {
        Self { device: 0, pinned: host_bytes as u64, ..self }
    }

    /// The parts, with their names. One of the first two is 0.
    pub fn parts(&self) -> [(&'static str, u64); 7] {
        [
            ("model and activations", self.device),
            ("copies to and from GPU", self.pinned),
            ("optimizer share", self.optimizer),
            ("partial sums", self.partials),
            ("reduced shards", self.reduced),
            ("checkpoint copies", self.checkpoint),
            ("program and network", CONSTANT_BYTES),
        ]
    }

    /// The passing memory on top, at most, with its occasion: states under way while a worker joins
    /// or replaces a lost one, states of a second part while the first one is not written yet, the
    /// weights that wait for the disk of the worker that writes the model, and what workers of one
    /// host share.
    pub fn passing(&self) -> [(&'static str, u64); 5] {
        [
            ("while workers join", self.joining),
            ("while parts wait for a store", self.checkpoint),
            ("at the end, to write", self.writing),
            ("if others are slower", self.faster),
            ("if all are on one host", self.shared),
        ]
    }

    /// All parts together, without the passing memory.
    pub fn total(&self) -> u64 {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }
}

/// The subtrees that each worker sends, in the order in which it computes them. After a planned
/// change of generation a worker has one block of data shards for each 1 in the binary form of its
/// share. The longest blocks of all workers come first.
fn subtrees(data_shards: u32, workers: u32) -> impl Iterator<Item = Vec<TreeNode>> {
    let tree = Tree::new(data_shards);
    let (share, more) = (data_shards / workers, data_shards % workers);
    let (mut shares, mut next) = (vec![BTreeSet::new(); workers as usize], 0);
    for length in (0..u32::BITS).rev().map(|level| 1 << level) {
        for (mine, rank) in shares.iter_mut().zip(0..) {
            if (share + u32::from(rank < more)) & length != 0 {
                mine.extend(next..next + length);
                next += length;
            }
        }
    }
    shares.into_iter().map(move |mine| tree.subtrees(&mine))
}

/// The most partials that a worker holds if all others are so slow that they have one data shard
/// each, or with any smaller share.
fn most_partials(data_shards: u32, workers: u32) -> u64 {
    let tree = Tree::new(data_shards);
    let most = data_shards.saturating_sub(workers - 1);
    let of_share = |share: u32| partials_held(&tree.subtrees(&(0..share).collect()));
    // A share with a block of each length has the most.
    let whole = (1..=most.checked_ilog2().unwrap_or(0)).map(|level| (1 << level) - 1);
    whole.chain([most]).map(of_share).max().unwrap_or(0)
}

/// The most partials of the whole vector that a worker holds at once. They are those of its
/// complete subtrees, which it keeps until the commit, and a left half on every level of the one
/// under way.
fn partials_held(subtrees: &[TreeNode]) -> u64 {
    let held = |(complete, node): (usize, &TreeNode)| complete as u64 + u64::from(node.level);
    let under_way = subtrees.iter().enumerate().map(held).max();
    under_way.unwrap_or(0).max(subtrees.len() as u64)
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::checkpoint::{CheckpointSpec, OnFailure};
    use everstep_transport::protocol::exemplars;

    use super::*;
    use crate::builtin;

    fn held(data_shards: u32, workers: u32) -> Vec<u64> {
        subtrees(data_shards, workers).map(|mine| partials_held(&mine)).collect()
    }

    fn of_two(run: &RunSpec, model: &ModelPlan) -> WorkerMemory {
        let optimizer = builtin::registry().build_optimizer(run).expect("a valid optimizer");
        WorkerMemory::of_worker(run, ModelNeeds::on_cpu(model, &optimizer, 1), 2)
    }

    #[test]
    fn a_gpt_that_computes_its_blocks_again_needs_less() {
        let needed = |recompute| {
            let mut run = exemplars::run();
            (run.model.layers, run.model.recompute) = (5, recompute);
            let model = builtin::registry().plan_model(&run).expect("a gpt");
            of_two(&run, &model)
        };
        let (kept, again) = (needed(false), needed(true));
        let run = exemplars::run();
        let rows = u64::from(run.batch.micro_batch * run.model.context);
        let (width, heads) = (u64::from(run.model.width), u64::from(run.model.heads));
        // For each of the four blocks that, with `recompute`, lie where the fifth does.
        let least = 4 * 4 * rows * (15 * width + 2 * 2 + heads);
        assert!(again.device + least <= kept.device, "{again:?} {kept:?}");
        assert_eq!(WorkerMemory { device: 0, ..again }, WorkerMemory { device: 0, ..kept });
    }

    #[test]
    fn a_run_with_checkpoints_keeps_the_state_of_its_primaries_twice() {
        let (path, on_failure) = ("/c".to_string(), OnFailure::Continue);
        let spec = CheckpointSpec { path, every: 5, keep: 3, keep_every: 0, on_failure };
        let mut run = RunSpec { checkpoint: None, ..exemplars::run() };
        let model = builtin::registry().plan_model(&run).expect("a gpt");
        let without = of_two(&run, &model);
        run.checkpoint = Some(spec);
        let with = of_two(&run, &model);
        let optimizer = builtin::registry().build_optimizer(&run).expect("a valid optimizer");
        let state = (optimizer.bytes_per_parameter() * model.layout.count()) as u64;
        assert_eq!(with.total(), without.total() + state.div_ceil(2));
        let waiting = |memory: &WorkerMemory| memory.passing()[1];
        assert_eq!(waiting(&with), ("while parts wait for a store", state.div_ceil(2)));
        assert_eq!(waiting(&without).1, 0);
    }

    /// A plan states the sizes of the model that would be built.
    #[test]
    fn a_plan_has_the_sizes_of_the_model_that_is_built() {
        for (kind, recompute) in [("gpt", false), ("gpt", true), ("mlp", false)] {
            let mut run = exemplars::run();
            (run.model.kind, run.model.layers) = (kind.into(), 3);
            (run.model.width, run.model.context, run.model.recompute) = (24, 12, recompute);
            let planned = builtin::registry().plan_model(&run).expect("a plan");
            let built = builtin::registry().build_model_on_host(&run).expect("a model");
            assert_eq!(planned.device_bytes, built.device_bytes(), "{kind}");
            assert_eq!((planned.sizes, &planned.layout), (built.report().sizes, built.layout()));
        }
    }

    #[test]
    fn what_passes_is_bounded_by_the_window_or_by_the_state_and_by_the_weights() {
        let mut run = exemplars::run();
        (run.copies, run.checkpoint) = (2, None);
        let passing = |width: u32| {
            let mut run = run.clone();
            (run.model.layers, run.model.width) = (2, width);
            let model = builtin::registry().plan_model(&run).expect("a gpt");
            let parameters = model.layout.count() as u64;
            let memory = of_two(&run, &model);
            (parameters, memory.passing().map(|(_, bytes)| bytes))
        };
        // With the one other worker.
        let shared = |it: u64| link_bytes(4 * reduce::shard_length(it as usize)) as u64;
        let (parameters, bytes) = passing(64);
        // Of four data shards a worker may have three in the place of two.
        assert_eq!(run.batch.data_shards, 4);
        let faster = 4 * parameters * (most_partials(4, 2) - 1);
        let expected = [12 * parameters, 0, 4 * parameters, faster, shared(parameters)];
        assert_eq!(bytes, expected, "all of it");
        let (parameters, bytes) = passing(2_048);
        assert!(12 * parameters > 512 << 20);
        let faster = 4 * parameters * (most_partials(4, 2) - 1);
        let expected = [512 << 20, 0, 4 * parameters, faster, shared(parameters)];
        assert_eq!(bytes, expected, "no more than the window");
    }

    #[test]
    fn a_worker_holds_a_partial_for_each_level_or_each_subtree() {
        assert_eq!(held(1, 1), [1]);
        assert_eq!(held(8, 1), [3]);
        assert_eq!(held(8, 2), [2, 2]);
        assert_eq!(held(8, 3), [2, 2, 1]);
        assert_eq!(held(8, 8), [1; 8]);
        assert_eq!(held(2, 3), [1, 1, 0], "a spare has none");
        assert_eq!(
            [(8, 1), (8, 2), (8, 8), (2, 3)].map(|(all, of)| most_partials(all, of)),
            [3, 3, 1, 0]
        );
    }
}
