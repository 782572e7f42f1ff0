//! Operators that want tokens made and revoked: each at whichever coordinator comes to its mind, one
//! question at a time, said again elsewhere under the same number until it is answered. What they
//! are told must be in order (I9).

use std::time::Duration;

use everstep_coordinator::core::LinkId;
use everstep_coordinator::seat::Input;
use everstep_transport::identity::{AcceptedToken, Identity, JoinToken, Role, Terms, TokenId};
use everstep_transport::protocol::{Message, NodeName, RequestId, Wish};

use super::types::Happening;
use super::{Node, World};
use crate::check::{Call, Observation, Violation};

/// So many of them there are.
pub const CLIENTS: usize = 3;
/// So many tokens they speak of.
const TOKENS: u64 = 3;
/// So much each of them asks for in a run.
const QUESTIONS: u64 = 30;
/// So long each waits for an answer before it asks elsewhere.
const PATIENCE: Duration = Duration::from_millis(400);
/// Between an answer and the next question, at most.
const PAUSE: Duration = Duration::from_millis(600);

/// One of them.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// How much it has asked for: the number of the question under way.
    number: u64,
    question: Option<Call>,
    /// Who leads, as far as it was told.
    leader: Option<usize>,
    /// How often it has asked, that what it waits for in vain can be told from what it has.
    attempt: u64,
}

/// A token of this number, the same in every run.
fn token(number: u64) -> (TokenId, AcceptedToken) {
    let text = format!("es1.AAAAAAAAAAA{number}.{}.{}", "A".repeat(43), "A".repeat(43));
    let token: JoinToken = text.parse().expect("the form of a token");
    let mut id = TokenId::default();
    id[8] = 52 + number as u8; // what the digit stands for in the text
    (id, token.accepted(Terms::unlimited(Role::Worker)))
}

impl World {
    /// A client reaches a coordinator.
    pub(super) fn connect_client(&mut self, client: usize, place: usize) -> Result<(), Violation> {
        let name = NodeName::parse(&format!("client-{client}")).expect("a valid name");
        let identity = Identity { role: Role::Operator, name };
        let link = LinkId(self.link(Node::Client(client), Node::Coordinator(place)));
        self.coordinate(place, Input::Connected { link, identity })
    }

    /// A client asks for something, or asks again.
    pub(super) fn ask(&mut self, client: usize, attempt: u64) -> Result<(), Violation> {
        if self.clients[client].attempt != attempt {
            return Ok(());
        }
        let call = match self.clients[client].question {
            Some(call) => call,
            None if self.clients[client].number == QUESTIONS => return Ok(()),
            None => {
                let call = self.think();
                self.clients[client].question = Some(call);
                self.clients[client].number += 1;
                self.observe(Observation::Asked(client as u64, call))?;
                call
            }
        };
        let place = self.whom_to_ask(client);
        let (own, peer) = (Node::Client(client), Node::Coordinator(place));
        if self.links.is_open(own, peer) {
            let message = self.clients[client].words(client, call);
            self.say(own, peer, message);
        }
        self.ask_later(client, PATIENCE);
        Ok(())
    }

    fn ask_later(&mut self, client: usize, wait: Duration) {
        self.clients[client].attempt += 1;
        let attempt = self.clients[client].attempt;
        self.queue.put(self.now + wait, Happening::Ask { client, attempt });
    }

    fn think(&mut self) -> Call {
        let number = self.random.below(TOKENS);
        match self.random.below(2) {
            0 => Call::Create(number),
            _ => Call::Revoke(number),
        }
    }

    /// Whoever leads, more often than not.
    fn whom_to_ask(&mut self, client: usize) -> usize {
        let any = self.random.below(self.coordinators.len() as u64) as usize;
        let leader = self.clients[client].leader.take();
        leader.filter(|_| self.random.below(4) > 0).unwrap_or(any)
    }

    /// A coordinator has told a client something.
    pub(super) fn told_client(&mut self, client: usize, message: Message) -> Result<(), Violation> {
        let granted = match message {
            Message::Coordinators { leader, .. } => {
                self.clients[client].leader = leader.and_then(|id| self.place_of(id));
                return Ok(());
            }
            Message::Answer { id, refusal, .. } if id.number == self.clients[client].number => {
                refusal.is_none()
            }
            _ => return Ok(()),
        };
        if self.clients[client].question.take().is_none() {
            return Ok(());
        }
        self.observe(Observation::Answered(client as u64, granted))?;
        let pause = Duration::from_nanos(1 + self.random.below(PAUSE.as_nanos() as u64));
        self.ask_later(client, pause);
        Ok(())
    }
}

impl Client {
    fn words(&self, client: usize, call: Call) -> Message {
        let request = |wish| {
            let id = RequestId { client: client as u64 + 2, number: self.number };
            Message::Request { id, wish }
        };
        match call {
            Call::Create(number) => request(Wish::CreateToken(token(number).1)),
            Call::Revoke(number) => request(Wish::RevokeToken(token(number).0)),
        }
    }
}
