//! Where answers come from: the coordinator's actor, asked as seldom as will do.
//!
//! What is told is what all coordinators agree on: before it answers, the actor has a majority
//! confirm that it leads, and has applied all that was agreed by then (`daemon/looks.rs`). An
//! answer may serve others, too, but only those who asked before it was asked for. Who says that an
//! old answer will do gets what is known here, at most so old, and nobody is asked.
//!
//! However many clients there are, and however fast they ask, the actor is asked a bounded number
//! of times a second; and of what changes something, one is under way at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::Addr;
use actix_web::http::StatusCode;
use everstep_transport::identity::Role;
use everstep_transport::protocol::{Message, RequestId, RunId, Wish};
use tokio::sync::{Mutex, oneshot};
use tokio::time::{sleep_until, timeout};

use super::Overview;
use super::key::{self, Key};
use super::problem::Problem;
use crate::daemon::{Ask, Coordinator, Denial, Known, Look, Petition};

/// For so long an overview is new enough, where an old one will do.
const FRESH: Duration = Duration::from_millis(100);
/// From one question to the next, where the answer must be new.
const PACE: Duration = Duration::from_millis(20);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the log may take to agree to a change.
const AGREEMENT: Duration = Duration::from_secs(10);

/// An overview, and when it was asked for.
type Taken = Mutex<Option<(Instant, Arc<Overview>)>>;

/// The actor, and what it said last.
pub(super) struct Source {
    coordinator: Addr<Coordinator>,
    latest: Taken,
    confirmed: Taken,
    /// When the next page may be asked for.
    next_page: Mutex<Instant>,
    /// Held by whoever changes something: the newest request.
    change: Mutex<RequestId>,
}

impl Source {
    pub(super) fn new(coordinator: Addr<Coordinator>) -> Self {
        let next_page = Mutex::new(Instant::now());
        // Without chance two processes take each other's requests for their own repeated.
        let client = getrandom::u64().expect("the system has random numbers");
        let change = Mutex::new(RequestId { client, number: 0 });
        let (latest, confirmed) = Default::default();
        Self { coordinator, latest, confirmed, next_page, change }
    }

    /// How everything stands; with `stale`, how it stood a moment ago, as far as is known here.
    pub(super) async fn overview(&self, stale: bool) -> Result<Arc<Overview>, Problem> {
        match stale {
            true => in_time(self.known_overview()).await,
            false => self.agreed(self.confirmed_overview()).await,
        }
    }

    /// A page of what is numbered.
    pub(super) async fn page<A: Send + 'static>(
        &self,
        stale: bool,
        question: impl FnOnce(&Known<'_>) -> A + Send + 'static,
    ) -> Result<A, Problem> {
        let page = async {
            let mut next = self.next_page.lock().await;
            sleep_until((*next).into()).await;
            *next = Instant::now() + PACE;
            if !stale {
                self.confirm().await?;
            }
            self.ask(question).await
        };
        if stale { in_time(page).await } else { self.agreed(page).await }
    }

    async fn known_overview(&self) -> Result<Arc<Overview>, Problem> {
        let mut latest = self.latest.lock().await;
        if let Some((at, overview)) = &*latest
            && at.elapsed() < FRESH
        {
            return Ok(overview.clone());
        }
        let overview = Arc::new(self.ask(Overview::of).await?);
        *latest = Some((Instant::now(), overview.clone()));
        Ok(overview)
    }

    async fn confirmed_overview(&self) -> Result<Arc<Overview>, Problem> {
        let called = Instant::now();
        let mut newest = self.confirmed.lock().await;
        if let Some((asked, overview)) = &*newest {
            if *asked > called {
                return Ok(overview.clone());
            }
            sleep_until((*asked + PACE).into()).await;
        }
        let asked = Instant::now();
        self.confirm().await?;
        let overview = Arc::new(self.ask(Overview::of).await?);
        *newest = Some((asked, overview.clone()));
        Ok(overview)
    }

    /// Waits until the actor may answer from what it knows.
    async fn confirm(&self) -> Result<(), Problem> {
        let (answer, answered) = oneshot::channel();
        self.coordinator.do_send(Look(answer));
        match answered.await {
            Ok(looked) => looked.map_err(Problem::elsewhere),
            Err(_) => Err(stopping()),
        }
    }

    /// Waits for an answer that rests on what is agreed, and says why there is none.
    async fn agreed<T>(
        &self,
        wanted: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        match timeout(PATIENCE, wanted).await {
            Ok(answer) => answer,
            Err(_) => {
                let (reached, all) = self.find(|known| known.reachable).await?;
                Err(Problem::unconfirmed(reached, all))
            }
        }
    }

    /// Has a wish agreed to by the log, or says in the coordinator's words why not. Returns the
    /// run's id, if it was to train one.
    pub(super) async fn wish(&self, key: Key, wish: Wish) -> Result<Option<RunId>, Problem> {
        let asked = wish.clone();
        let agreed = self.change(key, |id| Message::Request { id, wish }).await;
        if let (Some(id), Err(problem)) = (key.id(), &agreed)
            && problem.status == StatusCode::CONFLICT
            && self.find(move |known| known.core.state().has_decided_another(id, &asked)).await?
        {
            return Err(key::reused());
        }
        agreed
    }

    /// What is found in what is known here, just now.
    pub(super) async fn find<A: Send + 'static>(
        &self,
        question: impl FnOnce(&Known<'_>) -> A + Send + 'static,
    ) -> Result<A, Problem> {
        in_time(self.ask(question)).await
    }

    /// Has an operator's message agreed to, or says in the coordinator's words why not.
    pub(super) async fn change(
        &self,
        key: Key,
        message: impl FnOnce(RequestId) -> Message,
    ) -> Result<Option<RunId>, Problem> {
        let mut newest = patiently(self.change.lock()).await?;
        newest.number += 1;
        let (answer, answered) = oneshot::channel();
        let message = message(key.id().unwrap_or(*newest));
        self.coordinator.do_send(Petition { message, answer });
        let agreed = timeout(AGREEMENT, answered).await;
        // Whoever asks now sees what has changed.
        *self.latest.lock().await = None;
        match agreed {
            Ok(Ok(Ok(run))) => Ok(run),
            Ok(Ok(Err(Denial::Refused(reason)))) => {
                let next = "look at /api/v1/status for how the run stands";
                Err(Problem::new(StatusCode::CONFLICT, reason, next))
            }
            Ok(Ok(Err(Denial::Elsewhere(words)))) => {
                Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, words, "ask there"))
            }
            Ok(Err(_)) => Err(stopping()),
            undecided => {
                let error = match undecided {
                    Err(_) => "the coordinators have not agreed to it in time; they may yet",
                    Ok(_) => "another coordinator has come to lead; it may yet be agreed to",
                };
                let next = match key.id() {
                    Some(_) => "ask again with the same `Idempotency-Key`, of whoever leads",
                    None => "look at /api/v1/status, and ask again if nothing has changed",
                };
                Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, error, next))
            }
        }
    }

    async fn ask<A: Send + 'static>(
        &self,
        question: impl FnOnce(&Known<'_>) -> A + Send + 'static,
    ) -> Result<A, Problem> {
        self.coordinator.send(Ask(Box::new(question))).await.map_err(|_| stopping())
    }
}

fn stopping() -> Problem {
    Problem::unready("the coordinator stops")
}

/// Waits for the actor, or for others who wait for it.
async fn patiently<T>(wanted: impl Future<Output = T>) -> Result<T, Problem> {
    let silent = |_| Problem::unready("the coordinator does not answer");
    timeout(PATIENCE, wanted).await.map_err(silent)
}

async fn in_time<T>(wanted: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    patiently(wanted).await?
}

impl Overview {
    fn of(known: &Known<'_>) -> Self {
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
