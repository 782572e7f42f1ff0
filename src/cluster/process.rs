//! One daemon of the local cluster, as a child process.
//!
//! `output` reads what a process prints and logs.

mod output;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use everstep_coordinator::http;
use everstep_kernels::device::DeviceChoice;
use everstep_transport::protocol::reason::ProcessExit;
use everstep_transport::protocol::{NodeName, RunSpec, WorkerId};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use super::error::ClusterError;
use super::naming::Naming;
use super::options::{Program, Script};
use super::{ClusterOptions, Directory};
use crate::failure::Exit;
use crate::script::gpus;
pub use output::traceback;
use output::{first_line, pass_on, tail};

/// A daemon that listens. It is killed when this is dropped.
pub struct Process {
    child: Killed,
    naming: Naming,
    log: PathBuf,
    address: SocketAddr,
    api: Option<String>,
    /// The run that a script states.
    stated: Option<Box<RunSpec>>,
    began: Instant,
    /// The launcher's end of a script's stdin, as long as the process is wanted.
    _control: Option<UnixStream>,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessEnd {
    /// Whether the end is no error: the run was over, or the worker has drained.
    pub expected: bool,
    /// How it ended: its exit code or its signal.
    pub how: ProcessExit,
}

/// A daemon that has started and does not listen yet.
pub struct Starting {
    child: Killed,
    label: String,
    log: PathBuf,
    line: oneshot::Receiver<String>,
    began: Instant,
    /// How long it may take to listen.
    listens_within: Duration,
    control: Option<UnixStream>,
}

/// The program that daemons run, and whether the launcher looks after them.
#[derive(Clone, Debug)]
pub struct Daemons {
    /// The program that each process runs.
    pub program: Program,
    /// The script that workers run instead.
    pub script: Option<Script>,
    /// The launcher does not look after them: see [`super::ClusterOptions::by_hand`].
    pub by_hand: bool,
}

/// The settings of a coordinator's process.
pub struct CoordinatorStart<'a> {
    /// The coordinator's number in this launcher, from 1.
    pub number: u32,
    /// The directory for its files.
    pub home: &'a Path,
    /// The origin of its state.
    pub origin: CoordinatorOrigin<'a>,
    /// The settings of all daemons.
    pub daemons: &'a Daemons,
}

/// The origin of a coordinator's state.
#[derive(Clone, Debug)]
pub enum CoordinatorOrigin<'a> {
    /// It founds a cluster, and listens at any address.
    Bootstrap,
    /// It joins the founder's cluster, and listens at any address.
    Join {
        /// The file that admits coordinators.
        token: &'a Path,
        /// The address of the first coordinator.
        founder: SocketAddr,
    },
    /// It goes on with the content of its directory, at its old address.
    Again {
        /// The address for links.
        address: SocketAddr,
        /// The address for HTTP. None: no HTTP API.
        api: Option<&'a str>,
    },
}

/// The settings of a worker's process.
pub struct WorkerStart<'a> {
    /// The worker's number in this launcher, from 1.
    pub number: u32,
    /// The addresses of all coordinators.
    pub coordinators: &'a [SocketAddr],
    /// The device on which it computes.
    pub device: DeviceChoice,
    /// The threads with which it computes, unless it is a script.
    pub threads: u32,
    /// Overlap communication with compute.
    pub overlap: bool,
    /// Exchange tensors with workers of this host through shared memory.
    pub shares_memory: bool,
    /// Write a trace of its stages.
    pub trace: bool,
    /// The settings of all daemons.
    pub daemons: &'a Daemons,
    /// Environment variables for this worker alone.
    pub environment: &'a [(&'a str, &'a str)],
}

/// A child process that is killed when this is dropped.
struct Killed(Child);

impl Killed {
    fn kill(&mut self) {
        let _ = self.0.kill(); // an error means that it has ended
        let _ = self.0.wait();
    }

    fn end(&mut self) -> Option<ProcessEnd> {
        let status = self.0.try_wait().ok().flatten()?;
        let expected = status.success() || status.code() == Some(Exit::Terminated as i32);
        Some(ProcessEnd { expected, how: exit_of(status) })
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The line that a daemon prints when it begins to listen.
#[derive(Deserialize)]
struct Ready {
    /// A worker's name. A coordinator's name is its label.
    name: Option<String>,
    address: SocketAddr,
    /// A coordinator's HTTP API.
    api: Option<String>,
    /// The run that a script states.
    run: Option<Box<RunSpec>>,
}

/// How long a daemon may take to listen.
const DAEMON_LISTEN_TIMEOUT: Duration = Duration::from_secs(20);
/// How often the launcher looks whether a process has ended before it listens.
const EARLY_END_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The argument that tells a daemon to read its token from a file. The path may have any bytes.
fn token_at(path: &Path) -> OsString {
    let mut word = OsString::from("@");
    word.push(path);
    word
}

impl Process {
    /// Starts the process of a coordinator.
    pub fn coordinator(
        directory: &Directory,
        coordinator: &CoordinatorStart<'_>,
    ) -> Result<Starting, ClusterError> {
        let mut command = coordinator.daemons.command("coordinator");
        command.arg("--dir").arg(coordinator.home);
        match &coordinator.origin {
            CoordinatorOrigin::Bootstrap => command.args(["--bootstrap", "--ephemeral"]),
            CoordinatorOrigin::Join { token, founder } => {
                command.arg("--join").arg(token_at(token));
                command.args(["--coordinators", &founder.to_string()])
            }
            CoordinatorOrigin::Again { address, api } => {
                command.args(["--listen", &address.to_string()]);
                let api = api.map(|api| api.trim_start_matches("http://"));
                // Another process may have the default port by now. Then the coordinator takes any
                // other.
                let api = api.filter(|api| *api != http::DEFAULT.to_string());
                command.args(api.iter().flat_map(|api| ["--http", api]))
            }
        };
        start(command, directory, &format!("coordinator-{}", coordinator.number))
    }

    /// Starts the process of a worker.
    pub fn worker(
        directory: &Directory,
        worker: &WorkerStart<'_>,
    ) -> Result<Starting, ClusterError> {
        let label = format!("worker-{}", worker.number);
        if let Some(script) = &worker.daemons.script {
            return start_script(script, worker, directory, &label);
        }
        let mut command = worker.daemons.command("worker");
        command.args(["--coordinators", &joined(worker.coordinators)]);
        command.arg("--join").arg(token_at(&directory.path().join("join.token")));
        command.arg("--dir").arg(directory.path());
        command.arg("--device").arg(worker.device.to_string());
        command.arg("--threads").arg(worker.threads.to_string());
        if !worker.overlap {
            command.arg("--no-overlap");
        }
        if !worker.shares_memory {
            command.arg("--no-shared-memory");
        }
        if worker.trace {
            command.arg("--trace").arg(directory.trace(worker.number)?);
        }
        command.envs(worker.environment.iter().copied());
        start(command, directory, &label)
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of its HTTP API, if it has one.
    pub fn api(&self) -> Option<&str> {
        self.api.as_deref()
    }

    /// The run that it has stated. None if it is no script.
    pub fn stated(&self) -> Option<&RunSpec> {
        self.stated.as_deref()
    }

    /// The error for a process whose script states another run than the one that is trained.
    pub fn contradiction(&self, difference: &str) -> ClusterError {
        let (process, log) = self.place();
        let how = "states another run than the one that is trained".to_string();
        ClusterError::Process { process, how, why: Some(difference.into()), log }
    }

    /// The names of the process for people and for the coordinators.
    pub fn naming(&self) -> &Naming {
        &self.naming
    }

    /// Notes the id under which it was registered.
    pub fn registered(&mut self, id: WorkerId) {
        self.naming.id = Some(id);
    }

    /// Its name for the user, and its log.
    pub fn place(&self) -> (String, PathBuf) {
        (self.naming.to_string(), self.log.clone())
    }

    /// Whether it still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.0.try_wait(), Ok(None))
    }

    /// How it ended. None while it runs.
    pub fn end(&mut self) -> Option<ProcessEnd> {
        self.child.end()
    }

    /// The time since its start.
    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// The error for an end that comes too early.
    pub fn failure(&self, end: ProcessEnd) -> ClusterError {
        let (process, log) = self.place();
        // A killed process had no time to give a reason.
        let why = tail(&self.log).filter(|_| end.how != ProcessExit::KILLED);
        ClusterError::Process { process, how: end.how.to_string(), why, log }
    }

    /// Kills it, and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill();
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        // An error means that it has ended.
        let _ = kill_process(Pid::from_child(&self.child.0), Signal::TERM);
    }
}

impl Starting {
    /// Returns when it listens.
    pub async fn listening(mut self) -> Result<Process, ClusterError> {
        loop {
            match tokio::time::timeout(EARLY_END_POLL_INTERVAL, &mut self.line).await {
                Ok(line) => return self.ready(line.ok().as_deref()),
                Err(_) if self.is_hopeless() => return self.ready(None),
                Err(_) => {}
            }
        }
    }

    /// Whether it has ended, or takes too long. A child of its own may hold its stdin open.
    fn is_hopeless(&mut self) -> bool {
        self.began.elapsed() > self.listens_within || self.child.end().is_some()
    }

    /// The process if it listens by now, or the reason why it never will. Else returns itself.
    pub fn poll(mut self) -> Result<Result<Process, ClusterError>, Self> {
        match self.line.try_recv() {
            Ok(line) => Ok(self.ready(Some(&line))),
            Err(TryRecvError::Closed) => Ok(self.ready(None)),
            Err(TryRecvError::Empty) if self.is_hopeless() => Ok(self.ready(None)),
            Err(TryRecvError::Empty) => Err(self),
        }
    }

    fn ready(mut self, line: Option<&str>) -> Result<Process, ClusterError> {
        let ready = line.and_then(|line| serde_json::from_str::<Ready>(line).ok());
        let name = |ready: &Ready| NodeName::parse(ready.name.as_ref().unwrap_or(&self.label));
        let named = ready.and_then(|ready| Some((name(&ready)?, ready)));
        let Some((name, Ready { address, api, run, .. })) = named else {
            return Err(self.failure());
        };
        let Self { child, label, log, began, control, .. } = self;
        let naming = Naming { label, pid: child.0.id(), name, id: None };
        Ok(Process { child, naming, log, address, api, stated: run, began, _control: control })
    }

    fn failure(&mut self) -> ClusterError {
        // Its output has ended, so the process will end soon.
        let deadline = Instant::now() + Duration::from_secs(1);
        let mut end = None;
        while end.is_none() && Instant::now() < deadline {
            end = self.child.end();
            thread::sleep(Duration::from_millis(5));
        }
        let how = match end {
            Some(end) if self.control.is_some() && end.expected => {
                format!("{}, and its script has trained nothing: it has no everstep.Run", end.how)
            }
            Some(end) => end.how.to_string(),
            None => "does not listen in time".into(),
        };
        let process = format!("{} (pid {})", self.label, self.child.0.id());
        ClusterError::Process { process, how, why: tail(&self.log), log: self.log.clone() }
    }
}

impl Daemons {
    /// Those of a cluster with these options. By default they run the program of this process.
    pub fn of(options: &ClusterOptions) -> Result<Self, ClusterError> {
        let own = || Program::own().map_err(ClusterError::Runtime);
        let program = options.program.clone().map_or_else(own, Ok)?;
        Ok(Self { program, script: options.script.clone(), by_hand: options.by_hand })
    }

    /// The command that starts a daemon with this verb, without its other flags.
    fn command(&self, verb: &str) -> Command {
        let Program { executable, arguments } = &self.program;
        let mut command = Command::new(executable);
        without_own_variables(&mut command);
        command.args(arguments);
        if self.by_hand {
            command.args(["leash", &std::process::id().to_string()]).arg(executable);
            command.args(arguments).arg(verb);
        } else {
            command.args([verb, "--supervised"]);
        }
        command
    }
}

impl Script {
    /// The command that starts a process of the script, without what makes it a worker.
    pub(crate) fn process(&self) -> Command {
        let mut command = Command::new(&self.interpreter);
        without_own_variables(&mut command);
        command.args(&self.command).envs(self.environment());
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command
    }
}

fn start(
    mut command: Command,
    directory: &Directory,
    label: &str,
) -> Result<Starting, ClusterError> {
    command.stdin(Stdio::piped());
    let (mut child, log) = spawn(command, directory, label)?;
    let stdout = child.0.stdout.take().expect("stdout is piped");
    let (label, line) = (label.to_string(), first_line(stdout));
    let (began, listens_within, control) = (Instant::now(), DAEMON_LISTEN_TIMEOUT, None);
    Ok(Starting { child, label, log, line, began, listens_within, control })
}

/// Starts the script of a worker. Its stdin is a socket: there it says that it listens, and which
/// run it trains. Its stdout is the user's.
fn start_script(
    script: &Script,
    worker: &WorkerStart<'_>,
    directory: &Directory,
    label: &str,
) -> Result<Starting, ClusterError> {
    let (control, theirs) = UnixStream::pair().map_err(ClusterError::Runtime)?;
    let mut command = script.process();
    command.env("EVERSTEP_COORDINATORS", joined(worker.coordinators));
    command.env("EVERSTEP_JOIN", token_at(&directory.path().join("join.token")));
    command.env("EVERSTEP_DIR", directory.path()).env("EVERSTEP_CONTROL_FD", "0");
    if worker.trace {
        command.env("EVERSTEP_TRACE", directory.trace(worker.number)?);
    }
    command.envs(script.device.as_ref().and_then(|_| gpus::visible_to(&worker.device)));
    command.envs(worker.environment.iter().copied()).stdin(OwnedFd::from(theirs));
    let (mut child, log) = spawn(command, directory, label)?;
    let stdout = child.0.stdout.take().expect("stdout is piped");
    let (label, prefix) = (label.to_string(), format!("{label}: "));
    let stdout = BufReader::new(stdout);
    match script.to_stderr {
        true => thread::spawn(move || pass_on(stdout, io::stderr(), &prefix)),
        false => thread::spawn(move || pass_on(stdout, io::stdout(), &prefix)),
    };
    let line = first_line(control.try_clone().map_err(ClusterError::Runtime)?);
    // A script may read much data before it has a run. The user ends what takes too long.
    let (began, listens_within, control) = (Instant::now(), Duration::MAX, Some(control));
    Ok(Starting { child, label, log, line, began, listens_within, control })
}

/// Starts a process that writes its log, and that no key of the launcher's terminal reaches.
fn spawn(
    mut command: Command,
    directory: &Directory,
    label: &str,
) -> Result<(Killed, PathBuf), ClusterError> {
    let log = directory.log(label);
    // The folder may have been moved away with all its content.
    let folder = log.parent().map_or(Ok(()), fs::create_dir_all);
    folder.map_err(|source| ClusterError::File { path: log.clone(), source })?;
    // A process that starts again appends to its log.
    let file = File::options().create(true).append(true).open(&log);
    let file = file.map_err(|source| ClusterError::File { path: log.clone(), source })?;
    // A group of its own: Ctrl-C reaches the launcher alone, which then ends the others in order.
    command.stdout(Stdio::piped()).stderr(file).process_group(0);
    let child = Killed(command.spawn().map_err(ClusterError::Runtime)?);
    Ok((child, log))
}

/// The daemons get all their flags from the launcher, and none from its environment.
fn without_own_variables(command: &mut Command) {
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if name.starts_with("EVERSTEP_") && !name.starts_with("EVERSTEP_LOG") {
            command.env_remove(&variable);
        }
    }
}

/// Addresses in the form of flags.
pub fn joined(addresses: &[SocketAddr]) -> String {
    let addresses: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
    addresses.join(",")
}

/// The end of a process with this status. It displays itself as words: "ended with exit code 1".
pub(crate) fn exit_of(status: ExitStatus) -> ProcessExit {
    match (status.code(), status.signal()) {
        (_, Some(signal)) => ProcessExit::Signal(signal),
        (Some(code), _) => ProcessExit::Code(code),
        _ => ProcessExit::Unknown,
    }
}
