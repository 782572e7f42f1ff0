use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::protocol::{ModelAwaited, ModelPlace, WriteFailure};

use super::results::digests_of;
use super::*;

/// Every member has done its part, and every line is there. No file is durable.
fn train(world: &mut World, links: &[LinkId]) {
    world.commit(1..=20);
    world.report_lines(links[0], 1..=20);
    for link in links {
        let (digests, worker) = (digests_of(world, *link, [1; 32]), world.id(*link));
        let result = WorkerResult { worker, digests, ..WorkerResult::default() };
        world.say(*link, Message::Finished(result));
    }
}

/// A run of workers with these directories, by node name and path.
fn run_with(places: &[Option<(&str, &str)>]) -> (World, Vec<LinkId>) {
    let mut world = World::with_run(run_of(places.len() as u32));
    let links: Vec<_> =
        (1..).zip(places).map(|(number, place)| join(&mut world, number, *place)).collect();
    assert_eq!(world.generation(), Generation(1), "it has begun");
    (world, links)
}

fn place_at((host, path): (&str, &str)) -> ModelPlace {
    ModelPlace { host: host.into(), path: path.into() }
}

fn join(world: &mut World, number: u64, place: Option<(&str, &str)>) -> LinkId {
    let node = format!("worker-{number}");
    let link = world.greeted(&node);
    world.workers.insert(link, Actor { node, ..Actor::default() });
    let model = place.map(place_at);
    world.say(link, Message::Register(Registration { model, ..registration(link.0) }));
    link
}

fn told(world: &mut World, link: LinkId) -> usize {
    world.words(link).iter().filter(|word| **word == "write").count()
}

fn fail(world: &mut World, link: LinkId) {
    world.beat_with(link, |heartbeat| heartbeat.unwritten = Some("no space left".into()));
}

/// The workers live. The disk of the worker `full` is full.
fn pass_full(world: &mut World, seconds: u64, links: &[LinkId], full: LinkId) {
    for _ in 0..seconds * 4 {
        fail(world, full);
        links.iter().filter(|link| **link != full).for_each(|link| world.beat(*link));
        world.pass(250, &[]);
    }
}

/// I22: a run is complete only when its model is durable, and its outcome names the place.
#[test]
fn i22_a_run_is_complete_when_its_model_is_durable_and_says_where() {
    let (mut world, links) = World::training(2);
    train(&mut world, &links);
    assert!(world.running(), "no file is durable");
    let elsewhere = place_at(("node", "/tmp/model.safetensors"));
    world.say(links[0], Message::Written(elsewhere));
    assert!(world.running(), "that is not the file that the worker registered with");
    world.say(links[0], Message::Written(place()));
    assert!(matches!(world.core.state().outcome(), Outcome::Complete(_)));
    let complete = EventKind::Complete { step: Step(20), model: Some(place()) };
    assert_eq!(world.events().last(), Some(&complete));
    let past = world.core.state().past_runs().back().expect("it is over");
    assert_eq!(past.figures.model, Some(place()));
    let run = world.core.runs(world.now).pop().expect("it is listed");
    assert_eq!(run.status, "complete: all 20 steps, and the model is node:/runs/model.safetensors");
}

#[test]
fn the_first_member_that_has_a_directory_is_told_to_write_in_each_generation() {
    let (mut world, links) = run_with(&[None, Some(("b", "/m")), Some(("c", "/m"))]);
    let counts: Vec<_> = links.iter().map(|link| told(&mut world, *link)).collect();
    assert_eq!(counts, [0, 1, 0]);
    world.kill(links[1]);
    assert_eq!(world.generation(), Generation(2));
    assert_eq!((told(&mut world, links[0]), told(&mut world, links[2])), (0, 1));
}

#[test]
fn a_full_disk_is_told_of_and_after_ten_seconds_another_place_is_tried() {
    let (mut world, links) = run_with(&[Some(("a", "/m")), Some(("a", "/m")), Some(("b", "/m"))]);
    train(&mut world, &links);
    links.iter().for_each(|link| drop(world.hear(*link)));
    pass_full(&mut world, 8, &links, links[0]);
    let failure = WriteFailure {
        worker: world.id(links[0]),
        number: 1,
        place: place_at(("a", "/m")),
        reason: "no space left".into(),
    };
    let unwritten = EventKind::Unwritten { failure: failure.clone() };
    let count = world.events().iter().filter(|kind| **kind == unwritten).count();
    assert_eq!(count, 1, "it is told once");
    let awaited = world.watch(0, 0).model_awaited.expect("it says what it waits for");
    assert_eq!(awaited.failed, Some(failure));
    assert_eq!((told(&mut world, links[1]), told(&mut world, links[2])), (0, 0));
    pass_full(&mut world, 4, &links, links[0]);
    assert_eq!(told(&mut world, links[1]), 0, "it has the same directory");
    assert!(told(&mut world, links[2]) > 0);
    assert_eq!(world.watch(0, 0).model_awaited, None, "it is being written");
    world.say(links[2], Message::Written(place_at(("b", "/m"))));
    assert!(!world.running());
}

#[test]
fn a_run_without_any_directory_says_what_to_start_and_such_a_worker_writes() {
    let (mut world, links) = run_with(&[None, None]);
    assert!(world.events().contains(&EventKind::NoStore), "it is said at the beginning");
    train(&mut world, &links);
    world.pass(500, &links);
    let awaited = world.watch(0, 0).model_awaited;
    assert!(matches!(awaited, Some(ModelAwaited { failed: None, .. })), "{awaited:?}");
    let late = join(&mut world, 3, Some(("c", "/m")));
    links.iter().for_each(|link| drop(world.hear(*link)));
    world.pass(200, &links);
    let words = world.words(late);
    let order: Vec<_> =
        words.iter().filter(|word| ["announce", "feed", "write"].contains(word)).collect();
    assert_eq!(order, [&"announce", &"feed", &"write"]);
    assert!(links.iter().all(|link| world.words(*link).contains(&"feed")), "they let it in");
    assert_eq!(world.watch(0, 0).model_awaited, None);
    world.say(late, Message::Written(place_at(("c", "/m"))));
    assert!(matches!(world.core.state().outcome(), Outcome::Complete(_)));
    let count = world.events().iter().filter(|kind| **kind == EventKind::NoStore).count();
    assert_eq!(count, 1);
}

#[test]
fn a_writer_that_may_not_have_heard_is_told_again_and_another_leader_tells_it_too() {
    let (mut world, links) = World::training(2);
    world.commit(1..=20);
    world.hear(links[0]);
    world.pass(2_500, &links);
    assert!(told(&mut world, links[0]) >= 2);
    world.restart();
    let again = world.relink(links[0]);
    assert_eq!(told(&mut world, again), 0, "its link is there a moment later");
    world.pass(100, &[again]);
    assert_eq!(told(&mut world, again), 1);
}

/// A trained run of workers without a directory: its weights are in memory alone, perhaps for long.
fn trained_without_a_place(workers: u32) -> (World, Vec<LinkId>) {
    let mut world = World::with_run(RunSpec { copies: 2, ..run_of(workers) });
    let links: Vec<_> = (1..=u64::from(workers)).map(|n| join(&mut world, n, None)).collect();
    train(&mut world, &links);
    world.pass(500, &links);
    assert!(world.watch(0, 0).model_awaited.is_some());
    (world, links)
}

#[test]
fn i6_copies_are_repaired_while_the_model_waits_for_a_place() {
    let (mut world, links) = trained_without_a_place(3);
    world.kill(links[2]);
    world.pass(3_000, &links[..2]);
    assert_eq!((world.members().len(), world.protection()), (2, 1), "they learn");
    links[..2].iter().for_each(|link| world.sync_shards(*link));
    world.pass(1_000, &links[..2]);
    assert_eq!((world.members().len(), world.protection()), (2, 2));
    assert_eq!(world.record().resume, Step(20));
}

#[test]
fn a_worker_leaves_while_the_model_waits_for_a_place() {
    let (mut world, links) = trained_without_a_place(3);
    let worker = world.id(links[2]);
    world.say(links[2], Message::Leave);
    world.pass(1_000, &links);
    assert!(world.words(links[2]).contains(&"drain"), "others have copies of all that it holds");
    assert!(!world.members().contains(&worker));
    links[..2].iter().for_each(|link| world.sync_shards(*link));
    world.pass(1_000, &links[..2]);
    assert_eq!((world.protection(), world.record().resume), (2, Step(20)));
}
