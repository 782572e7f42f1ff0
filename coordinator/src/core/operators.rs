//! What operators ask for: a change, or another leader. For what they read see `reads.rs`.
//!
//! An operator may repeat a request, here or to the next leader. The cluster carries it out once,
//! and answers it every time. A coordinator that does not lead tells the operator which one does,
//! as soon as it knows that.

use std::collections::BTreeMap;

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::protocol::reason::{FailReason, LossReason, ProcessExit};
use everstep_transport::protocol::{Message, NodeName, OperatorCommand, RequestId};
use everstep_transport::time::Time;

use super::failure_detector::{Certainty, Suspicion};
use super::links::PeerPhase;
use super::reads::WatchPosition;
use super::{Core, CoreEffect, LinkId};
use crate::state::{Command, EntryOutcome, RunSoFar, command_digest};

/// The requests of operators until the log has answered, by a digest of the command, and with their
/// ids. A link has at most one. Another command under the same id is answered by its own entry.
#[derive(Debug, Default)]
pub(super) struct Requests(BTreeMap<LinkId, (RequestId, u64)>);

impl Requests {
    /// Drops the request of a link that is gone.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.0.remove(&link);
    }

    /// A link's newest request is on its way into the log.
    fn insert(&mut self, from: LinkId, id: RequestId, command: &OperatorCommand) {
        self.0.insert(from, (id, command_digest(command)));
    }

    /// Whether a request of this id is on its way into the log.
    fn has(&self, id: RequestId) -> bool {
        self.0.values().any(|(asked, _)| *asked == id)
    }

    /// The links that wait for the outcome of a request. They wait no longer.
    fn take(&mut self, id: RequestId, command: &OperatorCommand) -> Vec<LinkId> {
        let decided = (id, command_digest(command));
        let answered = self.0.extract_if(.., |_, asked| *asked == decided);
        answered.map(|(link, _)| link).collect()
    }

    /// Drops all requests: this coordinator will answer none.
    pub(super) fn forget_all(&mut self) {
        self.0.clear();
    }
}

impl Core {
    /// Whether an operator is at the other end of a link.
    pub(crate) fn is_operator(&self, link: LinkId) -> bool {
        self.links.find(link).is_some_and(|link| link.phase == PeerPhase::Operator)
    }

    /// Whether this coordinator has proposed the request, or the log says what became of it.
    pub(crate) fn knows_request(&self, id: RequestId) -> bool {
        self.clients.requests.has(id) || self.state.has_decided(id)
    }

    /// Handles a message of an operator.
    pub(super) fn on_operator_message(&mut self, now: Time, from: LinkId, message: Message) {
        let is_told = self.introduce(from);
        // An elected coordinator will lead in a moment. Before there is a cluster, no other one
        // leads.
        if self.leadership.follows() && self.state.is_founded() {
            if !is_told {
                self.send_coordinators(vec![from]);
            }
            return;
        }
        match message {
            Message::Watch { run, step, event } => {
                self.watch(from, WatchPosition { run, step, event })
            }
            Message::Ask(question) => self.ask(from, question),
            Message::AskVerification { step } => self.ask_verification(now, from, step),
            Message::Request { id, command } => self.request(now, from, id, command),
            Message::Transfer { id, to } => {
                self.outbox.push(CoreEffect::Transfer { asked_by: from, id, to });
            }
            Message::Exited { name, how } => self.exited(now, &name, how),
            _ => self.links.ignore(),
        }
    }

    /// Proposes a request. The entry of an elected coordinator comes into the log after the one
    /// with which it leads. A follower keeps no request: it tells the operator the new leader, and
    /// the operator asks again.
    fn request(&mut self, now: Time, from: LinkId, id: RequestId, command: OperatorCommand) {
        if !self.leadership.follows() {
            self.clients.requests.insert(from, id, &command);
            let so_far = self.so_far(&command);
            self.propose(now, Command::Request { id, command, so_far });
        }
    }

    /// The run under way, for an entry with this command. A cancelled run keeps its figures.
    fn so_far(&self, command: &OperatorCommand) -> RunSoFar {
        let ends = matches!(command, OperatorCommand::Cancel(_)) && self.running();
        let cancelled = Outcome::Failed { name: None, reason: FailReason::Cancelled };
        let figures = ends.then(|| self.last_figures(&cancelled));
        RunSoFar { steps: self.newest_step(), figures }
    }

    /// A request has its outcome, perhaps since long ago.
    pub(super) fn answer_request(
        &mut self,
        now: Time,
        id: RequestId,
        command: &OperatorCommand,
        verdict: &EntryOutcome,
    ) {
        let answered = self.clients.requests.take(id, command);
        let (refusal, run) = match verdict {
            EntryOutcome::Refused(reason) => (Some(reason.clone()), None),
            EntryOutcome::Run(run) => (None, Some(*run)),
            _ => (None, None),
        };
        self.outbox.broadcast(answered, Message::Answer { id, refusal, run });
        match command {
            OperatorCommand::Submit(_) | OperatorCommand::Continue { .. } => {
                self.receive_waiting(now)
            }
            OperatorCommand::Drain(worker) => self.drained(now, *worker),
            OperatorCommand::Rollback { .. } if *verdict == EntryOutcome::Accepted => {
                self.go_back(now)
            }
            OperatorCommand::Pause(_)
            | OperatorCommand::Resume(_)
            | OperatorCommand::Checkpoint(_) => self.on_directive(now),
            OperatorCommand::Revoke(node) if *verdict == EntryOutcome::Accepted => {
                self.revoked(now, node)
            }
            _ => {}
        }
    }

    /// The next generation goes on without a revoked worker, if the others can. The worker may hold
    /// the only copy of a shard. Then the run waits for an operator's rollback.
    fn revoked(&mut self, now: Time, node: &Identity) {
        if let Some(worker) = self.state.on_node(&node.name).filter(|_| node.role == Role::Worker) {
            let reason = LossReason::Revoked;
            self.suspect(now, worker, Suspicion { reason, certainty: Certainty::Refused });
        }
    }

    /// A launcher noticed the end of a process: the leader expects nothing more of the process.
    fn exited(&mut self, now: Time, name: &NodeName, how: ProcessExit) {
        if self.leader().is_some()
            && let Some(worker) = self.state.on_node(name)
        {
            let reason = LossReason::ProcessEnded(how);
            self.suspect(now, worker, Suspicion { reason, certainty: Certainty::Dead });
        }
    }
}
