//! Adds the gradients of a worker's data shards up to the subtrees that it sends.
//!
//! Input: gradient ranges of one data shard after the other, in the order in which the backward
//! pass finishes them. Output: for each parameter shard, each subtree's sum as soon as it is final.
//! The sums follow the same tree as all others, so they have the bits that the owner would get from
//! the leaves.
//!
//! A model announces values multiplied by the loss scale. From here on values are unscaled. The
//! scale is a power of two, so dividing by it changes no bits except below f32's normal numbers,
//! 1.2e-38. Values that are not finite stay so.

use std::collections::BTreeMap;
use std::ops::Range;

use everstep_kernels::buffer::{Buffer, Pool, Shared};
use everstep_kernels::reduce::{self, Addend, Sum, Tree, TreeNode};
use everstep_kernels::threads::Threads;
use everstep_transport::protocol::{DataShard, LossScale, Shard};

/// A subtree's sum for one parameter shard.
#[derive(Clone, Debug)]
pub struct SubtreeSum {
    /// The parameter shard that the sum covers.
    pub shard: Shard,
    /// The subtree of data shards that the sum covers.
    pub node: TreeNode,
    /// Its sum. No thread writes it again.
    pub sum: Shared,
}

/// One parameter shard of the data shard under way.
#[derive(Debug)]
struct Leaf {
    values: Buffer,
    /// The ranges that the model has announced: the end of each range, by its start.
    announced: BTreeMap<usize, usize>,
    missing: usize,
}

impl Leaf {
    /// Notes a range that lies within the shard. Returns whether it is new.
    fn announce(&mut self, range: Range<usize>) -> bool {
        let before = self.announced.range(..range.end).next_back();
        let is_new = before.is_none_or(|(_, end)| *end <= range.start);
        if is_new {
            self.missing -= range.len();
            self.announced.insert(range.start, range.end);
        }
        is_new
    }
}

/// A model announced a part of a gradient twice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model announced the gradient of parameters {} to {} in a range that it had announced \
     before: a last pass must announce every range once",
    .0.start,
    .0.end - 1
)]
pub struct RepeatedRange(pub Range<usize>);

/// The sums under way.
#[derive(Debug)]
pub struct Accumulator {
    parameters: usize,
    pool: Pool,
    /// The threads that copy what the model announces.
    threads: Threads,
    tree: Tree,
    subtrees: Vec<TreeNode>,
    scale: LossScale,
    data_shard: DataShard,
    /// Elements of its gradient that the model has announced.
    announced: usize,
    leaves: BTreeMap<Shard, Leaf>,
    sums: BTreeMap<(TreeNode, Shard), Sum>,
}

impl Accumulator {
    /// An accumulator for a vector of `parameters`, without subtrees yet.
    pub fn new(parameters: usize, pool: Pool, threads: Threads) -> Self {
        Self {
            parameters,
            pool,
            threads,
            tree: Tree::new(1),
            subtrees: Vec::new(),
            scale: LossScale::default(),
            data_shard: DataShard(0),
            announced: 0,
            leaves: BTreeMap::new(),
            sums: BTreeMap::new(),
        }
    }

    /// Begins with these subtrees of the tree over `data_shards`, for gradients with this scale.
    /// Forgets the sums under way.
    pub fn plan(&mut self, data_shards: u32, subtrees: Vec<TreeNode>, scale: LossScale) {
        self.tree = Tree::new(data_shards);
        self.subtrees = subtrees;
        self.scale = scale;
        self.leaves.clear();
        self.sums.clear();
    }

    /// The ranges that follow belong to `data_shard`.
    pub fn begin(&mut self, data_shard: DataShard) {
        assert!(self.leaves.is_empty(), "the data shard before has announced every range");
        self.data_shard = data_shard;
        self.announced = 0;
    }

    /// A parameter shard that lacks a range, once the data shard's last pass is done.
    pub fn unannounced(&self) -> Option<Shard> {
        let partly = self.leaves.keys().next().copied();
        let wholly = (self.announced < self.parameters).then_some(Shard(0));
        partly.or(wholly)
    }

    /// Takes a range of the gradient. Returns the sums that this range makes final.
    ///
    /// # Errors
    /// If a part of the range has come before. The caller may then add nothing more to this data
    /// shard.
    pub fn add(
        &mut self,
        range: Range<usize>,
        gradient: &[f32],
    ) -> Result<Vec<SubtreeSum>, RepeatedRange> {
        self.announced += range.len();
        if self.announced > self.parameters {
            return Err(RepeatedRange(range));
        }
        let length = reduce::shard_length(self.parameters);
        let mut subtree_sums = Vec::new();
        let mut start = range.start;
        while start < range.end {
            let shard = Shard((start / length) as u32);
            let whole = reduce::shard_range(self.parameters, shard.0 as usize);
            let end = whole.end.min(range.end);
            let values = &gradient[start - range.start..end - range.start];
            subtree_sums.extend(self.add_part(shard, start - whole.start, values)?);
            start = end;
        }
        Ok(subtree_sums)
    }

    fn add_part(
        &mut self,
        shard: Shard,
        offset: usize,
        values: &[f32],
    ) -> Result<Option<SubtreeSum>, RepeatedRange> {
        let whole = reduce::shard_range(self.parameters, shard.0 as usize);
        let length = whole.len();
        let pool = &self.pool;
        let leaf = self.leaves.entry(shard).or_insert_with(|| Leaf {
            values: pool.take(length),
            announced: BTreeMap::new(),
            missing: length,
        });
        if !leaf.announce(offset..offset + values.len()) {
            let start = whole.start + offset;
            return Err(RepeatedRange(start..start + values.len()));
        }
        let written = &mut leaf.values[offset..offset + values.len()];
        self.threads.map(values, written, |scaled, values| unscale(values, scaled, self.scale));
        if leaf.missing > 0 {
            return Ok(None);
        }
        let whole = self.leaves.remove(&shard);
        Ok(whole.and_then(|leaf| self.add_leaf(shard, leaf.values)))
    }

    fn add_leaf(&mut self, shard: Shard, values: Buffer) -> Option<SubtreeSum> {
        let leaf = self.data_shard.0;
        let tree = self.tree;
        let node = *self.subtrees.iter().find(|node| tree.range(**node).contains(&leaf))?;
        let pool = self.pool.clone();
        let length = values.len();
        let sum =
            self.sums.entry((node, shard)).or_insert_with(|| Sum::of(node, tree, length, pool));
        let total = sum
            .insert(TreeNode::leaf(leaf), Addend::Owned(values))
            .expect("a data shard of the plan is computed once a step")?;
        self.sums.remove(&(node, shard));
        Some(SubtreeSum { shard, node, sum: total.into_shared() })
    }
}

/// Writes the `scaled` values without the scale.
fn unscale(values: &mut [f32], scaled: &[f32], scale: LossScale) {
    match scale.factor() {
        1 => values.copy_from_slice(scaled),
        factor => {
            let inverse = 1.0 / factor as f32;
            for (value, scaled) in values.iter_mut().zip(scaled) {
                *value = scaled * inverse;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PARAMETERS: usize = 2_500;

    fn gradient(leaf: u32) -> Vec<f32> {
        (0..PARAMETERS).map(|i| ((i as f32) * 0.37 + leaf as f32 * 1.71).sin()).collect()
    }

    /// The sum of `node`, by the definition.
    fn reference(tree: Tree, node: TreeNode) -> Vec<f32> {
        match tree.children(node) {
            None => gradient(node.index),
            Some([left, right]) => {
                let (left, right) = (reference(tree, left), reference(tree, right));
                left.iter().zip(right).map(|(a, b)| a + b).collect()
            }
        }
    }

    #[test]
    fn a_range_that_is_never_announced_is_noticed() {
        let mut accumulator = Accumulator::new(PARAMETERS, Pool::new(1 << 20), Threads::new(2));
        accumulator.plan(1, vec![TreeNode::leaf(0)], LossScale::default());
        accumulator.begin(DataShard(0));
        let values = gradient(0);
        accumulator.add(1_024..PARAMETERS, &values[1_024..]).expect("it is new");
        assert_eq!(accumulator.unannounced(), Some(Shard(0)));
        accumulator.add(0..1_024, &values[..1_024]).expect("it is new");
        assert_eq!(accumulator.unannounced(), None);
    }

    /// As many elements as there are, but some of them come twice and others never.
    #[test]
    fn a_range_that_is_announced_twice_is_refused() {
        for again in [0..10, 5..15, 0..1, 9..11] {
            let mut accumulator = Accumulator::new(PARAMETERS, Pool::new(1 << 20), Threads::new(2));
            accumulator.plan(1, vec![TreeNode::leaf(0)], LossScale::default());
            accumulator.begin(DataShard(0));
            let values = gradient(0);
            accumulator.add(0..10, &values[..10]).expect("it is new");
            accumulator.add(20..PARAMETERS, &values[20..]).expect("it is new");
            let refused = accumulator.add(again.clone(), &values[again.clone()]);
            assert_eq!(refused.err(), Some(RepeatedRange(again)));
        }
        let mut accumulator = Accumulator::new(PARAMETERS, Pool::new(1 << 20), Threads::new(2));
        accumulator.plan(1, vec![TreeNode::leaf(0)], LossScale::default());
        accumulator.begin(DataShard(0));
        accumulator.add(0..PARAMETERS, &gradient(0)).expect("it is new");
        let refused = accumulator.add(0..1, &[0.0]);
        assert_eq!(refused.err(), Some(RepeatedRange(0..1)), "the whole shard has gone");
    }

    #[test]
    fn dividing_by_a_scale_gives_the_bits_that_there_were() {
        let numbers = [f32::MIN_POSITIVE, 1e-30, 0.1, -3.7, 1e30, f32::INFINITY, -0.0];
        for exponent in 0..=LossScale::MAX_EXPONENT {
            let scale = LossScale { exponent, good: 0 };
            let scaled = numbers.map(|number| number * scale.factor() as f32);
            let mut found = [f32::NAN; 7];
            unscale(&mut found, &scaled, scale);
            assert_eq!(found.map(f32::to_bits), numbers.map(f32::to_bits), "{scale:?}");
            unscale(&mut found, &[f32::NAN; 7], scale);
            assert!(found.iter().all(|number| number.is_nan()));
        }
    }

    #[test]
    fn subtrees_are_final_when_their_last_range_is() {
        let tree = Tree::new(6);
        let scale = LossScale { exponent: 9, good: 0 };
        let mine = BTreeSet::from([1, 2, 3, 4, 5]);
        let subtrees = tree.subtrees(&mine);
        let mut accumulator = Accumulator::new(PARAMETERS, Pool::new(1 << 20), Threads::new(2));
        accumulator.plan(6, subtrees.clone(), scale);
        let mut found = BTreeMap::new();
        for leaf in &mine {
            accumulator.begin(DataShard(*leaf));
            let scaled = |value: f32| value * scale.factor() as f32;
            let values: Vec<f32> = gradient(*leaf).into_iter().map(scaled).collect();
            for range in [1_500..PARAMETERS, 0..700, 700..1_500] {
                for part in accumulator.add(range.clone(), &values[range]).expect("it is new") {
                    let repeated = found.insert((part.node, part.shard), part.sum.to_vec());
                    assert!(repeated.is_none(), "a part is final once");
                }
            }
        }
        for node in subtrees {
            let parts = (0..reduce::shard_count(PARAMETERS) as u32).map(Shard);
            let whole: Vec<f32> = parts.flat_map(|shard| found[&(node, shard)].clone()).collect();
            assert_eq!(whole, reference(tree, node));
        }
    }
}
