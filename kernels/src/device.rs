//! The device on which a model computes: the CPU, or a device of a kind that the program has.
//!
//! A [`DeviceChoice`] is what a user asks for. [`Devices`] has a [`DeviceProvider`] for each kind
//! beside the CPU, and makes a model on the chosen device. The data sheet of a device says how fast
//! it could be ([`PeakFlops`]), and [`telemetry`] how it does.
//!
//! No kind of device is known here, but for the list in [`Devices::default`]. `cuda` is a provider
//! like that of any other crate.

use std::fmt;
use std::sync::Arc;

use tracing::warn;

use crate::backend::{Backend, Cpu, DeviceError, Sizes};
use crate::compute::Compute;
use crate::models::{Model, ModelConfigError, OnBackend};
use crate::precision::Precision;
use crate::threads::Threads;

mod choice;
#[cfg(feature = "cuda")]
mod cuda;
pub mod telemetry;

pub use choice::{DeviceChoice, NoDeviceChoice};

/// A kind of device beside the CPU: which devices of it this machine has, and how to open one.
pub trait DeviceProvider: Send + Sync {
    /// The name of the kind, 1 to 16 lower-case letters and digits: `cuda` in `--device cuda:1`.
    fn kind(&self) -> &str;

    /// The name of the software that drives the devices, for people.
    fn driver(&self) -> &str {
        self.kind()
    }

    /// All devices of the kind in the order of their numbers, or why there are none. For a sick
    /// device, its error. In words for the user.
    fn devices(&self) -> Result<Vec<Result<DeviceInfo, String>>, String>;

    /// Whether this machine has nothing to do with the kind, so that a warning would only annoy.
    fn is_absent(&self) -> bool;

    /// Whether the device of this number could compute, as far as it shows without opening it. An
    /// error is in words for the user.
    fn check(&self, index: usize, precision: Precision) -> Result<(), String>;

    /// Opens the device of this number, with memory of these sizes. An error is in words for the
    /// user.
    fn open(
        &self,
        index: usize,
        precision: Precision,
        sizes: Sizes,
    ) -> Result<OpenedDevice, String>;

    /// The memory that a model of these sizes takes of a device, bytes, part by part. It takes no
    /// device to know that.
    fn memory(&self, sizes: Sizes, precision: Precision) -> Vec<(&'static str, usize)>;

    /// Bytes of the host's memory for copies to and from a device.
    fn host_bytes(&self) -> usize {
        0
    }

    /// The source of the figures of the device with this UUID, for a thread of its own. `None` if
    /// there is none.
    fn monitor(&self, _uuid: [u8; 16]) -> Option<telemetry::Monitor> {
        None
    }
}

/// A device with the memory of a model.
pub struct OpenedDevice {
    /// The operations on it.
    pub backend: Box<dyn Backend>,
    /// The kind of the device, its name and its memory.
    pub info: DeviceInfo,
}

/// A device beside the CPU, as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The kind of device, as its provider names it.
    pub kind: String,
    /// The device's number within its kind, from 0.
    pub index: usize,
    /// The name that its maker gave it.
    pub name: String,
    /// Its architecture, as in `sm_90a`.
    pub architecture: String,
    /// The version of its architecture, as its maker writes it: `9.0`.
    pub capability: String,
    /// The UUID, which no other device has.
    pub uuid: [u8; 16],
    /// The device's memory, bytes.
    pub memory_bytes: usize,
    /// What its data sheet says of its speed.
    pub peak_flops: PeakFlops,
    /// How many multiprocessors it has, if it has such.
    pub multiprocessors: Option<u32>,
    /// Whether its backend is written for it. It may be too old.
    pub is_usable: bool,
}

/// The most floating-point operations a second of a device, as its maker states it. A figure that
/// is not known for sure is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeakFlops {
    /// Operations in f32, all of them.
    pub single: Option<u64>,
    /// In 16 bits, with sums in f32.
    pub half: Option<u64>,
}

impl PeakFlops {
    /// The figure of a model of this precision.
    pub fn of(self, precision: Precision) -> Option<u64> {
        match precision {
            Precision::F32 => self.single,
            Precision::Bf16 | Precision::Fp16 => self.half,
        }
    }
}

/// Why the requested device cannot have the model.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The model's configuration is not valid.
    #[error(transparent)]
    Model(#[from] ModelConfigError),
    /// The CPU computes in f32 alone.
    #[error("the CPU computes in f32, not in {0}: choose a GPU, or model.precision = \"f32\"")]
    Precision(Precision),
    /// The program has no device of the kind.
    #[error("this program has no device of the kind \"{kind}\": choose auto, {known}")]
    Unknown {
        /// The kind that the user asks for.
        kind: String,
        /// The kinds that the program has.
        known: String,
    },
    /// The device cannot be used, in words for the user.
    #[error("{0}")]
    Device(String),
}

/// The kinds of devices that a program can compute on: the CPU, and each of its providers. `auto`
/// takes the first that has a device.
#[derive(Clone)]
pub struct Devices {
    providers: Vec<Arc<dyn DeviceProvider>>,
    left_out: Vec<LeftOut>,
    /// The threads with which the CPU computes.
    threads: Threads,
}

/// A kind of device that the program was built without.
#[derive(Clone, Copy)]
struct LeftOut {
    kind: &'static str,
    /// What was left out of the program, in words for the user.
    reason: &'static str,
}

impl fmt::Debug for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.providers().map(DeviceProvider::kind)).finish()
    }
}

/// The devices that every program has. A program that was built with the feature `cuda` has NVIDIA
/// GPUs.
impl Default for Devices {
    fn default() -> Self {
        Self {
            providers: vec![
                #[cfg(feature = "cuda")]
                Arc::new(cuda::CudaProvider),
            ],
            left_out: vec![
                #[cfg(not(feature = "cuda"))]
                LeftOut {
                    kind: "cuda",
                    reason: "this program was built without CUDA (the feature `cuda`)",
                },
            ],
            threads: Threads::default(),
        }
    }
}

impl Devices {
    /// Adds a kind of device. A provider of the same kind is replaced.
    pub fn add(&mut self, provider: Arc<dyn DeviceProvider>) {
        self.providers.retain(|known| known.kind() != provider.kind());
        self.left_out.retain(|left_out| left_out.kind != provider.kind());
        self.providers.push(provider);
    }

    /// Sets the number of threads with which the CPU computes a model, at least one. The bits do
    /// not depend on it.
    pub fn set_threads(&mut self, threads: usize) {
        self.threads = Threads::new(threads);
    }

    /// The threads with which the CPU computes a model, and changes its parameters.
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Why the program lacks kinds of devices that it could have, in words for the user.
    pub fn left_out(&self) -> impl Iterator<Item = &'static str> {
        self.left_out.iter().map(|left_out| left_out.reason)
    }

    /// The kinds beside the CPU.
    pub fn providers(&self) -> impl Iterator<Item = &dyn DeviceProvider> {
        self.providers.iter().map(|provider| &**provider)
    }

    /// The provider of the device that this choice means here. `None` for the CPU.
    ///
    /// # Errors
    /// [`OpenError::Unknown`].
    pub fn provider(
        &self,
        choice: &DeviceChoice,
    ) -> Result<Option<&dyn DeviceProvider>, OpenError> {
        match choice {
            DeviceChoice::Cpu => Ok(None),
            DeviceChoice::Auto(_) => {
                let usable = self.providers().find(|provider| !usable(*provider).is_empty());
                Ok(usable.or_else(|| self.providers().find(|provider| !provider.is_absent())))
            }
            DeviceChoice::Kind(kind, _) => {
                let found = self.providers().find(|provider| provider.kind() == kind);
                found.map(Some).ok_or_else(|| self.unknown(kind))
            }
        }
    }

    fn unknown(&self, kind: &str) -> OpenError {
        if let Some(left_out) = self.left_out.iter().find(|left_out| left_out.kind == kind) {
            return OpenError::Device(format!("{}: use the CPU", left_out.reason));
        }
        let known: Vec<_> = self.providers().map(DeviceProvider::kind).collect();
        let known = [&["cpu"], &known[..]].concat().join(", ");
        OpenError::Unknown { kind: kind.into(), known }
    }

    /// The numbers of the devices among which this choice may fall. Empty for the CPU.
    pub fn usable(&self, choice: &DeviceChoice) -> Vec<usize> {
        self.provider(choice).ok().flatten().map(usable).unwrap_or_default()
    }

    /// Whether a model of this precision could be made on this device, before any work begins.
    ///
    /// # Errors
    /// [`OpenError`], as far as it shows without opening a device.
    pub fn check(&self, choice: &DeviceChoice, precision: Precision) -> Result<(), OpenError> {
        let Some(provider) = self.provider(choice)? else { return on_cpu_in(precision) };
        let DeviceChoice::Kind(_, index) = choice else { return Ok(()) };
        // Without a number, any device that can be used: workers get one of those.
        let index = index.or_else(|| usable(provider).first().copied());
        provider.check(index.unwrap_or(0), precision).map_err(OpenError::Device)
    }

    /// The source of the figures of the device of this kind with this UUID.
    pub fn monitor(&self, kind: &str, uuid: [u8; 16]) -> Option<telemetry::Monitor> {
        self.providers().find(|provider| provider.kind() == kind)?.monitor(uuid)
    }
}

/// The device that a user has chosen among those of the program.
#[derive(Clone, Copy)]
pub struct ChosenDevice<'a> {
    /// The devices of the program.
    pub devices: &'a Devices,
    /// What the user asks for.
    pub choice: &'a DeviceChoice,
}

impl ChosenDevice<'_> {
    /// Makes a model on the device.
    ///
    /// # Errors
    /// [`OpenError`]. If the choice was left to the program, the error of a device is only a
    /// warning, and the CPU computes.
    pub fn open<M: Model + 'static>(
        self,
        precision: Precision,
        config: M::Config,
    ) -> Result<Box<dyn Compute>, OpenError>
    where
        M::Config: Clone,
    {
        let Some(provider) = self.devices.provider(self.choice)? else {
            return self.on_cpu::<M>(precision, config);
        };
        match self.choice {
            DeviceChoice::Kind(_, index) => {
                on_device::<M>(provider, index.unwrap_or(0), precision, config)
            }
            DeviceChoice::Cpu => self.on_cpu::<M>(precision, config),
            DeviceChoice::Auto(index) => {
                match on_device::<M>(provider, index.unwrap_or(0), precision, config.clone()) {
                    Err(OpenError::Device(reason)) => {
                        let kind = provider.kind();
                        warn!(kind, reason, "the device cannot be used: computing on the CPU");
                        self.on_cpu::<M>(precision, config)
                    }
                    opened => opened,
                }
            }
        }
    }

    fn on_cpu<M: Model + 'static>(
        self,
        precision: Precision,
        config: M::Config,
    ) -> Result<Box<dyn Compute>, OpenError> {
        on_cpu_in(precision)?;
        let open = |sizes| Cpu::on_threads(sizes, self.devices.threads.clone());
        Ok(Box::new(OnBackend::<M>::new(config, open)?))
    }
}

/// The numbers of the devices of a kind that can be used.
fn usable(provider: &dyn DeviceProvider) -> Vec<usize> {
    let found = provider.devices().unwrap_or_default();
    found.into_iter().flatten().filter(|info| info.is_usable).map(|info| info.index).collect()
}

fn on_device<M: Model + 'static>(
    provider: &dyn DeviceProvider,
    index: usize,
    precision: Precision,
    config: M::Config,
) -> Result<Box<dyn Compute>, OpenError> {
    let open = |sizes| {
        let opened = provider.open(index, precision, sizes).map_err(DeviceError)?;
        Ok((opened.backend, Some(opened.info)))
    };
    match OnBackend::<M>::on(config, open) {
        Ok(model) => Ok(Box::new(model)),
        Err(ModelConfigError::Device(error)) => Err(OpenError::Device(error.to_string())),
        Err(error) => Err(OpenError::Model(error)),
    }
}

fn on_cpu_in(precision: Precision) -> Result<(), OpenError> {
    match precision {
        Precision::F32 => Ok(()),
        other => Err(OpenError::Precision(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Mlp, MlpConfig};

    /// A kind of device with one device, which computes as the CPU does.
    struct Twin {
        is_usable: bool,
    }

    impl DeviceProvider for Twin {
        fn kind(&self) -> &str {
            "twin"
        }

        fn devices(&self) -> Result<Vec<Result<DeviceInfo, String>>, String> {
            Ok(vec![Ok(self.info())])
        }

        fn is_absent(&self) -> bool {
            false
        }

        fn check(&self, index: usize, _precision: Precision) -> Result<(), String> {
            if index == 0 { Ok(()) } else { Err(format!("there is no twin {index}")) }
        }

        fn open(
            &self,
            index: usize,
            precision: Precision,
            sizes: Sizes,
        ) -> Result<OpenedDevice, String> {
            self.check(index, precision)?;
            let backend = Box::new(Cpu::new(sizes));
            Ok(OpenedDevice { backend, info: self.info() })
        }

        fn memory(&self, sizes: Sizes, _precision: Precision) -> Vec<(&'static str, usize)> {
            vec![("everything", Cpu::bytes_of(sizes))]
        }
    }

    impl Twin {
        fn info(&self) -> DeviceInfo {
            DeviceInfo {
                kind: "twin".into(),
                index: 0,
                name: "Twin".into(),
                architecture: "host".into(),
                capability: "1.0".into(),
                uuid: [7; 16],
                memory_bytes: 1 << 30,
                peak_flops: PeakFlops { single: Some(1_000), half: None },
                multiprocessors: None,
                is_usable: self.is_usable,
            }
        }
    }

    const MLP: MlpConfig =
        MlpConfig { vocabulary: 11, layers: 1, width: 7, context: 3, micro_batch: 1 };

    /// The name of the device on which a model is made.
    fn opened(devices: &Devices, choice: &str) -> Result<Option<String>, String> {
        let choice = choice.parse().expect("a device");
        let chosen = ChosenDevice { devices, choice: &choice };
        let opened = chosen.open::<Mlp>(Precision::F32, MLP).map_err(|error| error.to_string())?;
        Ok(opened.report().device.map(|info| info.name))
    }

    #[test]
    fn a_kind_of_ones_own_is_chosen_by_its_name_and_by_auto() {
        let mut devices =
            Devices { providers: Vec::new(), left_out: Vec::new(), threads: Threads::default() };
        devices.add(Arc::new(Twin { is_usable: true }));
        let twin = Ok(Some("Twin".to_string()));
        for choice in ["twin", "twin:0", "auto", "auto:0"] {
            assert_eq!(opened(&devices, choice), twin, "{choice}");
        }
        assert_eq!(opened(&devices, "cpu"), Ok(None));
        assert_eq!(opened(&devices, "twin:1"), Err("there is no twin 1".into()));
        assert_eq!(opened(&devices, "auto:1"), Ok(None), "the CPU computes instead");
        assert_eq!(devices.usable(&DeviceChoice::Auto(None)), [0]);
        assert_eq!(devices.usable(&DeviceChoice::Cpu), []);
    }

    #[test]
    fn what_the_program_does_not_have_is_refused_with_what_it_has() {
        let mut devices =
            Devices { providers: Vec::new(), left_out: Vec::new(), threads: Threads::default() };
        devices.add(Arc::new(Twin { is_usable: false }));
        devices.add(Arc::new(Twin { is_usable: false }));
        let refused = opened(&devices, "npu").expect_err("there is none");
        let words = "this program has no device of the kind \"npu\": choose auto, cpu, twin";
        assert_eq!(refused, words, "a kind is there once");
        devices.left_out.push(LeftOut { kind: "npu", reason: "it was built without NPUs" });
        let refused = opened(&devices, "npu").expect_err("it was left out");
        assert_eq!(refused, "it was built without NPUs: use the CPU");
        assert_eq!(devices.usable(&"twin".parse().expect("a kind")), []);
    }

    #[test]
    fn the_cpu_computes_in_f32_alone() {
        let devices = Devices::default();
        assert!(devices.check(&DeviceChoice::Cpu, Precision::F32).is_ok());
        for precision in [Precision::Bf16, Precision::Fp16] {
            let refused = devices.check(&DeviceChoice::Cpu, precision);
            let refused = refused.expect_err("it has no such numbers");
            assert!(refused.to_string().contains(&format!("not in {precision}: choose a GPU")));
        }
    }
}
