use std::time::Duration;

use everstep_transport::protocol::Term;
use proptest::prelude::*;

use super::message::MessageKind;
use super::*;

const ME: ReplicaId = ReplicaId(1);
const PEER: ReplicaId = ReplicaId(2);

fn options() -> RaftOptions {
    RaftOptions {
        id: ME,
        seed: 1,
        keep: 2,
        #[cfg(feature = "planted")]
        plant: None,
    }
}

/// The disk of a replica among so many voters, with so many entries of term 1, all agreed.
fn disk(voters: u64, entries: u64) -> DurableState {
    let mut kept = DurableState::founded_by(ME);
    kept.snapshot.members.voters = (1..=voters).map(ReplicaId).collect();
    kept.entries = (2..2 + entries).map(|index| entry(index, 1)).collect();
    kept.hard_state.commit = kept.last().index;
    kept
}

fn entry(index: u64, term: u64) -> RaftEntry {
    let position = LogPosition { index, term: Term(term) };
    RaftEntry { position, kind: EntryKind::Command, bytes: vec![index as u8] }
}

fn replica(voters: u64, entries: u64) -> Replica {
    Replica::new(Time(0), options(), disk(voters, entries)).expect("sound")
}

fn effects(replica: &mut Replica) -> Vec<RaftEffect> {
    std::iter::from_fn(|| replica.poll_effect()).collect()
}

/// Completes all writes, with their consequences. Returns the other effects.
fn written(replica: &mut Replica) -> Vec<RaftEffect> {
    let mut wanted = Vec::new();
    while let Some(effect) = replica.poll_effect() {
        match effect {
            RaftEffect::Persist(batch) => replica.persisted(batch.number),
            effect => wanted.push(effect),
        }
    }
    wanted
}

fn message(kind: MessageKind, term: u64) -> Message {
    Message {
        kind,
        term,
        log_term: 0,
        index: 0,
        commit: 0,
        commit_term: 0,
        reject: false,
        reject_hint: 0,
        context: Vec::new(),
        entries: Vec::new(),
        snapshot: None,
        tick_us: 0,
        asked_us: 0,
    }
}

fn append(term: u64, before: (u64, u64), entries: Vec<RaftEntry>) -> Message {
    let (index, log_term) = before;
    Message { index, log_term, entries, commit: index, ..message(MessageKind::Append, term) }
}

/// Ticks one by one, as on a machine that is not late.
fn pass(replica: &mut Replica, from: Time, ticks: u32) -> Time {
    let tick = LAN_TICK;
    (1..=ticks).for_each(|number| replica.tick(from + tick * number));
    from + tick * ticks
}

fn says(effects: &[RaftEffect], kind: MessageKind) -> bool {
    effects.iter().any(|it| matches!(it, RaftEffect::Send { message, .. } if message.kind == kind))
}

#[test]
fn a_replica_begins_with_what_its_disk_holds() {
    let mut replica = replica(3, 3);
    let wanted = written(&mut replica);
    assert!(matches!(&wanted[0], RaftEffect::Install(snapshot) if snapshot.position.index == 1));
    assert!(matches!(&wanted[1], RaftEffect::Members(members) if members.voters.len() == 3));
    assert!(matches!(&wanted[2], RaftEffect::Apply(entries) if entries.len() == 3));
    assert_eq!(wanted[3], RaftEffect::Follows { leader: None, term: Term(1) });
}

#[test]
fn who_stands_alone_says_nothing_in_a_term_that_is_not_on_its_disk() {
    let mut kept = disk(1, 0);
    kept.snapshot.members.learners = vec![PEER];
    let mut replica = Replica::new(Time(0), options(), kept).expect("sound");
    let before = effects(&mut replica);
    assert!(!says(&before, MessageKind::Append), "it is heard in a term that it may use again");
    assert!(!before.contains(&RaftEffect::Leads(Term(2))));
    let batch = before.iter().find_map(|effect| match effect {
        RaftEffect::Persist(batch) => Some(batch.number),
        _ => None,
    });
    replica.persisted(batch.expect("a term to write"));
    let after = effects(&mut replica);
    assert!(says(&after, MessageKind::Append) && after.contains(&RaftEffect::Leads(Term(2))));
}

#[test]
fn a_vote_waits_for_the_disk() {
    let mut replica = replica(3, 0);
    written(&mut replica);
    let asked = Message { index: 1, log_term: 1, ..message(MessageKind::Vote, 2) };
    replica.receive(PEER, &asked);
    let before = effects(&mut replica);
    assert!(!says(&before, MessageKind::VoteResponse));
    let Some(RaftEffect::Persist(batch)) = before.first() else { panic!("{before:?}") };
    assert_eq!((batch.hard_state.term, batch.hard_state.vote), (Term(2), Some(PEER)));
    replica.persisted(batch.number);
    assert!(says(&effects(&mut replica), MessageKind::VoteResponse));
}

#[test]
fn a_refusal_is_said_in_the_term_of_who_asks_and_tells_what_is_agreed() {
    let mut replica = replica(3, 2);
    written(&mut replica);
    replica.receive(PEER, &Message { index: 1, log_term: 1, ..message(MessageKind::PreVote, 5) });
    let refusal = written(&mut replica).into_iter().find_map(|effect| match effect {
        RaftEffect::Send { message, .. } => Some(message),
        _ => None,
    });
    let refusal = refusal.expect("an answer");
    assert_eq!((refusal.kind, refusal.reject), (MessageKind::PreVoteResponse, true));
    assert_eq!((refusal.term, refusal.commit), (4, 3));
}

#[test]
fn entries_are_written_with_the_commit_that_came_with_them() {
    let mut replica = replica(3, 2);
    written(&mut replica);
    replica.receive(PEER, &append(2, (3, 1), vec![entry(4, 2)]));
    written(&mut replica);
    let more = Message { commit: 4, ..append(2, (4, 2), vec![entry(5, 2)]) };
    replica.receive(PEER, &more);
    let wanted = effects(&mut replica);
    let batch = wanted.iter().find_map(|effect| match effect {
        RaftEffect::Persist(batch) => Some(batch.clone()),
        _ => None,
    });
    assert_eq!(batch.expect("an entry to write").hard_state.commit, 4);
}

#[test]
fn no_election_begins_while_the_disk_is_busy() {
    let mut replica = replica(3, 0);
    written(&mut replica);
    let snapshot = Snapshot {
        position: LogPosition { index: 9, term: Term(2) },
        members: disk(3, 0).snapshot.members,
        bytes: vec![1],
    };
    let sent = Message { snapshot: Some(snapshot.clone()), ..message(MessageKind::Snapshot, 2) };
    replica.receive(PEER, &sent);
    let wanted = effects(&mut replica);
    let Some(RaftEffect::Persist(batch)) = wanted.first().cloned() else { panic!("{wanted:?}") };
    pass(&mut replica, Time(0), 1000);
    assert_eq!(effects(&mut replica), [], "it is as if time stood still");
    replica.receive(PEER, &message(MessageKind::TimeoutNow, 2));
    assert_eq!(effects(&mut replica), []);
    replica.persisted(batch.number);
    assert!(replica.poll_effect() == Some(RaftEffect::Install(snapshot)));
    assert!(says(&written(&mut replica), MessageKind::Vote), "it was asked to lead");
}

#[test]
fn what_waits_for_a_disk_that_stands_still_is_bounded_and_the_next_heartbeat_is_answered() {
    let mut replica = replica(3, 3);
    written(&mut replica);
    let mut begun = effects(&mut replica);
    for number in 0..2_000 {
        replica
            .receive(PEER, &append(2, (4 + number, 1 + number.min(1)), vec![entry(5 + number, 2)]));
        replica.receive(PEER, &message(MessageKind::Heartbeat, 2));
        begun.extend(effects(&mut replica));
    }
    assert!(!says(&begun, MessageKind::HeartbeatResponse), "it is said before the term is durable");
    let batches = begun.iter().filter_map(|effect| match effect {
        RaftEffect::Persist(batch) => Some(batch.number),
        _ => None,
    });
    let batches: Vec<_> = batches.collect();
    assert!((1..300).contains(&batches.len()), "{} batches wait for the disk", batches.len());
    replica.persisted(*batches.last().expect("some"));
    let said = effects(&mut replica);
    assert!((2..300).contains(&said.len()), "{} effects were held", said.len());

    replica.receive(PEER, &message(MessageKind::Heartbeat, 2));
    assert!(says(&written(&mut replica), MessageKind::HeartbeatResponse), "it is deaf for good");
}

#[test]
fn a_snapshot_says_who_the_members_were_at_its_place() {
    let mut replica = replica(1, 5);
    written(&mut replica);
    replica.change(vec![ME, PEER]).expect("it leads");
    written(&mut replica);
    assert_eq!(replica.members().learners, [PEER]);
    replica.compact(4, vec![7]);
    let Some(RaftEffect::Persist(batch)) = replica.poll_effect() else {
        panic!("nothing to write")
    };
    let snapshot = batch.snapshot.expect("a snapshot");
    assert_eq!((snapshot.position.index, snapshot.bytes), (4, vec![7]));
    assert_eq!(snapshot.members.learners, [], "there was none at that place");
    assert_eq!(batch.base.index, 2, "two entries are kept");
}

#[test]
fn after_a_long_while_the_leader_is_heard_first() {
    let mut replica = replica(3, 0);
    written(&mut replica);
    let heartbeat = message(MessageKind::Heartbeat, 2);
    replica.receive(PEER, &heartbeat);
    written(&mut replica);
    let late = Time(0) + Duration::from_secs(100);
    replica.tick(late);
    replica.receive(PEER, &heartbeat);
    assert!(!says(&written(&mut replica), MessageKind::PreVote));
    pass(&mut replica, late, 20);
    assert!(!says(&written(&mut replica), MessageKind::PreVote), "its time-out began anew");
    pass(&mut replica, late + Duration::from_millis(100), 25);
    assert!(says(&written(&mut replica), MessageKind::PreVote));
}

#[test]
fn a_read_before_the_first_agreement_of_a_term_is_lost_and_not_forgotten() {
    let mut replica = replica(1, 0);
    replica.read(5);
    assert!(effects(&mut replica).contains(&RaftEffect::ReadLost { ticket: 5 }));
    replica.persisted(1);
    effects(&mut replica);
    replica.read(6);
    assert_eq!(effects(&mut replica), [RaftEffect::Read { ticket: 6, index: 2 }]);
}

#[test]
fn entries_that_nobody_could_read_are_refused() {
    let mut replica = replica(1, 0);
    written(&mut replica);
    for bytes in [Vec::new(), vec![0; MAX_ENTRY_BYTES + 1]] {
        assert!(matches!(replica.propose(bytes), Err(Refused::Impossible(_))));
    }
}

#[test]
fn what_no_sound_peer_says_is_refused_and_counted() {
    let sound = disk(3, 0).snapshot;
    let snapshot = |change: fn(&mut Snapshot)| {
        let mut snapshot =
            Snapshot { position: LogPosition { index: 9, term: Term(2) }, ..sound.clone() };
        change(&mut snapshot);
        Message { snapshot: Some(snapshot), ..message(MessageKind::Snapshot, 2) }
    };
    let strange = [
        message(MessageKind::Heartbeat, 0),
        message(MessageKind::Heartbeat, u64::MAX),
        Message { context: vec![0; 1000], ..message(MessageKind::Heartbeat, 2) },
        Message { entries: vec![entry(4, 2)], ..message(MessageKind::Heartbeat, 2) },
        message(MessageKind::Snapshot, 2),
        append(2, (0, 0), Vec::new()),
        append(2, (100, 0), vec![entry(101, 2)]),
        append(2, (u64::MAX, 1), Vec::new()),
        append(2, (3, 1), vec![entry(5, 2)]),
        append(2, (3, 1), vec![entry(4, 2), entry(5, 1)]),
        append(2, (3, 1), vec![entry(4, 3)]),
        append(
            2,
            (3, 1),
            vec![RaftEntry { kind: EntryKind::Members, bytes: vec![0xff], ..entry(4, 2) }],
        ),
        snapshot(|it| it.members.voters.clear()),
        snapshot(|it| it.members.voters = vec![PEER]),
        snapshot(|it| it.members.learners = vec![ME]),
        snapshot(|it| it.members.voters = vec![PEER, ME]),
        snapshot(|it| it.position.term = Term(3)),
        snapshot(|it| it.position = LogPosition { index: 3, term: Term(2) }),
    ];
    let mut replica = replica(3, 2);
    written(&mut replica);
    for (count, message) in (1..).zip(&strange) {
        replica.receive(PEER, message);
        assert_eq!((replica.refused(), effects(&mut replica)), (count, vec![]), "{message:?}");
    }
    replica.receive(ME, &message(MessageKind::Heartbeat, 2));
    assert_eq!(replica.refused(), strange.len() as u64 + 1, "from itself");
}

#[test]
fn a_replica_that_has_lost_what_it_acknowledged_says_so() {
    let mut replica = replica(3, 2);
    written(&mut replica);
    replica.receive(PEER, &Message { commit: 100, ..message(MessageKind::Heartbeat, 2) });
    assert_eq!(written(&mut replica), [RaftEffect::Forgotten { last: 3, agreed: 100 }]);
}

#[test]
fn what_no_replica_can_have_left_is_refused() {
    let broken: [fn(&mut DurableState); 9] = [
        |it| it.hard_state.commit = 100,
        |it| it.hard_state.commit = 0,
        |it| it.hard_state.term = Term(0),
        |it| _ = it.entries.remove(1),
        |it| it.entries[2] = entry(4, 7),
        |it| it.entries[0] = entry(2, 0),
        |it| it.snapshot.members.voters.clear(),
        |it| it.snapshot.position.index = 3,
        |it| it.base = LogPosition { index: 1, term: Term(0) },
    ];
    for (number, damage) in broken.iter().enumerate() {
        let mut kept = disk(3, 3);
        kept.snapshot.position.term = Term(1);
        damage(&mut kept);
        let opened = Replica::new(Time(0), options(), kept.clone()).map(drop);
        // A snapshot in the middle of the log is as good as one at its beginning.
        assert_eq!(opened.is_ok(), number == 7, "{number}: {kept:?}");
    }
}

/// Gives the replica a leader's heartbeat at each tick, for so many ticks.
fn lead_on(replica: &mut Replica, from: Time, ticks: u32, tick_us: u32) -> Time {
    let beat = Message { tick_us, ..message(MessageKind::Heartbeat, 1) };
    (1..=ticks).fold(from, |now, _| {
        replica.receive(PEER, &beat);
        pass(replica, now, 1)
    })
}

/// For how many ticks a replica waits for a leader that it heard a moment ago.
fn timeout(replica: &mut Replica, from: Time) -> (u32, Time) {
    effects(replica);
    let ticks = (1..1_000).find(|number| {
        pass(replica, from + LAN_TICK * (number - 1), 1);
        says(&effects(replica), MessageKind::PreVote)
    });
    let ticks = ticks.expect("it asks for votes");
    (ticks, from + LAN_TICK * ticks)
}

#[test]
fn a_follower_is_as_patient_as_its_leader_is_slow() {
    let timeout_with = |tick_us| {
        let mut replica = replica(3, 0);
        written(&mut replica);
        let now = lead_on(&mut replica, Time(0), 10, tick_us);
        timeout(&mut replica, now).0
    };
    let (near, far) = (timeout_with(5_000), timeout_with(20_000));
    assert!(near.abs_diff(33) <= 9 && far.abs_diff(4 * near) <= 4, "{near}, {far}");
    let least = (timeout_with(0), timeout_with(u32::MAX));
    assert!(least.0 == near && least.1 < 32 * 42, "it is bounded: {least:?}");
}

#[test]
fn a_leader_that_was_given_up_and_is_heard_again_is_given_more_time() {
    let mut replica = replica(3, 0);
    written(&mut replica);
    let now = lead_on(&mut replica, Time(0), 10, 5_000);
    let (first, now) = timeout(&mut replica, now);
    let now = lead_on(&mut replica, now, 10, 5_000);
    let (second, now) = timeout(&mut replica, now);
    assert!(second.abs_diff(2 * first) <= 2, "{first}, {second}");
    let now = lead_on(&mut replica, now, 31_000 / 5, 5_000);
    assert!(timeout(&mut replica, now).0.abs_diff(first) <= 2, "the machine has time again");
}

fn any_entries() -> impl Strategy<Value = Vec<RaftEntry>> {
    let entry = (0..12_u64, 0..5_u64, any::<bool>(), prop::collection::vec(any::<u8>(), 0..9));
    let entry = entry.prop_map(|(index, term, changes, bytes)| {
        let kind = if changes { EntryKind::Members } else { EntryKind::Command };
        RaftEntry { position: LogPosition { index, term: Term(term) }, kind, bytes }
    });
    let follows = (0..12_u64, 0..5_u64, 0..4_u64).prop_map(|(first, term, count)| {
        (first..first + count).map(|index| self::entry(index, term)).collect()
    });
    prop_oneof![follows, prop::collection::vec(entry, 0..3)]
}

fn any_snapshot() -> impl Strategy<Value = Snapshot> {
    let ids = || prop::collection::vec((0..5_u64).prop_map(ReplicaId), 0..4);
    (0..12_u64, 0..5_u64, ids(), ids(), ids()).prop_map(
        |(index, term, voters, learners, outgoing)| {
            let mut members = Members { voters, learners, outgoing };
            members.voters.sort_unstable();
            Snapshot {
                position: LogPosition { index, term: Term(term) },
                members,
                bytes: Vec::new(),
            }
        },
    )
}

fn any_message() -> impl Strategy<Value = Message> {
    use MessageKind::{
        Append, AppendResponse, Heartbeat, HeartbeatResponse, PreVote, PreVoteResponse,
    };
    use MessageKind::{Snapshot, TimeoutNow, Vote, VoteResponse};
    let number = || prop_oneof![30 => 0..12_u64, 1 => Just(u64::MAX), 1 => Just(u64::MAX / 4)];
    let kind = prop::sample::select(vec![
        Append,
        AppendResponse,
        Vote,
        VoteResponse,
        PreVote,
        PreVoteResponse,
        Heartbeat,
        HeartbeatResponse,
        Snapshot,
        TimeoutNow,
    ]);
    let numbers = [(); 6].map(|()| number());
    let rest = (any::<bool>(), any_entries(), prop::option::of(any_snapshot()));
    (kind, numbers, rest).prop_map(|(kind, numbers, (reject, entries, snapshot))| {
        let [term, log_term, index, commit, commit_term, reject_hint] = numbers;
        let carries = kind == Append;
        Message {
            log_term,
            index,
            commit,
            commit_term,
            reject,
            reject_hint,
            entries: if carries { entries } else { Vec::new() },
            snapshot: if kind == Snapshot { snapshot } else { None },
            ..self::message(kind, term)
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_peers_say_nothing_panics(
        said in prop::collection::vec((1..5_u64, any_message(), 0..40_u32, any::<bool>()), 1..30),
        voters in 1..4_u64,
        entries in 0..6_u64,
    ) {
        let mut replica = replica(voters, entries);
        let (mut now, mut unwritten) = (Time(0), Vec::new());
        for (from, message, ticks, write) in said {
            replica.receive(ReplicaId(from), &message);
            now = pass(&mut replica, now, ticks);
            for effect in effects(&mut replica) {
                if let RaftEffect::Persist(batch) = effect {
                    unwritten.push(batch.number);
                }
            }
            if let Some(number) = unwritten.pop().filter(|_| write) {
                unwritten.clear();
                replica.persisted(number);
            }
            let _ = replica.propose(vec![1]);
            replica.read(1);
        }
    }

    #[test]
    fn bytes_that_are_no_message_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Message::decode(&bytes);
    }

    #[test]
    fn a_message_is_read_as_it_was_said(message in any_message()) {
        prop_assert_eq!(Message::decode(&message.encode()).expect("a message"), message);
    }
}
