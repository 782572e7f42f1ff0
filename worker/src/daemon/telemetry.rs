//! How the GPU does that this worker computes on.
//!
//! A thread of its own asks, beside the training; the heartbeats carry what it was told last. It
//! does not know what a step is.

use std::thread;
use std::time::Duration;

use everstep_kernels::device::telemetry::{Gauge, Reading};
use everstep_transport::protocol::{GpuId, Telemetry};
use tokio::sync::watch;

/// From one question to the next.
const PERIOD: Duration = Duration::from_secs(2);

/// Asks this GPU from now on, as long as somebody has the receiver. Where nothing can be asked,
/// there is never an answer.
pub fn start(gpu: GpuId) -> watch::Receiver<Option<Telemetry>> {
    let (told, newest) = watch::channel(None);
    let asking = thread::Builder::new().name("telemetry".into()).spawn(move || {
        let Some(mut gauge) = Gauge::open(gpu.uuid) else { return };
        while told.send(some(gauge.read())).is_ok() {
            thread::sleep(PERIOD);
        }
    });
    if let Err(error) = asking {
        tracing::info!(%error, "no figures of the GPU: there is no thread to ask for them");
    }
    newest
}

/// What is worth telling.
fn some(reading: Reading) -> Option<Telemetry> {
    let told = Telemetry {
        utilization_percent: reading.utilization_percent,
        memory_utilization_percent: reading.memory_utilization_percent,
        memory_used_bytes: reading.memory_used_bytes,
        memory_total_bytes: reading.memory_total_bytes,
        power_milliwatts: reading.power_milliwatts,
        temperature_celsius: reading.temperature_celsius,
    };
    (told != Telemetry::default()).then_some(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_tells_nothing_is_not_told_of() {
        assert_eq!(some(Reading::default()), None);
        let reading = Reading { power_milliwatts: Some(612_500), ..Reading::default() };
        let told = Telemetry { power_milliwatts: Some(612_500), ..Telemetry::default() };
        assert_eq!(some(reading), Some(told));
    }
}
