//! Where answers come from: the coordinator's actor, asked as seldom as will do.
//!
//! However many clients there are, and however fast they ask, the actor is asked a bounded number
//! of times a second: whoever wants an overview gets the newest, which is at most so old; whoever
//! wants a page waits for its turn; and of what changes something, one is under way at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::Addr;
use actix_web::http::StatusCode;
use everstep_transport::identity::Role;
use everstep_transport::protocol::Message;
use tokio::sync::{Mutex, oneshot};
use tokio::time::{sleep_until, timeout};

use super::Overview;
use super::problem::Problem;
use crate::daemon::{Ask, Coordinator, Known, Petition};

/// For so long an overview is new enough.
const FRESH: Duration = Duration::from_millis(100);
/// From one page to the next.
const PACE: Duration = Duration::from_millis(20);
/// How long the actor may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the log may take to agree to a change.
const AGREEMENT: Duration = Duration::from_secs(10);

/// The actor, and what it said last.
pub(super) struct Source {
    coordinator: Addr<Coordinator>,
    latest: Mutex<Option<(Instant, Arc<Overview>)>>,
    /// When the next page may be asked for.
    next_page: Mutex<Instant>,
    /// Held by whoever changes something.
    change: Mutex<()>,
}

impl Source {
    pub(super) fn new(coordinator: Addr<Coordinator>) -> Self {
        let next_page = Mutex::new(Instant::now());
        Self { coordinator, latest: Mutex::default(), next_page, change: Mutex::default() }
    }

    /// How everything stands, or stood a moment ago.
    pub(super) async fn overview(&self) -> Result<Arc<Overview>, Problem> {
        let mut latest = patiently(self.latest.lock()).await?;
        if let Some((at, overview)) = &*latest
            && at.elapsed() < FRESH
        {
            return Ok(overview.clone());
        }
        let overview = Arc::new(self.ask(Overview::of).await?);
        *latest = Some((Instant::now(), overview.clone()));
        Ok(overview)
    }

    /// A page of what is numbered.
    pub(super) async fn page<A: Send + 'static>(
        &self,
        question: impl FnOnce(&Known<'_>) -> A + Send + 'static,
    ) -> Result<A, Problem> {
        let mut next = patiently(self.next_page.lock()).await?;
        sleep_until((*next).into()).await;
        *next = Instant::now() + PACE;
        self.ask(question).await
    }

    /// Has an operator's message agreed to by the log, or says in the coordinator's words why not.
    pub(super) async fn change(&self, message: Message) -> Result<(), Problem> {
        let _turn = patiently(self.change.lock()).await?;
        let (answer, answered) = oneshot::channel();
        self.coordinator.do_send(Petition { message, answer });
        let agreed = timeout(AGREEMENT, answered).await;
        // Whoever asks now sees what has changed.
        *self.latest.lock().await = None;
        match agreed {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(reason))) => {
                let next = "look at /api/v1/status for how the run stands";
                Err(Problem::new(StatusCode::CONFLICT, reason, next))
            }
            Ok(Err(_)) => Err(Problem::unready("the coordinator stops")),
            Err(_) => {
                let error = "the coordinators have not agreed to it in time; they may yet";
                let next = "look at /api/v1/status, and ask again if nothing has changed";
                Err(Problem::new(StatusCode::GATEWAY_TIMEOUT, error, next))
            }
        }
    }

    async fn ask<A: Send + 'static>(
        &self,
        question: impl FnOnce(&Known<'_>) -> A + Send + 'static,
    ) -> Result<A, Problem> {
        let answer = patiently(self.coordinator.send(Ask(Box::new(question)))).await?;
        answer.map_err(|_| Problem::unready("the coordinator stops"))
    }
}

/// Waits for the actor, or for others who wait for it.
async fn patiently<T>(wanted: impl Future<Output = T>) -> Result<T, Problem> {
    let silent = |_| Problem::unready("the coordinator does not answer");
    timeout(PATIENCE, wanted).await.map_err(silent)
}

impl Overview {
    fn of(known: &Known<'_>) -> Self {
        let count = |role| known.peers.iter().filter(|peer| **peer == role).count() as u64;
        let roles = [Role::Coordinator, Role::Operator, Role::Worker];
        Self {
            cluster: known.core.cluster_view(known.now),
            tally: known.history.tally().clone(),
            under_protected: known.history.under_protected(),
            links: ["coordinator", "operator", "worker"]
                .into_iter()
                .zip(roles.map(count))
                .collect(),
            coordinators: known.coordinators.clone(),
        }
    }
}
