//! The state of the device that this worker computes on, if it is no CPU.
//!
//! A thread of its own asks the device's driver, beside the training. The heartbeats carry its last
//! answer while that is fresh. This module does not know what a step is.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use everstep_kernels::device::telemetry::Reading;
use everstep_transport::protocol::{Accelerator, Telemetry};
use tokio::sync::watch;

use crate::registry::Registry;

/// The pause between two questions.
const TELEMETRY_INTERVAL: Duration = Duration::from_secs(2);
/// The worker reports no older answer. A driver may block its caller for ever.
const TELEMETRY_STALE_AFTER: Duration = Duration::from_secs(3 * TELEMETRY_INTERVAL.as_secs());

/// The last answer of the driver.
pub struct DeviceTelemetry(watch::Receiver<Option<TelemetrySample>>);

/// The device's figures, and the time of the question.
#[derive(Clone, Copy)]
struct TelemetrySample {
    asked: Instant,
    figures: Option<Telemetry>,
}

/// Starts to ask for the figures of this device, until the caller drops them. If the thread cannot
/// ask, there is never an answer.
pub fn start(device: Accelerator, registry: Arc<Registry>) -> DeviceTelemetry {
    let (answers, newest) = watch::channel(None);
    let asking = thread::Builder::new().name("telemetry".into()).spawn(move || {
        let monitor = registry.devices().monitor(device.kind.as_str(), device.uuid);
        let Some(monitor) = monitor else { return };
        ask(monitor, &answers, TELEMETRY_INTERVAL);
    });
    if let Err(error) = asking {
        tracing::info!(%error, "no figures of the device: there is no thread to ask for them");
    }
    DeviceTelemetry(newest)
}

/// Asks until the receiver of the answers is gone.
fn ask(
    mut read: impl FnMut() -> Reading,
    answers: &watch::Sender<Option<TelemetrySample>>,
    period: Duration,
) {
    loop {
        let asked = Instant::now();
        let figures = stated(read());
        if answers.send(Some(TelemetrySample { asked, figures })).is_err() {
            return;
        }
        thread::sleep(period);
    }
}

impl DeviceTelemetry {
    /// The last answer, unless it is too old at `now`.
    pub fn at(&self, now: Instant) -> Option<Telemetry> {
        let TelemetrySample { asked, figures } = (*self.0.borrow())?;
        figures.filter(|_| now.saturating_duration_since(asked) <= TELEMETRY_STALE_AFTER)
    }
}

/// A reading in the words of the protocol. None if it has no figure.
fn stated(reading: Reading) -> Option<Telemetry> {
    let figures = Telemetry {
        utilization_percent: reading.utilization_percent,
        memory_utilization_percent: reading.memory_utilization_percent,
        memory_used_bytes: reading.memory_used_bytes,
        memory_total_bytes: reading.memory_total_bytes,
        power_milliwatts: reading.power_milliwatts,
        temperature_celsius: reading.temperature_celsius,
    };
    (figures != Telemetry::default()).then_some(figures)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_device_without_a_figure_has_no_telemetry() {
        assert_eq!(stated(Reading::default()), None);
    }

    #[test]
    fn each_figure_keeps_its_place() {
        let reading = Reading {
            utilization_percent: Some(1),
            memory_utilization_percent: Some(2),
            memory_used_bytes: Some(3),
            memory_total_bytes: Some(4),
            power_milliwatts: Some(5),
            temperature_celsius: Some(6),
        };
        let expected = Telemetry {
            utilization_percent: Some(1),
            memory_utilization_percent: Some(2),
            memory_used_bytes: Some(3),
            memory_total_bytes: Some(4),
            power_milliwatts: Some(5),
            temperature_celsius: Some(6),
        };
        assert_eq!(stated(reading), Some(expected));
    }

    #[test]
    fn figures_are_forgotten_three_periods_later_if_the_driver_answers_no_more() {
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
        let figures = DeviceTelemetry(newest);
        let asked = figures.0.borrow().expect("an answer has come").asked;
        let newest = Telemetry { temperature_celsius: Some(51), ..Telemetry::default() };
        assert_eq!(figures.at(asked + 3 * TELEMETRY_INTERVAL), Some(newest));
        assert_eq!(figures.at(asked + 3 * TELEMETRY_INTERVAL + Duration::from_nanos(1)), None);
        drop((figures, release));
        asking.join().expect("it ends with the receiver of the figures");
    }
}
