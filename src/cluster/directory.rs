//! The files of a run: its processes, its events, and the cost of each step.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use everstep_transport::protocol::RunSpec;
use serde::Serialize;

use super::error::ClusterError;

/// The directory of one run. It never holds two.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
}

/// The file that marks a directory as that of a run.
pub(super) const RUN: &str = "run.json";
/// The trained model. A directory that holds one is refused, since a new run would replace it.
const MODEL: &str = "model.safetensors";

impl Directory {
    /// Takes `path`, which may exist but must not hold a run, for `run`.
    pub fn claim(path: &Path, run: &RunSpec) -> Result<Self, ClusterError> {
        let path = std::path::absolute(path).map_err(|source| unusable(path, source))?;
        let logs = path.join("logs");
        fs::create_dir_all(&logs).map_err(|source| unusable(&logs, source))?;
        let marker = path.join(RUN);
        Self::check(&path)?;
        match OpenOptions::new().write(true).create_new(true).open(&marker) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(ClusterError::Occupied(path));
            }
            Err(source) => return Err(unusable(&marker, source)),
        }
        let directory = Self { path };
        directory.write(RUN, text_of_run(run).as_bytes())?;
        Ok(directory)
    }

    /// Refuses a directory that holds a run.
    pub(crate) fn check(path: &Path) -> Result<(), ClusterError> {
        if path.join(RUN).exists() || path.join(MODEL).exists() {
            return Err(ClusterError::Occupied(path.to_path_buf()));
        }
        Ok(())
    }

    /// Takes a new directory `runs/NAME-NNN`.
    pub fn claim_new(runs: &Path, run: &RunSpec) -> Result<Self, ClusterError> {
        fs::create_dir_all(runs).map_err(|source| unusable(runs, source))?;
        let name: String =
            run.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        for number in 1.. {
            let path = runs.join(format!("{name}-{number:03}"));
            match fs::create_dir(&path) {
                Ok(()) => return Self::claim(&path, run),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(source) => return Err(unusable(&path, source)),
            }
        }
        unreachable!("the numbers do not end")
    }

    /// Undoes the claim for a run that never began. Folders that are not empty stay.
    pub(crate) fn give_up(self) {
        let _ = fs::remove_file(self.path.join(RUN)); // an error leaves what a claim would refuse
        let _ = fs::remove_dir(self.path.join("logs"));
        let _ = fs::remove_dir(self.path);
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The run's directory around this file, if it lies in one.
    pub(crate) fn around(file: &Path) -> Option<PathBuf> {
        let folder = file.parent()?;
        folder.join(RUN).is_file().then(|| folder.to_path_buf())
    }

    /// The log of the process with this label.
    pub(super) fn log(&self, label: &str) -> PathBuf {
        self.path.join("logs").join(format!("{label}.log"))
    }

    /// The path of this worker's trace. Makes the folder for traces.
    pub(crate) fn trace(&self, worker: u32) -> Result<PathBuf, ClusterError> {
        let traces = self.path.join("traces");
        fs::create_dir_all(&traces).map_err(|source| at(&traces, source))?;
        Ok(traces.join(format!("worker-{worker}.json")))
    }

    /// Writes a whole file, atomically.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ClusterError> {
        let (path, partial) = (self.path.join(name), self.path.join(format!("{name}.partial")));
        let written = fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, &path));
        let written = written.inspect_err(|_| {
            let _ = fs::remove_file(&partial); // half a file takes room
        });
        written.map_err(|source| at(&path, source))
    }

    /// Appends a text to a file of this length: all of it, or nothing. Returns `false` if the file
    /// has another length.
    pub(super) fn append_text(
        &self,
        name: &str,
        text: &str,
        length: u64,
    ) -> Result<bool, ClusterError> {
        let path = self.path.join(name);
        let append = || {
            let mut file = File::options().create(true).append(true).open(&path)?;
            if file.metadata()?.len() != length {
                return Ok(false);
            }
            let written = file.write_all(text.as_bytes()).inspect_err(|_| {
                let _ = file.set_len(length); // half a line is worse than none
            });
            written.map(|()| true)
        };
        append().map_err(|source| at(&path, source))
    }

    /// Copies the coordinator's join token to the place where another worker finds it.
    pub fn copy_token(&self, home: &Path) -> Result<(), ClusterError> {
        let (from, to) = (home.join("join.token"), self.path.join("join.token"));
        fs::copy(&from, &to).map(drop).map_err(|source| at(&to, source)) // keeps the mode, 0600
    }
}

/// The text of `run.json`.
pub(super) fn text_of_run(run: &RunSpec) -> String {
    serde_json::to_string_pretty(run).expect("a specification is plain data") + "\n"
}

/// Lines of JSON.
pub(super) fn text_of<T: Serialize>(lines: &[T]) -> String {
    let line = |line| serde_json::to_string(line).expect("a line is plain data") + "\n";
    lines.iter().map(line).collect()
}

fn unusable(path: &Path, source: io::Error) -> ClusterError {
    ClusterError::Unusable { path: path.to_path_buf(), source }
}

fn at(path: &Path, source: io::Error) -> ClusterError {
    ClusterError::File { path: path.to_path_buf(), source }
}
