//! The way of the HTTP API to the coordinator's actor, which it asks as seldom as will do.
//!
//! An answer tells what all coordinators agree on. Before the actor answers, a majority confirms
//! that it leads, and it applies all that was agreed by then (`daemon/pending_reads.rs`). One
//! answer may serve several clients, but only those that asked before the question went out. A
//! client that takes a stale answer gets this coordinator's knowledge, at most
//! [`STALE_OVERVIEW_MAX_AGE`] old, without a question to the others.
//!
//! However many clients there are, and however fast they ask, the actor gets a bounded number of
//! questions a second. Only one change is under way at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::Addr;
use actix_web::http::StatusCode;
use everstep_transport::identity::Role;
use everstep_transport::protocol::{
    Message, OperatorCommand, RequestId, RunId, Step, Verification,
};
use tokio::sync::{Mutex, oneshot};
use tokio::time::error::Elapsed;
use tokio::time::{sleep, sleep_until, timeout};

use super::Overview;
use super::key::{self, IdempotencyKey};
use super::problem::HttpProblem;
use crate::daemon::{
    CoordinatorActor, LinearizableRead, OperatorRequest, Query, QueryContext, RequestError,
    RequestResult,
};
use crate::node::ReachableVoters;

/// How long an overview is new enough for a client that takes a stale answer.
const STALE_OVERVIEW_MAX_AGE: Duration = Duration::from_millis(100);
/// The time between two questions if the answer must be new.
const ACTOR_QUERY_INTERVAL: Duration = Duration::from_millis(20);
/// How long an answer may take.
const ACTOR_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the log may take to agree to a change.
const AGREEMENT_TIMEOUT: Duration = Duration::from_secs(10);

/// The time between two questions how far a checkpoint is read.
const VERIFICATION_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// An answer to an operator's message, or what kept it away.
type TimedAnswer = Result<Result<RequestResult, oneshot::error::RecvError>, Elapsed>;

/// An overview, and when the client asked for it.
type CachedOverview = Mutex<Option<(Instant, Arc<Overview>)>>;

/// The actor, and its last answers.
pub(super) struct ActorClient {
    coordinator: Addr<CoordinatorActor>,
    latest: CachedOverview,
    confirmed: CachedOverview,
    /// When the client may ask for the next page.
    next_page: Mutex<Instant>,
    /// The id of the newest request. A task that changes something holds the lock.
    change: Mutex<RequestId>,
}

impl ActorClient {
    pub(super) fn new(coordinator: Addr<CoordinatorActor>) -> Self {
        let next_page = Mutex::new(Instant::now());
        // Without a random number two processes would take each other's requests for their own
        // repeated.
        let client = getrandom::u64().expect("the system has random numbers");
        let change = Mutex::new(RequestId { client, number: 0 });
        let (latest, confirmed) = Default::default();
        Self { coordinator, latest, confirmed, next_page, change }
    }

    /// The state of everything. With `stale`: its state a moment ago, as far as this coordinator
    /// knows.
    pub(super) async fn overview(&self, stale: bool) -> Result<Arc<Overview>, HttpProblem> {
        match stale {
            true => in_time(self.known_overview()).await,
            false => self.agreed(self.confirmed_overview()).await,
        }
    }

    /// A page of numbered items.
    pub(super) async fn page<A: Send + 'static>(
        &self,
        stale: bool,
        question: impl FnOnce(&QueryContext<'_>) -> A + Send + 'static,
    ) -> Result<A, HttpProblem> {
        let page = async {
            let mut next = self.next_page.lock().await;
            sleep_until((*next).into()).await;
            *next = Instant::now() + ACTOR_QUERY_INTERVAL;
            if !stale {
                self.confirm().await?;
            }
            self.ask(question).await
        };
        if stale { in_time(page).await } else { self.agreed(page).await }
    }

    async fn known_overview(&self) -> Result<Arc<Overview>, HttpProblem> {
        let mut latest = self.latest.lock().await;
        if let Some((at, overview)) = &*latest
            && at.elapsed() < STALE_OVERVIEW_MAX_AGE
        {
            return Ok(overview.clone());
        }
        let overview = Arc::new(self.ask(Overview::of).await?);
        *latest = Some((Instant::now(), overview.clone()));
        Ok(overview)
    }

    async fn confirmed_overview(&self) -> Result<Arc<Overview>, HttpProblem> {
        let called = Instant::now();
        let mut newest = self.confirmed.lock().await;
        if let Some((asked, overview)) = &*newest {
            if *asked > called {
                return Ok(overview.clone());
            }
            sleep_until((*asked + ACTOR_QUERY_INTERVAL).into()).await;
        }
        let asked = Instant::now();
        self.confirm().await?;
        let overview = Arc::new(self.ask(Overview::of).await?);
        *newest = Some((asked, overview.clone()));
        Ok(overview)
    }

    /// Waits until the actor may answer from its knowledge.
    async fn confirm(&self) -> Result<(), HttpProblem> {
        let (answer, answered) = oneshot::channel();
        self.coordinator.do_send(LinearizableRead(answer));
        match answered.await {
            Ok(looked) => looked.map_err(|refusal| HttpProblem::elsewhere(refusal.to_string())),
            Err(_) => Err(stopping()),
        }
    }

    /// Waits for an answer that rests on an agreed state. If none comes, says why.
    async fn agreed<T>(
        &self,
        wanted: impl Future<Output = Result<T, HttpProblem>>,
    ) -> Result<T, HttpProblem> {
        match timeout(ACTOR_ANSWER_TIMEOUT, wanted).await {
            Ok(answer) => answer,
            Err(_) => {
                let ReachableVoters { reached, all } = self.find(|known| known.reachable).await?;
                Err(HttpProblem::unconfirmed(reached, all))
            }
        }
    }

    /// Has the log agree to a command, or returns the coordinator's reason against it. Returns the
    /// run's id if the command was to train one.
    pub(super) async fn command(
        &self,
        key: IdempotencyKey,
        command: OperatorCommand,
    ) -> Result<Option<RunId>, HttpProblem> {
        let asked = command.clone();
        let agreed = self.change(key, |id| Message::Request { id, command }).await;
        if let (Some(id), Err(problem)) = (key.id(), &agreed)
            && problem.status.is_client_error()
            && self.find(move |known| known.core.state().has_decided_another(id, &asked)).await?
        {
            return Err(key::reused());
        }
        agreed
    }

    /// Looks something up in this coordinator's present knowledge.
    pub(super) async fn find<A: Send + 'static>(
        &self,
        question: impl FnOnce(&QueryContext<'_>) -> A + Send + 'static,
    ) -> Result<A, HttpProblem> {
        in_time(self.ask(question)).await
    }

    /// Has the cluster agree to an operator's message, or returns the coordinator's reason against
    /// it.
    pub(super) async fn change(
        &self,
        key: IdempotencyKey,
        message: impl FnOnce(RequestId) -> Message,
    ) -> Result<Option<RunId>, HttpProblem> {
        let agreed = self.answer_to(key, message).await?;
        // A client that asks now sees the change.
        *self.latest.lock().await = None;
        outcome(key, agreed)
    }

    /// Waits until a worker has read the checkpoint of a step whole, or returns why that one may
    /// not be gone back to. A reading that takes long goes on, and the client may ask again.
    pub(super) async fn verify(&self, key: IdempotencyKey, step: Step) -> Result<(), HttpProblem> {
        let until = Instant::now() + AGREEMENT_TIMEOUT;
        loop {
            let answered = self.answer_to(key, |_| Message::AskVerification { step }).await?;
            match &answered {
                Ok(Ok(Err(RequestError::Unverified(state))))
                    if is_under_way(state) && Instant::now() < until => {}
                _ => return outcome(key, answered).map(drop),
            }
            sleep(VERIFICATION_POLL_INTERVAL).await;
        }
    }

    /// The coordinator's answer to an operator's message, if it comes in time.
    async fn answer_to(
        &self,
        key: IdempotencyKey,
        message: impl FnOnce(RequestId) -> Message,
    ) -> Result<TimedAnswer, HttpProblem> {
        let mut newest = within_timeout(self.change.lock()).await?;
        newest.number += 1;
        let (answer, answered) = oneshot::channel();
        let message = message(key.id().unwrap_or(*newest));
        self.coordinator.do_send(OperatorRequest { message, answer });
        Ok(timeout(AGREEMENT_TIMEOUT, answered).await)
    }

    async fn ask<A: Send + 'static>(
        &self,
        question: impl FnOnce(&QueryContext<'_>) -> A + Send + 'static,
    ) -> Result<A, HttpProblem> {
        self.coordinator.send(Query(Box::new(question))).await.map_err(|_| stopping())
    }
}

/// What an answer means for the client.
fn outcome(key: IdempotencyKey, answered: TimedAnswer) -> Result<Option<RunId>, HttpProblem> {
    match answered {
        Ok(Ok(Ok(run))) => Ok(run),
        Ok(Ok(Err(RequestError::Refused(reason)))) => Err(HttpProblem::rejected(&reason)),
        Ok(Ok(Err(RequestError::Unverified(state)))) => Err(HttpProblem::unverified(&state)),
        Ok(Ok(Err(RequestError::NotLeader(place)))) => {
            let words = place.to_string();
            Err(HttpProblem::new(StatusCode::SERVICE_UNAVAILABLE, words, "ask there"))
        }
        Ok(Err(_)) => Err(stopping()),
        undecided => {
            let error = match undecided {
                Err(_) => "the coordinators have not agreed to it in time, but they may yet",
                Ok(_) => "another coordinator has come to lead, and it may yet be agreed to",
            };
            let next = match key.id() {
                Some(_) => "ask the coordinator that leads again, with the same `Idempotency-Key`",
                None => "look at /api/v1/status, and ask again if nothing has changed",
            };
            Err(HttpProblem::new(StatusCode::GATEWAY_TIMEOUT, error, next))
        }
    }
}

/// Whether a verdict on a checkpoint may come in a moment.
fn is_under_way(state: &Verification) -> bool {
    matches!(state, Verification::Reading { .. } | Verification::NoReader)
}

fn stopping() -> HttpProblem {
    HttpProblem::unready("the coordinator stops")
}

/// Waits for the actor, or for other tasks that wait for it.
async fn within_timeout<T>(wanted: impl Future<Output = T>) -> Result<T, HttpProblem> {
    let silent = |_| HttpProblem::unready("the coordinator does not answer");
    timeout(ACTOR_ANSWER_TIMEOUT, wanted).await.map_err(silent)
}

async fn in_time<T>(
    wanted: impl Future<Output = Result<T, HttpProblem>>,
) -> Result<T, HttpProblem> {
    within_timeout(wanted).await?
}

impl Overview {
    fn of(known: &QueryContext<'_>) -> Self {
        let count = |role| known.peers.iter().filter(|peer| **peer == role).count() as u64;
        let roles = [Role::Coordinator, Role::Operator, Role::Worker];
        Self {
            cluster: known.core.cluster_view(known.now),
            runs: known.core.runs(known.now),
            tokens: known.core.state().tokens().views(),
            tally: known.history.tally().clone(),
            under_protected: known.history.under_protected(),
            links: ["coordinator", "operator", "worker"]
                .into_iter()
                .zip(roles.map(count))
                .collect(),
            coordinators: known.coordinators.clone(),
            applied: known.core.state().index(),
            is_led: known.leader.is_some(),
        }
    }
}
