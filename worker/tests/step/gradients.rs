//! The results that a worker keeps of a step that it does again.

use std::collections::{BTreeMap, BTreeSet};

use everstep_kernels::buffer::{Buffer, Pool, Shared};
use everstep_kernels::reduce::{Tree, TreeNode};
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{DataShard, Generation, Message, Record, Shard, Step};
use everstep_worker::step::event::{Effect, Input, Lane, Work};
use everstep_worker::step::gradients::{Gradients, Merge, MergeTarget, SubtreeKept};
use everstep_worker::step::version::Version;
use proptest::prelude::*;

use crate::solo::{Solo, TERM, next_record};

const SHARD: Shard = Shard(0);
const BASE: Version = Version { step: Step(4), generation: Generation(2) };
const STEP: Step = Step(5);

/// Values of very different sizes: every other order of addition gives other bits.
fn leaf(index: u32) -> Vec<f32> {
    (0..7).map(|at| (index as f32 * 1.7 + at as f32).sin() * 10f32.powi(index as i32 % 7)).collect()
}

fn sum(tree: Tree, node: TreeNode) -> Vec<f32> {
    let Some([left, right]) = tree.children(node) else { return leaf(node.index) };
    let (left, right) = (sum(tree, left), sum(tree, right));
    left.iter().zip(right).map(|(left, right)| left + right).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn contribution(data_shard: DataShard) -> Contribution {
    Contribution {
        data_shard,
        loss: f64::from(data_shard.0),
        weight: 1.0,
        samples: vec![],
        samples_lost: 0,
        samples_repeated: 0,
        evaluation: None,
        scalars: Vec::new(),
    }
}

/// The device does a piece of work. Returns the sums that count.
fn compute(gradients: &mut Gradients, tree: Tree, work: &Work) -> Vec<(TreeNode, Shared)> {
    let mut counted = Vec::new();
    for node in &work.subtrees {
        let values = Shared::new(Buffer::detached(sum(tree, *node)));
        if gradients.partial(STEP, SHARD, *node, &values) {
            counted.push((*node, values));
        }
    }
    for data_shard in &work.data_shards {
        gradients.computed(tree, STEP, contribution(*data_shard), 1.0);
    }
    counted
}

fn begun(leaves: &[u32], tree: Tree) -> (Gradients, Work) {
    let mut gradients = Gradients::default();
    gradients.begin(BASE);
    let work = gradients.assign(tree, &leaves.iter().copied().collect());
    (gradients, work.expect("something to do"))
}

fn missing(work: Option<Work>) -> Vec<u32> {
    work.into_iter().flat_map(|work| work.data_shards).map(|data_shard| data_shard.0).collect()
}

#[test]
fn a_redo_computes_only_what_is_missing() {
    let tree = Tree::new(8);
    let table = [
        (vec![0, 1, 2, 3], vec![0, 1, 2, 3], vec![]),
        (vec![0, 1, 2, 3], vec![0, 1, 2, 3, 4], vec![4]),
        (vec![0, 1, 2], vec![2, 3], vec![3]),
        (vec![0, 1, 2, 3], vec![0, 1], vec![0, 1]), // their sum cannot be taken apart
        (vec![6], vec![], vec![]),
    ];
    for (before, after, expected) in table {
        let (mut gradients, work) = begun(&before, tree);
        compute(&mut gradients, tree, &work);
        let again = gradients.assign(tree, &after.iter().copied().collect());
        assert_eq!(missing(again), expected, "{before:?}, then {after:?}");
        let kept: Vec<u32> = after.into_iter().filter(|it| !expected.contains(it)).collect();
        let found: Vec<u32> = gradients.contributions().keys().map(|it| it.0).collect();
        assert_eq!(found, kept);
    }
}

#[test]
fn what_is_under_way_is_not_asked_for_again() {
    let tree = Tree::new(8);
    let (mut gradients, work) = begun(&[0, 1, 2], tree);
    let more = gradients.assign(tree, &BTreeSet::from([0, 1, 2, 3])).expect("one more");
    assert_eq!(missing(Some(more.clone())), [3]);
    assert_eq!(compute(&mut gradients, tree, &work).len(), 2);
    assert_eq!(compute(&mut gradients, tree, &more).len(), 1);
    assert_eq!(gradients.contributions().len(), 4);
}

#[test]
fn what_was_given_away_while_it_was_under_way_counts_no_more() {
    let tree = Tree::new(8);
    let (mut gradients, work) = begun(&[0, 1, 2], tree);
    assert_eq!(gradients.assign(tree, &BTreeSet::from([2])), None);
    let again = gradients.assign(tree, &BTreeSet::from([0, 1, 2])).expect("given back");
    let counted = compute(&mut gradients, tree, &work);
    assert_eq!(counted.into_iter().map(|(node, _)| node).collect::<Vec<_>>(), [TreeNode::leaf(2)]);
    assert_eq!(gradients.contributions().len(), 1);
    compute(&mut gradients, tree, &again);
    assert_eq!(gradients.contributions().len(), 3);
}

/// Invariant I19.
#[test]
fn nothing_is_kept_that_was_computed_with_another_history() {
    let tree = Tree::new(8);
    let (mut gradients, work) = begun(&[0, 1], tree);
    compute(&mut gradients, tree, &work);
    gradients.begin(Version { generation: Generation(3), ..BASE });
    assert_eq!((gradients.under_way(), gradients.partials().count()), (None, 0));
    assert_eq!(missing(gradients.assign(tree, &BTreeSet::from([0, 1]))), [0, 1]);
}

#[test]
fn a_pass_that_the_device_gave_up_is_forgotten_with_its_step() {
    let tree = Tree::new(8);
    let (mut gradients, _) = begun(&[0, 1], tree);
    let next = Version { step: STEP, generation: Generation(2) };
    gradients.begin(next);
    let work = gradients.assign(tree, &BTreeSet::from([3])).expect("the next step's");
    let values = Shared::new(Buffer::detached(leaf(3)));
    assert!(gradients.partial(STEP.next(), SHARD, work.subtrees[0], &values));
    gradients.computed(tree, STEP.next(), contribution(DataShard(3)), 1.0);
    assert_eq!(gradients.contributions().len(), 1);
}

proptest! {
    /// Invariants I3 and I18: the sums that a worker sends have the bits of sums without a redo.
    #[test]
    fn any_redo_gives_the_bits_of_computing_anew(
        leaves in 1u32..24,
        sets in prop::collection::vec(prop::collection::btree_set(0u32..24, 0..24), 1..4),
        done in prop::collection::vec(any::<bool>(), 4),
    ) {
        let tree = Tree::new(leaves);
        let pool = Pool::new(1 << 16);
        let mut gradients = Gradients::default();
        gradients.begin(BASE);
        let mut given = Vec::new();
        let mut last = BTreeSet::new();
        for (set, done) in sets.iter().zip(done) {
            last = set.iter().copied().filter(|leaf| *leaf < leaves).collect();
            given.extend(gradients.assign(tree, &last));
            if done {
                for work in given.drain(..) {
                    compute(&mut gradients, tree, &work);
                }
            }
        }
        let targets = tree.subtrees(&last);
        let mut merge = Merge::default();
        let mut sent = BTreeMap::new();
        let mut add = |node: TreeNode, sum: Shared| {
            let range = tree.range(node);
            let above = targets.iter().find(|target| tree.range(**target).contains(&range.start));
            let target = *above.expect("what counts is under a target");
            let subtree = SubtreeKept { shard: SHARD, node, sum };
            if let Some(total) = merge.add(MergeTarget { tree, node: target }, subtree, &pool) {
                assert!(sent.insert(target, bits(&total)).is_none());
            }
        };
        let kept: Vec<_> = gradients.partials().map(|(_, node, sum)| (node, sum.clone())).collect();
        let before: Vec<_> = kept.iter().map(|(_, sum)| bits(sum)).collect();
        kept.iter().for_each(|(node, sum)| add(*node, sum.clone()));
        for work in &given {
            compute(&mut gradients, tree, work).into_iter().for_each(|(node, sum)| add(node, sum));
        }
        let anew = targets.iter().map(|node| (*node, bits(&sum(tree, *node))));
        let anew: BTreeMap<_, _> = anew.collect();
        prop_assert_eq!(sent, anew);
        let found: Vec<u32> = gradients.contributions().keys().map(|it| it.0).collect();
        prop_assert_eq!(found, last.into_iter().collect::<Vec<_>>());
        let after: Vec<_> = kept.iter().map(|(_, sum)| bits(sum)).collect();
        prop_assert_eq!(before, after);
    }
}

/// How many of the sums each input sends, until there is no more work.
fn portions(solo: &mut Solo) -> Vec<usize> {
    let mut portions = Vec::new();
    loop {
        let effects = solo.took();
        let is_sum =
            |effect: &&Effect| matches!(effect, Effect::Stream { lane: Lane::Partials, .. });
        portions.push(effects.iter().filter(is_sum).count());
        if !effects.iter().any(|effect| matches!(effect, Effect::Yield)) {
            return portions;
        }
        solo.give(Input::Yielded);
    }
}

/// The generation after the one that the member is in begins.
fn next_generation(solo: &mut Solo, record: Record) {
    solo.hear(Message::Pause { term: TERM, number: record.number });
    solo.took();
    solo.hear(Message::Announce(record));
}

/// A plan of two subtrees and three shards. This member is primary of one shard.
#[test]
fn what_was_kept_goes_out_in_portions_and_once() {
    for (bytes, expected) in [(1, vec![1, 1, 0, 0, 1, 1]), (usize::MAX, vec![4])] {
        let mut solo = Solo::member_merging(1, bytes);
        solo.sum_up(1);
        next_generation(&mut solo, next_record(None));
        assert_eq!(portions(&mut solo), expected);
        solo.give(Input::Yielded);
        assert_eq!(portions(&mut solo), [0], "there is no more");
    }
}

#[test]
fn i7_what_was_put_off_is_void_once_another_generation_is_promised() {
    let mut solo = Solo::member_merging(1, 1);
    solo.sum_up(1);
    let next = next_record(None);
    next_generation(&mut solo, next.clone());
    let again = Record { number: next.number.next(), predecessor: next.number, ..next };
    solo.hear(Message::Pause { term: TERM, number: again.number });
    solo.took();
    solo.give(Input::Yielded);
    assert_eq!(portions(&mut solo), [0]);
    solo.hear(Message::Announce(again));
    assert_eq!(portions(&mut solo), [1, 1, 0, 0, 1, 1], "it was kept all the same");
}
