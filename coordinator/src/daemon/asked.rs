//! What the HTTP API asks of the coordinator: to be told something, or to have something changed.
//!
//! A question is a function of what is known; it is answered at once. A petition is an operator's
//! message on a link of its own, which no peer can have: what the core says on that link is the
//! answer. There is at most one petition at a time; a newer one takes the place of one that nobody
//! waits for any more. Neither knows of HTTP.

use actix::Message;
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::{self, NodeName, RunSpec};
use everstep_transport::time::Time;
use tokio::sync::oneshot;

use crate::core::{Core, Input, LinkId};
use crate::history::History;

/// What a question is answered from.
pub(crate) struct Known<'a> {
    pub(crate) now: Time,
    pub(crate) core: &'a Core,
    pub(crate) history: &'a History,
    /// The peers that have a link.
    pub(crate) peers: Vec<Role>,
}

/// A question. Whoever asks bounds what it costs.
#[derive(Message)]
#[rtype(result = "A")]
pub(crate) struct Ask<A: 'static>(pub(crate) Question<A>);

/// See [`Ask`].
pub(crate) type Question<A> = Box<dyn FnOnce(&Known<'_>) -> A + Send>;

/// What an operator says, and where it waits for the answer: the core's words where it refuses.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Petition {
    pub(crate) message: protocol::Message,
    pub(crate) answer: oneshot::Sender<Result<(), String>>,
}

/// The first of the links that petitions have: above all that peers are given.
const FIRST_LINK: u64 = 1 << 63;

/// The petition under way.
#[derive(Default)]
pub(super) struct Petitions {
    count: u64,
    open: Option<Open>,
}

struct Open {
    link: LinkId,
    /// The run that was asked for: that it is accepted, the log says, and the core does not.
    run: Option<RunSpec>,
    answer: Option<oneshot::Sender<Result<(), String>>>,
}

impl Petitions {
    /// Takes a petition; returns what happens to the core by it.
    pub(super) fn open(&mut self, petition: Petition) -> Vec<Input> {
        let Petition { message, answer } = petition;
        let (link, name) = (LinkId(FIRST_LINK + self.count), NodeName::parse("http-api"));
        let run = match &message {
            protocol::Message::Submit(run) => Some(run.clone()),
            _ => None,
        };
        self.count += 1;
        let before = self.open.replace(Open { link, run, answer: Some(answer) });
        let closed = before.map(|open| {
            let reason = "it was answered, or nobody waited any more".into();
            Input::Disconnected { link: open.link, gone: true, reason }
        });
        let identity = Identity { role: Role::Operator, name: name.expect("a valid name") };
        let connected = Input::Connected { link, identity };
        closed.into_iter().chain([connected, Input::Message { from: link, message }]).collect()
    }

    /// Takes what the core says, if it says it on a petition's link.
    pub(super) fn hear(&mut self, to: LinkId, message: &protocol::Message) -> bool {
        if to.0 >= FIRST_LINK
            && let Some(open) = self.open.as_mut().filter(|open| open.link == to)
        {
            match message {
                protocol::Message::Accepted => open.answer(Ok(())),
                protocol::Message::Refused { reason } => open.answer(Err(reason.clone())),
                _ => {}
            }
        }
        to.0 >= FIRST_LINK
    }

    /// This is the run that the log knows, if it knows one.
    pub(super) fn look(&mut self, run: Option<&RunSpec>) {
        if let Some(open) = self.open.as_mut().filter(|open| open.run.is_some())
            && open.run.as_ref() == run
        {
            open.run = None;
            open.answer(Ok(()));
        }
    }
}

impl Open {
    fn answer(&mut self, answer: Result<(), String>) {
        if let Some(waits) = self.answer.take() {
            let _ = waits.send(answer); // an error means that nobody waits any more
        }
    }
}
