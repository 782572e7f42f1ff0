//! The workers' processes that this launcher started: who lives, who has ended, who comes next.
//!
//! In: what starts a worker, and the passing of time. Out: which processes have ended, and how.
//! Whether a worker takes part in the run is not known here: that is the coordinator's to say.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use everstep_kernels::device::{self, DeviceChoice};
use everstep_transport::protocol::{NodeName, WorkerId};

use super::error::ClusterError;
use super::naming::Naming;
use super::process::{Daemons, End, Process, Starting, WorkerStart};
use super::{Directory, Options};

/// The processes.
pub(super) struct Workers {
    living: Vec<Process>,
    starting: Vec<Starting>,
    gone: Vec<Gone>,
    /// When the successors of workers that died are to be started.
    due: Vec<Instant>,
    settings: Settings,
    /// How many were started.
    started: u32,
    respawned: u32,
    /// How many died young in a row.
    young_deaths: u32,
}

/// How workers are started.
struct Settings {
    daemons: Daemons,
    coordinators: Vec<SocketAddr>,
    device: DeviceChoice,
    /// The GPUs of this machine that can be used.
    gpus: Vec<usize>,
    overlap: bool,
    trace: bool,
    respawn: bool,
}

/// A process that has ended.
#[derive(Clone, Debug)]
pub(super) struct Gone {
    /// What it was called.
    pub(super) naming: Naming,
    /// How it ended.
    pub(super) how: String,
}

/// A worker that dies before this age has hardly had the time to join: its successor may do the
/// same, again and again. One that lives longer takes that time by itself.
const YOUNG: Duration = Duration::from_millis(500);
/// How long the first successor of workers that died young waits; each next one twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest that a successor waits.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

impl Workers {
    /// Starts the first workers; returns when all of them listen.
    pub(super) async fn start(
        directory: &Directory,
        coordinators: Vec<SocketAddr>,
        daemons: Daemons,
        options: &Options,
    ) -> Result<Self, ClusterError> {
        let Options { device, overlap, trace, respawn, .. } = *options;
        let gpus = match device {
            DeviceChoice::Cpu => Vec::new(),
            _ => device::usable_gpus(),
        };
        let settings = Settings { daemons, coordinators, device, gpus, overlap, trace, respawn };
        let (living, starting, gone, due) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (started, respawned, young_deaths) = (0, 0, 0);
        let mut workers =
            Self { living, starting, gone, due, settings, started, respawned, young_deaths };
        for _ in 0..options.workers {
            workers.add(directory, &[])?;
        }
        for worker in std::mem::take(&mut workers.starting) {
            workers.living.push(worker.listening().await?);
        }
        Ok(workers)
    }

    /// Starts one more, with these variables in its environment.
    pub(super) fn add(
        &mut self,
        directory: &Directory,
        environment: &[(&str, &str)],
    ) -> Result<(), ClusterError> {
        self.started += 1;
        let worker = WorkerStart {
            number: self.started,
            coordinators: &self.settings.coordinators,
            device: self.settings.device.of_worker(self.started as usize - 1, &self.settings.gpus),
            overlap: self.settings.overlap,
            trace: self.settings.trace,
            daemons: &self.settings.daemons,
            environment,
        };
        self.starting.push(Process::worker(directory, &worker)?);
        Ok(())
    }

    /// Looks after the processes: notices who has ended, and starts successors where that is
    /// wanted. Returns the ends that nobody asked for, as errors.
    pub(super) fn attend(&mut self, directory: &Directory) -> Vec<ClusterError> {
        let mut failures = self.take_up();
        for mut process in std::mem::take(&mut self.living) {
            match process.end() {
                None => self.living.push(process),
                Some(end) => failures.extend(self.bury(&process, end)),
            }
        }
        let now = Instant::now();
        let due: Vec<_> = self.due.extract_if(.., |at| *at <= now).collect();
        for _ in due {
            match self.add(directory, &[]) {
                Ok(()) => self.respawned += 1,
                Err(error) => {
                    tracing::warn!(%error, "a worker could not be started");
                    self.succeed(Duration::ZERO);
                }
            }
        }
        failures
    }

    /// Whether all of them have ended.
    pub(super) fn are_gone(&mut self) -> bool {
        self.living.iter_mut().all(|process| process.end().is_some())
    }

    /// Takes note of the id that a process was registered under.
    pub(super) fn registered(&mut self, name: &NodeName, id: WorkerId) {
        if let Some(process) = self.living.iter_mut().find(|p| p.naming().name == *name) {
            process.registered(id);
        }
    }

    /// Those that listen.
    pub(super) fn living(&self) -> &[Process] {
        &self.living
    }

    /// Those that have ended.
    pub(super) fn gone(&self) -> &[Gone] {
        &self.gone
    }

    /// What they are called, those that have ended too.
    pub(super) fn namings(&self) -> impl Iterator<Item = &Naming> {
        let gone = self.gone.iter().map(|gone| &gone.naming);
        self.living.iter().map(Process::naming).chain(gone)
    }

    /// How many took the place of one that died.
    pub(super) fn respawned(&self) -> u32 {
        self.respawned
    }

    /// Takes up those that have begun to listen; returns why others never will.
    fn take_up(&mut self) -> Vec<ClusterError> {
        let mut failures = Vec::new();
        for starting in std::mem::take(&mut self.starting) {
            match starting.poll() {
                Err(starting) => self.starting.push(starting),
                Ok(Ok(process)) => self.living.push(process),
                Ok(Err(error)) => {
                    tracing::warn!(%error, "a worker did not start");
                    self.succeed(Duration::ZERO);
                    failures.push(error);
                }
            }
        }
        failures
    }

    /// Files a process that has ended; returns its end as an error if nobody asked for it.
    fn bury(&mut self, process: &Process, end: End) -> Option<ClusterError> {
        self.gone.push(Gone { naming: process.naming().clone(), how: end.how.clone() });
        if end.expected {
            return None;
        }
        self.succeed(process.age());
        Some(process.failure(end))
    }

    /// Sees to the successor of a worker that died at this age.
    fn succeed(&mut self, age: Duration) {
        self.young_deaths = if age < YOUNG { self.young_deaths + 1 } else { 0 };
        if self.settings.respawn {
            self.due.push(Instant::now() + pause(self.young_deaths));
        }
    }
}

/// How long a successor waits after so many young deaths in a row: one is an accident.
fn pause(young_deaths: u32) -> Duration {
    match young_deaths {
        0..=1 => Duration::ZERO,
        more => (FIRST_PAUSE * (1 << (more - 2).min(8))).min(LONGEST_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_waits_the_longer_the_more_died_young_and_never_above_two_seconds() {
        let pauses: Vec<_> = (0..8).map(|deaths| pause(deaths).as_millis()).collect();
        assert_eq!(pauses, [0, 0, 100, 200, 400, 800, 1_600, 2_000]);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }
}
