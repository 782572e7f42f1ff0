//! The memory of a worker: its share of the state, and no more than a dry run says.

use crate::world::{Ended, Signal, World};

/// Parameters of a parameter shard of the small GPT, times master weights and two moments.
const SHARD_BYTES: u64 = 1_024 * 12;

#[test]
fn optimizer_state_falls_with_the_number_of_workers_and_grows_with_copies() {
    let world = World::new();
    let bytes = |workers: u64, copies: u64| {
        let flags = ["--workers", &workers.to_string(), "--copies", &copies.to_string()];
        world.train(&flags).of_workers("optimizer_bytes")
    };
    let whole = bytes(1, 1)[0];
    for (workers, copies) in [(1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (5, 2)] {
        let share = whole * copies.min(workers) / workers;
        for held in bytes(workers, copies) {
            let slack = SHARD_BYTES * copies;
            assert!(held.abs_diff(share) <= slack, "{held} of {share}: {workers} workers");
        }
    }
}

/// 17.6 million parameters, and little else.
fn large() -> World {
    World::new()
        .with("model.kind", "mlp")
        .with("model.layers", 5)
        .with("model.width", 2048)
        .with("model.context", 8)
        .with("batch.data_shards", 4)
        .with("run.steps", 3)
        .with_text(1 << 10)
}

/// A number in the output of a dry run.
fn number(dry_run: &Ended, name: &str) -> f64 {
    let line = dry_run.stdout.lines().find_map(|line| line.trim_start().strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{dry_run:?}"))
}

/// Within a tenth, for the worker with the most work. It is a matter of timing whether the partials
/// wait that may have to wait for a sibling.
#[test]
fn a_worker_needs_the_memory_that_a_dry_run_says() {
    for (workers, every) in [(1u8, 0), (2, 0), (4, 0), (2, 3)] {
        let world = large().with("checkpoint.every", every);
        let flag = workers.to_string();
        let dry_run = world.launch(&["--workers", &flag, "--dry-run"]).program.end();
        let total = number(&dry_run, "together, about");
        let one_copy = 4e-6 * number(&dry_run, "parameters") / f64::from(workers);
        let waiting = match workers {
            1 => 0.0,
            _ => number(&dry_run, "reduced shards") - one_copy, // of the other owner's shards
        };
        let saving = match every {
            0 => 0.0,
            _ => number(&dry_run, "checkpoint copies"), // while a store takes them
        };
        let peaks = world.train(&["--workers", &flag]).of_workers("peak_rss_bytes");
        let peak = peaks.into_iter().max().expect("a worker") as f64 / 1e6;
        let fits = ((total - waiting - saving) * 0.9..=total * 1.1).contains(&peak);
        assert!(fits, "{peak:.0} MB of {total} MB with {workers} workers: {}", dry_run.stdout);
    }
}

/// The survivors take over data and parameter shards of the dead, and give them to those that join.
#[test]
fn a_worker_needs_no_more_memory_when_others_have_died_and_joined() {
    const LOSSES: usize = 2;
    let world = large().with("run.steps", 30);
    let dry_run = world.launch(&["--workers", "3", "--dry-run"]).program.end();
    let passing = ["while workers join", "at the end, to write", "if all are on one host"];
    let passing = passing.map(|name| number(&dry_run, name)).into_iter().sum::<f64>();
    // After a loss, two workers have what three had.
    let two = world.launch(&["--workers", "2", "--dry-run"]).program.end();
    let most = number(&two, "together, about") + passing;
    let run = world.launch(&["--workers", "3", "--respawn"]);
    for _ in 0..LOSSES {
        let cluster = run.until_whole(3);
        let victim = cluster.workers.iter().find(|worker| worker.rank == Some(0));
        victim.expect("a member").signal(Signal::KILL);
        run.until_another_step();
    }
    run.until_whole(3);
    let run = run.complete();
    assert_eq!(run.report["respawned"], LOSSES);
    for peak in run.of_workers("peak_rss_bytes") {
        let peak = peak as f64 / 1e6;
        assert!(peak <= most * 1.1, "{peak:.0} MB of {most:.0} MB: {}", two.stdout);
    }
}
