//! The workers' processes that this launcher started: the living ones, the ended ones, and those to
//! start next.
//!
//! In: the settings of a worker, and the passing of time. Out: which processes have ended, and how.
//! This module does not know whether a worker takes part in the run: only the coordinator can say.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use everstep_kernels::device::DeviceChoice;
use everstep_transport::protocol::reason::ProcessExit;
use everstep_transport::protocol::{NodeName, RunSpec, WorkerId};
use serde_json::{Map, Value, json};

use super::error::ClusterError;
use super::naming::Naming;
use super::process::{Daemons, Process, ProcessEnd, Starting, WorkerStart};
use super::{ClusterOptions, Directory};
use crate::failure::Failure;
use crate::script::gpus;

/// The workers' processes of this launcher.
pub(super) struct Workers {
    living: Vec<Process>,
    starting: Vec<Starting>,
    gone: Vec<EndedProcess>,
    /// When to start the successors of workers that died.
    due: Vec<Instant>,
    settings: WorkerSettings,
    /// The run that scripts must state: that of the first one, unless the settings name it. None
    /// if workers are no scripts.
    statement: Option<RunSpec>,
    /// The greatest number of a worker that an earlier launcher of the run has started.
    earlier: u32,
    /// How many workers were started.
    started: u32,
    respawned: u32,
    /// How many workers died young in a row.
    young_deaths: u32,
}

/// The settings of all workers.
struct WorkerSettings {
    daemons: Daemons,
    coordinators: Vec<SocketAddr>,
    device: DeviceChoice,
    /// The numbers of the devices of this machine among which the choice falls.
    indices: Vec<usize>,
    threads: u32,
    overlap: bool,
    shares_memory: bool,
    trace: bool,
    respawn: bool,
}

/// A process that has ended.
#[derive(Clone, Debug)]
pub(super) struct EndedProcess {
    pub(super) naming: Naming,
    /// Where it listened, if that is known.
    pub(super) address: Option<SocketAddr>,
    /// How the process ended: its exit code or its signal.
    pub(super) how: ProcessExit,
}

/// A worker that dies before this age has hardly had the time to join. Its successor may do the
/// same, again and again. A worker that lives longer spaces the attempts by itself.
const EARLY_DEATH_AGE: Duration = Duration::from_millis(500);
/// The pause before the first successor of workers that died young. Each next one is twice as long.
const WORKER_RESTART_BACKOFF: Duration = Duration::from_millis(100);
/// The longest pause before a successor.
const WORKER_RESTART_BACKOFF_MAX: Duration = Duration::from_secs(2);

impl Workers {
    /// A launcher that has started no worker yet.
    pub(super) fn new(
        coordinators: Vec<SocketAddr>,
        daemons: Daemons,
        options: &ClusterOptions,
    ) -> Self {
        let ClusterOptions { overlap, shares_memory, trace, respawn, .. } = *options;
        let (device, indices) = match &options.script {
            None => (options.device.clone(), options.devices.usable(&options.device)),
            Some(script) => {
                let device = script.device.clone().unwrap_or_default();
                let indices = gpus::in_turn(&device, &options.devices);
                (device, indices)
            }
        };
        let settings = WorkerSettings {
            daemons,
            coordinators,
            device,
            indices,
            threads: options.threads_of_worker(),
            overlap,
            shares_memory,
            trace,
            respawn,
        };
        let (living, starting, gone, due) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (earlier, started, respawned, young_deaths) = (0, 0, 0, 0);
        let script = options.script.as_ref();
        let statement = script.and_then(|script| script.stated.as_deref().cloned());
        Self {
            living,
            starting,
            gone,
            due,
            settings,
            statement,
            earlier,
            started,
            respawned,
            young_deaths,
        }
    }

    /// The processes of an earlier launcher have ended. New workers take the numbers after theirs.
    pub(super) fn after(mut self, earlier: Vec<EndedProcess>) -> Self {
        let number =
            |gone: &EndedProcess| gone.naming.label.rsplit_once('-')?.1.parse::<u32>().ok();
        self.earlier = earlier.iter().filter_map(number).max().unwrap_or(0);
        self.gone.extend(earlier);
        self
    }

    /// Starts the first workers. Returns when all of them listen.
    pub(super) async fn start(
        &mut self,
        directory: &Directory,
        count: u32,
    ) -> Result<(), ClusterError> {
        for _ in 0..count {
            self.add(directory, &[])?;
        }
        for worker in std::mem::take(&mut self.starting) {
            let process = worker.listening().await?;
            self.hear(&process)?;
            self.living.push(process);
        }
        Ok(())
    }

    /// The run that the scripts of the workers state. None if workers are no scripts.
    pub(super) fn statement(&self) -> Option<&RunSpec> {
        self.statement.as_ref()
    }

    /// Hears the run that a script states. The first one counts, if it is not known before.
    ///
    /// # Errors
    /// If the script states another run than the known one.
    fn hear(&mut self, process: &Process) -> Result<(), ClusterError> {
        let Some(stated) = process.stated() else { return Ok(()) };
        let first = self.statement.get_or_insert_with(|| stated.clone());
        match difference(&json!(first), &json!(stated), "run") {
            None => Ok(()),
            Some(difference) => Err(process.contradiction(&difference)),
        }
    }

    /// The unexpected end of a process after its run was complete: a script goes on after it.
    pub(super) fn late_failure(&mut self) -> Option<ClusterError> {
        let ends = self.living.iter_mut().filter_map(|process| Some((process.end()?, process)));
        let failed = ends.filter(|(end, _)| !end.expected);
        failed
            .map(|(end, process)| process.failure(end))
            .next()
            .map(|it| ClusterError::Afterwards(Box::new(it)))
    }

    /// Starts one more, with these variables in its environment.
    pub(super) fn add(
        &mut self,
        directory: &Directory,
        environment: &[(&str, &str)],
    ) -> Result<(), ClusterError> {
        self.started += 1;
        let worker = WorkerStart {
            number: self.earlier + self.started,
            coordinators: &self.settings.coordinators,
            device: self
                .settings
                .device
                .of_worker(self.started as usize - 1, &self.settings.indices),
            threads: self.settings.threads,
            overlap: self.settings.overlap,
            shares_memory: self.settings.shares_memory,
            trace: self.settings.trace,
            daemons: &self.settings.daemons,
            environment,
        };
        self.starting.push(Process::worker(directory, &worker)?);
        Ok(())
    }

    /// Supervises the processes: notices ends, and starts successors if the settings ask for them.
    /// Returns unexpected ends as errors.
    pub(super) fn supervise(&mut self, directory: &Directory) -> Vec<ClusterError> {
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

    /// Starts no more successors of workers that die.
    pub(super) fn stop_respawning(&mut self) {
        self.settings.respawn = false;
        self.due.clear();
    }

    /// Whether all of them have ended.
    pub(super) fn are_gone(&mut self) -> bool {
        self.living.iter_mut().all(|process| process.end().is_some())
    }

    /// Notes the id under which a process was registered.
    pub(super) fn registered(&mut self, name: &NodeName, id: WorkerId) {
        if let Some(process) = self.living.iter_mut().find(|p| p.naming().name == *name) {
            process.registered(id);
        }
    }

    /// The programs that the processes run.
    pub(super) fn daemons(&self) -> &Daemons {
        &self.settings.daemons
    }

    /// The processes that listen.
    pub(super) fn living(&self) -> &[Process] {
        &self.living
    }

    /// The processes that have ended.
    pub(super) fn gone(&self) -> &[EndedProcess] {
        &self.gone
    }

    /// The names of all processes, including ended ones.
    pub(super) fn namings(&self) -> impl Iterator<Item = &Naming> {
        let gone = self.gone.iter().map(|gone| &gone.naming);
        self.living.iter().map(Process::naming).chain(gone)
    }

    /// How many workers were started in place of a dead one.
    pub(super) fn respawned(&self) -> u32 {
        self.respawned
    }

    /// Takes up processes that have begun to listen. Returns the errors of those that never will.
    fn take_up(&mut self) -> Vec<ClusterError> {
        let mut failures = Vec::new();
        for starting in std::mem::take(&mut self.starting) {
            match starting.poll() {
                Err(starting) => self.starting.push(starting),
                Ok(Ok(process)) => match self.hear(&process) {
                    Ok(()) => self.living.push(process),
                    // Its successor would state the same. It ends here, as it is dropped.
                    Err(error) => tracing::error!("{}", Failure::from(error)),
                },
                Ok(Err(error)) => {
                    tracing::warn!(%error, "a worker did not start");
                    self.succeed(Duration::ZERO);
                    failures.push(error);
                }
            }
        }
        failures
    }

    /// Files a process that has ended. Returns its end as an error if it was unexpected.
    fn bury(&mut self, process: &Process, end: ProcessEnd) -> Option<ClusterError> {
        let (naming, address) = (process.naming().clone(), Some(process.address()));
        self.gone.push(EndedProcess { naming, address, how: end.how });
        if end.expected {
            return None;
        }
        self.succeed(process.age());
        Some(process.failure(end))
    }

    /// Schedules the successor of a worker that died at this age.
    fn succeed(&mut self, age: Duration) {
        self.young_deaths = if age < EARLY_DEATH_AGE { self.young_deaths + 1 } else { 0 };
        if self.settings.respawn {
            self.due.push(Instant::now() + pause(self.young_deaths));
        }
    }
}

/// The first value in which two statements of a run differ, in words.
fn difference(first: &Value, other: &Value, key: &str) -> Option<String> {
    if let (Value::Object(first), Value::Object(other)) = (first, other) {
        let names: BTreeSet<_> = first.keys().chain(other.keys()).collect();
        let of = |map: &Map<String, Value>, name: &str| map.get(name).cloned().unwrap_or_default();
        return names.into_iter().find_map(|name| {
            difference(&of(first, name), &of(other, name), &format!("{key}.{name}"))
        });
    }
    let random = ". A script must state the same run in every process: seed whatever it draws \
                  before everstep.Run, such as the weights of its model (torch.manual_seed, \
                  jax.random.key)";
    (first != other).then(|| format!("{key} is {other}, and it was {first} before{random}"))
}

/// The pause before a successor, after this many young deaths in a row. The first is an accident.
fn pause(young_deaths: u32) -> Duration {
    match young_deaths {
        0..=1 => Duration::ZERO,
        more => (WORKER_RESTART_BACKOFF * (1 << (more - 2).min(8))).min(WORKER_RESTART_BACKOFF_MAX),
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::exemplars;

    use super::super::options::Program;
    use super::*;

    #[test]
    fn workers_of_a_resumed_run_have_numbers_of_their_own() {
        let program = Program { executable: "everstep".into(), arguments: Vec::new() };
        let daemons = Daemons { program, script: None, by_hand: false };
        let workers = Workers::new(Vec::new(), daemons, &ClusterOptions::new(1));
        let ended = |label: &str| {
            let name = NodeName::parse("worker-a").expect("a name");
            let naming = Naming { label: label.into(), pid: 7, name, id: None };
            EndedProcess { naming, address: None, how: ProcessExit::Unknown }
        };
        let workers = workers.after(["worker-3", "worker-12", "odd"].map(ended).into());
        assert_eq!((workers.earlier, workers.gone().len(), workers.living().len()), (12, 3, 0));
    }

    #[test]
    fn two_statements_of_a_run_differ_by_the_name_of_a_key() {
        let first = exemplars::run();
        let differs = |other: &RunSpec| difference(&json!(first), &json!(other), "run");
        assert_eq!(differs(&first), None);
        let mut other = first.clone();
        other.optimizer.learning_rate = 7.0;
        let told = differs(&other).expect("they differ");
        assert!(told.starts_with("run.optimizer.learning_rate is 7.0, and it was "), "{told}");
        other = RunSpec { give_up_after_ms: Some(20_000), ..first.clone() };
        let told = differs(&other).expect("one states what the other does not");
        assert!(told.starts_with("run.give_up_after_ms is 20000, and it was null"), "{told}");
    }

    #[test]
    fn a_successor_waits_the_longer_the_more_died_young_and_never_above_two_seconds() {
        let pauses: Vec<_> = (0..8).map(|deaths| pause(deaths).as_millis()).collect();
        assert_eq!(pauses, [0, 0, 100, 200, 400, 800, 1_600, 2_000]);
        assert_eq!(pause(u32::MAX), WORKER_RESTART_BACKOFF_MAX);
    }
}
