//! Carries proposals from a core into its replica's log, and agreed entries from the log to the
//! core.

use everstep_transport::protocol::{CoordinatorId, Message};
use everstep_transport::time::Time;

use super::proposal_queue::ProposalQueue;
use super::removal::Removals;
use super::{Node, NodeEffect, NodeError};
use crate::core::{CoreEffect, CoreInput, ShellEffect};
use crate::raft::{self, CommittedEntry, RaftEffect, Refused, ReplicaId, Snapshot};
use crate::state::{CommandEntry, State};

impl Node {
    /// Carries the effects of the replica and the core from one to the other, until both are quiet.
    /// The core goes first: the history gets what an entry adds before a batch in which a snapshot
    /// takes that entry's place.
    pub(super) fn advance(&mut self, now: Time) -> Result<(), NodeError> {
        loop {
            if let Some(effect) = self.core.poll_effect() {
                self.follow_core(now, effect);
            } else if let Some(effect) = self.replica.poll_effect() {
                self.follow_log(now, effect)?;
            } else {
                return Ok(());
            }
        }
    }

    fn follow_log(&mut self, now: Time, effect: RaftEffect) -> Result<(), NodeError> {
        match effect {
            RaftEffect::Send { to, message } => self.send_to_replica(to, &message),
            RaftEffect::Persist(batch) => {
                self.writes.given(now, batch.number);
                self.push(NodeEffect::Persist(batch));
            }
            RaftEffect::Apply(entries) => {
                for agreed in entries {
                    self.apply(now, agreed)?;
                }
            }
            RaftEffect::Install(snapshot) => self.install(now, snapshot)?,
            RaftEffect::TakeSnapshot => self.take_snapshot(),
            RaftEffect::Leads(term) => {
                self.leadership.lead(self.peers.own(), term);
                self.peers.listen(now);
                self.worker_reach.lead(now);
                self.removals.lead();
                self.history.forget_sender();
                self.transferred(self.leadership.leader());
                let id = self.peers.own().into();
                self.core.handle(now, CoreInput::Elected { term, id });
                let leader = Some(self.peers.own().into());
                self.core.handle(now, CoreInput::Leader { term, leader });
            }
            RaftEffect::Follows { leader, term } => {
                self.leadership.follow(leader);
                self.proposal_queue = ProposalQueue::default();
                self.transferred(leader);
                self.core.handle(now, CoreInput::SteppedDown);
                let leader = leader.map(CoordinatorId::from);
                self.core.handle(now, CoreInput::Leader { term, leader });
            }
            RaftEffect::Read { ticket, .. } if Removals::is_check(ticket) => {
                self.finish_removal_check(ticket, true);
            }
            RaftEffect::ReadLost { ticket } if Removals::is_check(ticket) => {
                self.finish_removal_check(ticket, false);
            }
            RaftEffect::Read { ticket, .. } => {
                self.core.handle(now, CoreInput::Confirmed { ticket });
            }
            RaftEffect::ReadLost { ticket } => {
                self.core.handle(now, CoreInput::Unconfirmed { ticket });
            }
            RaftEffect::Members(members) => self.removals.settle(members),
            RaftEffect::Forgotten { last, agreed } => {
                return Err(NodeError::Forgotten { last, agreed });
            }
        }
        Ok(())
    }

    fn follow_core(&mut self, now: Time, effect: CoreEffect) {
        match effect {
            CoreEffect::Shell(effect) => self.push(effect),
            CoreEffect::Propose(entry) => self.propose_entry(now, &entry),
            CoreEffect::Confirm { ticket } => self.replica.read(ticket),
            CoreEffect::Describe { to } => self.send_statuses(now, to),
            CoreEffect::Transfer { asked_by, id, to } => self.transfer(now, asked_by, id, to),
        }
    }

    fn send_to_replica(&mut self, to: ReplicaId, message: &raft::Message) {
        match self.peers.link_of(self.replica.members(), to) {
            Some(link) => {
                let message = Message::Raft(message.encode().to_vec());
                self.push(ShellEffect::Send { to: link, message });
            }
            // Raft repeats other messages by itself.
            None if message.is_snapshot() => self.replica.snapshot_done(to, false),
            None => {}
        }
    }

    fn apply(&mut self, now: Time, agreed: CommittedEntry) -> Result<(), NodeError> {
        let CommittedEntry { position, bytes } = agreed;
        let entry = CommandEntry::decode(&bytes, self.introduction.own().log_format)
            .map_err(|problem| NodeError::Entry { index: position.index, problem })?;
        self.restore_past();
        let input = CoreInput::Applied { index: position.index, term: position.term, entry };
        let before = self.core.state().revision();
        self.core.handle(now, input);
        if self.core.state().revision() != before {
            self.learn_of_peers();
        }
        if self.snapshots.applied(bytes.len()) {
            self.take_snapshot();
        }
        self.digest_state(position.index)
    }

    fn install(&mut self, now: Time, snapshot: Snapshot) -> Result<(), NodeError> {
        if !snapshot.bytes.is_empty() {
            let state = State::decode(&snapshot.bytes, self.introduction.own().log_format)?;
            self.core.handle(now, CoreInput::Installed(Box::new(state)));
            self.history.on_snapshot();
            self.learn_of_peers();
        }
        self.snapshots.restart();
        self.restore_past();
        Ok(())
    }

    /// Learns the coordinators from the state, and also leaving ones that may still have a vote. A
    /// coordinator that restarts from its disk alone knows them from nowhere else.
    fn learn_of_peers(&mut self) {
        let (state, members) = (self.core.state(), self.replica.members());
        self.peers.learn(state.revision(), state.coordinators(), members);
        let leaving = state.leaving();
        if !leaving.is_empty() {
            self.peers.learn(0, leaving, members);
        }
    }

    /// Restores the history of the entries that the log has dropped, if all of it is there.
    fn restore_past(&mut self) {
        if let Some(history) = self.history.take() {
            self.core.restore_history(history);
        }
    }

    fn take_snapshot(&mut self) {
        self.snapshots.restart();
        let state = self.core.state();
        self.replica.compact(state.index(), state.encode());
    }

    pub(super) fn propose_entry(&mut self, now: Time, entry: &CommandEntry) {
        let format = self.core.state().log_format();
        #[cfg(feature = "planted")]
        let format = match self.core.state().plant {
            Some(crate::plant::CorePlant::ProposeNewest) => self.introduction.own().log_format,
            _ => format,
        };
        self.propose(now, entry.encode(format));
    }

    fn propose(&mut self, now: Time, bytes: Vec<u8>) {
        if !self.proposal_queue.is_empty() {
            return self.queue_proposal(bytes);
        }
        match self.replica.propose(bytes.clone()) {
            Err(Refused::Full | Refused::HandingOver) => self.queue_proposal(bytes),
            // This coordinator no longer leads, and its next effect says so. The core re-evaluates
            // all pending work then.
            Ok(_) | Err(Refused::NotLeader) => {}
            Err(Refused::Impossible(reason)) => {
                tracing::error!(reason, bytes = bytes.len(), "an entry is not for the log");
                self.core.entry_too_large(now, bytes.len());
            }
        }
    }

    /// Resigns when the proposal queue is full. The next leader re-evaluates the pending work, and
    /// a coordinator with a disk that stands still cannot become that leader.
    fn queue_proposal(&mut self, bytes: Vec<u8>) {
        if !self.proposal_queue.push(bytes) {
            tracing::error!("too much waits for the log: this coordinator leads no longer");
            self.replica.step_down();
        }
    }

    pub(super) fn propose_queued(&mut self, now: Time) {
        for bytes in self.proposal_queue.take() {
            self.propose(now, bytes);
        }
    }
}
