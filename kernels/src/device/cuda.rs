//! NVIDIA GPUs as a kind of device.

mod data_sheets;
mod nvml;

use tracing::info;

use nvml::NvmlMonitor;

use super::{DeviceInfo, DeviceProvider, OpenedDevice, telemetry};
use crate::backend::Sizes;
use crate::backend::cuda::gpu::{self, CudaError, devices};
use crate::backend::cuda::memory::{PINNED_BYTES, WORKSPACE_BYTES, arena};
use crate::backend::cuda::{Cuda, SOURCES};
use crate::precision::Precision;

/// The name of the kind.
const KIND: &str = "cuda";

/// The GPUs that NVIDIA's driver knows.
pub(super) struct CudaProvider;

impl DeviceProvider for CudaProvider {
    fn kind(&self) -> &str {
        KIND
    }

    fn driver(&self) -> &str {
        "CUDA"
    }

    fn devices(&self) -> Result<Vec<Result<DeviceInfo, String>>, String> {
        let found = devices::all().map_err(words)?.into_iter();
        let found = found.map(|device| device.map_err(words));
        Ok(found.map(|device| device.map(described)).collect())
    }

    fn is_absent(&self) -> bool {
        matches!(devices::all(), Err(CudaError::NoDriver | CudaError::NoDevice))
    }

    fn check(&self, index: usize, _precision: Precision) -> Result<(), String> {
        let found = devices::one(index).and_then(|_| gpu::nvrtc::version());
        found.map(|_| ()).map_err(words)
    }

    fn open(
        &self,
        index: usize,
        precision: Precision,
        sizes: Sizes,
    ) -> Result<OpenedDevice, String> {
        let gpu = gpu::CudaDriver::open(index, precision, SOURCES).map_err(words)?;
        let gpu::DriverDevice { name, architecture, .. } = gpu.device();
        info!(index, name, %architecture, %precision, "computing on a GPU");
        let info = described(gpu.device().clone());
        let backend = Cuda::new(gpu, sizes).map_err(|error| error.to_string())?;
        Ok(OpenedDevice { backend: Box::new(backend), info })
    }

    /// Without what CUDA itself takes.
    fn memory(&self, sizes: Sizes, precision: Precision) -> Vec<(&'static str, usize)> {
        [&arena(sizes, precision)[..], &[("products", WORKSPACE_BYTES)]].concat()
    }

    fn host_bytes(&self) -> usize {
        PINNED_BYTES
    }

    fn monitor(&self, uuid: [u8; 16]) -> Option<telemetry::Monitor> {
        let mut monitor = NvmlMonitor::open(uuid)?;
        Some(Box::new(move || monitor.read()))
    }
}

fn words(error: CudaError) -> String {
    error.to_string()
}

fn described(device: gpu::DriverDevice) -> DeviceInfo {
    let gpu::nvrtc::Architecture { major, minor } = device.architecture;
    DeviceInfo {
        kind: KIND.into(),
        index: device.index,
        is_usable: device.is_usable(),
        architecture: device.architecture.to_string(),
        capability: format!("{major}.{minor}"),
        uuid: device.uuid,
        peak_flops: data_sheets::peak_flops(&device.name),
        name: device.name,
        memory_bytes: device.memory_bytes,
        multiprocessors: Some(device.multiprocessors),
    }
}
