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
//! when it is deposed. A follower decides nothing, and says only which coordinator leads
//! (`reign.rs`). A proposal may be applied late, twice, or not at all. So the leader checks its
//! conditions again after every entry, and an entry that no longer fits changes nothing.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod admission;
mod catch_up;
mod change;
mod clock;
mod confirm;
mod event;
mod feeds;
mod figures;
mod finish;
mod lines;
mod links;
mod model;
mod operators;
mod partition;
mod past;
mod plan;
mod progress;
mod reads;
mod reign;
mod silence;
mod unable;
mod view;
mod workers;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use everstep_transport::protocol::outcome::{Event, Outcome, WorkerResult};
use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{Frame, Message, Step, Telemetry, Term, WorkerId};
use everstep_transport::time::Time;

use self::admission::Admissions;
use self::catch_up::CatchUp;
use self::clock::Clock;
use self::confirm::Confirmations;
pub use self::event::{Effect, Input};
use self::feeds::Feeds;
use self::lines::Lines;
pub use self::links::LinkEnd;
use self::links::{Links, Phase};
use self::model::Model;
use self::operators::Requests;
use self::partition::Partition;
use self::past::Past;
pub(crate) use self::past::TELLING;
use self::progress::Progress;
pub use self::progress::Standstill;
use self::reign::{Guide, Reign};
use self::silence::{Doubt, Silence};
pub use self::unable::Reason;
use self::unable::Unable;
use self::view::Watchers;
pub use self::view::{ClusterView, End};
#[cfg(feature = "planted")]
use crate::plant::Plant;
use crate::state::{Command, Entry, State, Verdict};

/// How often the driver should give a [`Input::Tick`].
pub const TICK: Duration = Duration::from_millis(50);

/// A link to a peer. The driver numbers links in the order of their coming, and never reuses a
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// The state machine of one coordinator.
#[derive(Debug)]
pub struct Core {
    clock: Clock,
    state: State,
    reign: Reign,
    guide: Guide,
    confirmations: Confirmations,
    links: Links,
    /// Registered workers that ended while this coordinator followed, and how it noticed that. If
    /// it comes to lead, it need not wait for them to be silent.
    departed: BTreeMap<WorkerId, Doubt>,
    silence: Silence,
    partition: Partition,
    phase: change::Phase,
    /// The answers to the newest Pause, by worker.
    statuses: BTreeMap<WorkerId, Status>,
    feeds: Feeds,
    catch_up: CatchUp,
    /// The greatest step that a member of the current generation has committed, as far as this
    /// coordinator knows.
    reached: Step,
    lines: Lines,
    /// The newest GPU figures of workers. They change so fast that the log never has them: only a
    /// reader that asks is told. A new leader hears them with the next heartbeats.
    telemetry: BTreeMap<WorkerId, Telemetry>,
    /// The workers that have slow devices.
    progress: Progress,
    past: Past,
    /// The results of members of the current generation, by worker.
    results: BTreeMap<WorkerId, WorkerResult>,
    model: Model,
    unable: Unable,
    requests: Requests,
    admissions: Admissions,
    watchers: Watchers,
    effects: VecDeque<Effect>,
    ignored: u64,
    #[cfg(feature = "planted")]
    pub(crate) plant: Option<Plant>,
}

// Inputs and outputs.
impl Core {
    /// A coordinator that follows, with an empty log. `epoch_unix_ms` is the wall clock at time
    /// zero, milliseconds of Unix time: events are stamped with it.
    ///
    /// After a restart, the driver first gives the new core its part of the log: the snapshot, with
    /// [`Self::restore_history`], and entries, as [`Input::Applied`].
    pub fn new(now: Time, epoch_unix_ms: u64) -> Self {
        Self {
            clock: Clock::new(epoch_unix_ms),
            state: State::default(),
            reign: Reign::Follows,
            guide: Guide::default(),
            confirmations: Confirmations::default(),
            links: Links::default(),
            departed: BTreeMap::new(),
            silence: Silence::new(now),
            partition: Partition::default(),
            phase: change::Phase::Steady,
            statuses: BTreeMap::new(),
            feeds: Feeds::default(),
            catch_up: CatchUp::default(),
            reached: Step(0),
            lines: Lines::default(),
            telemetry: BTreeMap::new(),
            progress: Progress::default(),
            past: Past::default(),
            results: BTreeMap::new(),
            model: Model::default(),
            unable: Unable::default(),
            requests: Requests::default(),
            admissions: Admissions::default(),
            watchers: Watchers::default(),
            effects: VecDeque::new(),
            ignored: 0,
            #[cfg(feature = "planted")]
            plant: None,
        }
    }

    /// Takes what happened. `now` never goes backwards.
    pub fn handle(&mut self, now: Time, input: Input) {
        self.wake(now);
        match input {
            Input::Connected { link, identity } => self.connected(link, identity),
            Input::Disconnected { link, end, reason } => {
                self.disconnected(now, link, end, &reason);
            }
            Input::Message { from, message } => self.message(now, from, message),
            Input::Elected { term, id } => self.elected(now, term, id),
            Input::Deposed => self.deposed(now),
            Input::Leader { term, leader } => self.led_by(now, term, leader),
            Input::Confirmed { ticket } => self.confirmed(now, ticket),
            Input::Unconfirmed { ticket } => self.unconfirmed(ticket),
            Input::Look(number) => self.look(number),
            Input::Installed(state) => self.install(now, *state),
            Input::Admit { token, node } => self.admit_node(now, token, node),
            Input::Applied { index, term, entry } => self.applied(now, index, term, entry),
            Input::LinesOpened { lineage, found } => self.lines_opened(now, lineage, found),
            Input::LinesDurable { lineage, reach } => self.lines_durable(now, lineage, reach),
            Input::HistoryTold => self.past.is_told(now),
            Input::Tick => self.tick(now),
        }
    }

    /// Takes the wall clock of `now`, milliseconds of Unix time.
    pub fn set_clock(&mut self, now: Time, unix_ms: u64) {
        self.clock.set(now, unix_ms);
    }

    /// The next thing to do, `None` until more happens. The driver drains it after every input.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Takes the whole history up to the newest applied entry, in order. After a snapshot this
    /// coordinator does not know the beginning of the history.
    pub fn restore_history(&mut self, frames: impl IntoIterator<Item = Frame>) {
        self.past = Past::restored(frames);
    }

    /// From now on the coordinator has this bug.
    #[cfg(feature = "planted")]
    pub fn plant(&mut self, plant: Plant) {
        self.plant = Some(plant);
        self.state.plant = Some(plant);
    }

    /// What the log says.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The events after the one with this number, in order, as far as this coordinator knows them.
    pub fn events_after(&self, number: u64) -> &[Event] {
        self.past.events_after(number)
    }

    /// How many messages this coordinator ignored, since their sender may not send them, or not
    /// then.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }
}

// The log.
impl Core {
    fn applied(&mut self, now: Time, index: u64, term: Term, entry: Entry) {
        self.notice_later_term(now, term);
        let was_running = self.running();
        let revision = self.state.revision();
        let verdict = self.state.apply(index, term, &entry);
        if !self.state.news().is_empty() {
            let news = self.state.news().to_vec();
            self.past.take(&news);
            self.effects.push_back(Effect::History(Frame { index, news }));
        }
        self.follow_lines(now);
        if self.state.revision() != revision {
            self.tell_all();
        }
        if matches!(entry.command, Command::Lead { .. }) && self.reign == Reign::Elected(term) {
            self.lead(now, term);
        } else if self.leader().is_some() {
            self.follow_up(now, entry.command, verdict);
        }
        if was_running && !self.running() && self.leader().is_some() {
            self.dismiss(now);
        }
    }

    fn install(&mut self, now: Time, state: State) {
        self.deposed(now);
        self.past = Past::of(&state, now);
        self.state = state;
        #[cfg(feature = "planted")]
        self.plant.into_iter().for_each(|plant| self.state.plant = Some(plant));
        self.follow_lines(now);
        self.tell_all();
    }

    /// What a leader does about an entry.
    fn follow_up(&mut self, now: Time, command: Command, verdict: Verdict) {
        match command {
            Command::Register { name, registration, .. } => {
                self.registered(now, &name, registration.incarnation, verdict);
                self.start(now);
            }
            Command::Lose { worker, .. } => self.lost(now, worker, &verdict),
            Command::Drain { worker } => self.drained(now, worker),
            Command::Generation(change) if verdict == Verdict::Accepted => self.began(now, change),
            Command::Generation(change) => self.not_begun(now, change.record.number),
            Command::Request { id, wish, .. } => self.granted(now, id, &wish, &verdict),
            Command::Found { founder: coordinator, .. }
            | Command::Coordinator { coordinator, .. } => {
                if let Verdict::Coordinator(id) = verdict {
                    self.joined(&coordinator, id);
                }
            }
            Command::SpendToken { token, node } => self.spent(token, node, verdict),
            Command::Lead { .. }
            | Command::Died(_)
            | Command::AwaitOwners { .. }
            | Command::Note { .. }
            | Command::LoseLines { .. }
            | Command::End { .. }
            | Command::ShutOut { .. }
            | Command::Recover { .. } => {}
        }
    }

    /// Ends the run when this coordinator has every member's result and the line of every step.
    fn conclude(&mut self, now: Time) {
        let (Some(run), Some(record)) = (self.state.run(), self.state.record()) else { return };
        if self.results.len() < record.members.len()
            || self.written() < Step(run.steps)
            || !self.is_durable()
            || !self.running()
        {
            return;
        }
        let outcome = match finish::agreement(record, &self.results) {
            Ok(()) => Outcome::Complete(self.results.values().cloned().collect()),
            Err(reason) => Outcome::Failed { name: None, reason },
        };
        self.propose_end(now, outcome);
    }
}

// Small helpers.
impl Core {
    /// The term in which this coordinator leads. `None` while it does not.
    pub(crate) fn leader(&self) -> Option<Term> {
        match self.reign {
            Reign::Leads(term) => Some(term),
            Reign::Follows | Reign::Elected(_) => None,
        }
    }

    fn running(&self) -> bool {
        *self.state.outcome() == Outcome::Running
    }

    fn workers_in(&self, wanted: impl Fn(Phase) -> bool) -> Vec<LinkId> {
        self.links.workers().filter(|(_, phase)| wanted(*phase)).map(|(link, _)| link).collect()
    }

    /// Sends a last message to a worker. Nothing that the worker says afterwards counts.
    fn release(&mut self, to: LinkId, message: Message) {
        self.links.enter(to, Phase::Released);
        self.send(to, message);
    }

    fn send(&mut self, to: LinkId, message: Message) {
        self.effects.push_back(Effect::Send { to, message });
    }

    fn broadcast(&mut self, to: Vec<LinkId>, message: Message) {
        if !to.is_empty() {
            self.effects.push_back(Effect::Broadcast { to, message });
        }
    }

    fn close(&mut self, to: LinkId, reason: &str) {
        self.effects.push_back(Effect::Close { to, reason: reason.to_string() });
    }

    fn propose(&mut self, now: Time, command: Command) {
        let entry = Entry { unix_ms: self.unix_ms(now), command };
        self.effects.push_back(Effect::Propose(entry));
    }

    pub(crate) fn unix_ms(&self, at: Time) -> u64 {
        self.clock.unix_ms(at)
    }
}

#[cfg(test)]
mod tests;
