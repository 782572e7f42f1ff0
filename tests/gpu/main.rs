//! Runs on a GPU that is emulated: everything of Everstep is the real thing, from the command line
//! to the calls of the driver, and so is the compiler of the kernels. The driver is one of our own,
//! whose GPU is the CPU (`driver.cpp`), and the kernels that it runs are the sources that were
//! compiled.
//!
//! It needs a C++ compiler and NVRTC (`tests/cuda/install-nvrtc.sh`), and says loudly when one of
//! them is missing. On a GPU none of this has ever run.

#![cfg(feature = "cuda")]

mod machine;
mod told;

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use machine::Machine;
use serde_json::Value;

/// A program's stderr, where it has failed with this exit code.
fn refused(output: &Output, code: i32) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    said
}

fn losses(report: &Value) -> [f64; 2] {
    ["first", "last"].map(|which| report["loss"][which].as_f64().expect("a loss"))
}

#[test]
fn the_gpus_are_listed_as_the_driver_describes_them() {
    let Some(machine) = Machine::new("f32") else { return };
    let listed = machine.having("devices=2").run(&["devices", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let devices: Vec<_> = listed["gpus"].as_array().unwrap().iter().collect();
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[1]["device"], "cuda:1");
    assert_eq!(devices[1]["architecture"], "sm_90a");
    assert_eq!(devices[1]["name"], "Emulated GPU");
}

#[test]
fn a_run_on_a_gpu_learns_what_it_learns_on_the_cpu() {
    let Some(machine) = Machine::new("f32") else { return };
    let (gpu, cpu) = (machine.train(&["--device", "cuda"]), machine.train(&["--device", "cpu"]));
    for (gpu, cpu) in losses(&gpu).into_iter().zip(losses(&cpu)) {
        assert!((gpu - cpu).abs() < 1e-4 * cpu, "{gpu} on the GPU, {cpu} on the CPU");
    }
    assert_ne!(gpu["state_hash"], cpu["state_hash"], "somebody computed on the other device");
    assert_eq!((&gpu["bitwise"], &gpu["bitwise_reason"]), (&true.into(), &Value::Null));
}

#[test]
fn any_number_of_workers_that_share_a_gpu_gives_the_same_bits() {
    for (precision, workers) in [("f32", &["1", "2", "4"][..]), ("bf16", &["1", "3"])] {
        let Some(machine) = Machine::new(precision) else { return };
        let train = |workers: &&str| machine.train(&["--device", "cuda", "--workers", workers]);
        let reports: Vec<_> = workers.iter().map(train).collect();
        let [first, last] = losses(&reports[0]);
        assert!(last < 0.9 * first, "{precision}: it learns nothing: {first} to {last}");
        for report in &reports {
            assert_eq!(report["state_hash"], reports[0]["state_hash"], "{precision}");
            assert_eq!(report["bitwise"], true);
        }
    }
}

#[test]
fn a_gpu_that_cannot_be_used_is_refused_in_words_before_anything_is_begun() {
    let Some(machine) = Machine::new("f32") else { return };
    for (settings, device, words) in [
        ("version=12040", "cuda", "it offers CUDA 12.4, and CUDA 13.0 is needed"),
        ("devices=0", "cuda", "the NVIDIA driver finds no GPU"),
        ("devices=2", "cuda:2", "there is no GPU 2: this machine has 2, counted from 0"),
        ("capability=75", "cuda", "is too old: its compute capability is 7.5, and 8.0 is needed"),
    ] {
        let refused = refused(&machine.having(settings).run(&["train", "--device", device]), 2);
        assert!(refused.contains(words), "{refused}");
        assert!(refused.contains("everstep devices"), "{refused}");
    }
}

#[test]
fn a_gpu_that_is_taken_or_too_small_ends_the_worker_with_what_to_do() {
    let Some(machine) = Machine::new("f32") else { return };
    for (settings, words) in [
        ("taken=1", "GPU 0 is in exclusive mode, and another process has it"),
        (
            "full=1",
            "the GPU has no memory left for cuDevicePrimaryCtxRetain: end what else uses it",
        ),
        ("free_mib=0", "0 of 0 are free; lower batch.micro_batch, or set model.recompute = true"),
    ] {
        let refused = refused(&machine.having(settings).launch(&["--device", "cuda"]), 1);
        assert!(refused.contains(words), "{refused}");
    }
}

#[test]
fn whoever_leaves_the_choice_to_the_program_gets_the_cpu_with_a_warning() {
    let Some(machine) = Machine::new("f32") else { return };
    let cpu = machine.train(&["--device", "cpu"]);
    for settings in ["taken=1", "full=1", "free_mib=0", "version=12040", "devices=0"] {
        let machine = machine.having(settings);
        let report = machine.train(&["--device", "auto", "--workers", "1"]);
        assert_eq!(report["state_hash"], cpu["state_hash"], "{settings}");
        let warned = machine.log().contains("computing on the CPU");
        assert_eq!(warned, settings != "devices=0", "{settings}: {}", machine.log());
    }
    let gpu = machine.train(&["--device", "auto"]);
    assert_ne!(gpu["state_hash"], cpu["state_hash"], "there was a GPU to take");
}

#[test]
fn without_a_driver_the_choice_is_the_cpu_and_a_gpu_is_refused() {
    let Some(machine) = Machine::new("f32") else { return };
    let machine = machine.without_driver();
    let listed = machine.run(&["devices", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    if !listed["no_gpus"].as_str().is_some_and(|why| why.contains("no NVIDIA driver")) {
        return; // this machine has one of its own
    }
    let refused = refused(&machine.run(&["train", "--device", "cuda"]), 2);
    assert!(refused.contains("no libcuda.so.1"), "{refused}");
    machine.train(&["--device", "auto", "--workers", "1"]);
    assert!(!machine.log().contains("computing on the CPU"), "nobody wants to be warned");
}

#[test]
fn a_worker_whose_gpu_fails_ends_and_the_others_go_on_with_the_same_bits() {
    let Some(machine) = Machine::new("f32") else { return };
    let undisturbed = machine.train(&["--device", "cuda", "--workers", "1"]);
    let run = machine.joined("fails_after=900", "cuda");
    assert_eq!(run.report["state_hash"], undisturbed["state_hash"]);
    assert_eq!(run.report["steps_lost"], 0);
    let said = refused(&run.ended, 1);
    assert!(said.contains("an illegal memory access was encountered"), "{said}");
}

#[test]
fn a_run_on_mixed_devices_says_that_its_bits_are_not_to_be_repeated() {
    let Some(machine) = Machine::new("f32") else { return };
    let run = machine.joined("", "cpu");
    assert_eq!(run.report["bitwise"], false);
    assert_eq!(run.report["steps_lost"], 0);
    let reason = run.report["bitwise_reason"].as_str().expect("a reason");
    assert!(reason.contains("on cpu") && reason.contains("on Emulated GPU"), "{reason}");
    assert_eq!(run.report["model_flops_utilization"], Value::Null, "nobody knows what a CPU can");
}

#[test]
fn compiled_kernels_are_kept_and_damaged_ones_compiled_anew() {
    let Some(machine) = Machine::new("f32") else { return };
    let machine = machine.with_cache_of_its_own();
    let flags = ["--device", "cuda", "--workers", "1"];
    let first = machine.train(&flags);
    let kernels: Vec<PathBuf> =
        fs::read_dir(machine.cache()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!kernels.is_empty());
    let whole = fs::read(&kernels[0]).unwrap();
    fs::write(&kernels[0], &whole[..whole.len() / 2]).unwrap();
    assert_eq!(machine.train(&flags)["state_hash"], first["state_hash"]);
    assert!(machine.log().contains("a compiled kernel is damaged"), "{}", machine.log());
    assert_eq!(fs::read(&kernels[0]).unwrap(), whole, "it was compiled again and kept");
}
