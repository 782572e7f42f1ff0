//! An operator's link to the coordinator: submits a run, asks what is new, lets a worker go.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use everstep_transport::identity::{Credentials, Role};
use everstep_transport::protocol::outcome::{Update, WorkerView};
use everstep_transport::protocol::{
    CoordinatorView, Message, NodeName, RunId, RunSpec, Step, WorkerId,
};
use everstep_transport::quic::{Endpoint, Expected, Link, LinkError, Settings};

use super::error::ClusterError;

/// An operator of the cluster.
pub(crate) struct Operator {
    endpoint: Endpoint,
    link: Link,
    /// Whose lines are told.
    run: Option<RunId>,
    /// As answers on this link have told of them: each tells what has changed.
    workers: BTreeMap<WorkerId, WorkerView>,
}

/// How long the coordinator may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two questions to one that does not lead yet.
const PAUSE: Duration = Duration::from_millis(20);
const LEADER: Expected = Expected::Role(Role::Coordinator);

impl Operator {
    /// Connects with the operator's credentials that the coordinator keeps in `home`.
    pub(crate) async fn connect(home: &Path, address: SocketAddr) -> Result<Self, ClusterError> {
        let credentials = Credentials::load(&home.join("operator")).map_err(failed)?;
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let settings = Settings::for_address(address.ip());
        let endpoint = Endpoint::bind(listen, &credentials, settings, None).map_err(failed)?;
        let link = endpoint.connect(address, &LEADER).await.map_err(failed)?;
        Ok(Self { endpoint, link, run: None, workers: BTreeMap::new() })
    }

    /// Submits a run.
    pub(super) fn submit(&self, run: RunSpec) {
        self.tell(Message::Submit(run));
    }

    /// Says that a worker's process has ended.
    pub(super) fn exited(&self, name: NodeName, how: String) {
        self.tell(Message::Exited { name, how });
    }

    /// What is new since this step's line and this event; and all workers.
    pub(crate) async fn watch(&mut self, step: Step, event: u64) -> Result<Update, ClusterError> {
        match self.ask(Message::Watch { run: self.run, step, event }).await? {
            Message::Update(update) if self.run.is_some() && update.run != self.run => {
                Err(ClusterError::failed(None, "the run is over, and another one has begun"))
            }
            Message::Update(mut update) => {
                self.run = update.run;
                let changed = std::mem::take(&mut update.workers);
                self.workers.extend(changed.into_iter().map(|view| (view.worker, view)));
                update.forgotten.iter().for_each(|worker| drop(self.workers.remove(worker)));
                update.workers = self.workers.values().cloned().collect();
                Ok(update)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Asks to let a worker go; returns once that is under way.
    ///
    /// # Errors
    /// [`ClusterError::Failed`] with the coordinator's words if it refuses.
    pub(crate) async fn drain(&mut self, worker: WorkerId) -> Result<(), ClusterError> {
        match self.ask(Message::Drain { worker }).await? {
            Message::Accepted => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Ends the link.
    pub(crate) async fn close(&self) {
        self.link.finish().await;
        self.endpoint.close("the operator has no more questions").await;
    }

    /// Says what has no answer; if the link is broken, the next question shows it.
    fn tell(&self, message: Message) {
        if let Err(error) = self.link.send(message) {
            tracing::debug!(%error, "the coordinator was not told");
        }
    }

    /// One that does not lead, or not yet, says so instead of an answer, and is asked again: on
    /// another link, where no answer can come late.
    async fn ask(&mut self, question: Message) -> Result<Message, ClusterError> {
        let began = Instant::now();
        loop {
            self.link.send(question.clone()).map_err(failed)?;
            let answer = tokio::time::timeout(PATIENCE, self.hear()).await;
            match answer.map_err(|_| ClusterError::Coordinator("it does not answer".into()))? {
                Ok(Some(Message::Refused { reason })) => {
                    return Err(ClusterError::failed(None, &reason));
                }
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) if began.elapsed() > PATIENCE => {
                    return Err(ClusterError::Coordinator("it does not lead".into()));
                }
                Ok(None) => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(failed(error)),
            }
            let address = self.link.remote_address();
            self.link = self.endpoint.connect(address, &LEADER).await.map_err(failed)?;
            self.workers.clear();
        }
    }

    /// The next answer; none where it is that somebody else leads, or nobody.
    async fn hear(&self) -> Result<Option<Message>, LinkError> {
        loop {
            match self.link.receive().await? {
                Message::Coordinators { leader, members, .. } => {
                    let asked =
                        |view: &&CoordinatorView| view.address == self.link.remote_address();
                    let asked = members.iter().find(asked).map(|view| view.id);
                    if leader.is_none() || leader != asked {
                        return Ok(None);
                    }
                }
                answer => return Ok(Some(answer)),
            }
        }
    }
}

fn failed(error: impl std::fmt::Display) -> ClusterError {
    ClusterError::Coordinator(error.to_string())
}

fn unexpected(answer: &Message) -> ClusterError {
    ClusterError::Coordinator(format!("it answers with {}", answer.name()))
}
