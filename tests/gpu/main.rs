//! Runs on an emulated GPU. All of Everstep is the real program, from the command line to the calls
//! of the driver, and so is the compiler of the kernels. The driver is our own: its GPU is the CPU
//! (`driver.cpp`), and the kernels that it runs are the compiled sources. So is the library of
//! products (`cublaslt.cpp`), where a run has one.
//!
//! It needs a C++ compiler and NVRTC (`tests/cuda/install-nvrtc.sh`), and prints a loud message if
//! one of them is missing. On a GPU none of this has ever run.

#![cfg(feature = "cuda")]

mod machine;
mod program;
mod telemetry;

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use everstep_kernels::backend::cuda::{KernelSource, SOURCES};
use everstep_kernels::precision::Precision;
use machine::{Machine, say_skipped};
use serde_json::Value;

/// NVRTC of CUDA 12.4, reduced to its answer about its version.
const OLD_COMPILER: &str = "extern \"C\" int nvrtcVersion(int* major, int* minor) {\
    *major = 12; *minor = 4; return 0; }";

/// The stderr of a program that has failed with this exit code.
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
fn a_gpu_that_is_sick_is_listed_with_its_error_and_the_others_are_used() {
    let Some(machine) = Machine::new("f32") else { return };
    let machine = machine.having("devices=2,sick=0");
    let listed = machine.run(&["devices", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let [sick, sound] = [&listed["gpus"][0], &listed["gpus"][1]];
    let why = sick["error"].as_str().unwrap_or_default();
    assert!(why.contains("cuDeviceGetName failed on the GPU"), "{why}");
    assert_eq!((&sick["usable"], &sound["usable"]), (&false.into(), &true.into()));
    let text = machine.run(&["devices"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains(why) && text.contains("Emulated GPU"), "{text}");
    let report = machine.train(&["--device", "cuda", "--workers", "1"]);
    assert_eq!(report["workers"][0]["device"]["gpu"]["number"], 1);
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
    let all = &["1", "2", "4"][..];
    for (precision, workers) in [("f32", all), ("bf16", &["1", "3"]), ("fp16", all)] {
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

/// One target has a third of the loss, and 256 numbers go back from it. Multiplied by 65,536, one
/// of them is beyond fp16's 65,504.
#[test]
fn in_fp16_steps_that_overflow_are_skipped_alike_until_the_loss_scale_fits() {
    let Some(machine) = Machine::new("fp16") else { return };
    let machine = machine.training(|run| {
        let few =
            run.replace("data_shards = 4\nmicro_batch = 2", "data_shards = 3\nmicro_batch = 1");
        let wide = few.replace("layers = 2", "layers = 1").replace("width = 32", "width = 256");
        let short = wide.replace("steps = 8", "steps = 4").replace("context = 16", "context = 1");
        short.replace("path", "validation = 0\npath") // it is slow here
    });
    let mut hashes = Vec::new();
    for workers in ["1", "3"] {
        let report = machine.train(&["--device", "cuda", "--workers", workers]);
        let skipped = report["steps_skipped"].as_u64().unwrap();
        let scales = machine.scales();
        assert!((1..4).contains(&skipped), "{scales:?}");
        let expected = (0..4).map(|step| 65_536 >> skipped.min(step));
        assert_eq!(scales, expected.collect::<Vec<_>>(), "halved at each of the first, and kept");
        assert!(losses(&report).iter().all(|loss| loss.is_finite()));
        hashes.push(report["state_hash"].clone());
    }
    assert_eq!(hashes[0], hashes[1]);
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
        ("pinnable_mib=20", "the host has no 32 MiB of memory to pin for the GPU's copies: give"),
        ("free_mib=0", "0 of 0 are free. Lower batch.micro_batch (a GPT also takes less with"),
    ] {
        let refused = refused(&machine.having(settings).launch(&["--device", "cuda"]), 1);
        assert!(refused.contains(words), "{refused}");
    }
}

/// The number before these words.
fn number<'a>(text: &'a str, words: &str) -> &'a str {
    let before = text.split(words).next().unwrap_or_default();
    before.rsplit(' ').next().unwrap_or_default()
}

#[test]
fn a_dry_run_says_what_a_gpu_is_asked_for_whether_there_is_one_or_not() {
    for precision in ["f32", "bf16"] {
        let Some(machine) = Machine::new(precision) else { return };
        let dry = ["train", "--config", "run.toml", "--dry-run"];
        let said = |machine: &Machine, flags: &[&str]| {
            let output = machine.run(&[&dry, flags].concat());
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            // What the machine has free changes from one moment to the next.
            let table = String::from_utf8(output.stdout).unwrap();
            let lines = table.lines().filter(|line| !line.starts_with("this machine"));
            lines.collect::<Vec<_>>().join("\n")
        };
        let table = said(&machine, &["--device", "cuda"]);
        let parts = ["parameters", "gradients", "activations", "statistics", "tokens"];
        let all = parts.into_iter().chain(["casts and sums", "products", "together"]);
        let on_gpu = table.split_once("on its GPU").expect(&table).1;
        let [.., products, together] = all
            .map(|part| {
                let line = on_gpu.lines().find(|line| line.trim_start().starts_with(part));
                number(line.expect(&table), " MB").parse::<f64>().expect(&table)
            })
            .collect::<Vec<_>>()[..]
        else {
            panic!("{table}")
        };
        assert!(table.contains("copies to and from GPU     33.6 MB"), "{table}");
        assert!(table.contains(&format!("in {precision}")), "{table}");

        let refused = refused(&machine.having("free_mib=1").launch(&["--device", "cuda"]), 1);
        let asked = number(&refused, " bytes were asked for").parse::<f64>().expect(&refused);
        assert!((together - products - asked / 1e6).abs() < 0.11, "{table}{asked}");

        let without = machine.without_driver();
        assert_eq!(said(&without, &["--device", "cuda"]), table);
        let on_cpu = ["--device", "cpu"];
        if precision == "f32" {
            assert!(!said(&without, &on_cpu).contains("on its GPU"));
        } else {
            let refused = self::refused(&without.run(&[&dry[..], &on_cpu].concat()), 2);
            assert!(refused.contains("the CPU computes in f32, not in bf16"), "{refused}");
        }
    }
}

#[test]
fn libraries_that_are_missing_or_too_old_are_named_and_the_choice_falls_on_the_cpu() {
    let Some(machine) = Machine::new("f32") else { return };
    let without = machine.without_libraries();
    let old = machine.with_library("libnvrtc.so", OLD_COMPILER);
    for (machine, words) in [
        (without, "libnvrtc.so.13 is not found: install CUDA's libraries (or nvidia-cuda-nvrtc"),
        (old, "libnvrtc.so is too old: version 12.4 was found, and 13.0 is needed"),
    ] {
        let output = machine.launch(&["--device", "cuda"]);
        if output.status.success() {
            say_skipped(&format!("the system has a library of its own, else: {words}"));
            continue;
        }
        let said = refused(&output, 2);
        assert!(said.contains(words), "{said}");
        machine.train(&["--device", "auto", "--workers", "1"]);
        let log = machine.log();
        assert!(log.contains(words) && log.contains("computing on the CPU"), "{log}");
    }
}

#[test]
fn products_that_are_too_old_are_a_warning() {
    let Some(machine) = Machine::new("f32") else { return };
    let flags = ["--device", "cuda", "--workers", "1"];
    let without = machine.train(&flags);
    let missing = "libcublasLt.so.13 is not found: products take Everstep's own";
    assert!(machine.log().contains(missing), "{}", machine.log());
    let machine = machine.with_cublaslt("version=120400");
    assert_eq!(machine.train(&flags)["state_hash"], without["state_hash"]);
    assert!(machine.log().contains("cuBLASLt is older than 13.0"), "{}", machine.log());
}

#[test]
fn products_of_the_library_learn_what_the_cpu_learns_with_the_same_bits_for_any_workers() {
    for precision in ["f32", "bf16"] {
        let Some(machine) = Machine::new(precision) else { return };
        let train = |workers| {
            let machine = machine.with_cublaslt("");
            let report = machine.train(&["--device", "cuda", "--workers", workers]);
            assert!(!machine.log().contains("Everstep's own"), "{}", machine.log());
            report
        };
        let [one, two] = ["1", "2"].map(train);
        assert_eq!(one["state_hash"], two["state_hash"], "{precision}");
        let own = machine.train(&["--device", "cuda", "--workers", "1"]);
        assert_ne!(one["state_hash"], own["state_hash"], "{precision}: nothing is its");
        if precision == "f32" {
            let cpu = machine.train(&["--device", "cpu", "--workers", "1"]);
            for (gpu, cpu) in losses(&one).into_iter().zip(losses(&cpu)) {
                assert!((gpu - cpu).abs() < 1e-4 * cpu, "{gpu} on the GPU, {cpu} on the CPU");
            }
        }
    }
}

/// The products without an algorithm: the head's forward product, whose rows are the vocabulary, as
/// the library counts. Also a bias with GELU, and the way back through GELU.
#[test]
fn what_the_library_has_no_algorithm_for_takes_kernels_in_every_worker() {
    let Some(machine) = Machine::new("bf16") else { return };
    let train = |settings, workers| {
        machine.with_cublaslt(settings).train(&["--device", "cuda", "--workers", workers])
    };
    let all = train("", "1");
    let refusals = [
        "refuses_rows=256",
        "refuses_epilogue=164",
        "refuses_epilogue=192",
        "disputes_epilogue=164",
    ];
    for settings in refusals {
        let [one, two] = ["1", "2"].map(|workers| train(settings, workers));
        assert_eq!(one["state_hash"], two["state_hash"], "{settings}");
        assert_ne!(one["state_hash"], all["state_hash"], "{settings}: nothing was refused");
    }
}

#[test]
fn a_product_that_fails_ends_the_worker_and_is_not_computed_in_another_way() {
    let Some(machine) = Machine::new("f32") else { return };
    let machine = machine.with_cublaslt("fails_after=99");
    let output = machine.launch(&["--device", "cuda", "--workers", "1"]);
    assert!(!output.status.success());
    let said = format!("{}{}", String::from_utf8_lossy(&output.stderr), machine.log());
    let words = "cublasLtMatmul failed on the GPU: CublasError(CUBLAS_STATUS_EXECUTION_FAILED)";
    assert!(said.contains(words), "{said}");
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
        return say_skipped("nothing ran without a driver: this machine has one of its own");
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
    let launched = |source: &&&KernelSource| source.precisions.contains(&Precision::F32);
    assert_eq!(kernels.len(), SOURCES.iter().filter(launched).count(), "and no others");
    let whole = fs::read(&kernels[0]).unwrap();
    fs::write(&kernels[0], &whole[..whole.len() / 2]).unwrap();
    assert_eq!(machine.train(&flags)["state_hash"], first["state_hash"]);
    assert!(machine.log().contains("a compiled kernel is damaged"), "{}", machine.log());
    assert_eq!(fs::read(&kernels[0]).unwrap(), whole, "it was compiled again and kept");
}
