//! The demo: plain lines without a terminal, keys with one, and the same end.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::world::{Launched, Program, World, show, until};

#[test]
fn a_disturbed_run_ends_as_an_undisturbed_one() {
    // With this seed chance strikes a sixth of the mean time after the first step. So even on a
    // fast machine it strikes a worker.
    let world = World::lasting(100).with("run.seed", 6);
    let config = world.config();
    let flags = ["demo", "--config", show(&config), "--workers", "3", "--chaos", "mtbf=5s"];
    let dir = world.path("demo");
    let demo = world.command(&[&flags[..], &["--dir", show(&dir)]].concat());
    let ended = Program::start(world.pace(demo)).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.ends_with("\nequal\n"), "{ended:?}");
    assert!(ended.stdout.contains("trained 100 steps"), "{ended:?}");
    for words in ["workers take part  generation ", "chance kills worker-", "lost worker-"] {
        assert!(ended.stderr.contains(words), "no \"{words}\" in {ended:?}");
    }
}

#[test]
fn a_time_is_turned_into_steps_that_were_measured() {
    let world = World::new();
    let config = world.config();
    let flags = ["demo", "--config", show(&config), "--workers", "1", "--for", "1s"];
    let ended = world.start(&flags).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("measured: a step takes "), "{ended:?}");
    assert!(ended.stdout.ends_with("\nequal\n"), "{ended:?}");
}

/// The demo in a terminal of its own, which no user watches.
fn perform(world: &World) -> Launched {
    let (config, dir) = (world.config(), world.path("demo"));
    let flags = ["demo", "--config", show(&config), "--workers", "3", "--dir", show(&dir)];
    let demo = world.command(&flags);
    let words = [demo.get_program()].into_iter().chain(demo.get_args());
    let words: Vec<_> = words.map(|word| format!("'{}'", word.to_str().expect("UTF-8"))).collect();
    let mut shell = Command::new("sh");
    let script = r#"exec script -qefc "stty rows 40 cols 120; exec $DEMO" /dev/null > "$SCREEN""#;
    shell
        .args(["-c", script])
        .env("DEMO", words.join(" "))
        .env("SCREEN", world.path("screen"))
        .stdin(Stdio::piped());
    for (name, _) in demo.get_envs() {
        shell.env_remove(name);
    }
    Launched { program: Program::start(world.pace(shell)), dir, report: PathBuf::new() }
}

#[test]
fn keys_add_stop_kill_and_drain_workers() {
    let world = World::endless();
    let mut run = perform(&world);
    run.until_workers(3, "training");
    run.program.press("a");
    let members = run.until_whole(4).members();
    let stopped = |count| {
        let there = || members.iter().filter(|member| member.is_stopped()).count();
        until("who is stopped", || (there() == count).then_some(()));
    };
    run.program.press("2p");
    stopped(1);
    run.program.press("p");
    stopped(0);
    run.program.press("1k");
    run.until("the loss", || (run.count("lost") >= 1).then_some(()));
    run.until_whole(3);
    run.program.press("d");
    run.until("the leave", || (run.count("left") >= 1).then_some(()));
    run.program.press("q");
    assert_eq!(run.program.end().code, Some(130));
    let screen = std::fs::read(world.path("screen")).expect("what was shown");
    let screen = String::from_utf8_lossy(&screen);
    let left_out = "the undisturbed run is left out";
    for words in ["trained ", "tokens/s", "lost: 0", left_out, "its files are kept"] {
        assert!(screen.contains(words), "no \"{words}\" in {screen:?}");
    }
}
