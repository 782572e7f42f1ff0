//! Requests of the HTTP API to the coordinator: queries, and operators' requests for a change.
//!
//! A query is a function of the coordinator's knowledge, and gets its answer at once. A request
//! is an operator's message on a link of its own, which no peer can have. The core's message on
//! that link is the answer. A core that does not lead answers with the leader. If this coordinator
//! has come to lead by then, a request goes to the core once more. At most one request is open at
//! a time. A newer one replaces an older one, which has an answer or no waiting client. Neither
//! knows of HTTP.

use std::net::SocketAddr;

use actix::Message;
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::question::CoordinatorStatus;
use everstep_transport::protocol::reason::LinkEnd;
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{
    self, CoordinatorId, CoordinatorView, NodeName, RunId, Verification,
};
use everstep_transport::time::Time;
use tokio::sync::oneshot;

use super::history_file::HistoryFile;
use crate::core::{Core, LinkId, ShellInput};
use crate::history::HistorySummary;
use crate::line_file::LineFiles;
use crate::node::{NodeInput, ReachableVoters};
use crate::raft::ReplicaId;

/// The knowledge that answers a query.
pub(crate) struct QueryContext<'a> {
    pub(crate) now: Time,
    pub(crate) core: &'a Core,
    pub(crate) history: &'a HistorySummary,
    /// The metrics lines of the run.
    pub(crate) lines: &'a LineFiles,
    /// All events of the cluster.
    pub(crate) history_file: &'a HistoryFile,
    /// The roles of the peers that have a link.
    pub(crate) peers: Vec<Role>,
    /// The coordinators, by id.
    pub(crate) coordinators: Vec<CoordinatorStatus>,
    /// How many of the voting coordinators can be reached.
    pub(crate) reachable: ReachableVoters,
    /// The leader, as far as this coordinator knows.
    pub(crate) leader: Option<ReplicaId>,
}

/// A query. The asker bounds its cost.
#[derive(Message)]
#[rtype(result = "A")]
pub(crate) struct Query<A: 'static>(pub(crate) QueryFn<A>);

/// What a [`Query`] computes from what the actor knows.
pub(crate) type QueryFn<A> = Box<dyn FnOnce(&QueryContext<'_>) -> A + Send>;

/// The result of a request: the run's id, if it submitted one.
pub(crate) type RequestResult = Result<Option<RunId>, RequestError>;

/// Where to ask instead of a coordinator that does not lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotLeading {
    /// No coordinator is known to lead.
    #[error("no coordinator leads at the moment. Ask again in a second")]
    NoLeader,
    /// Another coordinator leads, and has an API.
    #[error("this coordinator does not lead. Ask coordinator {id}, at http://{api}{}", of(*api))]
    Elsewhere { id: CoordinatorId, api: SocketAddr },
    /// Another coordinator leads, and has no API.
    #[error("this coordinator does not lead, and coordinator {0}, which does, has no API")]
    WithoutApi(CoordinatorId),
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestError {
    /// The coordinators refuse it, for this reason.
    Refused(Rejection),
    /// This coordinator does not lead, and has done nothing.
    NotLeader(NotLeading),
    /// The checkpoint to go back to is not known to be whole.
    Unverified(Verification),
    /// This coordinator led, and then no longer. The change may yet happen, or be lost.
    Undecided,
}

/// An operator's message, and the channel for its answer.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct OperatorRequest {
    pub(crate) message: protocol::Message,
    pub(crate) answer: oneshot::Sender<RequestResult>,
}

/// The first of the links that requests have. Peers get lower numbers.
const FIRST_LINK: u64 = 1 << 63;

/// The request under way.
#[derive(Default)]
pub(super) struct OperatorRequests {
    count: u64,
    open: Option<OpenRequest>,
}

struct OpenRequest {
    link: LinkId,
    /// A request that came before this coordinator led. Its core may have kept nothing of it.
    early: Option<protocol::Message>,
    /// The request reached a core that led, so its change may happen.
    proposed: bool,
    /// The request asks this leader to step down.
    resigns: bool,
    answer: Option<oneshot::Sender<RequestResult>>,
}

impl OperatorRequests {
    /// Takes a request, and returns the inputs for the core. `leads` is whether this coordinator
    /// leads.
    pub(super) fn open(&mut self, request: OperatorRequest, leads: bool) -> Vec<NodeInput> {
        let OperatorRequest { message, answer } = request;
        let (link, name) = (LinkId(FIRST_LINK + self.count), NodeName::parse("http-api"));
        let is_request = matches!(message, protocol::Message::Request { .. });
        let asks = matches!(message, protocol::Message::AskVerification { .. });
        let early = ((is_request || asks) && !leads).then(|| message.clone());
        let resigns = leads && matches!(message, protocol::Message::Transfer { .. });
        self.count += 1;
        let before = self.open.replace(OpenRequest {
            link,
            early,
            proposed: is_request && leads,
            resigns,
            answer: Some(answer),
        });
        // The request before was answered, or its client waits no longer.
        let closed = before.map(|open| {
            let end = LinkEnd::SaidAll;
            NodeInput::Shell(ShellInput::Disconnected { link: open.link, end })
        });
        let identity = Identity { role: Role::Operator, name: name.expect("a valid name") };
        let connected = NodeInput::Shell(ShellInput::Connected { link, identity, address: None });
        closed
            .into_iter()
            .chain([connected, NodeInput::Shell(ShellInput::Message { from: link, message })])
            .collect()
    }

    /// Takes a message to a link, if the link is a request's. `leads` is whether this coordinator
    /// leads. Returns whether the link belongs to requests.
    pub(super) fn hear(&mut self, to: LinkId, message: &protocol::Message, leads: bool) -> bool {
        if to.0 >= FIRST_LINK
            && let Some(open) = self.open.as_mut().filter(|open| open.link == to)
        {
            match message {
                protocol::Message::Answer { refusal, run, .. } => {
                    let refused = refusal.clone().map(RequestError::Refused);
                    open.answer(refused.map_or(Ok(*run), Err));
                }
                protocol::Message::Verification { state, .. } => open.answer(match state {
                    // The request itself is refused if there is no such checkpoint.
                    Verification::Whole | Verification::NotListed => Ok(None),
                    other => Err(RequestError::Unverified(other.clone())),
                }),
                // A leader sends this list as well, and then the answer.
                protocol::Message::Coordinators { leader, members, .. }
                    if !open.resigns && !leads =>
                {
                    let there = members.iter().find(|view| Some(view.id) == *leader);
                    open.answer(Err(match open.proposed {
                        true => RequestError::Undecided,
                        false => RequestError::NotLeader(NotLeading::of(there)),
                    }));
                }
                _ => {}
            }
        }
        to.0 >= FIRST_LINK
    }

    /// The request to repeat now that this coordinator leads, if a client still waits for its
    /// answer.
    pub(super) fn repeat(&mut self) -> Option<NodeInput> {
        let open = self.open.as_mut().filter(|open| open.answer.is_some())?;
        let message = open.early.take()?;
        open.proposed = true;
        Some(NodeInput::Shell(ShellInput::Message { from: open.link, message }))
    }
}

/// Where an API's address holds, if not everywhere.
fn of(api: SocketAddr) -> &'static str {
    if api.ip().is_loopback() { " on its own machine" } else { "" }
}

impl NotLeading {
    /// The leader, if there is one, is this coordinator.
    pub(super) fn of(leader: Option<&CoordinatorView>) -> Self {
        match leader.map(|view| (view.id, view.api)) {
            None => Self::NoLeader,
            Some((id, Some(api))) => Self::Elsewhere { id, api },
            Some((id, None)) => Self::WithoutApi(id),
        }
    }
}

impl OpenRequest {
    fn answer(&mut self, answer: RequestResult) {
        if let Some(waits) = self.answer.take() {
            let _ = waits.send(answer); // an error means that no client waits any more
        }
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::{
        CheckpointId, Message, OperatorCommand, RequestId, Step, Term,
    };
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[test]
    fn a_request_to_a_follower_is_answered_with_the_leader() {
        let mut requests = OperatorRequests::default();
        let (answer, mut answered) = oneshot::channel();
        requests.open(OperatorRequest { message: Message::Leave, answer }, false);
        let view = CoordinatorView {
            id: CoordinatorId(7),
            name: NodeName::parse("coordinator-7").expect("a valid name"),
            address: ([127, 0, 0, 1], 4).into(),
            api: Some(([127, 0, 0, 1], 5).into()),
        };
        let message = Message::Coordinators {
            revision: 1,
            term: Term(2),
            leader: Some(CoordinatorId(7)),
            members: vec![view],
        };
        assert!(requests.hear(LinkId(FIRST_LINK), &message, true), "it is a request's link");
        assert_eq!(answered.try_recv(), Err(TryRecvError::Empty), "the leader will answer");
        requests.hear(LinkId(FIRST_LINK), &message, false);
        let denial = answered.try_recv().expect("an answer").expect_err("it does not lead");
        let RequestError::NotLeader(place) = denial else { panic!("not elsewhere but {denial:?}") };
        let words = place.to_string();
        let hint = "Ask coordinator 7, at http://127.0.0.1:5 on its own machine";
        assert!(words.ends_with(hint), "{words}");
        let api = ([10, 0, 0, 7], 5).into();
        let words = NotLeading::Elsewhere { id: CoordinatorId(7), api }.to_string();
        assert!(words.ends_with("Ask coordinator 7, at http://10.0.0.7:5"), "{words}");
        let id = RequestId { client: 1, number: 1 };
        let (answer, mut answered) = oneshot::channel();
        let request = Message::Request { id, command: OperatorCommand::Cancel(RunId(1)) };
        requests.open(OperatorRequest { message: request, answer }, true);
        requests.hear(LinkId(FIRST_LINK + 1), &message, false);
        let answer = answered.try_recv().expect("an answer");
        assert_eq!(answer, Err(RequestError::Undecided), "the next leader may find it in the log");
    }

    #[test]
    fn a_question_for_a_checkpoint_is_answered_with_the_verdict() {
        let mut requests = OperatorRequests::default();
        let mut hear = |state: Verification| {
            let (answer, mut answered) = oneshot::channel();
            let (step, id) = (Step(5), CheckpointId::default());
            let message = Message::AskVerification { step };
            requests.open(OperatorRequest { message, answer }, true);
            let link = LinkId(FIRST_LINK + requests.count - 1);
            requests.hear(link, &Message::Verification { id, state }, true);
            answered.try_recv().expect("an answer")
        };
        assert_eq!(hear(Verification::Whole), Ok(None));
        assert_eq!(hear(Verification::NotListed), Ok(None), "the rollback is refused in words");
        let damage = Verification::Damaged("a bit flipped".into());
        assert_eq!(hear(damage.clone()), Err(RequestError::Unverified(damage)));
    }

    /// The core did not keep it: while no coordinator leads, the core does not tell the leader.
    #[test]
    fn a_request_that_came_before_its_coordinator_led_is_said_once_more_while_somebody_waits() {
        let mut requests = OperatorRequests::default();
        let id = RequestId { client: 1, number: 1 };
        let message = Message::Request { id, command: OperatorCommand::Cancel(RunId(1)) };
        let mut open = |leads| {
            let (answer, answered) = oneshot::channel();
            requests.open(OperatorRequest { message: message.clone(), answer }, leads);
            let again = requests.repeat();
            assert_eq!(requests.repeat(), None);
            (again, answered)
        };
        assert_eq!(open(true).0, None, "it is on its way");
        let (again, mut answered) = open(false);
        let from = LinkId(FIRST_LINK + 1);
        assert_eq!(
            again,
            Some(NodeInput::Shell(ShellInput::Message { from, message: message.clone() }))
        );
        requests.hear(from, &Message::Answer { id, refusal: None, run: Some(RunId(4)) }, true);
        assert_eq!(answered.try_recv(), Ok(Ok(Some(RunId(4)))));
        let (answer, _answered) = oneshot::channel();
        requests.open(OperatorRequest { message, answer }, false);
        let refusal = Some(Rejection::NoRun);
        requests.hear(LinkId(FIRST_LINK + 2), &Message::Answer { id, refusal, run: None }, true);
        assert_eq!(requests.repeat(), None);
    }
}
