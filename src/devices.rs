//! `everstep devices`: what this machine can compute on.

use everstep_kernels::device::{self, Gpu};
use serde_json::json;

use crate::cli::DevicesFlags;
use crate::failure::Failure;
use crate::logging;
use crate::output::{self, table};

pub(crate) fn run(flags: &DevicesFlags) -> Result<(), Failure> {
    logging::start("warn")?;
    let gpus = device::gpus();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if flags.json {
        let (listed, why) = match &gpus {
            Ok(gpus) => (gpus.iter().map(described).collect(), None),
            Err(why) => (Vec::new(), Some(why)),
        };
        return output::print(json!({ "cpu": { "cores": cores }, "gpus": listed, "no_gpus": why }));
    }
    let head = ["device", "what", "memory", "architecture"].map(str::to_string);
    let cpu = ["cpu", &format!("{cores} cores, one of which each worker computes on"), "", ""];
    let mut rows = vec![head, cpu.map(str::to_string)];
    rows.extend(gpus.iter().flatten().map(row));
    output::print(table(&rows))?;
    if let Err(why) = gpus {
        output::say(format_args!("no GPU: {why}"));
    }
    Ok(())
}

fn described(gpu: &Gpu) -> serde_json::Value {
    json!({
        "device": device(gpu), "name": gpu.name, "architecture": gpu.architecture,
        "memory_bytes": gpu.memory_bytes, "multiprocessors": gpu.multiprocessors,
        "usable": gpu.is_usable,
    })
}

fn row(gpu: &Gpu) -> [String; 4] {
    let memory = format!("{} GiB", gpu.memory_bytes >> 30);
    let too_old = if gpu.is_usable { "" } else { ", too old to be used" };
    [device(gpu), gpu.name.clone(), memory, format!("{}{too_old}", gpu.architecture)]
}

fn device(gpu: &Gpu) -> String {
    format!("cuda:{}", gpu.index)
}
