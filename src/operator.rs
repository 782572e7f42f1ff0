//! An operator of a cluster: asks whoever leads the coordinators, wherever that is by now.
//!
//! In: an operator's credentials, and where some of the coordinators listen. Out: answers of the
//! one that leads. It keeps a link to every coordinator, so that the next leader can be asked
//! without a handshake; what is not answered is asked again, there or elsewhere. A request carries
//! an id, with which it is carried out once, however often it is said. For how long there may be no
//! answer is bounded, and then it is said how the coordinators stand.
//!
//! It knows neither who starts coordinators nor what the answers are wanted for.

mod call;
mod circle;
mod error;
mod place;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use everstep_transport::identity::{Credentials, JoinToken, Terms};
use everstep_transport::protocol::outcome::Update;
use everstep_transport::protocol::question::{
    CoordinatorStanding, RevokedView, RunView, TokenView,
};
use everstep_transport::protocol::{
    CoordinatorId, CoordinatorView, Message, NodeName, Question, Reply, RequestId, RunId, RunSpec,
    Step, Term, Wish,
};
use everstep_transport::quic::{Endpoint, Settings};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use call::Heard;
use circle::Circle;
pub(crate) use error::OperatorError;
pub(crate) use place::Place;

/// An operator of the cluster. Dropped, it hangs up.
pub(crate) struct Operator {
    endpoint: Arc<Endpoint>,
    circle: Circle,
    heard: mpsc::Receiver<Heard>,
    /// Drawn once; with a number it names a request.
    client: u64,
    number: u64,
    /// Whose lines are told.
    run: Option<RunId>,
}

/// How the coordinators stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The term of the one that leads.
    pub(crate) term: Term,
    /// All of them, by id.
    pub(crate) coordinators: Vec<CoordinatorStanding>,
}

/// How long a question may be without an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// After this time the leader is asked again: it may not have been ready to answer.
const AGAIN: Duration = Duration::from_millis(500);
/// It is asked again after this part of the time, if all that is said is who leads.
const SOON: u32 = 10;
/// What coordinators may have said that nobody has looked at.
const UNHEARD: usize = 64;

/// Newer than any line and any event: whoever has these asks for workers alone.
pub(crate) const NEWEST: u64 = u32::MAX as u64;

impl Operator {
    /// One with the credentials in this folder, that calls coordinators there.
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
        let (tell, heard) = mpsc::channel(UNHEARD);
        let circle = Circle::around(endpoint.clone(), tell, coordinators);
        let (client, number, run) = (u64::from_le_bytes(client), 0, None);
        Ok(Self { endpoint, circle, heard, client, number, run })
    }

    /// The next request's id.
    pub(crate) fn next_id(&mut self) -> RequestId {
        self.number += 1;
        RequestId { client: self.client, number: self.number }
    }

    /// Has something changed, once, however often it is said with this id.
    ///
    /// # Errors
    /// [`OperatorError`]; unanswered, it may have been changed or may yet be.
    pub(crate) async fn request(
        &mut self,
        id: RequestId,
        wish: Wish,
    ) -> Result<Option<RunId>, OperatorError> {
        self.ask(Message::Request { id, wish }, |answer| answer_to(id, answer)).await?
    }

    /// Submits a run, and watches it from now on.
    pub(crate) async fn submit(
        &mut self,
        id: RequestId,
        run: RunSpec,
    ) -> Result<Option<RunId>, OperatorError> {
        self.run = self.request(id, Wish::Submit(run)).await?;
        Ok(self.run)
    }

    /// What is new since this step's line and this event; and all workers. Lines and events are
    /// told once each and in order, whoever leads.
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
        update.workers = self.circle.workers();
        Ok(update)
    }

    /// How the coordinators stand, as the one that leads knows.
    pub(crate) async fn standing(&mut self) -> Result<Standing, OperatorError> {
        self.ask(Message::Ask(Question::Coordinators), |said| match said {
            Message::Told(Reply::Coordinators { term, coordinators, .. }) => {
                Some(Standing { term, coordinators })
            }
            _ => None,
        })
        .await
    }

    /// The tokens that admit nodes.
    pub(crate) async fn tokens(&mut self) -> Result<Vec<TokenView>, OperatorError> {
        self.ask(Message::Ask(Question::Tokens), |said| match said {
            Message::Told(Reply::Tokens(tokens)) => Some(tokens),
            _ => None,
        })
        .await
    }

    /// The newest runs that are over, and last the one under way.
    pub(crate) async fn runs(&mut self) -> Result<Vec<RunView>, OperatorError> {
        self.ask(Message::Ask(Question::Runs), |said| match said {
            Message::Told(Reply::Runs(runs)) => Some(runs),
            _ => None,
        })
        .await
    }

    /// The revoked workers and operators.
    pub(crate) async fn revoked(&mut self) -> Result<Vec<RevokedView>, OperatorError> {
        self.ask(Message::Ask(Question::Revoked), |said| match said {
            Message::Told(Reply::Revoked(revoked)) => Some(revoked),
            _ => None,
        })
        .await
    }

    /// Has a new token accepted, and returns it: whoever has it can join.
    pub(crate) async fn create_token(&mut self, terms: Terms) -> Result<JoinToken, OperatorError> {
        let token = JoinToken::for_cluster_of(&self.endpoint.credentials());
        let token = token.map_err(|error| OperatorError::Unusable(error.to_string()))?;
        self.wish(Wish::CreateToken(token.accepted(terms))).await?;
        Ok(token)
    }

    /// Has something changed, once.
    pub(crate) async fn wish(&mut self, wish: Wish) -> Result<Option<RunId>, OperatorError> {
        let id = self.next_id();
        self.request(id, wish).await
    }

    /// Lets this coordinator lead; returns when it does.
    pub(crate) async fn transfer(&mut self, to: CoordinatorId) -> Result<(), OperatorError> {
        let id = self.next_id();
        let question = Message::Transfer { id, to: Some(to) };
        self.ask(question, |answer| answer_to(id, answer)).await?.map(drop)
    }

    /// Says that a worker's process has ended. Whether that is heard, nobody says.
    pub(crate) fn exited(&self, name: NodeName, how: String) {
        self.circle.tell_leader(Message::Exited { name, how });
    }

    /// The coordinators, as they have told of themselves so far.
    pub(crate) fn coordinators(&self) -> &[CoordinatorView] {
        self.circle.members()
    }

    /// Which of them leads, if that is known.
    pub(crate) fn leader(&self) -> Option<CoordinatorId> {
        self.circle.leader_id()
    }

    /// The newest term that any of them has told of.
    pub(crate) fn term(&self) -> Term {
        self.circle.term()
    }

    /// Whether there is a link to the coordinator at this address.
    pub(crate) fn hears(&self, address: SocketAddr) -> bool {
        self.circle.hears(address)
    }

    /// Hangs up in good order.
    pub(crate) async fn close(mut self) {
        self.hang_up().await;
    }

    /// The same for an operator that stays in place and is asked no more.
    pub(crate) async fn hang_up(&mut self) {
        self.circle.hang_up();
        self.endpoint.close("the operator has no more questions").await;
    }

    /// Asks whoever leads until `wanted` finds an answer in what that one says.
    async fn ask<T>(
        &mut self,
        question: Message,
        mut wanted: impl FnMut(Message) -> Option<T>,
    ) -> Result<T, OperatorError> {
        let began = Instant::now();
        let deadline = began + PATIENCE;
        let (mut asked, mut until) = (None, began);
        loop {
            let (leader, now) = (self.circle.leader(), Instant::now());
            if now >= deadline {
                return Err(OperatorError::Unanswered(self.circle.standing()));
            }
            if asked != leader || now >= until {
                asked = leader;
                until = now + if leader.is_some() { AGAIN } else { AGAIN / SOON };
                match leader {
                    Some(_) => self.circle.tell_leader(question.clone()),
                    None => self.circle.introduce(),
                }
            }
            match self.hear(until.min(deadline)).await {
                Some((from, said)) if asked == Some(from) => {
                    if let Some(answer) = wanted(said) {
                        return Ok(answer);
                    }
                }
                Some(_) => {}
                // It may be that this was the answer: it did not lead, or not yet.
                None => until = until.min(now + AGAIN / SOON),
            }
        }
    }

    /// What is said next, and where; none once more is known of who leads, or it is time.
    async fn hear(&mut self, until: Instant) -> Option<(SocketAddr, Message)> {
        let heard = timeout_at(until, self.heard.recv()).await.ok()??;
        self.circle.take(heard)
    }
}

/// Where to be heard by them.
fn listening(coordinators: &[SocketAddr]) -> IpAddr {
    match coordinators.iter().find(|address| !address.ip().is_loopback()) {
        None => Ipv4Addr::LOCALHOST.into(),
        Some(SocketAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
        Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// What has become of the request with this id, if that is said.
fn answer_to(id: RequestId, said: Message) -> Option<Result<Option<RunId>, OperatorError>> {
    match said {
        Message::Answer { id: of, refusal, run } if of == id => {
            Some(refusal.map_or(Ok(run), |reason| Err(OperatorError::Refused(reason))))
        }
        _ => None,
    }
}

/// Whether this goes on where the asker was: the answer to a question that was said twice may be
/// that to an older one. What is missing behind that is lost.
fn follows(update: &Update, step: Step, event: u64) -> bool {
    update.step == step && update.event == event
}

#[cfg(test)]
mod tests;
