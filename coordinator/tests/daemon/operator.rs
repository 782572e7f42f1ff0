//! An operator that repeats a request, to whichever coordinator leads, until it has an answer.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use everstep_transport::identity::Credentials;
use everstep_transport::protocol::{Message, OperatorCommand, RequestId};
use tokio::time::timeout;

use crate::support::{Member, Node};

/// Longer than anything takes here, however busy the machine is.
const OPERATOR_TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long one coordinator may take before the operator asks another one.
const OPERATOR_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// An operator with one link at a time.
pub struct Operator {
    credentials: Credentials,
    /// The number of the newest request.
    number: u64,
    /// The link of the last answer.
    node: Option<Node>,
}

impl Operator {
    /// An operator with the credentials that this coordinator has made.
    pub fn of(member: &Member) -> Self {
        let credentials = Credentials::load(&member.path("operator")).expect("credentials");
        Self { credentials, number: 0, node: None }
    }

    /// Asks for a command until one of these coordinators has answered.
    pub async fn command(
        &mut self,
        members: &[Member],
        command: OperatorCommand,
    ) -> Result<(), String> {
        self.number += 1;
        let id = RequestId { client: 7, number: self.number };
        let start = Instant::now();
        loop {
            for address in members.iter().map(|member| member.address) {
                if let Ok(Some(answer)) =
                    timeout(OPERATOR_ANSWER_TIMEOUT, self.ask(address, id, &command)).await
                {
                    return answer;
                }
                self.node = None;
            }
            assert!(start.elapsed() < OPERATOR_TEST_TIMEOUT, "no coordinator answers");
        }
    }

    async fn ask(
        &mut self,
        address: SocketAddr,
        id: RequestId,
        command: &OperatorCommand,
    ) -> Option<Result<(), String>> {
        let node = match self.node.take() {
            Some(node) => node,
            None => Node::call(address, &self.credentials).await.ok()?,
        };
        node.link.send(Message::Request { id, command: command.clone() }).ok()?;
        loop {
            match node.link.receive().await.ok()? {
                Message::Answer { id: of, refusal, .. } if of == id => {
                    self.node = Some(node);
                    return Some(refusal.map_or(Ok(()), |reason| Err(reason.to_string())));
                }
                // It knows another leader, or none.
                Message::Coordinators { leader, members, .. } => {
                    let here = node.link.remote_address();
                    let there = members.iter().find(|view| view.address == here);
                    if there.is_none_or(|view| leader != Some(view.id)) {
                        return None;
                    }
                }
                _ => {}
            }
        }
    }
}
