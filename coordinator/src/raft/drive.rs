//! Carries out Raft's requests: its Ready loop.
//!
//! Raft hands out its writes, messages and entries to apply in one piece (a `Ready`). No call may
//! reach Raft until the replica has taken it. All of it becomes effects here: some at once, some
//! when the batch that they rest on is durable.

use ::raft::eraftpb;
use everstep_transport::protocol::Term;

use super::batch::{EntryKind, HardState, LogPosition, RaftEntry, Snapshot, WriteBatch};
use super::members::{NO_REPLICA, ReplicaId};
use super::message::Message;
use super::writes::WaitingEffects;
use super::{CommittedEntry, RaftEffect, Replica};

impl Replica {
    /// Takes everything that Raft has ready, and what follows from it.
    pub(super) fn drive(&mut self) {
        loop {
            self.set_election_timeout();
            self.pursue_change();
            if !self.node.has_ready() {
                break;
            }
            self.take_ready();
        }
        self.answer_reads();
        self.tell_who_leads();
        if self.node.store().lacks_a_snapshot() {
            self.effects.push_back(RaftEffect::TakeSnapshot);
        }
    }

    fn take_ready(&mut self) {
        let mut ready = self.node.ready();
        let at_once = self.may_speak_at_once();
        let messages = ready.take_messages().into_iter();
        let messages = messages.chain(ready.take_persisted_messages());
        let mut effects: Vec<_> = messages.filter_map(to_be_sent).collect();
        if at_once {
            self.effects.extend(effects.drain(..));
        }
        let hard_state = HardState::from_raft(&self.node.raft.hard_state());
        let snapshot =
            (!ready.snapshot().is_empty()).then(|| Snapshot::from_raft(ready.snapshot()));
        let entries: Vec<_> = ready.take_entries().iter().map(RaftEntry::from_raft).collect();
        let installed = snapshot.as_ref().map(|snapshot| snapshot.position.index);
        #[cfg(feature = "planted")]
        if self.plant == Some(super::plant::RaftPlant::ApplyEarly) {
            self.effects.push_back(RaftEffect::Apply(commands(&entries)));
        }
        if ready.must_sync() {
            self.write(hard_state, snapshot.clone(), entries);
        }
        ready.take_read_states().iter().for_each(|state| self.reads.confirm(state));
        let committed: Vec<_> =
            ready.take_committed_entries().iter().map(RaftEntry::from_raft).collect();
        let number = ready.number();
        self.node.advance_append_async(ready);
        if let Some(Snapshot { position, members, .. }) = &snapshot {
            self.history = [(position.index, members.clone())].into();
        }
        if let Some(snapshot) = snapshot {
            let members = snapshot.members.clone();
            effects.splice(0..0, [RaftEffect::Install(snapshot), RaftEffect::Members(members)]);
        }
        self.writes.wait(WaitingEffects {
            batch: self.writes.given(),
            ready: Some(number),
            term: hard_state.term.0,
            installed,
            effects,
        });
        self.release();
        self.apply(&committed);
    }

    /// Whether this replica's messages rest only on durable facts. A leader's entries count here
    /// only when they are durable, but its term has to be on the disk already.
    fn may_speak_at_once(&self) -> bool {
        #[cfg(feature = "planted")]
        if self.plant == Some(super::plant::RaftPlant::SayEarly) {
            return true;
        }
        self.leads()
    }

    /// Writes the hard state, with a snapshot and entries if there are any.
    pub(super) fn write(
        &mut self,
        hard_state: HardState,
        snapshot: Option<Snapshot>,
        entries: Vec<RaftEntry>,
    ) {
        #[cfg(feature = "planted")]
        let hard_state = match self.plant {
            Some(super::plant::RaftPlant::ForgetVote) => HardState { vote: None, ..hard_state },
            _ => hard_state,
        };
        // A snapshot from another replica stands for the whole log.
        let base = snapshot.as_ref().map_or(self.node.store().kept().base, |it| it.position);
        let number = self.writes.next();
        self.persist(WriteBatch { number, hard_state, snapshot, base, entries });
    }

    /// Writes this replica's own snapshot, and lets the log begin behind `base`.
    pub(super) fn write_snapshot(&mut self, snapshot: Snapshot, base: LogPosition) {
        let hard_state = HardState::from_raft(&self.node.raft.hard_state());
        let (number, snapshot) = (self.writes.next(), Some(snapshot));
        self.persist(WriteBatch { number, hard_state, snapshot, base, entries: Vec::new() });
    }

    fn persist(&mut self, batch: WriteBatch) {
        self.check_batch(&batch);
        self.node.mut_store().absorb(&batch);
        self.effects.push_back(RaftEffect::Persist(batch));
    }

    /// Does the work that has waited for a batch which is durable now.
    pub(super) fn release(&mut self) {
        while let Some(waiting) = self.writes.released() {
            if let Some(ready) = waiting.ready {
                self.node.on_persist_ready(ready);
            }
            if let Some(index) = waiting.installed {
                self.node.advance_apply_to(index);
            }
            self.effects.extend(waiting.effects);
        }
    }

    fn apply(&mut self, committed: &[RaftEntry]) {
        let Some(last) = committed.last() else { return };
        self.check_handed_out(committed);
        let commands = commands(committed);
        #[cfg(feature = "planted")]
        let commands = match self.plant {
            Some(super::plant::RaftPlant::ApplyEarly) => Vec::new(),
            _ => commands,
        };
        if !commands.is_empty() {
            self.effects.push_back(RaftEffect::Apply(commands));
        }
        for entry in committed.iter().filter(|entry| entry.kind == EntryKind::Members) {
            self.apply_change(entry);
        }
        self.node.advance_apply_to(last.position.index);
    }

    fn answer_reads(&mut self) {
        if !self.is_elected() {
            let lost = self.reads.lose().into_iter();
            self.effects.extend(lost.map(|ticket| RaftEffect::ReadLost { ticket }));
        }
        let answered = self.reads.answered(self.node.raft.raft_log.applied());
        let answers =
            answered.into_iter().map(|(index, ticket)| RaftEffect::Read { ticket, index });
        self.effects.extend(answers);
    }

    fn tell_who_leads(&mut self) {
        let raft = &self.node.raft;
        if self.is_elected() && !self.leads() {
            return; // this replica might be elected a second time in this term, without knowing it
        }
        let leader = ReplicaId(raft.leader_id);
        let leadership = ((leader != NO_REPLICA).then_some(leader), Term(raft.term));
        if self.told == Some(leadership) {
            return;
        }
        self.told = Some(leadership);
        let (leader, term) = leadership;
        self.effects.push_back(match self.leads() {
            true => RaftEffect::Leads(term),
            false => RaftEffect::Follows { leader, term },
        });
    }
}

fn to_be_sent(message: eraftpb::Message) -> Option<RaftEffect> {
    let (to, message) = Message::from_raft(message)?;
    Some(RaftEffect::Send { to, message })
}

/// The entries for the state machine.
fn commands(entries: &[RaftEntry]) -> Vec<CommittedEntry> {
    let agreed =
        |entry: &RaftEntry| CommittedEntry { position: entry.position, bytes: entry.bytes.clone() };
    entries.iter().filter(|entry| entry.is_command()).map(agreed).collect()
}
