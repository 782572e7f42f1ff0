//! A pass that waits for parameters: the jobs done meanwhile, the jobs put off, and the jobs that
//! end it.

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_transport::protocol::{Shard, Step, WorkerId};
use everstep_worker::step::event::{Job, Report, ShardOrigin};

use crate::support::{
    Gradients, SHARDS, TestDevice, bits, computed, enter, gradient, load, parameters, reduce, sync,
    update,
};

const ASKING: WorkerId = WorkerId(7);

/// The primary of shards 0 to 2 at version 1. It lacks the parameters of the others.
struct Lacking {
    test_device: TestDevice,
    /// The parameters of version 1 of shards 3 to 6.
    missing: Vec<(Shard, Shared)>,
    /// The reduced gradients of steps 1 and 2.
    gradients: [Gradients; 2],
}

fn lacking() -> Lacking {
    let mut other = TestDevice::primary_of(0..SHARDS);
    let first = other.reduced(1);
    let mut missing = Vec::new();
    for shard in 0..SHARDS {
        missing.extend(parameters(&other.give(update(1, shard, &first))));
    }
    let mut test_device = TestDevice::primary_of(0..3);
    for shard in 0..3 {
        test_device.give(update(1, shard, &first));
    }
    Lacking { test_device, missing: missing.split_off(3), gradients: [first, other.reduced(2)] }
}

fn loads(missing: &[(Shard, Shared)]) -> Vec<Job> {
    missing.iter().map(|(shard, values)| load(shard.0, 1, values)).collect()
}

/// The kinds of the reports, in order, without partial sums.
fn kinds(reports: &[Report]) -> Vec<&'static str> {
    let kind = |report: &Report| match report {
        Report::Partial { .. } => None,
        Report::Computed { .. } => Some("computed"),
        Report::Shared { .. } => Some("shared"),
        Report::State { .. } => Some("state"),
        Report::Entered { .. } => Some("entered"),
        Report::Updated { .. } => Some("updated"),
        Report::Restored { .. } => Some("restored"),
        _ => Some("another"),
    };
    reports.iter().filter_map(kind).collect()
}

#[test]
fn others_are_answered_while_a_pass_waits() {
    let Lacking { mut test_device, missing, gradients } = lacking();
    let shards = vec![Shard(0), Shard(2)];
    let mut coming =
        vec![Job::Share { to: ASKING, shards: shards.clone() }, Job::Export { to: ASKING, shards }];
    coming.extend(loads(&missing));
    let reports = test_device.give_while(gradient(2, 0..8), coming);
    let mut expected = vec!["shared", "shared", "state", "state"];
    expected.extend(["computed"; 8]);
    assert_eq!(kinds(&reports), expected);
    assert_eq!(bits(&reduce(&reports)), bits(&gradients[1]));
}

/// A pass may take as long as a step, and a worker that catches up needs many states.
#[test]
fn others_are_answered_beside_a_pass_that_computes() {
    let mut test_device = TestDevice::primary_of(0..SHARDS);
    let alone = bits(&TestDevice::primary_of(0..SHARDS).reduced(1));
    let questions = vec![
        Job::Export { to: ASKING, shards: vec![Shard(0)] },
        Job::Share { to: ASKING, shards: vec![Shard(1)] },
    ];
    let reports = test_device.give_beside(gradient(1, 0..8), questions);
    let mut expected = vec!["state", "shared"];
    expected.extend(["computed"; 8]);
    assert_eq!(kinds(&reports), expected, "before the first data shard is done");
    assert_eq!(bits(&reduce(&reports)), alone);
}

#[test]
fn entering_with_what_is_held_waits_for_the_end_of_the_pass() {
    let Lacking { mut test_device, missing, gradients } = lacking();
    let mut coming = vec![enter(2, ShardOrigin::Held, 0..3), gradient(2, 2..4)];
    coming.extend(loads(&missing));
    let reports = test_device.give_while(gradient(2, 0..2), coming);
    assert_eq!(kinds(&reports), ["computed", "computed", "entered", "computed", "computed"]);
    let rest = test_device.give(gradient(2, 4..8));
    let all: Vec<Report> = reports.into_iter().chain(rest).collect();
    assert_eq!(bits(&reduce(&all)), bits(&gradients[1]));
}

#[test]
fn a_rollback_ends_a_pass_that_waits_and_what_waits_behind_it() {
    let Lacking { mut test_device, missing, gradients } = lacking();
    let mut coming = loads(&missing[..2]);
    coming.extend([
        enter(2, ShardOrigin::Held, 0..3),
        gradient(2, 0..1),
        enter(3, ShardOrigin::Seed, 0..SHARDS),
    ]);
    let reports = test_device.give_while(gradient(2, [3]), coming);
    let entered = [Step(0); SHARDS as usize];
    let [Report::Entered { generation, owned }] = reports.as_slice() else { panic!("{reports:?}") };
    assert_eq!(generation.0, 3);
    assert!(owned.iter().map(|(_, version, _)| *version).eq(entered));
    assert_eq!(test_device.left(), 0);
    assert_eq!(
        bits(&test_device.reduced(1)),
        bits(&gradients[0]),
        "no half-loaded parameter is left"
    );
}

#[test]
fn parameters_that_are_still_to_come_are_not_relabelled() {
    let Lacking { mut test_device, missing, .. } = lacking();
    test_device.give(Job::Skip { step: Step(2) });
    let coming: Vec<Job> = missing.iter().map(|(shard, values)| load(shard.0, 2, values)).collect();
    assert_eq!(computed(&test_device.give_while(gradient(3, 0..1), coming)), [0]);
    assert_eq!(test_device.left(), 0, "it has waited for all of them");
}

/// A joiner's own state can be all that a pass waits for: the shard's last other owner is gone.
#[test]
fn what_is_learned_while_a_pass_waits_is_what_it_waits_for() {
    let Lacking { missing, gradients, .. } = lacking();
    let mut owner = TestDevice::primary_of(0..SHARDS);
    let states = owner.give(Job::Export { to: ASKING, shards: vec![Shard(0), Shard(1)] });
    let mut joiner = TestDevice::new();
    joiner.give(sync(1, 0..2));
    for shard in 2..SHARDS {
        owner.give(update(1, shard, &gradients[0]));
    }
    let shared = owner.give(Job::Share { to: ASKING, shards: vec![Shard(2)] });
    joiner.give(load(2, 1, &parameters(&shared)[0].1));
    let mut coming = loads(&missing);
    coming.extend(states.into_iter().map(restore));
    coming.extend([update(1, 0, &gradients[0]), update(1, 1, &gradients[0])]);
    let reports = joiner.give_while(gradient(2, 0..8), coming);
    let mut expected = vec!["restored", "restored", "updated", "updated"];
    expected.extend(["computed"; 8]);
    assert_eq!(kinds(&reports), expected);
    assert_eq!(bits(&reduce(&reports)), bits(&gradients[1]));
}

fn restore(report: Report) -> Job {
    let Report::State { version, shard, digest, parts, .. } = report else { panic!("{report:?}") };
    let parts = parts.iter().map(|part| Buffer::detached(part.to_vec())).collect();
    Job::Restore { shard, version, digest, parts }
}

/// Other workers got its data shards, and were faster.
#[test]
fn a_pass_ends_when_its_step_has_committed_without_it() {
    let committed: [fn(&Lacking) -> Job; 3] = [
        |lacking| update(2, 0, &lacking.gradients[1]),
        |lacking| load(3, 2, &lacking.missing[0].1),
        |_| Job::Skip { step: Step(2) },
    ];
    for job in committed {
        let mut lacking = lacking();
        let coming = vec![enter(2, ShardOrigin::Held, 0..3), gradient(2, 4..5), job(&lacking)];
        let reports = lacking.test_device.give_while(gradient(2, [3]), coming);
        let computed =
            |report: &Report| matches!(report, Report::Partial { .. } | Report::Computed { .. });
        assert!(!reports.iter().any(computed), "neither it nor what waited for it: {reports:?}");
        assert_eq!(kinds(&reports)[0], "entered");
        assert_eq!(lacking.test_device.left(), 0);
    }
}

#[test]
fn a_pass_ends_when_the_next_step_is_to_be_computed() {
    let Lacking { mut test_device, missing, gradients } = lacking();
    let mut coming = vec![gradient(2, 4..5), gradient(3, 6..7)];
    coming.extend((0..3).map(|shard| update(2, shard, &gradients[1])));
    coming.extend(missing.iter().map(|(shard, values)| load(shard.0, 2, values)));
    let reports = test_device.give_while(gradient(2, 0..2), coming);
    assert_eq!(kinds(&reports), ["updated", "updated", "updated", "computed"]);
    assert_eq!(computed(&reports), [6]);
}

#[test]
fn what_a_job_that_waits_will_change_is_asked_for_after_it() {
    let Lacking { mut test_device, missing, .. } = lacking();
    let mut owner = TestDevice::primary_of(0..SHARDS);
    let states = owner.give(Job::Export { to: ASKING, shards: vec![Shard(6)] });
    let mut coming = vec![learn_six()];
    coming.extend(states.into_iter().map(restore));
    coming.push(Job::Share { to: ASKING, shards: vec![Shard(6)] });
    coming.push(Job::Share { to: ASKING, shards: vec![Shard(0)] });
    coming.extend(loads(&missing));
    let reports = test_device.give_while(gradient(2, 0..1), coming);
    assert_eq!(kinds(&reports), ["shared", "computed", "entered", "restored", "shared"]);
}

fn learn_six() -> Job {
    let generation = everstep_transport::protocol::Generation(2);
    let owned = (0..3).map(|shard| (Shard(shard), true)).collect();
    Job::Enter { generation, origin: ShardOrigin::Held, owned, syncing: vec![Shard(6)] }
}
