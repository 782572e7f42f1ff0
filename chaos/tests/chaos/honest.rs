//! Without faults: the same bits for any number of workers, any copies, any schedule (I3).

use everstep_transport::protocol::run::RunSpec;
use everstep_transport::protocol::{Encoding, Rounding, Step};
use proptest::prelude::*;

use crate::support::{Toy, WORKERS};

fn over_seven_data_shards_in_bf16(run: &mut RunSpec) {
    run.batch.data_shards = 7;
    run.optimizer.kind = "sgd".into();
    run.all_gather = Encoding::Bf16;
}

fn rounded_at_random(run: &mut RunSpec) {
    (run.all_gather, run.rounding) = (Encoding::Bf16, Rounding::Stochastic);
}

fn of_two_micro_batches(run: &mut RunSpec) {
    run.batch.data_shards = 6;
    run.batch.accumulate = 2;
    run.optimizer.kind = "lion".into();
}

#[test]
fn any_number_of_workers_and_copies_ends_with_the_same_bits() {
    let with_spares = |run: &mut RunSpec| run.batch.data_shards = 2;
    let changes: [fn(&mut RunSpec); 4] =
        [|_| {}, over_seven_data_shards_in_bf16, of_two_micro_batches, with_spares];
    for change in changes {
        let (toy, alone) = Toy::new(change).with_reference();
        for workers in WORKERS {
            for copies in [1, 2] {
                for seed in 0..4 {
                    let finished = toy.copies(copies).complete(workers, seed);
                    assert_eq!(finished.state_hash, alone.state_hash, "{workers}, {seed}");
                    assert_eq!(finished.refused, 0, "I18: nothing is sent that is not expected");
                }
            }
        }
    }
}

#[test]
fn no_schedule_makes_a_difference() {
    let (toy, alone) = Toy::new(of_two_micro_batches).with_reference();
    for seed in 0..200 {
        assert_eq!(toy.complete(5, seed).state_hash, alone.state_hash, "seed {seed}");
    }
}

#[test]
fn equal_seeds_have_equal_traces_and_others_do_not() {
    let toy = Toy::new(|_| {});
    let history = |seed| {
        let mut world = toy.world(4, seed);
        let finished = world.run(crate::support::VIRTUAL_TIME_LIMIT).expect("a run without faults");
        (world.trace().digest(), finished.at, finished.state_hash)
    };
    assert_eq!(history(3), history(3));
    let (trace, _, state) = history(4);
    assert_ne!(trace, history(3).0);
    assert_eq!(state, history(3).2);
}

#[test]
fn another_run_has_another_state() {
    let state = |change: fn(&mut RunSpec)| Toy::new(change).complete(2, 0).state_hash;
    let toy = state(|_| {});
    assert_ne!(toy, state(|run| run.seed = 2));
    assert_ne!(toy, state(|run| run.steps = 5));
    assert_ne!(toy, state(|run| run.all_gather = Encoding::Bf16));
    assert_ne!(state(|run| run.all_gather = Encoding::Bf16), state(rounded_at_random));
    assert_ne!(toy, state(over_seven_data_shards_in_bf16));
}

#[test]
fn every_step_is_written_once_and_tells_of_no_lost_sample() {
    let finished = Toy::new(|_| {}).complete(3, 1);
    let steps: Vec<Step> = finished.lines.iter().map(|line| line.step).collect();
    assert_eq!(steps, (1..=6).map(Step).collect::<Vec<_>>(), "I13");
    assert!(finished.lines.iter().all(|line| line.samples_lost + line.samples_repeated == 0));
    let learned = finished.lines[0].loss - finished.lines[5].loss;
    assert!(learned > 0.0, "the toy learns: {learned}");
    let computed: u64 = finished.results.iter().map(|result| result.data_shards_computed).sum();
    assert_eq!(computed, 6 * 8, "every data shard is computed once");
}

fn any_run() -> impl Strategy<Value = RunSpec> {
    let optimizers = ["adamw", "sgd", "lion"];
    let batch = (1u32..12, 1u32..4, 1u32..3);
    let roundings = [None, Some(Rounding::Nearest), Some(Rounding::Stochastic)];
    let kind =
        (prop::sample::select(optimizers.to_vec()), prop::sample::select(roundings.to_vec()));
    (any::<u64>(), 1u64..6, batch, kind, 1u32..4).prop_map(|(seed, steps, batch, kind, copies)| {
        let mut run = everstep_chaos::toy::run();
        (run.seed, run.steps, run.copies) = (seed, steps, copies);
        (run.batch.data_shards, run.batch.micro_batch, run.batch.accumulate) = batch;
        run.optimizer.kind = kind.0.into();
        if let Some(rounding) = kind.1 {
            (run.all_gather, run.rounding) = (Encoding::Bf16, rounding);
        }
        run
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_run_ends_with_the_bits_of_one_worker(run in any_run(), workers in 2u32..10, seed: u64) {
        let (toy, alone) = Toy::new(|toy| *toy = run).with_reference();
        prop_assert_eq!(toy.complete(workers, seed).state_hash, alone.state_hash);
    }
}
