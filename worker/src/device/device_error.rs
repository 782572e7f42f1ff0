//! Why a device cannot go on, and what that means for its worker and for the run.

use everstep_kernels::compute::ComputeError;
use everstep_transport::protocol::outcome::Inability;

use crate::data::loader::LoadError;
use crate::step::event::Report;

/// Why a device cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The reason is this device's own: another worker may take its place.
    #[error("{0}")]
    Failed(String),
    /// The reason follows from the run, and would recur on every worker.
    #[error("{0}")]
    Unable(String),
    /// The reason lies in this worker's place, and may pass.
    #[error("{0}")]
    Place(String),
}

impl From<LoadError> for DeviceError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Fill { .. } => Self::Unable(error.to_string()),
            LoadError::NotPlanned { .. } => Self::Failed(error.to_string()),
        }
    }
}

impl From<ComputeError> for DeviceError {
    fn from(error: ComputeError) -> Self {
        match error {
            ComputeError::Batch(_) | ComputeError::Program(_) => Self::Unable(error.to_string()),
            ComputeError::Device(_) => Self::Failed(error.to_string()),
        }
    }
}

impl From<DeviceError> for Report {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Failed(reason) => Self::Failed(reason),
            DeviceError::Unable(reason) => Self::Unable { inability: Inability::Run, reason },
            DeviceError::Place(reason) => Self::Unable { inability: Inability::Place, reason },
        }
    }
}
