//! Planted bugs: a judge that finds none of them does not judge.

use everstep_coordinator::raft::RaftOptions;
use everstep_coordinator::raft::plant::RaftPlant;

use super::judge::Promise::{
    self, Agreement, Alive, DurableState, Linearizable, LogMatching, OneLeader,
};
use super::world::{Climate, endure, ms};

/// The number of seeds within which every bug shows.
const SEEDS: u64 = 2000;

/// Runs worlds until a promise is broken, which has to be one of these.
#[track_caller]
fn find(climate: Climate, voters: u64, promises: &[Promise]) {
    for seed in 0..SEEDS {
        if let Err(broken) = endure(seed, voters, climate).1 {
            println!("found with {} seeds: {broken}", seed + 1);
            assert!(promises.contains(&broken.promise), "seed {seed}: {broken}");
            return;
        }
    }
    panic!("not found with {SEEDS} seeds");
}

#[test]
fn a_disk_that_says_too_early_that_it_has_written_is_found() {
    let climate = Climate { disk_lies: true, ..Climate::FOUL };
    find(climate, 3, &[Agreement, DurableState, LogMatching, OneLeader]);
}

#[test]
fn a_vote_that_is_not_written_down_is_found() {
    let prepare = |it: &mut RaftOptions| it.plant = Some(RaftPlant::ForgetVote);
    let climate = Climate { prepare, mishaps: Some(ms(60)), ..Climate::FOUL };
    find(climate, 3, &[OneLeader]);
}

#[test]
fn what_is_said_before_it_is_durable_is_found() {
    let climate = Climate { prepare: |it| it.plant = Some(RaftPlant::SayEarly), ..Climate::FOUL };
    find(climate, 3, &[Agreement, Alive, DurableState, LogMatching, OneLeader]);
}

#[test]
fn an_entry_that_is_applied_before_it_is_agreed_is_found() {
    // A replica would refuse a snapshot of entries that are not agreed.
    let prepare = |it: &mut RaftOptions| it.plant = Some(RaftPlant::ApplyEarly);
    let climate = Climate { prepare, compact_every: 1000, ..Climate::FOUL };
    find(climate, 3, &[Agreement, DurableState]);
}

#[test]
fn a_snapshot_that_does_not_say_who_the_members_are_is_found() {
    let climate =
        Climate { prepare: |it| it.plant = Some(RaftPlant::ForgetMembers), ..Climate::FOUL };
    find(climate, 3, &[Alive]);
}

#[test]
fn a_read_that_asks_nobody_is_found() {
    let climate = Climate { prepare: |it| it.plant = Some(RaftPlant::ReadAtOnce), ..Climate::FOUL };
    find(climate, 3, &[Linearizable]);
}

#[test]
fn a_joint_configuration_that_nobody_leaves_is_found() {
    let prepare = |it: &mut RaftOptions| it.plant = Some(RaftPlant::StayJoint);
    find(Climate { changes: true, prepare, ..Climate::FOUL }, 3, &[Alive]);
}

#[test]
fn a_lost_disk_under_an_old_id_is_found() {
    let climate = Climate { disks_are_lost: true, ..Climate::FOUL };
    find(climate, 3, &[Agreement, Alive, DurableState, Linearizable, LogMatching, OneLeader]);
}

#[test]
fn a_term_in_which_somebody_leads_twice_is_found() {
    let prepare = |it: &mut RaftOptions| it.plant = Some(RaftPlant::LeadEarly);
    find(Climate { prepare, mishaps: Some(ms(60)), ..Climate::FOUL }, 1, &[LogMatching]);
}
