//! From parts to a listed checkpoint, whatever happens in between.

use everstep_transport::protocol::checkpoint::step_folder;
use everstep_transport::protocol::outcome::state_hash;
use everstep_transport::protocol::reason::UnsavedPart;
use everstep_transport::protocol::{
    CheckpointId, CheckpointSpec, CheckpointView, OnFailure, Question, Reply, SavedPart,
    WorkerPart, WrittenManifest,
};

use super::results::digests_of;
use super::*;

/// A run of so many workers that saves every fifth of its 20 steps, and keeps three checkpoints.
pub(super) fn saving(workers: u32) -> RunSpec {
    let (path, on_failure) = ("/store/".into(), OnFailure::Continue);
    let spec = CheckpointSpec { path, every: 5, keep: 3, keep_every: 0, on_failure };
    RunSpec { checkpoint: Some(spec), ..run_of(workers) }
}

/// Every member commits these steps, and the lines are written.
pub(super) fn settle(world: &mut World, leader: LinkId, steps: RangeInclusive<u64>) {
    world.commit(steps.clone());
    world.report_lines(leader, steps);
}

pub(super) fn id(step: u64, generation: u64) -> CheckpointId {
    CheckpointId { step: Step(step), generation: Generation(generation) }
}

/// A worker's part of a checkpoint: the shards of which it is primary now.
pub(super) fn part(world: &World, link: LinkId, id: CheckpointId) -> SavedPart {
    let record = world.record();
    let rank = record.rank(world.id(link)).expect("a member");
    let owned = record.owned_by(rank).into_iter().filter(|(_, primary)| *primary);
    SavedPart {
        commit: commit(id.generation, id.step),
        generation: record.number,
        bytes: 900,
        head_bytes: 100,
        head_digest: [6; 32],
        shards: owned.map(|(shard, _)| (shard, [shard.0 as u8; 32])).collect(),
        write_ms: link.0,
    }
}

/// The worker's part is durable.
pub(super) fn save(world: &mut World, link: LinkId, id: CheckpointId) {
    let part = part(world, link, id);
    world.say(link, Message::Saved(part));
}

/// The orders to write a manifest on a link: the steps, and what is to be deleted.
pub(super) fn orders(world: &mut World, link: LinkId) -> Vec<(u64, Vec<CheckpointId>)> {
    let order = |message| match message {
        Message::WriteManifest(order) => Some((order.parts[0].part.commit.step.0, order.delete)),
        _ => None,
    };
    world.hear(link).into_iter().filter_map(order).collect()
}

fn hash(step: Step) -> [u8; 32] {
    let digests = (0..SHARDS).map(|shard| (Shard(shard), [shard as u8; 32])).collect();
    state_hash(step.0, &[WorkerResult { digests, ..WorkerResult::default() }]).expect("it is whole")
}

/// The manifest is durable, and these checkpoints are deleted.
pub(super) fn write(world: &mut World, link: LinkId, id: CheckpointId, deleted: Vec<CheckpointId>) {
    let state_hash = hash(id.step);
    let it = WrittenManifest { id, bytes: 2_000, state_hash, deleted };
    world.say(link, Message::WrittenManifest(it));
}

/// All members save a checkpoint, and the first of them writes its manifest.
pub(super) fn complete(world: &mut World, links: &[LinkId], id: CheckpointId) {
    links.iter().for_each(|link| save(world, *link, id));
    let deleted = orders(world, links[0]).pop().map_or(Vec::new(), |(_, delete)| delete);
    write(world, links[0], id, deleted);
}

pub(super) fn listed(world: &World) -> Vec<u64> {
    world.core.state().checkpoints().listed().map(|listed| listed.commit.step.0).collect()
}

/// The steps and reasons of checkpoints that failed.
pub(super) fn failures(world: &World) -> Vec<(u64, String)> {
    let failure = |kind| match kind {
        EventKind::CheckpointFailed { step, reason } => Some((step.0, reason.to_string())),
        _ => None,
    };
    world.events().into_iter().filter_map(failure).collect()
}

pub(super) fn unsaved(id: CheckpointId) -> Message {
    Message::Unsaved { id, reason: UnsavedPart::Failed("no space left".into()) }
}

/// All members are done with all steps, and their model is durable.
pub(super) fn finish_all(world: &mut World, links: &[LinkId]) {
    for link in links {
        super::results::finish(world, *link, [1; 32]);
    }
}

#[test]
fn when_all_parts_are_durable_and_the_step_is_settled_the_step_leader_writes_the_manifest() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=5);
    save(&mut world, links[1], id(5, 1));
    assert!(orders(&mut world, links[0]).is_empty(), "a part is missing");
    save(&mut world, links[0], id(5, 1));
    let [Message::WriteManifest(order)] = &world.hear(links[0]).split_off(0)[..] else {
        panic!("no order")
    };
    let ManifestToWrite { parts, bitwise, delete, term, generation, sweep, .. } = order;
    assert_eq!((*term, *generation, *bitwise), (Term(1), Generation(1), true));
    let expected = links
        .iter()
        .map(|link| WorkerPart { worker: world.id(*link), part: part(&world, *link, id(5, 1)) });
    assert_eq!((parts, delete, *sweep), (&expected.collect(), &vec![], Step(0)));
    write(&mut world, links[0], id(5, 1), vec![]);
    let listed = world.core.state().checkpoints().find(id(5, 1)).expect("it is listed");
    assert_eq!((listed.bytes, listed.write_ms), (2_000, links[1].0));
    assert!(!listed.commit.hold, "a record is to begin with it");
    assert!(matches!(world.events().last(), Some(EventKind::Checkpoint { step: Step(5), .. })));
}

/// Invariant I13: a checkpoint that fails leaves its lines to the next one.
#[test]
fn i13_each_manifest_brings_along_the_lines_and_events_since_the_one_before() {
    let (mut world, links) = World::training_as(saving(1));
    let mut told = |step: u64, is_written: bool| {
        settle(&mut world, links[0], step - 4..=step);
        save(&mut world, links[0], id(step, 1));
        let order = world.hear(links[0]).into_iter().find_map(|message| match message {
            Message::WriteManifest(order) => Some(order),
            _ => None,
        });
        match is_written {
            true => write(&mut world, links[0], id(step, 1), vec![]),
            false => world.say(links[0], unsaved(id(step, 1))),
        }
        let ManifestToWrite { lines, events, .. } = order.expect("an order");
        let steps = lines.iter().map(|line| line.step.0).collect::<Vec<_>>();
        (steps, events.iter().map(|event| event.number).collect::<Vec<_>>())
    };
    let (lines, first) = told(5, true);
    assert_eq!((lines, first[0]), ((1..=5).collect(), 1));
    let (lines, events) = told(10, false);
    assert_eq!((lines, events), ((6..=10).collect(), vec![]));
    let (lines, events) = told(15, true);
    assert_eq!(lines, (6..=15).collect::<Vec<_>>());
    assert_eq!(events, [first.len() as u64 + 2], "the failure of step 10");
}

/// Invariant I12.
#[test]
fn a_checkpoint_waits_for_the_line_of_its_step() {
    let (mut world, links) = World::training_as(saving(2));
    world.commit(1..=5);
    world.report_lines(links[0], 1..=4);
    links.iter().for_each(|link| save(&mut world, *link, id(5, 1)));
    write(&mut world, links[0], id(5, 1), vec![]);
    assert!(orders(&mut world, links[0]).is_empty() && listed(&world).is_empty());
    world.report_lines(links[0], 5..=5);
    world.pass(50, &links);
    assert_eq!(orders(&mut world, links[0]), [(5, vec![])]);
}

#[test]
fn a_disk_that_stalls_does_not_count_as_written() {
    let (mut world, links) = World::training_as(saving(2));
    world.disk_stalls = true;
    settle(&mut world, links[0], 1..=5);
    links.iter().for_each(|link| save(&mut world, *link, id(5, 1)));
    assert!(orders(&mut world, links[0]).is_empty());
    world.disk_stalls = false;
    world.sync_lines();
    world.pass(50, &links);
    assert_eq!(orders(&mut world, links[0]).len(), 1);
}

#[test]
fn what_is_no_part_of_a_due_step_of_this_history_is_ignored() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=5);
    let joiner = world.worker("worker-9");
    let good = part(&world, links[0], id(5, 1));
    let mut wrong = Vec::new();
    for other in [id(4, 1), id(5, 2), id(0, 1), id(25, 1)] {
        wrong.push(part(&world, links[0], other));
    }
    wrong.push(SavedPart { shards: vec![], ..good.clone() });
    wrong.push(SavedPart { shards: vec![(Shard(SHARDS), [0; 32])], ..good.clone() });
    wrong.push(SavedPart { shards: vec![(Shard(1), [0; 32]); 2], ..good.clone() });
    let before = world.core.ignored();
    let count = wrong.len() as u64;
    for part in wrong {
        world.say(links[0], Message::Saved(part));
    }
    world.say(joiner, Message::Saved(good.clone()));
    assert_eq!(world.core.ignored(), before + count + 1);
    world.say(links[0], Message::Saved(good.clone()));
    let other = Commit { norm: 9.0, ..good.commit.clone() };
    let shards = part(&world, links[1], id(5, 1)).shards;
    world.say(links[1], Message::Saved(SavedPart { commit: other, shards, ..good }));
    assert_eq!(world.core.ignored(), before + count + 2, "the commits differ");
    assert!(orders(&mut world, links[0]).is_empty());
}

#[test]
fn the_order_is_repeated_and_after_ten_seconds_goes_to_the_next_member() {
    let (mut world, links) = World::training_as(saving(3));
    settle(&mut world, links[0], 1..=5);
    links.iter().for_each(|link| save(&mut world, *link, id(5, 1)));
    world.pass(4_900, &links);
    assert_eq!(orders(&mut world, links[0]).len(), 1);
    world.pass(4_900, &links);
    assert_eq!(orders(&mut world, links[0]).len(), 1, "repeated after five seconds");
    world.pass(400, &links);
    assert_eq!([0, 1, 2].map(|at| orders(&mut world, links[at]).len()), [0, 1, 0]);
    world.pass(20_000, &links);
    let told = [0, 1, 2].map(|at| orders(&mut world, links[at]).len());
    assert_eq!(told, [1, 1, 2], "each in its turn, and the first one again");
    write(&mut world, links[0], id(5, 1), vec![]);
    assert_eq!(listed(&world), [5], "however late the first one answers");
    world.pass(20_000, &links);
    assert!(links.iter().all(|link| orders(&mut world, *link).is_empty()));
}

#[test]
fn a_member_that_cannot_write_the_manifest_gives_way_at_once() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=5);
    links.iter().for_each(|link| save(&mut world, *link, id(5, 1)));
    world.say(links[0], unsaved(id(5, 1)));
    assert_eq!(orders(&mut world, links[1]).len(), 1);
    world.say(links[0], unsaved(id(5, 1)));
    assert!(failures(&world).is_empty());
    world.say(links[1], unsaved(id(5, 1)));
    assert_eq!(failures(&world), [(5, "worker 2 (id 4): no space left".into())]);
    write(&mut world, links[1], id(5, 1), vec![]);
    assert!(listed(&world).is_empty(), "it has failed");
}

#[test]
fn a_part_that_is_not_saved_is_told_once_and_the_next_checkpoint_follows() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=5);
    save(&mut world, links[0], id(5, 1));
    world.say(links[1], unsaved(id(5, 1)));
    world.say(links[0], unsaved(id(5, 1)));
    assert_eq!(failures(&world), [(5, "worker 2 (id 4): no space left".into())]);
    assert!(world.core.figures().trouble.is_some_and(|it| it.words().contains("was not written")));
    save(&mut world, links[1], id(5, 1));
    assert!(orders(&mut world, links[0]).is_empty());
    settle(&mut world, links[0], 6..=10);
    complete(&mut world, &links, id(10, 1));
    assert_eq!(listed(&world), [10]);
}

#[test]
fn what_is_told_twice_is_listed_once() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=5);
    for _ in 0..2 {
        links.iter().for_each(|link| save(&mut world, *link, id(5, 1)));
    }
    assert_eq!(orders(&mut world, links[0]).len(), 1);
    world.holds_back = true;
    write(&mut world, links[0], id(5, 1), vec![]);
    write(&mut world, links[1], id(5, 1), vec![]);
    assert_eq!(world.log.len(), 1);
    world.catch_up();
    links.iter().for_each(|link| save(&mut world, *link, id(5, 1)));
    write(&mut world, links[0], id(5, 1), vec![]);
    assert_eq!((listed(&world), world.log.len()), (vec![5], 0));
    assert!(orders(&mut world, links[0]).is_empty());
}

#[test]
fn two_checkpoints_at_once_are_listed_one_after_the_other() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=10);
    for step in [5, 10] {
        save(&mut world, links[0], id(step, 1));
    }
    save(&mut world, links[1], id(10, 1));
    assert_eq!(orders(&mut world, links[0]), [(10, vec![])]);
    save(&mut world, links[1], id(5, 1));
    assert_eq!(orders(&mut world, links[0]), [(5, vec![])]);
    write(&mut world, links[0], id(5, 1), vec![]);
    world.pass(50, &links);
    assert_eq!(orders(&mut world, links[0]), [(10, vec![])]);
    write(&mut world, links[0], id(10, 1), vec![]);
    assert_eq!((listed(&world), failures(&world)), (vec![5, 10], vec![]));
}

#[test]
fn a_checkpoint_that_a_later_one_outruns_has_failed() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=10);
    save(&mut world, links[0], id(5, 1));
    complete(&mut world, &links, id(10, 1));
    assert_eq!(listed(&world), [10]);
    let shard = part(&world, links[1], id(5, 1)).shards[0].0;
    assert_eq!(failures(&world), [(5, format!("no worker saved parameter shard {shard}"))]);
}

#[test]
fn another_state_hash_than_that_of_the_parts_is_not_listed() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=5);
    links.iter().for_each(|link| save(&mut world, *link, id(5, 1)));
    let it = WrittenManifest { id: id(5, 1), bytes: 1, state_hash: [9; 32], deleted: vec![] };
    world.say(links[0], Message::WrittenManifest(it));
    assert_eq!((listed(&world), failures(&world).len()), (vec![], 1));
}

#[test]
fn what_the_run_does_not_keep_is_deleted_with_the_next_manifest() {
    let (mut world, links) = World::training_as(saving(2));
    for step in [5, 10, 15, 20] {
        settle(&mut world, links[0], step - 4..=step);
        complete(&mut world, &links, id(step, 1));
    }
    assert_eq!(listed(&world), [10, 15, 20]);
    let doomed: Vec<_> = world.core.state().checkpoints().to_delete().collect();
    assert_eq!(doomed, [id(5, 1)]);
}

#[test]
fn the_word_that_a_checkpoint_is_deleted_is_kept() {
    let mut run = saving(2);
    run.checkpoint.as_mut().expect("it saves").keep = 1;
    let (mut world, links) = World::training_as(run);
    for step in [5, 10] {
        settle(&mut world, links[0], step - 4..=step);
        complete(&mut world, &links, id(step, 1));
    }
    settle(&mut world, links[0], 11..=15);
    links.iter().for_each(|link| save(&mut world, *link, id(15, 1)));
    assert_eq!(orders(&mut world, links[0]), [(15, vec![id(5, 1)])]);
    write(&mut world, links[0], id(15, 1), vec![id(5, 1)]);
    let doomed: Vec<_> = world.core.state().checkpoints().to_delete().collect();
    assert_eq!((listed(&world), doomed), (vec![15], vec![id(10, 1)]));
}

/// A leader is gone at each stage. The next one gets the parts again.
#[test]
fn another_leader_completes_what_the_one_before_has_begun() {
    for stage in 0..4 {
        let (mut world, mut links) = World::training_as(saving(2));
        settle(&mut world, links[0], 1..=5);
        if stage >= 1 {
            save(&mut world, links[0], id(5, 1));
        }
        if stage >= 2 {
            save(&mut world, links[1], id(5, 1));
        }
        if stage >= 3 {
            world.holds_back = true;
            write(&mut world, links[0], id(5, 1), vec![]);
            world.holds_back = false;
        }
        world.restart();
        links = links.into_iter().map(|link| world.relink(link)).collect();
        assert!(listed(&world).is_empty());
        links.iter().for_each(|link| save(&mut world, *link, id(5, 1)));
        assert_eq!(orders(&mut world, links[0]), [(5, vec![])], "stage {stage}");
        write(&mut world, links[0], id(5, 1), vec![]);
        assert_eq!(listed(&world), [5], "stage {stage}");
    }
}

#[test]
fn a_follower_knows_of_no_part() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=5);
    world.give(CoreInput::SteppedDown);
    links.iter().for_each(|link| save(&mut world, *link, id(5, 1)));
    world.pass(50, &[]);
    assert!(orders(&mut world, links[0]).is_empty());
}

/// The parts outlive their writers, and the generation.
#[test]
fn a_checkpoint_is_completed_in_a_later_generation() {
    let (mut world, links) = World::training_as(saving(3));
    settle(&mut world, links[0], 1..=5);
    links.iter().for_each(|link| save(&mut world, *link, id(5, 1)));
    settle(&mut world, links[0], 6..=7);
    world.hear(links[1]);
    world.kill(links[0]);
    assert_eq!(world.generation(), Generation(2));
    world.pass(50, &links[1..]);
    let [Message::WriteManifest(ManifestToWrite { generation, parts, .. })] = &world
        .hear(links[1])
        .into_iter()
        .filter(|message| message.name() == "write_manifest")
        .collect::<Vec<_>>()[..]
    else {
        panic!("no order")
    };
    assert_eq!((*generation, parts.len()), (Generation(2), 3));
    write(&mut world, links[1], id(5, 1), vec![]);
    assert_eq!(listed(&world), [5]);
}

/// Step 5 was committed, but a member had not heard of it, and the others did it again.
#[test]
fn parts_of_a_step_that_was_done_again_do_not_count() {
    let (mut world, links) = World::training_as(saving(3));
    settle(&mut world, links[0], 1..=4);
    save(&mut world, links[0], id(5, 1));
    world.kill(links[0]);
    assert_eq!((world.generation(), world.record().resume), (Generation(2), Step(4)));
    settle(&mut world, links[1], 5..=5);
    let before = world.core.ignored();
    save(&mut world, links[2], id(5, 1));
    assert_eq!(world.core.ignored(), before + 1);
    complete(&mut world, &links[1..], id(5, 2));
    assert_eq!(listed(&world), [5]);
    assert!(world.core.state().checkpoints().find(id(5, 2)).is_some());
}

/// A store that is away for long costs two events, however many checkpoints were due meanwhile.
#[test]
fn checkpoints_that_fail_one_after_the_other_are_told_of_once_and_when_they_work_again() {
    let mut run = saving(2);
    run.checkpoint.as_mut().expect("it saves").every = 1;
    let (mut world, mut links) = World::training_as(run);
    settle(&mut world, links[0], 1..=1);
    complete(&mut world, &links, id(1, 1));
    for step in 2..=15 {
        settle(&mut world, links[0], step..=step);
        world.say(links[1], unsaved(id(step, 1)));
        if step == 9 {
            // Its successor knows it from the log.
            world.restart();
            links = links.iter().map(|link| world.relink(*link)).collect();
        }
    }
    assert_eq!(failures(&world).iter().map(|it| it.0).collect::<Vec<_>>(), [2]);
    settle(&mut world, links[0], 16..=16);
    complete(&mut world, &links, id(16, 1));
    let resumed = EventKind::CheckpointsResumed { from: Step(2), to: Step(15), count: 14 };
    let count = world.events().iter().filter(|kind| **kind == resumed).count();
    assert_eq!((count, listed(&world)), (1, vec![1, 16]));
    settle(&mut world, links[0], 17..=17);
    world.say(links[1], unsaved(id(17, 1)));
    settle(&mut world, links[0], 18..=18);
    complete(&mut world, &links, id(18, 1));
    assert_eq!(failures(&world).iter().map(|it| it.0).collect::<Vec<_>>(), [2, 17]);
    let resumed = |kind: &EventKind| matches!(kind, EventKind::CheckpointsResumed { .. });
    assert_eq!(world.events().iter().filter(|kind| resumed(kind)).count(), 1, "it was only one");
    for step in 19..=20 {
        settle(&mut world, links[0], step..=step);
        world.say(links[1], unsaved(id(step, 1)));
    }
    let failed: Vec<_> = failures(&world).iter().map(|it| it.0).collect();
    assert_eq!(failed, [2, 17, 19, 20], "the run's end has its reason");
}

#[test]
fn a_run_ends_when_its_last_checkpoint_is_listed() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=20);
    finish_all(&mut world, &links);
    world.pass(60_000, &links);
    assert!(world.running(), "a slow disk is waited for");
    complete(&mut world, &links, id(20, 1));
    assert!(!world.running());
}

#[test]
fn a_run_ends_without_its_last_checkpoint_if_a_member_cannot_save_it() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=20);
    finish_all(&mut world, &links);
    world.say(links[1], unsaved(id(20, 1)));
    assert!(!world.running());
    assert_eq!(failures(&world).len(), 1);
}

#[test]
fn a_run_ends_without_its_last_checkpoint_if_the_store_is_away() {
    for (on_failure, ends) in [(OnFailure::Continue, true), (OnFailure::Pause, false)] {
        let mut run = saving(2);
        run.checkpoint.as_mut().expect("it saves").on_failure = on_failure;
        let (mut world, links) = World::training_as(run);
        settle(&mut world, links[0], 1..=20);
        finish_all(&mut world, &links);
        for _ in 0..320 {
            world.beat_with(links[1], |it| it.store_error = Some("no route".into()));
            world.pass(100, &links[..1]);
        }
        assert_eq!(world.running(), !ends, "{on_failure:?}");
        assert_eq!(failures(&world).len(), usize::from(ends));
    }
}

/// Nothing is heard after the store was away once: it may have answered since.
#[test]
fn i22_a_worker_that_is_not_heard_does_not_say_that_the_store_is_away() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=20);
    finish_all(&mut world, &links);
    for _ in 0..2 {
        world.beat_with(links[1], |it| it.store_error = Some("no route".into()));
        assert!(world.running() && failures(&world).is_empty());
        world.pass(40_000, &[]);
    }
    assert!(world.running() && failures(&world).is_empty());
}

/// The member had to save a part, and the one that follows it has none.
#[test]
fn a_run_ends_without_its_last_checkpoint_if_a_part_is_lost() {
    let (mut world, links) = World::training_as(saving(3));
    settle(&mut world, links[0], 1..=20);
    save(&mut world, links[0], id(20, 1));
    world.kill(links[2]);
    assert_eq!(world.record().resume, Step(20));
    finish_all(&mut world, &links[..2]);
    world.pass(29_000, &links[..2]);
    assert!(world.running(), "it may still come");
    world.pass(2_000, &links[..2]);
    assert!(!world.running());
    assert!(failures(&world)[0].1.starts_with("no worker saved parameter shard"));
}

/// The leader that was told of the failure is gone. Its successor knows it from the log.
#[test]
fn another_leader_ends_a_run_without_its_last_checkpoint() {
    let (mut world, mut links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=20);
    world.say(links[1], unsaved(id(20, 1)));
    world.restart();
    links = links.into_iter().map(|link| world.relink(link)).collect();
    finish_all(&mut world, &links);
    assert!(!world.running());
}

#[test]
fn a_store_that_is_away_is_shown_while_training_goes_on() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=6);
    world.beat_with(links[1], |it| it.store_error = Some("no\nroute".into()));
    let view = world.core.cluster_view(world.now);
    let error = view.store_error.clone().expect("it is shown");
    assert_eq!((error.worker, error.waits), (world.id(links[1]), false));
    assert_eq!(error.reason, "no\\nroute");
    let words = "training: step 6 of 20 with 2 workers, and worker 2 (id 4) cannot use the store \
                 of the checkpoints: no\\nroute";
    assert_eq!(crate::run_status::run_status(&view), ("training", words.into()));
    assert!(view.waits().iter().all(|(_, span)| span.is_none()));
    world.beat(links[1]);
    assert_eq!(world.core.cluster_view(world.now).store_error, None);
}

#[test]
fn operators_see_the_checkpoints() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=5);
    complete(&mut world, &links, id(5, 1));
    world.say(world.operator, Message::Ask(Question::Checkpoints));
    let hash = blake3::Hash::from_bytes(hash(Step(5))).to_hex().to_string();
    let view = CheckpointView {
        step: Step(5),
        bytes: 2_000,
        seconds: Some(links[1].0 as f64 / 1e3),
        state_hash: Some(hash),
        complete: true,
        path: format!("/store/{}", step_folder(Step(5))),
        damage: None,
    };
    let told = world.hear(world.operator).pop();
    assert_eq!(told, Some(Message::Reply(Reply::Checkpoints(vec![view]))));
    assert_eq!(world.core.cluster_view(world.now).checkpoint, Step(5));
}

#[test]
fn a_run_without_checkpoints_takes_no_part() {
    let (mut world, links) = World::training(2);
    settle(&mut world, links[0], 1..=5);
    let before = world.core.ignored();
    save(&mut world, links[0], id(5, 1));
    assert_eq!(world.core.ignored(), before + 1);
    assert!(digests_of(&world, links[0], [0; 32]).len() == SHARDS as usize);
}
