//! The model's file: the worker waits out what keeps it from writing, and that costs nothing else.
//! A worker reports a run that it cannot compute, and builds another one.

use std::time::Duration;

use everstep_transport::protocol::outcome::Inability;
use everstep_transport::protocol::{Cause, Message, RunSpec, Step, WorkerId};
use everstep_worker::step::event::{Effect, FileJob, FileReport, Input, Report};

use crate::cluster::toy_store::MODEL_PATH;
use crate::cluster::{Cluster, run};
use crate::generations::{begun, begun_with, outcome, reference};
use crate::solo::{LINK, Solo, TERM};
use crate::support::MEMBERS;

/// The bits of the model that a worker has written.
fn model(cluster: &Cluster, worker: WorkerId) -> Vec<Vec<u32>> {
    cluster.nodes[&worker].toy_file.model.clone().into_values().collect()
}

fn disk(cluster: &mut Cluster, worker: WorkerId, [full, torn]: [u32; 2]) {
    let toy_file = &mut cluster.nodes.get_mut(&worker).expect("a worker").toy_file;
    (toy_file.full, toy_file.torn) = (full, torn);
}

#[test]
fn a_disk_that_fails_is_waited_out_and_every_weight_arrives() {
    for (seed, errors) in [(1, [2, 0]), (2, [0, 1]), (3, [1, 2])] {
        let mut cluster = begun(&[1, 2, 3], seed);
        let writer = cluster.record.as_ref().expect("a generation").step_leader();
        disk(&mut cluster, writer, errors);
        cluster.until("it says why it waits", |cluster| {
            cluster.heard(writer).is_some_and(|heartbeat| heartbeat.unwritten.is_some())
        });
        assert_eq!(cluster.durable, None);
        cluster.finish();
        assert_eq!((cluster.durable, &cluster.failures[..]), (Some(writer), &[][..]));
        assert_eq!(model(&cluster, writer), reference().0);
        cluster.until("nothing is wrong any more", |cluster| {
            cluster.heard(writer).is_some_and(|heartbeat| heartbeat.unwritten.is_none())
        });
    }
}

#[test]
fn i22_the_model_of_a_run_with_a_store_goes_there_once_its_file_is_durable() {
    let mut cluster = begun_with(&[1, 2, 3], 4, Some(5));
    let writer = cluster.record.as_ref().expect("a generation").step_leader();
    cluster.until("it is stored", |cluster| !cluster.stored.is_empty());
    assert_eq!(cluster.stored, [(writer, MODEL_PATH.to_string())]);
    assert_eq!(cluster.durable, Some(writer), "the file was durable before");
    assert_eq!(model(&cluster, writer), reference().0);
    // The next leader asks again, and hears it again.
    cluster.tell_to_write(writer);
    cluster.until("it says so again", |cluster| cluster.stored.len() == 2);
}

/// Found by a simulation: the store's thread drops the copy for a restore, and the run never ended.
#[test]
fn i22_a_model_goes_to_the_store_although_its_run_goes_back_to_the_last_step() {
    let mut cluster = begun_with(&[1, 2, 3], 4, Some(6));
    cluster.store.fails_models = true;
    cluster.until("the last step is listed", |it| it.store.listed.contains_key(&Step(12)));
    cluster.until("the file is durable", |cluster| cluster.durable.is_some());
    cluster.change(&cluster.alive(), Cause::Rollback);
    cluster.store.mend();
    cluster.until("the model is stored", |cluster| !cluster.stored.is_empty());
    cluster.finish();
    assert_eq!(&outcome(&cluster), reference());
}

#[test]
fn a_model_without_a_store_stays_a_file() {
    let mut cluster = begun(&[1, 2], 4);
    cluster.finish();
    cluster.steps(200);
    assert_eq!(cluster.stored, []);
}

#[test]
fn another_member_writes_where_the_first_cannot() {
    let mut cluster = begun(&[1, 2, 3], 5);
    let first = cluster.record.as_ref().expect("a generation").step_leader();
    disk(&mut cluster, first, [u32::MAX, 0]);
    cluster.until("the first fails", |cluster| {
        cluster.heard(first).is_some_and(|heartbeat| heartbeat.unwritten.is_some())
    });
    let second = cluster.members()[1];
    cluster.tell_to_write(second);
    cluster.finish();
    assert_eq!(cluster.durable, Some(second));
    assert_eq!(model(&cluster, second), reference().0);
}

/// The directory of the first is on a file server that is away. Its weights still reach the other.
#[test]
fn another_member_writes_where_the_directory_of_the_first_does_not_answer() {
    let mut cluster = begun(&[1, 2, 3], 5);
    let first = cluster.record.as_ref().expect("a generation").step_leader();
    cluster.nodes.get_mut(&first).expect("a worker").toy_file.is_silent = true;
    cluster.until("the first does not write", |cluster| {
        let unwritten = cluster.heard(first).and_then(|heartbeat| heartbeat.unwritten.as_ref());
        unwritten.is_some_and(|reason| reason.contains("has not answered"))
    });
    let second = cluster.members()[1];
    cluster.tell_to_write(second);
    cluster.finish();
    assert_eq!(cluster.durable, Some(second));
    assert_eq!(model(&cluster, second), reference().0);
    cluster.nodes.get_mut(&first).expect("a worker").toy_file.is_silent = false;
    cluster.until("the first writes, too", |cluster| cluster.durable == Some(first));
    assert_eq!(model(&cluster, first), reference().0);
}

#[test]
fn a_worker_whose_run_is_over_forgets_a_file_that_is_not_complete() {
    let mut cluster = begun(&[1, 2, 3], 5);
    let first = cluster.record.as_ref().expect("a generation").step_leader();
    cluster.nodes.get_mut(&first).expect("a worker").toy_file.is_silent = true;
    cluster.until("it opens", |cluster| cluster.nodes[&first].toy_file.newest_job().is_some());
    cluster.say(first, Message::Released { term: TERM });
    let newest = cluster.nodes[&first].toy_file.newest_job();
    assert!(matches!(newest, Some(FileJob::Close)), "{newest:?}");
}

/// A generation begins while the directory does not answer. What it says of the file before counts
/// no more.
#[test]
fn a_file_of_an_earlier_generation_says_nothing_of_the_next() {
    let mut cluster = begun(&[1, 2, 3], 5);
    let first = cluster.record.as_ref().expect("a generation").step_leader();
    cluster.nodes.get_mut(&first).expect("a worker").toy_file.is_silent = true;
    cluster.until("all are done", |cluster| cluster.results.len() == 3);
    let before = cluster.number();
    cluster.change(&cluster.alive(), Cause::Rollback);
    cluster.until("all are done again", |cluster| cluster.results.len() == 3);
    cluster.give(first, Input::File(before, FileReport::Written));
    assert_eq!(cluster.durable, None);
    cluster.nodes.get_mut(&first).expect("a worker").toy_file.is_silent = false;
    cluster.finish();
    assert_eq!(model(&cluster, first), reference().0);
}

#[test]
fn a_worker_beside_the_generation_writes_where_no_member_can() {
    let mut cluster = begun(&[1, 2, 3], 6);
    let members = cluster.members();
    disk(&mut cluster, members[0], [u32::MAX, 0]);
    cluster.until("all are done", |cluster| cluster.results.len() == 3);
    let late = WorkerId(9);
    cluster.join(late);
    cluster.announce_to(late);
    cluster.feed(late, &[]);
    cluster.tell_to_write(late);
    cluster.finish();
    assert_eq!(cluster.durable, Some(late));
    assert_eq!(model(&cluster, late), reference().0);
}

#[test]
fn a_worker_that_was_not_told_writes_nothing() {
    let mut cluster = Cluster::new(&[1, 2], run(12), 7);
    cluster.writes = false;
    cluster.change(&[WorkerId(1), WorkerId(2)], everstep_transport::protocol::Cause::Start);
    cluster.until("all are done", |cluster| cluster.results.len() == 2);
    cluster.steps(2_000);
    assert_eq!(cluster.durable, None);
    assert_eq!(cluster.committed(), Step(12));
}

fn reasons(solo: &mut Solo) -> Vec<String> {
    let told = solo.told().into_iter();
    let reason = |message| match message {
        Message::Unable { reason, .. } => Some(reason),
        Message::Failed { reason, .. } => panic!("it ends: {reason}"),
        _ => None,
    };
    told.filter_map(reason).collect()
}

/// A build has failed.
fn fails(solo: &mut Solo, inability: Inability, reason: &str) {
    solo.give(Input::BuildFailed { inability, reason: reason.into() });
}

/// Seconds until the core builds its device again. None if it has not after `most`.
fn seconds_until_built(solo: &mut Solo, most: u64) -> Option<u64> {
    let is_build = |effect: &Effect| matches!(effect, Effect::Build(_));
    (1..=most).find(|_| {
        solo.now = solo.now + Duration::from_secs(1);
        solo.give(Input::Tick);
        solo.took().iter().any(is_build)
    })
}

#[test]
fn what_a_place_lacks_is_waited_out_and_the_run_is_built_again() {
    let mut solo = Solo::new();
    solo.connect(LINK);
    solo.hear(Message::Welcome { run: run(3), term: TERM });
    solo.took();
    let pauses = [(); 5].map(|()| {
        fails(&mut solo, Inability::Place, "no memory");
        let told = Message::Unable { inability: Inability::Place, reason: "no memory".into() };
        assert!(solo.told().contains(&told));
        seconds_until_built(&mut solo, 120)
    });
    assert_eq!(pauses, [5, 10, 20, 30, 30].map(Some));
    solo.give(Input::Built(Cluster::built()));
    assert!(solo.told().iter().any(|said| matches!(said, Message::Register(_))));
}

#[test]
fn a_worker_with_other_data_waits_long_and_then_reads_its_data_again() {
    let mut solo = Solo::new();
    solo.connect(LINK);
    let welcome = Message::Welcome { run: run(3), term: TERM };
    solo.hear(welcome.clone());
    let refusal = Message::Unable { inability: Inability::Place, reason: "other data".into() };
    solo.hear(refusal.clone());
    assert_eq!(reasons(&mut solo), [""; 0], "it has stated no data that anybody could refuse");
    for _ in 0..2 {
        solo.give(Input::Built(Cluster::built()));
        solo.hear(refusal.clone());
        assert_eq!(reasons(&mut solo), [""; 0], "the leader knows it");
        solo.hear(welcome.clone());
        assert_eq!(reasons(&mut solo), ["other data"], "a new leader does not");
        assert_eq!(seconds_until_built(&mut solo, 700), Some(600));
    }
}

#[test]
fn a_run_that_others_go_on_with_is_tried_again_whatever_the_reason() {
    let mut solo = Solo::new();
    solo.connect(LINK);
    solo.hear(Message::Welcome { run: run(3), term: TERM });
    solo.took();
    for _ in 0..2 {
        fails(&mut solo, Inability::Run, "no such file");
        assert_eq!(seconds_until_built(&mut solo, 120), Some(30));
    }
}

#[test]
fn a_run_that_cannot_be_built_is_told_of_and_the_next_one_is_built() {
    let mut solo = Solo::new();
    solo.connect(LINK);
    let welcome = |run: &RunSpec| Message::Welcome { run: run.clone(), term: TERM };
    let missing = run(3);
    solo.hear(welcome(&missing));
    fails(&mut solo, Inability::Run, "no such file");
    assert_eq!(reasons(&mut solo), ["no such file"]);
    solo.hear(welcome(&missing));
    assert_eq!(reasons(&mut solo), ["no such file"], "a leader that did not hear it hears it");
    solo.hear(Message::Released { term: TERM });
    let next = run(4);
    solo.hear(welcome(&next));
    let built = |effect: &Effect| matches!(effect, Effect::Build(run) if *run == next);
    assert!(solo.took().iter().any(built));
}

#[test]
fn a_sample_that_cannot_be_filled_ends_the_run_and_not_the_worker() {
    let mut solo = Solo::member(1);
    solo.took();
    let reason = "the data set cannot fill sample 7".into();
    solo.report(Report::Unable { inability: Inability::Run, reason });
    assert_eq!(reasons(&mut solo), ["the data set cannot fill sample 7"]);
    solo.hear_on(LINK, Message::Registered { worker: MEMBERS[1], term: TERM });
    let told = reasons(&mut solo);
    assert!(!told.is_empty(), "whoever leads now hears it, too");
    assert_eq!(seconds_until_built(&mut solo, 120), None, "the run is about to end");
    solo.hear(Message::Released { term: TERM });
    assert!(solo.told().iter().any(|said| matches!(said, Message::Hello { worker: None, .. })));
}
