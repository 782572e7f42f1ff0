//! The fixed binary tree over the data shards, along which their gradients are added.
//!
//! Its leaves are the data shards `0..leaves`. Node `index` of `level` covers the leaves from
//! `index << level` up to `(index + 1) << level`, as far as there are any:
//!
//! ```text
//! level 3          0              five leaves
//! level 2     0        (1)
//! level 1   0   1      (2)
//! level 0  0 1 2 3      4
//! ```
//!
//! A node with an empty right child, in brackets, has the value of its left child. So that every
//! value has one name, only the lowest of such nodes is *canonical*, and the tree consists of
//! canonical nodes alone: above, the children of the root are (2, 0) and leaf 4.
//!
//! The tree knows no values and no workers.

use std::collections::BTreeSet;
use std::ops::Range;

/// A node of a [`Tree`], by its name. Not every name is a node of every tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeNode {
    /// The height above the leaves, which have level 0.
    pub level: u32,
    /// The position within its level, from the left.
    pub index: u32,
}

impl TreeNode {
    /// The leaf of data shard `index`.
    pub fn leaf(index: u32) -> Self {
        Self { level: 0, index }
    }
}

/// The tree over `0..leaves`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    leaves: u32,
}

impl Tree {
    /// The tree over `leaves` data shards, at least one.
    pub fn new(leaves: u32) -> Self {
        assert!(leaves > 0, "a tree has a leaf");
        Self { leaves }
    }

    /// The number of leaves.
    pub fn leaves(self) -> u32 {
        self.leaves
    }

    /// The canonical node over all leaves.
    pub fn root(self) -> TreeNode {
        TreeNode { level: u32::BITS - (self.leaves - 1).leading_zeros(), index: 0 }
    }

    /// The leaves under `node`. Empty if it is no node of this tree.
    pub fn range(self, node: TreeNode) -> Range<u32> {
        if node.level > self.root().level {
            return 0..0;
        }
        let edge = |index: u64| (index << node.level).min(u64::from(self.leaves)) as u32;
        edge(u64::from(node.index))..edge(u64::from(node.index) + 1)
    }

    /// The lowest node over the same leaves, the one name of their sum. `None` if `node` is no node
    /// of this tree.
    pub fn canonical(self, node: TreeNode) -> Option<TreeNode> {
        let range = self.range(node);
        let last = (range.end - range.start).checked_sub(1)?;
        let level = u32::BITS - last.leading_zeros();
        Some(TreeNode { level, index: (u64::from(range.start) >> level) as u32 })
    }

    /// The canonical nodes that are added to make `node`, left and right. `None` for a leaf, and
    /// for a name that is no canonical node of this tree.
    pub fn children(self, node: TreeNode) -> Option<[TreeNode; 2]> {
        if node.level == 0 || self.canonical(node) != Some(node) {
            return None;
        }
        let child = |index| self.canonical(TreeNode { level: node.level - 1, index });
        Some([child(2 * node.index)?, child(2 * node.index + 1)?])
    }

    /// The canonical node that `node` is added into. `None` for the root, and for a name that is no
    /// node of this tree.
    pub fn parent(self, node: TreeNode) -> Option<TreeNode> {
        let mut above = self.canonical(node)?;
        let node = above;
        while above != self.root() {
            above = TreeNode { level: above.level + 1, index: above.index / 2 };
            if self.canonical(above) != Some(node) {
                return self.canonical(above);
            }
        }
        None
    }

    /// The canonical node that `node` is added to. `None` for the root, and for a name that is no
    /// node of this tree.
    pub fn sibling(self, node: TreeNode) -> Option<TreeNode> {
        let node = self.canonical(node)?;
        let [left, right] = self.children(self.parent(node)?)?;
        Some(if node == left { right } else { left })
    }

    /// The greatest subtrees that lie wholly inside `leaves`: canonical, disjoint, from left to
    /// right. A worker that computed `leaves` has to send no more than their sums.
    pub fn subtrees(self, leaves: &BTreeSet<u32>) -> Vec<TreeNode> {
        let mut found = Vec::new();
        self.collect_subtrees(self.root(), leaves, &mut found);
        found
    }

    fn collect_subtrees(self, node: TreeNode, leaves: &BTreeSet<u32>, found: &mut Vec<TreeNode>) {
        let range = self.range(node);
        let inside = leaves.range(range.clone()).count();
        if inside == range.len() {
            found.push(node);
        } else if inside > 0 {
            for child in self.children(node).into_iter().flatten() {
                self.collect_subtrees(child, leaves, found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node(level: u32, index: u32) -> TreeNode {
        TreeNode { level, index }
    }

    #[test]
    fn the_tree_of_five_leaves_is_that_of_the_picture() {
        let tree = Tree::new(5);
        assert_eq!(tree.root(), node(3, 0));
        assert_eq!(tree.children(node(3, 0)), Some([node(2, 0), TreeNode::leaf(4)]));
        for name in [node(0, 4), node(1, 2), node(2, 1)] {
            assert_eq!(tree.canonical(name), Some(TreeNode::leaf(4)));
            assert_eq!(tree.parent(name), Some(node(3, 0)));
            assert_eq!(tree.sibling(name), Some(node(2, 0)));
        }
        assert_eq!(tree.sibling(node(1, 0)), Some(node(1, 1)));
        assert_eq!(tree.children(node(2, 1)), None);
    }

    #[test]
    fn the_tree_of_one_leaf_is_that_leaf() {
        let tree = Tree::new(1);
        assert_eq!(tree.root(), TreeNode::leaf(0));
        assert_eq!((tree.parent(tree.root()), tree.sibling(tree.root())), (None, None));
    }

    #[test]
    fn names_from_outside_the_tree_are_no_nodes() {
        for leaves in [1, 5, 8, u32::MAX] {
            let tree = Tree::new(leaves);
            let level = tree.root().level;
            for name in [node(0, leaves), node(level, 1), node(level + 1, 0), node(!0, !0)] {
                assert!(tree.range(name).is_empty());
                assert_eq!(tree.canonical(name), None);
                assert_eq!(tree.parent(name), None);
                assert_eq!(tree.sibling(name), None);
                assert_eq!(tree.children(name), None);
            }
        }
        assert_eq!(Tree::new(u32::MAX).root(), node(32, 0));
    }

    #[test]
    fn subtrees_by_table() {
        let table = [
            (8, vec![0, 1, 2, 3], vec![node(2, 0)]),
            (8, vec![0, 1, 2], vec![node(1, 0), node(0, 2)]),
            (8, vec![1, 2], vec![node(0, 1), node(0, 2)]),
            (8, (0..8).collect(), vec![node(3, 0)]),
            (5, vec![2, 3, 4], vec![node(1, 1), node(0, 4)]),
            (6, vec![4, 5], vec![node(1, 2)]),
            (6, vec![], vec![]),
        ];
        for (leaves, set, expected) in table {
            assert_eq!(Tree::new(leaves).subtrees(&set.into_iter().collect()), expected);
        }
    }

    proptest! {
        #[test]
        fn children_cover_their_parent_and_know_it(leaves in 1u32..200) {
            let tree = Tree::new(leaves);
            let mut open = vec![tree.root()];
            let mut nodes = 0;
            while let Some(above) = open.pop() {
                nodes += 1;
                prop_assert_eq!(tree.canonical(above), Some(above));
                let Some([left, right]) = tree.children(above) else { continue };
                let range = tree.range(above);
                prop_assert_eq!(tree.range(left).start, range.start);
                prop_assert_eq!(tree.range(left).end, tree.range(right).start);
                prop_assert_eq!(tree.range(right).end, range.end);
                for (child, other) in [(left, right), (right, left)] {
                    prop_assert_eq!(tree.parent(child), Some(above));
                    prop_assert_eq!(tree.sibling(child), Some(other));
                    open.push(child);
                }
            }
            prop_assert_eq!(nodes, 2 * leaves - 1);
        }

        #[test]
        fn subtrees_cover_exactly_the_set_and_are_maximal(
            leaves in 1u32..100,
            set in prop::collection::btree_set(0u32..100, 0..100),
        ) {
            let tree = Tree::new(leaves);
            let subtrees = tree.subtrees(&set);
            let covered: Vec<u32> = subtrees.iter().flat_map(|&node| tree.range(node)).collect();
            let expected: Vec<u32> = set.iter().copied().filter(|&leaf| leaf < leaves).collect();
            prop_assert_eq!(covered, expected);
            for node in subtrees {
                let above = tree.parent(node).map(|parent| tree.range(parent));
                prop_assert!(above.is_none_or(|mut range| range.any(|leaf| !set.contains(&leaf))));
            }
        }
    }
}
