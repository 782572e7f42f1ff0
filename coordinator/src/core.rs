//! A coordinator as a plain state machine: what peers say goes in, messages and proposals come out.
//!
//! Inputs: links that come and go, their messages, who leads, applied entries of the log, the
//! passing of time. Outputs: messages to send, links to close, entries to propose, lines to keep.
//! Everything agreed on is in [`State`], and changes only when an entry is applied; what is in this
//! module besides (links, signs of life, evidence, results) is one coordinator's own, and may be
//! lost with it. It knows no clock, no sockets, and not how an entry comes to be applied.
//!
//! A worker's way: Hello, Welcome once there is a run, Register, an entry, Registered; heartbeats
//! and their answers. When enough are there, or whenever somebody is lost, comes or goes: Pause,
//! Status, an entry with the next generation, Announce (`change.rs`). In the end Finished; when all
//! have, an entry with the outcome, Dismiss.
//!
//! A coordinator follows until it is elected and its own first entry has applied: until then it
//! says and proposes nothing. A proposal may be applied late, twice, or not at all: conditions are
//! looked at anew after every entry, and an entry that no longer fits changes nothing.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod change;
mod feeds;
mod finish;
mod lines;
mod links;
mod operators;
mod partition;
mod plan;
mod silence;
mod view;
mod workers;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use everstep_transport::identity::Identity;
use everstep_transport::protocol::outcome::{Outcome, WorkerResult};
use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{Message, MetricsLine, Step, Term, WorkerId};
use everstep_transport::time::Time;

use self::feeds::Feeds;
use self::lines::Lines;
use self::links::{Links, Phase};
use self::operators::Requests;
use self::partition::Partition;
use self::silence::Silence;
use self::view::Watchers;
pub use self::view::{ClusterView, End};
#[cfg(feature = "planted")]
use crate::plant::Plant;
use crate::state::{Command, Entry, State, Verdict};

/// How often the driver should give a [`Input::Tick`].
pub const TICK: Duration = Duration::from_millis(50);

/// A link to a peer, numbered by the driver in the order of their coming, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// What happens to a coordinator.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A peer has proved who it is.
    Connected {
        /// Its link.
        link: LinkId,
        /// Who it is.
        identity: Identity,
    },
    /// A link is gone.
    Disconnected {
        /// Which.
        link: LinkId,
        /// The peer's process is gone: it said goodbye, or nobody listens where it did. Else it may
        /// live on.
        gone: bool,
        /// Why, in words.
        reason: String,
    },
    /// A peer says something.
    Message {
        /// Its link.
        from: LinkId,
        /// What.
        message: Message,
    },
    /// This coordinator leads from now on, once its own entry of this term has applied.
    Elected {
        /// Its term, above all before.
        term: Term,
    },
    /// The log has come to this entry. Before the first [`Input::Elected`], what a durable log
    /// holds is applied again.
    Applied {
        /// The entry's index, above all before.
        index: u64,
        /// The term in which it came into the log.
        term: Term,
        /// The entry.
        entry: Entry,
    },
    /// Time has passed: to be given every [`TICK`].
    Tick,
}

/// What a coordinator wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Say this.
    Send {
        /// To whom.
        to: LinkId,
        /// What.
        message: Message,
    },
    /// Say this to many: it may be large, so that there is one of it, and not one for each.
    Broadcast {
        /// To whom.
        to: Vec<LinkId>,
        /// What.
        message: Message,
    },
    /// Bring this into the log; [`Input::Applied`] tells when it is there.
    Propose(Entry),
    /// Append these lines of settled steps durably, before any later effect is carried out: workers
    /// drop what they are told is written.
    Record(Vec<MetricsLine>),
    /// The run went back: the lines after this step are void, durably, before any later effect.
    ForgetLines {
        /// The last step that still counts.
        after: Step,
    },
    /// Close a link.
    Close {
        /// Which.
        to: LinkId,
        /// Why, in words for the peer.
        reason: String,
    },
}

/// One coordinator.
#[derive(Debug)]
pub struct Core {
    /// Wall clock at time zero, milliseconds of Unix time.
    epoch_unix_ms: u64,
    state: State,
    reign: Reign,
    links: Links,
    silence: Silence,
    partition: Partition,
    phase: change::Phase,
    /// The answers to the newest Pause.
    statuses: BTreeMap<WorkerId, Status>,
    feeds: Feeds,
    /// The greatest step that a member of the current generation has committed, as far as is known.
    reached: Step,
    lines: Lines,
    /// Of members of the current generation.
    results: BTreeMap<WorkerId, WorkerResult>,
    requests: Requests,
    watchers: Watchers,
    effects: VecDeque<Effect>,
    ignored: u64,
    #[cfg(feature = "planted")]
    plant: Option<Plant>,
}

/// Whether a coordinator acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reign {
    /// Another one does, or none.
    Follows,
    /// It will, when its entry of this term has applied.
    Elected(Term),
    /// It does.
    Leads(Term),
}

// Inputs and outputs.
impl Core {
    /// A coordinator that follows, with an empty log. `epoch_unix_ms` is the wall clock at time
    /// zero, milliseconds of Unix time: events are stamped with it.
    ///
    /// One that goes on after a restart is first given what its log holds, as [`Input::Applied`],
    /// then [`Self::restore_lines`], then [`Input::Elected`].
    pub fn new(now: Time, epoch_unix_ms: u64) -> Self {
        Self {
            epoch_unix_ms,
            state: State::default(),
            reign: Reign::Follows,
            links: Links::default(),
            silence: Silence::new(now),
            partition: Partition::default(),
            phase: change::Phase::Steady,
            statuses: BTreeMap::new(),
            feeds: Feeds::default(),
            reached: Step(0),
            lines: Lines::default(),
            results: BTreeMap::new(),
            requests: Requests::default(),
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
            Input::Disconnected { link, gone, reason } => {
                self.disconnected(now, link, gone, &reason);
            }
            Input::Message { from, message } => self.message(now, from, message),
            Input::Elected { term } => {
                self.reign = Reign::Elected(term);
                self.propose(now, Command::Lead);
            }
            Input::Applied { index, term, entry } => self.applied(now, index, term, entry),
            Input::Tick => self.tick(now),
        }
    }

    /// The next thing to do; none until more happens. To be drained after every input.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Takes the lines that were recorded before a restart, in order, after the log was applied
    /// again and before [`Input::Elected`]. What the log says besides is recorded anew.
    pub fn restore_lines(&mut self, lines: Vec<MetricsLine>) {
        let (void_after, missing) = self.lines.restore(lines);
        self.effects.extend(void_after.map(|after| Effect::ForgetLines { after }));
        self.record(missing);
    }

    /// From now on the coordinator has this bug.
    #[cfg(feature = "planted")]
    pub fn plant(&mut self, plant: Plant) {
        self.plant = Some(plant);
        self.state.plant = Some(plant);
        self.lines.twice = plant == Plant::CountLinesTwice;
    }

    /// What the log says.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Messages that their sender may not send, or not then: ignored, but counted.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }
}

// The log.
impl Core {
    fn applied(&mut self, now: Time, index: u64, term: Term, entry: Entry) {
        let was_running = self.running();
        let verdict = self.state.apply(index, term, &entry);
        if matches!(entry.command, Command::Lead) && self.reign == Reign::Elected(term) {
            self.lead(now, term);
        } else if self.leader().is_some() {
            self.follow_up(now, entry.command, verdict);
        } else if let (Command::Generation(change), Verdict::Accepted) = (entry.command, verdict) {
            self.lines.replay(&change);
        }
        if was_running && !self.running() && self.leader().is_some() {
            self.dismiss();
        }
    }

    /// This coordinator leads from now on. What it knows of workers is that they are registered:
    /// everyone gets a fresh deadline.
    fn lead(&mut self, now: Time, term: Term) {
        self.reign = Reign::Leads(term);
        self.silence = Silence::begin(now, self.state.present().map(|(worker, _)| worker));
        self.reached = self.state.record().map_or(Step(0), |record| record.resume);
        (self.phase, self.feeds) = (change::Phase::Steady, Feeds::default());
        (self.partition, self.results) = (Partition::default(), BTreeMap::new());
        for run in self.requests.runs() {
            self.propose(now, Command::Submit(run));
        }
        self.receive_waiting(now);
    }

    /// What a leader does about an entry.
    fn follow_up(&mut self, now: Time, command: Command, verdict: Verdict) {
        match command {
            Command::Submit(run) => {
                self.submitted(&run, &verdict);
                self.receive_waiting(now);
            }
            Command::Register { name, registration } => {
                self.registered(now, &name, registration.incarnation, verdict);
                self.start(now);
            }
            Command::Lose { worker, .. } => self.lost(now, worker, &verdict),
            Command::Drain { worker } => self.drained(now, worker, &verdict),
            Command::Generation(change) if verdict == Verdict::Accepted => self.began(now, change),
            Command::Generation(change) => self.not_begun(now, change.record.number),
            Command::Lead | Command::End(_) => {}
        }
    }

    /// Ends the run when every member has its result here, and every step its line.
    fn conclude(&mut self, now: Time) {
        let (Some(run), Some(record)) = (self.state.run(), self.state.record()) else { return };
        if self.results.len() < record.members.len()
            || self.lines.written() < Step(run.steps)
            || !self.running()
        {
            return;
        }
        let outcome = match finish::agreement(record, &self.results) {
            Ok(()) => Outcome::Complete(self.results.values().cloned().collect()),
            Err(reason) => Outcome::Failed { name: None, reason },
        };
        self.propose(now, Command::End(outcome));
    }

    /// The run is over: everyone may go, and nobody is missed.
    fn dismiss(&mut self) {
        self.silence.forget_all();
        self.phase = change::Phase::Steady;
        for link in self.workers_in(|phase| !matches!(phase, Phase::Connected | Phase::Released)) {
            self.release(link, Message::Dismiss);
        }
    }
}

// Small words.
impl Core {
    /// The term in which this coordinator leads.
    fn leader(&self) -> Option<Term> {
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

    /// Lines that were taken are durable before anything is said that depends on it.
    fn record(&mut self, lines: Vec<MetricsLine>) {
        if !lines.is_empty() {
            self.effects.push_back(Effect::Record(lines));
        }
    }

    /// A last word to a worker.
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

    fn unix_ms(&self, at: Time) -> u64 {
        self.epoch_unix_ms.saturating_add(at.since(Time(0)).as_millis() as u64)
    }
}

#[cfg(test)]
mod tests;
