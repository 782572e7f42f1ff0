//! The loss scale of fp16: the scale of each step follows from the commits.

use everstep_transport::protocol::run::Precision;
use everstep_transport::protocol::{
    Cause, Commit, DataShard, Decision, LossScale, Message, Record, RunSpec, Step, WorkerId,
};
use everstep_worker::step::event::Job;

use crate::cluster::{Cluster, run};
use crate::solo::{Solo, TERM, commit, next_record};
use crate::support::{GENERATION, MEMBERS, STRANGER, record};

fn in_fp16(steps: u64) -> RunSpec {
    let mut run = run(steps);
    run.model.precision = Precision::F16;
    run
}

pub fn scale(exponent: u8, good: u32) -> LossScale {
    LossScale { exponent, good }
}

pub fn committed(step: u64, decision: Decision, loss_scale: LossScale) -> Commit {
    Commit { decision, loss_scale, ..commit(step) }
}

/// The steps that the core computes, each with its scale.
fn computes(solo: &mut Solo) -> Vec<(Step, LossScale)> {
    let gradient = |job| match job {
        Job::Gradient { step, scale, .. } => Some((step, scale)),
        _ => None,
    };
    solo.jobs().into_iter().filter_map(gradient).collect()
}

/// The member of rank 1, after its vote for the first step.
pub fn voted() -> Solo {
    let mut solo = Solo::member_for(in_fp16(10), 1);
    solo.prepare(1);
    solo.took();
    solo
}

#[test]
fn a_step_that_is_skipped_halves_it_and_one_that_is_not_counts() {
    for (decision, next) in [(Decision::Skip, scale(15, 0)), (Decision::Apply, scale(16, 1))] {
        let mut solo = voted();
        solo.peer(MEMBERS[0], Message::Commit(committed(1, decision, next)));
        assert_eq!(computes(&mut solo), [(Step(2), next)]);
    }
}

#[test]
fn the_first_step_has_the_first_one_and_in_f32_all_have_one() {
    let mut solo = Solo::registered_for(in_fp16(10), MEMBERS[1]);
    solo.hear(Message::Pause { term: TERM, number: GENERATION });
    solo.hear(Message::Announce(record()));
    assert_eq!(computes(&mut solo), [(Step(1), scale(16, 0))]);
    let mut solo = Solo::member(1);
    solo.prepare(1);
    solo.peer(MEMBERS[0], Message::Commit(committed(1, Decision::Skip, scale(0, 0))));
    assert_eq!(computes(&mut solo), [(Step(2), scale(0, 0))]);
}

/// Invariant I2. A peer may send any scale: no worker computes with a wrong one.
#[test]
fn a_scale_that_does_not_follow_breaks_the_history() {
    for wrong in [scale(16, 0), scale(14, 0), scale(15, 1), scale(0, 0), scale(255, u32::MAX)] {
        let mut solo = voted();
        solo.peer(MEMBERS[0], Message::Commit(committed(1, Decision::Skip, wrong)));
        let failed = solo.told().into_iter().find_map(|message| match message {
            Message::Failed { at_fault, fatal, .. } => Some((at_fault, fatal)),
            _ => None,
        });
        assert_eq!(failed, Some((Some(MEMBERS[0]), true)), "{wrong:?}");
    }
}

/// Invariant I2.
#[test]
fn another_scale_in_a_known_commit_breaks_the_history() {
    let mut solo = voted();
    solo.peer(MEMBERS[0], Message::Commit(committed(1, Decision::Skip, scale(15, 0))));
    solo.took();
    solo.peer(MEMBERS[2], Message::Commit(committed(1, Decision::Skip, scale(14, 0))));
    let failed = |message: &Message| matches!(message, Message::Failed { fatal: true, .. });
    assert!(solo.told().iter().any(failed));
}

/// The member of rank 2 is gone, and this member has its data shards.
fn without_the_last(commit: Commit) -> Record {
    let mut record = next_record(Some(commit));
    let theirs = std::mem::take(&mut record.members[2].data_shards);
    record.members[1].data_shards.extend(theirs);
    record
}

#[test]
fn a_redo_has_the_scale_of_the_try_before() {
    let mut solo = voted();
    let skipped = committed(1, Decision::Skip, scale(15, 0));
    solo.peer(MEMBERS[0], Message::Commit(skipped.clone()));
    assert_eq!(computes(&mut solo), [(Step(2), scale(15, 0))]);
    solo.hear(Message::Pause { term: TERM, number: GENERATION.next() });
    solo.hear(Message::Announce(without_the_last(skipped)));
    assert_eq!(computes(&mut solo), [(Step(2), scale(15, 0))]);
}

#[test]
fn who_has_missed_the_commit_has_the_recorded_ones_scale() {
    let mut solo = voted();
    solo.hear(Message::Pause { term: TERM, number: GENERATION.next() });
    let recorded = committed(1, Decision::Apply, scale(16, 1));
    solo.hear(Message::Announce(without_the_last(recorded)));
    assert_eq!(computes(&mut solo), [(Step(2), scale(16, 1))]);
}

#[test]
fn who_joins_has_the_scale_of_the_others() {
    let mut solo = Solo::registered_for(in_fp16(10), STRANGER);
    let mut record = next_record(Some(committed(6, Decision::Apply, scale(13, 4))));
    let (theirs, mut joiner) = (vec![DataShard(7)], record.members[2].clone());
    record.members[2].data_shards.retain(|shard| !theirs.contains(shard));
    (joiner.worker, joiner.data_shards) = (STRANGER, theirs);
    record.members.push(joiner);
    solo.hear(Message::Pause { term: TERM, number: record.number });
    solo.hear(Message::Announce(record));
    assert_eq!(computes(&mut solo), [(Step(7), scale(13, 4))]);
}

/// The seventh step's gradient is not finite.
#[test]
fn a_run_that_loses_a_member_halves_it_where_one_that_loses_none_does() {
    for seed in 0..12 {
        let mut cluster = Cluster::new(&[1, 2, 3], in_fp16(12), seed);
        let all = [1, 2, 3].map(WorkerId);
        cluster.change(&all, Cause::Start);
        cluster.until("the step commits", |cluster| cluster.committed() >= Step(5));
        cluster.steps(seed * 17);
        cluster.kill(all[seed as usize % 3]);
        cluster.change(&cluster.alive(), Cause::Lost);
        cluster.finish();
        assert_eq!(cluster.failures, [""; 0]);
        for worker in cluster.alive() {
            let member = cluster.core(worker.0).member().expect("a member");
            let last = member.commit().map(|commit| commit.loss_scale);
            assert_eq!(last, Some(scale(15, 5)), "seed {seed}, worker {worker}");
        }
    }
}
