//! Which votes count, and what the votes add up to.

use everstep_transport::protocol::outcome::PartEvaluation;
use everstep_transport::protocol::{DataShard, Generation, Prepared, Shard, Step};
use everstep_worker::step::vote_tally::{DigestMismatch, StepTotals, VoteError, VoteTally};

use crate::support::{MEMBERS, STRANGER, plan_of, vote_of};

const STEP: Step = Step(6);

/// Votes of these ranks, in this order, each changed by `change`.
fn counted(ranks: &[u32], change: impl Fn(u32, &mut Prepared)) -> VoteTally {
    let plan = plan_of(MEMBERS[0]);
    let mut tally = VoteTally::new(STEP, false);
    for rank in ranks {
        let mut vote = vote_of(*rank, STEP);
        change(*rank, &mut vote);
        let cast = tally.cast(&plan, MEMBERS[*rank as usize], vote);
        assert_eq!(cast, Ok(()));
    }
    assert_eq!(tally.is_complete(&plan), ranks.len() == MEMBERS.len());
    tally
}

#[test]
fn votes_that_do_not_count_are_refused_and_change_nothing() {
    let voter = MEMBERS[1];
    type Change = fn(&mut Prepared);
    let table: [(Change, VoteError); 12] = [
        (|vote| vote.step = Step(5), VoteError::Stray(voter)),
        (|vote| vote.step = Step(7), VoteError::Stray(voter)),
        (|vote| vote.generation = Generation(3), VoteError::Stray(voter)),
        (|vote| vote.generation = Generation(5), VoteError::Stray(voter)),
        (|vote| vote.digests.truncate(1), VoteError::Mismatch(voter)),
        (|vote| vote.digests.push((Shard(2), 102)), VoteError::Mismatch(voter)),
        (|vote| vote.digests.swap(0, 1), VoteError::Mismatch(voter)),
        (|vote| vote.squares.clear(), VoteError::Mismatch(voter)),
        (|vote| vote.squares.insert(0, (Shard(0), 1.0)), VoteError::Mismatch(voter)),
        (|vote| vote.contributions.truncate(2), VoteError::Mismatch(voter)),
        (|vote| vote.contributions[2].data_shard = DataShard(6), VoteError::Mismatch(voter)),
        (|vote| vote.contributions[1].data_shard = DataShard(3), VoteError::Mismatch(voter)),
    ];
    let plan = plan_of(MEMBERS[0]);
    for (change, error) in table {
        let mut tally = counted(&[2, 0], |_, _| {});
        let mut vote = vote_of(1, STEP);
        change(&mut vote);
        assert_eq!(tally.cast(&plan, voter, vote), Err(error));
        assert!(!tally.is_complete(&plan));
        assert_eq!(tally.cast(&plan, voter, vote_of(1, STEP)), Ok(()));
        assert!(tally.is_complete(&plan));
    }
}

#[test]
fn a_second_vote_is_refused_and_the_first_one_stands() {
    let plan = plan_of(MEMBERS[0]);
    let mut tally = counted(&[0, 1, 2], |_, _| {});
    let before = tally.totals(MEMBERS[0], 1);
    let mut again = vote_of(1, STEP);
    again.contributions[0].loss = 99.0;
    let voter = MEMBERS[1];
    assert_eq!(tally.cast(&plan, voter, again), Err(VoteError::Repeated(voter)));
    assert_eq!(tally.totals(MEMBERS[0], 1), before);
}

#[test]
fn nobody_votes_for_another_or_from_outside() {
    let plan = plan_of(MEMBERS[0]);
    let mut tally = VoteTally::new(STEP, false);
    let cast = tally.cast(&plan, STRANGER, vote_of(1, STEP));
    assert_eq!(cast, Err(VoteError::Stray(STRANGER)));
    let cast = tally.cast(&plan, MEMBERS[2], vote_of(1, STEP));
    assert_eq!(cast, Err(VoteError::Mismatch(MEMBERS[2])));
}

#[test]
fn after_the_last_step_votes_are_empty() {
    let plan = plan_of(MEMBERS[0]);
    let mut tally = VoteTally::new(STEP, true);
    let full = vote_of(0, STEP);
    assert_eq!(tally.cast(&plan, MEMBERS[0], full), Err(VoteError::Mismatch(MEMBERS[0])));
    for (rank, worker) in MEMBERS.into_iter().enumerate() {
        let mut vote = vote_of(rank as u32, STEP);
        vote.squares.clear();
        vote.contributions.clear();
        assert_eq!(tally.cast(&plan, worker, vote), Ok(()));
    }
    assert!(tally.is_complete(&plan));
    assert_eq!(tally.agree(), Ok(()), "the digests still count");
}

#[test]
fn i3_owners_with_different_bits_are_named() {
    assert_eq!(counted(&[2, 0, 1], |_, _| {}).agree(), Ok(()));
    for (rank, shard, first, second) in [(1, 0, 0, 1), (2, 1, 1, 2), (2, 2, 0, 2), (0, 2, 0, 2)] {
        let tally = counted(&[0, 1, 2], |voter, vote| {
            for (owned, digest) in &mut vote.digests {
                *digest += u64::from(voter == rank && *owned == Shard(shard));
            }
        });
        let (first, second) = (MEMBERS[first], MEMBERS[second]);
        assert_eq!(tally.agree(), Err(DigestMismatch { shard: Shard(shard), first, second }));
    }
}

#[test]
fn the_tally_is_added_in_index_order_whoever_votes_first() {
    let totals = counted(&[0, 1, 2], |_, _| {}).totals(MEMBERS[0], 1);
    assert_eq!(totals.norm, (100.0f64 + 121.0 + 144.0).sqrt());
    assert_eq!(totals.loss, 3.5);
    assert_eq!(totals.compute_seconds, 2.0, "of the slowest");
    assert_eq!(totals.commit_seconds, 2.0, "of whoever waited least for the step leader");
    assert_eq!((totals.samples_lost, totals.samples_repeated), (1, 1));
    // In another order these sums would have other bits.
    let rounding = |_, vote: &mut Prepared| {
        for part in &mut vote.contributions {
            part.loss = [1e16, 1.0, 1.0, -1e16, 3.0, 1e-9, 7.0, 0.1][part.data_shard.0 as usize];
        }
        for (shard, squares) in &mut vote.squares {
            *squares = [1.0, 1e16, 1.0][shard.0 as usize];
        }
    };
    let expected = counted(&[0, 1, 2], rounding).totals(MEMBERS[0], 1);
    for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let found = counted(&order, rounding).totals(MEMBERS[0], 1);
        assert_eq!((found.loss.to_bits(), found.norm.to_bits()), {
            (expected.loss.to_bits(), expected.norm.to_bits())
        });
    }
}

/// The loss of data shard `d` is `d` times its weight, as a device reports it.
fn weighed(weights: [f64; 8]) -> StepTotals {
    let tally = counted(&[0, 1, 2], |_, vote| {
        for part in &mut vote.contributions {
            part.weight = weights[part.data_shard.0 as usize];
            part.loss *= part.weight / 3.0;
        }
    });
    tally.totals(MEMBERS[0], 3)
}

#[test]
fn micro_batches_count_by_their_weights() {
    let totals = weighed([6.0, 0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 39.0]);
    assert_eq!(totals.gradient_factor, 0.5, "24 micro-batches weigh 48");
    assert_eq!(totals.norm, (100.0f64 + 121.0 + 144.0).sqrt() / 2.0);
    assert_eq!(totals.loss, (2.0 * 3.0 + 7.0 * 39.0) / 48.0);
    assert!(totals.is_finite());
    assert_eq!(weighed([3.0; 8]).gradient_factor, 1.0, "as without weights");
}

#[test]
fn held_out_samples_are_added_in_the_order_of_the_data_shards() {
    let part = |part: DataShard| {
        let loss = [1e16, 1.0, 1.0, -1e16, 3.0, 1e-9, 7.0, 0.1][part.0 as usize];
        PartEvaluation { part, samples: u64::from(part.0 + 1), loss, metric: Some(loss) }
    };
    let evaluated = |order: [u32; 3]| {
        let tally = counted(&order, |_, vote| {
            for it in &mut vote.contributions {
                it.evaluation = Some(part(it.data_shard));
            }
        });
        let StepTotals { validation_loss, metric, .. } = tally.totals(MEMBERS[0], 1);
        [validation_loss, metric].map(|mean| mean.expect("it is due").to_bits())
    };
    let parts: Vec<_> = (0..8).map(|shard| part(DataShard(shard))).collect();
    let sum = parts.iter().fold(0.0, |sum, part| sum + part.loss * part.samples as f64);
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        assert_eq!(evaluated(order), [(sum / 36.0).to_bits(); 2]);
    }
    assert_eq!(counted(&[0, 1, 2], |_, _| {}).totals(MEMBERS[0], 1).validation_loss, None);
}

#[test]
fn a_step_whose_micro_batches_weigh_nothing_is_not_finite() {
    for odd in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300] {
        assert!(!weighed([odd; 8]).is_finite(), "{odd}");
    }
}

#[test]
fn a_gradient_that_is_not_finite_shows_in_the_norm() {
    let tally = counted(&[0, 1, 2], |rank, vote| {
        if rank == 1 {
            vote.squares[0].1 = f64::NAN;
        }
    });
    assert!(tally.totals(MEMBERS[0], 1).norm.is_nan());
}
