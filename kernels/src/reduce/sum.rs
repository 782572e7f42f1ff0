//! The sum of one parameter shard's partials, in whatever order they arrive.
//!
//! A partial is the sum of a subtree of the [`Tree`]. It waits until its sibling is there. Then the
//! two are added, left plus right, and their parent takes their place. So every addition of the
//! tree is made once, between the same two values, and the bits of the root depend on nothing else.
//!
//! A sum does not know the sender of a partial, nor the time of its arrival.

use std::collections::BTreeMap;
use std::ops::Deref;

use multiversion::multiversion;

use super::nan::canonical;
use super::tree::{Tree, TreeNode};
use crate::buffer::{Buffer, Pool, Shared};

/// The partials of one parameter shard that have arrived, added up as far as they can be.
#[derive(Debug)]
pub struct Sum {
    tree: Tree,
    /// The node that the sum is for.
    target: TreeNode,
    length: usize,
    pool: Pool,
    /// By first leaf. Together they cover exactly the leaves that have arrived.
    waiting: BTreeMap<u32, (TreeNode, Addend)>,
    /// The sum has handed out the target's value: nothing is missing, and nothing waits.
    complete: bool,
}

/// A value to add to the sum.
#[derive(Debug)]
pub enum Addend {
    /// A partial that other holders keep for a redo of the step. Never written.
    Kept(Shared),
    /// The sum's own memory, which it may add into.
    Owned(Buffer),
}

/// Why a partial was not added. The sum is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The node is no canonical node of the tree.
    #[error("{0:?} is not in the tree")]
    Outside(TreeNode),
    /// A leaf under the node has been added already.
    #[error("a part of {0:?} has been added already")]
    Repeated(TreeNode),
    /// The partial is not as long as the parameter shard.
    #[error("a partial has {actual} elements, the parameter shard {expected}")]
    Length {
        /// The parameter shard's length, elements.
        expected: usize,
        /// The partial's length, elements.
        actual: usize,
    },
}

impl Sum {
    /// The sum of `length` elements over all leaves of `tree`. For the sum of two kept values, the
    /// memory comes from `pool`.
    pub fn new(tree: Tree, length: usize, pool: Pool) -> Self {
        Self::of(tree.root(), tree, length, pool)
    }

    /// The sum over the leaves under `target`, a canonical node of `tree`.
    pub fn of(target: TreeNode, tree: Tree, length: usize, pool: Pool) -> Self {
        Self { tree, target, length, pool, waiting: BTreeMap::new(), complete: false }
    }

    /// Adds the sum of the leaves under `node`. Returns the target's once no leaf is missing.
    ///
    /// Each leaf is added exactly once (invariant I18): a partial that would repeat one is an
    /// error.
    pub fn insert(&mut self, node: TreeNode, partial: Addend) -> Result<Option<Addend>, AddError> {
        self.check(node, &partial)?;
        let (mut node, mut addend) = (node, partial);
        while node != self.target {
            let parent = self.tree.parent(node).expect("only the root has none");
            let sibling = self.tree.sibling(node).expect("only the root has none");
            let Some(other) = self.take_waiting(sibling) else {
                self.waiting.insert(self.tree.range(node).start, (node, addend));
                return Ok(None);
            };
            let [left, _] = self.tree.children(parent).expect("a parent has children");
            let (left, right) = if node == left { (addend, other) } else { (other, addend) };
            addend = Addend::Owned(add(left, right, &self.pool));
            node = parent;
        }
        self.complete = true;
        Ok(Some(addend))
    }

    fn check(&self, node: TreeNode, partial: &[f32]) -> Result<(), AddError> {
        let (range, whole) = (self.tree.range(node), self.tree.range(self.target));
        let inside = whole.start <= range.start && range.end <= whole.end;
        if self.tree.canonical(node) != Some(node) || !inside {
            return Err(AddError::Outside(node));
        }
        if partial.len() != self.length {
            return Err(AddError::Length { expected: self.length, actual: partial.len() });
        }
        // The waiting partials are disjoint. If any of them reaches into the range, the last one
        // that begins before the range's end does.
        let last = self.waiting.range(..range.end).next_back();
        let reached = last.is_some_and(|(_, (below, _))| self.tree.range(*below).end > range.start);
        if self.complete || reached { Err(AddError::Repeated(node)) } else { Ok(()) }
    }

    fn take_waiting(&mut self, node: TreeNode) -> Option<Addend> {
        let first = self.tree.range(node).start;
        if self.waiting.get(&first)?.0 != node {
            return None;
        }
        self.waiting.remove(&first).map(|(_, addend)| addend)
    }
}

impl Addend {
    /// The value in a form that several holders can share.
    pub fn into_shared(self) -> Shared {
        match self {
            Self::Kept(shared) => shared,
            Self::Owned(buffer) => Shared::new(buffer),
        }
    }
}

impl Deref for Addend {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Kept(shared) => shared,
            Self::Owned(buffer) => buffer,
        }
    }
}

/// Left plus right, element by element, in the memory of an owned operand if there is one.
#[multiversion(targets = "simd")]
fn add(left: Addend, right: Addend, pool: &Pool) -> Buffer {
    match (left, right) {
        // Addition commutes to the bit. Only the grouping matters.
        (Addend::Owned(mut sum), other) | (other, Addend::Owned(mut sum)) => {
            for (sum, other) in sum.iter_mut().zip(other.iter()) {
                *sum = canonical(*sum + other);
            }
            sum
        }
        (left, right) => {
            let mut sum = pool.take(left.len());
            for ((sum, left), right) in sum.iter_mut().zip(left.iter()).zip(right.iter()) {
                *sum = canonical(left + right);
            }
            sum
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::random::Philox;
    use proptest::prelude::*;

    /// Whole vectors of every kind of processor, and a rest.
    const LENGTH: usize = 37;

    /// Values of very different sizes: every other order of addition gives other bits.
    fn leaf(index: u32) -> Vec<f32> {
        let stream = Philox::new(u64::from(index), Philox::INITIAL_VALUES, 0);
        (0..LENGTH as u64).map(|at| stream.normal(at) * 10f32.powi((at % 4) as i32)).collect()
    }

    /// The definition: a node is its left child plus its right child.
    fn plain(tree: Tree, node: TreeNode) -> Vec<f32> {
        match tree.children(node) {
            None => leaf(node.index),
            Some(children) => {
                let [left, right] = children.map(|child| plain(tree, child));
                left.iter().zip(right).map(|(left, right)| left + right).collect()
            }
        }
    }

    fn owned(values: Vec<f32>) -> Addend {
        Addend::Owned(Buffer::detached(values))
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    fn sum(leaves: u32) -> Sum {
        Sum::new(Tree::new(leaves), LENGTH, Pool::new(1 << 16))
    }

    proptest! {
        /// Invariant I3 for sums: neither the holders of the leaves nor the order of arrival
        /// matter.
        #[test]
        fn any_partition_in_any_order_gives_the_bits_of_the_plain_recursion(
            holders in prop::collection::vec(0usize..5, 1..40),
            keys in prop::collection::vec(any::<u32>(), 40),
        ) {
            let leaves = holders.len() as u32;
            let tree = Tree::new(leaves);
            let mut arrivals = Vec::new();
            for holder in 0..5 {
                let has = |leaf: &u32| holders[*leaf as usize] == holder;
                arrivals.extend(tree.subtrees(&(0..leaves).filter(has).collect::<BTreeSet<_>>()));
            }
            arrivals.sort_by_key(|node| keys[tree.range(*node).start as usize]);

            let mut sum = sum(leaves);
            let mut root = None;
            let mut kept = Vec::new();
            for node in arrivals {
                prop_assert!(root.is_none());
                let value = plain(tree, node);
                let addend = if keys[node.index as usize].is_multiple_of(2) {
                    let shared = Shared::new(Buffer::detached(value.clone()));
                    kept.push((Shared::clone(&shared), value));
                    Addend::Kept(shared)
                } else {
                    owned(value)
                };
                root = sum.insert(node, addend).expect("each leaf comes once");
            }
            let root = root.expect("all leaves have come");
            prop_assert_eq!(bits(&root), bits(&plain(tree, tree.root())));
            for (shared, value) in kept {
                prop_assert_eq!(bits(&shared), bits(&value));
            }
        }
    }
    /// Invariant I18.
    #[test]
    fn what_would_be_added_twice_is_refused_and_changes_nothing() {
        let tree = Tree::new(5);
        let (pair, quad) = (TreeNode { level: 1, index: 0 }, TreeNode { level: 2, index: 0 });
        let mut sum = sum(5);
        let mut insert = |node| {
            let added = sum.insert(node, owned(plain(tree, tree.canonical(node).unwrap_or(node))));
            added.map(|root| root.map(|root| bits(&root)))
        };
        assert_eq!(insert(TreeNode::leaf(1)), Ok(None));
        for node in [TreeNode::leaf(1), pair, quad, tree.root()] {
            assert_eq!(insert(node), Err(AddError::Repeated(node)));
        }
        assert_eq!(insert(TreeNode::leaf(0)), Ok(None));
        assert_eq!(insert(TreeNode::leaf(0)), Err(AddError::Repeated(TreeNode::leaf(0))));
        assert_eq!(insert(TreeNode::leaf(4)), Ok(None));
        assert_eq!(insert(tree.root()), Err(AddError::Repeated(tree.root())));
        let root = insert(TreeNode { level: 1, index: 1 });
        assert_eq!(root, Ok(Some(bits(&plain(tree, tree.root())))));
        for node in [TreeNode::leaf(4), tree.root()] {
            assert_eq!(insert(node), Err(AddError::Repeated(node)));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let mut sum = sum(5);
        for node in
            [TreeNode::leaf(5), TreeNode { level: 1, index: 2 }, TreeNode { level: !0, index: !0 }]
        {
            let refused = sum.insert(node, owned(vec![0.0; LENGTH])).map(drop);
            assert_eq!(refused, Err(AddError::Outside(node)));
        }
        let refused = sum.insert(TreeNode::leaf(0), owned(vec![0.0; 4])).map(drop);
        assert_eq!(refused, Err(AddError::Length { expected: LENGTH, actual: 4 }));
        assert_eq!(
            sum.insert(TreeNode::leaf(0), owned(leaf(0))).map(|root| root.is_some()),
            Ok(false)
        );
    }

    #[test]
    fn a_partial_of_all_leaves_is_the_root_as_it_is() {
        let shared = Shared::new(Buffer::detached(leaf(0)));
        let root = sum(5).insert(Tree::new(5).root(), Addend::Kept(Shared::clone(&shared)));
        let root = root.expect("it fits").expect("nothing is missing").into_shared();
        assert!(Shared::ptr_eq(&root, &shared));
    }
}
