//! Without faults: the same bits for any number of workers, any copies, any schedule.

use everstep_transport::protocol::Encoding;
use everstep_transport::protocol::run::OptimizerKind;

use crate::support::Toy;

const WORKERS: [u32; 6] = [1, 2, 3, 4, 5, 8];

/// Runs with any number of workers, with one copy and two, under `seeds` schedules each.
fn check_all(toy: Toy, seeds: u64) {
    let (toy, alone) = toy.with_reference();
    for workers in WORKERS {
        for copies in [1, 2] {
            for seed in 0..seeds {
                let finished = toy.copies(copies).complete(workers, seed);
                assert_eq!(finished.state_hash, alone.state_hash, "{workers} workers, {seed}");
                assert_eq!(finished.refused, 0, "I18: nothing is sent that is not expected");
            }
        }
    }
}

#[test]
fn adamw_over_a_full_tree() {
    check_all(Toy::new(|_| {}), 6);
}

#[test]
fn sgd_over_seven_data_shards_gathered_in_bf16() {
    check_all(
        Toy::new(|run| {
            run.batch.data_shards = 7;
            run.optimizer.kind = OptimizerKind::Sgd;
            run.all_gather = Encoding::Bf16;
        }),
        4,
    );
}

#[test]
fn lion_over_six_data_shards_of_two_micro_batches() {
    check_all(
        Toy::new(|run| {
            run.batch.data_shards = 6;
            run.batch.accumulate = 2;
            run.optimizer.kind = OptimizerKind::Lion;
        }),
        4,
    );
}

#[test]
fn more_workers_than_data_shards() {
    check_all(Toy::new(|run| run.batch.data_shards = 2), 6);
}
