//! The files of a run: who is there, what happened, and what each step cost.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::outcome::WorkerView;
use serde::Serialize;
use serde_json::{Value, json};

use super::error::ClusterError;
use super::naming::Naming;
use super::process::Process;

/// The directory of one run. Runs are never mixed.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
}

/// The file by which a directory is known to hold a run.
const RUN: &str = "run.json";

impl Directory {
    /// Takes `path`, which may exist but must not hold a run, for `run`.
    pub fn claim(path: &Path, run: &RunSpec) -> Result<Self, ClusterError> {
        let path = std::path::absolute(path).map_err(|source| unusable(path, source))?;
        let logs = path.join("logs");
        fs::create_dir_all(&logs).map_err(|source| unusable(&logs, source))?;
        let marker = path.join(RUN);
        match OpenOptions::new().write(true).create_new(true).open(&marker) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(ClusterError::Occupied(path));
            }
            Err(source) => return Err(unusable(&marker, source)),
        }
        let directory = Self { path };
        directory.write_run(run)?;
        Ok(directory)
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

    /// Undoes the claim for a run that never began: what is not empty stays.
    pub(crate) fn give_up(self) {
        let _ = fs::remove_file(self.path.join(RUN)); // an error leaves what a claim would refuse
        let _ = fs::remove_dir(self.path.join("logs"));
        let _ = fs::remove_dir(self.path);
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `run.json`.
    pub(super) fn write_run(&self, run: &RunSpec) -> Result<(), ClusterError> {
        let text = serde_json::to_string_pretty(run).expect("a specification is plain data");
        self.write(RUN, format!("{text}\n").as_bytes())
    }

    /// Writes a whole file, atomically.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ClusterError> {
        let (path, partial) = (self.path.join(name), self.path.join(format!("{name}.partial")));
        let written = fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, &path));
        written.map_err(|source| at(&path, source))
    }

    /// Appends whole lines of JSON.
    pub fn append<T: Serialize>(&self, name: &str, lines: &[T]) -> Result<(), ClusterError> {
        let path = self.path.join(name);
        let mut text = String::new();
        for line in lines {
            text += &serde_json::to_string(line).expect("a line is plain data");
            text.push('\n');
        }
        let file = File::options().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|source| at(&path, source))
    }

    /// Copies the coordinator's join token to where another worker finds it.
    pub fn copy_token(&self, home: &Path) -> Result<(), ClusterError> {
        let (from, to) = (home.join("join.token"), self.path.join("join.token"));
        fs::copy(&from, &to).map(drop).map_err(|source| at(&to, source)) // keeps the mode, 0600
    }

    /// Writes `cluster.json`.
    pub fn write_view(
        &self,
        coordinator: &Process,
        workers: &[Process],
        views: &[WorkerView],
    ) -> Result<(), ClusterError> {
        let view = |view: &WorkerView| {
            let naming = workers.iter().map(Process::naming).find(|our| our.name == view.name);
            json!({
                "id": view.worker, "pid": naming.map(|naming| naming.pid), "address": view.address,
                "rank": view.rank, "state": view.state, "name": view.name,
                "label": naming.map(|naming| &naming.label),
            })
        };
        let unregistered = workers
            .iter()
            .filter(|process| !views.iter().any(|view| view.name == process.naming().name));
        let starting = unregistered.map(|process| {
            let Naming { label, pid, name, .. } = process.naming();
            json!({
                "id": null, "pid": pid, "address": process.address(), "rank": null,
                "state": "starting", "name": name, "label": label,
            })
        });
        let listed: Vec<Value> = views.iter().map(view).chain(starting).collect();
        let cluster = json!({
            "coordinators": [{
                "id": 1, "pid": coordinator.naming().pid, "address": coordinator.address(),
                "api": null, "leader": true,
            }],
            "workers": listed,
        });
        self.write("cluster.json", format!("{cluster:#}\n").as_bytes())
    }
}

fn unusable(path: &Path, source: io::Error) -> ClusterError {
    ClusterError::Unusable { path: path.to_path_buf(), source }
}

fn at(path: &Path, source: io::Error) -> ClusterError {
    ClusterError::File { path: path.to_path_buf(), source }
}
