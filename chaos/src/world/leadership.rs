//! What the checkers see of the coordinators: the leader, the proposals, the agreed entries, and
//! the messages that a coordinator cannot take back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_coordinator::raft;
use everstep_coordinator::state::{Change, Command, CommandEntry, Loss};
use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::reason::LossReason;
use everstep_transport::protocol::{
    Generation, HistoryEntry, HistoryEvent, Message, Term, WorkerId,
};

use super::upgrade::LATER_LOG_FORMAT;
use super::{Exits, GIVE_UP_AFTER, NodeId, World};
use crate::check::{Observation, Violation};
use crate::fault::Fault;

/// What the world has seen of the leaders of one cluster.
#[derive(Debug, Default)]
pub struct LeadershipTrace {
    /// The newest term that had a leader.
    newest: Term,
    /// The members that had really ended when a leader proposed a generation, and those that the
    /// run allowed it to give up. A member that turns up after the proposal is too late.
    lost_at_proposal: BTreeMap<(Generation, Term), BTreeSet<WorkerId>>,
    /// Losses that no fault explained at their proposal. After a restart of the proposer, the world
    /// cannot tell any more what it had heard.
    unexplained_losses: BTreeMap<(WorkerId, Term), Violation>,
    /// Workers that have left together, as the log says. Some may not have heard of it.
    departed: BTreeSet<WorkerId>,
}

impl LeadershipTrace {
    /// Whether a worker has left together with all others.
    pub(super) fn has_departed(&self, worker: WorkerId) -> bool {
        self.departed.contains(&worker)
    }
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
        self.coordinators[place].woke_at(self.now);
        self.checkers.liveness.awake(self.now, place);
        let incarnation = self.coordinators[place].lives();
        self.observe(Observation::Leads((place, incarnation), term))
    }

    /// A coordinator writes entries. Those of its own term are its proposals, if it leads. A
    /// deposed leader may still propose. Its entries never commit.
    pub(super) fn witness_proposals(
        &mut self,
        place: usize,
        entries: &[raft::RaftEntry],
    ) -> Result<(), Violation> {
        let newest = self.checkers.leadership.newest;
        let leads = self.coordinators[place].leads().filter(|term| *term == newest);
        for entry in entries.iter().filter(|entry| Some(entry.position.term) == leads) {
            let term = entry.position.term;
            let change = match decode(entry).map(|entry| entry.command) {
                Some(Command::Generation(change)) => change,
                Some(
                    Command::Lose { worker, reason } | Command::Died(Loss { worker, reason, .. }),
                ) => {
                    self.weigh_loss(worker, &reason, place, term);
                    continue;
                }
                _ => continue,
            };
            for loss in &change.lost {
                self.weigh_loss(loss.worker, &loss.reason, place, term);
            }
            self.note(format_args!("coordinator {place} proposes {change:?}"));
            self.observe(Observation::Proposed(&change.record))?;
            let lost = self.truly_lost(place);
            self.checkers.leadership.lost_at_proposal.insert((change.record.number, term), lost);
            self.crash_after_proposal(place);
        }
        Ok(())
    }

    /// Judges the proposal of a leader that a worker is lost.
    fn weigh_loss(&mut self, worker: WorkerId, reason: &LossReason, place: usize, term: Term) {
        match self.judge_loss(worker, reason, place) {
            Ok(()) => _ = self.checkers.leadership.unexplained_losses.remove(&(worker, term)),
            Err(violation) => {
                let losses = &mut self.checkers.leadership.unexplained_losses;
                losses.insert((worker, term), violation);
            }
        }
    }

    /// Checks a loss that a coordinator applies, and that a leader proposed in `term`.
    fn check_loss_applied(&self, worker: WorkerId, term: Term) -> Result<(), Violation> {
        let unexplained = self.checkers.leadership.unexplained_losses.get(&(worker, term));
        unexplained
            .filter(|_| !self.workers.is_gone(worker))
            .map_or(Ok(()), |found| Err(found.clone()))
    }

    /// A leader has proposed a generation. An armed fault crashes it before the entry is durable.
    fn crash_after_proposal(&mut self, place: usize) {
        if let Some(restart) = self.faults.armed.take_crash_on_proposal() {
            let crash = Fault::Crash { node: NodeId::Coordinator(place), restart: Some(restart) };
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
        if self.checkers.invariants.is_new(entry.position.index) {
            let index = entry.position.index;
            self.note(format_args!("entry {index}, first of all by {place}: {command:?}"));
            // A change of leaders for ever is no progress. Nor is a leader's report of a change
            // that takes long.
            let is_housekeeping = matches!(
                command,
                Command::Lead { .. } | Command::Died(_) | Command::AwaitOwners { .. }
            );
            if !is_housekeeping {
                self.checkers.liveness.progress(self.now);
            }
        }
        self.observe(Observation::Applied(entry.position.index, entry.position.term, &entry.bytes))
    }

    /// Shows the checkers what an entry has added to a coordinator's history.
    pub(super) fn witness_history(
        &mut self,
        place: usize,
        reported: &HistoryEntry,
    ) -> Result<(), Violation> {
        let is_first_report = !self.checkers.invariants.is_reported(reported.index);
        self.observe(Observation::Brought(reported))?;
        let entry = self.coordinators[place].disk().entry(reported.index).cloned();
        if is_first_report {
            self.witness_listed(place);
        }
        let Some(entry) = entry.filter(|_| is_first_report) else { return Ok(()) };
        let term = entry.position.term;
        let brings = |wanted: fn(&EventKind) -> bool| {
            let events = reported.events.iter();
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
                self.check_loss_applied(worker, term)
            }
            Some(Command::ListCheckpoint { checkpoint, .. })
                if brings(|kind| matches!(kind, EventKind::Checkpoint { .. })) =>
            {
                self.witness_listing(checkpoint.id())
            }
            Some(Command::LeaveAll { .. }) => {
                if brings(|kind| matches!(kind, EventKind::Left { .. })) {
                    let listed = self.store.listed.clone();
                    self.observe(Observation::LeftTogether(&listed))?;
                }
                let record = self.checkers.invariants.current_record();
                let members = record.iter().flat_map(|record| &record.members);
                let members: Vec<WorkerId> = members.map(|member| member.worker).collect();
                members.iter().try_for_each(|worker| self.judge_leave(*worker))?;
                self.checkers.leadership.departed.extend(members);
                Ok(())
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
            self.check_loss_applied(loss.worker, term)?;
        }
        for worker in &change.left {
            self.judge_leave(*worker)?;
        }
        self.checkers.liveness.change(change);
        let proposal = (change.record.number, change.record.term);
        let known = &self.checkers.leadership.lost_at_proposal;
        let lost = known.get(&proposal).cloned().unwrap_or_default();
        let lost = change.rollback.as_ref().map(|_| lost);
        self.observe(Observation::Recorded(&change.record, term, lost.as_ref()))
    }

    /// Shows the checkers a message of a coordinator.
    pub(super) fn witness_message(
        &mut self,
        place: usize,
        message: &Message,
    ) -> Result<(), Violation> {
        match message {
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
        let given_up = gives_up && self.gives_up(coordinator, worker, place);
        let asked = self.coordinators[coordinator]
            .node()
            .is_some_and(|node| node.core().state().is_to_go_back());
        discarded || given_up || asked || self.checkers.leadership.has_departed(worker)
    }

    /// Whether the run allows a coordinator to give up the process of a worker, at `place`. It does
    /// after [`GIVE_UP_AFTER`] without a word to this coordinator. Without a word to it at all, the
    /// time counts that earlier leaders logged. It also does if the device has hung for so long,
    /// even if the word that it has gone on is under way.
    fn gives_up(&self, coordinator: usize, worker: WorkerId, place: usize) -> bool {
        let coordinator = &self.coordinators[coordinator];
        let Some(core) = coordinator.node().map(|node| node.core()) else { return false };
        let logged = Duration::from_millis(core.state().awaited().waited_ms(worker));
        let own = coordinator.silence(self.now, place);
        let silent =
            own >= GIVE_UP_AFTER || !coordinator.has_heard(place) && logged + own >= GIVE_UP_AFTER;
        let process = &self.workers[place];
        let hung = process.hangs_until.since(process.hangs_since) >= GIVE_UP_AFTER
            && self.now < process.hangs_until + GIVE_UP_AFTER;
        silent || hung
    }
}

/// The command in an entry of the log. None for Raft's own entries.
fn decode(entry: &raft::RaftEntry) -> Option<CommandEntry> {
    if entry.kind != raft::EntryKind::Command || entry.bytes.is_empty() {
        return None;
    }
    CommandEntry::decode(&entry.bytes, LATER_LOG_FORMAT).ok()
}
