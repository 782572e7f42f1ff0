use std::net::Ipv4Addr;

use everstep_transport::protocol::exemplars;
use everstep_transport::protocol::generation::{Cause, Member, Ownership};
use everstep_transport::protocol::message::Fingerprint;
use everstep_transport::protocol::{DataShard, Rank, Shard, Term};

use super::*;

fn name(name: &str) -> NodeName {
    NodeName::parse(name).expect("a valid name")
}

fn entry(command: Command) -> Entry {
    Entry { unix_ms: 5, command }
}

fn register(node: &str, incarnation: u64, change: impl FnOnce(&mut Fingerprint)) -> Entry {
    let mut fingerprint =
        Fingerprint { model: [1; 32], data: [2; 32], parameters: 900, shards: 2, samples: 99 };
    change(&mut fingerprint);
    let address = (Ipv4Addr::LOCALHOST, 40_000).into();
    let registration = Registration { incarnation, address, fingerprint, probe: 7 };
    entry(Command::Register { name: name(node), registration })
}

fn generation(number: u64, workers: &[u64]) -> Entry {
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
    entry(Command::Generation(record))
}

fn replay(entries: &[Entry]) -> (State, Vec<Verdict>) {
    let mut state = State::default();
    let verdicts = entries.iter().zip(1..).map(|(entry, index)| state.apply(index, entry));
    let verdicts = verdicts.collect();
    (state, verdicts)
}

fn submitted() -> Entry {
    entry(Command::Submit(exemplars::run()))
}

fn refusal(entries: &[Entry]) -> String {
    match replay(entries).1.pop() {
        Some(Verdict::Refused(reason)) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_workers_id_is_the_index_of_its_entry() {
    let same = |_: &mut Fingerprint| {};
    let entries =
        [submitted(), register("a", 1, same), register("b", 2, same), register("a", 1, same)];
    let (_, verdicts) = replay(&entries);
    let ids = [2, 3, 2].map(|id| Verdict::Registered(WorkerId(id)));
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
        assert_eq!((state.shards(), &verdicts[2]), (Some(2), &Verdict::Registered(WorkerId(3))));
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
    let refused: Vec<_> = verdicts.iter().map(|v| matches!(v, Verdict::Refused(_))).collect();
    assert_eq!(refused, [false, false, true, false, true, false]);
    assert_eq!(state.generation(), Generation(2));
}

#[test]
fn a_generation_lists_only_living_workers_and_is_well_formed() {
    let lost = entry(Command::Lose { worker: WorkerId(2), reason: "gone".into() });
    let reason = refusal(&[submitted(), register("a", 1, |_| {}), lost, generation(1, &[2])]);
    assert_eq!(reason, "generation 1 lists worker 2, which is gone");
    let reason = refusal(&[submitted(), register("a", 1, |_| {}), generation(1, &[])]);
    assert_eq!(reason, "generation 1 is malformed: it has no members");
    assert_eq!(refusal(&[submitted(), generation(1, &[2])]), "generation 1 has no run");
}

#[test]
fn the_first_ending_counts() {
    let failed = Outcome::Failed { name: None, reason: "first".into() };
    let complete = entry(Command::End(Outcome::Complete(vec![])));
    let entries = [submitted(), entry(Command::End(failed.clone())), complete];
    let (state, verdicts) = replay(&entries);
    assert_eq!((state.outcome(), state.events().len()), (&failed, 2));
    assert_eq!(verdicts[2], Verdict::Refused("the run is over".into()));
}

/// I14: equal applied index means equal state.
#[test]
fn the_same_log_gives_the_same_state() {
    let entries = [
        submitted(),
        register("a", 1, |_| {}),
        register("b", 2, |f| f.samples = 1),
        generation(1, &[2]),
        entry(Command::Lose { worker: WorkerId(2), reason: "gone".into() }),
    ];
    assert_eq!(replay(&entries), replay(&entries));
    let numbers: Vec<_> = replay(&entries).0.events().iter().map(|event| event.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
}

#[test]
#[should_panic(expected = "entry 1 applied after entry 1")]
fn an_index_that_comes_twice_stops_the_process() {
    let mut state = State::default();
    state.apply(1, &submitted());
    state.apply(1, &submitted());
}
