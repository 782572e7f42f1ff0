//! A coordinator as a plain state machine: messages of peers go in, messages and proposals come
//! out.
//!
//! Inputs: links that come and go, their messages, the current leader, applied entries of the log,
//! whether this coordinator still leads, the passing of time. Outputs: messages to send, links to
//! close, entries to propose, what applied entries bring to the history, questions whether this
//! coordinator still leads. Everything that the coordinators agree on is in [`State`], and changes
//! only when an entry is applied. The rest of this module (links, signs of life, evidence, results)
//! belongs to one coordinator alone, and may be lost with it. The core knows no clock, no sockets,
//! and not how an entry comes to be applied.
//!
//! A worker's way: Hello, Welcome once there is a run, Register, an entry, Registered, then
//! heartbeats and their answers. When enough workers are there, or whenever a worker is lost, comes
//! or goes: Pause, Status, an entry with the next generation, Announce (`change.rs`). In the end
//! each member says Finished. When all have, an entry with the outcome follows, then Dismiss.
//!
//! A coordinator follows until it is elected and its own first entry has applied. It follows again
//! when it steps down. A follower decides nothing, and says only which coordinator leads
//! (`leadership.rs`). A proposal may be applied late, twice, or not at all. So the leader checks
//! its conditions again after every entry, and an entry that no longer fits changes nothing.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod admission;
mod catch_up;
mod change;
mod checkpoints;
mod clients;
mod clock;
mod confirm;
mod directives;
mod event;
mod failure_detector;
mod feeds;
mod figures;
mod finish;
mod health;
mod history_cache;
mod invariants;
mod leadership;
mod lines;
mod links;
mod model;
mod operators;
mod outbox;
mod pace;
mod partition;
mod plan;
mod progress;
mod reads;
mod replaced;
mod roster;
mod unable;
mod view;
mod workers;

use std::time::Duration;

use everstep_transport::identity::Role;
use everstep_transport::protocol::outcome::{EventKind, Outcome};
use everstep_transport::protocol::{HistoryEntry, Message, Term};
use everstep_transport::time::Time;

use self::change::GenerationChange;
use self::checkpoints::CheckpointWriting;
pub use self::checkpoints::{CheckpointStoreError, RestoreProgress};
use self::clients::Clients;
use self::directives::Departures;
pub use self::event::{CoreEffect, CoreInput, ShellEffect, ShellInput};
use self::finish::Completion;
use self::health::WorkerHealth;
pub(crate) use self::history_cache::HISTORY_LOST_AFTER;
pub use self::history_cache::{EventRange, EventsAfter, HistoryCache, RECENT_EVENTS};
use self::leadership::Leadership;
use self::lines::Lines;
use self::links::{Links, PeerPhase};
use self::outbox::Outbox;
pub use self::progress::Standstill;
use self::roster::Roster;
pub use self::unable::UnableWorker;
pub use self::view::{ClusterView, RunEnd};
#[cfg(feature = "planted")]
use crate::plant::CorePlant;
use crate::state::{Command, CommandEntry, EntryOutcome, State};

/// How often the driver should give a [`CoreInput::Tick`].
pub const CORE_TICK: Duration = Duration::from_millis(50);

/// A link to a peer. The driver numbers links in the order of their coming, and never reuses a
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// The state machine of one coordinator: what the coordinators agree on, and what this one alone
/// knows besides.
#[derive(Debug)]
pub struct Core {
    state: State,
    leadership: Leadership,
    links: Links,
    health: WorkerHealth,
    change: GenerationChange,
    completion: Completion,
    checkpoints: CheckpointWriting,
    departures: Departures,
    lines: Lines,
    history: HistoryCache,
    clients: Clients,
    outbox: Outbox,
}

/// A change of generation, with all that it depends on.
struct Parts<'a> {
    change: &'a mut GenerationChange,
    roster: Roster<'a>,
    outbox: &'a mut Outbox,
}

// Inputs and outputs.
impl Core {
    /// A coordinator that follows, with an empty log. `epoch_unix_ms` is the wall clock at time
    /// zero, milliseconds of Unix time: events are stamped with it.
    ///
    /// After a restart, the driver first gives the new core its part of the log: the snapshot, with
    /// [`Self::restore_history`], and entries, as [`CoreInput::Applied`].
    pub fn new(now: Time, epoch_unix_ms: u64) -> Self {
        Self {
            state: State::default(),
            leadership: Leadership::default(),
            links: Links::default(),
            health: WorkerHealth::new(now),
            change: GenerationChange::default(),
            completion: Completion::default(),
            checkpoints: CheckpointWriting::default(),
            departures: Departures::default(),
            lines: Lines::default(),
            history: HistoryCache::default(),
            clients: Clients::default(),
            outbox: Outbox::new(epoch_unix_ms),
        }
    }

    /// Takes what happened. `now` never goes backwards.
    pub fn handle(&mut self, now: Time, input: impl Into<CoreInput>) {
        self.wake(now);
        match input.into() {
            CoreInput::Shell(input) => self.on_shell_input(now, input),
            CoreInput::Elected { term, id } => self.elected(now, term, id),
            CoreInput::SteppedDown => self.step_down(now),
            CoreInput::Leader { term, leader } => self.on_leader(now, term, leader),
            CoreInput::Confirmed { ticket } => self.confirmed(now, ticket),
            CoreInput::Unconfirmed { ticket } => self.leadership.unconfirmed(ticket),
            CoreInput::Installed(state) => self.install(now, *state),
            CoreInput::Applied { index, term, entry } => self.applied(now, index, term, entry),
            CoreInput::HistoryPage => self.history.on_page(now),
            CoreInput::Tick => self.tick(now),
        }
    }

    fn on_shell_input(&mut self, now: Time, input: ShellInput) {
        match input {
            ShellInput::Connected { link, identity, address } => {
                self.connected(link, identity, address)
            }
            ShellInput::Disconnected { link, end } => self.disconnected(now, link, end),
            ShellInput::Message { from, message } => self.on_message(now, from, message),
            ShellInput::Read(number) => self.read(number),
            ShellInput::Admit { token, node } => self.admit_node(now, token, node),
            ShellInput::LinesOpened { lineage, found } => self.lines_opened(now, lineage, found),
            ShellInput::LinesDurable { lineage, reach } => self.lines_durable(now, lineage, reach),
        }
    }

    /// Takes the wall clock of `now`, milliseconds of Unix time.
    pub fn set_clock(&mut self, now: Time, unix_ms: u64) {
        self.outbox.set_clock(now, unix_ms);
    }

    /// The next thing to do, `None` until more happens. The driver drains it after every input.
    pub fn poll_effect(&mut self) -> Option<CoreEffect> {
        self.outbox.pop()
    }

    /// Takes the history up to the newest applied entry. After a snapshot this coordinator does not
    /// know the beginning of the history.
    pub fn restore_history(&mut self, history: HistoryCache) {
        self.history = history;
    }

    /// From now on the coordinator has this bug.
    #[cfg(feature = "planted")]
    pub fn plant(&mut self, plant: CorePlant) {
        self.state.plant = Some(plant);
        self.health.plant(Some(plant));
    }

    /// What the log says.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The events after the one with this number, as far as a reader may have them: the newest
    /// ones, or where to read them.
    pub fn events_after(&self, number: u64) -> EventsAfter<'_> {
        self.history.events_after(number)
    }

    /// How many messages this coordinator ignored, since their sender may not send them, or not
    /// then.
    pub fn ignored(&self) -> u64 {
        self.links.ignored()
    }
}

/// Whether the run takes no step from this entry on.
fn is_rest(command: &Command) -> bool {
    matches!(command, Command::Generation(change) if change.record.waiting)
}

// The log.
impl Core {
    fn applied(&mut self, now: Time, index: u64, term: Term, entry: CommandEntry) {
        self.notice_later_term(now, term);
        let was_running = self.running();
        let revision = self.state.revision();
        let verdict = self.state.apply(index, term, &entry);
        if !self.state.new_events().is_empty() {
            let new_events = self.state.new_events().to_vec();
            self.history.take(&new_events);
            self.outbox.push(ShellEffect::History(HistoryEntry { index, events: new_events }));
        }
        self.lines.follow(now, &self.state, &mut self.outbox);
        if is_rest(&entry.command) {
            self.announce_lines(self.links.of_role(Role::Coordinator));
        }
        if self.state.revision() != revision {
            self.broadcast_coordinators();
        }
        if matches!(entry.command, Command::Lead { .. }) && self.leadership.is_elected(term) {
            self.lead(now, term);
        } else if self.leader().is_some() {
            self.follow_up(now, entry.command, verdict);
        }
        if was_running && !self.running() && self.leader().is_some() {
            self.dismiss(now);
        }
    }

    fn install(&mut self, now: Time, state: State) {
        self.step_down(now);
        self.history.install(&state, now);
        #[cfg(feature = "planted")]
        let state = state.with_plant(self.state.plant);
        self.state = state;
        self.lines.follow(now, &self.state, &mut self.outbox);
        self.announce_lines(self.links.of_role(Role::Coordinator));
        self.broadcast_coordinators();
    }

    /// What a leader does about an entry.
    fn follow_up(&mut self, now: Time, command: Command, verdict: EntryOutcome) {
        match command {
            Command::Register { name, registration, .. } => {
                self.registered(now, &name, registration.incarnation, verdict);
                self.start(now);
            }
            Command::Lose { worker, .. } => self.lost(now, worker, &verdict),
            Command::Drain { worker } | Command::Preempt { worker, .. } => {
                self.drained(now, worker);
            }
            Command::Generation(change) if verdict == EntryOutcome::Accepted => {
                self.checkpoints.renew(now, &change.record, &self.state);
                self.began(now, change)
            }
            Command::Generation(change) => self.not_begun(now, change.record.number),
            Command::Request { id, command, .. } => {
                self.answer_request(now, id, &command, &verdict)
            }
            Command::Found { founder: coordinator, .. }
            | Command::Coordinator { coordinator, .. } => {
                if let EntryOutcome::Coordinator(id) = verdict {
                    self.joined(&coordinator, id);
                }
            }
            Command::SpendToken { token, node } => {
                self.clients.admissions.spent(&mut self.outbox, token, node, verdict);
            }
            Command::ListCheckpoint { checkpoint, .. } => self.listed(now, &checkpoint, &verdict),
            Command::DamageCheckpoint { .. } => self.damage_known(now, &verdict),
            Command::LeaveAll { .. } => self.on_joint_leave(now, &verdict),
            Command::Note { .. } | Command::FailCheckpoint { .. } => self.on_directive(now),
            Command::SkipCheckpoint { .. } => self.checkpoints.skip_told(),
            Command::Lead { .. }
            | Command::Died(_)
            | Command::AwaitOwners { .. }
            | Command::LoseLines { .. }
            | Command::End { .. }
            | Command::ShutOut { .. }
            | Command::Recover { .. } => {}
        }
    }
}

// Small helpers.
impl Core {
    /// The term in which this coordinator leads. `None` while it does not.
    pub(crate) fn leader(&self) -> Option<Term> {
        self.leadership.term()
    }

    /// The workers as this coordinator sees them now.
    fn roster(&self, now: Time) -> Roster<'_> {
        let Self { state, links, health, .. } = self;
        health.roster(now, state, links)
    }

    /// The change of generation, to be changed, and the workers as this coordinator sees them now.
    fn parts(&mut self, now: Time) -> Parts<'_> {
        let Self { change, state, links, health, outbox, .. } = self;
        Parts { change, roster: health.roster(now, state, links), outbox }
    }

    fn running(&self) -> bool {
        *self.state.outcome() == Outcome::Running
    }

    fn workers_in(&self, wanted: impl Fn(PeerPhase) -> bool) -> Vec<LinkId> {
        self.links.workers().filter(|(_, phase)| wanted(*phase)).map(|(link, _)| link).collect()
    }

    /// Sends a last message to a worker. Nothing that the worker says afterwards counts.
    fn release(&mut self, to: LinkId, message: Message) {
        self.links.enter(to, PeerPhase::Released);
        self.outbox.send(to, message);
    }

    fn propose(&mut self, now: Time, command: Command) {
        self.outbox.propose(now, command);
    }

    /// Brings an event of the run into the log.
    fn note(&mut self, now: Time, kind: EventKind) {
        let run = self.state.run_id();
        self.propose(now, Command::Note { run, kind });
    }

    pub(crate) fn unix_ms(&self, at: Time) -> u64 {
        self.outbox.unix_ms(at)
    }
}

#[cfg(test)]
mod tests;
