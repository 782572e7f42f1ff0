//! Operators that want tokens made and revoked, and ask which there are: each at whichever
//! coordinator comes to its mind, one question at a time, said again elsewhere, under the same
//! number, until it is answered. One story must explain all that they are told (I9).

use std::time::Duration;

use everstep_coordinator::core::LinkId;
use everstep_coordinator::seat::Input;
use everstep_transport::identity::{AcceptedToken, Identity, JoinToken, Role, Terms, TokenId};
use everstep_transport::protocol::{Message, NodeName, Question, Reply, RequestId, Wish};

use super::types::Happening;
use super::{Node, World};
use crate::check::{Answer, Call, Observation, TOKENS, Violation};

/// So many of them there are.
pub const CLIENTS: usize = 3;
/// So much each of them asks for in a run.
const QUESTIONS: u64 = 30;
/// So long each waits for an answer before it asks elsewhere.
const PATIENCE: Duration = Duration::from_millis(400);
/// Between an answer and the next question, at most.
const PAUSE: Duration = Duration::from_millis(600);

/// What the digit 0 stands for in a token's text.
const FIRST: u8 = 52;

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
    /// On which link it waits for an answer that has no number.
    lists: Option<u64>,
}

/// A token of this number, the same in every run.
fn token(number: u64) -> (TokenId, AcceptedToken) {
    let text = format!("es1.AAAAAAAAAAA{number}.{}.{}", "A".repeat(43), "A".repeat(43));
    let token: JoinToken = text.parse().expect("the form of a token");
    let mut id = TokenId::default();
    id[8] = FIRST + number as u8;
    (id, token.accepted(Terms::unlimited(Role::Worker)))
}

/// Which one it is.
fn number(id: &TokenId) -> u8 {
    id[8] - FIRST
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
        if let Some(link) = self.clients[client].lists.take() {
            self.give_up(Node::Client(client), link);
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
            self.clients[client].lists =
                self.links.number(own, peer).filter(|_| call == Call::List);
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
        match self.random.below(3) {
            0 => Call::Create(number),
            1 => Call::Revoke(number),
            _ => Call::List,
        }
    }

    /// Whoever leads, more often than not.
    fn whom_to_ask(&mut self, client: usize) -> usize {
        let any = self.random.below(self.coordinators.len() as u64) as usize;
        let leader = self.clients[client].leader.take();
        leader.filter(|_| self.random.below(4) > 0).unwrap_or(any)
    }

    /// A coordinator has told a client something.
    pub(super) fn told_client(
        &mut self,
        client: usize,
        from: Node,
        message: Message,
    ) -> Result<(), Violation> {
        let answer = match message {
            Message::Coordinators { leader, .. } => {
                self.clients[client].leader = leader.and_then(|id| self.place_of(id));
                return Ok(());
            }
            Message::Answer { id, refusal, .. } if id.number == self.clients[client].number => {
                if refusal.is_some() {
                    Answer::Refused
                } else {
                    Answer::Granted
                }
            }
            Message::Told(Reply::Tokens(tokens)) => {
                let link = self.links.number(Node::Client(client), from);
                if self.clients[client].lists.take_if(|lists| Some(*lists) == link).is_none() {
                    return Ok(());
                }
                Answer::Listed(tokens.iter().map(|token| 1 << number(&token.id)).sum())
            }
            _ => return Ok(()),
        };
        if self.clients[client].question.take().is_none() {
            return Ok(());
        }
        self.observe(Observation::Answered(client as u64, answer))?;
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
            Call::List => Message::Ask(Question::Tokens),
        }
    }
}
