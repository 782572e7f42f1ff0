use super::*;

fn cannot(world: &mut World, link: LinkId) {
    let (inability, reason) = (Inability::Run, "no such file: /data\n".into());
    world.say(link, Message::Unable { inability, reason });
}

/// The worker on this link lacks memory.
fn cannot_yet(world: &mut World, link: LinkId) {
    let (inability, reason) = (Inability::Place, "no memory".into());
    world.say(link, Message::Unable { inability, reason });
}

fn status(world: &World) -> String {
    world.core.runs(world.now).pop().expect("a run").status
}

#[test]
fn a_run_that_nobody_can_build_fails_at_once_with_the_words_and_the_next_one_is_told() {
    let mut world = World::with_run(run_of(2));
    world.found(false);
    let links = ["worker-1", "worker-2"].map(|name| world.greeted(name));
    cannot(&mut world, links[0]);
    assert!(world.running(), "the other one builds it still");
    let words = "starting: 0 of 2 workers registered, but worker-1 cannot compute the run: no \
                 such file: /data\\n";
    assert_eq!(world.core.runs(world.now).pop().expect("a run").status, words);
    assert_eq!(world.watch(0, 0).unable.len(), 1);
    cannot(&mut world, links[0]);
    cannot(&mut world, links[1]);
    let expected = "worker-1 cannot compute it, nor can another worker: no such file: /data\\n";
    assert_eq!(world.failure(), expected);
    let told = |kind: &&EventKind| matches!(kind, EventKind::Unable { .. });
    assert_eq!(world.events().iter().filter(told).count(), 2, "each is told of once");

    for link in links {
        assert!(world.words(link).contains(&"released"), "it waits for the next run");
        world.say(link, Message::Hello { worker: None });
    }
    world.request(7, OperatorCommand::Submit(RunSpec { seed: 9, ..run_of(2) }.into()));
    for link in links {
        assert_eq!(world.words(link), ["welcome"]);
    }
}

#[test]
fn a_run_that_has_workers_enough_begins_without_those_that_cannot() {
    let mut world = World::with_run(run_of(2));
    let unable = world.greeted("worker-9");
    let links = ["worker-1", "worker-2"].map(|name| world.greeted(name));
    cannot(&mut world, unable);
    world.pass(10_000, &[]);
    assert!(world.running(), "two build it, and two are enough");
    for link in links {
        world.workers.insert(link, Actor::default());
        world.say(link, Message::Register(registration(link.0)));
    }
    assert_eq!(world.generation(), Generation(1));
    let late = world.greeted("worker-8");
    cannot(&mut world, late);
    world.pass(5_000, &links);
    assert!(world.running(), "a run under way needs nobody else");
    assert!(world.watch(0, 0).unable.is_empty());
}

/// The build may hang, and the worker's network thread answers all the same.
#[test]
fn a_run_says_that_a_build_takes_very_long() {
    let mut world = World::with_run(run_of(1));
    let link = world.greeted("worker-1");
    world.pass(599_000, &[]);
    assert_eq!(status(&world), "starting: 0 of 1 worker registered");
    world.pass(2_000, &[]);
    let words = "starting: 0 of 1 worker registered, but worker-1 cannot compute yet: its build of \
                 the model and the data has taken 600s so far";
    assert_eq!(status(&world), words);
    let told = |kind: &&EventKind| matches!(kind, EventKind::Unable { .. });
    world.pass(700_000, &[]);
    assert_eq!(world.events().iter().filter(told).count(), 1);
    world.workers.insert(link, Actor::default());
    world.say(link, Message::Register(registration(link.0)));
    assert_eq!(world.generation(), Generation(1), "it was only slow");
}

/// It was not refused, so it need not begin again when another worker says which data are right.
#[test]
fn a_slow_build_goes_on_when_another_worker_registers_first() {
    let mut world = World::with_run(run_of(2));
    world.found(false);
    let slow = world.greeted("worker-1");
    world.pass(601_000, &[]);
    assert_eq!(world.watch(0, 0).unable.len(), 1);
    world.hear(slow);
    world.worker("worker-2");
    assert_eq!(world.words(slow), Vec::<&str>::new());
    world.say(slow, Message::Register(registration(slow.0)));
    assert!(world.words(slow).contains(&"registered"));
}

#[test]
fn a_run_that_waits_for_more_fails_after_three_seconds() {
    let mut world = World::with_run(run_of(3));
    let (unable, _building) = (world.greeted("worker-1"), world.greeted("worker-2"));
    cannot(&mut world, unable);
    world.pass(2_900, &[]);
    assert!(world.running());
    world.pass(200, &[]);
    assert_eq!(world.failure(), "worker-1 cannot compute it: no such file: /data\\n");
}

#[test]
fn a_member_that_cannot_compute_ends_the_run_and_nobody_is_lost() {
    let (mut world, links) = World::training(3);
    let worker = world.id(links[1]);
    cannot(&mut world, links[1]);
    cannot(&mut world, links[1]);
    let expected = format!("worker 2 (id {worker}) cannot compute it: no such file: /data\\n");
    assert_eq!(world.failure(), expected);
    let lost = |kind: &EventKind| matches!(kind, EventKind::Lost { .. });
    assert!(!world.events().iter().any(lost));
}

#[test]
fn what_a_worker_says_of_a_run_that_is_over_does_not_count() {
    let mut world = World::with_run(run_of(2));
    world.found(false);
    let link = world.greeted("worker-1");
    world.cancel(1);
    world.request(2, OperatorCommand::Submit(RunSpec { seed: 9, ..run_of(2) }.into()));
    cannot(&mut world, link);
    world.pass(5_000, &[]);
    assert!(world.running());
}

#[test]
fn a_run_waits_for_a_worker_whose_place_cannot_compute_it_yet() {
    let mut world = World::with_run(run_of(1));
    let link = world.greeted("worker-1");
    cannot_yet(&mut world, link);
    for _ in 0..4 {
        world.pass(15_000, &[]);
        cannot_yet(&mut world, link);
    }
    assert!(world.running(), "it may be able to one day");
    let words = "starting: 0 of 1 worker registered, but worker-1 cannot compute yet: no memory";
    assert_eq!(status(&world), words);
    let told = |kind: &&EventKind| matches!(kind, EventKind::Unable { .. });
    assert_eq!(world.events().iter().filter(told).count(), 1, "it is told once");
    world.workers.insert(link, Actor::default());
    world.say(link, Message::Register(registration(link.0)));
    assert_eq!((world.generation(), world.watch(0, 0).unable), (Generation(1), vec![]));
}

#[test]
fn a_run_that_one_worker_cannot_compute_fails_though_another_may_be_able_to_one_day() {
    let mut world = World::with_run(run_of(2));
    let links = ["worker-1", "worker-2"].map(|name| world.greeted(name));
    cannot_yet(&mut world, links[0]);
    cannot(&mut world, links[1]);
    world.pass(2_900, &[]);
    assert!(world.running());
    world.pass(200, &[]);
    assert_eq!(world.failure(), "worker-2 cannot compute it: no such file: /data\\n");
}

#[test]
fn a_run_under_way_names_a_worker_that_would_join_and_lacks_memory() {
    let (mut world, links) = World::training(2);
    let late = world.greeted("worker-8");
    cannot_yet(&mut world, late);
    world.pass(1_000, &links);
    let words = "training: step 0 of 20 with 2 workers, but worker-8 cannot compute yet: no memory";
    assert_eq!(status(&world), words);
    cannot(&mut world, late);
    world.pass(5_000, &links);
    assert!(world.running());
    assert_eq!(status(&world), "training: step 0 of 20 with 2 workers");
    world.workers.insert(late, Actor::default());
    world.say(late, Message::Register(registration(late.0)));
    assert_eq!(world.words(late), ["welcome", "registered"], "it has tried again");
}

#[test]
fn a_member_whose_place_fails_is_given_up_and_the_run_goes_on() {
    let (mut world, links) = World::training(3);
    world.commit(1..=3);
    world.workers.remove(&links[1]); // The worker holds nothing any more, and answers no Pause.
    cannot_yet(&mut world, links[1]);
    world.pass(500, &[links[0], links[2]]);
    assert_eq!((world.members().len(), world.record().resume), (2, Step(3)));
    assert!(world.words(links[1]).contains(&"evicted"), "it may begin again, and come back");
}
