//! The coordinator in the world: its core, its disk, and a log that agrees after a while.
//!
//! What is on the disk survives a crash: entries and the newest term. Of the entries that were
//! proposed and were not there yet, some are lost and some come into the log later, as those of a
//! leader may that was replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_coordinator::core::{Core, Effect, Input, LinkId, TICK};
use everstep_coordinator::state::{Change, Command, Entry, State};
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::protocol::{Message, Term, WorkerId};
use everstep_transport::time::Time;

use super::clock::Clock;
use super::link::End;
use super::types::Happening;
use super::{Node, UNIX_MS_AT_ZERO, World};
use crate::check::{Invariant, Observation, Violation};

/// One coordinator.
#[derive(Debug)]
pub struct Coordinator {
    core: Core,
    clock: Clock,
    disk: Disk,
    /// Entries that were proposed before a crash and come into the log after it.
    late: Vec<Entry>,
    /// When the newest entry so far is durable, and when it is applied.
    last: (Time, Time),
    /// Since when it listens, and when it last heard each worker's process, by its clock.
    awake: Time,
    heard: BTreeMap<usize, Time>,
    /// The members that were gone in truth, or unheard for too long, when a generation was last
    /// proposed.
    grounds: BTreeSet<WorkerId>,
    /// The last entry that was applied, and before a crash what it led to.
    applied: (u64, Option<State>),
    /// When a process can be there again, if there is none.
    down: Option<Time>,
}

/// What survives the process.
#[derive(Debug, Default)]
struct Disk {
    log: Vec<(Term, Entry)>,
    term: Term,
}

/// A worker that a coordinator has not heard for so long, by its own clock, may be taken for dead
/// with all that it holds: the time that the design states.
const GIVEN_UP: Duration = Duration::from_secs(10);
/// A new process takes at least this long to be there. Workers have noticed by then that the one
/// before is gone: it cannot tell them that it does not know their links.
const START: Duration = Duration::from_millis(150);

impl Coordinator {
    /// A coordinator with an empty disk, that does not run yet.
    pub fn new() -> Self {
        Self {
            core: Core::new(Time(0), UNIX_MS_AT_ZERO),
            clock: Clock::new(Time(0), 1000),
            disk: Disk::default(),
            late: Vec::new(),
            last: (Time(0), Time(0)),
            awake: Time(0),
            heard: BTreeMap::new(),
            grounds: BTreeSet::new(),
            applied: (0, None),
            down: Some(Time(0)),
        }
    }

    /// Whether its process has crashed.
    pub fn is_down(&self) -> bool {
        self.down.is_some()
    }

    /// If it has crashed: when a process can be there again.
    pub fn startable(&self) -> Option<Time> {
        self.down
    }

    /// Its clock.
    pub fn clock_mut(&mut self) -> &mut Clock {
        &mut self.clock
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// It hears a process.
    pub fn hears(&mut self, now: Time, place: usize) {
        self.heard.insert(place, self.clock.read(now));
    }

    /// It has stood still for a while, and goes on.
    pub fn awakes(&mut self, now: Time) {
        self.awake = self.clock.read(now);
    }

    /// Whether it has listened for a process in vain for so long that this counts as death.
    fn has_given_up(&self, now: Time, place: usize) -> bool {
        let heard = self.heard.get(&place).copied().unwrap_or_default();
        self.clock.read(now).since(heard.max(self.awake)) >= GIVEN_UP
    }

    /// The process is gone.
    pub fn crash(&mut self, now: Time) {
        self.down = Some(now + START);
        self.applied.1 = Some(self.core.state().clone());
    }

    /// An entry was proposed, and its proposer is gone.
    pub fn comes_late(&mut self, entry: Entry) {
        self.late.push(entry);
    }
}

impl World {
    /// A process with what is on the disk.
    pub(super) fn start_coordinator(&mut self) -> Result<(), Violation> {
        let permille = self.drifts.get(&Node::Coordinator).copied().unwrap_or(1000);
        let (now, unix_ms) = (self.now, UNIX_MS_AT_ZERO + self.now.0 / 1_000_000);
        let coordinator = &mut self.coordinator;
        coordinator.core = Core::new(Time(0), unix_ms);
        coordinator.clock = Clock::new(now, permille);
        coordinator.down = None;
        coordinator.last = (now, now);
        (coordinator.awake, coordinator.heard) = (Time(0), BTreeMap::new());
        (self.scenario.prepare.coordinator)(&mut coordinator.core);
        self.course.awake(now);
        self.replay()?;
        let coordinator = &mut self.coordinator;
        coordinator.disk.term.0 += 1;
        let term = coordinator.disk.term;
        self.queue.put(now, Happening::CoordinatorTick);
        self.coordinate(Input::Elected { term })?;
        for entry in std::mem::take(&mut self.coordinator.late) {
            self.append(entry);
        }
        Ok(())
    }

    /// Applies what is on the disk.
    ///
    /// # Errors
    /// I14, where it leads to something else than before the crash.
    fn replay(&mut self) -> Result<(), Violation> {
        for place in 0..self.coordinator.disk.log.len() {
            let (term, entry) = self.coordinator.disk.log[place].clone();
            let index = place as u64 + 1;
            if index > self.coordinator.applied.0 {
                self.coordinate(Input::Applied { index, term, entry })?;
                continue;
            }
            self.coordinator.core.handle(Time(0), Input::Applied { index, term, entry });
            let (last, state) = &self.coordinator.applied;
            let same = state.as_ref().is_none_or(|state| state == self.coordinator.core.state());
            if index == *last && !same {
                let seen = format!("entry {index} leads to another state than before the crash");
                return Err(Violation { invariant: Invariant::I14, at: self.now, seen });
            }
        }
        Ok(())
    }

    /// The operator reaches the coordinator.
    pub(super) fn connect_operator(&mut self) -> Result<(), Violation> {
        let name = everstep_transport::protocol::NodeName::parse("operator");
        let identity = Identity { role: Role::Operator, name: name.expect("a valid name") };
        let link = LinkId(self.link(Node::Operator, Node::Coordinator));
        self.queue.put(self.now, Happening::Watch(link.0));
        self.coordinate(Input::Connected { link, identity })
    }

    pub(super) fn tick_coordinator(&mut self) -> Result<(), Violation> {
        let next = self.now + self.coordinator.clock.true_time(TICK);
        self.queue.put(next, Happening::CoordinatorTick);
        self.coordinate(Input::Tick)
    }

    /// Gives the coordinator's core an input, and does what it wants done.
    pub(super) fn coordinate(&mut self, input: Input) -> Result<(), Violation> {
        if self.coordinator.is_down() {
            return Ok(());
        }
        let applied = match &input {
            Input::Applied { index, term, entry } => Some((*index, *term, entry.clone())),
            _ => None,
        };
        let before = self.coordinator.core.state().generation();
        let running = *self.coordinator.core.state().outcome() == Outcome::Running;
        let now = self.coordinator.clock.read(self.now);
        self.coordinator.core.handle(now, input);
        if let Some((index, term, entry)) = applied {
            self.coordinator.applied.0 = index;
            let changed = self.coordinator.core.state().generation() != before;
            self.witness_entry_of_log((index, term), &entry, changed, running)?;
        }
        while let Some(effect) = self.coordinator.core.poll_effect() {
            self.bring_about(effect)?;
        }
        Ok(())
    }

    fn bring_about(&mut self, effect: Effect) -> Result<(), Violation> {
        match effect {
            Effect::Send { to, message } => self.tell(to, message),
            Effect::Broadcast { to, message } => {
                to.into_iter().try_for_each(|link| self.tell(link, message.clone()))
            }
            Effect::Propose(entry) => {
                let Command::Generation(change) = &entry.command else {
                    self.append(entry);
                    return Ok(());
                };
                self.note(format_args!("proposed: {change:?}"));
                self.observe(Observation::Proposed(&change.record))?;
                // Who turns up from now on does so too late.
                self.coordinator.grounds = self.truly_lost();
                self.append(entry);
                self.proposing();
                Ok(())
            }
            // It is the only one.
            Effect::Confirm { ticket } => self.coordinate(Input::Confirmed { ticket }),
            Effect::History(_) | Effect::Admitted { .. } => Ok(()),
            Effect::Close { to, reason } => {
                let Some(peer) = self.links.peer(to) else { return Ok(()) };
                if self.links.number(Node::Coordinator, peer) == Some(to.0) {
                    self.close_link(Node::Coordinator, peer, End::lost(&reason));
                }
                let closed = Input::Disconnected { link: to, gone: false, reason };
                self.later(Happening::Coordinator(closed));
                Ok(())
            }
        }
    }

    /// Says something on a link of the coordinator, if that is still the newest with its peer.
    fn tell(&mut self, link: LinkId, message: Message) -> Result<(), Violation> {
        if let Message::Pause { number, .. } = &message {
            self.observe(Observation::Paused(*number))?;
        }
        let Some(peer) = self.links.peer(link) else { return Ok(()) };
        if self.links.number(Node::Coordinator, peer) == Some(link.0) {
            self.say(Node::Coordinator, peer, message);
        }
        Ok(())
    }

    /// Brings an entry into the log, in the order of the proposals.
    fn append(&mut self, entry: Entry) {
        let durable = (self.now + self.random.delay()).max(self.coordinator.last.0);
        self.coordinator.last.0 = durable;
        self.queue.put(durable, Happening::Durable(Box::new(entry)));
    }

    /// An entry is on the disk; it is applied a little later.
    pub(super) fn endured(&mut self, entry: Entry) {
        let term = self.coordinator.disk.term;
        self.coordinator.disk.log.push((term, entry.clone()));
        let index = self.coordinator.disk.log.len() as u64;
        let at = (self.now + self.random.delay()).max(self.coordinator.last.1);
        self.coordinator.last.1 = at;
        self.queue.put(at, Happening::Coordinator(Input::Applied { index, term, entry }));
    }

    /// The coordinator's process is gone. What it has proposed is lost, or comes late.
    pub(super) fn crash_coordinator(&mut self) {
        self.coordinator.crash(self.now);
        let gone = self.queue.take(|to_come| to_come.owner() == Some(Node::Coordinator));
        for happening in gone {
            if let Happening::Durable(entry) = happening
                && self.random.below(2) == 0
            {
                self.coordinator.comes_late(*entry);
            }
        }
    }

    // What the checkers see.

    /// An entry was applied for the first time.
    fn witness_entry_of_log(
        &mut self,
        (index, term): (u64, Term),
        entry: &Entry,
        changed: bool,
        running: bool,
    ) -> Result<(), Violation> {
        self.note(format_args!("entry {index}: {:?}", entry.command));
        self.course.progress(self.now);
        match &entry.command {
            Command::Generation(change) if changed => self.witness_change(change, term),
            Command::Lose { worker, reason } if running => self.judge_loss(*worker, reason),
            Command::End { .. } => {
                self.checks.over();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn witness_change(&mut self, change: &Change, term: Term) -> Result<(), Violation> {
        for loss in &change.lost {
            self.judge_loss(loss.worker, &loss.reason)?;
        }
        for worker in &change.left {
            self.judge_leave(*worker)?;
        }
        self.course.change(change);
        let lost = change.rollback.as_ref().map(|_| self.coordinator.grounds.clone());
        self.observe(Observation::Recorded(&change.record, term, lost.as_ref()))
    }

    /// The members of the current generation that are gone, or have been unheard for too long.
    fn truly_lost(&self) -> BTreeSet<WorkerId> {
        let record = self.checks.current_record();
        let members = record.iter().flat_map(|record| &record.members);
        let workers = members.map(|member| member.worker);
        workers.filter(|worker| self.is_truly_lost(*worker)).collect()
    }

    fn is_truly_lost(&self, worker: WorkerId) -> bool {
        let Some(&place) = self.places.get(&worker) else { return true };
        let process = &self.workers[place];
        let discarded = process.ended() || process.id() != Some(worker);
        discarded || self.coordinator.has_given_up(self.now, place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i6_silence_counts_as_death_after_ten_seconds_of_the_listeners_own_clock() {
        let second = |number| Time(0) + Duration::from_secs(number);
        let mut coordinator = Coordinator::new();
        coordinator.clock_mut().drift(second(0), 900);
        coordinator.hears(second(10), 3);
        assert!(!coordinator.has_given_up(second(21), 3), "9.9 s by its clock");
        assert!(coordinator.has_given_up(second(22), 3));
        coordinator.awakes(second(20));
        assert!(!coordinator.has_given_up(second(31), 3), "it did not listen before");
        assert!(coordinator.has_given_up(second(32), 3));
        coordinator.hears(second(32), 3);
        assert!(!coordinator.has_given_up(second(43), 3));
        assert!(coordinator.has_given_up(second(43), 4), "nothing was ever heard of it");
    }
}
