//! Deaths cost only time: no step, no sample, not a bit (I3, I4, I6).

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fs, hint, thread};

use crate::world::{Run, Signal, World, chance};

/// A run that is long enough for some deaths.
fn world() -> World {
    World::lasting(200)
}

/// Trains with `workers` workers. Each time that the cluster is whole the members of these ranks
/// die at once.
fn kill(world: &World, workers: usize, deaths: &[&[usize]]) -> Run {
    let run = world.launch(&["--workers", &workers.to_string()]);
    run.until_step(3);
    let mut left = workers;
    for ranks in deaths {
        let cluster = run.until_whole(left);
        ranks.iter().for_each(|rank| cluster.member(*rank).signal(Signal::KILL));
        left -= ranks.len();
        run.until("the survivors go on", || (run.count("lost") >= workers - left).then_some(()));
        run.until_another_step();
    }
    run.complete()
}

/// Checks the run, and that every death is in its report.
fn assert_survived(world: &World, run: &Run, deaths: &[&[usize]]) {
    run.assert_survived(200);
    assert_eq!(run.hash(), world.undisturbed(), "{deaths:?}");
    assert_lapsed(run);
    let lost = run.generations("lost");
    let about = lost.iter().map(|generation| generation["workers"].as_array().unwrap().len());
    let dead: usize = deaths.iter().map(|ranks| ranks.len()).sum();
    assert_eq!(about.sum::<usize>(), dead, "{lost:?}");
    for generation in lost {
        let measured = |key: &str| generation[key].as_f64().is_some_and(f64::is_finite);
        assert!(measured("stall_ms") && measured("detect_ms"), "{generation}");
    }
    let redone = run.report["generations"].as_array().unwrap();
    let redone = redone.iter().filter(|generation| generation["redone"] == true).count();
    assert_eq!(run.report["steps_redone"], redone);
    let path = |number: usize| run.dir.join(format!("logs/worker-{number}.log"));
    let mut logs = (1..).map(path).map_while(|log| fs::read_to_string(log).ok());
    let names_the_dead = |line: &str| line.contains("cause=Lost") && !line.contains("gone=[]");
    assert!(logs.any(|log| log.lines().any(names_the_dead)), "no survivor's log names the dead");
}

/// Checks that the report has the times in which the shards of dead workers had one owner less.
fn assert_lapsed(run: &Run) {
    let lapses = run.report["under_protected"].as_array().expect("lapses");
    assert!(!lapses.is_empty());
    for lapse in lapses {
        assert!(lapse["count"].as_u64() > Some(0), "{lapse}");
        assert!(lapse["seconds"].as_f64() > Some(0.0), "{lapse}");
    }
}

#[test]
fn three_workers_survive_the_death_of_a_follower_and_then_of_the_step_leader() {
    let world = world();
    let deaths: [&[usize]; 2] = [&[1], &[0]];
    assert_survived(&world, &kill(&world, 3, &deaths), &deaths);
}

#[test]
fn four_workers_survive_the_death_of_two_that_are_not_neighbours() {
    let world = world();
    let deaths: [&[usize]; 1] = [&[0, 2]];
    assert_survived(&world, &kill(&world, 4, &deaths), &deaths);
}

#[test]
fn eight_workers_survive_one_death_after_the_other() {
    let world = world();
    let deaths: [&[usize]; 3] = [&[5], &[0], &[1, 3]];
    assert_survived(&world, &kill(&world, 8, &deaths), &deaths);
}

/// At any moment of a step, of a join, of a change. The next death comes only after the last one is
/// made up for.
#[test]
fn deaths_at_random_moments_are_survived() {
    for (workers, steps) in [(3, 300), (4, 300), (8, 300)] {
        let world = World::lasting(steps);
        let mut draw = chance(workers);
        let run = world.launch(&["--workers", &workers.to_string(), "--respawn"]);
        run.until_step(3);
        for deaths in 0..5 {
            run.until_protected(deaths);
            thread::sleep(Duration::from_millis(draw(300) as u64));
            let members = run.cluster().expect("a cluster").members();
            members[draw(members.len())].signal(Signal::KILL);
            run.until("its loss", || (run.count("lost") > deaths).then_some(()));
        }
        let run = run.complete();
        run.assert_survived(steps as u64);
        assert_eq!(run.hash(), world.undisturbed(), "{workers} workers");
        assert_eq!(run.report["respawned"], 5);
        assert_lapsed(&run);
    }
}

#[test]
fn a_worker_killed_after_the_last_step_is_survived_too() {
    // The members evaluate for seconds after the last step.
    let world = World::new().with_text(1 << 20).with("data.validation", 0.5);
    let world = world.with("model.width", 64).with("model.layers", 6);
    let run = world.launch(&["--workers", "3"]);
    let cluster = run.until_step(12);
    cluster.workers[1].signal(Signal::KILL);
    let run = run.complete();
    run.assert_survived(12);
    assert_eq!(run.hash(), world.undisturbed());
    assert!(run.dir.join("model.safetensors").is_file());
}

#[test]
fn when_all_are_killed_their_successors_begin_anew_and_say_so() {
    let world = world();
    let run = world.launch(&["--workers", "2", "--respawn"]);
    run.until_step(20);
    let cluster = run.until_whole(2);
    cluster.workers.iter().for_each(|worker| worker.signal(Signal::KILL));
    run.until("the rollback", || (run.count("rollback") >= 1).then_some(()));
    let run = run.complete();
    run.assert_one_history(200);
    assert_eq!(run.hash(), world.undisturbed());
    assert_eq!(run.report["respawned"], 2);
    assert_eq!(run.report["rollbacks"].as_array().map(Vec::len), Some(1));
    let rollback = &run.report["rollbacks"][0];
    assert!(rollback["from"].as_u64() >= Some(20) && rollback["to"] == 0, "{rollback}");
    assert_eq!(run.generations("rollback").len(), 1);
}

#[test]
fn a_stopped_worker_is_evicted_and_one_that_goes_on_registers_again() {
    let world = World::lasting(200);
    let run = world.launch(&["--workers", "3"]);
    run.until_step(3);
    let cluster = run.until_whole(3);
    let stopped = cluster.member(0).clone();
    stopped.signal(Signal::STOP);
    let state = || Some(run.cluster()?.worker(stopped.id?)?.state.clone());
    run.until("the eviction", || (state()? == "lost").then_some(()));
    run.until_another_step();
    stopped.signal(Signal::CONT);
    let cluster = run.until_whole(3);
    let again = cluster.workers.iter().find(|w| w.pid == stopped.pid && !w.is_over());
    assert!(again.expect("the same process").id > stopped.id, "{cluster:?}");
    let run = run.complete();
    run.assert_survived(200);
    assert_eq!(run.hash(), world.undisturbed());
}

/// The worker is silent for longer than the run waits for missing workers, but it lives.
#[test]
fn an_only_worker_that_is_stopped_for_longer_than_the_wait_is_waited_for() {
    let world = World::lasting(50);
    let run = world.launch(&["--workers", "1", "--wait", "5"]);
    let stopped = run.until_step(3).member(0).clone();
    stopped.signal(Signal::STOP);
    thread::sleep(Duration::from_secs(8));
    stopped.signal(Signal::CONT);
    let run = run.complete();
    // A wait ends in a generation. Here it has the same worker.
    run.assert_survived(50);
    assert!(run.lines("events.jsonl").iter().all(|event| event["event"] != "lost"));
    assert_eq!(run.hash(), world.undisturbed());
}

/// The run waits while the host is away, so that it does not end before.
#[test]
fn a_host_whose_worker_dies_comes_back_twenty_times() {
    let world = World::lasting(400).with("run.min_workers", 2);
    let run = world.launch(&["--workers", "2", "--respawn"]);
    run.until_step(3);
    for death in 1..=20 {
        let cluster = run.until_whole(2);
        let newest = cluster.workers.iter().filter(|w| !w.is_over()).max_by_key(|w| w.id);
        newest.expect("a member").signal(Signal::KILL);
        run.until("its successor", || (run.count("joined") >= death).then_some(()));
    }
    assert_eq!((run.count("lost"), run.count("rollback")), (20, 0));
    let run = run.complete();
    run.assert_survived(400);
    assert_eq!(run.hash(), world.undisturbed());
}

/// Threads that never rest, until this is dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn of(threads: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        for _ in 0..threads {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        Self(over)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Invariant I8.
#[test]
fn workers_that_hardly_get_to_run_are_not_taken_for_dead() {
    let world = World::new().with("run.steps", 30);
    let undisturbed = world.undisturbed();
    let cores = thread::available_parallelism().map_or(2, NonZero::get);
    let load = Load::of(cores);
    // A machine with more work than this test's own may keep one worker from the CPU, beside
    // others that it lets run, until that worker is rightly suspected.
    let is_whole = (0..3).any(|_| {
        let run = world.train(&["--workers", &(4 * cores).min(32).to_string()]);
        run.assert_survived(30);
        assert_eq!(run.hash(), undisturbed);
        run.lines("events.jsonl").iter().all(|event| event["event"] != "lost")
    });
    drop(load);
    assert!(is_whole, "each of three runs has lost a worker");
}
