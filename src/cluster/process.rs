//! One daemon of the local cluster, as a child process.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use everstep_transport::protocol::{NodeName, WorkerId};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::sync::oneshot;

use super::error::ClusterError;
use super::naming::Naming;
use super::{Directory, executable};

/// A daemon that listens. Dropped, it is killed.
pub struct Process {
    child: Killed,
    naming: Naming,
    log: PathBuf,
    address: SocketAddr,
}

/// A daemon that was started and does not listen yet.
pub struct Starting {
    child: Killed,
    label: String,
    log: PathBuf,
    line: oneshot::Receiver<String>,
}

/// A child that does not outlive its handle.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill(); // an error means that it has ended
        let _ = self.0.wait();
    }
}

/// The line that a daemon prints when it listens.
#[derive(Deserialize)]
struct Ready {
    #[serde(default = "coordinator")]
    name: String,
    address: SocketAddr,
}

/// The one coordinator does not say its name.
fn coordinator() -> String {
    "coordinator-1".into()
}

/// How long a daemon may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a daemon may take to end when it is asked to.
const FAREWELL: Duration = Duration::from_secs(2);
/// The signal that cannot be caught.
const KILL: i32 = 9;
/// How much of a log's end is shown.
const TAIL: u64 = 2048;

impl Process {
    /// Starts a coordinator that founds a cluster in `home`.
    pub async fn coordinator(directory: &Directory, home: &Path) -> Result<Self, ClusterError> {
        let mut command = Command::new(executable()?);
        command.args(["coordinator", "--bootstrap", "--supervised", "--dir"]).arg(home);
        start(command, directory, "coordinator-1")?.listening().await
    }

    /// Starts a worker that joins the coordinator at `address`.
    pub fn worker(
        directory: &Directory,
        number: u32,
        address: SocketAddr,
        overlap: bool,
    ) -> Result<Starting, ClusterError> {
        let mut command = Command::new(executable()?);
        command.args(["worker", "--supervised", "--coordinators", &address.to_string()]);
        command.arg("--join").arg(format!("@{}", directory.path().join("join.token").display()));
        command.arg("--dir").arg(directory.path());
        if !overlap {
            command.arg("--no-overlap");
        }
        start(command, directory, &format!("worker-{number}"))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it is called.
    pub fn naming(&self) -> &Naming {
        &self.naming
    }

    /// Takes note of the id that it was registered under.
    pub fn registered(&mut self, id: WorkerId) {
        self.naming.id = Some(id);
    }

    /// What the user calls it, and its log.
    pub fn place(&self) -> (String, PathBuf) {
        (self.naming.to_string(), self.log.clone())
    }

    /// Whether it has not ended.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.0.try_wait(), Ok(None))
    }

    /// How it ended, if it did and should not have: no daemon ends by itself before the run does.
    pub fn failure(&mut self) -> Option<ClusterError> {
        let status = self.child.0.try_wait().ok().flatten()?;
        if status.success() {
            return None;
        }
        let (process, log) = self.place();
        // One that was killed had no time to say why.
        let why = tail(&self.log).filter(|_| status.signal() != Some(KILL));
        Some(ClusterError::Process { process, how: describe(status), why, log })
    }

    /// Asks it to end, and waits a moment, so that its log has its last lines.
    pub async fn end(mut self) {
        // An error means that it has ended.
        let _ = kill_process(Pid::from_child(&self.child.0), Signal::TERM);
        let deadline = Instant::now() + FAREWELL;
        while self.is_alive() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Starting {
    /// Returns when it listens.
    pub async fn listening(mut self) -> Result<Process, ClusterError> {
        let line = tokio::time::timeout(PATIENCE, &mut self.line).await;
        let ready = line.ok().and_then(Result::ok);
        let ready = ready.and_then(|line| serde_json::from_str::<Ready>(&line).ok());
        let named = ready.and_then(|ready| Some((NodeName::parse(&ready.name)?, ready.address)));
        let Some((name, address)) = named else { return Err(self.failure()) };
        let Self { child, label, log, .. } = self;
        let naming = Naming { label, pid: child.0.id(), name, id: None };
        Ok(Process { child, naming, log, address })
    }

    fn failure(&mut self) -> ClusterError {
        // Its output has ended, so the process is about to.
        let deadline = Instant::now() + Duration::from_secs(1);
        let mut status = None;
        while status.is_none() && Instant::now() < deadline {
            status = self.child.0.try_wait().ok().flatten();
            thread::sleep(Duration::from_millis(5));
        }
        let how = status.map_or("does not listen in time".into(), describe);
        let process = format!("{} (pid {})", self.label, self.child.0.id());
        ClusterError::Process { process, how, why: tail(&self.log), log: self.log.clone() }
    }
}

fn start(
    mut command: Command,
    directory: &Directory,
    label: &str,
) -> Result<Starting, ClusterError> {
    let log = directory.path().join("logs").join(format!("{label}.log"));
    let file =
        File::create(&log).map_err(|source| ClusterError::File { path: log.clone(), source })?;
    // A group of its own: Ctrl-C reaches the launcher alone, which then ends the others in order.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file).process_group(0);
    // The daemons' own flags are all there: the launcher's environment is not theirs.
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if name.starts_with("EVERSTEP_") && name != "EVERSTEP_LOG" {
            command.env_remove(&variable);
        }
    }
    let mut child = Killed(command.spawn().map_err(ClusterError::Runtime)?);
    let stdout = child.0.stdout.take().expect("stdout is piped");
    let (sender, line) = oneshot::channel();
    thread::spawn(move || {
        let mut line = String::new();
        let mut lines = BufReader::new(stdout);
        if matches!(lines.read_line(&mut line), Ok(1..)) {
            let _ = sender.send(line);
        }
        // Drained to its end, so that the daemon can always write.
        let _ = std::io::copy(&mut lines, &mut std::io::sink());
    });
    Ok(Starting { child, label: label.to_string(), log, line })
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (_, Some(KILL)) => format!("was killed (signal {KILL})"),
        (_, Some(signal)) => format!("ended by signal {signal}"),
        (Some(code), _) => format!("ended with exit code {code}"),
        _ => "ended".into(),
    }
}

/// The last error block of a log, or its last line.
fn tail(log: &Path) -> Option<String> {
    let mut file = File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL))).ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let block = text.rfind("error: ").map(|start| text[start..].trim_end());
    block.or_else(|| text.lines().next_back()).map(str::to_string).filter(|text| !text.is_empty())
}
