//! The demo, where nobody watches: plain lines, and the same end.

use crate::world::{World, show};

#[test]
fn a_disturbed_run_ends_as_an_undisturbed_one() {
    let world = World::new().with("run.steps", 400);
    let config = world.config();
    let flags = ["demo", "--config", show(&config), "--workers", "3", "--chaos", "mtbf=1s"];
    let dir = world.path("demo");
    let ended = world.start(&[&flags[..], &["--dir", show(&dir)]].concat()).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.ends_with("\nequal\n"), "{ended:?}");
    assert!(ended.stdout.contains("trained 400 steps"), "{ended:?}");
    for words in ["workers take part  generation ", "chance kills worker-", "lost worker "] {
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
