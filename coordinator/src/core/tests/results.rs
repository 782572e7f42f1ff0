use everstep_transport::protocol::CheckpointSpec;

use super::*;

/// The worker reports its result for the generation it is in, and that the model is durable.
pub(super) fn finish(world: &mut World, link: LinkId, digest: [u8; 32]) {
    let (digests, worker) = (digests_of(world, link, digest), world.id(link));
    world.say(link, Message::Written(place()));
    if let Some(path) = world.core.state().run().and_then(stored_path) {
        world.say(link, Message::Stored(ModelPlace { host: String::new(), path }));
    }
    world.say(link, Message::Finished(WorkerResult { worker, digests, ..WorkerResult::default() }));
}

fn stored_path(run: &RunSpec) -> Option<String> {
    run.checkpoint.as_ref().map(CheckpointSpec::model_path)
}

/// The digests of the shards that the worker owns. `digest` is that of the last shard.
pub(super) fn digests_of(world: &World, link: LinkId, digest: [u8; 32]) -> Vec<(Shard, [u8; 32])> {
    let (record, worker) = (world.record(), world.id(link));
    let rank = record.rank(worker).expect("a member");
    let owned = record.owned_by(rank).into_iter();
    let digests =
        owned.map(|(shard, _)| (shard, if shard == Shard(SHARDS - 1) { digest } else { [0; 32] }));
    digests.collect()
}

#[test]
fn a_run_is_complete_when_all_have_finished_and_every_step_has_its_line() {
    let (mut world, links) = World::training(2);
    finish(&mut world, links[0], [1; 32]);
    finish(&mut world, links[1], [1; 32]);
    assert!(world.running(), "the last lines are missing");
    world.report_lines(links[0], 1..=20);
    assert_eq!(world.hear(links[1]), [Message::Dismiss]);
    let update = world.watch(0, 0);
    let Outcome::Complete(results) = update.outcome else { panic!("not complete") };
    let workers: Vec<_> = results.iter().map(|result| result.worker).collect();
    assert_eq!(workers, [world.id(links[0]), world.id(links[1])]);
    let complete = EventKind::Complete { step: Step(20), model: Some(place()) };
    assert_eq!(update.events.last().map(|event| &event.kind), Some(&complete));
    world.cut(links[0]);
    world.pass(5_000, &[]);
    assert_eq!(world.events().last(), Some(&complete), "silence is no fault any more");
    let (late, heard) = (world.greeted("worker-3"), Message::Dismiss);
    assert_eq!(world.hear(late), [heard], "who comes after the end may go");
}

/// I3: the owners of a shard must end with the same bits.
#[test]
fn disagreeing_digests_fail_the_run_and_name_the_shard() {
    let (mut world, links) = World::training(2);
    world.report_lines(links[0], 1..=20);
    finish(&mut world, links[0], [1; 32]);
    finish(&mut world, links[1], [2; 32]);
    let expected = "worker-1 and worker-2 ended with different copies of parameter shard 7";
    assert_eq!(world.failure(), expected);
}

#[test]
fn a_result_that_is_not_of_this_generation_does_not_count() {
    let (mut world, links) = World::training(2);
    world.report_lines(links[0], 1..=20);
    finish(&mut world, links[0], [1; 32]);
    let (link, worker) = (links[1], world.id(links[1]));
    let before = world.core.ignored();
    world.say(link, Message::Finished(WorkerResult { worker, ..WorkerResult::default() }));
    assert_eq!((world.core.ignored(), world.running()), (before + 1, true));
    finish(&mut world, links[1], [1; 32]);
    assert!(!world.running());
}

#[test]
fn a_record_that_the_log_does_not_take_fails_its_run_in_words() {
    let (mut world, _) = World::training(2);
    world.core.entry_too_large(world.now, 5_000_000);
    world.drain();
    assert!(world.failure().contains("takes 5000000 bytes of the log"), "{}", world.failure());
    world.core.entry_too_large(world.now, 5_000_000);
    world.drain();
    assert!(!world.running(), "there is no run that could fail");
}

/// A member dies while the others finish: their results are void, and the workers report them anew.
#[test]
fn results_are_void_when_a_generation_begins() {
    let (mut world, links) = World::training(3);
    world.commit(1..=20);
    world.report_lines(links[0], 1..=20);
    finish(&mut world, links[0], [1; 32]);
    finish(&mut world, links[1], [1; 32]);
    world.kill(links[2]);
    let record = world.record();
    assert_eq!((record.resume, record.waiting), (Step(20), false));
    finish(&mut world, links[0], [1; 32]);
    assert!(world.running());
    finish(&mut world, links[1], [1; 32]);
    assert!(matches!(world.core.state().outcome(), Outcome::Complete(_)));
}

#[test]
fn nothing_is_planned_any_more_when_the_last_step_is_committed() {
    let (mut world, links) = World::training(2);
    let joiner = world.worker("worker-3");
    world.pass(100, &[links[0], links[1], joiner]);
    world.commit(1..=20);
    world.beat(links[0]);
    world.sync_shards(joiner);
    world.pass(5_000, &[links[0], links[1], joiner]);
    assert_eq!(world.generation(), Generation(1));
}

#[test]
fn different_probes_make_the_run_not_bitwise_and_it_is_said_why() {
    let mut world = World::with_run(run_of(2));
    world.worker("worker-1");
    assert_eq!(world.watch(0, 0).divergence, None);
    let link = world.greeted("worker-2");
    let device = exemplars::device();
    world.say(link, Message::Register(Registration { probe: 8, device, ..registration(2) }));
    let why = world.watch(0, 0).divergence.expect("a reason");
    assert!(why.contains("on NVIDIA H200, ") && why.ends_with(" on cpu"), "{why}");
}
