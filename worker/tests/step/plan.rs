//! The senders and receivers of a plan.

use everstep_kernels::reduce::TreeNode;
use everstep_transport::protocol::{DataShard, Rank, Shard, WorkerId};
use everstep_worker::step::plan::{MemberPlan, PlanError};

use crate::support::{DATA_SHARDS, MEMBERS, PARAMETERS, STRANGER, plan_of, record, record_of};

/// All `(from, to, shard)` that the receiver's plan accepts. The test also tries strangers, and
/// shards that do not exist.
fn accepted_by_plans(
    accepts: impl Fn(&MemberPlan, WorkerId, Shard) -> bool,
) -> Vec<(WorkerId, WorkerId, Shard)> {
    let mut found = Vec::new();
    for to in MEMBERS {
        let plan = plan_of(to);
        for from in MEMBERS.into_iter().chain([STRANGER]) {
            for shard in (0..5).chain([u32::MAX]).map(Shard) {
                if accepts(&plan, from, shard) {
                    found.push((from, to, shard));
                }
            }
        }
    }
    found
}

#[test]
fn a_member_sends_the_greatest_subtrees_of_its_data_shards() {
    // The tree over the eight data shards, and the rank of the member that computes each:
    //
    //   level 3             0
    //   level 2       0           1
    //   level 1    0     1     2     3
    //   level 0   0 1   2 3   4 5   6 7
    //   rank      0 0   0 1   1 1   2 2
    let node = |level, index| TreeNode { level, index };
    let table = [vec![node(1, 0), node(0, 2)], vec![node(0, 3), node(1, 2)], vec![node(1, 3)]];
    for (worker, mut expected) in MEMBERS.into_iter().zip(table) {
        let mut found: Vec<TreeNode> = plan_of(worker).subtrees().collect();
        expected.sort();
        found.sort();
        assert_eq!(found, expected);
    }
}

#[test]
fn the_primary_expects_each_others_subtrees_and_nothing_else() {
    for (to, worker) in MEMBERS.into_iter().enumerate() {
        let plan = plan_of(worker);
        for from in MEMBERS.into_iter().chain([STRANGER]) {
            let sent: Vec<TreeNode> = if MEMBERS.contains(&from) && from != worker {
                plan_of(from).subtrees().collect()
            } else {
                Vec::new()
            };
            for shard in (0..5).map(Shard) {
                for (level, index) in (0..5).flat_map(|level| (0..9).map(move |at| (level, at))) {
                    let node = TreeNode { level, index };
                    let expected = shard.0 == to as u32 && sent.contains(&node);
                    let found = plan.expects_partial(from, shard, node);
                    assert_eq!(found, expected, "{from} to {worker}: {shard}, {node:?}");
                }
            }
        }
    }
}

#[test]
fn backups_expect_the_reduced_shard_of_their_primary() {
    let [a, b, c] = MEMBERS;
    let found = accepted_by_plans(|plan, from, shard| plan.expects_reduced(from, shard));
    assert_eq!(found, [(c, a, Shard(2)), (a, b, Shard(0)), (b, c, Shard(1))]);
}

#[test]
fn non_owners_expect_parameters_from_the_primary() {
    let [a, b, c] = MEMBERS;
    let found = accepted_by_plans(|plan, from, shard| plan.expects_parameters(from, shard));
    assert_eq!(found, [(b, a, Shard(1)), (c, b, Shard(2)), (a, c, Shard(0))]);
    for (worker, receiver, shard) in [(a, c, Shard(0)), (b, a, Shard(1)), (c, b, Shard(2))] {
        assert_eq!(plan_of(worker).gatherers(shard).collect::<Vec<_>>(), [receiver]);
    }
}

#[test]
fn a_primary_sends_parameters_to_non_owners_in_rank_order_after_its_own_rank() {
    let record = record_of(&[&[0], &[1], &[2], &[3]], &[&[0], &[1], &[2, 0]]);
    let table = [(0, 0, vec![12, 13, 14]), (1, 1, vec![13, 14, 11]), (2, 2, vec![14, 12])];
    for (rank, shard, receivers) in table {
        let worker = record.member(Rank(rank)).worker;
        let plan = MemberPlan::new(record.clone(), worker, PARAMETERS, 4).expect("a member");
        let found: Vec<u64> = plan.gatherers(Shard(shard)).map(|worker| worker.0).collect();
        assert_eq!(found, receivers);
    }
}

#[test]
fn a_plan_tells_what_its_member_is() {
    let plan = plan_of(MEMBERS[1]);
    assert_eq!((plan.worker(), plan.rank(), plan.is_step_leader()), (MEMBERS[1], Rank(1), false));
    assert_eq!(plan.data_shards(), [3, 4, 5].map(DataShard));
    let owned: Vec<_> = plan.owned().iter().map(|(shard, primary)| (shard.0, *primary)).collect();
    assert_eq!(owned, [(0, false), (1, true)]);
    assert_eq!((0..3).map(|shard| plan.length(Shard(shard))).sum::<usize>(), PARAMETERS);
    assert_eq!(plan.others().collect::<Vec<_>>(), [MEMBERS[0], MEMBERS[2]]);
    assert_eq!(plan.backups(Shard(0)).collect::<Vec<_>>(), [MEMBERS[1]]);
    assert!(plan_of(MEMBERS[0]).is_step_leader());
}

#[test]
fn a_stranger_and_a_record_of_other_sizes_are_refused() {
    let stranger = MemberPlan::new(record(), STRANGER, PARAMETERS, DATA_SHARDS);
    assert!(matches!(stranger, Err(PlanError::NotMember { worker: STRANGER, .. })));
    for (parameters, data_shards) in [(PARAMETERS + 1_000, DATA_SHARDS), (PARAMETERS, 9)] {
        let plan = MemberPlan::new(record(), MEMBERS[0], parameters, data_shards);
        assert!(matches!(plan, Err(PlanError::Record(_))));
    }
}
