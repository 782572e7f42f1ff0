//! A coordinator as a plain state machine: what peers say goes in, messages and proposals come out.
//!
//! Inputs: links that come and go, their messages, applied entries of the log, the passing of time.
//! Outputs: messages to send, links to close, entries to propose. Everything agreed on is in
//! [`State`], and changes only when an entry is applied; what is in this module besides (links,
//! signs of life, lines, results) is one coordinator's own, and may be lost with it. It knows no
//! clock, no sockets, and not how an entry comes to be applied.
//!
//! A worker's way: Hello, Welcome once there is a run, Register, an entry, Registered; when enough
//! are there, an entry with the first generation, Announce; heartbeats and their answers; Finished;
//! when all have, an entry with the outcome, Dismiss.
//!
//! A proposal may be applied late, twice, or not at all: conditions are looked at anew after every
//! entry, and an entry that no longer fits changes nothing.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod finish;
mod lines;
mod links;
mod silence;
mod start;
mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::codec::schema;
use everstep_transport::protocol::message::{Heartbeat, Registration};
use everstep_transport::protocol::outcome::{Outcome, WorkerResult};
use everstep_transport::protocol::{Message, NodeName, RunSpec, Step, WorkerId};
use everstep_transport::time::Time;

use self::lines::Lines;
use self::links::{Link, Links, Phase};
use self::silence::Silence;
use crate::state::{Command, Entry, State, Verdict, Worker};

/// How often the driver should give a [`Input::Tick`].
pub const TICK: Duration = Duration::from_millis(100);

/// Most characters of a worker's reason that become history.
const MAX_REASON: usize = 1_000;

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
    /// The log has come to this entry.
    Applied {
        /// The entry's index, above all before.
        index: u64,
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
    links: Links,
    silence: Silence,
    lines: Lines,
    results: BTreeMap<WorkerId, WorkerResult>,
    /// Runs that operators asked for, until the log has answered.
    submissions: BTreeMap<LinkId, RunSpec>,
    effects: VecDeque<Effect>,
    ignored: u64,
}

// Inputs and outputs.
impl Core {
    /// A coordinator with an empty log. `epoch_unix_ms` is the wall clock at time zero,
    /// milliseconds of Unix time: events are stamped with it.
    pub fn new(now: Time, epoch_unix_ms: u64) -> Self {
        Self {
            epoch_unix_ms,
            state: State::default(),
            links: Links::default(),
            silence: Silence::new(now),
            lines: Lines::default(),
            results: BTreeMap::new(),
            submissions: BTreeMap::new(),
            effects: VecDeque::new(),
            ignored: 0,
        }
    }

    /// Takes what happened. `now` never goes backwards.
    pub fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Connected { link, identity } => self.connected(now, link, identity),
            Input::Disconnected { link, reason } => self.disconnected(now, link, &reason),
            Input::Message { from, message } => self.message(now, from, message),
            Input::Applied { index, entry } => self.applied(now, index, entry),
            Input::Tick => self.tick(now),
        }
    }

    /// The next thing to do; none until more happens. To be drained after every input.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// From now on the coordinator has a planted bug: it counts a line twice that comes twice.
    #[cfg(feature = "planted")]
    pub fn count_lines_twice(&mut self) {
        self.lines.twice = true;
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

// Links.
impl Core {
    /// A worker's newer link replaces an older one: the old end may be dead without saying so.
    fn connected(&mut self, now: Time, link: LinkId, identity: Identity) {
        let older = (identity.role == Role::Worker).then(|| self.links.of_worker(&identity.name));
        if let Some(older) = older.flatten() {
            let reason = "a newer link of the same node replaced it";
            self.close(older, reason);
            self.disconnected(now, older, reason);
        }
        self.links.insert(link, identity);
    }

    fn disconnected(&mut self, now: Time, link: LinkId, reason: &str) {
        self.submissions.remove(&link);
        if let Some(Phase::Registered(worker)) = self.links.remove(link) {
            self.lose(now, worker, format!("its link closed: {reason}"));
        }
    }

    fn tick(&mut self, now: Time) {
        for worker in self.silence.tick(now) {
            let reason = format!("no heartbeat for {:?}", silence::PATIENCE);
            let known = self.state.workers().get(&worker);
            if let Some(link) = known.and_then(|known| self.links.of_worker(&known.name)) {
                self.links.enter(link, Phase::Released);
                self.close(link, &reason);
            }
            self.lose(now, worker, reason);
        }
    }

    fn lose(&mut self, now: Time, worker: WorkerId, reason: String) {
        self.silence.forget(worker);
        self.propose(now, Command::Lose { worker, reason });
    }
}

// Messages.
impl Core {
    fn message(&mut self, now: Time, from: LinkId, message: Message) {
        let phase = self.links.find(from).map(|link| link.phase);
        match (phase, message) {
            (Some(Phase::Connected), Message::Hello { schema }) => self.greet(from, schema),
            (
                Some(Phase::Welcomed | Phase::Registering(_) | Phase::Registered(_)),
                Message::Register(registration),
            ) => self.register(now, from, registration),
            (Some(Phase::Registered(worker)), message) => self.work(now, from, worker, message),
            (Some(Phase::Operator), Message::Submit(run)) => {
                self.submissions.insert(from, run.clone());
                self.propose(now, Command::Submit(run));
            }
            (Some(Phase::Operator), Message::Watch { step, event }) => {
                let Self { state, lines, results, .. } = &*self;
                let update = view::Sources { state, lines, results }.after(step, event);
                self.send(from, Message::Update(update));
            }
            _ => self.ignored += 1,
        }
    }

    fn greet(&mut self, from: LinkId, theirs: u64) {
        let ours = schema();
        if theirs != ours {
            let reason = format!(
                "this worker speaks another version of the protocol ({theirs:016x}) than the \
                 coordinator ({ours:016x}); run the same build everywhere"
            );
            self.release(from, Message::Refused { reason });
        } else if !self.running() {
            self.release(from, Message::Dismiss);
        } else {
            self.links.enter(from, Phase::Greeted);
            self.welcome(vec![from]);
        }
    }

    /// Registered anew by another incarnation, the one before is gone.
    fn register(&mut self, now: Time, from: LinkId, registration: Registration) {
        let Some(Link { identity, phase }) = self.links.find(from) else { return };
        let (name, phase) = (identity.name.clone(), *phase);
        if let Phase::Registered(worker) = phase
            && let Some(known) = self.state.workers().get(&worker)
            && known.registration.incarnation != registration.incarnation
        {
            self.lose(now, worker, "it registered anew".into());
        }
        self.links.enter(from, Phase::Registering(registration.incarnation));
        self.propose(now, Command::Register { name, registration });
    }

    /// What a registered worker says.
    fn work(&mut self, now: Time, from: LinkId, worker: WorkerId, message: Message) {
        self.silence.heard(now, worker);
        match message {
            Message::Heartbeat(heartbeat) if heartbeat.worker == worker => {
                self.heartbeat(now, from, heartbeat);
            }
            Message::FetchRecord => {
                if let Some(record) = self.state.record().cloned() {
                    self.send(from, Message::Announce(record));
                }
            }
            Message::Finished(result) if result.worker == worker && self.is_member(worker) => {
                self.results.insert(worker, result);
                self.conclude(now);
            }
            Message::Failed { at_fault, reason } => {
                self.links.enter(from, Phase::Released);
                let reason: String = reason.chars().take(MAX_REASON).collect();
                match at_fault.filter(|other| *other != worker && self.is_member(*other)) {
                    Some(other) => self.lose(now, other, format!("worker {worker} says: {reason}")),
                    None => self.lose(now, worker, format!("it failed: {reason}")),
                }
            }
            _ => self.ignored += 1,
        }
    }

    fn heartbeat(&mut self, now: Time, from: LinkId, heartbeat: Heartbeat) {
        let Heartbeat { worker, generation, lines, .. } = heartbeat;
        let current = self.state.generation();
        // Nothing that leaves the cluster is taken from outside the current generation.
        if !lines.is_empty() && generation == current && self.is_step_leader(worker) {
            let steps = self.state.run().map_or(0, |run| run.steps);
            for line in lines.into_iter().filter(|line| line.step.0 <= steps) {
                self.lines.accept(line);
            }
            self.conclude(now);
        }
        let written = self.lines.written();
        self.send(from, Message::HeartbeatAnswer { generation: current, written });
    }
}

// The log.
impl Core {
    fn applied(&mut self, now: Time, index: u64, entry: Entry) {
        let was_running = self.running();
        let verdict = self.state.apply(index, &entry);
        match entry.command {
            Command::Submit(run) => self.submitted(&run, &verdict),
            Command::Register { name, registration } => {
                self.registered(now, &name, registration.incarnation, verdict);
                self.start(now);
            }
            Command::Lose { .. } => self.start(now),
            Command::Generation(_) if verdict == Verdict::Accepted => self.announce(),
            Command::Generation(_) | Command::End(_) => {}
        }
        if was_running && !self.running() {
            self.dismiss();
        }
    }

    fn submitted(&mut self, run: &RunSpec, verdict: &Verdict) {
        let answered = self.submissions.extract_if(.., |_, wanted| wanted == run);
        let answered: Vec<_> = answered.map(|(link, _)| link).collect();
        if let Verdict::Refused(reason) = verdict {
            for link in answered {
                self.send(link, Message::Refused { reason: reason.clone() });
            }
        }
        self.welcome(self.workers_in(|phase| phase == Phase::Greeted));
    }

    /// Tells the run, once there is one, to workers that wait for it.
    fn welcome(&mut self, waiting: Vec<LinkId>) {
        let Some(run) = self.state.run().cloned() else { return };
        for link in waiting {
            self.links.enter(link, Phase::Welcomed);
            self.send(link, Message::Welcome { run: run.clone() });
        }
    }

    fn registered(&mut self, now: Time, name: &NodeName, incarnation: u64, verdict: Verdict) {
        let link = self.links.of_worker(name);
        let phase = link.and_then(|link| self.links.find(link)).map(|link| link.phase);
        let waits = phase == Some(Phase::Registering(incarnation));
        match (link, verdict) {
            (Some(link), Verdict::Registered(worker)) if waits => {
                self.links.enter(link, Phase::Registered(worker));
                self.silence.heard(now, worker);
                self.send(link, Message::Registered { worker });
            }
            (Some(link), Verdict::Refused(reason)) if waits => {
                self.release(link, Message::Refused { reason });
            }
            (_, Verdict::Registered(worker)) if phase != Some(Phase::Registered(worker)) => {
                self.lose(now, worker, "it left while it registered".into());
            }
            _ => {}
        }
    }

    /// Proposes the first generation when enough registered workers are connected.
    fn start(&mut self, now: Time) {
        let (Some(run), Some(shards)) = (self.state.run(), self.state.shards()) else { return };
        let (workers, enough) = (self.state.workers(), run.start_workers as usize);
        if workers.len() < enough || self.state.record().is_some() || !self.running() {
            return;
        }
        let registered = self.links.workers().filter_map(|(_, phase)| match phase {
            Phase::Registered(worker) => Some((worker, workers.get(&worker)?)),
            _ => None,
        });
        let present: BTreeMap<WorkerId, &Worker> = registered.collect();
        if present.len() >= enough {
            let record = start::first_generation(run, shards, &present);
            self.propose(now, Command::Generation(record));
        }
    }

    fn announce(&mut self) {
        let Some(record) = self.state.record().cloned() else { return };
        let members: BTreeSet<_> = record.members.iter().map(|member| member.worker).collect();
        let is_member = |phase| matches!(phase, Phase::Registered(id) if members.contains(&id));
        let to = self.workers_in(is_member);
        self.effects.push_back(Effect::Broadcast { to, message: Message::Announce(record) });
    }

    /// Ends the run when every member has its result here, and every step its line.
    fn conclude(&mut self, now: Time) {
        let (Some(run), Some(record)) = (self.state.run(), self.state.record()) else { return };
        let finished = record.members.iter().all(|m| self.results.contains_key(&m.worker));
        if !finished || self.lines.written() < Step(run.steps) || !self.running() {
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
        for link in self.workers_in(|phase| !matches!(phase, Phase::Connected | Phase::Released)) {
            self.release(link, Message::Dismiss);
        }
    }
}

// Small words.
impl Core {
    fn running(&self) -> bool {
        *self.state.outcome() == Outcome::Running
    }

    fn is_member(&self, worker: WorkerId) -> bool {
        self.state.record().is_some_and(|record| record.rank(worker).is_some())
    }

    /// Whether the worker is the one that reports the generation's lines.
    fn is_step_leader(&self, worker: WorkerId) -> bool {
        self.state.record().is_some_and(|record| record.step_leader() == worker)
    }

    fn workers_in(&self, wanted: impl Fn(Phase) -> bool) -> Vec<LinkId> {
        self.links.workers().filter(|(_, phase)| wanted(*phase)).map(|(link, _)| link).collect()
    }

    /// A last word to a worker.
    fn release(&mut self, to: LinkId, message: Message) {
        self.links.enter(to, Phase::Released);
        self.send(to, message);
    }

    fn send(&mut self, to: LinkId, message: Message) {
        self.effects.push_back(Effect::Send { to, message });
    }

    fn close(&mut self, to: LinkId, reason: &str) {
        self.effects.push_back(Effect::Close { to, reason: reason.to_string() });
    }

    fn propose(&mut self, now: Time, command: Command) {
        let since = now.since(Time(0)).as_millis() as u64;
        let entry = Entry { unix_ms: self.epoch_unix_ms.saturating_add(since), command };
        self.effects.push_back(Effect::Propose(entry));
    }
}

#[cfg(test)]
mod tests;
