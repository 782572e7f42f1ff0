//! Workers come and go as their users wish: from another shell, in good order, or too few of them.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::world::{Launched, Node, Program, Run, Signal, World, assert_failed, show};

/// `everstep worker drain`.
fn drain(world: &World, run: &Launched, id: u64, flags: &[&str]) -> Program {
    let id = format!("id:{id}");
    let ours = ["worker", "drain", &id, "--dir", show(&run.dir)];
    world.start(&[&ours[..], flags].concat())
}

#[test]
fn two_workers_become_four_and_two_again_of_whom_none_was_there_at_first() {
    let world = World::lasting(400);
    let run = world.launch(&["--workers", "2"]);
    run.until_step(3);
    let originals = run.until_whole(2);
    let guests = [world.join(&run), world.join(&run)];
    let four = run.until_whole(4);
    let by_hand = four.workers.iter().filter(|worker| worker.pid.is_none()).count();
    assert_eq!(by_hand, 2, "{four:?}");
    for original in &originals.workers {
        let drained = drain(&world, &run, original.id.expect("an id"), &["--json"]).end();
        assert_eq!(drained.code, Some(0), "{drained:?}");
        let told: serde_json::Value = serde_json::from_str(&drained.stdout).expect("JSON");
        assert_eq!((&told["worker"], &told["state"]), (&original.id.into(), &"left".into()));
    }
    run.until_whole(2);
    let run = run.complete();
    guests.into_iter().for_each(|guest| assert_eq!(guest.end().code, Some(0)));
    run.assert_survived(400);
    assert_eq!(run.hash(), world.undisturbed());
    assert_eq!((&run.report["steps_redone"], &run.report["respawned"]), (&0.into(), &0.into()));
    let left: Vec<_> = run.generations("leave").iter().map(|g| g["workers"].clone()).collect();
    let originals: Vec<_> = originals.workers.iter().map(|w| serde_json::json!([w.id])).collect();
    assert_eq!(left, originals);
    let joined = run.generations("join");
    let joined: usize = joined.iter().map(|g| g["workers"].as_array().unwrap().len()).sum();
    assert_eq!(joined, 2);
    assert!(run.dir.join("model.safetensors").is_file(), "a guest wrote it");
}

#[test]
fn a_run_whose_model_nobody_can_write_waits_for_a_worker_with_a_directory() {
    let world = World::lasting(200).with("run.start_workers", 2);
    let run = world.launch(&["--workers", "1"]);
    let address = run.until_workers(1, "waiting").addresses();
    // The token alone does not give the run's directory.
    let token = fs::read_to_string(run.dir.join("join.token")).expect("a token");
    let guest = ["worker", "--coordinators", &address, "--join", token.trim()];
    let guest = world.start(&guest);
    let cluster = run.until_step(3);
    let original = cluster.workers.iter().find(|worker| worker.pid.is_some());
    original.expect("the launcher's own").signal(Signal::TERM);
    run.until("it says what it waits for", || {
        let view = fs::read_to_string(run.dir.join("cluster.json")).unwrap_or_default();
        view.contains("\"model_awaited\": {").then_some(())
    });
    let words = "no worker has a directory";
    run.until(words, || run.program.said().contains(words).then_some(()));
    let writer = world.join(&run);
    let run = run.complete();
    run.assert_survived(200);
    assert_eq!(run.hash(), world.undisturbed());
    assert_eq!((guest.end().code, writer.end().code), (Some(0), Some(0)));
    assert!(run.dir.join("model.safetensors").is_file(), "the worker with a directory wrote it");
}

#[test]
fn a_worker_that_is_told_to_end_leaves_in_good_order_and_has_no_successor() {
    let world = World::lasting(400);
    let run = world.launch(&["--workers", "2", "--respawn"]);
    run.until_step(3);
    for is_told_by_an_operator in [false, true] {
        run.until_whole(2);
        let guest = world.join(&run);
        let cluster = run.until_whole(3);
        if is_told_by_an_operator {
            let id = cluster.members().iter().find(|node| node.pid.is_none()).and_then(|n| n.id);
            let drained = drain(&world, &run, id.expect("the guest's"), &[]).end();
            assert_eq!(drained.code, Some(0), "{drained:?}");
        } else {
            guest.signal(Signal::TERM);
        }
        assert_eq!(guest.end().code, Some(143));
    }
    run.until_whole(2).member(1).signal(Signal::TERM);
    run.until("all have left", || (run.count("left") >= 3).then_some(()));
    let run = run.complete();
    run.assert_survived(400);
    assert_eq!(run.hash(), world.undisturbed());
    assert_eq!((&run.report["steps_redone"], &run.report["respawned"]), (&0.into(), &0.into()));
}

#[test]
fn below_min_workers_a_run_waits_says_so_and_goes_on_with_whoever_pastes_the_command() {
    replace_one_of_two(|_, _, member| member.signal(Signal::KILL));
}

#[test]
fn a_run_waits_as_well_when_a_member_leaves_in_good_order_and_does_no_step_twice() {
    let run = replace_one_of_two(|world, run, member| {
        let drained = drain(world, run, member.id.expect("an id"), &[]).end();
        assert_eq!(drained.code, Some(0), "{drained:?}");
    });
    assert_eq!(run.report["steps_redone"], 0);
    assert_eq!(run.generations("leave").len(), 1);
}

/// A run that needs two members has two. The step leader goes, and another worker comes.
fn replace_one_of_two(go: impl FnOnce(&World, &Launched, &Node)) -> Run {
    let world = World::lasting(200).with("run.min_workers", 2);
    let run = world.launch(&["--workers", "2"]);
    run.until_step(3);
    go(&world, &run, run.until_whole(2).member(0));
    let sentence = "waiting: 1 of at least 2 workers take part. Another joins with: ";
    let command = run.until("the command", || {
        let said = run.program.said();
        let line = said.lines().find_map(|line| line.strip_prefix(sentence));
        line.map(str::to_string)
    });
    let waiting = run.cluster().expect("a cluster").waiting;
    assert_eq!((&waiting["members"], &waiting["wanted"]), (&1.into(), &2.into()));
    let mut shell = Command::new("sh");
    shell.args(["-c", &command]).stdin(Stdio::null()).current_dir(&run.dir);
    let guest = Program::start(shell);
    let run = run.complete();
    assert_eq!(guest.end().code, Some(0));
    run.assert_survived(200);
    assert_eq!(run.hash(), world.undisturbed());
    let stood = run.report["generations"].as_array().unwrap();
    assert!(stood.iter().any(|generation| generation["waiting"] == true), "{stood:?}");
    run
}

#[test]
fn a_run_that_waits_in_vain_gives_up() {
    let world = World::endless().with("run.min_workers", 2);
    let run = world.launch(&["--workers", "2", "--wait", "4"]);
    run.until_step(3);
    let cluster = run.until_whole(2);
    cluster.member(1).signal(Signal::KILL);
    let dir = run.dir.clone();
    let block = run.ends(&cluster, 3);
    let reason = "1 of at least 2 workers took part for 4 s";
    for words in ["error: the run waited for workers in vain\n", reason] {
        assert!(block.contains(words), "{block}");
    }
    assert_failed(&dir, reason);
}

#[test]
fn a_run_that_nobody_is_left_of_gives_up() {
    let world = World::endless();
    let run = world.launch(&["--workers", "2", "--wait", "4"]);
    run.until_step(3);
    let cluster = run.until_whole(2);
    cluster.workers.iter().for_each(|worker| worker.signal(Signal::KILL));
    let block = run.ends(&cluster, 3);
    assert!(block.contains("0 of at least 1 workers took part for 4 s"), "{block}");
}

#[test]
fn a_drain_that_cannot_be_says_why() {
    let world = World::endless();
    let run = world.launch(&["--workers", "3"]);
    run.until_step(3);
    let cluster = run.until_whole(3);
    let dead = cluster.member(2);
    dead.signal(Signal::KILL);
    run.until("its loss", || (run.count("lost") >= 1).then_some(()));
    let dead = dead.id.expect("an id");
    for (id, words) in [(999, "error: there is no worker id:999\n"), (dead, "it is gone already")] {
        let ended = drain(&world, &run, id, &[]).end();
        assert!(ended.code == Some(1) || ended.code == Some(2), "{ended:?}");
        assert!(ended.block().contains(words), "{words}: {ended:?}");
    }
    let member = run.until_whole(2).member(1).id.expect("an id");
    let told = drain(&world, &run, member, &["--no-wait"]).end();
    assert!(told.stdout.ends_with("is leaving\n"), "{told:?}");
    run.program.signal(Signal::INT);
    let dir = show(&run.dir).to_string();
    let _ = run.program.end();
    for (dir, words) in [(&*dir, "the run is over"), ("/nowhere", "/nowhere")] {
        let ended = world.start(&["worker", "drain", "3", "--dir", dir]).end();
        assert!(ended.block().contains(words), "{words}: {ended:?}");
    }
}

#[test]
fn a_drain_after_the_run_says_that_it_is_over() {
    let world = World::new();
    let run = world.train(&["--workers", "2"]);
    let began = std::time::Instant::now();
    let ended = world.start(&["worker", "drain", "3", "--dir", show(&run.dir)]).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.block().contains("the run is over"), "{ended:?}");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}
