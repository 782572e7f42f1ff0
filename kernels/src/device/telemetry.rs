//! The telemetry of a device: load, memory, temperature and power, as its driver tells it.
//!
//! For values that a device does not tell, the figure is missing: no training depends on any.

/// Reads the figures of one device. A call may block for as long as the driver does.
pub type Monitor = Box<dyn FnMut() -> Reading>;

/// The values of one moment. A figure that the GPU does not tell is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The share of the last moments in which a kernel ran, percent.
    pub utilization_percent: Option<u32>,
    /// The share of the last moments in which its memory was read or written, percent.
    pub memory_utilization_percent: Option<u32>,
    /// Memory in use by any process, bytes.
    pub memory_used_bytes: Option<u64>,
    /// All its memory, bytes.
    pub memory_total_bytes: Option<u64>,
    /// Power that it draws, milliwatts.
    pub power_milliwatts: Option<u32>,
    /// Its temperature, degrees Celsius.
    pub temperature_celsius: Option<u32>,
}
