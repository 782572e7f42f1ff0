//! `everstep chaos simulate`, from the command line.

use std::process::{Command, Output};

use serde_json::Value;

fn simulate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everstep"));
    command.args(["chaos", "simulate"]).args(arguments);
    command.output().expect("the program can be started")
}

fn summary(arguments: &[&str]) -> Value {
    let output = simulate(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("stdout carries one JSON document")
}

#[test]
fn the_same_seeds_have_the_same_histories_and_others_do_not() {
    let seeds = |from| summary(&["--seeds", "3", "--from", from, "--json"]);
    let first = seeds("5");
    assert_eq!(first["histories"], seeds("5")["histories"]);
    assert_ne!(first["histories"], seeds("6")["histories"]);
    assert_eq!(first["violation"], Value::Null);
    assert!(first["runs_completed"].as_u64() >= Some(3), "{first}");
    assert!(first["virtual_seconds"].as_f64() >= Some(180.0), "{first}");
}

#[test]
fn a_trace_has_every_event_of_every_seed_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.txt");
    let trace = || {
        let file = path.to_string_lossy();
        summary(&["--seeds", "2", "--workers", "2", "--json", "--trace", &file]);
        std::fs::read_to_string(&path).expect("the trace was written")
    };
    let first = trace();
    assert!(first.starts_with("seed 0\n") && first.contains("\nseed 1\n"));
    assert!(first.contains(" commits Some(Commit ") && first.contains(" fault: "));
    assert!(first == trace(), "the same seeds give the same trace to the byte");
}

#[test]
fn what_cannot_be_done_is_said_with_its_exit_code() {
    for (arguments, code, said) in [
        (&["--seeds", "0"][..], 2, "--seeds"),
        (&["--workers", "65"], 2, "--workers"),
        (&["--minutes", "none"], 2, "--minutes"),
        (&["--from", "18446744073709551615"], 2, "--from"),
        (&["--trace", "/nowhere/trace.txt"], 1, "/nowhere/trace.txt"),
    ] {
        let output = simulate(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(said), "{arguments:?}");
    }
}
