//! An operator's link to the coordinator: submits a run, asks what is new, lets a worker go.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use everstep_transport::identity::{Credentials, Role};
use everstep_transport::protocol::outcome::{Update, WorkerView};
use everstep_transport::protocol::{Message, NodeName, RunId, RunSpec, Step, WorkerId};
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

impl Operator {
    /// Connects with the operator's credentials that the coordinator keeps in `home`.
    pub(crate) async fn connect(home: &Path, address: SocketAddr) -> Result<Self, ClusterError> {
        let credentials = Credentials::load(&home.join("operator")).map_err(failed)?;
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let settings = Settings::for_address(address.ip());
        let endpoint = Endpoint::bind(listen, &credentials, settings, None).map_err(failed)?;
        let expected = Expected::Role(Role::Coordinator);
        let link = endpoint.connect(address, &expected).await.map_err(failed)?;
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
    pub(crate) async fn drain(&self, worker: WorkerId) -> Result<(), ClusterError> {
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

    async fn ask(&self, question: Message) -> Result<Message, ClusterError> {
        self.link.send(question).map_err(failed)?;
        let answer = tokio::time::timeout(PATIENCE, self.hear()).await;
        match answer.map_err(|_| ClusterError::Coordinator("it does not answer".into()))? {
            Ok(Message::Refused { reason }) => Err(ClusterError::failed(None, &reason)),
            Ok(answer) => Ok(answer),
            Err(error) => Err(failed(error)),
        }
    }

    /// The next answer: who the coordinators are, every peer is told besides.
    async fn hear(&self) -> Result<Message, LinkError> {
        loop {
            match self.link.receive().await? {
                Message::Coordinators { .. } => {}
                answer => return Ok(answer),
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
