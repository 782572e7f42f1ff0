//! The files of a run: its processes, its events, and the cost of each step.
//!
//! One launcher at a time has the directory of a run: it holds a lock that ends with the process,
//! however that ends.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use everstep_transport::protocol::{CheckpointSpec, RunSpec};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::Serialize;

use super::error::ClusterError;
use crate::config;

/// The directory of one run. It never holds two. It is this launcher's alone until it is dropped.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// The directory itself, locked. None where the file system has no locks.
    _lock: Option<File>,
}

/// The file that marks a directory as that of a run.
pub(super) const RUN: &str = "run.json";
/// The trained model. A directory that holds one is refused, since a new run would replace it.
const MODEL: &str = "model.safetensors";

impl Directory {
    /// Takes `path`, which may exist but must not hold a run, for `run`.
    pub fn claim(path: &Path, run: &RunSpec) -> Result<Self, ClusterError> {
        let directory = Self::claim_empty(path)?;
        directory.write_run(run)?;
        Ok(directory)
    }

    /// Takes `path` for a run that is not known yet. Until the run is written, the directory holds
    /// none that could go on.
    pub(crate) fn claim_empty(path: &Path) -> Result<Self, ClusterError> {
        let path = std::path::absolute(path).map_err(|source| unusable(path, source))?;
        let logs = path.join("logs");
        make_logs(&path).map_err(|source| unusable(&logs, source))?;
        let marker = path.join(RUN);
        Self::check(&path)?;
        match OpenOptions::new().write(true).create_new(true).open(&marker) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(ClusterError::Occupied(path));
            }
            Err(source) => return Err(unusable(&marker, source)),
        }
        Ok(Self { _lock: lock(&path)?, path })
    }

    /// Takes the directory of a run that another launcher has left, with the run in it.
    ///
    /// # Errors
    /// [`ClusterError::NoRun`] if it holds no run, and [`ClusterError::Busy`] if a launcher has it.
    pub fn reopen(path: &Path) -> Result<(Self, RunSpec), ClusterError> {
        let path = std::path::absolute(path).map_err(|source| unusable(path, source))?;
        let no_run = |why: String| ClusterError::NoRun { path: path.clone(), why };
        let text = fs::read_to_string(path.join(RUN)).map_err(|error| match error.kind() {
            ErrorKind::NotFound => no_run(format!("it has no {RUN}")),
            _ => no_run(format!("{RUN}: {error}")),
        })?;
        let run = RunSpec::from_file(text.as_bytes());
        let run = run.map_err(|error| no_run(format!("{RUN} cannot be read: {error}")))?;
        Ok((Self { _lock: lock(&path)?, path }, run))
    }

    /// Writes down the run that the directory holds.
    pub(crate) fn write_run(&self, run: &RunSpec) -> Result<(), ClusterError> {
        self.write(RUN, self.placed(run)?.to_file().as_bytes())
    }

    /// The run with the store of its checkpoints below this directory, if its path is relative.
    pub(crate) fn placed(&self, run: &RunSpec) -> Result<RunSpec, ClusterError> {
        let checkpoint = run.checkpoint.as_ref().map(|spec| self.placed_store(spec)).transpose()?;
        Ok(RunSpec { checkpoint, ..run.clone() })
    }

    /// The store of checkpoints, below this directory if its path is relative.
    pub(crate) fn placed_store(
        &self,
        spec: &CheckpointSpec,
    ) -> Result<CheckpointSpec, ClusterError> {
        if config::is_elsewhere(spec).is_none() {
            return Ok(spec.clone());
        }
        let store = self.path.join(&spec.path);
        let source = || io::Error::new(ErrorKind::InvalidInput, "the path is not UTF-8");
        let path = store.to_str().ok_or_else(|| unusable(&store, source()))?.to_string();
        Ok(CheckpointSpec { path, ..spec.clone() })
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
        let directory = Self::claim_new_empty(runs, &run.name)?;
        directory.write_run(run)?;
        Ok(directory)
    }

    /// As [`Directory::claim_new`], for a run of this name that is not known yet.
    pub(crate) fn claim_new_empty(runs: &Path, name: &str) -> Result<Self, ClusterError> {
        fs::create_dir_all(runs).map_err(|source| unusable(runs, source))?;
        let name: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        for number in 1.. {
            let path = runs.join(format!("{name}-{number:03}"));
            match fs::create_dir(&path) {
                Ok(()) => return Self::claim_empty(&path),
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

    /// Leaves a directory whose run was never known, and whose processes have ended. Its logs stay.
    /// Another launch may take it.
    pub(crate) fn forget(path: &Path) {
        // An error leaves what a claim, or a coordinator, would refuse by name.
        let _ = fs::remove_file(path.join(RUN));
        let _ = fs::remove_file(path.join("join.token"));
        let _ = fs::remove_file(path.join("script.json"));
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("coordinator-") {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Where the directory is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a run's launcher has had this directory.
    pub(crate) fn holds_run(path: &Path) -> bool {
        path.join(RUN).is_file()
    }

    /// The run's directory around this file, if it lies in one.
    pub(crate) fn around(file: &Path) -> Option<PathBuf> {
        let folder = file.parent()?;
        Self::holds_run(folder).then(|| folder.to_path_buf())
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

    /// Cuts a file to this length. Returns whether that was done.
    pub(super) fn truncate(&self, name: &str, length: u64) -> bool {
        let file = File::options().write(true).open(self.path.join(name));
        file.and_then(|file| file.set_len(length)).is_ok()
    }

    /// Puts a file in the place of another one.
    pub(super) fn replace(&self, name: &str, by: &str) -> Result<(), ClusterError> {
        let path = self.path.join(name);
        fs::rename(self.path.join(by), &path).map_err(|source| at(&path, source))
    }

    /// Removes a file, if it is there.
    pub(super) fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.path.join(name)); // an error shows when it is written
    }

    /// Copies the coordinator's join token to the place where another worker finds it.
    pub fn copy_token(&self, home: &Path) -> Result<(), ClusterError> {
        let (from, to) = (home.join("join.token"), self.path.join("join.token"));
        fs::copy(&from, &to).map(drop).map_err(|source| at(&to, source)) // keeps the mode, 0600
    }
}

/// Locks the directory for this process. The lock ends with the process, however that ends. No file
/// stays open for writing, which would keep the file system from becoming read-only.
fn lock(path: &Path) -> Result<Option<File>, ClusterError> {
    let opened = File::open(path).map_err(|source| unusable(path, source))?;
    match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(opened)),
        Err(Errno::WOULDBLOCK) => Err(ClusterError::Busy(path.to_path_buf())),
        Err(Errno::NOTSUP | Errno::NOLCK | Errno::NOSYS) => {
            let directory = path.display();
            tracing::warn!(%directory, "no locks there: start one launcher at a time");
            Ok(None)
        }
        Err(error) => Err(unusable(path, error.into())),
    }
}

/// The lines as JSON, one a line.
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

/// Makes the folder of the processes' logs in a run's directory. Other users may not read them.
pub(super) fn make_logs(run: &Path) -> io::Result<()> {
    fs::create_dir_all(run)?;
    match DirBuilder::new().mode(0o700).create(run.join("logs")) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use everstep_transport::protocol::checkpoint::OnFailure;
    use everstep_transport::protocol::exemplars;

    use super::*;

    #[test]
    fn one_launcher_at_a_time_has_the_directory_of_a_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run");
        let first = Directory::claim(&path, &exemplars::run()).expect("a new directory");
        let again = Directory::claim(&path, &exemplars::run());
        assert!(matches!(again, Err(ClusterError::Occupied(_))), "{again:?}");
        let busy = Directory::reopen(&path);
        assert!(matches!(busy, Err(ClusterError::Busy(_))), "{busy:?}");
        drop(first);
        let (_second, run) = Directory::reopen(&path).expect("its launcher has ended");
        assert_eq!(run, exemplars::run());
        assert!(Directory::reopen(&path).is_err(), "the second launcher has it now");
    }

    #[test]
    fn a_directory_without_a_run_says_what_it_lacks() {
        let folder = tempfile::tempdir().expect("a folder");
        let words = |path: &Path| Directory::reopen(path).expect_err("no run").to_string();
        assert!(words(folder.path()).contains("it has no run.json"));
        fs::write(folder.path().join(RUN), "{").expect("written");
        assert!(words(folder.path()).contains("run.json cannot be read"));
    }

    #[test]
    fn a_directory_that_waits_for_its_run_is_taken_and_holds_no_run_that_goes_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let directory = Directory::claim_new_empty(folder.path(), "my run").expect("a directory");
        let path = directory.path().to_path_buf();
        assert!(path.ends_with("my-run-001"), "{path:?}");
        let mode = fs::metadata(path.join("logs")).expect("a folder").permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "logs are for this user alone");
        let again = Directory::claim_empty(&path);
        assert!(matches!(again, Err(ClusterError::Occupied(_))), "{again:?}");
        directory.write_run(&exemplars::run()).expect("written");
        drop(directory);
        assert_eq!(Directory::reopen(&path).expect("a run").1, exemplars::run());
        fs::create_dir(path.join("coordinator-1")).expect("a folder");
        Directory::forget(&path);
        assert!(!path.join("coordinator-1").exists() && path.join("logs").exists());
        Directory::claim_empty(&path).expect("it is free again");
    }

    #[test]
    fn checkpoints_without_a_stated_place_go_to_the_run_s_own_directory() {
        let folder = tempfile::tempdir().expect("a folder");
        let (keep, keep_every, on_failure) = (3, 0, OnFailure::Continue);
        for (path, placed) in [
            (config::DEFAULT_FOLDER, folder.path().join("run/checkpoints").display().to_string()),
            ("/srv/all", "/srv/all".into()),
            ("s3://bucket/run", "s3://bucket/run".into()),
        ] {
            let path = path.to_string();
            let spec = CheckpointSpec { path, every: 5, keep, keep_every, on_failure };
            let run = RunSpec { checkpoint: Some(spec), ..exemplars::run() };
            let at = folder.path().join("run");
            drop(Directory::claim(&at, &run).expect("a new directory"));
            let (_, run) = Directory::reopen(&at).expect("a run");
            assert_eq!(run.checkpoint.expect("checkpoints").path, placed);
            fs::remove_dir_all(&at).expect("removed");
        }
    }
}
