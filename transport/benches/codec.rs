//! The cost to encode a step's messages, and to read them as they come from a peer: with
//! validation, into owned values.
//!
//! `cargo bench -p everstep-transport --bench codec -- [--quick] [PART OF AN ID]`. An id is
//! `message/encode or decode/case`. The throughput is that of the encoded bytes. Votes and Statuses
//! grow with the parameter shards: 262 are those of the GPT of 6 layers and width 384 with two
//! workers, 8,192 those of a model of 8.6 thousand million parameters (such a message is too large
//! for the control lane and travels on a stream of its own). Heartbeats grow with the lines that
//! the coordinator has not yet written. A chunk's header stands before every shard that a node
//! sends.
//!
//! This benchmark sends no byte, so it does not measure the cost of the links.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use everstep_transport::protocol::message::Heartbeat;
use everstep_transport::protocol::step::{Contribution, Status};
use everstep_transport::protocol::{
    Chunk, DataShard, Generation, Message, MetricsLine, Prepared, Shard, Step, codec, exemplars,
};

/// Numbers of parameter shards to measure.
const SHARDS: [u32; 2] = [262, 8_192];
const GENERATION: Generation = Generation(3);
const STEP: Step = Step(5);

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    for shards in SHARDS {
        message(&mut criterion, &format!("{shards} shards"), &vote(shards));
    }
    message(&mut criterion, "any", &exemplar("commit"));
    for lines in [1, 64] {
        message(&mut criterion, &format!("{lines} lines"), &heartbeat(lines));
    }
    for shards in SHARDS {
        message(&mut criterion, &format!("{shards} shards"), &status(shards));
    }
    header(&mut criterion);
    criterion.final_summary();
}

fn message(criterion: &mut Criterion, case: &str, message: &Message) {
    let bytes = codec::encode(message);
    let mut group = criterion.benchmark_group(message.name());
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function(BenchmarkId::new("encode", case), |bencher| {
        bencher.iter(|| codec::encode(black_box(message)));
    });
    group.bench_function(BenchmarkId::new("decode", case), |bencher| {
        bencher.iter(|| codec::decode(black_box(&bytes)).expect("what was encoded"));
    });
    group.finish();
}

fn header(criterion: &mut Criterion) {
    let chunk = exemplars::chunk();
    let bytes = chunk.encode();
    let mut group = criterion.benchmark_group("chunk header");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("encode", |bencher| bencher.iter(|| black_box(&chunk).encode()));
    group.bench_function("decode", |bencher| bencher.iter(|| Chunk::decode(black_box(&bytes))));
    group.finish();
}

/// The vote of one of two members. Each owns every shard and is primary of half of them.
fn vote(shards: u32) -> Message {
    let samples = vec![7; 4];
    Message::Prepared(Prepared {
        generation: GENERATION,
        step: STEP,
        squares: (0..shards / 2).map(|shard| (Shard(shard), 1.5)).collect(),
        contributions: vec![Contribution {
            data_shard: DataShard(0),
            loss: 2.5,
            weight: 1.0,
            samples,
            samples_lost: 0,
            samples_repeated: 0,
            evaluation: None,
            scalars: Vec::new(),
        }],
        digests: (0..shards).map(|shard| (Shard(shard), 6)).collect(),
        compute_seconds: 0.25,
        commit_seconds: 0.125,
    })
}

/// A step leader's heartbeat with this many lines.
fn heartbeat(lines: usize) -> Message {
    let Message::Heartbeat(heartbeat) = exemplar("heartbeat") else { unreachable!("by its name") };
    Message::Heartbeat(Heartbeat { lines: vec![MetricsLine::default(); lines], ..heartbeat })
}

/// The Status of a member that owns every shard and has all reduced shards of the interrupted step.
fn status(shards: u32) -> Message {
    let Message::Status(status) = exemplar("status") else { unreachable!("by its name") };
    let all = || (0..shards).map(Shard);
    Message::Status(Status {
        prepared: all().map(|shard| (shard, GENERATION)).collect(),
        versions: all().map(|shard| (shard, STEP, GENERATION)).collect(),
        ..status
    })
}

fn exemplar(name: &str) -> Message {
    let of_that_name = |message: &Message| message.name() == name;
    exemplars::all().into_iter().find(of_that_name).expect("there is one of each")
}
