//! Which GPU the process of a script sees, by the environment variables that CUDA reads.
//!
//! The script itself moves its model to a GPU. So each process that is to have its own sees no
//! other one.

use std::env;

use everstep_kernels::device::{DeviceChoice, Devices};

use crate::cluster::Script;
use crate::failure::{Exit, Failure};

/// The variable with the GPUs that CUDA shows to a process, separated by commas.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// The variable with the workspaces of cuBLAS. With those of `REPEATABLE` its results repeat.
const WORKSPACES: &str = "CUBLAS_WORKSPACE_CONFIG";
const REPEATABLE: &str = ":4096:8";

/// What has cuBLAS repeat its results, unless the user has set it.
pub(crate) fn repeatable() -> Option<(&'static str, &'static str)> {
    env::var_os(WORKSPACES).is_none().then_some((WORKSPACES, REPEATABLE))
}

/// The variable for a process on this device. None: it sees the GPUs that this process sees.
pub(crate) fn visible_to(device: &DeviceChoice) -> Option<(&'static str, String)> {
    let seen = env::var(VISIBLE).ok();
    Some((VISIBLE, shown(device, seen.as_deref())?))
}

/// The value of the variable, where this process has the value `seen`.
fn shown(device: &DeviceChoice, seen: Option<&str>) -> Option<String> {
    let index = match device {
        DeviceChoice::Cpu => return Some(String::new()),
        DeviceChoice::Auto(index) | DeviceChoice::Kind(_, index) => (*index)?,
    };
    // The numbers count what this process sees.
    let named = seen.map(|seen| seen.split(',').nth(index).unwrap_or_default().trim().to_string());
    Some(named.unwrap_or_else(|| index.to_string()))
}

/// The numbers of the GPUs that processes get in turn. Empty for the CPU, and for a named GPU.
pub(crate) fn in_turn(choice: &DeviceChoice, devices: &Devices) -> Vec<usize> {
    let (DeviceChoice::Auto(None) | DeviceChoice::Kind(_, None)) = choice else { return vec![] };
    let provider = devices.provider(choice).ok().flatten();
    let found = provider.and_then(|provider| provider.devices().ok()).unwrap_or_default();
    (0..found.len()).filter(|index| found[*index].is_ok()).collect()
}

/// A script whose processes all see the GPU that the first one gets.
pub(crate) fn first(script: Script, devices: &Devices) -> Script {
    let first = |choice: DeviceChoice| choice.of_worker(0, &in_turn(&choice, devices));
    Script { device: script.device.map(first), ..script }
}

/// Whether processes of a script can have these GPUs.
pub(crate) fn check(choice: &DeviceChoice, devices: &Devices) -> Result<(), Failure> {
    let DeviceChoice::Kind(kind, index) = choice else { return Ok(()) };
    if index.is_none() && !in_turn(choice, devices).is_empty() {
        return Ok(());
    }
    let refused = |why: String| {
        Failure::new(Exit::Usage, "the device cannot be used")
            .at(format!("--device {choice}"))
            .because(why)
            .next("everstep devices lists what this machine has")
    };
    let provider = devices.provider(choice).map_err(|error| refused(error.to_string()))?;
    let found = provider.map(|provider| provider.devices()).transpose().map_err(refused)?;
    let found = found.unwrap_or_default();
    match found.get(index.unwrap_or(0)) {
        Some(Ok(_)) => Ok(()),
        Some(Err(why)) => Err(refused(why.clone())),
        None => Err(refused(format!("there are {} devices of the kind {kind}", found.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_one_gpu_of_those_that_its_launcher_sees() {
        let shown = |device: &str, seen| shown(&device.parse().expect("a device"), seen);
        assert_eq!(shown("cuda:1", None).as_deref(), Some("1"));
        assert_eq!(shown("auto:0", Some("GPU-7f, 3")).as_deref(), Some("GPU-7f"));
        assert_eq!(shown("cuda:1", Some("GPU-7f, 3")).as_deref(), Some("3"));
        assert_eq!(shown("cuda:2", Some("GPU-7f, 3")).as_deref(), Some(""), "there is no such one");
        assert_eq!(shown("cpu", Some("3")).as_deref(), Some(""));
        assert_eq!(shown("cuda", None), None);
    }

    #[test]
    fn a_kind_of_device_that_is_not_there_is_refused() {
        let told = check(&"npu".parse().expect("a kind"), &Devices::default());
        let told = told.expect_err("there is none").to_string();
        assert!(told.contains("--device npu") && told.contains("everstep devices"), "{told}");
        assert!(check(&DeviceChoice::Cpu, &Devices::default()).is_ok());
        assert!(check(&DeviceChoice::Auto(None), &Devices::default()).is_ok());
    }
}
