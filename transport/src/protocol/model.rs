//! Where a run's trained model goes, and what keeps it from getting there.
//!
//! A worker that has a directory states the place of the file when it registers. One worker writes
//! the file, and copies it to the store of the run's checkpoints if the run has one. A run is
//! complete only when the model is durable. This module does not know which worker writes.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

use super::ids::WorkerId;

/// A file on a machine, or an object of an object store.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct ModelPlace {
    /// The machine's node name, as `uname -n` prints it. Empty for an object of an object store.
    pub host: String,
    /// The absolute path of the file there, or the URL of the object.
    pub path: String,
}

impl ModelPlace {
    /// Most bytes of a host's name, and of a path.
    pub const MAX_BYTES: usize = 8_192;

    /// Whether both texts are short enough for the log, and have no character that steers a
    /// terminal.
    pub fn is_valid(&self) -> bool {
        let fits = |text: &str| text.len() <= Self::MAX_BYTES && !text.contains(char::is_control);
        fits(&self.host) && fits(&self.path)
    }
}

impl fmt::Display for ModelPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.as_str() {
            "" => f.write_str(&self.path),
            host => write!(f, "{host}:{}", self.path),
        }
    }
}

/// A trained run that waits because its model is not durable yet.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct ModelAwaited {
    /// The failed write. `None` if no worker has a directory.
    pub failed: Option<WriteFailure>,
    /// Since when: wall clock of the coordinator, milliseconds of Unix time.
    pub since_unix_ms: u64,
}

/// A failed attempt to write a model file.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct WriteFailure {
    /// The worker that tried.
    pub worker: WorkerId,
    /// The worker's number, as people use it.
    #[serde(rename = "worker_number")]
    pub number: u32,
    /// The file that it tried to write.
    pub place: ModelPlace,
    /// The error text of its operating system.
    pub reason: String,
}

impl fmt::Display for ModelAwaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failed {
            Some(WriteFailure { worker, number, place, reason }) => write!(
                f,
                "all steps are trained, and the model cannot be written: worker {number} (id \
                 {worker}), {place}: {reason}. Make room there, or start a worker with another \
                 --dir"
            ),
            None => f.write_str(
                "all steps are trained, and no worker has a directory to write the model to. Start \
                 a worker with --dir (`everstep worker add` prints the command)",
            ),
        }
    }
}
