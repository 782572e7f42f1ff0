//! The reports on a run's GPUs: which there are, their state, and their utilization.

use serde_json::Value;

use crate::machine::Machine;

/// The operations of training on a sample of the machine's run, counted by hand: 6 for each weight
/// of two blocks and of the head, and attention.
const FLOPS_PER_SAMPLE: f64 = 16.0 * (6.0 * (2.0 * 12_288.0 + 8_192.0) + 12.0 * 2.0 * 16.0 * 32.0);

/// The workers in `everstep worker ls`, once all of them have figures.
fn workers(machine: &Machine, count: usize) -> Option<Vec<Value>> {
    let listed = machine.run(&["worker", "ls", "--json", "--dir", "run"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).ok()?;
    let workers = listed["workers"].as_array()?.clone();
    let have_figures = workers.iter().all(|worker| !worker["telemetry"].is_null());
    (have_figures && workers.len() == count).then_some(workers)
}

#[test]
fn each_worker_states_its_device_and_the_telemetry_of_it() {
    let Some(machine) = Machine::new("bf16") else { return };
    let machine = machine.having("devices=2,name=NVIDIA H200");
    let (mut listed, metrics, text) =
        machine.under_way(&["--device", "cuda", "--workers", "2"], |machine| {
            let listed = workers(machine, 2)?;
            let text = machine.run(&["worker", "ls", "--dir", "run"]);
            let metrics = machine.page("/metrics")?;
            let text = String::from_utf8_lossy(&text.stdout).into_owned();
            metrics.contains("everstep_gpu_").then_some((listed, metrics, text))
        });
    listed.sort_by_key(|worker| worker["device"]["gpu"]["number"].as_u64());
    // The figures belong to the GPU with the worker's number, and follow from its UUID.
    for (number, worker) in (0..).zip(&listed) {
        let device = &worker["device"];
        assert_eq!(
            (&device["name"], &device["precision"]),
            (&"NVIDIA H200".into(), &"bf16".into())
        );
        assert_eq!(device["gpu"]["number"], number);
        assert_eq!(
            (&device["gpu"]["kind"], &device["gpu"]["capability"]),
            (&"cuda".into(), &"9.0".into())
        );
        let telemetry = &worker["telemetry"];
        assert_eq!(telemetry["utilization_percent"], 91 + number);
        assert_eq!(telemetry["memory_utilization_percent"], 41 + number);
        assert_eq!(telemetry["memory_used_bytes"], (1 + number) << 20);
        assert_eq!(telemetry["memory_total_bytes"], 1 << 30);
        assert_eq!(telemetry["power_milliwatts"], 600_501 + number);
        assert_eq!(telemetry["temperature_celsius"], 51 + number);
        assert!(text.contains(&format!("NVIDIA H200 (cuda:{number}, 9.0, bf16)")), "{text}");
        assert!(text.contains(&format!("{} %, ", 91 + number)), "{text}");
        let (id, degrees) = (&worker["id"], 51 + number);
        let gauge = format!("everstep_gpu_temperature_celsius{{worker=\"{id}\"}} {degrees}\n");
        assert!(metrics.contains(&gauge), "{gauge}{metrics}");
    }
}

#[test]
fn a_report_says_how_well_gpus_of_a_known_kind_were_used_and_counts_a_shared_one_once() {
    let Some(machine) = Machine::new("bf16") else { return };
    let machine = machine.having("name=NVIDIA H200");
    for workers in ["1", "2"] {
        let report = machine.train(&["--device", "cuda", "--workers", workers]);
        let share = report["model_flops_utilization"].as_f64().expect("it is known");
        let tokens = report["tokens_per_second"].as_f64().expect("a rate");
        let expected = FLOPS_PER_SAMPLE / 16.0 * tokens / 989e12;
        assert!((share / expected - 1.0).abs() < 1e-9, "{share}, not {expected}");
        assert_eq!(report["workers"][0]["device"]["name"], "NVIDIA H200");
    }
}

#[test]
fn the_utilization_of_a_gpu_without_a_data_sheet_is_null() {
    let Some(machine) = Machine::new("f32") else { return };
    let report = machine.train(&["--device", "cuda", "--workers", "1"]);
    assert_eq!(report["model_flops_utilization"], Value::Null);
    assert_eq!(report["workers"][0]["device"]["name"], "Emulated GPU");
}

#[test]
fn a_figure_that_a_gpu_lacks_is_missing_and_nothing_else_is() {
    let Some(machine) = Machine::new("f32") else { return };
    let machine = machine.with_nvml("power=0");
    let flags = ["--device", "cuda", "--workers", "1"];
    let listed = machine.under_way(&flags, |machine| workers(machine, 1));
    assert_eq!(listed[0]["telemetry"]["power_milliwatts"], Value::Null);
    assert_eq!(listed[0]["telemetry"]["temperature_celsius"], 51);
}

#[test]
fn without_nvml_or_where_it_does_not_start_a_run_goes_on_and_says_so_once() {
    let Some(machine) = Machine::new("f32") else { return };
    let flags = ["--device", "cuda", "--workers", "1"];
    let with = machine.train(&flags);
    for machine in [machine.having("").with_nvml("loaded=0"), machine.without_nvml()] {
        assert_eq!(machine.train(&flags)["state_hash"], with["state_hash"]);
        // The thread that asks reports it. A run of a few steps ends before that.
        let said = |machine: &Machine| machine.log().matches("no figures of the GPU").count();
        machine.under_way(&flags, |machine| (said(machine) > 0).then_some(()));
        assert_eq!(said(&machine), 1, "{}", machine.log());
    }
}
