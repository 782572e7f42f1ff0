//! The device on which a model computes: the CPU, or a GPU if the machine has one.
//!
//! A [`DeviceChoice`] is what a user asks for. [`open`] makes a model on the chosen device.
//! [`gpus`] lists what there is to choose from. A GPU's data sheet says how fast it could be
//! ([`peak_flops`]), and [`telemetry`] how it does.

use std::fmt;
use std::str::FromStr;

use tracing::warn;

use crate::backend::Cpu;
use crate::backend::cuda::Precision;
use crate::compute::Compute;
use crate::models::{ConfigError, Model, OnBackend};

mod peak;
pub mod telemetry;

pub use peak::peak_flops;

/// What a user asks for: `auto`, `cpu`, `cuda`, or `cuda:1` for the GPU of that number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU if one can be used, else the CPU. Any GPU means the first one, until
    /// [`DeviceChoice::of_worker`] chooses.
    Auto(Option<usize>),
    /// The CPU.
    #[default]
    Cpu,
    /// A GPU, and nothing else.
    Cuda(Option<usize>),
}

/// A GPU that the driver knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The GPU's number, from 0.
    pub index: usize,
    /// The name that its maker gave it.
    pub name: String,
    /// Its compute capability, as in `sm_90a`.
    pub architecture: String,
    /// The compute capability in numbers: (9, 0).
    pub capability: (u32, u32),
    /// The UUID, which no other GPU has.
    pub uuid: [u8; 16],
    /// The GPU's memory, bytes.
    pub memory_bytes: usize,
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
    /// Whether the kernels are written for it. It may be too old.
    pub is_usable: bool,
}

/// Why the requested device cannot have the model.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The model's configuration is not valid.
    #[error(transparent)]
    Model(#[from] ConfigError),
    /// The CPU computes in f32 alone.
    #[error("the CPU computes in f32, not in {0}: choose a GPU, or model.precision = \"f32\"")]
    Precision(Precision),
    /// The GPU cannot be used, in words for the user.
    #[error("{0}")]
    Gpu(String),
}

/// The numbers of the GPUs that can be used.
pub fn usable_gpus() -> Vec<usize> {
    let gpus = gpus().unwrap_or_default();
    gpus.into_iter().flatten().filter(|gpu| gpu.is_usable).map(|gpu| gpu.index).collect()
}

/// All GPUs in the order of their numbers, or why there are none. For a sick GPU, the error. In
/// words for the user.
pub fn gpus() -> Result<Vec<Result<Gpu, String>>, String> {
    cuda::gpus()
}

/// Whether a model of this precision could be made on this device, before any work begins.
///
/// # Errors
/// [`OpenError`], as far as it shows without opening a GPU.
pub fn check(choice: DeviceChoice, precision: Precision) -> Result<(), OpenError> {
    match choice {
        DeviceChoice::Cuda(index) => {
            // Without a number, any GPU that can be used: workers get one of those.
            let first = index.or_else(|| usable_gpus().first().copied());
            cuda::check(first.unwrap_or(0))
        }
        DeviceChoice::Auto(_) if !cuda::is_absent() => Ok(()),
        DeviceChoice::Auto(_) | DeviceChoice::Cpu => on_cpu_in(precision),
    }
}

/// Makes a model on a device.
///
/// # Errors
/// [`OpenError`]. If the choice was left to the program, a GPU's error is only a warning.
pub fn open<M: Model + 'static>(
    choice: DeviceChoice,
    precision: Precision,
    config: M::Config,
) -> Result<Box<dyn Compute>, OpenError>
where
    M::Config: Clone,
{
    match choice {
        DeviceChoice::Cuda(index) => cuda::open::<M>(index.unwrap_or(0), precision, config),
        DeviceChoice::Cpu => on_cpu::<M>(precision, config),
        DeviceChoice::Auto(_) if cuda::is_absent() => on_cpu::<M>(precision, config),
        DeviceChoice::Auto(index) => {
            match cuda::open::<M>(index.unwrap_or(0), precision, config.clone()) {
                Err(OpenError::Gpu(reason)) => {
                    warn!(reason, "the GPU cannot be used: computing on the CPU");
                    on_cpu::<M>(precision, config)
                }
                opened => opened,
            }
        }
    }
}

fn on_cpu<M: Model + 'static>(
    precision: Precision,
    config: M::Config,
) -> Result<Box<dyn Compute>, OpenError> {
    on_cpu_in(precision)?;
    Ok(Box::new(OnBackend::<M, Cpu>::new(config, Cpu::new)?))
}

fn on_cpu_in(precision: Precision) -> Result<(), OpenError> {
    match precision {
        Precision::F32 => Ok(()),
        other => Err(OpenError::Precision(other)),
    }
}

#[cfg(feature = "cuda")]
mod cuda {
    use tracing::info;

    use super::*;
    use crate::backend::cuda::gpu::{self, CudaError, devices};
    use crate::backend::cuda::{Cuda, OPERATIONS};

    pub(super) fn gpus() -> Result<Vec<Result<Gpu, String>>, String> {
        let found = devices::all().map_err(|error| error.to_string())?.into_iter();
        let found = found.map(|device| device.map_err(|error| error.to_string()));
        Ok(found.map(|device| device.map(described)).collect())
    }

    fn described(device: gpu::Device) -> Gpu {
        let gpu::nvrtc::Architecture { major, minor } = device.architecture;
        Gpu {
            index: device.index,
            is_usable: device.is_usable(),
            architecture: device.architecture.to_string(),
            capability: (major, minor),
            uuid: device.uuid,
            name: device.name,
            memory_bytes: device.memory_bytes,
            multiprocessors: device.multiprocessors,
        }
    }

    /// Whether this machine has nothing to do with GPUs, so that a warning would only annoy.
    pub(super) fn is_absent() -> bool {
        matches!(devices::all(), Err(CudaError::NoDriver | CudaError::NoDevice))
    }

    pub(super) fn check(index: usize) -> Result<(), OpenError> {
        let found = devices::one(index).and_then(|_| gpu::nvrtc::version());
        found.map(|_| ()).map_err(|error| OpenError::Gpu(error.to_string()))
    }

    pub(super) fn open<M: Model + 'static>(
        index: usize,
        precision: Precision,
        config: M::Config,
    ) -> Result<Box<dyn Compute>, OpenError> {
        let words = |error: CudaError| OpenError::Gpu(error.to_string());
        let gpu = gpu::Gpu::open(index, precision, OPERATIONS).map_err(words)?;
        let gpu::Device { name, architecture, .. } = gpu.device();
        info!(index, name, %architecture, %precision, "computing on a GPU");
        let described = described(gpu.device().clone());
        let opened = OnBackend::<M, _>::open(config, |sizes| Ok(Cuda::new(gpu, sizes)?));
        let opened = opened.map_err(|error| match error {
            ConfigError::Device(error) => OpenError::Gpu(error.to_string()),
            error => OpenError::Model(error),
        });
        Ok(Box::new(opened?.on(described)))
    }
}

#[cfg(not(feature = "cuda"))]
mod cuda {
    use super::*;

    const ABSENT: &str = "this program was built without CUDA (the feature `cuda`): use the CPU";

    pub(super) fn gpus() -> Result<Vec<Result<Gpu, String>>, String> {
        Err(ABSENT.into())
    }

    pub(super) fn is_absent() -> bool {
        true
    }

    pub(super) fn check(_index: usize) -> Result<(), OpenError> {
        Err(OpenError::Gpu(ABSENT.into()))
    }

    pub(super) fn open<M: Model + 'static>(
        _index: usize,
        _precision: Precision,
        _config: M::Config,
    ) -> Result<Box<dyn Compute>, OpenError> {
        Err(OpenError::Gpu(ABSENT.into()))
    }
}

impl DeviceChoice {
    /// The device that the worker of this number, from 0, takes on a machine with these GPUs: one
    /// each, in turn, unless the choice names one.
    pub fn of_worker(self, number: usize, gpus: &[usize]) -> Self {
        let index = (!gpus.is_empty()).then(|| gpus[number % gpus.len()]);
        match self {
            Self::Auto(None) => Self::Auto(index),
            Self::Cuda(None) => Self::Cuda(index),
            named => named,
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, index) = text.split_once(':').map_or((text, None), |(k, i)| (k, Some(i)));
        match (kind, index.map(str::parse).transpose()) {
            ("auto", Ok(index)) => Ok(Self::Auto(index)),
            ("cuda", Ok(index)) => Ok(Self::Cuda(index)),
            ("cpu", Ok(None)) => Ok(Self::Cpu),
            _ => Err("it must be auto, cpu, cuda, or cuda:N for the GPU of that number".into()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, index) = match self {
            Self::Auto(index) => ("auto", *index),
            Self::Cpu => ("cpu", None),
            Self::Cuda(index) => ("cuda", *index),
        };
        match index {
            Some(index) => write!(f, "{kind}:{index}"),
            None => f.write_str(kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_as_it_is_written() {
        use DeviceChoice::*;
        let choices = [
            ("auto", Auto(None)),
            ("auto:1", Auto(Some(1))),
            ("cpu", Cpu),
            ("cuda", Cuda(None)),
            ("cuda:3", Cuda(Some(3))),
        ];
        for (text, choice) in choices {
            assert_eq!(text.parse(), Ok(choice));
            assert_eq!(choice.to_string(), text);
        }
        for text in ["", "gpu", "cuda:", "cuda:x", "cpu:1", "cuda:-1", "CUDA"] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_cpu_computes_in_f32_alone() {
        assert!(check(DeviceChoice::Cpu, Precision::F32).is_ok());
        for precision in [Precision::Bf16, Precision::Fp16] {
            let refused = check(DeviceChoice::Cpu, precision).expect_err("it has no such numbers");
            assert!(refused.to_string().contains(&format!("not in {precision}: choose a GPU")));
        }
    }

    #[test]
    fn workers_of_one_machine_take_one_gpu_each_unless_one_is_named() {
        use DeviceChoice::*;
        let chosen =
            |choice: DeviceChoice| [0, 1, 2].map(|number| choice.of_worker(number, &[0, 3]));
        assert_eq!(chosen(Cuda(None)), [0, 3, 0].map(|index| Cuda(Some(index))));
        assert_eq!(chosen(Auto(None)), [0, 3, 0].map(|index| Auto(Some(index))));
        assert_eq!(chosen(Cuda(Some(1))), [Cuda(Some(1)); 3]);
        assert_eq!(chosen(Cpu), [Cpu; 3]);
        assert_eq!(Auto(None).of_worker(1, &[]), Auto(None));
    }
}
