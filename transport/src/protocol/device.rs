//! The device that a worker computes on, and its telemetry.
//!
//! This module knows no kind of device. A worker states the words that the provider of its device
//! has for it, and the figures of its data sheet.

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};
use serde::Serializer;

use super::run::Precision;

/// The longest name of a device, characters.
pub const MAX_DEVICE_NAME: usize = 64;
/// The longest name of a kind of device, characters.
const MAX_DEVICE_KIND: usize = 16;

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

/// A kind of device beside the CPU, as `--device` names it: 1 to 16 lower-case letters and digits.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(transparent)]
pub struct DeviceKind(String);

impl DeviceKind {
    /// Parses a kind. `None` if it breaks the rules above.
    pub fn parse(kind: &str) -> Option<Self> {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let fits = (1..=MAX_DEVICE_KIND).contains(&kind.len()) && kind.chars().all(is_plain);
        fits.then(|| Self(kind.to_string()))
    }

    /// The kind as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceKind {
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
    /// The device's identity and its data sheet. `None` for a CPU.
    #[serde(rename = "gpu")]
    pub accelerator: Option<Accelerator>,
}

/// The identity and the data sheet of a device beside the CPU, in its provider's words.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// The kind of device.
    pub kind: DeviceKind,
    /// Its number, from 0, among the devices of its kind that the worker's process sees. Drivers
    /// and containers hide others, so one device may have several numbers. Its UUID stays the same.
    pub number: u32,
    /// The version of its architecture, as its maker writes it: `9.0`.
    pub capability: DeviceName,
    /// The UUID, which no other device has.
    #[serde(serialize_with = "hex")]
    pub uuid: [u8; 16],
    /// The most floating-point operations a second in the worker's precision, by its data sheet.
    /// `None` if that is not known for sure.
    pub peak_flops: Option<u64>,
}

/// The CPU, in f32.
impl Default for Device {
    fn default() -> Self {
        Self { name: DeviceName::cpu(), precision: Precision::default(), accelerator: None }
    }
}

/// In words for people: `NVIDIA H200 (cuda:0, 9.0, bf16)`.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, precision, accelerator } = self;
        let precision = precision.name();
        match accelerator {
            Some(Accelerator { kind, number, capability, .. }) => {
                write!(f, "{name} ({kind}:{number}, {capability}, {precision})")
            }
            None => write!(f, "{name} ({precision})"),
        }
    }
}

impl Accelerator {
    /// The UUID as 32 hexadecimal digits.
    pub fn uuid(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.uuid))
    }
}

impl Device {
    /// Whether all names keep to their rules. An archive from a peer holds them as any text.
    pub fn is_valid(&self) -> bool {
        let known = |accelerator: &Accelerator| {
            DeviceKind::parse(accelerator.kind.as_str()).is_some()
                && DeviceName::parse(accelerator.capability.as_str()).is_some()
        };
        DeviceName::parse(self.name.as_str()).is_some()
            && self.accelerator.as_ref().is_none_or(known)
    }
}

fn lower<S: Serializer>(precision: &Precision, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(precision.name())
}

fn hex<S: Serializer>(uuid: &[u8; 16], to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{:032x}", u128::from_be_bytes(*uuid)))
}

/// A device's telemetry: as many figures as its driver has.
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
        let figures = [
            self.utilization_percent.map(|percent| format!("{percent} %")),
            memory,
            self.power_milliwatts.map(|milliwatts| format!("{} W", milliwatts / 1_000)),
            self.temperature_celsius.map(|degrees| format!("{degrees} C")),
        ];
        let figures: Vec<String> = figures.into_iter().flatten().collect();
        f.pad(&if figures.is_empty() { "-".into() } else { figures.join(", ") })
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

    fn device(kind: &str, capability: &str) -> Device {
        let accelerator = Accelerator {
            kind: DeviceKind(kind.into()),
            number: 1,
            capability: DeviceName(capability.into()),
            uuid: [7; 16],
            peak_flops: Some(989_000_000_000_000),
        };
        let name = DeviceName::of("NVIDIA H200");
        Device { name, precision: Precision::F16, accelerator: Some(accelerator) }
    }

    #[test]
    fn a_device_is_shown_as_its_user_chooses_it() {
        let shown = device("cuda", "9.0").to_string();
        assert_eq!(shown, "NVIDIA H200 (cuda:1, 9.0, fp16)", "the precision as in a run's file");
        assert_eq!(device("tpu", "v5e").to_string(), "NVIDIA H200 (tpu:1, v5e, fp16)");
        assert_eq!(Device::default().to_string(), "cpu (f32)");
    }

    #[test]
    fn a_kind_and_a_capability_keep_to_their_rules_too() {
        assert!(device("cuda", "9.0").is_valid() && Device::default().is_valid());
        let long = "k".repeat(17);
        for (kind, capability) in
            [("", "9.0"), ("CUDA", "9.0"), ("a b", "9.0"), (&long, "9.0"), ("cuda", "\"")]
        {
            assert!(!device(kind, capability).is_valid(), "{kind:?} {capability:?}");
        }
    }

    #[test]
    fn telemetry_shows_only_the_figures_that_there_are() {
        assert_eq!(Telemetry::default().to_string(), "-");
        let mut some = Telemetry { utilization_percent: Some(97), ..Telemetry::default() };
        (some.memory_used_bytes, some.power_milliwatts) = (Some(3 << 29), Some(612_900));
        assert_eq!(some.to_string(), "97 %, 1.5 GiB, 612 W");
        (some.memory_total_bytes, some.temperature_celsius) = (Some(80 << 30), Some(54));
        assert_eq!(some.to_string(), "97 %, 1.5 of 80.0 GiB, 612 W, 54 C");
    }
}
