//! Numbers at their limits: the code refuses what is out of bounds, and nothing overflows.

use std::panic::catch_unwind;

use everstep_transport::protocol::chunk::{HEADER_BYTES, MAX_ELEMENTS, MAX_MESSAGE_CHUNK};
use everstep_transport::protocol::codec::encode;
use everstep_transport::protocol::generation::Ownership;
use everstep_transport::protocol::outcome::PartEvaluation;
use everstep_transport::protocol::run::{BatchSpec, MAX_COUNT, MAX_SAMPLES, ModelSpec};
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{
    Chunk, DataShard, Generation, Message, Prepared, Rank, Record, RunSpec, Shard, Step, exemplars,
};
use proptest::prelude::*;

/// Any number. Small ones and limits occur more often than chance would have them.
fn extremes() -> impl Strategy<Value = u32> {
    let limits = [0, 1, 2, MAX_COUNT, MAX_ELEMENTS, MAX_MESSAGE_CHUNK, u32::MAX - 1, u32::MAX];
    let near = (prop::sample::select(limits.to_vec()), 0..=2_u32)
        .prop_map(|(limit, over)| limit.saturating_add(over).saturating_sub(1));
    prop_oneof![near, 1..=1024_u32, any::<u32>()]
}

/// A record with these owners. Each entry has the first shard, the count and the owning ranks.
fn record(owners: Vec<(u32, u32, Vec<u32>)>) -> Record {
    let all = exemplars::all();
    let record = all.into_iter().find_map(|message| match message {
        Message::Announce(record) => Some(record),
        _ => None,
    });
    let owners = owners.into_iter().map(|(first, count, ranks)| {
        let owners = ranks.into_iter().map(Rank).collect();
        Ownership { first: Shard(first), count, owners }
    });
    Record { owners: owners.collect(), ..record.expect("an exemplar of a record") }
}

proptest! {
    #[test]
    fn a_record_with_any_numbers_is_valid_or_refused(
        owners in prop::collection::vec(
            (extremes(), extremes(), prop::collection::vec(0..2_u32, 0..3)), 0..4,
        ),
        consecutive in any::<bool>(),
        data_shards in extremes(),
        shards in extremes(),
    ) {
        let mut owners = owners;
        if consecutive {
            let mut next = 0_u32;
            for (first, count, _) in &mut owners {
                *first = next;
                next = next.wrapping_add(*count); // as a hostile sum would
            }
        }
        let record = record(owners);
        let total: u64 = record.owners.iter().map(|known| u64::from(known.count)).sum();
        prop_assert_eq!(record.shards(), u32::try_from(total).unwrap_or(u32::MAX));
        let _ = record.validate(data_shards, shards);
        // The caller may count the shards right, or as the record itself does.
        let claimed = record.shards();
        if record.validate(1, claimed).is_ok() {
            prop_assert_eq!(u64::from(claimed), total);
        }
    }

    #[test]
    fn a_chunk_with_any_numbers_is_within_its_bounds_or_refused(
        numbers in prop::array::uniform5(extremes()),
        (kind, encoding, level) in (0..7_u32, 0..5_u32, 0..40_u32),
    ) {
        let [generation, step, shard, index, count] = numbers;
        let mut bytes = [0; HEADER_BYTES];
        let places = [0, generation, 0, step, kind, shard, level, index, count, encoding];
        for (place, number) in bytes.chunks_exact_mut(4).zip(places) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let Ok((chunk, _)) = Chunk::decode(&bytes) else { return Ok(()) };
        prop_assert_eq!(chunk.encode(), bytes);
        let width = [4, 2, 1][encoding as usize - 1];
        prop_assert_eq!(chunk.body_bytes() as u128, u128::from(count) * width);
        let most = if kind == 5 { MAX_MESSAGE_CHUNK } else { 4 * MAX_ELEMENTS };
        prop_assert!((1..=most as usize).contains(&chunk.body_bytes()));
    }

    #[test]
    fn a_run_with_any_numbers_is_within_its_bounds_or_refused(
        numbers in prop::array::uniform10(extremes()),
        (seed, steps, warmup_steps) in any::<(u64, u64, u64)>(),
        (rate, share) in any::<(f64, f64)>(),
    ) {
        let [layers, heads, width, context, copies, min, start, shards, rows, times] = numbers;
        let mut run = exemplars::run();
        run.model = ModelSpec { layers, heads, width, context, ..run.model };
        run.batch = BatchSpec { data_shards: shards, micro_batch: rows, accumulate: times };
        (run.copies, run.min_workers, run.start_workers) = (copies, min, start);
        (run.seed, run.steps, run.optimizer.warmup_steps) = (seed, steps, warmup_steps);
        (run.optimizer.learning_rate, run.data.validation) = (rate, share);
        let _ = run.validate();
        let product = u128::from(shards) * u128::from(rows) * u128::from(times);
        prop_assert_eq!(run.batch.samples(), u64::try_from(product).unwrap_or(u64::MAX));
        let batch = RunSpec { batch: run.batch, ..exemplars::run() };
        if batch.validate().is_ok() {
            prop_assert!((1..=u128::from(MAX_SAMPLES)).contains(&product));
        }
    }
}

#[test]
fn shards_that_add_up_to_more_than_can_be_are_refused() {
    let wraps = record(vec![(0, u32::MAX, vec![0]), (u32::MAX, 3, vec![0])]);
    for shards in [2, u32::MAX] {
        let error = wraps.validate(1, shards).unwrap_err().to_string();
        assert!(error.contains("without end"), "{error}");
    }
    assert_eq!(record(vec![(0, u32::MAX, vec![0])]).validate(1, u32::MAX), Ok(()));
    // A caller that asks before it validates gets no more shards than there can be.
    assert_eq!(record(vec![(u32::MAX, 3, vec![0])]).owned_by(Rank(0)), []);
}

#[test]
fn a_shard_outside_the_record_has_no_owners() {
    let record = record(vec![(0, 2, vec![0]), (2, 3, vec![1, 0])]);
    assert_eq!(record.owners_of(Shard(1)), [Rank(0)]);
    assert_eq!(record.owners_of(Shard(4)), [Rank(1), Rank(0)]);
    for shard in [5, u32::MAX] {
        assert!(catch_unwind(|| record.owners_of(Shard(shard)).len()).is_err(), "shard {shard}");
    }
    let nobody = Record { owners: vec![], ..record };
    assert!(catch_unwind(|| nobody.owners_of(Shard(0)).len()).is_err());
}

#[test]
fn a_batch_of_too_many_samples_says_what_to_lower() {
    let run = |data_shards| RunSpec {
        batch: BatchSpec { data_shards, micro_batch: 256, accumulate: 4 },
        ..exemplars::run()
    };
    assert_eq!(run(1024).validate(), Ok(()));
    let error = run(1025).validate().unwrap_err().to_string();
    for word in ["batch.data_shards", "batch.micro_batch", "batch.accumulate", "1048576"] {
        assert!(error.contains(word), "{error:?} does not say {word:?}");
    }
}

#[test]
fn the_largest_vote_fits_a_message() {
    for data_shards in [1, MAX_COUNT] {
        let samples = vec![u64::MAX; MAX_SAMPLES as usize / data_shards as usize];
        let contribution = |shard| Contribution {
            data_shard: DataShard(shard),
            loss: 1.0,
            weight: 1.0,
            samples: samples.clone(),
            samples_lost: 0,
            samples_repeated: 0,
            evaluation: Some(PartEvaluation {
                part: DataShard(shard),
                samples: 1,
                loss: 1.0,
                metric: Some(0.5),
            }),
            scalars: Vec::new(),
        };
        let shards = 0..MAX_COUNT; // of parameters: as many as a large model has
        let vote = Message::Prepared(Prepared {
            generation: Generation(1),
            step: Step(1),
            squares: shards.clone().map(|shard| (Shard(shard), 1.0)).collect(),
            contributions: (0..data_shards).map(contribution).collect(),
            digests: shards.map(|shard| (Shard(shard), 1)).collect(),
            compute_seconds: 1.0,
            commit_seconds: 0.0,
        });
        assert!(encode(&vote).len() < MAX_MESSAGE_CHUNK as usize / 2);
    }
}
