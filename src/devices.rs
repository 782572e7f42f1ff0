//! `everstep devices`: the devices of this machine.

use everstep_kernels::device::DeviceInfo;
use everstep_worker::registry::Registry;
use serde_json::json;

use crate::cli::DevicesFlags;
use crate::failure::Failure;
use crate::logging;
use crate::output::{self, table};

pub(crate) fn run(flags: &DevicesFlags, registry: &Registry) -> Result<(), Failure> {
    logging::start("warn")?;
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for provider in registry.devices().providers() {
        match provider.devices() {
            Ok(devices) => {
                let numbered = devices.into_iter().enumerate();
                found.extend(
                    numbered.map(|(index, it)| (format!("{}:{index}", provider.kind()), it)),
                );
            }
            Err(why) => missing.push(why),
        }
    }
    missing.extend(registry.devices().left_out().map(str::to_string));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if flags.json {
        let listed: Vec<_> = found.iter().map(described).collect();
        let why = missing.first();
        return output::print(json!({ "cpu": { "cores": cores }, "gpus": listed, "no_gpus": why }));
    }
    let head = ["device", "what", "memory", "architecture"].map(str::to_string);
    let cpu = ["cpu", &format!("{cores} cores, one of which each worker computes on"), "", ""];
    let mut rows = vec![head, cpu.map(str::to_string)];
    rows.extend(found.iter().map(row));
    output::print(table(&rows))?;
    for why in missing {
        output::say(format_args!("no GPU: {why}"));
    }
    Ok(())
}

/// A device as `--device` names it, with its description, or the error of that.
type Named = (String, Result<DeviceInfo, String>);

fn described((name, gpu): &Named) -> serde_json::Value {
    let (gpu, error) = (gpu.as_ref().ok(), gpu.as_ref().err());
    json!({
        "device": name, "name": gpu.map(|gpu| &gpu.name),
        "architecture": gpu.map(|gpu| &gpu.architecture),
        "memory_bytes": gpu.map(|gpu| gpu.memory_bytes),
        "multiprocessors": gpu.and_then(|gpu| gpu.multiprocessors),
        "usable": gpu.is_some_and(|gpu| gpu.is_usable), "error": error,
    })
}

fn row((name, gpu): &Named) -> [String; 4] {
    let gpu = match gpu {
        Ok(gpu) => gpu,
        Err(why) => {
            let last = format!("cannot be used: {why}"); // it may be long
            return [name.clone(), "?".into(), "".into(), last];
        }
    };
    let memory = format!("{} GiB", gpu.memory_bytes >> 30);
    let too_old = if gpu.is_usable { "" } else { ", too old to be used" };
    [name.clone(), gpu.name.clone(), memory, format!("{}{too_old}", gpu.architecture)]
}
