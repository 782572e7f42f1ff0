//! The vocabulary's bytes: every message survives the way, and no bytes from outside cause a panic.

use std::collections::HashSet;

use everstep_transport::protocol::chunk::{
    ChunkError, HEADER_BYTES, MAX_ELEMENTS, MAX_MESSAGE_CHUNK,
};
use everstep_transport::protocol::codec::{DecodeError, decode, encode};
use everstep_transport::protocol::{
    Chunk, ChunkKind, DataShard, Encoding, Generation, MemoryPlace, Message, OperatorCommand, Rank,
    Record, RequestId, Rounding, RunSpec, Shard, Step, Term, exemplars,
};
use proptest::prelude::*;

#[test]
fn every_message_arrives_as_it_was_sent() {
    for message in exemplars::all() {
        assert_eq!(decode(&encode(&message)).unwrap(), message);
    }
}

#[test]
fn exemplars_show_every_message_once() {
    // A request may be shown once for each command: they differ as messages do.
    let command = |message: &Message| match message {
        Message::Request { command, .. } => Some(std::mem::discriminant(command)),
        _ => None,
    };
    let all = exemplars::all();
    let shown: HashSet<_> = all.iter().map(|message| (message.name(), command(message))).collect();
    assert_eq!(shown.len(), all.len());
}

#[test]
fn a_truncated_message_is_an_error_or_another_message_but_never_a_panic() {
    for message in exemplars::all() {
        let bytes = encode(&message);
        for length in 0..bytes.len() {
            let _ = decode(&bytes[..length]);
            let _ = decode(&bytes[length..]);
        }
    }
}

#[test]
fn a_flipped_bit_is_an_error_or_another_message_but_never_a_panic() {
    for message in exemplars::all() {
        let mut bytes = encode(&message).to_vec();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let _ = decode(&bytes);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn a_message_with_an_impossible_run_is_refused() {
    let run = RunSpec { steps: 0, ..exemplars::run() };
    let id = RequestId { client: 1, number: 1 };
    for message in [
        Message::Request { id, command: OperatorCommand::Submit(run.clone().into()) },
        Message::Welcome { run, term: Term(1) },
    ] {
        assert!(matches!(decode(&encode(&message)), Err(DecodeError::Spec(_))));
    }
}

#[test]
fn a_message_with_a_devices_name_that_cannot_be_is_refused() {
    let name = exemplars::device().name;
    let mut refused = 0;
    for message in exemplars::all() {
        let mut bytes = encode(&message).to_vec();
        let length = name.as_str().len();
        let found = bytes.windows(length).position(|part| part == name.as_str().as_bytes());
        if let Some(at) = found {
            bytes[at] = b'"';
            assert!(matches!(decode(&bytes), Err(DecodeError::Device)), "{message:?}");
            refused += 1;
        }
    }
    assert_eq!(refused, 2, "a registration, and a worker as an operator sees it");
}

proptest! {
    #[test]
    fn garbage_is_no_reason_to_panic(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn a_message_with_many_bytes_changed_does_not_panic(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..16),
    ) {
        let all = exemplars::all();
        let mut bytes = encode(which.get(&all)).to_vec();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = decode(&bytes);
    }

    #[test]
    fn a_header_arrives_as_it_was_sent(chunk in chunks()) {
        prop_assert_eq!(Chunk::decode(&chunk.encode()), Ok((chunk, false)));
    }

    #[test]
    fn a_header_arrives_with_the_place_of_its_body(
        chunk in chunks(),
        (segment, at, digest) in any::<(u32, u64, u64)>(),
    ) {
        let place = MemoryPlace { segment, at, digest };
        let bytes = chunk.encode_with_place(&place);
        let header = bytes.first_chunk().expect("it begins with a header");
        match chunk.kind {
            ChunkKind::Message => {
                let error = ChunkError::Kind(ChunkKind::Message as u32 | 1 << 31);
                prop_assert_eq!(Chunk::decode(header), Err(error));
            }
            _ => prop_assert_eq!(Chunk::decode(header), Ok((chunk, true))),
        }
        prop_assert_eq!(MemoryPlace::decode(bytes.last_chunk().expect("a place")), place);
    }

    #[test]
    fn garbage_for_a_header_is_an_error_or_a_header(bytes in any::<[u8; HEADER_BYTES]>()) {
        if let Ok((chunk, _)) = Chunk::decode(&bytes) {
            prop_assert!(chunk.count > 0 && chunk.body_bytes() <= MAX_MESSAGE_CHUNK as usize);
        }
    }
}

fn chunks() -> impl Strategy<Value = Chunk> {
    let kinds = prop_oneof![
        Just((ChunkKind::Partial, Encoding::F32)),
        Just((ChunkKind::Reduced, Encoding::F32)),
        Just((ChunkKind::Parameters, Encoding::F32)),
        Just((ChunkKind::Parameters, Encoding::Bf16)),
        Just((ChunkKind::Master, Encoding::F32)),
        Just((ChunkKind::State, Encoding::F32)),
        Just((ChunkKind::Message, Encoding::Bytes)),
    ];
    let places = (any::<u64>(), any::<u64>(), any::<u32>(), 0..=32_u32, any::<u32>(), any::<u64>());
    (kinds, places, 1..=MAX_ELEMENTS).prop_map(|((kind, encoding), place, count)| {
        let (generation, step, shard, level, index, digest) = place;
        let (generation, step, shard) = (Generation(generation), Step(step), Shard(shard));
        Chunk { kind, generation, step, shard, level, index, count, encoding, digest }
    })
}

#[test]
fn a_header_that_no_honest_node_sends_is_refused_by_name() {
    let valid = Chunk {
        kind: ChunkKind::Partial,
        count: 7,
        encoding: Encoding::F32,
        ..Chunk::message(Generation(1), Step(2), 7)
    };
    let message = Chunk::message(Generation(1), Step(2), 7);
    let table = [
        (Chunk { count: 0, ..valid }, ChunkError::Count(0)),
        (Chunk { count: MAX_ELEMENTS + 1, ..valid }, ChunkError::Count(MAX_ELEMENTS + 1)),
        (
            Chunk { count: MAX_MESSAGE_CHUNK + 1, ..message },
            ChunkError::Count(MAX_MESSAGE_CHUNK + 1),
        ),
        (Chunk { encoding: Encoding::Bf16, ..valid }, ChunkError::Encoding(2)),
        (Chunk { encoding: Encoding::F32, ..message }, ChunkError::Encoding(1)),
        (Chunk { kind: ChunkKind::Message, ..valid }, ChunkError::Encoding(1)),
        (Chunk { level: 33, ..valid }, ChunkError::Level(33)),
    ];
    for (chunk, error) in table {
        assert_eq!(Chunk::decode(&chunk.encode()), Err(error));
    }
}

fn record() -> Record {
    let all = exemplars::all();
    let record = all.into_iter().find_map(|message| match message {
        Message::Announce(record) => Some(record),
        _ => None,
    });
    record.expect("an exemplar of a record")
}

#[test]
fn a_record_that_contradicts_itself_is_refused() {
    type Change = fn(&mut Record);
    let table: [(Change, &str); 10] = [
        (|r| r.members.clear(), "no members"),
        (|r| r.members.push(r.members[0].clone()), "listed twice"),
        (|r| r.members[0].data_shards.clear(), "data shards"),
        (|r| r.members[0].data_shards.push(DataShard(0)), "data shards"),
        (|r| r.owners[0].owners.clear(), "owners of parameter shard 0"),
        (|r| r.owners[0].owners = vec![Rank(0), Rank(0)], "owners of parameter shard 0"),
        (|r| r.owners[0].owners = vec![Rank(1)], "owners of parameter shard 0"),
        (|r| r.owners[0].first = Shard(1), "gap"),
        (|r| r.number = Generation(u64::MAX), "nothing can follow"),
        (|r| r.resume = Step(u64::MAX), "nothing can follow"),
    ];
    assert_eq!(record().validate(1, 2), Ok(()));
    for (change, problem) in table {
        let mut record = record();
        change(&mut record);
        let error = record.validate(1, 2).unwrap_err();
        assert!(error.to_string().contains(problem), "{error} does not say {problem:?}");
    }
    assert!(record().validate(1, 3).unwrap_err().to_string().contains("2 of 3 parameter shards"));
}

#[test]
fn a_waiting_record_need_not_assign_data_shards() {
    let mut record = Record { waiting: true, ..record() };
    record.members[0].data_shards.clear();
    assert_eq!(record.validate(1, 2), Ok(()));
}

#[test]
fn a_run_that_cannot_be_is_refused_by_the_key_at_fault() {
    type Change = fn(&mut RunSpec);
    let table: [(Change, &str); 22] = [
        (|r| r.name.clear(), "run.name"),
        (|r| r.name = "n".repeat(257), "run.name"),
        (|r| r.steps = 0, "run.steps"),
        (|r| r.min_workers = 0, "run.min_workers"),
        (|r| r.min_workers = r.start_workers + 1, "run.min_workers"),
        (|r| r.start_workers = 0, "run.start_workers"),
        (|r| r.model.kind.clear(), "model.kind"),
        (|r| r.model.layers = 0, "model.layers"),
        (|r| r.model.heads = 0, "model.heads"),
        (|r| r.model.vocabulary = 1, "model.vocabulary"),
        (|r| r.data.validation = 0.6, "data.validation"),
        (|r| r.batch.micro_batch = u32::MAX, "batch.micro_batch"),
        (|r| r.batch.accumulate = 65_536, "batch.data_shards"),
        (|r| r.optimizer.kind.clear(), "optimizer.kind"),
        (|r| r.optimizer.learning_rate = f64::NAN, "optimizer.learning_rate"),
        (|r| r.optimizer.weight_decay = -0.1, "optimizer.weight_decay"),
        (|r| r.optimizer.clip_norm = Some(0.0), "optimizer.clip_norm"),
        (|r| r.optimizer.floor = 1.5, "optimizer.floor"),
        (|r| r.hang_after_ms = 999, "redundancy.hang_after"),
        (|r| r.copies = 0, "redundancy.copies"),
        (|r| r.all_gather = Encoding::Bytes, "wire.all_gather"),
        (|r| r.rounding = Rounding::Stochastic, "wire.rounding"),
    ];
    assert_eq!(exemplars::run().validate(), Ok(()));
    for (change, key) in table {
        let mut run = exemplars::run();
        // Three factors that are each allowed and together too much.
        (run.batch.data_shards, run.batch.micro_batch) = (256, 2);
        change(&mut run);
        assert_eq!(run.validate().unwrap_err().key, key);
    }
}
