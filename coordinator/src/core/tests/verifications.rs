//! Checkpoints that a worker reads whole for an operator.

use everstep_transport::protocol::{CheckpointId, Verification};

use super::checkpoints::{complete, id, listed, saving, settle};
use super::restores::{backs, listing};
use super::*;

const BEGUN: Verification = Verification::Reading { bytes: 0, total: 0 };

/// What the operator hears of the checkpoint of this step.
fn ask(world: &mut World, step: u64) -> Verification {
    world.hear(world.operator);
    world.say(world.operator, Message::AskVerification { step: Step(step) });
    match world.hear(world.operator).pop() {
        Some(Message::Verification { id, state }) if id.step == Step(step) => state,
        other => panic!("no verification but {other:?}"),
    }
}

/// The orders to read checkpoints on a link.
fn orders(world: &mut World, link: LinkId) -> Vec<CheckpointId> {
    let order = |message| match message {
        Message::Verify { id, .. } => Some(id),
        _ => None,
    };
    world.hear(link).into_iter().filter_map(order).collect()
}

fn tell(world: &mut World, link: LinkId, state: Verification) {
    world.say(link, Message::Verification { id: id(5, 1), state });
}

#[test]
fn one_worker_reads_the_checkpoint_and_its_verdict_counts_for_a_while() {
    let (mut world, links) = listing(2, &[5, 10]);
    assert_eq!(ask(&mut world, 7), Verification::NotListed);
    assert_eq!(ask(&mut world, 5), BEGUN);
    assert_eq!(orders(&mut world, links[1]), [id(5, 1)]);
    let half = Verification::Reading { bytes: 3, total: 6 };
    tell(&mut world, links[1], half.clone());
    tell(&mut world, links[0], Verification::Whole);
    tell(&mut world, links[1], Verification::NotListed);
    assert_eq!(ask(&mut world, 5), half, "the words of others count for nothing");
    tell(&mut world, links[1], Verification::Whole);
    assert_eq!(ask(&mut world, 5), Verification::Whole);
    assert!([links[0], links[1]].iter().all(|link| orders(&mut world, *link).is_empty()));
    world.pass(11_000, &links);
    assert_eq!(ask(&mut world, 5), BEGUN);
    assert_eq!(orders(&mut world, links[1]), [id(5, 1)], "it is read anew");
}

#[test]
fn damage_that_a_verification_finds_is_in_the_log_and_undoes_nothing() {
    let (mut world, links) = listing(2, &[5, 10]);
    ask(&mut world, 5);
    let damage = Verification::Damaged("a bit flipped".into());
    tell(&mut world, links[1], damage.clone());
    assert_eq!(ask(&mut world, 5), damage);
    let told = world.events().into_iter().filter_map(|kind| match kind {
        EventKind::CheckpointDamaged { step, reason, is_last } => Some((step, reason, is_last)),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [(Step(5), "a bit flipped".into(), false)]);
    let (run, generation) = (world.core.state().run_id(), Generation(0));
    world.request(1, OperatorCommand::Rollback { run, step: Step(5), generation });
    let refusal = Some(Rejection::CheckpointDamaged(Step(5)));
    assert_eq!(world.hear(world.operator), [answer(1, refusal)]);
    assert_eq!((backs(&world), listed(&world)), (vec![], vec![5, 10]));
}

/// Otherwise the request would wait until the run goes on, and each try to save would begin a
/// generation.
#[test]
fn a_run_that_rests_at_a_damaged_checkpoint_refuses_to_save_it_again() {
    let (mut world, links) = World::training_as(saving(2));
    settle(&mut world, links[0], 1..=7);
    let run = world.core.state().run_id();
    world.request(1, OperatorCommand::Pause(run));
    world.hold_all();
    complete(&mut world, &links, id(7, 1));
    ask(&mut world, 7);
    let state = Verification::Damaged("a bit flipped".into());
    world.say(links[1], Message::Verification { id: id(7, 1), state });
    world.request(2, OperatorCommand::Checkpoint(run));
    let refused = answer(2, Some(Rejection::CheckpointDamaged(Step(7))));
    assert!(world.hear(world.operator).contains(&refused));
    links.iter().for_each(|link| world.say(*link, Message::Leave));
    world.pass(5_000, &links);
    assert_eq!((world.generation(), world.cause()), (Generation(3), Cause::Leave));
}

#[test]
fn another_worker_reads_if_the_link_of_the_first_is_lost() {
    let (mut world, links) = listing(2, &[5]);
    ask(&mut world, 5);
    world.cut(links[1]);
    world.hear(links[0]);
    assert_eq!(ask(&mut world, 5), BEGUN);
    assert_eq!(orders(&mut world, links[0]), [id(5, 1)]);
    world.cut(links[0]);
    assert_eq!(ask(&mut world, 5), Verification::NoReader);
    world.restart();
    assert_eq!(ask(&mut world, 5), Verification::NoReader, "the next leader begins anew");
}

#[test]
fn a_silent_reader_is_told_again_and_one_operator_comes_after_the_other() {
    let (mut world, links) = listing(2, &[5, 10]);
    ask(&mut world, 5);
    world.pass(4_000, &links);
    let Verification::Unread(words) = ask(&mut world, 10) else { panic!("the reader is busy") };
    assert!(words.contains("reads the checkpoint of step 5 first"), "{words}");
    ask(&mut world, 5);
    world.hear(links[1]);
    world.pass(2_000, &links);
    ask(&mut world, 5);
    assert_eq!(orders(&mut world, links[1]), [id(5, 1)], "the order may be lost");
    world.pass(6_000, &links);
    assert_eq!(ask(&mut world, 10), BEGUN, "the first operator has gone");
    assert_eq!(orders(&mut world, links[1]), [id(10, 1)]);
}
