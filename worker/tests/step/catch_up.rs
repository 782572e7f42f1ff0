//! How a worker syncs shards, beside its generation and as a member.

use std::time::Duration;

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_kernels::reduce::digest as digest_of;
use everstep_transport::protocol::{
    Cause, Chunk, ChunkKind, Commit, Decision, Generation, Message, Rank, Record, Shard, Step,
    WorkerId,
};
use everstep_worker::step::event::{Admission, Effect, Input, Job, Report, StreamItem};

use crate::solo::{Solo, chunk, commit, feed, length, next_record};
use crate::support::{GENERATION, MEMBERS, STRANGER, record};

/// A joiner beside the generation of three. The members do not feed it yet.
fn beside() -> Solo {
    let mut solo = Solo::registered(STRANGER);
    solo.hear(Message::Announce(record()));
    solo.entered(GENERATION, Step(0));
    solo.effects.clear();
    solo
}

/// A joiner that gets shard 0. Its owners are the members of rank 0 and 1.
fn fed() -> Solo {
    let mut solo = beside();
    solo.hear(feed(STRANGER, &[0]));
    solo.took();
    solo
}

fn asked(solo: &mut Solo) -> Vec<WorkerId> {
    let sent = solo.sent().into_iter();
    sent.filter(|(_, what)| what == "fetch_state").map(|(to, _)| to).collect()
}

/// The joiner's questions for states.
fn questions(solo: &mut Solo) -> Vec<(WorkerId, Vec<Shard>)> {
    let question = |effect| match effect {
        Effect::SendToPeer { to, message: Message::FetchState { shards, .. } } => {
            Some((to, shards))
        }
        _ => None,
    };
    solo.took().into_iter().filter_map(question).collect()
}

/// Whether its last heartbeat says that it is ready, and how far it is behind.
fn told(solo: &mut Solo) -> (bool, u64) {
    solo.took();
    pass(solo, 1);
    let heartbeat = solo.told().into_iter().rev().find_map(|message| match message {
        Message::Heartbeat(heartbeat) => Some((heartbeat.ready, heartbeat.behind)),
        _ => None,
    });
    heartbeat.expect("a sign of life")
}

fn lose(solo: &mut Solo, from: WorkerId) {
    solo.give(Input::PeerLost { from, reason: "gone".into() });
}

/// So many seconds pass, in ticks.
fn pass(solo: &mut Solo, seconds: u64) {
    for _ in 0..4 * seconds {
        solo.now = solo.now + Duration::from_millis(250);
        solo.give(Input::Tick);
    }
}

fn feed_in(generation: Generation, shards: &[u32]) -> Message {
    let mut feed = feed(STRANGER, shards);
    if let Message::Feed { generation: of, .. } = &mut feed {
        *of = generation;
    }
    feed
}

/// A joiner that lacks everything, in a generation that waits. The members feed it.
fn fed_while_all_wait() -> Solo {
    let mut solo = Solo::registered(STRANGER);
    let mut record = Record { waiting: true, ..next_record(Some(commit(1))) };
    record.members.iter_mut().for_each(|member| member.data_shards.clear());
    let number = record.number;
    solo.hear(Message::Announce(record));
    solo.entered(number, Step(1));
    solo.hear(feed_in(number, &[0]));
    solo
}

fn state(solo: &mut Solo, from: WorkerId, version: u64) {
    let (generation, shard, version) = (GENERATION, Shard(0), Step(version));
    solo.peer(from, Message::State { generation, shard, version, digest: 5 });
    for index in 0..3 {
        let part = Chunk { index, ..chunk(ChunkKind::State, version.0, 0) };
        assert_eq!(solo.core.admit(from, &part), Admission::Take);
        solo.receive_chunk(from, part);
    }
}

fn restored(solo: &mut Solo, version: u64, intact: bool) {
    let version = Step(version);
    solo.report(Report::Restored { version, shard: Shard(0), digest: 0, intact });
}

fn reduced(solo: &mut Solo, step: u64) {
    solo.receive_chunk(MEMBERS[0], chunk(ChunkKind::Reduced, step, 0));
}

fn updates(solo: &mut Solo) -> Vec<u64> {
    let step = |job| match job {
        Job::Update { step, .. } => Some(step.0),
        _ => None,
    };
    solo.jobs().into_iter().filter_map(step).collect()
}

#[test]
fn who_is_not_fed_connects_to_nobody() {
    let mut solo = Solo::registered(STRANGER);
    solo.hear(Message::Announce(record()));
    assert!(!solo.took().iter().any(|effect| matches!(effect, Effect::Enter(_))));
    solo.hear(feed(STRANGER, &[0]));
    assert!(solo.took().iter().any(|effect| matches!(effect, Effect::Enter(_))));
}

#[test]
fn a_state_is_asked_for_when_its_primary_feeds_and_what_came_after_it_is_applied() {
    let mut solo = fed();
    assert_eq!(asked(&mut solo), []);
    reduced(&mut solo, 2);
    assert_eq!(asked(&mut solo), [MEMBERS[0]]);
    reduced(&mut solo, 3);
    state(&mut solo, MEMBERS[0], 1);
    assert!(matches!(&solo.jobs()[..], [Job::Restore { version: Step(1), .. }]));
    for step in 1..=2 {
        solo.peer(MEMBERS[0], Message::Commit(commit(step)));
    }
    restored(&mut solo, 1, true);
    assert_eq!(updates(&mut solo), [2]);
    solo.peer(MEMBERS[0], Message::Commit(commit(3)));
    assert_eq!(updates(&mut solo), [3]);
    solo.peer(MEMBERS[0], Message::Commit(commit(4)));
    assert_eq!(updates(&mut solo), [0; 0], "its gradient has not come");
    reduced(&mut solo, 4);
    assert_eq!(updates(&mut solo), [4]);
}

#[test]
fn a_broken_state_is_asked_of_another_owner() {
    let mut solo = fed();
    reduced(&mut solo, 2);
    assert_eq!(asked(&mut solo), [MEMBERS[0]]);
    state(&mut solo, MEMBERS[0], 1);
    restored(&mut solo, 1, false);
    assert_eq!(asked(&mut solo), [MEMBERS[1]]);
}

#[test]
fn a_lost_owner_is_asked_no_more() {
    let mut solo = fed();
    reduced(&mut solo, 2);
    assert_eq!(asked(&mut solo), [MEMBERS[0]]);
    for _ in 0..2 {
        lose(&mut solo, MEMBERS[0]);
    }
    assert_eq!(asked(&mut solo), [MEMBERS[1]]);
}

#[test]
fn an_owner_that_says_nothing_is_given_up_each_time_later() {
    let mut solo = fed();
    reduced(&mut solo, 2);
    assert_eq!(asked(&mut solo), [MEMBERS[0]]);
    pass(&mut solo, 5);
    assert_eq!(asked(&mut solo), []);
    pass(&mut solo, 1);
    assert_eq!(asked(&mut solo), [MEMBERS[1]]);
    pass(&mut solo, 6);
    assert_eq!(asked(&mut solo), []);
    state(&mut solo, MEMBERS[1], 1);
    restored(&mut solo, 1, true);
    pass(&mut solo, 60);
    assert_eq!(asked(&mut solo), []);
}

/// No parameters come in this test. The joiner fetches them once it is a member.
#[test]
fn a_joiner_is_ready_by_its_states_alone_and_says_how_far_it_is_behind() {
    let mut solo = fed();
    let tensor = 4 * length(Shard(0)) as u64;
    reduced(&mut solo, 2);
    solo.peer(MEMBERS[0], Message::Commit(commit(1)));
    assert_eq!(told(&mut solo), (false, 3 * tensor));
    state(&mut solo, MEMBERS[0], 1);
    restored(&mut solo, 1, true);
    assert_eq!(told(&mut solo), (true, 0));
    (2..=3).for_each(|step| solo.peer(MEMBERS[0], Message::Commit(commit(step))));
    assert_eq!(told(&mut solo), (false, tensor), "the gradient of step 3 has not come");
}

/// The joiner does not know what the steps before its first commit have changed.
#[test]
fn a_joiner_relabels_nothing_over_a_gap_of_commits_and_fetches_it_as_a_member() {
    let mut solo = fed();
    let skipped = Commit { decision: Decision::Skip, ..commit(3) };
    solo.peer(MEMBERS[0], Message::Commit(skipped.clone()));
    assert_eq!(solo.jobs().len(), 0);
    let mut record = next_record(Some(skipped));
    record.members[2].worker = STRANGER;
    solo.hear(Message::Pause { term: crate::solo::TERM, number: record.number });
    record.owners.iter_mut().for_each(|run| run.owners = vec![Rank(0)]);
    solo.took();
    solo.hear(Message::Announce(record));
    assert_eq!(solo.sent(), [(MEMBERS[0], "fetch_parameters".to_string())]);
}

/// A step of its own would never end: it is asked beside one that holds.
#[test]
fn a_state_is_asked_for_without_a_gradient_while_steps_pause() {
    let mut solo = fed();
    solo.peer(MEMBERS[0], Message::Commit(commit(1)));
    assert_eq!(asked(&mut solo), []);
    solo.peer(MEMBERS[0], Message::Commit(Commit { hold: true, ..commit(2) }));
    assert_eq!(asked(&mut solo), [MEMBERS[0]]);
    state(&mut solo, MEMBERS[0], 1); // its owner had not heard of step 2
    solo.took();
    restored(&mut solo, 1, true);
    assert_eq!(asked(&mut solo), [MEMBERS[1]], "no gradient of step 2 will come");
    state(&mut solo, MEMBERS[1], 2);
    restored(&mut solo, 2, true);
    assert_eq!(told(&mut solo), (true, 0));
}

/// Invariant I11.
#[test]
fn i11_a_joiner_that_is_fed_again_calls_who_had_lost_it_and_asks_for_what_that_owes() {
    let mut solo = fed_while_all_wait();
    assert_eq!(asked(&mut solo), [MEMBERS[0]]);
    lose(&mut solo, MEMBERS[0]);
    lose(&mut solo, MEMBERS[1]);
    assert_eq!(asked(&mut solo), [MEMBERS[1]], "and then both owners are lost");
    solo.hear(feed_in(GENERATION.next(), &[0]));
    let called = |effect: &Effect| match effect {
        Effect::AcceptPeer { worker, .. } => Some(*worker),
        _ => None,
    };
    assert_eq!(solo.effects.iter().filter_map(called).collect::<Vec<_>>(), MEMBERS[..2]);
    assert_eq!(solo.sent(), [(MEMBERS[0], "fetch_state".to_string())]);
}

/// Neither if its donor dies, nor if the generation changes while other chunks are under way.
#[test]
fn no_piece_that_was_verified_is_fetched_twice() {
    let mut solo = beside();
    solo.hear(feed(STRANGER, &[0, 1]));
    reduced(&mut solo, 2);
    solo.receive_chunk(MEMBERS[1], chunk(ChunkKind::Reduced, 2, 1));
    let expected = [(MEMBERS[0], vec![Shard(0)]), (MEMBERS[2], vec![Shard(1)])];
    assert_eq!(questions(&mut solo), expected);
    solo.peer(MEMBERS[0], Message::Commit(commit(1)));
    state(&mut solo, MEMBERS[0], 1);
    restored(&mut solo, 1, true);
    lose(&mut solo, MEMBERS[0]);
    solo.hear(feed(STRANGER, &[0, 1]));
    assert_eq!(questions(&mut solo), []);
    let record = next_record(Some(commit(1)));
    let generation = record.number;
    solo.hear(Message::Pause { term: crate::solo::TERM, number: generation });
    solo.hear(Message::Announce(record));
    solo.entered(generation, Step(1));
    solo.hear(feed_in(generation, &[0, 1]));
    for (from, shard) in [(MEMBERS[0], 0), (MEMBERS[1], 1)] {
        let reduced = chunk(ChunkKind::Reduced, 2, shard);
        solo.receive_chunk(from, Chunk { generation, ..reduced });
    }
    assert_eq!(questions(&mut solo), [(MEMBERS[2], vec![Shard(1)])]);
}

#[test]
fn over_a_gap_nothing_is_applied_and_the_state_is_asked_for_again() {
    let mut solo = fed();
    reduced(&mut solo, 4);
    assert_eq!(asked(&mut solo), [MEMBERS[0]]);
    state(&mut solo, MEMBERS[0], 2); // the gradient of step 3 was never sent here
    for step in 2..=4 {
        solo.peer(MEMBERS[0], Message::Commit(commit(step)));
    }
    solo.took();
    restored(&mut solo, 2, true);
    let effects = solo.took();
    assert!(!effects.iter().any(|it| matches!(it, Effect::Device(Job::Update { .. }))));
    assert!(
        effects.iter().any(|it| matches!(it, Effect::SendToPeer { to, .. } if *to == MEMBERS[1]))
    );
}

/// Invariant I10.
#[test]
fn no_more_than_four_gradients_of_a_shard_wait() {
    let mut solo = fed();
    (2..=6).for_each(|step| reduced(&mut solo, step));
    solo.took();
    state(&mut solo, MEMBERS[0], 1); // the gradient of step 2 had to go
    for step in 1..=6 {
        solo.peer(MEMBERS[0], Message::Commit(commit(step)));
    }
    solo.took();
    restored(&mut solo, 1, true);
    assert_eq!(asked(&mut solo), [MEMBERS[1]]);
}

/// A state takes twelve steps to come, each time. In the end so many gradients wait.
#[test]
fn i11_a_joiner_whose_states_are_outrun_lets_ever_more_gradients_wait() {
    let mut solo = fed();
    reduced(&mut solo, 2);
    let mut step = 2;
    for outrun in [true, true, false] {
        let [owner] = asked(&mut solo)[..] else { panic!("it asks for a state") };
        let version = step - 1;
        for _ in 0..12 {
            solo.peer(MEMBERS[0], Message::Commit(commit(step)));
            step += 1;
            reduced(&mut solo, step);
        }
        state(&mut solo, owner, version);
        solo.took();
        restored(&mut solo, version, true);
        let applied = if outrun { 0..0 } else { version + 1..step };
        let (asks, jobs): (Vec<_>, Vec<_>) =
            solo.took().into_iter().partition(|effect| matches!(effect, Effect::SendToPeer { .. }));
        assert_eq!(asks.len(), usize::from(outrun));
        let jobs = jobs.into_iter().filter_map(|effect| match effect {
            Effect::Device(Job::Update { step, .. }) => Some(step.0),
            _ => None,
        });
        assert_eq!(jobs.collect::<Vec<_>>(), applied.collect::<Vec<_>>());
        solo.effects.extend(asks);
    }
}

/// Invariant I10: a silent owner gives no reason to keep more.
#[test]
fn silence_lets_no_more_gradients_wait() {
    let mut solo = fed();
    reduced(&mut solo, 2);
    pass(&mut solo, 6);
    let asked_again = asked(&mut solo);
    assert_eq!(asked_again, [MEMBERS[0], MEMBERS[1]]);
    (3..=6).for_each(|step| reduced(&mut solo, step));
    state(&mut solo, MEMBERS[1], 1); // the gradient of step 2 had to go
    for step in 1..=6 {
        solo.peer(MEMBERS[0], Message::Commit(commit(step)));
    }
    solo.took();
    restored(&mut solo, 1, true);
    assert_eq!(asked(&mut solo), [MEMBERS[0]]);
}

#[test]
fn a_skipped_step_relabels_what_is_learned() {
    let mut solo = fed();
    reduced(&mut solo, 2);
    state(&mut solo, MEMBERS[0], 1);
    restored(&mut solo, 1, true);
    solo.took();
    solo.peer(MEMBERS[0], Message::Commit(commit(1)));
    solo.took();
    solo.peer(MEMBERS[0], Message::Commit(Commit { decision: Decision::Skip, ..commit(2) }));
    let jobs = solo.jobs();
    assert!(matches!(jobs[0], Job::Skip { step: Step(2) }));
    assert!(matches!(jobs[1], Job::Update { step: Step(2), gradient: None, .. }));
}

#[test]
fn a_joiner_shows_what_it_holds_and_keeps_it_at_the_resume_version() {
    let mut solo = fed();
    reduced(&mut solo, 2);
    solo.peer(MEMBERS[0], Message::Commit(commit(1)));
    state(&mut solo, MEMBERS[0], 1);
    restored(&mut solo, 1, true);
    solo.took();
    let number = GENERATION.next();
    solo.hear(Message::Pause { term: crate::solo::TERM, number });
    let status = solo.status().expect("an answer");
    assert_eq!(status.versions, [(Shard(0), Step(1), GENERATION)]);
    assert_eq!(status.prepared, [(Shard(0), GENERATION)]);
    for (resume, kept) in [(2, vec![Shard(0)]), (1, vec![])] {
        let number = solo.core.generation().next();
        let commit = Some(commit(resume));
        let (cause, step) = (Cause::Lost, Step(resume));
        let record = Record { number, cause, resume: step, commit, ..record() };
        solo.hear(Message::Announce(Record { predecessor: GENERATION, ..record }));
        let jobs = solo.jobs();
        let syncing = jobs.iter().find_map(|job| match job {
            Job::Enter { syncing, .. } => Some(syncing.clone()),
            _ => None,
        });
        assert_eq!(syncing, Some(kept));
        assert_eq!(jobs.iter().any(|job| matches!(job, Job::Update { .. })), resume == 2);
    }
}

#[test]
fn a_primary_feeds_from_the_next_commit_and_the_next_round_on() {
    let mut solo = Solo::member(1);
    solo.prepare(1);
    solo.hear(feed(STRANGER, &[1]));
    assert!(solo.took().iter().any(|effect| matches!(effect, Effect::AcceptPeer { .. })));
    solo.peer(MEMBERS[0], Message::Commit(commit(1)));
    let (version, digest) = (Step(1), 3);
    for shard in [0, 1].map(Shard) {
        let values = || Shared::new(Buffer::detached(vec![1.0; length(shard)]));
        let parameters = (shard == Shard(1)).then(values);
        solo.report(Report::Updated { version, shard, digest, parameters });
    }
    assert!(solo.sent().iter().all(|(to, _)| *to != STRANGER), "no step pauses");
    for shard in [2].map(Shard) {
        solo.receive_chunk(MEMBERS[2], chunk(ChunkKind::Parameters, 1, shard.0));
    }
    solo.prepare(2);
    let gradients = solo.took().into_iter().filter_map(|effect| match effect {
        Effect::Stream { to, item: StreamItem::Tensor { chunk, values }, .. } => {
            (chunk.kind == ChunkKind::Reduced).then(|| (to, chunk.digest == digest_of(0, &values)))
        }
        _ => None,
    });
    let expected = [(MEMBERS[2], true), (STRANGER, true)];
    assert_eq!(gradients.collect::<Vec<_>>(), expected, "they can tell it from a broken one");
}

/// The joiner begins with these parameters, if it becomes a member now.
#[test]
fn a_joiner_gets_parameters_of_a_step_that_holds() {
    let mut solo = Solo::member(1);
    solo.prepare(1);
    solo.hear(feed(STRANGER, &[1]));
    solo.took();
    solo.peer(MEMBERS[0], Message::Commit(Commit { hold: true, ..commit(1) }));
    let (version, digest) = (Step(1), 3);
    let values = Shared::new(Buffer::detached(vec![1.0; length(Shard(1))]));
    solo.report(Report::Updated { version, shard: Shard(1), digest, parameters: Some(values) });
    let mine = solo.sent().into_iter().filter(|(to, _)| *to == STRANGER);
    assert_eq!(mine.map(|(_, what)| what).collect::<Vec<_>>(), ["head", "Parameters"]);
}

#[test]
fn a_lost_joiner_is_fed_no_more_and_named() {
    let mut solo = Solo::member(1);
    solo.hear(feed(STRANGER, &[1]));
    lose(&mut solo, STRANGER);
    solo.prepare(1);
    solo.took();
    solo.peer(MEMBERS[0], Message::Commit(commit(1)));
    assert!(solo.sent().iter().all(|(to, _)| *to != STRANGER));
    solo.hear(Message::Pause { term: crate::solo::TERM, number: GENERATION.next() });
    assert_eq!(solo.status().map(|status| status.unreachable), Some(vec![STRANGER]));
}
