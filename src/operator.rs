//! An operator of a cluster. It asks the leader of the coordinators, wherever that is by now.
//!
//! In: an operator's credentials, and the addresses of some coordinators. Out: the leader's
//! answers. It keeps a link to every coordinator, so that it can ask the next leader without a
//! handshake. It repeats a question without an answer, there or elsewhere. A request carries an id,
//! so that the cluster carries it out once, however often it is repeated. The time without an
//! answer is bounded. After that the operator reports the state of the coordinators.
//!
//! It knows neither how coordinators start nor the purpose of the answers.

mod cluster_handle;
mod coordinator_pool;
mod dial;
mod error;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everstep_transport::identity::{Credentials, JoinToken, TokenLimits};
use everstep_transport::protocol::checkpoint::CheckpointView;
use everstep_transport::protocol::outcome::Update;
use everstep_transport::protocol::question::{CoordinatorStatus, RevokedView, RunView, TokenView};
use everstep_transport::protocol::reason::ProcessExit;
use everstep_transport::protocol::{
    CoordinatorId, CoordinatorView, Message, NodeName, OperatorCommand, Question, Reply, RequestId,
    RunId, RunOrigin, RunSpec, Step, Term, Verification,
};
use everstep_transport::quic::{Endpoint, Settings};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

pub(crate) use cluster_handle::ClusterHandle;
use coordinator_pool::CoordinatorPool;
use dial::LinkEvent;
pub(crate) use error::OperatorError;

/// The operator of a cluster. It hangs up when it is dropped.
pub(crate) struct Operator {
    endpoint: Arc<Endpoint>,
    pool: CoordinatorPool,
    events: mpsc::Receiver<LinkEvent>,
    /// A random number. With a counter it names a request.
    client: u64,
    number: u64,
    /// The run that it watches.
    run: Option<RunId>,
}

/// The state of the coordinators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CoordinatorsStatus {
    /// The term of the coordinator that leads.
    pub(crate) term: Term,
    /// All of them, by id.
    pub(crate) coordinators: Vec<CoordinatorStatus>,
}

/// How long a question may have no answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// After this time the operator asks the leader again, which may not have been ready to answer.
const LEADER_RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// The operator asks again after this fraction of [`LEADER_RETRY_INTERVAL`], if an answer only
/// names the leader.
const RETRY_FRACTION: u32 = 10;
/// The most messages of coordinators in the queue.
const MAX_QUEUED_EVENTS: usize = 64;

/// Newer than any line and any event. A question with these numbers asks for workers alone.
pub(crate) const NEWEST: u64 = u32::MAX as u64;

impl Operator {
    /// An operator with the credentials in this folder. It dials these coordinators.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(crate) fn new(
        credentials: &Path,
        coordinators: &[SocketAddr],
    ) -> Result<Self, OperatorError> {
        let unusable = |error: &dyn std::fmt::Display| OperatorError::Unusable(error.to_string());
        let credentials = Credentials::load(credentials).map_err(|error| unusable(&error))?;
        let here = listening(coordinators);
        let settings = Settings::for_address(here);
        let endpoint = Endpoint::bind((here, 0).into(), &credentials, settings, None);
        let endpoint = Arc::new(endpoint.map_err(|error| unusable(&error))?);
        let mut client = [0; 8];
        getrandom::fill(&mut client).map_err(|error| unusable(&error))?;
        let (sender, events) = mpsc::channel(MAX_QUEUED_EVENTS);
        let pool = CoordinatorPool::new(endpoint.clone(), sender, coordinators);
        let (client, number, run) = (u64::from_le_bytes(client), 0, None);
        Ok(Self { endpoint, pool, events, client, number, run })
    }

    /// The next request's id.
    pub(crate) fn next_id(&mut self) -> RequestId {
        self.number += 1;
        RequestId { client: self.client, number: self.number }
    }

    /// Makes a request that changes something. The cluster carries it out once for each id.
    ///
    /// # Errors
    /// [`OperatorError`]. Without an answer, the change may have happened or may yet happen.
    pub(crate) async fn request(
        &mut self,
        id: RequestId,
        command: OperatorCommand,
    ) -> Result<Option<RunId>, OperatorError> {
        self.ask(Message::Request { id, command }, |answer| answer_to(id, answer)).await?
    }

    /// Submits a run, and watches it from now on.
    pub(crate) async fn submit(
        &mut self,
        id: RequestId,
        run: RunSpec,
    ) -> Result<Option<RunId>, OperatorError> {
        self.run = self.request(id, OperatorCommand::Submit(run.into())).await?;
        Ok(self.run)
    }

    /// Submits a run that goes on from a checkpoint in its store, and watches it from now on.
    pub(crate) async fn resume_stored(
        &mut self,
        id: RequestId,
        run: RunSpec,
        origin: RunOrigin,
    ) -> Result<Option<RunId>, OperatorError> {
        let (run, origin) = (run.into(), origin.into());
        self.run = self.request(id, OperatorCommand::Continue { run, origin }).await?;
        Ok(self.run)
    }

    /// Watches this run from now on.
    pub(crate) fn follow(&mut self, run: RunId) {
        self.run = Some(run);
    }

    /// The news after this step's line and this event, and all workers. Each line and event comes
    /// once and in order, under any leader.
    pub(crate) async fn watch(&mut self, step: Step, event: u64) -> Result<Update, OperatorError> {
        let question = Message::Watch { run: self.run, step, event };
        let mut update = self
            .ask(question, |answer| match answer {
                Message::Update(update) if follows(&update, step, event) => Some(update),
                _ => None,
            })
            .await?;
        if self.run.is_some() && update.run != self.run {
            let words = "the run is over, and another one has begun";
            return Err(OperatorError::Refused(words.into()));
        }
        update.workers = self.pool.workers();
        Ok(update)
    }

    /// The state of the coordinators, as the leader knows it.
    pub(crate) async fn status(&mut self) -> Result<CoordinatorsStatus, OperatorError> {
        self.ask(Message::Ask(Question::Coordinators), |said| match said {
            Message::Reply(Reply::Coordinators { term, coordinators, .. }) => {
                Some(CoordinatorsStatus { term, coordinators })
            }
            _ => None,
        })
        .await
    }

    /// What is known of the checkpoint of a step, which a worker reads for operators. The reading
    /// begins with the first question.
    pub(crate) async fn verification(&mut self, step: Step) -> Result<Verification, OperatorError> {
        self.ask(Message::AskVerification { step }, |said| match said {
            Message::Verification { id, state } if id.step == step => Some(state),
            _ => None,
        })
        .await
    }

    /// Makes the cluster accept a new token, and returns it. Any holder of the token can join.
    pub(crate) async fn create_token(
        &mut self,
        limits: TokenLimits,
    ) -> Result<JoinToken, OperatorError> {
        let token = JoinToken::for_cluster_of(&self.endpoint.credentials());
        let token = token.map_err(|error| OperatorError::Unusable(error.to_string()))?;
        self.command(OperatorCommand::CreateToken(token.accepted(limits))).await?;
        Ok(token)
    }

    /// Makes a request under a new id.
    pub(crate) async fn command(
        &mut self,
        command: OperatorCommand,
    ) -> Result<Option<RunId>, OperatorError> {
        let id = self.next_id();
        self.request(id, command).await
    }

    /// Transfers leadership to this coordinator. Returns when it leads.
    pub(crate) async fn transfer(&mut self, to: CoordinatorId) -> Result<(), OperatorError> {
        let id = self.next_id();
        let question = Message::Transfer { id, to: Some(to) };
        self.ask(question, |answer| answer_to(id, answer)).await?.map(drop)
    }

    /// Reports the end of a worker's process. No answer confirms it.
    pub(crate) fn exited(&self, name: NodeName, how: ProcessExit) {
        self.pool.send_to_leader(Message::Exited { name, how });
    }

    /// The coordinators, as far as they have reported themselves.
    pub(crate) fn coordinators(&self) -> &[CoordinatorView] {
        self.pool.members()
    }

    /// The leader's id, if it is known.
    pub(crate) fn leader(&self) -> Option<CoordinatorId> {
        self.pool.leader_id()
    }

    /// The newest term that any coordinator has reported.
    pub(crate) fn term(&self) -> Term {
        self.pool.term()
    }

    /// Whether there is a link to the coordinator at this address.
    pub(crate) fn hears(&self, address: SocketAddr) -> bool {
        self.pool.hears(address)
    }

    /// Hangs up in good order.
    pub(crate) async fn close(mut self) {
        self.hang_up().await;
    }

    /// As [`Operator::close`], for an operator that stays in place without further questions.
    pub(crate) async fn hang_up(&mut self) {
        self.pool.hang_up();
        self.endpoint.close("the operator has no more questions").await;
    }

    /// Asks the leader until `wanted` finds an answer in its messages.
    async fn ask<T>(
        &mut self,
        question: Message,
        mut wanted: impl FnMut(Message) -> Option<T>,
    ) -> Result<T, OperatorError> {
        let began = Instant::now();
        let deadline = began + ANSWER_TIMEOUT;
        let (mut asked, mut until) = (None, began);
        loop {
            let (leader, now) = (self.pool.leader(), Instant::now());
            if now >= deadline {
                return Err(OperatorError::Unanswered(self.pool.status()));
            }
            if asked != leader || now >= until {
                asked = leader;
                until = now
                    + if leader.is_some() {
                        LEADER_RETRY_INTERVAL
                    } else {
                        LEADER_RETRY_INTERVAL / RETRY_FRACTION
                    };
                match leader {
                    Some(_) => self.pool.send_to_leader(question.clone()),
                    None => self.pool.query_coordinators(),
                }
            }
            match self.hear(until.min(deadline)).await {
                Some((from, said)) if asked == Some(from) => {
                    if let Some(answer) = wanted(said) {
                        return Ok(answer);
                    }
                }
                Some(_) => {}
                // This may have been the answer: the coordinator did not lead, or not yet.
                None => until = until.min(now + LEADER_RETRY_INTERVAL / RETRY_FRACTION),
            }
        }
    }

    /// The next message, and its sender. None when the operator knows more about the leader, or
    /// when `until` has passed.
    async fn hear(&mut self, until: Instant) -> Option<(SocketAddr, Message)> {
        let event = timeout_at(until, self.events.recv()).await.ok()??;
        self.pool.take(event)
    }
}

/// Methods that ask the leader a question, and return what the reply of the same name holds.
macro_rules! questions {
    ($($(#[$doc:meta])* $method:ident: $question:ident -> $answer:ty;)*) => {
        impl Operator {
            $($(#[$doc])*
            pub(crate) async fn $method(&mut self) -> Result<$answer, OperatorError> {
                let wanted = |said| match said {
                    Message::Reply(Reply::$question(answer)) => Some(answer),
                    _ => None,
                };
                self.ask(Message::Ask(Question::$question), wanted).await
            })*
        }
    };
}

questions! {
    /// The tokens that admit nodes.
    tokens: Tokens -> Vec<TokenView>;
    /// The newest finished runs, and last the one under way.
    runs: Runs -> Vec<RunView>;
    /// The checkpoints of the current run.
    checkpoints: Checkpoints -> Vec<CheckpointView>;
    /// The revoked workers and operators.
    revoked: Revoked -> Vec<RevokedView>;
    /// The operators that the leader knows, by name.
    operators: Operators -> Vec<NodeName>;
}

/// The local address to listen on, which these coordinators can reach.
fn listening(coordinators: &[SocketAddr]) -> IpAddr {
    match coordinators.iter().find(|address| !address.ip().is_loopback()) {
        None => Ipv4Addr::LOCALHOST.into(),
        Some(SocketAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
        Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The result of the request with this id, if this message has it.
fn answer_to(id: RequestId, said: Message) -> Option<Result<Option<RunId>, OperatorError>> {
    match said {
        Message::Answer { id: of, refusal, run } if of == id => {
            Some(refusal.map_or(Ok(run), |reason| Err(OperatorError::Refused(reason.to_string()))))
        }
        _ => None,
    }
}

/// Whether this update continues where the asker was. After a repeated question it may be the
/// answer to an older one, and the lines before it would be lost.
fn follows(update: &Update, step: Step, event: u64) -> bool {
    update.step == step && update.event == event
}

#[cfg(test)]
mod tests;
