//! The coordinator's process and the launcher's link to it, each renewed when it breaks.
//!
//! In: the directory where the coordinator keeps its log and its keys. Out: its answers. A process
//! that has ended, or is deaf, is started again where it was: workers train on meanwhile, and find
//! it at the address that they know. What it says is not understood here.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use everstep_transport::protocol::outcome::Update;
use everstep_transport::protocol::{NodeName, RunSpec, Step, WorkerId};

use super::Directory;
use super::error::ClusterError;
use super::naming::Naming;
use super::operator::Operator;
use super::process::{Daemons, End, Process};

/// The coordinator of a local cluster.
pub(super) struct Coordinator {
    process: Process,
    operator: Operator,
    home: PathBuf,
    daemons: Daemons,
    /// When its process or the link broke, lately.
    breaks: Vec<Instant>,
    restarts: u32,
}

/// This many breaks within [`CRISIS`] are too many.
const BREAKS: usize = 5;
/// See [`BREAKS`].
const CRISIS: Duration = Duration::from_secs(10);
/// How often the process is looked at while it is asked something.
const LOOK: Duration = Duration::from_millis(5);
/// How long a coordinator that did not start is left alone.
const PAUSE: Duration = Duration::from_millis(100);

impl Coordinator {
    /// Starts one that founds a cluster.
    pub(super) async fn found(
        directory: &Directory,
        daemons: Daemons,
    ) -> Result<Self, ClusterError> {
        let home = directory.path().join("coordinator-1");
        let process = Process::coordinator(directory, &daemons, &home, None).await?;
        let operator = Operator::connect(&home, process.address()).await?;
        Ok(Self { process, operator, home, daemons, breaks: Vec::new(), restarts: 0 })
    }

    /// Where it keeps its files.
    pub(super) fn home(&self) -> &Path {
        &self.home
    }

    /// Where it listens, all its life.
    pub(super) fn address(&self) -> SocketAddr {
        self.process.address()
    }

    /// Where its HTTP API is.
    pub(super) fn api(&self) -> Option<&str> {
        self.process.api()
    }

    /// What it is called.
    pub(super) fn naming(&self) -> &Naming {
        self.process.naming()
    }

    /// How often it was started again.
    pub(super) fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Submits a run. What comes of it, [`Self::watch`] tells.
    pub(super) fn submit(&self, run: RunSpec) {
        self.operator.submit(run);
    }

    /// Says that a worker's process has ended; where nobody looks after them, nobody says so.
    pub(super) fn exited(&self, name: NodeName, how: String) {
        if !self.daemons.by_hand {
            self.operator.exited(name, how);
        }
    }

    /// Asks it to let a worker go.
    pub(super) async fn drain(&mut self, worker: WorkerId) -> Result<(), ClusterError> {
        self.operator.drain(worker).await
    }

    /// What is new since this step's line and this event; waits until there is a coordinator to
    /// say so.
    ///
    /// # Errors
    /// When it dies again and again, or refuses the run.
    pub(super) async fn watch(
        &mut self,
        directory: &Directory,
        step: Step,
        event: u64,
    ) -> Result<Update, ClusterError> {
        loop {
            let answer = tokio::select! {
                answer = self.operator.watch(step, event) => answer,
                _ = ended(&mut self.process) => Err(ClusterError::Coordinator("it ended".into())),
            };
            match answer {
                Err(ClusterError::Coordinator(reason)) => self.renew(directory, &reason).await?,
                answer => return answer,
            }
        }
    }

    /// Ends it in good order.
    pub(super) async fn dismiss(self) {
        self.operator.close().await;
        self.process.dismiss().await;
    }

    /// Renews the link; and the process, unless it is well and only the link was not.
    async fn renew(&mut self, directory: &Directory, reason: &str) -> Result<(), ClusterError> {
        tracing::warn!(reason, "the coordinator is asked anew");
        let (address, hopeless) = (self.address(), self.is_hopeless());
        let end = tokio::select! {
            operator = Operator::connect(&self.home, address) => match operator {
                Ok(operator) if !hopeless => {
                    self.operator = operator;
                    return Ok(());
                }
                Ok(_) => deaf(reason),
                Err(error) => deaf(&error.to_string()),
            },
            end = ended(&mut self.process) => end,
        };
        self.process.kill();
        let mut died = self.process.failure(end);
        if hopeless {
            return Err(died);
        }
        loop {
            self.restarts += 1;
            match self.restart(directory, address).await {
                Ok(()) => return Ok(()),
                Err(error) => died = error,
            }
            // Whatever it died of: another may have taken the port meanwhile.
            self.process.forget_api();
            if self.is_hopeless() {
                return Err(died);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Counts a break; true if there were too many lately.
    fn is_hopeless(&mut self) -> bool {
        self.breaks.retain(|at| at.elapsed() < CRISIS);
        self.breaks.push(Instant::now());
        self.breaks.len() >= BREAKS
    }

    async fn restart(
        &mut self,
        directory: &Directory,
        address: SocketAddr,
    ) -> Result<(), ClusterError> {
        let before = Some(&self.process);
        self.process = Process::coordinator(directory, &self.daemons, &self.home, before).await?;
        // The credentials were made anew with the process.
        self.operator = tokio::select! {
            operator = Operator::connect(&self.home, address) => operator?,
            end = ended(&mut self.process) => return Err(self.process.failure(end)),
        };
        Ok(())
    }
}

/// The end of a process that lives and cannot be asked.
fn deaf(reason: &str) -> End {
    End { expected: false, how: format!("does not answer: {reason}") }
}

/// Waits for the end of a process.
async fn ended(process: &mut Process) -> End {
    loop {
        if let Some(end) = process.end() {
            return end;
        }
        tokio::time::sleep(LOOK).await;
    }
}
