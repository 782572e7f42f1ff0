//! From generation to generation: after any changes, the bits are those of a run of one worker.

use std::sync::OnceLock;

use everstep_transport::protocol::{
    Cause, CheckpointSpec, Message, OnFailure, Record, Shard, Step, WorkerId,
};
use proptest::prelude::*;

use crate::cluster::{Cluster, TERM, planner, run};

const STEPS: u64 = 12;

pub type Outcome = (Vec<Vec<u32>>, Vec<(Step, u64)>);

/// The model's bits, and every line's loss, of a run of one worker.
pub fn reference() -> &'static Outcome {
    static REFERENCE: OnceLock<Outcome> = OnceLock::new();
    REFERENCE.get_or_init(|| {
        let mut cluster = begun(&[1], 1);
        cluster.finish();
        outcome(&cluster)
    })
}

pub fn outcome(cluster: &Cluster) -> Outcome {
    assert_eq!(cluster.failures, [""; 0]);
    let leader = cluster.record.as_ref().expect("a generation").step_leader();
    let model = cluster.nodes[&leader].toy_file.model.clone();
    (model.into_values().collect(), cluster.written.clone())
}

fn workers(ids: &[u64]) -> Vec<WorkerId> {
    ids.iter().copied().map(WorkerId).collect()
}

pub fn begun(ids: &[u64], seed: u64) -> Cluster {
    begun_with(ids, seed, None)
}

/// As [`begun`], with a checkpoint every so many steps.
pub fn begun_with(ids: &[u64], seed: u64, every: Option<u64>) -> Cluster {
    let mut run = run(STEPS);
    run.checkpoint = every.map(|every| CheckpointSpec {
        path: "/store".into(),
        every,
        keep: 9,
        keep_every: 0,
        on_failure: OnFailure::Continue,
    });
    let mut cluster = Cluster::new(ids, run, seed);
    cluster.change(&workers(ids), Cause::Start);
    cluster
}

/// Runs until a step has committed somewhere.
fn reach(cluster: &mut Cluster, step: u64) {
    cluster.until("the step commits", |cluster| cluster.committed() >= Step(step));
}

/// Begins a generation of these members that starts no step.
fn wait_with(cluster: &mut Cluster, members: &[WorkerId]) {
    cluster.pause(&cluster.alive());
    let mut record = planner::plan(cluster, members, Cause::Lost);
    record.waiting = true;
    record.members.iter_mut().for_each(|member| member.data_shards.clear());
    cluster.begin(record);
}

/// All living workers take part from now on.
fn all(cluster: &mut Cluster, cause: Cause) {
    cluster.change(&cluster.alive(), cause);
}

#[test]
fn three_workers_make_the_bits_of_one() {
    let mut cluster = begun(&[1, 2, 3], 5);
    cluster.finish();
    assert_eq!(&outcome(&cluster), reference());
}

#[test]
fn a_run_goes_on_without_a_member_and_makes_the_same_bits() {
    for seed in 0..20 {
        let mut cluster = begun(&[1, 2, 3], seed);
        reach(&mut cluster, 4);
        cluster.steps(seed * 13);
        cluster.kill(WorkerId(1 + seed % 3));
        all(&mut cluster, Cause::Lost);
        cluster.finish();
        assert_eq!(&outcome(&cluster), reference(), "seed {seed}");
    }
}

/// The leader has sent its commit to one member, and is gone.
#[test]
fn a_member_that_has_missed_the_last_commit_applies_it_first() {
    let mut cluster = begun(&[1, 2, 3], 3);
    reach(&mut cluster, 4);
    cluster.cut.extend([1, 2].map(|from| (WorkerId(from), WorkerId(3))));
    let behind = |cluster: &Cluster| {
        let at = |worker| cluster.core(worker).member().map(|member| member.committed());
        at(2) > at(3)
    };
    cluster.until("one is behind", behind);
    cluster.kill(WorkerId(1));
    cluster.cut.clear();
    cluster.pause(&workers(&[2, 3]));
    let [ahead, lags] = [2, 3].map(|worker| cluster.statuses[&WorkerId(worker)].clone());
    let commit = ahead.commit.expect("a commit");
    assert_eq!(lags.commit.map(|before| before.step.next()), Some(commit.step));
    assert!(!lags.prepared.is_empty());
    let record = planner::plan(&cluster, &workers(&[2, 3]), Cause::Lost);
    assert_eq!(record.resume, commit.step);
    cluster.begin(record);
    cluster.finish();
    assert_eq!(&outcome(&cluster), reference());
}

#[test]
fn a_record_that_was_missed_is_made_up_for_by_the_next_one() {
    for seed in 0..10 {
        let mut cluster = begun(&[1, 2, 3], seed);
        reach(&mut cluster, 3);
        all(&mut cluster, Cause::Lost);
        cluster.mislay(WorkerId(2));
        cluster.steps(seed * 7);
        cluster.pause(&workers(&[1, 2, 3]));
        let record: Record = planner::plan(&cluster, &workers(&[1, 2, 3]), Cause::Lost);
        cluster.begin(record);
        cluster.finish();
        assert_eq!(&outcome(&cluster), reference(), "seed {seed}");
    }
}

#[test]
fn a_joiner_is_fed_and_becomes_an_owner() {
    let mut cluster = begun(&[1, 2], 9);
    reach(&mut cluster, 2);
    cluster.join(WorkerId(3));
    cluster.until("it is in the picture", |it| it.core(3).generation() == it.number());
    assert!(cluster.core(3).member().is_none());
    cluster.feed(WorkerId(3), &[0, 2]);
    let ready = |it: &Cluster| it.heard(WorkerId(3)).is_some_and(|heartbeat| heartbeat.ready);
    cluster.until("it is ready", ready);
    assert!(!cluster.is_over(), "it learns while the others train");
    cluster.kill(WorkerId(2));
    all(&mut cluster, Cause::Join);
    let status = &cluster.statuses[&WorkerId(3)];
    assert_eq!(status.versions.iter().map(|held| held.0.0).collect::<Vec<_>>(), [0, 2]);
    cluster.finish();
    assert_eq!(&outcome(&cluster), reference());
}

/// A device that has never begun does not have the parameters of version 0.
#[test]
fn a_worker_that_comes_before_the_first_step_begins_from_the_beginning_even_if_it_owns_nothing() {
    let mut cluster = Cluster::new(&[1, 2, 3, 4, 5, 6, 7, 8], run(STEPS), 11);
    cluster.change(&workers(&[1, 2, 3, 4, 5, 6, 7]), Cause::Start);
    cluster.change(&workers(&[1, 2, 3, 4, 5, 6, 7, 8]), Cause::Join);
    assert_eq!(cluster.committed(), Step(0));
    cluster.finish();
    assert_eq!(&outcome(&cluster), reference());
}

#[test]
fn in_a_generation_that_waits_a_joiner_gets_everything_and_nobody_steps() {
    let mut cluster = begun(&[1, 2], 11);
    reach(&mut cluster, 5);
    cluster.kill(WorkerId(1));
    wait_with(&mut cluster, &workers(&[2]));
    cluster.join(WorkerId(3));
    cluster.until("both are in it", |it| {
        [2, 3].iter().all(|worker| it.core(*worker).generation() == it.number())
    });
    let before = cluster.committed();
    cluster.feed(WorkerId(3), &[0, 1, 2]);
    let ready = |it: &Cluster| it.heard(WorkerId(3)).is_some_and(|heartbeat| heartbeat.ready);
    cluster.until("it is ready", ready);
    cluster.steps(1_000);
    assert_eq!(cluster.committed(), before);
    cluster.kill(WorkerId(2));
    all(&mut cluster, Cause::Join);
    cluster.finish();
    assert_eq!(&outcome(&cluster), reference());
}

#[test]
fn a_hold_is_followed_by_all_and_ends_by_itself() {
    let mut cluster = begun(&[1, 2, 3], 13);
    reach(&mut cluster, 3);
    let generation = cluster.number();
    cluster.say(WorkerId(1), Message::Hold { term: TERM, generation });
    let held = |it: &Cluster| {
        it.members().iter().all(|member| it.heard(*member).is_some_and(|said| said.held))
    };
    cluster.until("all hold", held);
    let before = cluster.committed();
    assert!(!cluster.is_over());
    cluster.until("it goes on", |it| it.committed() > before);
    cluster.finish();
    assert_eq!(&outcome(&cluster), reference());
}

#[test]
fn a_rollback_begins_again_from_the_seed() {
    let mut cluster = begun(&[1, 2, 3], 17);
    reach(&mut cluster, 6);
    cluster.kill(WorkerId(3));
    cluster.join(WorkerId(4));
    all(&mut cluster, Cause::Rollback);
    cluster.steps(300);
    assert!(cluster.committed() < Step(6));
    cluster.finish();
    assert_eq!(&outcome(&cluster), reference());
}

/// The leader has said that the lines of six steps are written, and then the run goes back.
#[test]
fn i13_after_a_rollback_a_member_counts_no_undone_line_as_written() {
    let mut cluster = begun(&[1, 2, 3], 37);
    let written = |cluster: &Cluster| cluster.core(2).member().map(|member| member.written_step());
    cluster.until("a member hears of it", |it| written(it) >= Some(Step(6)));
    all(&mut cluster, Cause::Rollback);
    cluster.until("it goes back", |it| it.core(2).generation() == it.number());
    assert_eq!(written(&cluster), Some(Step(0)));
    cluster.finish();
    assert_eq!(&outcome(&cluster), reference());
}

#[test]
fn i12_when_all_are_dead_others_go_on_from_a_checkpoint() {
    for (seed, successors) in [(1, 1), (2, 2), (3, 3), (4, 5)] {
        let mut cluster = begun_with(&[1, 2, 3], seed, Some(5));
        cluster.until("it is listed", |cluster| cluster.store.listed.contains_key(&Step(5)));
        cluster.until("it goes on", |cluster| cluster.committed() > Step(6));
        (1..=3).for_each(|worker| cluster.kill(WorkerId(worker)));
        (4..4 + successors).for_each(|worker| cluster.join(WorkerId(worker)));
        all(&mut cluster, Cause::Rollback);
        let from = cluster.record.as_ref().expect("a generation").resume;
        assert!(from == Step(5) || from == Step(10), "{from}");
        cluster.finish();
        assert_eq!(&outcome(&cluster), reference());
    }
}

/// Owners die while they read their shards: the others begin from the same checkpoint again.
#[test]
fn i12_a_restore_that_is_cut_short_begins_again() {
    let mut cluster = begun_with(&[1, 2, 3], 5, Some(5));
    cluster.until("it is listed", |cluster| cluster.store.listed.contains_key(&Step(5)));
    for lost in 1..=3 {
        (4..=6).for_each(|worker| cluster.join(WorkerId(10 * lost + worker)));
        let before: Vec<_> = cluster.alive();
        all(&mut cluster, Cause::Rollback);
        cluster.steps(40 * lost);
        before.into_iter().take(2).for_each(|worker| cluster.kill(worker));
        all(&mut cluster, Cause::Lost);
    }
    cluster.finish();
    assert_eq!(&outcome(&cluster), reference());
}

/// A joiner asks owners for states that they still have to read. It asks again.
#[test]
fn i12_a_joiner_is_fed_by_members_that_read_a_checkpoint() {
    for seed in 0..20 {
        let mut cluster = begun_with(&[1, 2, 3], seed, Some(5));
        cluster.until("it is listed", |cluster| cluster.store.listed.contains_key(&Step(5)));
        cluster.join(WorkerId(9));
        cluster.change(&workers(&[1, 2, 3]), Cause::Rollback);
        cluster.feed(WorkerId(9), &[0, 1, 2]);
        cluster.finish();
        assert_eq!(&outcome(&cluster), reference());
    }
}

/// A member that should begin again did not hear of it. A healthy generation follows.
#[test]
fn who_has_missed_a_rollback_begins_from_the_seed_too() {
    let mut cluster = begun(&[1, 2, 3], 19);
    reach(&mut cluster, 6);
    all(&mut cluster, Cause::Rollback);
    cluster.mislay(WorkerId(2));
    cluster.steps(5);
    cluster.pause(&workers(&[1, 2, 3]));
    let record = planner::plan(&cluster, &workers(&[1, 2, 3]), Cause::Lost);
    cluster.begin(record);
    cluster.finish();
    assert_eq!(&outcome(&cluster), reference());
}

#[test]
fn the_end_of_the_run_is_done_again_in_a_generation_that_begins_after_it() {
    let mut cluster = begun(&[1, 2, 3], 23);
    cluster.until("all have trained the last step", |it| {
        let committed = |worker| it.core(worker).member().map(|member| member.committed());
        [1, 2, 3].into_iter().all(|worker| committed(worker) == Some(Step(STEPS)))
    });
    cluster.kill(WorkerId(1));
    all(&mut cluster, Cause::Lost);
    assert_eq!(cluster.record.as_ref().map(|record| record.resume), Some(Step(STEPS)));
    cluster.finish();
    assert_eq!(&outcome(&cluster), reference());
}

#[derive(Clone, Copy, Debug)]
pub enum Change {
    Kill(u64),
    LeaveOut(u64),
    Renew,
    Mislay(u64),
    Join,
    Feed(u64),
    Hold,
    Wait,
    Rollback,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (0..4u64).prop_map(Change::Kill),
        2 => (0..4u64).prop_map(Change::LeaveOut),
        2 => Just(Change::Renew),
        2 => (0..4u64).prop_map(Change::Mislay),
        4 => Just(Change::Join),
        2 => (0..4u64).prop_map(Change::Feed),
        1 => Just(Change::Hold),
        1 => Just(Change::Wait),
        1 => Just(Change::Rollback),
    ]
}

/// The members go on, and every ready worker joins them.
fn next(cluster: &mut Cluster, cause: Cause) {
    let ready = |worker: &WorkerId| cluster.heard(*worker).is_some_and(|said| said.ready);
    let mut members = cluster.members();
    members.retain(|member| cluster.nodes[member].alive);
    let joining: Vec<_> = cluster.alive().into_iter().filter(ready).collect();
    let others: Vec<_> = joining.into_iter().filter(|it| !members.contains(it)).collect();
    members.extend(others);
    cluster.change(&members, cause);
}

/// The others go on without a member that lives, and has not heard of it.
fn leave_out(cluster: &mut Cluster, suspect: WorkerId) {
    let mut others = cluster.members();
    others.retain(|member| *member != suspect && cluster.nodes[member].alive);
    cluster.pause(&others);
    cluster.steps(30);
    let record = planner::plan(cluster, &others, Cause::Lost);
    cluster.begin(record);
    cluster.mislay(suspect);
    cluster.steps(30);
    cluster.kill(suspect);
}

/// Whether every shard has another living owner that is a member.
fn can_spare(cluster: &Cluster, worker: WorkerId) -> bool {
    let record = cluster.record.as_ref().expect("a generation");
    let id = |rank| record.member(rank).worker;
    record.owners.iter().all(|ownership| {
        let mut owners = ownership.owners.iter().map(|rank| id(*rank));
        owners.any(|owner| owner != worker && cluster.nodes[&owner].alive)
    })
}

pub fn apply(cluster: &mut Cluster, change: Change) {
    match change {
        Change::Kill(which) => {
            let members = cluster.members();
            let victim = members[which as usize % members.len()];
            if cluster.nodes[&victim].alive && can_spare(cluster, victim) {
                cluster.kill(victim);
                next(cluster, Cause::Lost);
            }
        }
        Change::LeaveOut(which) => {
            let members = cluster.members();
            let suspect = members[which as usize % members.len()];
            if cluster.nodes[&suspect].alive && can_spare(cluster, suspect) {
                leave_out(cluster, suspect);
            }
        }
        Change::Renew => next(cluster, Cause::Lost),
        Change::Mislay(which) => {
            next(cluster, Cause::Lost);
            let members = cluster.members();
            cluster.mislay(members[which as usize % members.len()]);
        }
        Change::Join => {
            let worker = WorkerId(cluster.nodes.len() as u64 + 1);
            cluster.join(worker);
            cluster.until("it knows the generation", |it| {
                it.core(worker.0).generation() == it.number()
            });
            let spared = worker.0 as u32 % 3;
            let shards: Vec<u32> = (0..3).filter(|shard| *shard != spared).collect();
            cluster.feed(worker, &shards);
            let ready = |it: &Cluster| it.heard(worker).is_some_and(|said| said.ready);
            cluster.until("it is ready", |it| ready(it) || it.is_over());
            next(cluster, Cause::Join);
        }
        Change::Feed(which) => {
            let alive = cluster.alive();
            let worker = alive[which as usize % alive.len()];
            let record = cluster.record.as_ref().expect("a generation");
            let owns = |shard: &u32| {
                let rank = record.rank(worker);
                rank.is_some_and(|rank| record.owners_of(Shard(*shard)).contains(&rank))
            };
            let shards: Vec<u32> = (0..3).filter(|shard| !owns(shard)).collect();
            cluster.feed(worker, &shards);
        }
        Change::Hold => {
            let (leader, generation) = (cluster.members()[0], cluster.number());
            cluster.say(leader, Message::Hold { term: TERM, generation });
        }
        Change::Wait => {
            let members = cluster.members();
            wait_with(cluster, &members);
            cluster.steps(50);
            next(cluster, Cause::Lost);
        }
        Change::Rollback => next(cluster, Cause::Rollback),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Invariants I3, I4, I7, I13, I16, I18, I19, after any changes.
    #[test]
    fn any_changes_at_any_time_make_the_bits_of_one_worker(
        seed in any::<u64>(),
        changes in prop::collection::vec((change(), 0..600u64), 0..10),
        every in prop::option::of(1..6u64),
    ) {
        let mut cluster = begun_with(&[1, 2, 3], seed, every);
        for (change, pause) in changes {
            cluster.steps(pause);
            apply(&mut cluster, change);
        }
        cluster.finish();
        prop_assert_eq!(&outcome(&cluster), reference());
    }
}
