//! What one process of a script measures for `everstep launch --dry-run`.
//!
//! The launcher names a file in the process's environment. The process computes without a cluster,
//! writes the file, and ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use everstep_transport::protocol::RunSpec;
use everstep_worker::memory::ModelNeeds;
use serde::{Deserialize, Serialize};

/// The variable with the path of the file.
pub(crate) const FILE: &str = "EVERSTEP_MEASURED_FILE";

/// What a script states, and what it has taken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// The run, without what a launcher adds to it.
    pub run: RunSpec,
    /// The number of tensors.
    pub tensors: usize,
    /// The number of samples.
    pub samples: u64,
    /// The number of held-out samples.
    pub held_out: u64,
    /// The number of parameters.
    pub parameters: u64,
    /// Bytes of a parameter's master weight and moments.
    pub bytes_per_parameter: u64,
    /// The largest resident set of the process, bytes.
    pub process_bytes: u64,
    /// The most memory of a GPU that the script's tensors have had, bytes. None on the CPU.
    #[serde(default)]
    pub gpu_bytes: Option<u64>,
}

impl Measured {
    /// The file for it. None in a process that is to train.
    pub fn file() -> Option<PathBuf> {
        std::env::var_os(FILE).map(PathBuf::from)
    }

    /// Writes the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        fs::write(file, serde_json::to_vec(self).expect("it is plain data"))
    }

    /// What the model takes, with the script around it.
    pub(crate) fn model(&self) -> ModelNeeds {
        let Self { parameters, bytes_per_parameter, process_bytes, .. } = *self;
        ModelNeeds { parameters, device_bytes: process_bytes, bytes_per_parameter }
    }
}
