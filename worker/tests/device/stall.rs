//! A data set that cannot read its samples for a while: the device waits, says so, and loses
//! nothing.

use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{DataShard, Shard, Step, WorkerId};
use everstep_worker::step::event::{Job, Report};

use crate::support::{DATA_SHARDS, SHARDS, TestDevice, gradient};

/// Tries that fail, with pauses of 20, 40, 80, 160, 320, 640 and 1000 ms: 2.3 s together.
const FAILURES: usize = 7;

fn contributions(reports: &[Report]) -> Vec<Contribution> {
    let computed = reports.iter().filter_map(|report| match report {
        Report::Computed { contribution, .. } => Some(contribution.clone()),
        _ => None,
    });
    computed.collect()
}

#[test]
fn a_stall_is_told_of_and_questions_are_answered_meanwhile_and_the_step_has_the_same_bits() {
    let undisturbed = TestDevice::primary_of(0..SHARDS).give(gradient(1, 0..DATA_SHARDS));
    let mut test_device = TestDevice::primary_of(0..SHARDS);
    test_device.fail_reads(FAILURES);
    let question = Job::Export { to: WorkerId(7), shards: vec![Shard(3)] };
    let reports = test_device.give_beside(gradient(1, 0..DATA_SHARDS), vec![question]);
    assert!(matches!(
        &reports[..3],
        [
            Report::LoadStalled(true),
            Report::State { to: WorkerId(7), version: Step(0), shard: Shard(3), .. },
            Report::LoadStalled(false),
        ]
    ));
    assert_eq!(contributions(&reports), contributions(&undisturbed));
    let loads: Vec<f64> = reports
        .iter()
        .filter_map(|report| match report {
            Report::Computed { load_seconds, .. } => Some(*load_seconds),
            _ => None,
        })
        .collect();
    assert!(loads.iter().all(|seconds| *seconds < 2.0), "a stall is no slow load: {loads:?}");
}

#[test]
fn held_out_samples_are_waited_for_too() {
    let evaluate = |failures: usize| {
        let mut test_device = TestDevice::primary_of(0..SHARDS);
        test_device.train(1, 0..SHARDS);
        test_device.fail_reads(failures);
        let data_shards = (0..DATA_SHARDS).map(DataShard).collect();
        let reports = test_device.give(Job::Finish { version: Step(1), data_shards });
        let stalls = reports.iter().filter(|it| matches!(it, Report::LoadStalled(true))).count();
        let Some(Report::Finished(summary)) = reports.last() else { panic!("{reports:?}") };
        (stalls, summary.evaluations.clone())
    };
    let ((stalls, waited), (_, there)) = (evaluate(FAILURES), evaluate(0));
    assert_eq!(waited, there);
    assert!(stalls > 0, "the device says that it waits");
}
