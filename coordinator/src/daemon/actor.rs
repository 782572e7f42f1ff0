//! The actor around the core: inputs come as messages, effects are done at once.

use std::collections::BTreeMap;
use std::time::Instant;

use actix::{Actor, ActorContext, Addr, Context, Handler, Message, MessageResult};
use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::protocol::{self, News, Step, Term};
use everstep_transport::quic::{Encoded, Link, LinkError};
use everstep_transport::time::Time;
use tokio::sync::watch;

use super::CoordinatorError;
use super::asked::{Ask, Known, Petition, Petitions};
#[cfg(feature = "failpoints")]
use super::failpoint;
use super::journal::Journal;
use super::resume::Resumed;
use crate::core::{Core, Effect, Input, LinkId};
use crate::history::History;
use crate::log::{Agreed, LogError, Writer};

/// A link to a peer who has proved who it is.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Arrival {
    pub(super) id: LinkId,
    pub(super) link: Link,
}

/// A peer says something, or is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Happening(pub(super) Input);

/// Time has passed. Answers with what has stopped the coordinator, once something has.
#[derive(Message)]
#[rtype(result = "Result<(), CoordinatorError>")]
pub(super) struct Tick;

/// What the log's thread reports.
#[derive(Message)]
#[rtype(result = "()")]
struct Written(Result<Vec<Agreed>, LogError>);

/// The actor.
pub(crate) struct Coordinator {
    core: Core,
    links: BTreeMap<LinkId, Link>,
    /// Time zero.
    start: Instant,
    term: Term,
    writer: Writer,
    /// How many entries the writer has that are not applied.
    backlog: watch::Sender<usize>,
    journal: Journal,
    history: History,
    petitions: Petitions,
    /// A file has failed: nothing is done any more.
    failure: Option<CoordinatorError>,
}

impl Coordinator {
    pub(super) fn new(
        resumed: Resumed,
        backlog: watch::Sender<usize>,
        address: Addr<Coordinator>,
    ) -> Self {
        let Resumed { core, start, log, journal, history } = resumed;
        let term = log.term();
        // What waits there is bounded by the backlog.
        let writer = log.write(move |report| {
            #[cfg(feature = "failpoints")]
            report.iter().for_each(|entries| failpoint::on_appended(entries));
            address.do_send(Written(report));
        });
        Self {
            core,
            links: BTreeMap::new(),
            start,
            term,
            writer,
            backlog,
            journal,
            history,
            petitions: Petitions::default(),
            failure: None,
        }
    }

    /// The one place where a clock is read: at the start of every handler, since timers starve
    /// under load.
    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    fn happen(&mut self, input: Input) {
        if self.failure.is_some() {
            return;
        }
        #[cfg(feature = "failpoints")]
        let all_done = failpoint::on_input(&input);
        let now = self.now();
        self.core.handle(now, input);
        while let Some(effect) = self.core.poll_effect() {
            #[cfg(feature = "failpoints")]
            let done = failpoint::on_effect(&effect);
            if let Err(error) = self.act(effect) {
                // What follows in the queue may tell of what is not written.
                self.failure = Some(error);
                return;
            }
            #[cfg(feature = "failpoints")]
            done.pass();
        }
        #[cfg(feature = "failpoints")]
        all_done.pass();
        let state = self.core.state();
        self.petitions.look(state.run().filter(|_| *state.outcome() == Outcome::Running));
    }

    fn act(&mut self, effect: Effect) -> Result<(), CoordinatorError> {
        match effect {
            Effect::Send { to, message } if self.petitions.hear(to, &message) => {}
            Effect::Send { to, message } => self.send(to, &Encoded::new(&message)),
            Effect::Broadcast { to, message } => self.broadcast(&to, &message),
            Effect::Close { to, reason } => self.close(to, &reason),
            Effect::Propose(entry) => {
                self.backlog.send_modify(|waiting| *waiting += 1);
                self.history.proposed(self.now());
                self.writer.propose(entry);
            }
            Effect::History(frame) => frame.news.into_iter().try_for_each(|it| self.write(it))?,
            // It is the only one.
            Effect::Confirm { ticket } => {
                self.core.handle(self.now(), Input::Confirmed { ticket });
            }
            Effect::Admitted { .. } => {} // its gatekeeper asks nobody
        }
        Ok(())
    }

    fn write(&mut self, news: News) -> Result<(), CoordinatorError> {
        match news {
            News::Event(event) => {
                tracing::info!(number = event.number, kind = ?event.kind, "event");
                self.history.event(&event);
            }
            News::Lines(lines) => {
                self.history.recorded(&lines);
                self.journal.record(lines)?;
            }
            News::Forget(after) => self.journal.forget(after)?,
            News::Run(_) => self.journal.forget(Step(0))?,
        }
        Ok(())
    }

    fn broadcast(&self, to: &[LinkId], message: &protocol::Message) {
        let encoded = Encoded::new(message);
        for link in to {
            #[cfg(feature = "failpoints")]
            failpoint::on_broadcast(message);
            self.send(*link, &encoded);
        }
    }

    /// A peer that does not read is cut off; that a link is gone, its reader tells.
    fn send(&self, to: LinkId, message: &Encoded) {
        let Some(link) = self.links.get(&to) else { return };
        match link.send_encoded(message) {
            Ok(()) => {}
            Err(error @ (LinkError::Full | LinkError::TooLarge { .. })) => {
                tracing::warn!(peer = %link.identity(), %error, "a message was not sent");
                link.close(&error.to_string());
            }
            Err(error) => tracing::debug!(peer = %link.identity(), %error, "the link is gone"),
        }
    }

    fn close(&self, to: LinkId, reason: &str) {
        if let Some(link) = self.links.get(&to) {
            link.close(reason);
        }
    }
}

impl Actor for Coordinator {
    type Context = Context<Self>;

    /// The log knows of no other leader.
    fn started(&mut self, _: &mut Self::Context) {
        self.happen(Input::Elected { term: self.term });
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        tracing::info!(ignored_messages = self.core.ignored(), "the coordinator stops");
    }
}

impl Handler<Arrival> for Coordinator {
    type Result = ();

    fn handle(&mut self, Arrival { id, link }: Arrival, _: &mut Self::Context) {
        let identity = link.identity().clone();
        tracing::debug!(peer = %identity, link = id.0, "connected");
        self.links.insert(id, link);
        self.happen(Input::Connected { link: id, identity });
    }
}

impl Handler<Happening> for Coordinator {
    type Result = ();

    fn handle(&mut self, Happening(input): Happening, _: &mut Self::Context) {
        let gone = match &input {
            Input::Disconnected { link, .. } => Some(*link),
            _ => None,
        };
        self.happen(input);
        if let Some(link) = gone {
            self.links.remove(&link);
        }
    }
}

impl Handler<Tick> for Coordinator {
    type Result = Result<(), CoordinatorError>;

    fn handle(&mut self, Tick: Tick, context: &mut Self::Context) -> Self::Result {
        self.happen(Input::Tick);
        match self.failure.take() {
            None => Ok(()),
            Some(failure) => {
                context.stop();
                Err(failure)
            }
        }
    }
}

impl Handler<Written> for Coordinator {
    type Result = ();

    fn handle(&mut self, Written(report): Written, _: &mut Self::Context) {
        match report {
            Ok(entries) => {
                for Agreed { index, term, entry } in entries {
                    self.backlog.send_modify(|waiting| *waiting -= 1);
                    self.history.applied(self.now());
                    self.happen(Input::Applied { index, term, entry });
                }
            }
            Err(error) => self.failure = Some(error.into()),
        }
    }
}

impl<A: Send> Handler<Ask<A>> for Coordinator {
    type Result = MessageResult<Ask<A>>;

    fn handle(&mut self, Ask(question): Ask<A>, _: &mut Self::Context) -> Self::Result {
        let peers = self.links.values().map(|link| link.identity().role).collect();
        let (now, core, history) = (self.now(), &self.core, &self.history);
        MessageResult(question(&Known { now, core, history, peers }))
    }
}

impl Handler<Petition> for Coordinator {
    type Result = ();

    fn handle(&mut self, petition: Petition, _: &mut Self::Context) {
        for input in self.petitions.open(petition) {
            self.happen(input);
        }
    }
}

#[cfg(test)]
mod tests;
