//! Running programs: their output, their files, and the processes of a cluster.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitIdStatus, kill_process, waitid};
use serde::Deserialize;
use serde_json::Value;
use tempfile::NamedTempFile;

pub use rustix::process::Signal;

use super::{Run, full_speed, until};

/// A started program. It is killed when this is dropped.
pub struct Program {
    child: Child,
    /// The file that gets its stderr.
    said: NamedTempFile,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code. None if a signal ended it.
    pub code: Option<i32>,
    /// Its output on stdout.
    pub stdout: String,
    /// Its output on stderr.
    pub stderr: String,
}

impl Program {
    pub fn start(mut command: Command) -> Self {
        let said = NamedTempFile::new().expect("a file");
        // No program here prints more than a pipe holds.
        command.stdout(Stdio::piped()).stderr(said.reopen().expect("a file"));
        Self { child: command.spawn().expect("the program starts"), said }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        send(self.id(), signal);
    }

    /// Writes to its stdin, a pipe.
    pub fn press(&mut self, keys: &str) {
        let pipe = self.child.stdin.as_mut().expect("a pipe");
        pipe.write_all(keys.as_bytes()).expect("it reads");
    }

    /// The next line of its stdout. None if it ends before.
    pub fn line(&mut self) -> Option<String> {
        let pipe = self.child.stdout.as_mut().expect("a pipe");
        let mut line = Vec::new();
        let mut byte = [0];
        while byte != *b"\n" && pipe.read(&mut byte).expect("it prints") == 1 {
            line.extend(byte);
        }
        (!line.is_empty()).then(|| String::from_utf8(line).expect("UTF-8"))
    }

    /// Its stderr so far.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.said.path()).expect("its file")).into_owned()
    }

    /// Whether it has ended. The caller can still ask how.
    pub fn is_over(&self) -> bool {
        // Another call may have waited for it already. Then it is no child any more.
        !matches!(self.look(), Ok(None))
    }

    /// Whether SIGKILL ended it, from itself or another process.
    pub fn was_killed(&self) -> bool {
        self.look().is_ok_and(|end| end.is_some_and(|end| end.killed()))
    }

    fn look(&self) -> io::Result<Option<WaitIdStatus>> {
        let child = WaitId::Pid(Pid::from_child(&self.child));
        Ok(waitid(child, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)?)
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ended {
        let status = until("the end of a program", || self.child.try_wait().expect("a child"));
        let mut stdout = Vec::new();
        let pipe = self.child.stdout.as_mut().expect("a pipe");
        pipe.read_to_end(&mut stdout).expect("its end");
        let stdout = String::from_utf8_lossy(&stdout).into_owned();
        Ended { code: status.code(), stdout, stderr: self.said() }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill(); // an error means that it has ended
        let _ = self.child.wait();
    }
}

impl Ended {
    /// The one block that says what failed: the end of stderr.
    pub fn block(&self) -> &str {
        let start = self.stderr.find("error: ").unwrap_or_else(|| panic!("no block: {self:?}"));
        let block = &self.stderr[start..];
        let indented = block.lines().skip(1).all(|line| line.starts_with("  "));
        assert!(indented, "more than one block, or something after it: {self:?}");
        block
    }

    /// The one block that says how a program ended that was told to end: the end of stderr. It was
    /// no error.
    pub fn farewell(&self) -> &str {
        assert!(matches!(self.code, Some(130 | 143)), "{self:?}");
        assert!(!self.stderr.contains("error: "), "{self:?}");
        let mut lines = self.stderr.split_inclusive('\n').rev();
        let indented = lines.by_ref().take_while(|line| line.starts_with("  "));
        let parts: usize = indented.map(str::len).sum();
        assert!(parts > 0, "no block: {self:?}");
        let above = self.stderr[..self.stderr.len() - parts].trim_end_matches('\n');
        &self.stderr[above.rfind('\n').map_or(0, |end| end + 1)..]
    }
}

/// `everstep train`, under way.
pub struct Launched {
    /// The launcher's program.
    pub program: Program,
    /// The directory of the run's files.
    pub dir: PathBuf,
    /// The path of the future report.
    pub report: PathBuf,
}

impl Launched {
    /// Calls `look` until it returns a value. Fails once the launcher has ended.
    pub fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        until(what, || {
            let is_over = self.program.is_over();
            let found = look();
            let last = || format!("the launcher has ended: {}", self.program.said());
            assert!(found.is_some() || !is_over, "waited in vain: {what}; {}", last());
            found
        })
    }

    /// The cluster as `cluster.json` has it.
    pub fn cluster(&self) -> Option<Cluster> {
        let text = fs::read_to_string(self.dir.join("cluster.json")).ok()?;
        Some(serde_json::from_str(&text).expect("cluster.json is written atomically"))
    }

    /// Waits until `count` workers are in that state, and no other worker is there.
    pub fn until_workers(&self, count: usize, state: &str) -> Cluster {
        self.until(&format!("{count} workers {state}"), || {
            let cluster = self.cluster()?;
            let there = cluster.workers.iter().filter(|worker| worker.state == state).count();
            (there == count && cluster.workers.len() == count).then_some(cluster)
        })
    }

    /// Waits until there are `count` members, each parameter shard has its owners, and no other
    /// worker is there.
    pub fn until_whole(&self, count: usize) -> Cluster {
        self.until(&format!("a whole cluster of {count}"), || {
            let cluster = self.cluster()?;
            let living = cluster.workers.iter().filter(|worker| !worker.is_over());
            let (training, others): (Vec<_>, Vec<_>) = living.partition(|w| w.state == "training");
            let whole = training.len() == count && others.is_empty();
            (whole && cluster.under_protected.is_empty()).then_some(cluster)
        })
    }

    /// Waits until `lost` workers were lost, and each parameter shard has its owners all the same.
    pub fn until_protected(&self, lost: usize) {
        self.until(&format!("owners for all after {lost} losses"), || {
            let cluster = self.cluster()?;
            let known = cluster.workers.iter().filter(|worker| worker.state == "lost").count();
            (known == lost && cluster.under_protected.is_empty()).then_some(())
        });
    }

    /// Waits until a step after the known ones is settled.
    pub fn until_another_step(&self) {
        let known = self.lines("metrics.jsonl").len();
        self.until_step(known + 1);
    }

    /// The lines of a file of the run so far.
    pub fn lines(&self, name: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole.map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// How many events of this kind there were.
    pub fn count(&self, event: &str) -> usize {
        self.lines("events.jsonl").iter().filter(|line| line["event"] == event).count()
    }

    /// Waits until that step is settled, and its line written.
    pub fn until_step(&self, step: usize) -> Cluster {
        self.until(&format!("step {step}"), || {
            let text = fs::read_to_string(self.dir.join("metrics.jsonl")).ok()?;
            (text.lines().count() >= step).then(|| self.cluster())?
        })
    }

    /// Waits for the end of a run that must complete.
    pub fn complete(self) -> Run {
        fs::write(full_speed(&self.dir), "").expect("written");
        let ended = self.program.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        Run::read(self.dir, &self.report, ended.stdout)
    }

    /// Waits for the end of a run that must fail, with its whole cluster, soon. Returns the block
    /// that says why.
    pub fn fails(self, cluster: &Cluster) -> String {
        self.ends(cluster, 1)
    }

    /// Waits for the end of a run that must end with this code, with its whole cluster, soon.
    /// Returns the block that says why.
    pub fn ends(self, cluster: &Cluster, code: i32) -> String {
        let began = Instant::now();
        let ended = self.program.end();
        cluster.until_gone();
        let took = began.elapsed();
        assert!(took < RUN_ENDS_WITHIN, "{took:?}: {ended:?}");
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(!self.report.exists(), "there is no report of a run that failed");
        ended.block().to_string()
    }
}

/// How soon after a fault a run ends. The promise is five seconds, on a machine that is not busy.
pub const RUN_ENDS_WITHIN: Duration = Duration::from_secs(60);

/// The processes of a cluster, as `cluster.json` lists them.
#[derive(Clone, Debug, Deserialize)]
pub struct Cluster {
    /// The coordinators.
    pub coordinators: Vec<Node>,
    /// The workers.
    pub workers: Vec<Node>,
    /// Runs of parameter shards that lack owners.
    pub under_protected: Vec<Value>,
    /// What the run waits for, as JSON.
    pub waiting: Value,
}

/// One process.
#[derive(Clone, Debug, Deserialize)]
pub struct Node {
    /// A worker's id, once it has registered. A coordinator's id, once it is known.
    pub id: Option<u64>,
    /// Its process id. None for a worker that joined by hand, and for one that is gone.
    pub pid: Option<u32>,
    /// A member's rank.
    #[serde(default)]
    pub rank: Option<usize>,
    /// The address on which it listens.
    pub address: SocketAddr,
    /// A worker's state.
    #[serde(default)]
    pub state: Value,
    /// Whether it is the coordinator that leads.
    #[serde(default)]
    pub leader: bool,
    /// The zone of its machine: machines of one zone may fail together.
    #[serde(default)]
    pub zone: Option<String>,
}

impl Node {
    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        send(self.pid.expect("the launcher started it"), signal);
    }

    /// Whether its process stands still.
    pub fn is_stopped(&self) -> bool {
        let stat = self.pid.and_then(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).ok());
        stat.is_some_and(|stat| stat.contains(") T "))
    }

    /// Whether it is a worker that takes no part any more.
    pub fn is_over(&self) -> bool {
        self.state == "lost" || self.state == "left"
    }

    /// Whether its process has ended. Its parent may not have asked how yet.
    fn is_gone(&self) -> bool {
        let Some(pid) = self.pid else { return true };
        fs::read(format!("/proc/{pid}/cmdline")).map_or(true, |line| line.is_empty())
    }

    fn is_unheard(&self) -> bool {
        UdpSocket::bind(self.address).is_ok()
    }
}

impl Cluster {
    /// The coordinator that leads.
    pub fn leader(&self) -> &Node {
        let leader = self.coordinators.iter().find(|coordinator| coordinator.leader);
        leader.unwrap_or_else(|| panic!("no coordinator leads: {self:?}"))
    }

    /// The coordinators' addresses, as flags have them.
    pub fn addresses(&self) -> String {
        let all: Vec<_> = self.coordinators.iter().map(|c| c.address.to_string()).collect();
        all.join(",")
    }

    /// The member of this rank.
    pub fn member(&self, rank: usize) -> &Node {
        let member = self.workers.iter().find(|w| w.rank == Some(rank) && w.state == "training");
        member.unwrap_or_else(|| panic!("no rank {rank} in {self:?}"))
    }

    /// The members.
    pub fn members(self) -> Vec<Node> {
        self.workers.into_iter().filter(|worker| worker.state == "training").collect()
    }

    /// The worker with this id.
    pub fn worker(&self, id: u64) -> Option<&Node> {
        self.workers.iter().find(|worker| worker.id == Some(id))
    }

    /// Waits until no process is left, and no port in use.
    pub fn until_gone(&self) {
        let nodes: Vec<_> = self.coordinators.iter().chain(&self.workers).collect();
        until("no process of the cluster is left", || {
            nodes.iter().all(|node| node.is_gone() && node.is_unheard()).then_some(())
        });
    }
}

/// Sends a process a signal.
fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a process id is positive");
    kill_process(pid, signal).expect("the process is there");
}
