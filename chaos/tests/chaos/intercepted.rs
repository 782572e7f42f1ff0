//! Planted bugs: each is refused and changes nothing, or a checker finds it.
//!
//! | planted | what becomes of it |
//! |---|---|
//! | a chunk or a vote sent twice; a chunk or message from outside the plan | refused |
//! | a chunk of an older generation; of a newer one | refused; waits |
//! | a commit sent twice, or lost where parameters follow | harmless |
//! | a commit lost where no parameters follow; a vote or a chunk lost | stuck (I11) |
//! | another record | I1 |
//! | another commit; another partial sum | I2 |
//! | another reduced shard | I3 |
//! | another sampler; a recorded sample that is another, left out or doubled | I4 |
//! | another line | I13 |
//! | other parameters | I19 |

use std::cell::Cell;
use std::rc::Rc;

use everstep_chaos::check::Invariant;
use everstep_chaos::world::{Failure, Finished, InFlight, NodeId};
use everstep_kernels::buffer::{Buffer, Shared};
use everstep_transport::protocol::{Chunk, ChunkKind, Encoding, Generation, Message, Shard, Step};
use everstep_worker::step::event::StreamItem;

use crate::support::Toy;

/// Adds to every chunk of a kind another one, made from it. Counts the added chunks.
fn add_chunks(
    kind: ChunkKind,
    other: impl Fn(&mut Chunk) + 'static,
) -> (Rc<Cell<u64>>, impl FnMut(InFlight<'_>) + 'static) {
    let added = Rc::new(Cell::new(0));
    let count = added.clone();
    let interceptor = move |in_flight: InFlight<'_>| {
        let InFlight::StreamItems { items, .. } = in_flight else { return };
        let Some(StreamItem::Tensor { chunk, values }) = items.first() else { return };
        if chunk.kind == kind {
            let (mut chunk, values) = (*chunk, values.clone());
            other(&mut chunk);
            items.push(StreamItem::Tensor { chunk, values });
            count.set(count.get() + 1);
        }
    };
    (added, interceptor)
}

/// Changes the values of the first chunk of a kind.
fn spoil(kind: ChunkKind) -> impl FnMut(InFlight<'_>) + 'static {
    let mut spoiled = false;
    move |in_flight| {
        let InFlight::StreamItems { items, .. } = in_flight else { return };
        let Some(StreamItem::Tensor { chunk, values }) = items.first_mut() else { return };
        if !spoiled && chunk.kind == kind {
            spoiled = true;
            let mut other = values.to_vec();
            other[7] += 0.25;
            *values = Shared::new(Buffer::detached(other));
        }
    }
}

/// Lets `change` see every message on a control lane until it returns true: it has changed one.
fn once(
    mut change: impl FnMut(NodeId, &mut Vec<Message>) -> bool + 'static,
) -> impl FnMut(InFlight<'_>) + 'static {
    let mut changed = false;
    move |in_flight| {
        let InFlight::Messages { to, messages, .. } = in_flight else { return };
        changed = changed || change(to, messages);
    }
}

fn lose(name: &'static str) -> impl FnMut(InFlight<'_>) + 'static {
    once(move |_, messages| {
        let found = messages.iter().any(|message| message.name() == name);
        messages.retain(|message| message.name() != name);
        found
    })
}

/// Returns the violation's evidence, in words.
#[track_caller]
fn assert_found(met: Result<Finished, Failure>, invariant: Invariant) -> String {
    match met {
        Err(Failure::Violation(violation)) => {
            assert_eq!(violation.invariant, invariant, "{violation}");
            violation.seen
        }
        other => panic!("{invariant:?} should have been broken: {other:?}"),
    }
}

#[test]
fn pieces_sent_twice_are_added_once() {
    let (toy, alone) = Toy::new(|_| {}).with_reference();
    for kind in [ChunkKind::Partial, ChunkKind::Reduced, ChunkKind::Parameters] {
        let (added, interceptor) = add_chunks(kind, |_| {});
        let finished = toy.intercepted(3, interceptor).expect("they change nothing (I18)");
        assert_eq!(finished.state_hash, alone.state_hash);
        assert!((1..=added.get()).contains(&finished.refused), "{kind:?}: {}", finished.refused);
    }
}

#[test]
fn pieces_outside_the_plan_are_refused_and_change_nothing() {
    let (toy, alone) = Toy::new(|_| {}).with_reference();
    let outside: [fn(&mut Chunk); 8] = [
        |chunk| chunk.index ^= 1,
        |chunk| (chunk.level, chunk.index) = (30, 9),
        |chunk| chunk.shard = Shard(u32::MAX),
        |chunk| chunk.step = Step(chunk.step.0 - 1),
        |chunk| chunk.generation = Generation(0),
        |chunk| chunk.count -= 1,
        |chunk| chunk.kind = ChunkKind::Master,
        |chunk| (chunk.kind, chunk.encoding) = (ChunkKind::Parameters, Encoding::Bf16),
    ];
    for other in outside {
        let (added, interceptor) = add_chunks(ChunkKind::Partial, other);
        let finished = toy.intercepted(3, interceptor).expect("they change nothing (I7)");
        assert_eq!(finished.state_hash, alone.state_hash);
        assert_eq!(finished.refused, added.get());
    }
}

#[test]
fn pieces_of_a_newer_generation_wait_and_change_nothing() {
    let (toy, alone) = Toy::new(|_| {}).with_reference();
    let newer = |chunk: &mut Chunk| chunk.generation = Generation(2);
    let (added, interceptor) = add_chunks(ChunkKind::Parameters, newer);
    let finished = toy.intercepted(3, interceptor).expect("they change nothing");
    assert_eq!((finished.state_hash, finished.refused), (alone.state_hash, 0));
    assert!(added.get() > 0);
}

#[test]
fn votes_and_commits_that_nobody_asked_for_change_nothing() {
    let (toy, alone) = Toy::new(|_| {}).with_reference();
    type Other = fn(&Message) -> Option<Message>;
    let others: [(Other, bool); 5] = [
        (|said| matches!(said, Message::Prepared(_)).then(|| said.clone()), true),
        // The commit comes with the parameters too, so a second one changes nothing.
        (|said| matches!(said, Message::Commit(_)).then(|| said.clone()), false),
        (|said| vote_of(said, Generation(0)), true),
        // These wait, in bounded number, for a generation that does not begin.
        (|said| vote_of(said, Generation(2)), false),
        (|said| commit_of(said, Generation(2)), false),
    ];
    for (other, refused) in others {
        let met = toy.intercepted(3, move |in_flight| {
            let InFlight::Messages { messages, .. } = in_flight else { return };
            messages.extend(messages.first().and_then(other));
        });
        let finished = met.expect("they change nothing (I7)");
        assert_eq!(finished.state_hash, alone.state_hash);
        assert_eq!(finished.refused > 0, refused);
    }
}

fn vote_of(said: &Message, generation: Generation) -> Option<Message> {
    let Message::Prepared(vote) = said else { return None };
    let mut vote = vote.clone();
    vote.generation = generation;
    Some(Message::Prepared(vote))
}

fn commit_of(said: &Message, generation: Generation) -> Option<Message> {
    let Message::Commit(commit) = said else { return None };
    let mut commit = commit.clone();
    commit.generation = generation;
    Some(Message::Commit(commit))
}

#[test]
fn a_lost_commit_is_found_at_the_head_of_a_stream_of_parameters() {
    let (toy, alone) = Toy::new(|_| {}).with_reference();
    let finished = toy.copies(1).intercepted(3, lose("commit")).expect("the streams tell it");
    assert_eq!((finished.state_hash, finished.refused), (alone.state_hash, 0));
}

#[test]
fn what_is_lost_without_its_connection_stops_the_run() {
    let toy = Toy::new(|_| {});
    // Two owners of all shards stream nothing to each other that would carry a commit.
    for (workers, name) in [(2, "commit"), (3, "prepared"), (3, "finished")] {
        let met = toy.copies(2).intercepted(workers, lose(name));
        assert!(matches!(met, Err(Failure::Stuck { .. })), "{name}: {met:?}");
    }
    let met = toy.intercepted(3, |in_flight| {
        let InFlight::StreamItems { items, .. } = in_flight else { return };
        items.retain(|item| {
            !matches!(item, StreamItem::Tensor { chunk, .. }
            if chunk.kind == ChunkKind::Partial && chunk.step == Step(2))
        });
    });
    assert!(matches!(met, Err(Failure::Stuck { .. })), "{met:?}");
}

#[test]
fn i1_another_record_of_the_same_number_is_found() {
    let met = Toy::new(|_| {}).intercepted(
        3,
        once(|_, messages| {
            let Some(Message::Announce(record)) = messages.first_mut() else { return false };
            let first = std::mem::take(&mut record.members[0].data_shards);
            let second = std::mem::replace(&mut record.members[1].data_shards, first);
            record.members[0].data_shards = second;
            true
        }),
    );
    assert_found(met, Invariant::I1);
}

#[test]
fn i2_another_commit_is_found() {
    let met = Toy::new(|_| {}).copies(2).intercepted(
        2,
        once(|_, messages| {
            let Some(Message::Commit(commit)) = messages.first_mut() else { return false };
            commit.norm *= 2.0;
            true
        }),
    );
    assert_found(met, Invariant::I2);
}

#[test]
fn other_values_are_found_wherever_they_travel() {
    let (toy, alone) = Toy::new(|_| {}).with_reference();
    for (kind, invariant) in [
        (ChunkKind::Partial, Invariant::I2),
        (ChunkKind::Reduced, Invariant::I8),
        (ChunkKind::Parameters, Invariant::I19),
    ] {
        assert_found(toy.intercepted(3, spoil(kind)), invariant);
    }
    // Without a fault-free run to compare with, no checker could tell. The transport must not
    // garble.
    let unaware = Toy { reference: None, ..toy };
    let finished = unaware.intercepted(3, spoil(ChunkKind::Partial)).expect("it is one history");
    assert_ne!(finished.state_hash, alone.state_hash);
}

#[test]
fn i4_another_sampler_is_found() {
    let met = Toy::new(|_| {}).copies(1).intercepted(
        3,
        once(|to, messages| match messages.first_mut() {
            Some(Message::Welcome { run, .. }) if to == NodeId::Worker(1) => {
                run.seed += 1;
                true
            }
            _ => false,
        }),
    );
    assert_found(met, Invariant::I4);
}

/// The devices have computed the right samples, so no other checker can find an error. From the
/// vote on, the step leader, its commit's line, the coordinator and the watchers count it.
#[test]
fn i4_a_recorded_sample_that_is_not_the_plans_is_counted_in_the_line_of_its_step() {
    for (lost, repeated) in [(1, 1), (1, 0), (0, 1)] {
        let interceptor = once(move |_, messages| {
            let Some(Message::Prepared(vote)) = messages.first_mut() else { return false };
            let Some(part) = vote.contributions.first_mut() else { return false };
            (part.samples_lost, part.samples_repeated) = (lost, repeated);
            true
        });
        let (toy, _) = Toy::new(|_| {}).with_reference();
        let seen = assert_found(toy.intercepted(3, interceptor), Invariant::I4);
        let counts = format!("samples_lost: {lost}, samples_repeated: {repeated}");
        assert!(seen.starts_with("MetricsLine") && seen.contains(&counts), "{seen}");
    }
}

#[test]
fn i13_another_line_is_found() {
    let met = Toy::new(|_| {}).intercepted(
        3,
        once(|_, messages| {
            let Some(Message::Heartbeat(heartbeat)) = messages.first_mut() else { return false };
            let Some(line) = heartbeat.lines.first_mut() else { return false };
            line.loss += 1.0;
            true
        }),
    );
    assert_found(met, Invariant::I13);
}
