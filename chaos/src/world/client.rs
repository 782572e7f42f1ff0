//! Operators that have tokens made and revoked, and ask for the list of tokens. Each asks one
//! question at a time, at a coordinator of its choice. It repeats the question elsewhere, under the
//! same number, until it has an answer. One story must explain all answers (I9).

use std::sync::LazyLock;
use std::time::Duration;

use everstep_coordinator::core::{LinkId, ShellInput};
use everstep_transport::identity::{
    AcceptedToken, Identity, JoinToken, Role, TokenId, TokenLimits,
};
use everstep_transport::protocol::{
    Message, NodeName, OperatorCommand, Question, Reply, RequestId,
};

use super::types::Event;
use super::{NodeId, World};
use crate::check::{Observation, TOKENS, TokenAnswer, TokenRequest, Violation};

/// The number of clients.
pub const CLIENTS: usize = 3;
/// Questions that each client asks in a run.
const QUESTIONS: u64 = 30;
/// How long a client waits for an answer before it asks elsewhere.
const CLIENT_ANSWER_TIMEOUT: Duration = Duration::from_millis(400);
/// The longest pause between an answer and the next question.
const MAX_CLIENT_PAUSE: Duration = Duration::from_millis(600);

/// What the digit 0 stands for in a token's text.
const FIRST: u8 = 52;

/// An operator that asks for tokens, one request after the other.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// How many questions it has asked. This is also the number of the question under way.
    number: u64,
    question: Option<TokenRequest>,
    /// The place of the leader, if a coordinator has told it.
    leader: Option<usize>,
    /// How many waits it has begun. So a wait that is over is known from the present one.
    attempt: u64,
    /// The link on which it waits for a list, which is an answer without a number.
    lists: Option<u64>,
}

/// All tokens, by number. They are the same in every run, and their keys take long to derive.
static ALL_TOKENS: LazyLock<Vec<(TokenId, AcceptedToken)>> =
    LazyLock::new(|| (0..TOKENS).map(token).collect());

fn token(number: u64) -> (TokenId, AcceptedToken) {
    let text = format!("es1.AAAAAAAAAAA{number}.{}.{}", "A".repeat(43), "A".repeat(43));
    let token: JoinToken = text.parse().expect("the form of a token");
    let mut id = TokenId::default();
    id[8] = FIRST + number as u8;
    (id, token.accepted(TokenLimits::unlimited(Role::Worker)))
}

/// The number of the token with this id.
fn number(id: &TokenId) -> u8 {
    id[8] - FIRST
}

impl World {
    /// A client reaches a coordinator.
    pub(super) fn connect_client(&mut self, client: usize, place: usize) -> Result<(), Violation> {
        let name = NodeName::parse(&format!("client-{client}")).expect("a valid name");
        let identity = Identity { role: Role::Operator, name };
        let link = LinkId(self.link(NodeId::Client(client), NodeId::Coordinator(place)));
        self.step_coordinator(place, ShellInput::Connected { link, identity, address: None })
    }

    /// A client asks a question, or repeats it.
    pub(super) fn ask(&mut self, client: usize, attempt: u64) -> Result<(), Violation> {
        if self.clients[client].attempt != attempt {
            return Ok(());
        }
        if let Some(link) = self.clients[client].lists.take() {
            self.give_up(NodeId::Client(client), link);
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
        let (own, peer) = (NodeId::Client(client), NodeId::Coordinator(place));
        if self.network.links.is_open(own, peer) {
            let message = self.clients[client].words(client, call);
            self.clients[client].lists =
                self.network.links.number(own, peer).filter(|_| call == TokenRequest::List);
            self.say(own, peer, message);
        }
        self.ask_later(client, CLIENT_ANSWER_TIMEOUT);
        Ok(())
    }

    fn ask_later(&mut self, client: usize, wait: Duration) {
        self.clients[client].attempt += 1;
        let attempt = self.clients[client].attempt;
        self.queue.put(self.now + wait, Event::Ask { client, attempt });
    }

    fn think(&mut self) -> TokenRequest {
        let number = self.random.below(TOKENS);
        match self.random.below(3) {
            0 => TokenRequest::Create(number),
            1 => TokenRequest::Revoke(number),
            _ => TokenRequest::List,
        }
    }

    /// The leader, in three of four cases where the client knows it. Else any coordinator.
    fn whom_to_ask(&mut self, client: usize) -> usize {
        let any = self.random.below(self.coordinators.len() as u64) as usize;
        let leader = self.clients[client].leader.take();
        leader.filter(|_| self.random.below(4) > 0).unwrap_or(any)
    }

    /// A client hears from a coordinator.
    pub(super) fn told_client(
        &mut self,
        client: usize,
        from: NodeId,
        message: Message,
    ) -> Result<(), Violation> {
        let answer = match message {
            Message::Coordinators { leader, .. } => {
                self.clients[client].leader = leader.and_then(|id| self.place_of(id));
                return Ok(());
            }
            Message::Answer { id, refusal, .. } if id.number == self.clients[client].number => {
                if refusal.is_some() {
                    TokenAnswer::Refused
                } else {
                    TokenAnswer::Granted
                }
            }
            Message::Reply(Reply::Tokens(tokens)) => {
                let link = self.network.links.number(NodeId::Client(client), from);
                if self.clients[client].lists.take_if(|lists| Some(*lists) == link).is_none() {
                    return Ok(());
                }
                TokenAnswer::Listed(tokens.iter().map(|token| 1 << number(&token.id)).sum())
            }
            _ => return Ok(()),
        };
        if self.clients[client].question.take().is_none() {
            return Ok(());
        }
        self.observe(Observation::Answered(client as u64, answer))?;
        let pause = Duration::from_nanos(1 + self.random.below(MAX_CLIENT_PAUSE.as_nanos() as u64));
        self.ask_later(client, pause);
        Ok(())
    }
}

impl Client {
    fn words(&self, client: usize, call: TokenRequest) -> Message {
        let request = |command| {
            let id = RequestId { client: client as u64 + 2, number: self.number };
            Message::Request { id, command }
        };
        match call {
            TokenRequest::Create(number) => {
                let token = ALL_TOKENS[number as usize].1.clone();
                request(OperatorCommand::CreateToken(token))
            }
            TokenRequest::Revoke(number) => {
                request(OperatorCommand::RevokeToken(ALL_TOKENS[number as usize].0))
            }
            TokenRequest::List => Message::Ask(Question::Tokens),
        }
    }
}
