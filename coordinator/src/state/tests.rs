pub(crate) mod checkpoints;
mod invariants;
mod lines;

use std::net::Ipv4Addr;

use everstep_transport::identity::{
    AcceptedToken, Identity, JoinToken, Refusal, Role, TokenLimits, format_token_id,
};
use everstep_transport::protocol::exemplars;
use everstep_transport::protocol::generation::{Cause, Member, Ownership};
use everstep_transport::protocol::message::{Fingerprint, Registration};
use everstep_transport::protocol::outcome::{Event, Outcome};
use everstep_transport::protocol::reason::{FailReason, LossReason, RollbackReason};
use everstep_transport::protocol::{
    Commit, DataShard, Device, Generation, HistoryEvent, LossScale, MetricsLine, NodeName,
    OperatorCommand, Rank, Record, RequestId, RunSpec, Shard, Step,
};

use super::events::EVENTS;
use super::workers::REMEMBERED;
use super::*;

fn name(name: &str) -> NodeName {
    NodeName::parse(name).expect("a valid name")
}

fn entry(command: Command) -> CommandEntry {
    CommandEntry { unix_ms: 5, command }
}

fn register(node: &str, incarnation: u64, change: impl FnOnce(&mut Fingerprint)) -> CommandEntry {
    register_for(1, node, incarnation, change)
}

fn register_for(
    run: u64,
    node: &str,
    incarnation: u64,
    change: impl FnOnce(&mut Fingerprint),
) -> CommandEntry {
    let mut fingerprint =
        Fingerprint { model: [1; 32], data: [2; 32], parameters: 900, shards: 2, samples: 99 };
    change(&mut fingerprint);
    let address = (Ipv4Addr::LOCALHOST, 40_000).into();
    let (zone, device) = (None, Device::default());
    let registration = Registration {
        incarnation,
        address,
        fingerprint,
        probe: 7,
        zone,
        device,
        model: None,
        host: None,
        machine: None,
    };
    entry(Command::Register { run: RunId(run), name: name(node), registration })
}

fn end(run: u64, outcome: Outcome) -> CommandEntry {
    let run = RunId(run);
    entry(Command::End { run, outcome, figures: exemplars::figures(), steps: Step(0) })
}

/// A generation that all members of its predecessor survive.
fn generation(number: u64, workers: &[u64]) -> CommandEntry {
    altered(number, workers, |_| {})
}

fn altered(number: u64, workers: &[u64], alter: impl FnOnce(&mut Change)) -> CommandEntry {
    let members = workers.iter().enumerate().map(|(rank, &worker)| Member {
        worker: WorkerId(worker),
        name: name("worker"),
        address: (Ipv4Addr::LOCALHOST, 40_000).into(),
        data_shards: (0..if rank == 0 { 4 } else { 0 }).map(DataShard).collect(),
    });
    let record = Record {
        number: Generation(number),
        predecessor: Generation(number - 1),
        term: Term(1),
        cause: Cause::Start,
        members: members.collect(),
        owners: vec![Ownership { first: Shard(0), count: 2, owners: vec![Rank(0)] }],
        resume: Step(0),
        commit: None,
        waiting: false,
    };
    let mut change = Change {
        record,
        lost: vec![],
        left: vec![],
        redone: false,
        unreachable: vec![],
        rollback: None,
    };
    alter(&mut change);
    entry(Command::Generation(change))
}

fn loss(worker: u64) -> Loss {
    let reason = LossReason::Failed("gone".into());
    Loss { worker: WorkerId(worker), reason, detect_ms: 4, pause_ms: 2 }
}

fn committed(step: u64) -> Option<Commit> {
    let commit = exemplars::listed_checkpoint().commit;
    let (norm, loss, updates, loss_scale) = (1.0, 2.0, step, LossScale::default());
    let (generation, step, line) = (Generation(1), Step(step), MetricsLine::default());
    Some(Commit { generation, step, norm, loss, updates, loss_scale, line, ..commit })
}

fn replay(entries: &[CommandEntry]) -> (State, Vec<EntryOutcome>) {
    let mut state = State::default();
    let verdicts = entries.iter().zip(1..).map(|(entry, index)| state.apply(index, Term(1), entry));
    let verdicts = verdicts.collect();
    (state, verdicts)
}

fn submitted() -> CommandEntry {
    submit(1, exemplars::run())
}

/// An operator submits this run, and asks for nothing else.
fn submit(number: u64, run: RunSpec) -> CommandEntry {
    asked((2, number), OperatorCommand::Submit(run.into()))
}

/// A client's request of this number.
fn asked((client, number): (u64, u64), command: OperatorCommand) -> CommandEntry {
    let (id, so_far) = (RequestId { client, number }, RunSoFar::default());
    entry(Command::Request { id, command, so_far })
}

fn refusal(entries: &[CommandEntry]) -> String {
    match replay(entries).1.pop() {
        Some(EntryOutcome::Refused(reason)) => reason.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_workers_id_is_the_index_of_its_entry() {
    let same = |_: &mut Fingerprint| {};
    let entries =
        [submitted(), register("a", 1, same), register("b", 2, same), register("a", 1, same)];
    let (_, verdicts) = replay(&entries);
    let ids = [2, 3, 2].map(|id| EntryOutcome::Registered(WorkerId(id)));
    assert_eq!(verdicts[1..], ids);
}

#[test]
fn every_difference_is_named() {
    type Change = fn(&mut Fingerprint);
    let table: [(Change, &str); 5] = [
        (|f| f.model[0] = 9, "model 090101010101, not 010101010101"),
        (|f| f.data[0] = 9, "data 090202020202, not 020202020202"),
        (|f| f.parameters = 901, "parameters 901, not 900"),
        (|f| f.shards = 3, "parameter shards 3, not 2"),
        (|f| (f.samples, f.parameters) = (98, 1), "parameters 1, not 900; samples 98, not 99"),
    ];
    for (change, expected) in table {
        let reason = refusal(&[submitted(), register("a", 1, |_| {}), register("b", 2, change)]);
        let whole = format!("b differs from a, which registered first: {expected}");
        assert_eq!(reason, whole);
    }
}

#[test]
fn an_impossible_first_statement_fixes_nothing() {
    type Change = fn(&mut Fingerprint);
    let table: [Change; 4] =
        [|f| f.shards = 0, |f| f.shards = u32::MAX, |f| f.parameters = 1, |f| f.samples = 0];
    for change in table {
        let reason = refusal(&[submitted(), register("a", 1, change)]);
        assert!(reason.starts_with("a states"), "{reason}");
        let (state, verdicts) =
            replay(&[submitted(), register("a", 1, change), register("b", 2, |_| {})]);
        assert_eq!(
            (state.shards(), &verdicts[2]),
            (Some(2), &EntryOutcome::Registered(WorkerId(3)))
        );
    }
}

/// I1: a record that does not follow the current one changes nothing.
#[test]
fn a_generation_must_follow_the_current_one() {
    let entries = [
        submitted(),
        register("a", 1, |_| {}),
        generation(2, &[2]),
        generation(1, &[2]),
        generation(1, &[2]),
        generation(2, &[2]),
    ];
    let (state, verdicts) = replay(&entries);
    let refused: Vec<_> = verdicts.iter().map(|v| matches!(v, EntryOutcome::Refused(_))).collect();
    assert_eq!(refused, [false, false, true, false, true, false]);
    assert_eq!(state.generation(), Generation(2));
}

#[test]
fn a_generation_lists_only_living_workers_and_is_well_formed() {
    let lost = entry(Command::Lose { worker: WorkerId(2), reason: loss(2).reason });
    let reason = refusal(&[submitted(), register("a", 1, |_| {}), lost, generation(1, &[2])]);
    assert_eq!(reason, "generation 1 lists worker 2, which is gone");
    let reason = refusal(&[submitted(), register("a", 1, |_| {}), generation(1, &[])]);
    assert_eq!(reason, "generation 1 is malformed: it has no members");
    assert_eq!(refusal(&[submitted(), generation(1, &[2])]), "generation 1 has no run");
}

/// I1: the leader that planned it does not lead any more.
#[test]
fn a_generation_of_another_term_changes_nothing() {
    let entries = [submitted(), register("a", 1, |_| {}), generation(1, &[2])];
    let mut state = State::default();
    for (entry, index) in entries.iter().zip(1..) {
        let verdict = state.apply(index, Term(2), entry);
        let (number, planned, term) = (Generation(1), Term(1), Term(2));
        let expected = EntryOutcome::Refused(Rejection::OtherTerm { number, planned, term });
        assert_eq!(index == 3, verdict == expected);
    }
    assert_eq!(state.generation(), Generation(0));
}

fn two_members() -> [CommandEntry; 4] {
    let same = |_: &mut Fingerprint| {};
    let registered = [register("a", 1, same), register("b", 2, same)];
    let [a, b] = registered;
    [submitted(), a, b, generation(1, &[2, 3])]
}

#[test]
fn nobody_is_dropped_in_silence() {
    type Alter = fn(&mut Change);
    let table: [(Alter, bool); 6] = [
        (|_| {}, false),
        (|change| change.lost = vec![loss(3)], true),
        (|change| change.left = vec![WorkerId(3)], true),
        (|change| (change.lost, change.left) = (vec![loss(3)], vec![WorkerId(3)]), false),
        (|change| change.lost = vec![loss(2), loss(3)], false),
        (|change| change.lost = vec![loss(3), loss(9)], false),
    ];
    for (alter, accepted) in table {
        let mut entries = two_members().to_vec();
        entries.push(altered(2, &[2], alter));
        let (state, verdicts) = replay(&entries);
        assert_eq!(verdicts.last() == Some(&EntryOutcome::Accepted), accepted, "{verdicts:?}");
        assert_eq!(state.is_member(WorkerId(3)), !accepted);
    }
}

/// Invariant I17.
#[test]
fn history_goes_back_only_with_a_rollback() {
    fn at(step: u64) -> impl Fn(&mut Change) {
        move |change| {
            (change.record.resume, change.record.commit) = (Step(step), committed(step));
        }
    }
    let later = altered(2, &[2, 3], at(5));
    let earlier = altered(3, &[2, 3], at(4));
    let [a, b, c, d] = two_members();
    let before = [a, b, c, d, later];
    let with = |entry| before.iter().cloned().chain([entry]).collect::<Vec<_>>();
    assert_eq!(refusal(&with(earlier)), "generation 3 goes back to step 4");
    let silently = altered(3, &[2, 3], |it| it.rollback = Some((Step(5), RollbackReason::Asked)));
    assert_eq!(refusal(&with(silently)), "generation 3 goes back, but for another cause");
    let told = altered(3, &[2, 3], |change| {
        change.record.cause = Cause::Rollback;
        change.rollback = Some((Step(5), RollbackReason::Asked));
    });
    let (state, verdicts) = replay(&with(told));
    assert_eq!(verdicts.last(), Some(&EntryOutcome::Accepted));
    let events: Vec<_> = state.events().iter().rev().take(2).map(|event| &event.kind).collect();
    let [EventKind::Generation { .. }, EventKind::Rollback { from, to, .. }] = events[..] else {
        panic!("no rollback in {events:?}")
    };
    assert_eq!((*from, *to), (Step(5), Step(0)));
    let beyond = altered(3, &[2, 3], at(1_000));
    assert_eq!(refusal(&with(beyond)), "generation 3 goes on beyond the last step");
    let other = altered(3, &[2, 3], |change| {
        (change.record.resume, change.record.commit) = (Step(6), committed(5));
    });
    assert_eq!(refusal(&with(other)), "generation 3 resumes at 6 by another commit");
}

#[test]
fn comings_and_goings_are_events_in_their_order() {
    let [a, b, c, d] = two_members();
    let entries = [
        a,
        b,
        c,
        d,
        register("c", 3, |_| {}),
        entry(Command::Drain { worker: WorkerId(2) }),
        altered(2, &[5], |change| {
            (change.lost, change.left) = (vec![loss(3)], vec![WorkerId(2)]);
            (change.redone, change.record.waiting) = (true, true);
        }),
    ];
    let (state, _) = replay(&entries);
    let events: Vec<_> = state.events().iter().map(|event| event.kind.clone()).collect();
    let expected = [
        EventKind::Draining { worker: WorkerId(2) },
        EventKind::Lost { worker: WorkerId(3), reason: loss(3).reason, detect_ms: 4, pause_ms: 2 },
        EventKind::Left { worker: WorkerId(2) },
        EventKind::Joined { worker: WorkerId(5) },
        EventKind::Generation {
            generation: Generation(2),
            cause: Cause::Start,
            workers: vec![WorkerId(5)],
            at_step: Step(0),
            redone: true,
            waiting: true,
            under_protected: vec![(Shard(0), 2)],
        },
    ];
    assert_eq!(events[events.len() - 5..], expected);
    let phases: Vec<_> = state.workers().values().map(|known| known.phase).collect();
    assert_eq!(phases, [WorkerPhase::Left, WorkerPhase::Lost, WorkerPhase::Member]);
    assert_eq!(state.waiting_since(), Some(5));
    assert_eq!(state.present().count(), 1);
}

#[test]
fn a_member_is_lost_only_with_a_generation() {
    let mut entries = two_members().to_vec();
    entries.push(entry(Command::Lose { worker: WorkerId(3), reason: loss(3).reason }));
    let expected = "worker 2 (id 3) is a member, and only a generation can do without it";
    assert_eq!(refusal(&entries), expected);
}

/// An evicted process registers again, in another incarnation or, if its registration was on its
/// way twice, in the same. Under the old id it is gone.
#[test]
fn who_is_gone_registers_under_a_new_id() {
    let [a, b, c, d] = two_members();
    let gone = altered(2, &[2], |change| change.lost = vec![loss(3)]);
    let entries = [a, b, c, d, gone, register("b", 2, |_| {})];
    let (state, verdicts) = replay(&entries);
    assert_eq!(verdicts.last(), Some(&EntryOutcome::Registered(WorkerId(6))));
    assert_eq!(state.on_node(&name("b")), Some(WorkerId(6)));
}

/// Worker 2 stays. Another worker registers, becomes a member, and is lost, again and again.
fn preemptions(count: u64) -> Vec<CommandEntry> {
    let mut entries = vec![submitted(), register("a", 1, |_| {}), generation(1, &[2])];
    for number in 1..=count {
        let worker = entries.len() as u64 + 1;
        entries.push(register(&format!("spot-{number}"), number, |_| {}));
        entries.push(generation(2 * number, &[2, worker]));
        entries.push(altered(2 * number + 1, &[2], |change| change.lost = vec![loss(worker)]));
    }
    entries
}

#[test]
fn of_those_who_are_gone_only_the_newest_are_remembered() {
    let (state, verdicts) = replay(&preemptions(100));
    assert!(!verdicts.iter().any(|verdict| matches!(verdict, EntryOutcome::Refused(_))));
    assert_eq!(state.workers().len(), 1 + REMEMBERED);
    let newest = WorkerId(4 + 3 * 99);
    let oldest = WorkerId(newest.0 - 3 * (REMEMBERED as u64 - 1));
    let ids: Vec<WorkerId> = state.workers().keys().copied().collect();
    assert_eq!((ids[0], ids[1], ids[REMEMBERED]), (WorkerId(2), oldest, newest));
    assert_eq!(state.workers.nodes.len(), 1, "their nodes too");
}

/// A worker that has left may not have heard that it may go, and would register anew.
#[test]
fn who_has_left_is_remembered_longer_than_who_was_lost() {
    let mut entries = preemptions(1);
    let guest = WorkerId(entries.len() as u64 + 1);
    entries.push(register("guest", 1, |_| {}));
    entries.push(entry(Command::Drain { worker: guest }));
    for number in 2..=100 {
        let worker = entries.len() as u64 + 1;
        entries.push(register(&format!("late-{number}"), number, |_| {}));
        entries.push(generation(2 * number, &[2, worker]));
        entries.push(altered(2 * number + 1, &[2], |change| change.lost = vec![loss(worker)]));
    }
    let (state, verdicts) = replay(&entries);
    assert!(!verdicts.iter().any(|verdict| matches!(verdict, EntryOutcome::Refused(_))));
    assert_eq!(state.workers()[&guest].phase, WorkerPhase::Left);
    assert_eq!(state.workers().len(), 1 + REMEMBERED);
}

/// However old the worker is, it has only just gone.
#[test]
fn the_last_to_go_is_remembered() {
    let mut entries = preemptions(100);
    let (worker, number) = (entries.len() as u64 + 1, 2 * 100 + 2);
    entries.push(register("b", 1, |_| {}));
    entries.push(altered(number, &[worker], |change| change.lost = vec![loss(2)]));
    let (state, _) = replay(&entries);
    assert_eq!(state.workers()[&WorkerId(2)].phase, WorkerPhase::Lost);
}

#[test]
fn a_pair_that_cannot_be_parted_is_told_of_once_as_long_as_both_are_members() {
    let pair = (WorkerId(2), WorkerId(3));
    let again = |number| altered(number, &[2, 3], |change| change.unreachable = vec![pair]);
    let [a, b, c, d] = two_members();
    let (state, _) = replay(&[a, b, c, d, again(2), again(3), generation(4, &[2, 3]), again(5)]);
    let told = |event: &&Event| matches!(event.kind, EventKind::Unreachable { .. });
    let told: Vec<_> = state.events().iter().filter(told).map(|event| &event.kind).collect();
    assert_eq!(told, [&EventKind::Unreachable { workers: pair }]);
}

#[test]
fn the_first_ending_counts() {
    let failed = Outcome::Failed { name: None, reason: FailReason::Cancelled };
    let complete = end(1, Outcome::Complete(vec![]));
    let entries = [submitted(), end(1, failed.clone()), complete];
    let (state, verdicts) = replay(&entries);
    assert_eq!((state.outcome(), state.events().len()), (&failed, 2));
    assert_eq!(verdicts[2], EntryOutcome::Refused(Rejection::RunIsOver));
}

/// I14: equal applied index means equal state.
#[test]
fn the_same_log_gives_the_same_state() {
    let entries = [
        submitted(),
        register("a", 1, |_| {}),
        register("b", 2, |f| f.samples = 1),
        generation(1, &[2]),
        entry(Command::Lead { coordinator: FOUNDER }),
    ];
    assert_eq!(replay(&entries), replay(&entries));
    let numbers: Vec<_> = replay(&entries).0.events().iter().map(|event| event.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
}

#[test]
#[should_panic(expected = "entry 1 applied after entry 1")]
fn an_index_that_comes_twice_stops_the_process() {
    let mut state = State::default();
    state.apply(1, Term(1), &submitted());
    state.apply(1, Term(1), &submitted());
}

fn request(number: u64, command: OperatorCommand) -> CommandEntry {
    asked((1, number), command)
}

fn coordinator(node: &str, incarnation: u64, port: u16) -> CoordinatorInfo {
    let address = (Ipv4Addr::LOCALHOST, port).into();
    CoordinatorInfo {
        name: name(node),
        incarnation,
        address,
        api: None,
        log_format: *LOG_FORMATS.end(),
    }
}

fn found(ephemeral: bool) -> CommandEntry {
    let tokens = Vec::new();
    entry(Command::Found { ephemeral, founder: coordinator("one", 1, 1), tokens })
}

/// A coordinator that lost its disk does not know what it has promised: it is another coordinator.
#[test]
fn a_coordinators_id_is_its_directorys_and_never_given_twice() {
    let settle = |id, coordinator| entry(Command::Coordinator { id, coordinator });
    let join = |coordinator| settle(None, coordinator);
    let entries = [
        entry(Command::Lead { coordinator: FOUNDER }),
        join(coordinator("two", 7, 2)),
        found(false),
        join(coordinator("two", 7, 2)),
        join(coordinator("two", 7, 3)),
        join(coordinator("two", 8, 3)),
        found(false),
        request(1, OperatorCommand::Remove(FOUNDER)),
        request(2, OperatorCommand::Remove(CoordinatorId(6))),
        settle(Some(CoordinatorId(6)), coordinator("two", 8, 4)),
        settle(Some(FOUNDER), coordinator("one", 1, 1)),
        entry(Command::ShutOut { coordinator: FOUNDER }),
        entry(Command::ShutOut { coordinator: FOUNDER }),
        join(coordinator("one", 9, 1)),
        entry(Command::ShutOut { coordinator: CoordinatorId(4) }),
    ];
    let (state, verdicts) = replay(&entries);
    let refused = EntryOutcome::Refused;
    let expected = [
        refused(Rejection::NotFounded),
        EntryOutcome::Coordinator(FOUNDER),
        EntryOutcome::Coordinator(CoordinatorId(4)),
        EntryOutcome::Coordinator(CoordinatorId(4)),
        EntryOutcome::Coordinator(CoordinatorId(6)),
        EntryOutcome::Coordinator(FOUNDER),
        EntryOutcome::Accepted,
        refused(Rejection::LastCoordinator(CoordinatorId(6))),
        EntryOutcome::Coordinator(CoordinatorId(6)),
        refused(Rejection::Removed(FOUNDER)),
        EntryOutcome::Accepted,
        refused(Rejection::NotRemoved(FOUNDER)),
        refused(Rejection::ShutOut(name("one"))),
        EntryOutcome::Accepted,
    ];
    assert_eq!(verdicts[1..], expected);
    let views = state.coordinators();
    assert_eq!((views.len(), views[0].id, views[0].address.port()), (1, CoordinatorId(6), 4));
    let out: Vec<_> = state.names_shut_out().map(|(id, _)| id).collect();
    assert_eq!((out, state.leaving().len()), (vec![FOUNDER], 0), "the name of 4 is that of 6");
}

#[test]
fn a_request_is_carried_out_once_and_its_outcome_is_kept() {
    let [a, b, c, d] = two_members();
    let drain = |number| request(number, OperatorCommand::Drain(WorkerId(3)));
    let entries = [a, b, c, d, drain(2), drain(2), drain(1)];
    let (state, verdicts) = replay(&entries);
    let older = EntryOutcome::Refused(Rejection::Superseded);
    assert_eq!(verdicts[4..], [EntryOutcome::Accepted, EntryOutcome::Accepted, older]);
    let draining = |event: &&Event| matches!(event.kind, EventKind::Draining { .. });
    assert_eq!(state.events().iter().filter(draining).count(), 1);
}

/// A token that is always the same, good for this many nodes.
fn made(uses: u32) -> CommandEntry {
    let secret = "A".repeat(43);
    let token: JoinToken = format!("es1.AAAAAAAAAAAA.{secret}.{secret}").parse().expect("one");
    let terms = TokenLimits { uses: Some(uses), ..TokenLimits::unlimited(Role::Worker) };
    request(1, OperatorCommand::CreateToken(token.accepted(terms)))
}

/// The first request of an id stands, and snapshots remember it, too.
#[test]
fn a_request_that_asks_for_something_else_under_the_same_id_is_refused() {
    let (state, _) = replay(&[made(1)]);
    let mut state = State::decode(&state.encode(), *LOG_FORMATS.end()).expect("its own bytes");
    assert_eq!(state.apply(2, Term(1), &made(2)), EntryOutcome::Accepted, "it keeps its terms");
    let another = OperatorCommand::RevokeToken([0; 9]);
    let refused = EntryOutcome::Refused(Rejection::OtherCommand);
    assert_eq!(state.apply(3, Term(1), &request(1, another.clone())), refused);
    let left: Vec<_> = state.tokens().views().iter().map(|view| view.uses_left).collect();
    assert_eq!(left, [Some(1)], "neither revoked nor made anew");
    let id = |number| RequestId { client: 1, number };
    let others = [1, 2, 0].map(|number| state.has_decided_another(id(number), &another));
    assert_eq!(others, [true, false, false]);
}

/// A client may repeat a request that was answered too long ago to be remembered.
#[test]
fn a_token_that_is_made_once_more_is_not_good_for_more_nodes() {
    let spend = |node| entry(Command::SpendToken { token: [0; 9], node: name(node) });
    let mut entries = vec![made(1), spend("one")];
    let others = 2..requests::CLIENTS as u64 + 2;
    entries.extend(others.map(|client| asked((client, 1), OperatorCommand::Cancel(RunId(1)))));
    entries.extend([made(1), spend("two"), spend("one")]);
    let (_, verdicts) = replay(&entries);
    let used_up = EntryOutcome::NotAdmitted(Refusal::UsedUp { uses: 1 });
    assert_eq!(
        verdicts[entries.len() - 3..],
        [EntryOutcome::Accepted, used_up, EntryOutcome::Accepted]
    );
}

#[test]
fn of_the_newest_clients_the_outcomes_are_kept() {
    let ask = |client| asked((client, 1), OperatorCommand::RevokeToken([0; 9]));
    let clients = 0..requests::CLIENTS as u64 + 5;
    let entries: Vec<CommandEntry> = clients.map(ask).collect();
    let (state, _) = replay(&entries);
    assert_eq!(state.outcomes.len(), requests::CLIENTS);
    assert!(!state.has_decided(RequestId { client: 4, number: 1 }));
    assert!(state.has_decided(RequestId { client: 5, number: 1 }));
}

#[test]
fn a_cluster_for_one_run_takes_no_other() {
    let end = end(2, Outcome::Complete(vec![]));
    let other = RunSpec { name: "other".into(), ..exemplars::run() };
    for (ephemeral, refused) in [(true, true), (false, false)] {
        let entries = [found(ephemeral), submitted(), end.clone(), submit(2, other.clone())];
        let (state, verdicts) = replay(&entries);
        assert_eq!(verdicts[3] == EntryOutcome::Refused(Rejection::RunIsOver), refused);
        assert_eq!((state.past_runs().len(), state.past_runs()[0].id), (1, RunId(2)));
        assert_eq!(state.run_id(), RunId(if refused { 2 } else { 4 }));
    }
}

/// The leader proposed it before it knew that the run is over, or twice.
#[test]
fn what_was_proposed_for_one_run_does_not_touch_the_next() {
    let end = end(2, Outcome::Complete(vec![]));
    let late = [end.clone(), register_for(2, "a", 1, |_| {})];
    let entries = [found(false), submitted(), end, submit(2, exemplars::run())];
    let (state, verdicts) = replay(&[&entries[..], &late].concat());
    let refused = EntryOutcome::Refused(Rejection::NotTheRun(RunId(2)));
    assert_eq!(verdicts[4..], [refused.clone(), refused]);
    assert_eq!((state.outcome(), state.workers().len()), (&Outcome::Running, 0));
    assert_eq!(state.shards(), None, "nor does it lay a foundation");
}

#[test]
fn the_numbers_of_generations_go_on_from_run_to_run() {
    let end = end(2, Outcome::Complete(vec![]));
    let again = register_for(6, "a", 2, |_| {});
    let entries = [
        found(false),
        submitted(),
        register_for(2, "a", 1, |_| {}),
        generation(1, &[3]),
        end,
        submit(2, exemplars::run()),
        again,
        generation(1, &[7]),
        generation(2, &[7]),
    ];
    let (state, verdicts) = replay(&entries);
    assert!(matches!(verdicts[7], EntryOutcome::Refused(_)));
    assert_eq!((&verdicts[8], state.generation()), (&EntryOutcome::Accepted, Generation(2)));
    assert_eq!((state.settled(), state.workers().len()), (Step(0), 1));
}

/// I13: the history is what the entries bring, each once.
#[test]
fn an_entry_brings_its_events_to_the_history() {
    let mut state = State::default();
    let [a, b, ..] = two_members();
    state.apply(1, Term(1), &a);
    assert!(matches!(state.new_events(), [HistoryEvent::Run(RunId(1)), HistoryEvent::Event(_)]));
    state.apply(2, Term(1), &b);
    assert!(matches!(state.new_events(), [HistoryEvent::Event(_)]));
}

#[test]
fn of_the_events_the_newest_thousand_are_kept() {
    let entries = vec![entry(Command::Lead { coordinator: FOUNDER }); EVENTS + 7];
    let (state, _) = replay(&entries);
    let numbers = state.events().iter().map(|event| event.number);
    assert!(numbers.eq(8..=EVENTS as u64 + 7));
}

/// A state with an example of everything that a state can hold.
fn rich() -> State {
    let mut entries = preemptions(3);
    entries.push(found(false));
    entries.push(request(1, OperatorCommand::CreateToken(exemplars::token())));
    entries.push(entry(Command::SpendToken { token: [0; 9], node: name("a") }));
    entries.push(entry(Command::Drain { worker: WorkerId(2) }));
    entries.push(entry(Command::Lead { coordinator: FOUNDER }));
    replay(&entries).0
}

/// I14: equal applied index, equal bytes.
#[test]
fn a_snapshot_is_the_state() {
    let state = rich();
    let bytes = state.encode();
    let mut other = State::decode(&bytes, *LOG_FORMATS.end()).expect("it was just made");
    assert_eq!(other.encode(), bytes);
    let mut state = state;
    let index = state.index() + 1;
    for it in [&mut state, &mut other] {
        it.apply(index, Term(2), &entry(Command::Lead { coordinator: FOUNDER }));
    }
    assert_eq!(state, other);
}

#[test]
fn a_snapshot_with_any_byte_changed_is_refused() {
    let bytes = rich().encode();
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(
            matches!(State::decode(&damaged, *LOG_FORMATS.end()), Err(SnapshotError::Damaged)),
            "byte {at}"
        );
        assert!(State::decode(&bytes[..at], *LOG_FORMATS.end()).is_err());
    }
}

/// The digest is right, no matter which process made it, but the content must still be a state.
#[test]
fn a_snapshot_that_contradicts_itself_is_refused() {
    type Break = fn(&mut State);
    let table: [(Break, &str); 4] = [
        (|state| state.workers.gone.push_back(WorkerId(99)), "a worker that is gone is not there"),
        (
            |state| {
                state.workers.nodes.insert(name("z"), WorkerId(99));
            },
            "a node's worker",
        ),
        (|state| state.applied = 1, "from the future"),
        (|state| state.events.count = 0, "too many events"),
    ];
    for (change, problem) in table {
        let mut state = rich();
        change(&mut state);
        let error =
            State::decode(&state.encode(), *LOG_FORMATS.end()).expect_err(problem).to_string();
        assert!(error.contains(problem), "{error}");
    }
}

/// A command as of a moment, milliseconds of Unix time.
fn request_at(unix_ms: u64, number: u64, command: OperatorCommand) -> CommandEntry {
    CommandEntry { unix_ms, ..request(number, command) }
}

fn token(number: u8, uses: Option<u32>, expires_unix_s: Option<u64>) -> AcceptedToken {
    let (id, secret) = (format_token_id(&[number; 9]), "A".repeat(43));
    let token: JoinToken = format!("es1.{id}.{secret}.{secret}").parse().expect("one");
    token.accepted(TokenLimits { role: Role::Worker, uses, expires_unix_s })
}

#[test]
fn tokens_that_have_expired_make_room_and_a_late_joiner_is_told_for_an_hour() {
    let mut state = State::default();
    let make = |number: u64, expires| OperatorCommand::CreateToken(token_of(number, expires));
    for number in 1..=access::MAX_TOKENS as u64 {
        let made = state.apply(number, Term(1), &request_at(0, number, make(number, 60)));
        assert_eq!(made, EntryOutcome::Accepted);
    }
    let (next, after) = (access::MAX_TOKENS as u64 + 1, access::MAX_TOKENS as u64 + 2);
    let full = EntryOutcome::Refused(Rejection::TooManyTokens(1_000));
    assert_eq!(state.apply(next, Term(1), &request_at(59_999, next, make(next, 120))), full);
    let spend = Command::SpendToken { token: token_of(7, 60).id(), node: name("late") };
    let late = state.apply(after, Term(1), &CommandEntry { unix_ms: 61_000, command: spend });
    assert_eq!(late, EntryOutcome::NotAdmitted(Refusal::Expired { unix_s: 60 }));
    let made = request_at(61_000, after + 1, make(after, 120));
    assert_eq!(state.apply(after + 1, Term(1), &made), EntryOutcome::Accepted);
    assert_eq!(state.tokens().count(), 1);
    let much = OperatorCommand::CreateToken(token(9, Some(1_001), None));
    let refused = EntryOutcome::Refused(Rejection::TooManyUses { most: 1_000, uses: 1_001 });
    assert_eq!(state.apply(after + 2, Term(1), &request_at(61_000, after + 2, much)), refused);
}

fn token_of(number: u64, expires: u64) -> AcceptedToken {
    let mut id = [0; 9];
    id[..8].copy_from_slice(&number.to_le_bytes());
    let secret = "A".repeat(43);
    let text = format!("es1.{}.{secret}.{secret}", format_token_id(&id));
    let token: JoinToken = text.parse().expect("one");
    token.accepted(TokenLimits { role: Role::Worker, uses: Some(1), expires_unix_s: Some(expires) })
}

#[test]
fn the_tokens_of_the_beginning_are_listed_and_revoked_for_good() {
    let first = token(1, None, None);
    let (founder, tokens) = (coordinator("one", 1, 1), vec![first.clone()]);
    let found = entry(Command::Found { ephemeral: false, founder, tokens });
    let revoke = request(1, OperatorCommand::RevokeToken(first.id()));
    let (state, verdicts) = replay(&[found.clone(), revoke, found]);
    assert_eq!(verdicts[1..], [EntryOutcome::Accepted, EntryOutcome::Coordinator(FOUNDER)]);
    assert_eq!(state.tokens().count(), 0, "founding it once more brings nothing back");
}

#[test]
fn a_revoked_node_is_remembered_in_snapshots_and_admitted_by_no_token() {
    let node = |role, text: &str| Identity { role, name: name(text) };
    let worker = node(Role::Worker, "worker-1");
    let entries = [
        request(1, OperatorCommand::CreateToken(token(3, Some(4), None))),
        request(2, OperatorCommand::Revoke(worker.clone())),
        request(3, OperatorCommand::Revoke(node(Role::Coordinator, "coordinator-1"))),
        entry(Command::SpendToken { token: [3; 9], node: name("worker-1") }),
    ];
    let (state, verdicts) = replay(&entries);
    assert_eq!(verdicts[1], EntryOutcome::Accepted);
    assert!(matches!(&verdicts[2], EntryOutcome::Refused(Rejection::RevokedCoordinator)));
    assert_eq!(verdicts[3], EntryOutcome::NotAdmitted(Refusal::Removed));
    let state = State::decode(&state.encode(), *LOG_FORMATS.end()).expect("its own bytes");
    assert!(state.is_revoked(&worker) && !state.is_revoked(&node(Role::Operator, "worker-1")));
    assert_eq!((state.revocations_revision(), state.revoked_views()[0].since_unix_ms), (2, 5));
}

#[test]
fn a_cancel_ends_the_run_that_it_names_and_no_other() {
    let other = RunSpec { name: "other".into(), ..exemplars::run() };
    let entries = [
        found(false),
        submitted(),
        request(1, OperatorCommand::Cancel(RunId(2))),
        submit(2, other),
        request(2, OperatorCommand::Cancel(RunId(2))),
    ];
    let (state, verdicts) = replay(&entries);
    assert_eq!(verdicts[2], EntryOutcome::Accepted);
    assert_eq!(verdicts[4], EntryOutcome::Refused(Rejection::NotTheRun(RunId(2))));
    assert_eq!((state.run_id(), state.outcome()), (RunId(4), &Outcome::Running));
}
