//! How a GPU does: how busy, full, hot and hungry it is, by NVML, the library beside its driver.
//!
//! The library is looked for at run time. Without it, and where a GPU does not tell something, the
//! figure is missing: no training depends on any. CUDA and NVML count GPUs in orders of their own,
//! so the GPU is found by its UUID.

/// What was read at one moment. A figure that the GPU does not tell is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The share of the last moments in which a kernel ran.
    pub utilization_percent: Option<u32>,
    /// The share of them in which its memory was read or written.
    pub memory_utilization_percent: Option<u32>,
    /// Memory that is in use, by whomever.
    pub memory_used_bytes: Option<u64>,
    /// All its memory.
    pub memory_total_bytes: Option<u64>,
    /// What it draws.
    pub power_milliwatts: Option<u32>,
    /// How hot it is.
    pub temperature_celsius: Option<u32>,
}

#[cfg(feature = "cuda")]
pub use nvml::Gauge;

#[cfg(feature = "cuda")]
mod nvml {
    use nvml_wrapper::Nvml;
    use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
    use nvml_wrapper::error::NvmlError;
    use tracing::{debug, info};

    use super::Reading;

    /// One GPU, as NVML sees it.
    pub struct Gauge {
        nvml: Nvml,
        uuid: String,
        /// What is missing was said.
        said: bool,
    }

    impl Gauge {
        /// Looks for the library. Without it there are no figures, which is said once.
        pub fn open(uuid: [u8; 16]) -> Option<Self> {
            match Nvml::init() {
                Ok(nvml) => Some(Self { nvml, uuid: text(uuid), said: false }),
                Err(error) => {
                    info!(%error, "no figures of the GPU: NVML cannot be used");
                    None
                }
            }
        }

        /// Reads everything that the GPU tells.
        pub fn read(&mut self) -> Reading {
            let device = match self.nvml.device_by_uuid(self.uuid.as_str()) {
                Ok(device) => device,
                Err(error) => {
                    if !std::mem::replace(&mut self.said, true) {
                        info!(%error, uuid = self.uuid, "no figures of the GPU");
                    }
                    return Reading::default();
                }
            };
            let said = std::mem::replace(&mut self.said, true);
            let busy = told("utilization", device.utilization_rates(), said);
            let memory = told("memory", device.memory_info(), said);
            let heat = device.temperature(TemperatureSensor::Gpu);
            Reading {
                utilization_percent: busy.as_ref().map(|busy| busy.gpu),
                memory_utilization_percent: busy.map(|busy| busy.memory),
                memory_used_bytes: memory.as_ref().map(|memory| memory.used),
                memory_total_bytes: memory.map(|memory| memory.total),
                power_milliwatts: told("power", device.power_usage(), said),
                temperature_celsius: told("temperature", heat, said),
            }
        }
    }

    fn told<T>(what: &str, read: Result<T, NvmlError>, said: bool) -> Option<T> {
        if let (Err(error), false) = (&read, said) {
            debug!(%error, what, "the GPU does not tell this figure");
        }
        read.ok()
    }

    /// A UUID as NVML writes it.
    fn text(uuid: [u8; 16]) -> String {
        let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        format!("GPU-{}", parts.join("-"))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_uuid_is_written_as_nvml_writes_it() {
            let uuid = [1, 35, 69, 103, 137, 171, 205, 239, 0, 17, 34, 51, 68, 85, 102, 255];
            assert_eq!(text(uuid), "GPU-01234567-89ab-cdef-0011-2233445566ff");
        }
    }
}

/// Without CUDA there is no GPU to be read.
#[cfg(not(feature = "cuda"))]
pub struct Gauge;

#[cfg(not(feature = "cuda"))]
impl Gauge {
    /// There is none.
    pub fn open(_uuid: [u8; 16]) -> Option<Self> {
        None
    }

    /// Nothing.
    pub fn read(&mut self) -> Reading {
        Reading::default()
    }
}
