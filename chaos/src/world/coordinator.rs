//! The coordinators in the world: each is a node, with a clock and a disk of its own.
//!
//! They begin as members of one cluster, with the same on their disks. A process that starts again
//! has what was durable. A machine without a coordinator's id asks to be one first
//! (`membership.rs`).

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_coordinator::core::{LinkId, ShellEffect, ShellInput};
use everstep_coordinator::node::{self, NODE_TICK, NodeEffect, NodeInput, NodeOptions};
use everstep_coordinator::raft::{self, DurableState, HardState, LogPosition, ReplicaId, Snapshot};
use everstep_coordinator::state::{self, Command, CommandEntry, State};
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::{CoordinatorId, CoordinatorView, Message, NodeName, Term};
use everstep_transport::time::Time;

use super::clock::Clock;
use super::disk::CoordinatorDisk;
use super::history_file::{HistoryFetch, HistoryFile, reach};
use super::link::End;
use super::membership::MachinePlan;
use super::types::Event;
use super::upgrade::own;
use super::{NodeId, UNIX_MS_AT_ZERO, World};
use crate::check::{Observation, Violation};
use crate::random::Random;

/// A coordinator: its node, its disk and its clock.
pub struct SimCoordinator {
    place: usize,
    pub(super) directory: Directory,
    process: Process,
    pub(super) history_fetch: HistoryFetch,
    /// The removed coordinators with which it has no links.
    pub(super) shut_out: Vec<NodeName>,
    /// What the schedule plans for its machine.
    pub(super) plan: MachinePlan,
    clock: Clock,
    disk: CoordinatorDisk,
    /// Since when it listens, and when it last heard each worker's process, by its clock.
    awake: Time,
    heard: BTreeMap<usize, Time>,
    /// The term in which it leads, as the world last saw it.
    leads: Option<Term>,
    /// How many processes have started here.
    lives: u64,
    /// The earliest time of the next process, if none runs.
    startable: Time,
}

/// The identity in a coordinator's directory, beside log and history. Durable at once.
#[derive(Clone, Debug, Default)]
pub struct Directory {
    /// Its id among the cluster's coordinators. None before its admission.
    pub id: Option<CoordinatorId>,
    /// How many directories this machine had before.
    pub incarnation: u64,
    /// The revision of the newest list of coordinators that it knows, and the list.
    pub membership: (u64, Vec<CoordinatorView>),
}

/// The process on a coordinator's machine.
pub enum Process {
    /// The machine lives, and no process runs on it.
    Down,
    /// A machine that asks to be a coordinator, and when it last asked.
    Asks(Option<Time>),
    /// The process is a coordinator of the cluster.
    Runs(Box<node::Node>),
}

/// A new process takes at least this long to start. By then the others have noticed the end of the
/// old process: the new one cannot tell them that it does not know their links.
const PROCESS_START_TIME: Duration = Duration::from_millis(150);
/// Entries between two snapshots. Every run takes a few snapshots.
const SNAPSHOT_ENTRIES: u64 = 16;
/// Entries that stay in the log before a snapshot.
const KEPT_ENTRIES: u64 = 6;

impl SimCoordinator {
    /// The coordinator at a place, with `disk` as its disk. Its process does not run yet.
    pub fn new(place: usize, directory: Directory, disk: CoordinatorDisk) -> Self {
        Self {
            place,
            directory,
            process: Process::Down,
            history_fetch: HistoryFetch::default(),
            shut_out: Vec::new(),
            plan: MachinePlan::default(),
            clock: Clock::new(Time(0), 1000),
            disk,
            awake: Time(0),
            heard: BTreeMap::new(),
            leads: None,
            lives: 0,
            startable: Time(0),
        }
    }

    /// Whether its process has crashed.
    pub fn is_down(&self) -> bool {
        matches!(self.process, Process::Down)
    }

    /// The node, if the process is a coordinator's.
    pub fn node(&self) -> Option<&node::Node> {
        if let Process::Runs(node) = &self.process { Some(node) } else { None }
    }

    /// As [`SimCoordinator::node`], to change.
    pub fn node_mut(&mut self) -> Option<&mut node::Node> {
        if let Process::Runs(node) = &mut self.process { Some(node) } else { None }
    }

    /// The process on its machine.
    pub fn process_mut(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The index of the last entry that it has applied.
    pub fn applied(&self) -> u64 {
        self.node().map_or(0, |node| node.core().state().index())
    }

    /// The earliest time of the next process, after a crash.
    pub fn startable(&self) -> Time {
        self.startable
    }

    /// The term in which it leads.
    pub fn leads(&self) -> Option<Term> {
        self.leads
    }

    /// How many processes have started here.
    pub fn lives(&self) -> u64 {
        self.lives
    }

    /// The clock of its machine, for a fault that sets it.
    pub fn clock_mut(&mut self) -> &mut Clock {
        &mut self.clock
    }

    /// The clock of its machine, which may be fast or slow.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// What its machine keeps when the process ends.
    pub fn disk(&self) -> &CoordinatorDisk {
        &self.disk
    }

    /// What its machine keeps when the process ends, for a fault.
    pub fn disk_mut(&mut self) -> &mut CoordinatorDisk {
        &mut self.disk
    }

    /// Notes that it hears a process now.
    pub fn hears(&mut self, now: Time, place: usize) {
        self.heard.insert(place, self.clock.read(now));
    }

    /// It listens anew from now on: it stood still for a while, or did not lead.
    pub fn woke_at(&mut self, now: Time) {
        self.awake = self.clock.read(now);
    }

    /// How long it has listened to a process without a word from it.
    pub fn silence(&self, now: Time, place: usize) -> Duration {
        let heard = self.heard.get(&place).copied().unwrap_or_default();
        self.clock.read(now).since(heard.max(self.awake))
    }

    /// Whether it has heard a process since it began to listen.
    pub fn has_heard(&self, place: usize) -> bool {
        self.heard.get(&place).is_some_and(|heard| *heard >= self.awake)
    }

    /// Ends the process. What it has not synced may be lost.
    pub fn crash(&mut self, now: Time, random: &mut Random) {
        (self.process, self.leads) = (Process::Down, None);
        self.startable = now + PROCESS_START_TIME;
        self.disk.crash(random);
    }

    /// What it states about itself with the build of today.
    pub fn of_today(&self) -> state::CoordinatorInfo {
        own(self.place, self.directory.incarnation)
    }

    fn connected(&self, link: LinkId) -> ShellInput {
        let identity = Identity { role: Role::Coordinator, name: self.of_today().name };
        ShellInput::Connected { link, identity, address: None }
    }
}

/// The disk that every coordinator has at first, and the list of all. They are coordinators of one
/// cluster, which has one run. The coordinator at place 0 founded it.
pub fn founded(coordinators: usize) -> (DurableState, Vec<CoordinatorView>) {
    let mut state = State::default();
    for place in 0..coordinators {
        let coordinator = own(place, 0);
        let command = match place {
            0 => {
                let tokens = Vec::new();
                Command::Found { ephemeral: true, founder: coordinator, tokens }
            }
            _ => Command::Coordinator { id: None, coordinator },
        };
        let entry = CommandEntry { unix_ms: UNIX_MS_AT_ZERO, command };
        state.apply(place as u64 + 1, Term(1), &entry);
    }
    let all = state.coordinators();
    let voters = all.iter().map(|view| ReplicaId::from(view.id)).collect();
    let position = LogPosition { index: state.index(), term: Term(1) };
    let kept = DurableState {
        hard_state: HardState { term: position.term, vote: None, commit: position.index },
        snapshot: Snapshot {
            position,
            members: raft::Members { voters, ..raft::Members::default() },
            bytes: state.encode(),
        },
        base: position,
        ..DurableState::default()
    };
    (kept, all)
}

/// The machines of coordinators: the first members, and some spare ones without a process.
pub fn machines(members: usize, spare: usize) -> Vec<SimCoordinator> {
    let (kept, all) = founded(members);
    let of_member = |(place, view): (usize, &CoordinatorView)| {
        let directory = Directory { id: Some(view.id), ..Directory::default() };
        let history_file = HistoryFile::begun(kept.base.index);
        SimCoordinator::new(place, directory, CoordinatorDisk::new(kept.clone(), history_file))
    };
    let empty = |place| {
        let disk = CoordinatorDisk::new(DurableState::default(), HistoryFile::default());
        SimCoordinator::new(place, Directory::default(), disk)
    };
    let members = all.iter().enumerate().map(of_member);
    members.chain((all.len()..all.len() + spare).map(empty)).collect()
}

// Processes.
impl World {
    /// Starts a process with what is on the disk.
    pub(super) fn start_coordinator(&mut self, place: usize) -> Result<(), Violation> {
        let node = NodeId::Coordinator(place);
        let permille = self.faults.permille(node);
        let process = match self.coordinators[place].directory.id {
            Some(id) => {
                self.judge_journal(place)?;
                Process::Runs(Box::new(self.node(place, id.into())))
            }
            None => Process::Asks(None),
        };
        let now = self.now;
        let coordinator = &mut self.coordinators[place];
        let wanted = coordinator.disk.history_file().coverage().wanted();
        coordinator.history_fetch = HistoryFetch { asked: None, restores: wanted.map(|_| 0) };
        coordinator.shut_out.clear();
        coordinator.lives += 1;
        coordinator.process = process;
        coordinator.clock = Clock::new(now, permille);
        (coordinator.awake, coordinator.heard) = (Time(0), BTreeMap::new());
        self.checkers.liveness.awake(now, place);
        self.queue.put(now, Event::CoordinatorTick(place));
        self.follow(place, 0)?;
        for other in (0..self.coordinators.len()).filter(|other| *other != place) {
            self.reconnect(NodeId::Coordinator(place.min(other)), place.max(other), None);
        }
        Ok(())
    }

    /// A node with what is on the disk.
    fn node(&self, place: usize, id: ReplicaId) -> node::Node {
        let coordinator = &self.coordinators[place];
        let options = NodeOptions {
            own: self.own(place),
            replica: raft::RaftOptions::new(id, self.scenario.seed, KEPT_ENTRIES),
            epoch_unix_ms: UNIX_MS_AT_ZERO + self.now.0 / 1_000_000,
            snapshot_entries: SNAPSHOT_ENTRIES,
            founds: None,
            tokens: Vec::new(),
            membership: coordinator.directory.membership.clone(),
            lacks_history: coordinator.disk.history_file().coverage().wanted().is_some(),
        };
        let kept = coordinator.disk.kept();
        let history = coordinator.disk.history_file().cache(reach(&kept.snapshot));
        let node = (self.scenario.prepare.coordinator)(Time(0), options, kept, history);
        node.expect("what is on the disk is sound")
    }

    /// Ends the process of a coordinator.
    pub(super) fn end_coordinator(&mut self, place: usize) {
        let Self { coordinators, random, queue, now, .. } = self;
        coordinators[place].crash(*now, random);
        queue.retain(|to_come| to_come.owner() != Some(NodeId::Coordinator(place)));
    }

    /// The place of the leader. Of several that think they lead, the one in the newest term.
    pub(super) fn leader(&self) -> Option<usize> {
        let leading = |known: &SimCoordinator| known.leads.map(|term| (term, known.place));
        self.coordinators.iter().filter_map(leading).max().map(|(_, place)| place)
    }

    /// Opens a link between two coordinators.
    pub(super) fn connect_coordinators(&mut self, one: usize, two: usize) -> Result<(), Violation> {
        let (own, peer) = (NodeId::Coordinator(one), NodeId::Coordinator(two));
        if self.refuse(one, two) {
            return Ok(());
        }
        self.lose(peer, own, End::lost("another link replaces it"))?;
        let link = LinkId(self.link(own, peer));
        let [first, second] = [one, two].map(|place| self.coordinators[place].connected(link));
        self.step_coordinator(one, second)?;
        self.step_coordinator(two, first)
    }

    pub(super) fn tick_coordinator(&mut self, place: usize) -> Result<(), Violation> {
        let next = self.now + self.coordinators[place].clock.true_time(NODE_TICK);
        self.queue.put(next, Event::CoordinatorTick(place));
        self.petition(place);
        self.step_coordinator(place, NodeInput::Tick)?;
        self.fetch_history(place);
        Ok(())
    }

    /// A batch should be durable by now, unless the disk stalls or is full.
    pub(super) fn on_durable(&mut self, place: usize) -> Result<(), Violation> {
        let disk = &mut self.coordinators[place].disk;
        if let Some(until) = disk.stalled(self.now) {
            self.queue.put(until, Event::Durable(place));
            return Ok(());
        }
        if let Some(restart) = disk.refuse() {
            self.end_for_room(place, restart);
            return Ok(());
        }
        match disk.written() {
            Some(number) if !self.scenario.prepare.skips_fsync => {
                self.step_coordinator(place, NodeInput::Persisted(number))
            }
            _ => Ok(()),
        }
    }
}

// A coordinator's inputs and effects.
impl World {
    /// Gives a coordinator an input, shows its effects to the checkers, and carries them out.
    pub(super) fn step_coordinator(
        &mut self,
        place: usize,
        input: impl Into<NodeInput>,
    ) -> Result<(), Violation> {
        let input = input.into();
        let coordinator = &mut self.coordinators[place];
        let node = match &mut coordinator.process {
            Process::Down => return Ok(()),
            Process::Asks(_) => return self.answered_petition(place, input),
            Process::Runs(node) => node,
        };
        let before = node.core().state().index();
        let now = coordinator.clock.read(self.now);
        match node.handle(now, input) {
            Ok(()) => self.follow(place, before),
            Err(error) => Err(self.unreadable(place, &error)),
        }
    }

    /// Follows up an input of a coordinator that had applied the log up to `before`.
    fn follow(&mut self, place: usize, before: u64) -> Result<(), Violation> {
        let Some(node) = self.coordinators[place].node() else { return Ok(()) };
        let (after, leads) = (node.core().state().index(), node.leads());
        if self.coordinators[place].leads != leads {
            self.coordinators[place].leads = leads;
            self.witness_leadership(place, leads)?;
        }
        if after > before {
            self.witness_log(place, before, after)?;
        }
        let next = |world: &mut Self| world.coordinators[place].node_mut()?.poll_effect();
        while let Some(effect) = next(self) {
            self.bring_about(place, effect)?;
        }
        self.restore_history(place);
        self.keep_book(place)?;
        self.shut_out(place);
        Ok(())
    }

    /// Shows the checkers the state that a coordinator has, and the entries that led to it.
    fn witness_log(&mut self, place: usize, before: u64, after: u64) -> Result<(), Violation> {
        for index in before + 1..=after {
            let Some(entry) = self.coordinators[place].disk.entry(index).cloned() else { continue };
            self.witness_entry_of_log(place, &entry)?;
        }
        let node = self.coordinators[place].node();
        let state = node.map(|node| node.core().state());
        let format = &mut self.checkers.liveness.tally.log_format;
        *format = state.map(State::log_format).max(*format);
        let state = state.map(State::encode).unwrap_or_default();
        self.observe(Observation::Stands(after, &state))
    }

    fn bring_about(&mut self, place: usize, effect: NodeEffect) -> Result<(), Violation> {
        match effect {
            NodeEffect::Shell(effect) => return self.bring_about_for_core(place, effect),
            NodeEffect::Persist(batch) => {
                self.witness_proposals(place, &batch.entries)?;
                self.prepare_journal(place, &batch);
                if self.scenario.prepare.forgets_history {
                    self.coordinators[place].disk.history_file_mut().neglect();
                }
                let (number, takes) = (batch.number, self.random.delay());
                let durable = self.coordinators[place].disk.write(self.now, takes, batch);
                self.queue.put(durable, Event::Durable(place));
                if self.scenario.prepare.skips_fsync {
                    self.later(Event::Coordinator(place, NodeInput::Persisted(number).into()));
                }
            }
            NodeEffect::Recall { to, from } => self.recall(place, to, from)?,
            NodeEffect::Recalled(entries) => self.recalled(place, entries),
            NodeEffect::Removed => self.later(Event::Removed(place)),
        }
        Ok(())
    }

    fn bring_about_for_core(&mut self, place: usize, effect: ShellEffect) -> Result<(), Violation> {
        match effect {
            ShellEffect::Send { to, message } => self.tell(place, to, message),
            ShellEffect::Broadcast { to, message } => {
                to.into_iter().try_for_each(|link| self.tell(place, link, message.clone()))
            }
            ShellEffect::History(entry) => {
                self.witness_history(place, &entry)?;
                self.coordinators[place].disk.history_file_mut().take(entry);
                Ok(())
            }
            ShellEffect::Close { to, reason } => {
                self.hang_up(place, to, End::lost(&reason));
                Ok(())
            }
            ShellEffect::Admitted { .. } | ShellEffect::ReadReady(_) => Ok(()), // no caller asks
            of_lines => self.bring_lines_about(place, of_lines),
        }
    }

    /// Sends a message on a coordinator's link, if that is still the newest with its peer.
    pub(super) fn tell(
        &mut self,
        place: usize,
        link: LinkId,
        message: Message,
    ) -> Result<(), Violation> {
        let own = NodeId::Coordinator(place);
        self.witness_message(place, &message)?;
        let Some(peer) = self.network.links.peer(own, link.0) else { return Ok(()) };
        if self.network.links.number(own, peer) == Some(link.0) {
            self.say(own, peer, message);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::GIVE_UP_AFTER;
    use super::*;

    #[test]
    fn i6_silence_counts_as_death_after_ten_seconds_of_the_listeners_own_clock() {
        let second = |number| Time(0) + Duration::from_secs(number);
        let mut coordinator = machines(1, 0).remove(0);
        coordinator.clock_mut().drift(second(0), 900);
        coordinator.hears(second(10), 3);
        assert!(coordinator.silence(second(21), 3) < GIVE_UP_AFTER, "9.9 s by its clock");
        coordinator.woke_at(second(20));
        assert!(coordinator.silence(second(31), 3) < GIVE_UP_AFTER, "it did not listen before");
        assert!(coordinator.silence(second(32), 3) >= GIVE_UP_AFTER);
        coordinator.hears(second(32), 3);
        assert!(coordinator.silence(second(43), 3) < GIVE_UP_AFTER);
        assert!(coordinator.silence(second(43), 4) >= GIVE_UP_AFTER, "it was never heard");
    }

    #[test]
    fn all_begin_as_members_of_one_cluster() {
        for coordinators in [1, 3] {
            let (kept, all) = founded(coordinators);
            assert_eq!(kept.validate(), Ok(()));
            let ids: Vec<CoordinatorId> = all.iter().map(|view| view.id).collect();
            assert_eq!(ids, (1..=coordinators as u64).map(CoordinatorId).collect::<Vec<_>>());
        }
    }
}
