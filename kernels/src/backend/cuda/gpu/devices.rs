//! The GPUs of this machine, and which of them Everstep can use.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute, CUresult};

use super::error::CudaError;
use super::nvrtc::Architecture;

/// The oldest version of the driver's interface that has all calls.
const DRIVER: i32 = 13_000;
/// The oldest compute capability that the kernels are written for.
const OLDEST: Architecture = Architecture { major: 8, minor: 0 };

/// A GPU as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverDevice {
    /// The GPU's number, from 0, among those that this process may see.
    pub index: usize,
    /// The name that its maker gave it.
    pub name: String,
    /// Its compute capability, for the compiler.
    pub architecture: Architecture,
    /// The UUID, which no other GPU has and which never changes.
    pub uuid: [u8; 16],
    /// The GPU's memory, bytes.
    pub memory_bytes: usize,
    /// How many multiprocessors it has.
    pub multiprocessors: u32,
}

/// All GPUs in the order of their numbers, usable or not. For a GPU that the driver cannot
/// describe, the error.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::DriverTooOld`], [`CudaError::NoDevice`].
pub fn all() -> Result<Vec<Result<DriverDevice, CudaError>>, CudaError> {
    Ok((0..count()?).map(describe).collect())
}

fn count() -> Result<usize, CudaError> {
    start()?;
    let count = result::device::get_count().map_err(|error| failed("cuDeviceGetCount", error))?;
    Ok(count as usize)
}

impl DriverDevice {
    /// Whether the kernels are written for it.
    pub fn is_usable(&self) -> bool {
        self.architecture >= OLDEST
    }
}

/// The GPU of this number, if it can be used.
///
/// # Errors
/// As [`all`]. Also [`CudaError::NoSuchDevice`] and [`CudaError::DeviceTooOld`].
pub fn one(index: usize) -> Result<DriverDevice, CudaError> {
    let count = count()?;
    if index >= count {
        return Err(CudaError::NoSuchDevice { index, count });
    }
    let device = describe(index)?; // the state of the others does not matter
    let Architecture { major, minor } = device.architecture;
    if !device.is_usable() {
        let found = (major as i32, minor as i32);
        return Err(CudaError::DeviceTooOld { index, name: device.name, found });
    }
    Ok(device)
}

/// Finds the driver, and makes it ready for calls.
fn start() -> Result<(), CudaError> {
    // SAFETY: it only opens a library by its well-known name.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    let mut found = 0;
    // SAFETY: the number outlives the call. Every driver has this one.
    let status = unsafe { sys::cuDriverGetVersion(&raw mut found) };
    status.result().map_err(|error| failed("cuDriverGetVersion", error))?;
    // A library of an older driver lacks calls, and the search for those would panic.
    if found < DRIVER {
        return Err(CudaError::DriverTooOld { found, needed: DRIVER });
    }
    result::init().map_err(|error| match error.0 {
        CUresult::CUDA_ERROR_NO_DEVICE => CudaError::NoDevice,
        _ => failed("cuInit", error),
    })
}

fn describe(index: usize) -> Result<DriverDevice, CudaError> {
    use CUdevice_attribute::*;
    let device = result::device::get(index as i32).map_err(|error| failed("cuDeviceGet", error))?;
    let name =
        result::device::get_name(device).map_err(|error| failed("cuDeviceGetName", error))?;
    let uuid =
        result::device::get_uuid(device).map_err(|error| failed("cuDeviceGetUuid", error))?;
    // SAFETY: the driver has just given this handle.
    let memory_bytes = unsafe { result::device::total_mem(device) };
    Ok(DriverDevice {
        index,
        name,
        architecture: Architecture {
            major: attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        },
        uuid: uuid.bytes.map(|byte| byte as u8),
        memory_bytes: memory_bytes.map_err(|error| failed("cuDeviceTotalMem", error))?,
        multiprocessors: attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
    })
}

fn attribute(device: CUdevice, attribute: CUdevice_attribute) -> Result<u32, CudaError> {
    // SAFETY: the driver has given this handle.
    let value = unsafe { result::device::get_attribute(device, attribute) };
    value.map(|value| value as u32).map_err(|error| failed("cuDeviceGetAttribute", error))
}

/// The error in the driver's own words, if it has some.
pub(super) fn failed(call: &'static str, error: DriverError) -> CudaError {
    if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        return CudaError::Full { call };
    }
    let words = error.error_string().ok().map(|words| words.to_string_lossy().into_owned());
    let code = format!("{:?}", error.0);
    CudaError::Failed { call, why: words.map_or(code.clone(), |words| format!("{words} ({code})")) }
}
