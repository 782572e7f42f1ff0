//! What one process of a script states and measures, for a dry run and for a run that is submitted.
//!
//! This program names a file in the process's environment. The process computes without a cluster,
//! writes the file, and ends.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use everstep_transport::protocol::RunSpec;
use everstep_worker::memory::ModelNeeds;
use serde::{Deserialize, Serialize};

use super::gpus;
use crate::cluster::{self, Script};
use crate::failure::{Exit, Failure};
use crate::output;

/// The variable with the path of the file.
const FILE: &str = "EVERSTEP_MEASURED_FILE";

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
    /// Has a process of the script compute a micro-batch.
    ///
    /// # Errors
    /// If the process ends before.
    pub(crate) fn of(script: &Script) -> Result<Self, Failure> {
        let name = Path::new(&script.command[0]).display();
        let failed = |why: String| {
            Failure::new(Exit::Failed, "the script cannot be measured").at(&name).because(why)
        };
        let unusable = |error: io::Error| failed(error.to_string());
        let folder = tempfile::tempdir().map_err(unusable)?;
        let file = folder.path().join("measured.json");
        let (control, theirs) = UnixStream::pair().map_err(unusable)?;
        let mut command = script.process();
        command.envs(script.device.as_ref().and_then(gpus::visible_to));
        command.env(FILE, &file).stdin(OwnedFd::from(theirs));
        command.stdout(io::stderr().as_fd().try_clone_to_owned().map_err(unusable)?);
        output::say(format_args!("measuring {name}"));
        let ended = command.status().map_err(unusable)?;
        drop(control); // the process ends with this one
        match fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| failed(error.to_string())),
            Err(_) => {
                let how = cluster::exit_of(ended);
                let before = "before it had computed a micro-batch of an everstep.Run";
                Err(failed(format!("it {how} {before}")))
            }
        }
    }

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
