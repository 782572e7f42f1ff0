//! Gradients: of all data shards, of some, and again.

use everstep_transport::protocol::outcome::PartEvaluation;
use everstep_transport::protocol::{DataShard, Encoding, LossScale, RunSpec, Shard, Step};
use everstep_worker::step::event::{Job, Report, ShardOrigin};
use proptest::prelude::*;

use crate::support::{
    DATA_SHARDS, SHARDS, TestDevice, bits, computed, enter, gradient, reduce, relabel, run, scaled,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Invariant I3 for a redo: any worker may compute any data shards, in any number of jobs.
    #[test]
    fn data_shards_in_any_number_of_jobs_add_up_to_the_same_bits(
        jobs in prop::collection::vec(0usize..4, DATA_SHARDS as usize),
    ) {
        let mut test_device = TestDevice::primary_of(0..SHARDS);
        let whole = test_device.reduced(1);
        let mut parts = Vec::new();
        for job in 0..4 {
            let mine = (0..DATA_SHARDS).filter(|data_shard| jobs[*data_shard as usize] == job);
            parts.extend(test_device.give(gradient(1, mine)));
        }
        prop_assert_eq!(bits(&reduce(&parts)), bits(&whole));
    }
}

#[test]
fn after_a_redo_the_next_steps_go_on() {
    let mut steady = TestDevice::primary_of(0..SHARDS);
    let mut test_device = TestDevice::primary_of(0..SHARDS);
    assert_eq!(computed(&test_device.give(gradient(1, 0..5))), [0, 1, 2, 3, 4]);
    assert_eq!(computed(&test_device.give(gradient(1, 5..8))), [5, 6, 7]);
    assert_eq!(computed(&test_device.give(gradient(1, 0..0))), [0; 0]);
    for step in 1..4 {
        assert_eq!(test_device.train(step, 0..SHARDS), steady.train(step, 0..SHARDS));
    }
}

#[test]
fn a_skipped_step_relabels_and_changes_nothing_else() {
    let mut test_device = TestDevice::primary_of(0..SHARDS);
    let initial = test_device.digests(0..SHARDS);
    test_device.give(gradient(1, 0..8));
    assert!(test_device.give(Job::Skip { step: Step(1) }).is_empty());
    for shard in 0..SHARDS {
        match test_device.give(relabel(1, shard)).as_slice() {
            [Report::Updated { version: Step(1), digest, parameters: None, .. }] => {
                assert_ne!(*digest, initial[shard as usize].2, "the version is in the digest");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(test_device.reduced(2).len() as u32, SHARDS, "nothing is waited for");
}

/// Only the gradient inside the model carries the scale. All other values are in true units.
#[test]
fn a_loss_scale_changes_no_bit_of_partials_and_losses() {
    for accumulate in [1, 3] {
        let mut run = run();
        run.batch.accumulate = accumulate;
        let mut test_device = TestDevice::of(&run);
        test_device.give(enter(1, ShardOrigin::Seed, 0..SHARDS));
        let plain = test_device.give(gradient(1, 0..DATA_SHARDS));
        for exponent in [1, 16, 24] {
            let scale = LossScale { exponent, good: 0 };
            let found = test_device.give(scaled(1, scale, 0..DATA_SHARDS));
            assert_eq!(bits(&reduce(&found)), bits(&reduce(&plain)), "{scale:?}");
            assert_eq!(losses(&found), losses(&plain), "{scale:?}");
        }
    }
}

/// The parts belong to data shards, so a redo on other workers evaluates to the same values.
#[test]
fn a_step_that_is_due_evaluates_the_held_out_samples_with_the_parameters_that_it_begins_with() {
    let mut run = run();
    run.data.validation_every = 2;
    let [mut evaluating, mut plain] = [&run, &crate::support::run()].map(|run| {
        let mut test_device = TestDevice::of(run);
        test_device.give(enter(1, ShardOrigin::Seed, 0..SHARDS));
        test_device
    });
    let evaluated = |reports: &[Report]| -> Vec<PartEvaluation> {
        let parts = reports.iter().filter_map(|report| match report {
            Report::Computed { contribution, .. } => contribution.evaluation.clone(),
            _ => None,
        });
        parts.collect()
    };
    assert!(evaluated(&evaluating.give(gradient(1, 0..DATA_SHARDS))).is_empty());
    assert_eq!(evaluating.train(1, 0..SHARDS), plain.train(1, 0..SHARDS));
    let due = evaluating.give(gradient(2, 0..DATA_SHARDS));
    assert_eq!(bits(&reduce(&due)), bits(&plain.reduced(2)), "gradients are as without");
    assert_eq!(due.iter().filter(|it| matches!(it, Report::Evaluated)).count(), 8);
    let whole = evaluated(&due);
    assert_eq!(whole.iter().map(|part| part.samples).sum::<u64>(), 20, "all held-out samples");
    let (some, others) = (gradient(2, 0..3), gradient(2, 3..DATA_SHARDS));
    let again = [some, others].map(|job| evaluated(&evaluating.give(job)));
    assert_eq!(again.concat(), whole);
    let finish = Job::Finish { version: Step(1), data_shards: (0..8).map(DataShard).collect() };
    let ended = plain.give(finish);
    let Some(Report::Finished(summary)) = ended.last() else { panic!("{ended:?}") };
    assert_eq!(summary.evaluations, whole, "as the end of the step before evaluates them");
}

fn losses(reports: &[Report]) -> Vec<u64> {
    let losses = reports.iter().filter_map(|report| match report {
        Report::Computed { contribution, .. } => Some(contribution.loss.to_bits()),
        _ => None,
    });
    losses.collect()
}

fn in_bf16() -> RunSpec {
    RunSpec { all_gather: Encoding::Bf16, ..run() }
}

#[test]
fn after_a_rollback_everything_is_as_the_seed_says() {
    for run in [run(), in_bf16()] {
        let mut test_device = TestDevice::of(&run);
        let first = test_device.give(enter(1, ShardOrigin::Seed, 0..SHARDS));
        let whole = bits(&test_device.reduced(1));
        let trained: Vec<_> = (1..4).map(|step| test_device.train(step, 0..SHARDS)).collect();
        // Fewer shards are owned. The device computes with the parameters of the others all the
        // same.
        let entered = test_device.give(enter(2, ShardOrigin::Seed, 1..3));
        assert_eq!(owned(&entered), owned(&first)[1..3]);
        assert_eq!(bits(&test_device.reduced(1)), whole);
        test_device.give(enter(3, ShardOrigin::Seed, 0..SHARDS));
        let again: Vec<_> = (1..4).map(|step| test_device.train(step, 0..SHARDS)).collect();
        assert_eq!(again, trained);
    }
}

fn owned(reports: &[Report]) -> Vec<(Shard, Step, u64)> {
    match reports {
        [Report::Entered { owned, .. }] => owned.clone(),
        other => panic!("{other:?}"),
    }
}
