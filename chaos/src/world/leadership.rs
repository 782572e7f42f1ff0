//! What the checkers see of the coordinators: the leader, the proposals, the agreed entries, and
//! the messages that a coordinator cannot take back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_coordinator::raft;
use everstep_coordinator::state::{Change, Command, CommandEntry, Loss};
use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::{
    Generation, HistoryEntry, HistoryEvent, Message, Term, WorkerId,
};

use super::upgrade::LATER;
use super::{Exits, GIVE_UP_AFTER, Node, World};
use crate::check::{Observation, Violation};
use crate::fault::Fault;

/// What the world has seen of the leaders of one cluster.
#[derive(Debug, Default)]
pub struct LeadershipTrace {
    /// The newest term that had a leader.
    newest: Term,
    /// The members that were gone in truth when a leader proposed a generation, and those that the
    /// run allowed it to give up. A member that turns up after the proposal is too late.
    grounds: BTreeMap<(Generation, Term), BTreeSet<WorkerId>>,
    /// Losses that no fault explained at their proposal. After a restart of the proposer, the world
    /// cannot tell any more what it had heard.
    unfounded: BTreeMap<(WorkerId, Term), Violation>,
}

impl World {
    /// A coordinator begins to lead, or stops leading.
    pub(super) fn witness_leadership(
        &mut self,
        place: usize,
        leads: Option<Term>,
    ) -> Result<(), Violation> {
        let Some(term) = leads else {
            self.note(format_args!("coordinator {place} leads no longer"));
            return Ok(());
        };
        self.note(format_args!("coordinator {place} leads in term {term}"));
        self.checkers.leadership.newest = self.checkers.leadership.newest.max(term);
        self.coordinators[place].awakes(self.now);
        self.checkers.liveness.awake(self.now, place);
        let life = self.coordinators[place].lives();
        self.observe(Observation::Leads((place, life), term))
    }

    /// A coordinator writes entries. Those of its own term are its proposals, if it leads. A
    /// replaced leader that does not know it yet may propose wrong entries: no majority agrees on
    /// them.
    pub(super) fn witness_proposals(
        &mut self,
        place: usize,
        entries: &[raft::RaftEntry],
    ) -> Result<(), Violation> {
        let newest = self.checkers.leadership.newest;
        let leads = self.coordinators[place].leads().filter(|term| *term == newest);
        for entry in entries.iter().filter(|entry| Some(entry.place.term) == leads) {
            let term = entry.place.term;
            let change = match decode(entry).map(|entry| entry.command) {
                Some(Command::Generation(change)) => change,
                Some(
                    Command::Lose { worker, reason } | Command::Died(Loss { worker, reason, .. }),
                ) => {
                    self.weigh_loss((worker, &reason), (place, term));
                    continue;
                }
                _ => continue,
            };
            for loss in &change.lost {
                self.weigh_loss((loss.worker, &loss.reason), (place, term));
            }
            self.note(format_args!("coordinator {place} proposes {change:?}"));
            self.observe(Observation::Proposed(&change.record))?;
            let lost = self.truly_lost(place);
            self.checkers.leadership.grounds.insert((change.record.number, term), lost);
            self.proposing(place);
        }
        Ok(())
    }

    /// Judges the proposal of a leader that a worker is lost.
    fn weigh_loss(&mut self, (worker, reason): (WorkerId, &str), (place, term): (usize, Term)) {
        match self.judge_loss(worker, reason, place) {
            Ok(()) => _ = self.checkers.leadership.unfounded.remove(&(worker, term)),
            Err(violation) => {
                _ = self.checkers.leadership.unfounded.insert((worker, term), violation)
            }
        }
    }

    /// A coordinator applies the loss of a worker that a leader proposed in `term`.
    fn lose_worker(&self, worker: WorkerId, term: Term) -> Result<(), Violation> {
        let unfounded = self.checkers.leadership.unfounded.get(&(worker, term));
        unfounded
            .filter(|_| !self.workers.is_gone(worker))
            .map_or(Ok(()), |found| Err(found.clone()))
    }

    /// A leader has proposed a generation. An armed fault crashes it before the entry is durable.
    fn proposing(&mut self, place: usize) {
        if let Some(restart) = self.faults.armed.proposing() {
            let crash = Fault::Crash { node: Node::Coordinator(place), restart: Some(restart) };
            self.queue.put(self.now, super::Event::Fault(Box::new(crash)));
        }
    }

    /// A coordinator has applied an entry.
    pub(super) fn witness_entry_of_log(
        &mut self,
        place: usize,
        entry: &raft::RaftEntry,
    ) -> Result<(), Violation> {
        let Some(command) = decode(entry).map(|entry| entry.command) else { return Ok(()) };
        if self.checkers.invariants.is_new(entry.place.index) {
            let index = entry.place.index;
            self.note(format_args!("entry {index}, first of all by {place}: {command:?}"));
            // A change of leaders for ever is no progress. Nor is a leader's report of a change
            // that takes long.
            let tells = matches!(
                command,
                Command::Lead { .. } | Command::Died(_) | Command::AwaitOwners { .. }
            );
            if !tells {
                self.checkers.liveness.progress(self.now);
            }
        }
        self.observe(Observation::Applied(entry.place.index, entry.place.term, &entry.bytes))
    }

    /// Shows the checkers what an entry has added to a coordinator's history.
    pub(super) fn witness_history(
        &mut self,
        place: usize,
        brought: &HistoryEntry,
    ) -> Result<(), Violation> {
        let news = !self.checkers.invariants.has_brought(brought.index);
        self.observe(Observation::Brought(brought))?;
        let entry = self.coordinators[place].disk().entry(brought.index).cloned();
        let Some(entry) = entry.filter(|_| news) else { return Ok(()) };
        let term = entry.place.term;
        let brings = |wanted: fn(&EventKind) -> bool| {
            let events = brought.events.iter();
            let mut events = events.filter_map(|it| {
                if let HistoryEvent::Event(event) = it { Some(event) } else { None }
            });
            events.any(|event| wanted(&event.kind))
        };
        if brings(|kind| matches!(kind, EventKind::LinesLost { .. })) {
            self.store.lose_lines();
        }
        match decode(&entry).map(|entry| entry.command) {
            Some(Command::Generation(change))
                if brings(|kind| matches!(kind, EventKind::Generation { .. })) =>
            {
                self.witness_change(&change, term)
            }
            Some(Command::Lose { worker, .. } | Command::Died(Loss { worker, .. }))
                if brings(|kind| matches!(kind, EventKind::Lost { .. })) =>
            {
                self.lose_worker(worker, term)
            }
            Some(Command::ListCheckpoint { checkpoint, .. })
                if brings(|kind| matches!(kind, EventKind::Checkpoint { .. })) =>
            {
                self.witness_listing(checkpoint.id())
            }
            Some(Command::End { .. }) => {
                self.checkers.invariants.over();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn witness_change(&mut self, change: &Change, term: Term) -> Result<(), Violation> {
        for loss in &change.lost {
            self.lose_worker(loss.worker, term)?;
        }
        for worker in &change.left {
            self.judge_leave(*worker)?;
        }
        self.checkers.liveness.change(change);
        let proposal = (change.record.number, change.record.term);
        let grounds = self.checkers.leadership.grounds.get(&proposal).cloned().unwrap_or_default();
        let lost = change.rollback.as_ref().map(|_| grounds);
        self.observe(Observation::Recorded(&change.record, term, lost.as_ref()))
    }

    /// Shows the checkers a message of a coordinator.
    pub(super) fn witness_word(&mut self, place: usize, word: &Message) -> Result<(), Violation> {
        match word {
            // A replaced leader that does not know it may still send a Pause, in vain.
            Message::Pause { number, .. } if self.leader() == Some(place) => {
                self.observe(Observation::Paused(*number))
            }
            Message::HeartbeatAnswer { written, .. } => self.judge_written(place, *written),
            Message::Evicted { worker } => self.observe(Observation::Evicted(*worker)),
            _ => Ok(()),
        }
    }

    /// The members of the current generation that are gone, or that the run allows a coordinator to
    /// give up. All of them, if the operator asks the run to go back (I21).
    fn truly_lost(&self, place: usize) -> BTreeSet<WorkerId> {
        let record = self.checkers.invariants.current_record();
        let members = record.iter().flat_map(|record| &record.members);
        let workers = members.map(|member| member.worker);
        workers.filter(|worker| self.is_truly_lost(place, *worker)).collect()
    }

    fn is_truly_lost(&self, coordinator: usize, worker: WorkerId) -> bool {
        let Some(place) = self.workers.place_of(worker) else { return true };
        let process = &self.workers[place];
        let discarded = process.ended() || process.id() != Some(worker);
        let gives_up = self.scenario.exits == Exits::GivenUp;
        let given_up = gives_up && self.gives_up(coordinator, (worker, place));
        let asked = self.coordinators[coordinator]
            .node()
            .is_some_and(|node| node.core().state().is_to_go_back());
        discarded || given_up || asked
    }

    /// Whether the run allows a coordinator to give up a worker's process. It does after
    /// [`GIVE_UP_AFTER`] without a word to this coordinator. Without a word to it at all, the time
    /// counts that earlier leaders logged.
    fn gives_up(&self, coordinator: usize, (worker, place): (WorkerId, usize)) -> bool {
        let coordinator = &self.coordinators[coordinator];
        let Some(core) = coordinator.node().map(|node| node.core()) else { return false };
        let logged = Duration::from_millis(core.state().awaited().waited_ms(worker));
        let own = coordinator.silence(self.now, place);
        own >= GIVE_UP_AFTER || !coordinator.has_heard(place) && logged + own >= GIVE_UP_AFTER
    }
}

/// The command in an entry of the log. None for Raft's own entries.
fn decode(entry: &raft::RaftEntry) -> Option<CommandEntry> {
    if entry.kind != raft::EntryKind::Command || entry.bytes.is_empty() {
        return None;
    }
    CommandEntry::decode(&entry.bytes, LATER).ok()
}
