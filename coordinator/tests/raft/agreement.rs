//! What always holds: one leader a term, one log, no lost entry, and reads that see everything.

use super::world::{Climate, World, endure, ms};

/// Runs many seeds. Returns how many entries were agreed, and how many reads were answered.
fn endure_all(voters: u64, seeds: std::ops::Range<u64>, climate: Climate) -> (usize, usize) {
    let (mut agreed, mut reads) = (0, 0);
    for seed in seeds {
        let (world, verdict) = endure(seed, voters, climate);
        verdict.unwrap_or_else(|broken| panic!("{voters} voters, seed {seed}: {broken}"));
        agreed += world.judge.acknowledged();
        reads += world.judge.answered;
    }
    println!("{voters} voters: {agreed} entries, {reads} reads");
    (agreed, reads)
}

#[test]
fn i9_whatever_happens_what_was_acknowledged_is_there_and_all_agree() {
    for (voters, seeds) in [(1, 0..200), (3, 0..600), (5, 0..200)] {
        let (agreed, reads) = endure_all(voters, seeds.clone(), Climate::FOUL);
        assert!(agreed as u64 > 10 * seeds.end && reads as u64 > 5 * seeds.end);
    }
}

#[test]
fn i14_equal_indices_are_equal_states_though_snapshots_are_taken_all_the_time() {
    let climate = Climate { compact_every: 3, keep: 0, ..Climate::FOUL };
    endure_all(3, 0..200, climate);
}

#[test]
fn i11_a_world_in_which_most_messages_are_lost_does_no_harm_and_recovers() {
    let climate = Climate { lost: 600, twice: 100, ..Climate::FOUL };
    endure_all(3, 0..200, climate);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let climate = Climate { changes: true, ..Climate::FOUL };
    for seed in 0..20 {
        let traces = [(); 2].map(|()| endure(seed, 3, climate).0.trace);
        assert_eq!(traces[0], traces[1], "seed {seed}");
    }
}

#[test]
fn in_fair_weather_the_leader_stays_and_nothing_is_refused() {
    for seed in 0..50 {
        let mut world = World::new(seed, 3, Climate::FAIR);
        world.wait(ms(1000), "a leader", |world| world.leader().is_some()).expect("alive");
        let leader = world.leader();
        world.run(ms(5000)).expect("agreement");
        assert_eq!(world.leader(), leader, "seed {seed}");
        assert!(world.ids().iter().all(|id| world.replica(*id).refused() == 0));
        assert!(world.judge.acknowledged() > 200);
    }
}
