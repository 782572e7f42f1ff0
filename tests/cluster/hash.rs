//! The same bits on any workers (I3).

use crate::world::World;

/// How many runs there are at once.
const ABREAST: usize = 2;

/// Trains with each of these numbers of workers and of copies. All states must have one hash.
fn assert_one_hash(world: &World, data_shards: u64, workers: &[usize], copies: &[u64]) {
    let alone = world.train(&["--workers", "1", "--copies", "1"]);
    alone.assert_whole(12, data_shards, 1);
    let rows = workers.iter().flat_map(|w| copies.iter().map(move |c| (*w, *c)));
    for rows in rows.collect::<Vec<_>>().chunks(ABREAST) {
        let launch = |(workers, copies): &(usize, u64)| {
            world.launch(&["--workers", &workers.to_string(), "--copies", &copies.to_string()])
        };
        let runs: Vec<_> = rows.iter().map(launch).collect();
        for ((workers, copies), run) in rows.iter().zip(runs) {
            let run = run.complete();
            run.assert_whole(12, data_shards, *workers);
            assert_eq!(run.hash(), alone.hash(), "{workers} workers, {copies} copies");
        }
    }
}

#[test]
fn a_gpt_is_the_same_for_any_number_of_workers_and_copies() {
    assert_one_hash(&World::new(), 8, &[1, 2, 3, 4, 5, 8], &[1, 2]);
}

#[test]
fn an_mlp_is_the_same_for_any_number_of_workers_and_copies() {
    let world = World::new().with("model.kind", "mlp").with("model.context", 8);
    assert_one_hash(&world, 8, &[1, 2, 3, 4, 5, 8], &[1, 2]);
}

#[test]
fn data_shards_need_be_neither_a_power_of_two_nor_as_many_as_workers() {
    for data_shards in [6, 7] {
        let world = World::new().with("batch.data_shards", data_shards);
        assert_one_hash(&world, data_shards as u64, &[2, 3, 4, 8], &[2]);
    }
}

#[test]
fn micro_batches_add_up_the_same_everywhere() {
    assert_one_hash(&World::new().with("batch.accumulate", 2), 8, &[2, 3], &[2]);
}

/// The model is so large that threads share its operations.
#[test]
fn threads_change_no_bit() {
    let sizes = [("run.steps", 3), ("model.width", 128), ("model.context", 128)];
    let sizes = sizes.into_iter().chain([("batch.micro_batch", 4), ("batch.data_shards", 2)]);
    let world = sizes.fold(World::new(), |world, (key, size)| world.with(key, size));
    let hash = |workers, threads| {
        let run = world.train(&["--workers", workers, "--threads", threads]);
        run.hash().to_owned()
    };
    let alone = hash("1", "1");
    for (workers, threads) in [("1", "2"), ("1", "3"), ("2", "2")] {
        assert_eq!(hash(workers, threads), alone, "{workers} workers of {threads} threads");
    }
}

#[test]
fn rounded_parameters_are_rounded_the_same_everywhere() {
    let hashes = ["nearest", "stochastic"].map(|rounding| {
        let world = World::new().with("wire.all_gather", "bf16").with("wire.rounding", rounding);
        assert_one_hash(&world, 8, &[2, 3], &[1, 2]);
        world.train(&["--workers", "2"]).hash().to_owned()
    });
    let exact = World::new().train(&["--workers", "2"]);
    assert_ne!(hashes[0], exact.hash(), "members compute with what they gather");
    assert_ne!(hashes[0], hashes[1]);
}

#[test]
fn a_run_repeats_itself_and_another_seed_does_not() {
    let world = World::new();
    let runs = ["1", "1", "2"].map(|seed| world.train(&["--seed", seed]));
    assert_eq!(runs[0].hash(), runs[1].hash());
    assert_ne!(runs[0].hash(), runs[2].hash());
    let losses =
        |run: usize| runs[run].lines("metrics.jsonl").into_iter().map(|l| l["loss"].clone());
    assert!(losses(0).eq(losses(1)), "losses are the same bits too");
}
