//! The coordinators' processes, and an operator that asks the leader.
//!
//! In: the directory where each keeps its log and its keys. Out: the leader's answers. A process
//! that has ended starts again at the same place. Workers train on meanwhile, and so does the
//! cluster, as long as most of its coordinators are there. This module does not interpret their
//! answers.

mod coordinator_process;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use everstep_transport::identity::TokenId;
use everstep_transport::protocol::outcome::Update;
use everstep_transport::protocol::question::RunView;
use everstep_transport::protocol::reason::ProcessExit;
use everstep_transport::protocol::{
    CoordinatorId, NodeName, OperatorCommand, RequestId, RunOrigin, RunSpec, Step, Term, WorkerId,
};

use super::Directory;
use super::error::ClusterError;
use super::process::{CoordinatorOrigin, Daemons};
use crate::operator::{Operator, OperatorError};
pub(super) use coordinator_process::CoordinatorProcess;
pub(crate) use coordinator_process::has_coordinators;

/// The coordinators of a local cluster.
pub(super) struct Coordinators {
    processes: Vec<CoordinatorProcess>,
    operator: Operator,
    daemons: Daemons,
    /// The term in which the leader last heard which processes have ended.
    reported_in: Term,
    /// How long a coordinator waits for room on a full disk.
    wait: Duration,
}

/// A coordinator of the cluster, as the launcher knows it.
pub(super) struct ListedCoordinator<'a> {
    pub process: &'a CoordinatorProcess,
    /// None until the launcher has heard it.
    pub id: Option<CoordinatorId>,
    pub leads: bool,
}

/// How often the launcher checks the processes while it waits for an answer.
const PROCESS_CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// How long joining coordinators may take to get a vote.
const FOUNDING_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the processes may take to end.
const COORDINATOR_EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// An operator's credentials, in a coordinator's directory.
const CREDENTIALS: &str = "operator";

impl Coordinators {
    /// Starts `count` coordinators: one founds a cluster, the others join it. Returns when all have
    /// a vote.
    pub(super) async fn found(
        directory: &Directory,
        daemons: Daemons,
        count: u32,
        wait: Duration,
    ) -> Result<Self, ClusterError> {
        let (home, first) =
            CoordinatorProcess::start(directory, &daemons, 1, CoordinatorOrigin::Bootstrap)?;
        let founder = CoordinatorProcess::of(1, count, home, first.listening().await?);
        let token = founder.home().join("coordinator.token");
        let join = CoordinatorOrigin::Join { token: &token, founder: founder.address() };
        let joining: Result<Vec<_>, _> = (2..=count)
            .map(|number| CoordinatorProcess::start(directory, &daemons, number, join.clone()))
            .collect();
        let mut processes = vec![founder];
        for ((home, starting), number) in joining?.into_iter().zip(2..) {
            processes.push(CoordinatorProcess::of(
                number,
                count,
                home,
                starting.listening().await?,
            ));
        }
        let addresses: Vec<_> = processes.iter().map(CoordinatorProcess::address).collect();
        let operator = Operator::new(&processes[0].home().join(CREDENTIALS), &addresses)?;
        let mut coordinators = Self { processes, operator, daemons, reported_in: Term(0), wait };
        coordinators.until_all_vote(directory).await?;
        Ok(coordinators)
    }

    /// Starts the coordinators of a directory that another launcher has left, each at its old
    /// address. Returns when all of them listen.
    pub(super) async fn reopen(
        directory: &Directory,
        daemons: Daemons,
        wait: Duration,
    ) -> Result<Self, ClusterError> {
        let processes = CoordinatorProcess::reopen(directory, &daemons)?;
        let addresses: Vec<_> = processes.iter().map(CoordinatorProcess::address).collect();
        let operator = Operator::new(&processes[0].home().join(CREDENTIALS), &addresses)?;
        let mut coordinators = Self { processes, operator, daemons, reported_in: Term(0), wait };
        while !coordinators.processes.iter().all(CoordinatorProcess::is_settled) {
            let Self { processes, daemons, wait, .. } = &mut coordinators;
            for process in processes {
                process.supervise(directory, daemons, *wait, false)?;
            }
            tokio::time::sleep(PROCESS_CHECK_INTERVAL).await;
        }
        Ok(coordinators)
    }

    /// The directory of the first coordinator.
    pub(super) fn home(&self) -> &Path {
        self.processes[0].home()
    }

    /// The folder with an operator's credentials.
    pub(super) fn credentials(&self) -> PathBuf {
        self.home().join(CREDENTIALS)
    }

    /// The address of the first coordinator's HTTP API, if it has one.
    pub(super) fn api(&self) -> Option<String> {
        self.processes[0].api().map(str::to_string)
    }

    /// The addresses on which the coordinators listen. They never change.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.processes.iter().map(CoordinatorProcess::address).collect()
    }

    /// The coordinators of the cluster.
    pub(super) fn listed(&self) -> impl Iterator<Item = ListedCoordinator<'_>> {
        let (views, leader) = (self.operator.coordinators(), self.operator.leader());
        self.processes.iter().filter(|process| process.is_there()).map(move |process| {
            let view = views.iter().find(|view| view.address == process.address());
            let id = view.map(|view| view.id);
            ListedCoordinator { process, id, leads: id.is_some() && id == leader }
        })
    }

    /// The process id of the leader, if that is known.
    pub(super) fn leader_pid(&self) -> Option<u32> {
        self.pid_of(true)
    }

    /// The process id of a follower.
    pub(super) fn follower_pid(&self) -> Option<u32> {
        self.pid_of(false)
    }

    fn pid_of(&self, leader: bool) -> Option<u32> {
        self.listed().find(|listed| listed.leads == leader).and_then(|listed| listed.process.pid())
    }

    /// Whether the launcher has a link to each of them, and one is known to lead.
    pub(super) fn are_whole(&self) -> bool {
        let mut all = self.processes.iter().filter(|process| process.is_there());
        let hears = |process: &CoordinatorProcess| {
            process.pid().is_some() && self.operator.hears(process.address())
        };
        self.leader_pid().is_some() && all.all(hears)
    }

    /// Returns when they have agreed on a request that changes nothing: the revocation of a token
    /// that does not exist.
    pub(super) async fn agree(&mut self, directory: &Directory) -> Result<(), ClusterError> {
        let id = self.operator.next_id();
        let nothing = OperatorCommand::RevokeToken(TokenId::default());
        match self.request(directory, id, nothing).await {
            Ok(()) | Err(ClusterError::Refused(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// How often any of them was started again.
    pub(super) fn restarts(&self) -> u32 {
        self.processes.iter().map(CoordinatorProcess::restarts).sum()
    }

    /// Whether the term has changed since the last call.
    pub(super) fn has_changed(&mut self) -> bool {
        let term = self.operator.term();
        std::mem::replace(&mut self.reported_in, term) != term
    }

    /// Submits a run. Returns when it is accepted.
    pub(super) async fn submit(
        &mut self,
        directory: &Directory,
        run: &RunSpec,
    ) -> Result<(), ClusterError> {
        let id = self.operator.next_id();
        let submit = async |operator: &mut Operator| operator.submit(id, run.clone()).await;
        self.ask(directory, submit).await.map(drop)
    }

    /// Submits a run that goes on from a checkpoint in its store. Returns when it is accepted.
    pub(super) async fn resume_stored(
        &mut self,
        directory: &Directory,
        run: &RunSpec,
        origin: &RunOrigin,
    ) -> Result<(), ClusterError> {
        let id = self.operator.next_id();
        let resume = async |operator: &mut Operator| {
            operator.resume_stored(id, run.clone(), origin.clone()).await
        };
        self.ask(directory, resume).await.map(drop)
    }

    /// Watches the run that the coordinators have from now on. None if they have none.
    pub(super) async fn follow_run(
        &mut self,
        directory: &Directory,
    ) -> Result<Option<RunView>, ClusterError> {
        let runs = self.ask(directory, async |operator: &mut Operator| operator.runs().await);
        // A local cluster has one run. Any other one came later.
        let run = runs.await?.into_iter().next();
        run.iter().for_each(|view| self.operator.follow(view.id));
        Ok(run)
    }

    /// Lets a run go back to the checkpoint of this step.
    pub(super) async fn roll_back(
        &mut self,
        directory: &Directory,
        run: &RunView,
        step: Step,
    ) -> Result<(), ClusterError> {
        let id = self.operator.next_id();
        let (run, generation) = (run.id, run.generation);
        let command = OperatorCommand::Rollback { run, step, generation };
        self.request(directory, id, command).await
    }

    /// Reports the end of a worker's process. In `by_hand` mode it reports nothing.
    pub(super) fn exited(&self, name: NodeName, how: ProcessExit) {
        if !self.daemons.by_hand {
            self.operator.exited(name, how);
        }
    }

    /// Asks the coordinators to let a worker leave.
    pub(super) async fn drain(
        &mut self,
        directory: &Directory,
        worker: WorkerId,
    ) -> Result<(), ClusterError> {
        let id = self.operator.next_id();
        self.request(directory, id, OperatorCommand::Drain(worker)).await
    }

    /// Makes a request that changes something.
    pub(super) async fn request(
        &mut self,
        directory: &Directory,
        id: RequestId,
        command: OperatorCommand,
    ) -> Result<(), ClusterError> {
        let request = async |operator: &mut Operator| operator.request(id, command.clone()).await;
        self.ask(directory, request).await.map(drop)
    }

    /// The news after this step's line and this event. Waits until a coordinator can answer.
    ///
    /// # Errors
    /// When a coordinator dies again and again, or they refuse the run.
    pub(super) async fn watch(
        &mut self,
        directory: &Directory,
        step: Step,
        event: u64,
    ) -> Result<Update, ClusterError> {
        let watch = async |operator: &mut Operator| operator.watch(step, event).await;
        self.ask(directory, watch).await
    }

    /// Ends the processes in good order: each says goodbye.
    pub(super) async fn dismiss(&mut self) {
        self.operator.hang_up().await;
        let processes = std::mem::take(&mut self.processes).into_iter();
        let mut ending: Vec<_> = processes.filter_map(CoordinatorProcess::dismiss).collect();
        let deadline = Instant::now() + COORDINATOR_EXIT_TIMEOUT;
        while ending.iter_mut().any(|process| process.is_alive()) && Instant::now() < deadline {
            tokio::time::sleep(PROCESS_CHECK_INTERVAL).await;
        }
    }

    async fn until_all_vote(&mut self, directory: &Directory) -> Result<(), ClusterError> {
        let began = Instant::now();
        loop {
            let status = async |operator: &mut Operator| operator.status().await;
            let there = self.ask(directory, status).await?.coordinators;
            let voters = there.iter().filter(|coordinator| coordinator.votes).count();
            if voters == self.processes.len() {
                return Ok(());
            }
            if began.elapsed() > FOUNDING_TIMEOUT {
                let (all, waited) = (self.processes.len(), FOUNDING_TIMEOUT.as_secs());
                let reason = format!("{voters} of {all} coordinators have a vote after {waited} s");
                return Err(ClusterError::Coordinator(reason));
            }
            tokio::time::sleep(PROCESS_CHECK_INTERVAL).await;
        }
    }

    /// Asks until a coordinator answers. Processes that do not answer twice in a row start again,
    /// unless they wait for their disks.
    async fn ask<T>(
        &mut self,
        directory: &Directory,
        mut question: impl AsyncFnMut(&mut Operator) -> Result<T, OperatorError>,
    ) -> Result<T, ClusterError> {
        let mut asked_in_vain = 0;
        loop {
            let members = self.members();
            let Self { processes, operator, daemons, wait, .. } = self;
            let answer = tokio::select! {
                answer = question(operator) => answer,
                hopeless = supervise(processes, &members, directory, daemons, *wait) => {
                    return Err(hopeless);
                }
            };
            let Err(OperatorError::Unanswered(reason)) = answer else { return Ok(answer?) };
            tracing::warn!(reason, "the coordinators are asked anew");
            asked_in_vain += 1;
            let deaf = processes.iter_mut().filter(|process| !operator.hears(process.address()));
            deaf.for_each(|process| process.doubt(asked_in_vain));
        }
    }

    /// The known addresses of the cluster's coordinators.
    fn members(&self) -> Vec<SocketAddr> {
        self.operator.coordinators().iter().map(|view| view.address).collect()
    }
}

/// Looks after the processes. Fails when one of them dies again and again.
async fn supervise(
    processes: &mut [CoordinatorProcess],
    members: &[SocketAddr],
    directory: &Directory,
    daemons: &Daemons,
    wait: Duration,
) -> ClusterError {
    loop {
        for process in processes.iter_mut() {
            let is_member = members.contains(&process.address());
            if let Err(error) = process.supervise(directory, daemons, wait, is_member) {
                return error;
            }
        }
        tokio::time::sleep(PROCESS_CHECK_INTERVAL).await;
    }
}
