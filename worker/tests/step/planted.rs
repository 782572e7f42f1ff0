//! Each planted bug is a bug: some run of generations shows it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use everstep_worker::plant::Plant;

use crate::cluster::Cluster;
use crate::generations::{Change, apply, begun, outcome, reference};

fn change(cluster: &mut Cluster) -> Change {
    let which = cluster.random(4) as u64;
    match cluster.random(12) {
        0..2 => Change::Kill(which),
        2..4 => Change::LeaveOut(which),
        4 => Change::Renew,
        5..7 => Change::Mislay(which),
        7..9 => Change::Join,
        9..11 => Change::Feed(which),
        _ => Change::Wait,
    }
}

fn goes_well(plant: Option<Plant>, seed: u64) -> bool {
    let run = || {
        let mut cluster = begun(&[1, 2, 3], seed);
        for _ in 0..8 {
            for node in cluster.nodes.values_mut() {
                plant.into_iter().for_each(|plant| node.core.plant(plant));
            }
            let pause = cluster.random(500) as u64;
            cluster.steps(pause);
            let change = change(&mut cluster);
            apply(&mut cluster, change);
        }
        cluster.finish();
        &outcome(&cluster) == reference()
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or(false)
}

#[test]
fn every_bug_shows_in_some_run_and_without_one_none_does() {
    assert!((0..100).all(|seed| goes_well(None, seed)));
    let bugs = [
        Plant::BreakPromise,
        Plant::RedoOtherSamples,
        Plant::StaleReduced,
        Plant::SkipRollForward,
        Plant::FeedGap,
        Plant::OldRecordCommit,
        Plant::ForgetLine,
        Plant::AddIntoKept,
    ];
    for bug in bugs {
        let found = (0..2_000).find(|seed| !goes_well(Some(bug), *seed));
        assert!(found.is_some(), "{bug:?} goes unnoticed");
    }
}
