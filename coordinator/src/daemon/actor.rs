//! The actor around the core: inputs come as messages, effects are done at once.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use actix::{Actor, Context, Handler, Message};
use everstep_transport::quic::{Link, LinkError};
use everstep_transport::time::Time;

use crate::core::{Core, Effect, Input, LinkId};
use crate::state::Entry;

/// A link to a peer who has proved who it is.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Arrival {
    pub(super) id: LinkId,
    pub(super) link: Link,
}

/// Anything else that happens to a coordinator.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Happening(pub(super) Input);

pub(super) struct Coordinator {
    core: Core,
    links: BTreeMap<LinkId, Link>,
    /// Time zero.
    start: Instant,
    /// Index of the last entry in the log.
    index: u64,
    /// How many events were logged.
    logged: usize,
}

impl Coordinator {
    pub(super) fn new() -> Self {
        // A clock before 1970 is wrong anyway; it only stamps events.
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            core: Core::new(Time(0), unix.as_millis() as u64),
            links: BTreeMap::new(),
            start: Instant::now(),
            index: 0,
            logged: 0,
        }
    }

    /// The one place where a clock is read: at the start of every handler, since timers starve
    /// under load.
    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    fn happen(&mut self, input: Input) {
        let now = self.now();
        self.core.handle(now, input);
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::Send { to, message } => self.send(to, message),
                Effect::Broadcast { to, message } => {
                    to.into_iter().for_each(|link| self.send(link, message.clone()));
                }
                Effect::Close { to, reason } => self.close(to, &reason),
                Effect::Propose(entry) => self.propose(now, entry),
            }
        }
        for event in &self.core.state().events()[self.logged..] {
            tracing::info!(number = event.number, kind = ?event.kind, "event");
        }
        self.logged = self.core.state().events().len();
    }

    /// The seam that Raft fills: with one replica, an entry is in the log once it is proposed.
    fn propose(&mut self, now: Time, entry: Entry) {
        self.index += 1;
        self.core.handle(now, Input::Applied { index: self.index, entry });
    }

    /// A peer that does not read is cut off; that a link is gone, its reader tells.
    fn send(&self, to: LinkId, message: everstep_transport::protocol::Message) {
        let Some(link) = self.links.get(&to) else { return };
        match link.send(message) {
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
