//! A core's promise, its Status, and the inputs that it refuses from then on.

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_kernels::reduce::TreeNode;
use everstep_transport::protocol::{
    Chunk, ChunkKind, Commit, Decision, Generation, Message, NodeName, Record, Shard, Step, Term,
    WorkerId,
};
use everstep_worker::step::Promise;
use everstep_worker::step::event::{Admission, Effect, Exit, Job, Report, ShardOrigin};

use crate::solo::{Solo, TERM, chunk, commit, feed, length, next_record};
use crate::support::{GENERATION, MEMBERS, STRANGER, record};

const NEXT: Generation = Generation(GENERATION.0 + 1);

fn pause(solo: &mut Solo, term: u64, number: u64) -> bool {
    solo.hear(Message::Pause { term: Term(term), number: Generation(number) });
    solo.status().is_some()
}

/// The joiner of a generation that began with the run comes when there are other parameters. The
/// initial weights may be gone by then.
#[test]
fn a_joiner_does_not_begin_from_the_beginning() {
    let mut solo = Solo::registered(STRANGER);
    solo.hear(Message::Announce(record()));
    let is_enter = |effect: &&Effect| matches!(effect, Effect::Device(Job::Enter { .. }));
    let effects = solo.took();
    let entered = effects.iter().find(is_enter).expect("it enters as a joiner");
    let seeded = matches!(entered, Effect::Device(Job::Enter { origin: ShardOrigin::Seed, .. }));
    assert!(!seeded, "{entered:?}");
}

/// Invariant I15.
#[test]
fn a_pause_is_answered_unless_it_is_of_an_older_term_or_number() {
    let mut solo = Solo::member(1);
    let table = [
        ((2, GENERATION.0), false),
        ((1, GENERATION.0 + 1), false),
        ((2, GENERATION.0 + 1), true),
        ((2, GENERATION.0 + 1), true),
        ((3, GENERATION.0 + 3), true),
        ((3, GENERATION.0 + 2), false),
        ((2, GENERATION.0 + 4), false),
        ((3, GENERATION.0 + 3), true),
    ];
    for ((term, number), answered) in table {
        assert_eq!(pause(&mut solo, term, number), answered, "term {term}, number {number}");
    }
    assert_eq!(
        solo.core.promised(),
        Promise { term: Term(3), generation: Generation(GENERATION.0 + 3) }
    );
    assert_eq!(solo.core.generation(), GENERATION);
}

#[test]
fn a_worker_without_a_generation_promises_too() {
    let mut solo = Solo::registered(MEMBERS[0]);
    solo.hear(Message::Pause { term: TERM, number: GENERATION });
    let status = solo.status().expect("an answer");
    assert_eq!((status.commit, status.versions.len(), status.under_way), (None, 0, None));
}

/// Invariants I7 and I15, on every lane.
#[test]
fn nothing_of_the_generation_before_a_promise_is_taken_or_said() {
    let mut solo = Solo::member(1);
    solo.prepare(1);
    assert!(solo.sent().iter().any(|(_, what)| what == "prepared"));
    assert!(pause(&mut solo, 2, NEXT.0));
    let refused = solo.core.refused();
    solo.peer(MEMBERS[0], Message::Commit(commit(1)));
    assert_eq!(solo.core.member().map(|member| member.committed()), Some(Step(0)));
    let parameters = chunk(ChunkKind::Parameters, 1, 2);
    assert_eq!(solo.core.admit(MEMBERS[2], &parameters), Admission::Drop);
    // The core admitted it before the promise, and it has arrived since.
    solo.receive_chunk(MEMBERS[0], chunk(ChunkKind::Reduced, 1, 0));
    assert_eq!(solo.core.refused(), refused + 2);
    let newer = Chunk { generation: NEXT, ..parameters };
    assert_eq!(solo.core.admit(MEMBERS[2], &newer), Admission::Wait);
    assert_eq!(solo.sent(), []);
}

#[test]
fn the_device_computes_on_after_a_promise_and_what_it_makes_is_kept_for_the_redo() {
    let mut solo = Solo::member(1);
    assert!(pause(&mut solo, 2, NEXT.0));
    for shard in (0..3).map(Shard) {
        let sum = Shared::new(Buffer::detached(vec![1.0; length(shard)]));
        let node = TreeNode { level: 1, index: 2 };
        solo.report(Report::Partial { step: Step(1), shard, node, sum });
    }
    assert_eq!(solo.sent(), []);
    solo.hear(Message::Announce(next_record(None)));
    assert!(!solo.effects.iter().any(|it| matches!(it, Effect::Device(Job::Gradient { .. }))));
    let to = |rank: usize| (MEMBERS[rank], "Partials".to_string());
    assert_eq!(solo.sent(), [to(0), to(2)]);
}

#[test]
fn a_status_claims_what_the_device_was_told_to_do() {
    let mut solo = Solo::member(1);
    solo.prepare(1);
    solo.peer(MEMBERS[0], Message::Commit(commit(1)));
    solo.took();
    solo.hear(Message::Pause { term: TERM, number: NEXT });
    let status = solo.status().expect("an answer");
    assert_eq!(status.commit.map(|commit| commit.step), Some(Step(1)));
    let at = |shard| (Shard(shard), Step(1), GENERATION);
    assert_eq!((status.versions, status.prepared), (vec![at(0), at(1)], vec![]));
    assert_eq!(status.under_way, Some(Step(2)));
}

#[test]
fn a_status_shows_the_reduced_shards_of_the_step_that_may_have_committed() {
    let mut solo = Solo::member(1);
    solo.prepare(1);
    solo.took();
    solo.hear(Message::Pause { term: TERM, number: NEXT });
    let status = solo.status().expect("an answer");
    assert_eq!(status.prepared, [0, 1].map(|shard| (Shard(shard), GENERATION)));
    let initial = |shard| (Shard(shard), Step(0), Generation(0));
    assert_eq!(status.versions, [0, 1].map(initial));
}

#[test]
fn the_recorded_commit_is_applied_before_the_device_enters() {
    let mut solo = Solo::member(1);
    solo.prepare(1);
    solo.hear(Message::Pause { term: TERM, number: NEXT });
    solo.took();
    solo.hear(Message::Announce(next_record(Some(commit(1)))));
    let jobs = solo.jobs();
    let updated = |job: &Job| matches!(job, Job::Update { step: Step(1), gradient: Some(_), .. });
    assert!(jobs[..2].iter().all(updated));
    assert!(matches!(&jobs[2], Job::Enter { origin: ShardOrigin::Held, generation: NEXT, .. }));
    assert!(matches!(&jobs[3], Job::Gradient { step: Step(2), .. }));
    assert_eq!(solo.core.member().map(|member| member.settled()), Some(Step(1)));
}

#[test]
fn a_recorded_commit_that_skipped_relabels_everything() {
    let mut solo = Solo::member(1);
    solo.prepare(1);
    solo.hear(Message::Pause { term: TERM, number: NEXT });
    solo.took();
    let skipped = Commit { decision: Decision::Skip, ..commit(1) };
    solo.hear(Message::Announce(next_record(Some(skipped))));
    assert!(solo.effects.iter().all(|effect| !matches!(effect, Effect::SendToPeer { .. })));
    let jobs = solo.jobs();
    let relabelled = |job: &Job| matches!(job, Job::Update { gradient: None, .. });
    assert!(jobs[..2].iter().all(relabelled));
    assert!(matches!(&jobs[2..4], [Job::Skip { step: Step(1) }, Job::Enter { .. }]));
}

#[test]
fn a_hold_keeps_from_computing_until_the_step_leader_goes_on() {
    let mut solo = Solo::member(1);
    solo.prepare(1);
    solo.peer(MEMBERS[0], Message::Commit(Commit { hold: true, ..commit(1) }));
    let computes = |jobs: Vec<Job>| jobs.iter().any(|job| matches!(job, Job::Gradient { .. }));
    assert!(!computes(solo.jobs()));
    for shard in [0, 1].map(Shard) {
        let (version, digest, parameters) = (Step(1), 7, None);
        solo.report(Report::Updated { version, shard, digest, parameters });
    }
    assert!(solo.told().is_empty());
    solo.receive_chunk(MEMBERS[2], chunk(ChunkKind::Parameters, 1, 2));
    let told = solo.told();
    assert!(matches!(&told[..], [Message::Heartbeat(heartbeat)] if heartbeat.held));
    let go = |step| Message::Go { generation: GENERATION, step: Step(step) };
    for (from, step, goes) in [(2, 2, false), (0, 3, false), (0, 2, true), (0, 2, false)] {
        solo.peer(MEMBERS[from], go(step));
        assert_eq!(computes(solo.jobs()), goes, "step {step} from rank {from}");
    }
    assert_eq!(solo.core.refused(), 3);
}

#[test]
fn who_lacks_parameters_asks_their_primary() {
    let mut solo = Solo::member(1);
    solo.prepare(1);
    solo.hear(Message::Pause { term: TERM, number: NEXT });
    solo.hear(Message::Announce(next_record(Some(commit(1)))));
    let asked = solo.sent();
    assert!(asked.contains(&(MEMBERS[2], "fetch_parameters".to_string())));
    assert!(!asked.contains(&(MEMBERS[0], "fetch_parameters".to_string())));
}

#[test]
fn parameters_are_handed_out_once_for_each_question() {
    let mut solo = Solo::member(1);
    let (generation, to) = (GENERATION, MEMBERS[0]);
    let question = |shard| Message::FetchParameters { generation, shards: vec![Shard(shard)] };
    solo.peer(to, question(1));
    solo.peer(to, question(0));
    assert_eq!(solo.core.refused(), 1, "it is primary of one alone");
    assert!(matches!(&solo.jobs()[..], [Job::Share { .. }]));
    for _ in 0..2 {
        let (shard, version) = (Shard(1), Step(0));
        let values = Shared::new(Buffer::detached(vec![1.0; length(shard)]));
        solo.report(Report::Shared { to, version, shard, values });
    }
    assert_eq!(solo.sent(), [(to, "Resumed".to_string())]);
    // The answer is on its way. A worker that asks again is only impatient.
    solo.peer(to, question(1));
    assert!(solo.jobs().is_empty());
}

#[test]
fn a_record_older_than_the_promise_is_not_entered() {
    let mut solo = Solo::member(1);
    assert!(pause(&mut solo, 2, NEXT.0 + 1));
    solo.hear(Message::Announce(next_record(None)));
    assert_eq!(solo.core.generation(), GENERATION);
    let record = Record { number: Generation(NEXT.0 + 1), ..next_record(None) };
    solo.hear(Message::Announce(record));
    assert_eq!(solo.core.generation(), Generation(NEXT.0 + 1));
}

#[test]
fn what_is_of_a_newer_generation_waits_for_its_record() {
    let mut solo = Solo::member(1);
    let question = Message::FetchParameters { generation: NEXT, shards: vec![Shard(1)] };
    solo.peer(MEMBERS[0], question);
    assert_eq!(solo.told(), [Message::FetchRecord]);
    solo.hear(Message::Pause { term: TERM, number: NEXT });
    solo.hear(Message::Announce(next_record(None)));
    assert!(solo.jobs().iter().any(|job| matches!(job, Job::Share { .. })));
}

/// A worker is evicted, comes back under its name with another id, and asks in the generation that
/// has it. A member that does not know that generation yet knows the link under the old id.
#[test]
fn an_evicted_worker_that_is_back_gets_its_answer_under_its_new_id() {
    for was_member in [true, false] {
        let mut solo = Solo::member(1);
        let (old, new) = if was_member { (MEMBERS[0], STRANGER) } else { (STRANGER, WorkerId(15)) };
        if !was_member {
            solo.hear(feed(old, &[]));
        }
        solo.took();
        let mut record = next_record(None);
        record.members[0].worker = new;
        if let Message::Feed { name, .. } = feed(old, &[])
            && !was_member
        {
            record.members[0].name = name;
        }
        solo.peer(old, Message::FetchParameters { generation: NEXT, shards: vec![Shard(1)] });
        solo.hear(Message::Pause { term: TERM, number: NEXT });
        solo.hear(Message::Announce(record));
        let shared = |job: &Job| matches!(job, Job::Share { to, .. } if *to == new);
        assert!(solo.jobs().iter().any(shared), "{was_member}");
    }
}

/// The same at a joiner that waits to be fed: its shell still has the peers of the generation in
/// which it was fed.
#[test]
fn an_evicted_worker_that_is_back_gets_its_answer_of_an_idle_joiner() {
    let mut solo = Solo::registered(STRANGER);
    solo.hear(Message::Announce(record()));
    solo.hear(feed(STRANGER, &[1]));
    let (old, new, after) = (MEMBERS[0], WorkerId(15), NEXT.next());
    let mut without = next_record(None);
    without.members[0].worker = WorkerId(16);
    without.members[0].name = NodeName::parse("another").expect("a valid name");
    solo.hear(Message::Pause { term: TERM, number: NEXT });
    solo.hear(Message::Announce(without));
    solo.peer(old, Message::FetchParameters { generation: after, shards: vec![Shard(1)] });
    solo.hear(Message::Pause { term: TERM, number: after });
    solo.took();
    let mut record = Record { number: after, predecessor: NEXT, ..next_record(None) };
    (record.members[0].worker, record.members[1].worker) = (new, STRANGER);
    solo.hear(Message::Announce(record));
    let shared = |job: &Job| matches!(job, Job::Share { to, .. } if *to == new);
    assert!(solo.jobs().iter().any(shared), "{:?}", solo.took());
}

#[test]
fn of_what_is_early_no_more_than_a_few_questions_wait_and_what_is_said_once_does() {
    let mut solo = Solo::member(1);
    for _ in 0..10 {
        let shards = vec![Shard(1)];
        solo.peer(MEMBERS[0], Message::FetchState { generation: NEXT, shards });
    }
    assert_eq!(solo.core.refused(), 6, "they are asked again");
    let go = || Message::Go { generation: NEXT, step: Step(1) };
    solo.peer(MEMBERS[0], go());
    assert_eq!(solo.core.refused(), 6);
    (0..100).for_each(|_| solo.peer(MEMBERS[0], go()));
    assert_eq!(solo.core.refused(), 6 + 41, "there is a bound");
}

#[test]
fn updates_of_the_generation_before_change_nothing() {
    let mut solo = Solo::member(1);
    solo.prepare(1);
    solo.peer(MEMBERS[0], Message::Commit(commit(1)));
    solo.hear(Message::Pause { term: TERM, number: NEXT });
    solo.hear(Message::Announce(next_record(Some(commit(1)))));
    solo.took();
    let (version, digest) = (Step(1), 7);
    for shard in [0, 1].map(Shard) {
        let parameters = Some(Shared::new(Buffer::detached(vec![1.0; length(shard)])));
        solo.report(Report::Updated { version, shard, digest, parameters });
    }
    assert_eq!(solo.sent(), [], "who lacks them asks");
}

#[test]
fn a_commit_that_comes_on_two_lanes_is_one() {
    let mut solo = Solo::member(1);
    solo.prepare(1);
    solo.peer(MEMBERS[2], Message::Commit(commit(1)));
    solo.took();
    solo.peer(MEMBERS[0], Message::Commit(commit(1)));
    assert!(solo.jobs().is_empty());
    assert_eq!(solo.core.refused(), 0);
}

#[test]
fn a_member_that_a_record_does_not_list_says_nothing_more() {
    let mut solo = Solo::member(1);
    solo.prepare(1);
    let mut record = next_record(None);
    record.members.iter_mut().for_each(|member| member.worker.0 += 100);
    solo.hear(Message::Announce(record));
    solo.took();
    solo.peer(MEMBERS[0], Message::Commit(commit(1)));
    assert!(solo.took().is_empty());
    assert_eq!(solo.core.member().map(|member| member.committed()), Some(Step(0)));
}

/// The reason for which the worker has ended, which every coordinator hears.
fn failure(solo: &mut Solo) -> String {
    let effects = solo.took();
    let told = effects.iter().find_map(|effect| match effect {
        Effect::SendToCoordinator {
            message: Message::Failed { at_fault: None, fatal: false, reason },
            ..
        } => Some(reason.clone()),
        _ => None,
    });
    let ended = effects.into_iter().find_map(|effect| match effect {
        Effect::Exit(Exit::Failed(reason)) => Some(reason),
        _ => None,
    });
    assert_eq!(told, ended);
    ended.expect("the worker has ended")
}

#[test]
fn i15_a_record_of_a_number_that_the_worker_has_not_promised_ends_it_with_words() {
    let mut solo = Solo::registered(MEMBERS[1]);
    solo.hear(Message::Announce(record()));
    let words = "I15: generation 4 lists this worker, which has promised only generation 0. This \
                 is a bug in Everstep: keep the logs";
    let reason = failure(&mut solo);
    assert!(reason.starts_with(words), "{reason}");
    assert!(solo.core.member().is_none());
}

#[test]
fn i16_a_record_that_lists_an_owner_without_the_state_ends_it_with_words() {
    let mut solo = Solo::member(1);
    assert!(pause(&mut solo, 2, NEXT.0));
    solo.hear(Message::Announce(next_record(Some(commit(1)))));
    let words = "I16: generation 5 lists this worker as an owner of parameter shard 0, and it \
                 cannot bring what it holds to step 1. ";
    let reason = failure(&mut solo);
    assert!(reason.starts_with(words), "{reason}");
}

/// A record without a rollback, after a record that resumed at step 1.
fn going_back() -> Message {
    let (number, predecessor) = (NEXT.next(), NEXT);
    Message::Announce(Record { number, predecessor, ..next_record(None) })
}

const GOES_BACK: &str = "I17: generation 6 resumes at step 0 without a rollback, and step 1 has \
                         settled. ";

#[test]
fn i17_a_record_that_goes_back_behind_a_settled_step_ends_a_member_with_words() {
    let mut solo = Solo::member(1);
    solo.prepare(1);
    assert!(pause(&mut solo, 2, NEXT.0));
    solo.hear(Message::Announce(next_record(Some(commit(1)))));
    assert!(pause(&mut solo, 2, NEXT.0 + 1));
    solo.hear(going_back());
    let reason = failure(&mut solo);
    assert!(reason.starts_with(GOES_BACK), "{reason}");
}

#[test]
fn i17_a_record_that_goes_back_behind_a_settled_step_ends_a_joiner_with_words() {
    let mut solo = Solo::registered(STRANGER);
    solo.hear(Message::Announce(next_record(Some(commit(1)))));
    solo.hear(going_back());
    let reason = failure(&mut solo);
    assert!(reason.starts_with(GOES_BACK), "{reason}");
}
