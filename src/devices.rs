//! `everstep devices`: the devices of this machine.

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
            Ok(gpus) => (gpus.iter().enumerate().map(described).collect(), None),
            Err(why) => (Vec::new(), Some(why)),
        };
        return output::print(json!({ "cpu": { "cores": cores }, "gpus": listed, "no_gpus": why }));
    }
    let head = ["device", "what", "memory", "architecture"].map(str::to_string);
    let cpu = ["cpu", &format!("{cores} cores, one of which each worker computes on"), "", ""];
    let mut rows = vec![head, cpu.map(str::to_string)];
    rows.extend(gpus.iter().flatten().enumerate().map(row));
    output::print(table(&rows))?;
    if let Err(why) = gpus {
        output::say(format_args!("no GPU: {why}"));
    }
    Ok(())
}

/// A GPU with its number, or the error of its description.
type Numbered<'a> = (usize, &'a Result<Gpu, String>);

fn described((index, gpu): Numbered<'_>) -> serde_json::Value {
    let (gpu, error) = (gpu.as_ref().ok(), gpu.as_ref().err());
    json!({
        "device": device(index), "name": gpu.map(|gpu| &gpu.name),
        "architecture": gpu.map(|gpu| &gpu.architecture),
        "memory_bytes": gpu.map(|gpu| gpu.memory_bytes),
        "multiprocessors": gpu.map(|gpu| gpu.multiprocessors),
        "usable": gpu.is_some_and(|gpu| gpu.is_usable), "error": error,
    })
}

fn row((index, gpu): Numbered<'_>) -> [String; 4] {
    let gpu = match gpu {
        Ok(gpu) => gpu,
        Err(why) => {
            let last = format!("cannot be used: {why}"); // it may be long
            return [device(index), "?".into(), "".into(), last];
        }
    };
    let memory = format!("{} GiB", gpu.memory_bytes >> 30);
    let too_old = if gpu.is_usable { "" } else { ", too old to be used" };
    [device(index), gpu.name.clone(), memory, format!("{}{too_old}", gpu.architecture)]
}

fn device(index: usize) -> String {
    format!("cuda:{index}")
}
