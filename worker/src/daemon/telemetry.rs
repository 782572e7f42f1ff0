//! The state of the GPU that this worker computes on.
//!
//! A thread of its own asks the GPU, beside the training. The heartbeats carry its last answer
//! while that is fresh. This module does not know what a step is.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use everstep_kernels::device::telemetry::Reading;
use everstep_transport::protocol::{GpuId, Telemetry};
use tokio::sync::watch;

use crate::registry::Registry;

/// The pause between two questions.
const TELEMETRY_INTERVAL: Duration = Duration::from_secs(2);
/// The worker reports no older answer. A driver may block its caller for ever.
const TELEMETRY_STALE_AFTER: Duration = Duration::from_secs(3 * TELEMETRY_INTERVAL.as_secs());

/// The last answer of the GPU.
pub struct GpuTelemetry(watch::Receiver<Option<GpuSample>>);

/// The GPU's figures, and the time of the question.
#[derive(Clone, Copy)]
struct GpuSample {
    asked: Instant,
    told: Option<Telemetry>,
}

/// Starts to ask this GPU, until the caller drops the figures. If the thread cannot ask, there is
/// never an answer.
pub fn start(gpu: GpuId, registry: Arc<Registry>) -> GpuTelemetry {
    let (answers, newest) = watch::channel(None);
    let asking = thread::Builder::new().name("telemetry".into()).spawn(move || {
        let Some(monitor) = registry.devices().monitor(gpu.uuid) else { return };
        ask(monitor, &answers, TELEMETRY_INTERVAL);
    });
    if let Err(error) = asking {
        tracing::info!(%error, "no figures of the GPU: there is no thread to ask for them");
    }
    GpuTelemetry(newest)
}

/// Asks until the receiver of the answers is gone.
fn ask(
    mut read: impl FnMut() -> Reading,
    answers: &watch::Sender<Option<GpuSample>>,
    period: Duration,
) {
    loop {
        let asked = Instant::now();
        let told = telling(read());
        if answers.send(Some(GpuSample { asked, told })).is_err() {
            return;
        }
        thread::sleep(period);
    }
}

impl GpuTelemetry {
    /// The last answer, unless it is too old at `now`.
    pub fn at(&self, now: Instant) -> Option<Telemetry> {
        let GpuSample { asked, told } = (*self.0.borrow())?;
        told.filter(|_| now.saturating_duration_since(asked) <= TELEMETRY_STALE_AFTER)
    }
}

/// A reading in the words of the protocol. None if it has no figure.
fn telling(reading: Reading) -> Option<Telemetry> {
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
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_gpu_that_tells_nothing_is_not_told_of() {
        assert_eq!(telling(Reading::default()), None);
    }

    #[test]
    fn each_figure_is_told_as_what_it_is() {
        let reading = Reading {
            utilization_percent: Some(1),
            memory_utilization_percent: Some(2),
            memory_used_bytes: Some(3),
            memory_total_bytes: Some(4),
            power_milliwatts: Some(5),
            temperature_celsius: Some(6),
        };
        let told = Telemetry {
            utilization_percent: Some(1),
            memory_utilization_percent: Some(2),
            memory_used_bytes: Some(3),
            memory_total_bytes: Some(4),
            power_milliwatts: Some(5),
            temperature_celsius: Some(6),
        };
        assert_eq!(telling(reading), Some(told));
    }

    #[test]
    fn what_a_gpu_told_is_forgotten_three_periods_later_if_it_keeps_whoever_asks() {
        let (answers, newest) = watch::channel(None);
        let (hung, hangs) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let mut first = Some(Reading { temperature_celsius: Some(51), ..Reading::default() });
        let read = move || {
            first.take().unwrap_or_else(|| {
                hung.send(()).expect("the test waits for it");
                let _ = released.recv();
                Reading::default()
            })
        };
        let asking = thread::spawn(move || ask(read, &answers, Duration::ZERO));
        hangs.recv().expect("a second question is asked");
        let figures = GpuTelemetry(newest);
        let asked = figures.0.borrow().expect("an answer has come").asked;
        let told = Telemetry { temperature_celsius: Some(51), ..Telemetry::default() };
        assert_eq!(figures.at(asked + 3 * TELEMETRY_INTERVAL), Some(told));
        assert_eq!(figures.at(asked + 3 * TELEMETRY_INTERVAL + Duration::from_nanos(1)), None);
        drop((figures, release));
        asking.join().expect("it ends with whoever has the figures");
    }
}
