//! The trained model of a run with a store of checkpoints: it is complete there, or not at all.

use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::protocol::{ModelPlace, OnFailure};

use super::checkpoints::{complete, id, saving, settle};
use super::results::digests_of;
use super::*;

fn in_store() -> ModelPlace {
    ModelPlace { host: String::new(), path: "/store/model.safetensors".into() }
}

/// Every member has done its part, and the last checkpoint is listed. No file is durable.
fn train(run: RunSpec) -> (World, Vec<LinkId>) {
    let (mut world, links) = World::training_as(run);
    settle(&mut world, links[0], 1..=20);
    complete(&mut world, &links, id(20, 1));
    links.iter().for_each(|link| finish(&mut world, *link));
    links.iter().for_each(|link| drop(world.hear(*link)));
    (world, links)
}

/// A member has done its part.
fn finish(world: &mut World, link: LinkId) {
    let (digests, worker) = (digests_of(world, link, [1; 32]), world.id(link));
    world.say(link, Message::Finished(WorkerResult { worker, digests, ..WorkerResult::default() }));
}

/// The workers live. The store fails those that `fails` names.
fn pass_away(world: &mut World, seconds: u64, links: &[LinkId], fails: &[LinkId]) {
    for _ in 0..seconds * 4 {
        for link in links {
            let error = fails.contains(link).then(|| "no route".to_string());
            world.beat_with(*link, |heartbeat| heartbeat.store_error = error);
        }
        world.pass(250, &[]);
    }
}

fn told(world: &mut World, link: LinkId) -> usize {
    world.words(link).iter().filter(|word| **word == "write").count()
}

/// I22: the outcome names the place in the store.
#[test]
fn i22_a_run_with_a_store_is_complete_when_the_store_has_its_model() {
    let (mut world, links) = train(saving(2));
    world.say(links[0], Message::Written(place()));
    assert!(world.running(), "a worker's file is not the store's");
    let elsewhere = ModelPlace { path: "/elsewhere/model.safetensors".into(), ..in_store() };
    world.say(links[0], Message::Stored(elsewhere));
    let odd = ModelPlace { host: "a\u{1b}[2J".into(), ..in_store() };
    world.say(links[0], Message::Stored(odd));
    assert!(world.running(), "that is not the run's store");
    world.say(links[0], Message::Stored(in_store()));
    assert!(matches!(world.core.state().outcome(), Outcome::Complete(_)));
    let complete = EventKind::Complete { step: Step(20), model: Some(in_store()) };
    assert_eq!(world.events().last(), Some(&complete));
    let run = world.core.runs(world.now).pop().expect("it is listed");
    assert_eq!(run.status, "complete: all 20 steps, and the model is /store/model.safetensors");
}

#[test]
fn a_model_that_is_stored_before_the_last_step_counts_for_nothing() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=19);
    let before = world.core.ignored();
    world.say(links[0], Message::Stored(in_store()));
    assert_eq!(world.core.ignored(), before + 1);
}

#[test]
fn workers_without_a_directory_write_to_the_store() {
    let mut world = World::with_run(saving(2));
    let links: Vec<_> = (1..=2)
        .map(|number| {
            let node = format!("worker-{number}");
            let link = world.greeted(&node);
            world.workers.insert(link, Actor { node, ..Actor::default() });
            let model = None;
            world.say(link, Message::Register(Registration { model, ..registration(link.0) }));
            link
        })
        .collect();
    assert_eq!(world.generation(), Generation(1), "it has begun");
    assert!(!world.events().contains(&EventKind::NoStore));
    assert_eq!((told(&mut world, links[0]), told(&mut world, links[1])), (1, 0));
}

/// The writer is killed at the worst moment: its file is durable, and the store lacks it.
#[test]
fn i22_another_worker_takes_over_from_a_writer_that_dies_before_the_store_has_its_file() {
    let (mut world, links) = train(saving(3));
    world.say(links[0], Message::Written(place()));
    world.kill(links[0]);
    assert!(world.running());
    world.pass(1_000, &links[1..]);
    assert!(told(&mut world, links[1]) > 0);
    links[1..].iter().for_each(|link| finish(&mut world, *link));
    assert!(world.running());
    world.say(links[1], Message::Stored(in_store()));
    assert!(!world.running());
}

#[test]
fn a_writer_that_the_store_fails_gives_way_to_another_one() {
    let (mut world, links) = train(saving(2));
    world.say(links[0], Message::Written(place()));
    pass_away(&mut world, 8, &links, &links[..1]);
    assert_eq!(told(&mut world, links[1]), 0);
    let view = world.core.cluster_view(world.now);
    let (state, words) = crate::run_status::run_status(&view);
    assert_eq!(state, "waiting");
    assert!(words.contains("cannot use the store of the checkpoints: no route"), "{words}");
    pass_away(&mut world, 4, &links, &links[..1]);
    assert!(told(&mut world, links[1]) > 0);
    world.say(links[1], Message::Stored(in_store()));
    assert!(!world.running());
}

/// Found by a simulation: one generation after the other was to free a worker, and no plan let one
/// go before the others.
#[test]
fn i11_workers_of_a_trained_run_that_are_all_to_leave_wait_for_its_end() {
    let (mut world, links) = train(saving(3));
    world.say(links[0], Message::Written(place()));
    links.iter().for_each(|link| world.say(*link, Message::Leave));
    pass_away(&mut world, 8, &links, &links);
    assert_eq!(world.generation(), Generation(1));
    world.say(links[0], Message::Stored(in_store()));
    assert!(!world.running());
}

/// The rule of the last checkpoint decides: a run that goes on without checkpoints ends with the
/// file of a worker, and says so. Any other run waits.
#[test]
fn i22_a_store_that_is_away_for_good_is_waited_for_as_the_run_wants() {
    for (on_failure, ends) in [(OnFailure::Continue, true), (OnFailure::Pause, false)] {
        let mut run = saving(2);
        run.checkpoint.as_mut().expect("it saves").on_failure = on_failure;
        let (mut world, links) = train(run);
        pass_away(&mut world, 80, &links, &links);
        assert!(world.running(), "no file is durable anywhere");
        world.say(links[0], Message::Written(place()));
        pass_away(&mut world, 1, &links, &links);
        assert_eq!(world.running(), !ends, "{on_failure:?}");
        if ends {
            let complete = EventKind::Complete { step: Step(20), model: Some(place()) };
            assert_eq!(world.events().last(), Some(&complete));
        }
    }
}

/// Found by a simulation: the store answered again, and the network failed before the writer could
/// say so.
#[test]
fn i22_a_writer_that_is_not_heard_does_not_say_that_the_store_is_away() {
    let (mut world, links) = train(saving(2));
    world.say(links[0], Message::Written(place()));
    pass_away(&mut world, 2, &links, &links);
    world.pass(40_000, &[]);
    assert!(world.running());
    world.say(links[0], Message::Stored(in_store()));
    assert!(!world.running());
}

/// The run lacks a member's result for so long. Then the store may have answered.
#[test]
fn i22_what_a_writer_said_of_the_store_before_a_silence_does_not_end_the_run() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=20);
    complete(&mut world, &links, id(20, 1));
    finish(&mut world, links[0]);
    world.say(links[0], Message::Written(place()));
    pass_away(&mut world, 40, &links, &links);
    world.pass(5_000, &[]);
    finish(&mut world, links[1]);
    assert!(world.running());
}

#[test]
fn another_leader_hears_of_the_stored_model_again() {
    let (mut world, links) = train(saving(2));
    world.say(links[0], Message::Written(place()));
    world.restart();
    let again = world.relink(links[0]);
    world.pass(100, &[again]);
    assert!(told(&mut world, again) > 0, "the worker answers with what it has");
}
