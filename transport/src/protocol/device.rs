//! The device that a worker computes on, and its telemetry.

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};
use serde::Serializer;

use super::run::Precision;

/// The longest name of a device, characters.
pub const MAX_DEVICE_NAME: usize = 64;

/// A device as its maker calls it, or `cpu`: 1 to 64 printable ASCII characters, the first and last
/// of them no spaces, none a quote or a backslash.
#[derive(
    Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
#[serde(transparent)]
pub struct DeviceName(String);

impl DeviceName {
    /// Parses a name. `None` if it breaks the rules above.
    pub fn parse(name: &str) -> Option<Self> {
        let fits = (1..=MAX_DEVICE_NAME).contains(&name.len())
            && name.trim() == name
            && name.chars().all(is_plain);
        fits.then(|| Self(name.to_string()))
    }

    /// The name that a driver gives, made valid: unfit characters are replaced, the rest is cut
    /// off.
    pub fn of(name: &str) -> Self {
        let plain = name.chars().map(|c| if is_plain(c) { c } else { '?' });
        let plain: String = plain.take(MAX_DEVICE_NAME).collect();
        Self::parse(plain.trim()).unwrap_or(Self("?".into()))
    }

    /// The name of a CPU, of whatever make.
    pub fn cpu() -> Self {
        Self("cpu".into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_plain(c: char) -> bool {
    matches!(c, ' '..='~') && c != '"' && c != '\\'
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The device that a worker computes on.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The maker's name for it, or `cpu`.
    pub name: DeviceName,
    /// The type in which parameters and activations are stored there.
    #[serde(serialize_with = "lower")]
    pub precision: Precision,
    /// The GPU's identity. `None` for a CPU.
    pub gpu: Option<GpuId>,
}

/// The identity of one GPU.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuId {
    /// Its number, from 0, among the GPUs that the worker's process sees. `CUDA_VISIBLE_DEVICES`
    /// and containers hide others, so one GPU may have several numbers. Its UUID stays the same.
    pub number: u32,
    /// Its compute capability, for example (9, 0).
    #[serde(serialize_with = "dotted")]
    pub capability: (u32, u32),
    /// The UUID, which no other GPU has.
    #[serde(serialize_with = "hex")]
    pub uuid: [u8; 16],
}

/// The CPU, in f32.
impl Default for Device {
    fn default() -> Self {
        Self { name: DeviceName::cpu(), precision: Precision::default(), gpu: None }
    }
}

/// In words for people: `NVIDIA H200 (cuda:0, 9.0, bf16)`.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, precision, gpu } = self;
        let precision = word(*precision);
        match gpu {
            Some(GpuId { number, capability: (major, minor), .. }) => {
                write!(f, "{name} (cuda:{number}, {major}.{minor}, {precision})")
            }
            None => write!(f, "{name} ({precision})"),
        }
    }
}

impl GpuId {
    /// The compute capability as NVIDIA writes it.
    pub fn capability(&self) -> String {
        format!("{}.{}", self.capability.0, self.capability.1)
    }

    /// The UUID as 32 hexadecimal digits.
    pub fn uuid(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.uuid))
    }
}

impl Device {
    /// The word that a run's file uses for the precision.
    pub fn precision(&self) -> String {
        word(self.precision)
    }
}

fn word(precision: Precision) -> String {
    format!("{precision:?}").to_lowercase()
}

fn lower<S: Serializer>(precision: &Precision, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&word(*precision))
}

fn dotted<S: Serializer>((major, minor): &(u32, u32), to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{major}.{minor}"))
}

fn hex<S: Serializer>(uuid: &[u8; 16], to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{:032x}", u128::from_be_bytes(*uuid)))
}

/// A GPU's telemetry: as much as the GPU tells.
#[derive(
    Archive, Serialize, Deserialize, serde::Serialize, Clone, Copy, Debug, Default, PartialEq, Eq,
)]
pub struct Telemetry {
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

/// In words for people: `97 %, 12.3 of 139.8 GiB, 612 W, 54 C`. `-` stands for a missing value.
impl fmt::Display for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let memory = self.memory_used_bytes.map(|used| match self.memory_total_bytes {
            Some(total) => format!("{:.1} of {:.1} GiB", gib(used), gib(total)),
            None => format!("{:.1} GiB", gib(used)),
        });
        let told = [
            self.utilization_percent.map(|percent| format!("{percent} %")),
            memory,
            self.power_milliwatts.map(|milliwatts| format!("{} W", milliwatts / 1_000)),
            self.temperature_celsius.map(|degrees| format!("{degrees} C")),
        ];
        let told: Vec<String> = told.into_iter().flatten().collect();
        f.pad(&if told.is_empty() { "-".into() } else { told.join(", ") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_a_name_of_1_to_64_plain_characters() {
        for name in ["cpu", "NVIDIA H200", "x", &"n".repeat(64)] {
            assert_eq!(DeviceName::parse(name).as_ref().map(DeviceName::as_str), Some(name));
        }
        for name in ["", " cpu", "cpu ", "a\"b", "a\\b", "a\nb", "für", &"n".repeat(65)] {
            assert_eq!(DeviceName::parse(name), None, "{name:?}");
        }
    }

    #[test]
    fn whatever_a_driver_says_becomes_a_name() {
        for (said, name) in [
            ("NVIDIA H200", "NVIDIA H200"),
            (" \"Grün\"\n", "?Gr?n??"),
            ("", "?"),
            (&"n".repeat(99), &"n".repeat(64)),
        ] {
            assert_eq!(DeviceName::of(said).as_str(), name);
            assert!(DeviceName::parse(name).is_some());
        }
    }

    #[test]
    fn a_device_is_told_to_people_as_they_choose_it() {
        let gpu = GpuId { number: 1, capability: (9, 0), uuid: [7; 16] };
        let name = DeviceName::of("NVIDIA H200");
        let device = Device { name, precision: Precision::Bf16, gpu: Some(gpu) };
        assert_eq!(device.to_string(), "NVIDIA H200 (cuda:1, 9.0, bf16)");
        assert_eq!(Device::default().to_string(), "cpu (f32)");
    }

    #[test]
    fn only_what_a_gpu_tells_is_told() {
        assert_eq!(Telemetry::default().to_string(), "-");
        let mut some = Telemetry { utilization_percent: Some(97), ..Telemetry::default() };
        (some.memory_used_bytes, some.power_milliwatts) = (Some(3 << 29), Some(612_900));
        assert_eq!(some.to_string(), "97 %, 1.5 GiB, 612 W");
        (some.memory_total_bytes, some.temperature_celsius) = (Some(80 << 30), Some(54));
        assert_eq!(some.to_string(), "97 %, 1.5 of 80.0 GiB, 612 W, 54 C");
    }
}
