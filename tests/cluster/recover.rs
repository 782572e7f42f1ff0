//! Most of the coordinators are lost with their disks. The cluster goes on from one directory, and
//! so does the run.

use std::fs;
use std::path::Path;

use crate::several::Training;
use crate::world::{CoordinatorGroup, Ended, Signal, World, show, until};

fn recover(world: &World, dir: &Path, flags: &[&str]) -> Ended {
    world.start(&[&["coordinator", "recover", "--dir", show(dir)], flags].concat()).end()
}

fn assert_refused(ended: &Ended, words: &str) {
    assert_eq!((ended.code, ended.stderr.contains(words)), (Some(2), true), "{ended:?}");
}

#[test]
fn a_cluster_goes_on_from_one_directory_when_the_others_are_lost() {
    const ACCEPT: &[&str] = &["--accept-lost-entries"];
    let world = World::new().with("run.steps", 1_200);
    let mut group = CoordinatorGroup::found(&world.path("coordinators"), 3, &["--ephemeral"]);
    let mut training = Training::begin(&world, &mut group);
    let dir = group.members[0].dir.clone();

    assert_refused(&recover(&world, &dir, ACCEPT), "end the other coordinator");
    let survivor = &group.members[0].program;
    survivor.signal(Signal::KILL);
    until("it is dead", || survivor.is_over().then_some(()));
    // The others settle steps that it does not know, and agree on a generation.
    training.until_it_goes_on();
    training.lose_one();
    assert_refused(&recover(&world, &dir, ACCEPT), "it is not lost");
    for lost in group.members.drain(1..) {
        drop(lost.program);
        fs::remove_dir_all(&lost.dir).expect("its disk is lost");
    }
    assert_refused(&recover(&world, &dir, &[]), "pass --accept-lost-entries");
    let recovered = recover(&world, &dir, ACCEPT);
    assert_eq!(recovered.code, Some(0), "{recovered:?}");
    assert!(recovered.stderr.contains("Coordinators that are given up: "), "{recovered:?}");
    assert!(dir.join("log.redb.before-recovery").exists());
    assert_refused(&recover(&world, &dir, ACCEPT), "it is the only coordinator");

    group.restart(0, &[]);
    group.join();
    group.join();
    training.until_it_goes_on();
    let [events, lines] = training.finish(&group);
    let count = |kind| events.iter().filter(|event| event["event"] == kind).count();
    assert_eq!((count("recovered"), count("rollback"), count("lost")), (1, 0, 2), "{events:?}");
    let numbers = events.iter().filter(|event| event["event"] == "generation");
    let numbers: Vec<_> = numbers.map(|event| event["generation"].as_u64()).collect();
    assert!(numbers.is_sorted() && !numbers.contains(&Some(2)), "it was lost: {numbers:?}");
    let steps: Vec<_> = lines.iter().map(|line| line["step"].as_u64()).collect();
    assert!(steps.is_sorted() && steps.last() == Some(&Some(1_200)), "{steps:?}");
}
