//! The figures of NVIDIA's GPUs. NVML, the library beside their driver, tells them.
//!
//! The program looks for the library at run time. Without it there are no figures. CUDA and NVML
//! count GPUs in orders of their own, so the UUID finds the GPU.

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::error::NvmlError;
use tracing::{debug, info};

use crate::device::telemetry::Reading;

/// One GPU, as NVML sees it.
pub(super) struct NvmlMonitor {
    nvml: Nvml,
    uuid: String,
    status: ReadingStatus,
    /// Whether the log already names the missing figures.
    said: bool,
}

impl NvmlMonitor {
    /// Looks for the library. Without it there are no figures, and the log says so once.
    pub(super) fn open(uuid: [u8; 16]) -> Option<Self> {
        match Nvml::init() {
            Ok(nvml) => {
                let (uuid, status) = (text(uuid), ReadingStatus::default());
                Some(Self { nvml, uuid, status, said: false })
            }
            Err(error) => {
                info!(%error, "no figures of the GPU: NVML cannot be used");
                None
            }
        }
    }

    /// Reads everything that the GPU tells. If it ceases to tell anything, or tells again, the
    /// log says so once.
    pub(super) fn read(&mut self) -> Reading {
        let read = self.figures();
        let status = read.as_ref().map(|_| ()).map_err(NvmlError::to_string);
        if let Some(news) = self.status.change_to(status) {
            info!(uuid = self.uuid, "{news}");
        }
        read.unwrap_or_default()
    }

    /// The figures that the GPU tells. If it tells none, the error of the first.
    fn figures(&mut self) -> Result<Reading, NvmlError> {
        let device = self.nvml.device_by_uuid(self.uuid.as_str())?;
        let mut refused = Refused { said: self.said, first: None };
        let busy = refused.told("utilization", device.utilization_rates());
        let memory = refused.told("memory", device.memory_info());
        let heat = device.temperature(TemperatureSensor::Gpu);
        let reading = Reading {
            utilization_percent: busy.as_ref().map(|busy| busy.gpu),
            memory_utilization_percent: busy.map(|busy| busy.memory),
            memory_used_bytes: memory.as_ref().map(|memory| memory.used),
            memory_total_bytes: memory.map(|memory| memory.total),
            power_milliwatts: refused.told("power", device.power_usage()),
            temperature_celsius: refused.told("temperature", heat),
        };
        self.said = true;
        match refused.first {
            Some(error) if reading == Reading::default() => Err(error),
            _ => Ok(reading),
        }
    }
}

/// The figures that a GPU does not tell.
struct Refused {
    said: bool,
    first: Option<NvmlError>,
}

impl Refused {
    fn told<T>(&mut self, what: &str, read: Result<T, NvmlError>) -> Option<T> {
        let error = match read {
            Ok(figure) => return Some(figure),
            Err(error) => error,
        };
        if !self.said {
            debug!(%error, what, "the GPU does not tell this figure");
        }
        self.first.get_or_insert(error);
        None
    }
}

/// A UUID as NVML writes it.
fn text(uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("GPU-{}", parts.join("-"))
}

/// Whether a GPU tells its figures, or why not. `None` before the first reading.
#[derive(Default)]
struct ReadingStatus(Option<Result<(), String>>);

impl ReadingStatus {
    /// A message, if the status has changed. A GPU that tells from the start gives no message.
    fn change_to(&mut self, now: Result<(), String>) -> Option<String> {
        let before = self.0.replace(now.clone());
        if before.as_ref() == Some(&now) {
            return None;
        }
        match now {
            Err(why) => Some(format!("no figures of the GPU: {why}")),
            Ok(()) => before.map(|_| "the GPU tells its figures again".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        let uuid = [1, 35, 69, 103, 137, 171, 205, 239, 0, 17, 34, 51, 68, 85, 102, 255];
        assert_eq!(text(uuid), "GPU-01234567-89ab-cdef-0011-2233445566ff");
    }

    #[test]
    fn each_change_of_whether_a_gpu_tells_its_figures_is_said_once() {
        let lost = || Err("the GPU is lost".to_string());
        let mut status = ReadingStatus::default();
        for (now, said) in [
            (Ok(()), None),
            (lost(), Some("no figures of the GPU: the GPU is lost")),
            (lost(), None),
            (Err("not found".into()), Some("no figures of the GPU: not found")),
            (Ok(()), Some("the GPU tells its figures again")),
            (Ok(()), None),
            (lost(), Some("no figures of the GPU: the GPU is lost")),
        ] {
            assert_eq!(status.change_to(now).as_deref(), said);
        }
        let first = ReadingStatus::default().change_to(lost());
        assert_eq!(first.as_deref(), Some("no figures of the GPU: the GPU is lost"));
    }
}
