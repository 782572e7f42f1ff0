//! The world: the order of events. A heap of (virtual time, sequence), and one generator.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_coordinator::raft::{
    DurableState, LogPosition, Members, Message, RaftEffect, RaftOptions, Refused, Replica,
    ReplicaId, WriteBatch,
};
use everstep_transport::time::Time;

use super::dice::Dice;
use super::judge::{Judge, Promise, Verdict, broken};
use super::machine::Machine;
use super::node::{Node, Process};

pub const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// The conditions in a world.
#[derive(Clone, Copy)]
pub struct Climate {
    /// Of a thousand messages, how many are lost, and how many come twice.
    pub lost: u64,
    pub twice: u64,
    pub shortest_delay: Duration,
    pub longest_delay: Duration,
    pub longest_write: Duration,
    /// The longest time between two mishaps. None: no mishaps.
    pub mishaps: Option<Duration>,
    /// Whether requests for other members are among the mishaps.
    pub changes: bool,
    /// A replica takes a snapshot after so many entries, and keeps so many besides.
    pub compact_every: u64,
    pub keep: u64,
    /// Changes the options of every replica that starts.
    pub prepare: fn(&mut RaftOptions),
    /// The disk reports a write that it has not done.
    pub disk_lies: bool,
    /// A replica that has lost its disk comes back under its old id.
    pub disks_are_lost: bool,
}

impl Climate {
    pub const FAIR: Self = Self {
        lost: 0,
        twice: 0,
        shortest_delay: ms(0),
        longest_delay: ms(2),
        longest_write: ms(2),
        mishaps: None,
        changes: false,
        compact_every: 1000,
        keep: 0,
        prepare: |_| {},
        disk_lies: false,
        disks_are_lost: false,
    };
    pub const FOUL: Self = Self {
        lost: 30,
        twice: 30,
        longest_delay: ms(20),
        longest_write: ms(10),
        mishaps: Some(ms(200)),
        compact_every: 25,
        keep: 5,
        ..Self::FAIR
    };
}

enum Happening {
    Tick(ReplicaId),
    Deliver { from: ReplicaId, to: ReplicaId, message: Box<Message> },
    LinkLost { at: ReplicaId, peer: ReplicaId },
    SnapshotDone { at: ReplicaId, peer: ReplicaId, reached: bool },
    Written(ReplicaId),
    Persisted { at: ReplicaId, number: u64 },
    Start(ReplicaId),
    Heal(ReplicaId, ReplicaId),
    Mishap,
    Client,
}

pub struct World {
    pub now: Time,
    pub climate: Climate,
    pub nodes: BTreeMap<ReplicaId, Node>,
    pub judge: Judge,
    pub dice: Dice,
    /// Each event comes with the incarnation that it is for, if that matters.
    events: BTreeMap<(Time, u64), (Happening, u64)>,
    sequence: u64,
    cut: BTreeSet<(ReplicaId, ReplicaId)>,
    /// When the last message of a lane arrives.
    lanes: BTreeMap<(ReplicaId, ReplicaId), Time>,
    numbers: u64,
    /// A digest of everything that has happened.
    pub trace: u64,
}

impl World {
    /// A world with so many voters, numbered from 1.
    pub fn new(seed: u64, voters: u64, climate: Climate) -> Self {
        let mut disk = DurableState::founded_by(ReplicaId(1));
        disk.snapshot.members.voters = (1..=voters).map(ReplicaId).collect();
        let mut world = Self {
            now: Time(0),
            climate,
            nodes: BTreeMap::new(),
            judge: Judge::default(),
            dice: Dice::of(seed),
            events: BTreeMap::new(),
            sequence: 0,
            cut: BTreeSet::new(),
            lanes: BTreeMap::new(),
            numbers: 0,
            trace: 0,
        };
        for id in 1..=voters {
            world.join_with(ReplicaId(id), disk.clone());
        }
        if let Some(pause) = climate.mishaps {
            world.after(pause, Happening::Mishap);
        }
        world.after(ms(5), Happening::Client);
        world
    }

    /// A new replica with an empty disk.
    pub fn join(&mut self, id: ReplicaId) {
        self.join_with(id, DurableState::default());
    }

    fn join_with(&mut self, id: ReplicaId, disk: DurableState) {
        self.nodes.insert(id, Node::new(id, disk));
        self.after(Duration::ZERO, Happening::Start(id));
    }

    /// Lets time pass.
    pub fn run(&mut self, span: Duration) -> Verdict {
        let end = self.now + span;
        while let Some(entry) = self.events.first_entry().filter(|it| it.key().0 <= end) {
            let ((time, _), (happening, incarnation)) = entry.remove_entry();
            self.now = time;
            self.happen(happening, incarnation)?;
        }
        self.now = end;
        Ok(())
    }

    /// Runs until a condition holds, at the latest until the end of a span.
    pub fn wait(
        &mut self,
        span: Duration,
        what: &str,
        mut so: impl FnMut(&mut Self) -> bool,
    ) -> Verdict {
        let end = self.now + span;
        while !so(self) {
            if self.now >= end {
                return broken(Promise::Alive, format!("not within {span:?}: {what}"));
            }
            self.run(ms(5))?;
        }
        Ok(())
    }

    /// Stops the faults. Then a leader has to appear within a second, and all have to agree.
    pub fn calm_down(&mut self) -> Verdict {
        let Climate { prepare, compact_every, keep, .. } = self.climate;
        self.climate = Climate { prepare, compact_every, keep, ..Climate::FAIR };
        self.cut.clear();
        for id in self.ids() {
            let node = self.nodes.get_mut(&id).expect("it is there");
            (node.paused_until, node.disk_free) = (self.now, self.now);
            if node.process.is_none() && !node.lost {
                self.happen(Happening::Start(id), 0)?;
            }
        }
        let mut number = 0;
        self.wait(ms(1000), "an agreement", |world| {
            if world.now.0 % 50_000_000 < 5_000_000 {
                number = world.propose_to_leader().unwrap_or(number);
            }
            number > 0 && world.judge.is_acknowledged(number)
        })?;
        self.wait(ms(1000), "all members have everything", |world| {
            let Some(leader) = world.leader() else { return false };
            let members = world.members(leader).clone();
            let all = |world: &World| {
                let voters = members.voters.iter();
                voters.clone().all(|id| world.judge.holds_all(&world.machine(*id)).is_ok())
            };
            !members.is_joint() && all(world)
        })
    }

    /// Proposes a number to the leader of the newest term.
    pub fn propose_to_leader(&mut self) -> Option<u64> {
        let leader = self.leader()?;
        self.propose(leader)
    }

    /// Proposes the next number. Returns it, unless the replica refuses.
    pub fn propose(&mut self, to: ReplicaId) -> Option<u64> {
        let number = self.numbers + 1;
        let position = self.ask(to, |it| it.propose(number.to_le_bytes().to_vec())).ok()?;
        self.numbers = number;
        self.judge.proposed(position, number);
        Some(number)
    }

    /// Does something to a replica that is up.
    pub fn ask<T>(
        &mut self,
        id: ReplicaId,
        act: impl FnOnce(&mut Replica) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let done = act(&mut self.process(id).ok_or(Refused::NotLeader)?.replica);
        self.after(Duration::ZERO, Happening::Tick(id));
        done
    }

    /// The leader of the newest term, as far as it knows itself.
    pub fn leader(&self) -> Option<ReplicaId> {
        let leads = |node: &Node| Some((node.process.as_ref()?.leads?, node.id));
        self.nodes.values().filter_map(leads).max().map(|(_, id)| id)
    }

    pub fn replica(&self, id: ReplicaId) -> &Replica {
        &self.nodes[&id].process.as_ref().expect("it is up").replica
    }

    /// The members that a replica has told last.
    pub fn members(&self, id: ReplicaId) -> &Members {
        &self.nodes[&id].process.as_ref().expect("it is up").members
    }

    /// The state machine of a replica. An empty one if the replica is down.
    pub fn machine(&self, id: ReplicaId) -> Machine {
        let process = self.nodes.get(&id).and_then(|node| node.process.as_ref());
        process.map(|process| process.machine).unwrap_or_default()
    }

    pub fn ids(&self) -> Vec<ReplicaId> {
        self.nodes.keys().copied().collect()
    }

    /// A replica dies, for a while or for ever. The others notice, or do not.
    pub fn crash(&mut self, id: ReplicaId, down: Option<Duration>) {
        self.nodes.get_mut(&id).expect("it is there").crash(&mut self.dice);
        match down {
            Some(down) => self.after(down, Happening::Start(id)),
            None => self.nodes.get_mut(&id).expect("it is there").lost = true,
        }
        for peer in self.ids() {
            if self.dice.chance(500) {
                let noticed = self.dice.span(ms(50));
                self.after_in(noticed, peer, Happening::LinkLost { at: peer, peer: id });
            }
        }
    }

    /// No message passes from one replica to another for a while.
    pub fn cut(&mut self, from: ReplicaId, to: ReplicaId, span: Duration) {
        self.cut.insert((from, to));
        self.after(span, Happening::Heal(from, to));
    }

    fn happen(&mut self, happening: Happening, incarnation: u64) -> Verdict {
        match happening {
            Happening::Mishap => self.mishap(),
            Happening::Client => self.client(),
            Happening::Heal(from, to) => _ = self.cut.remove(&(from, to)),
            Happening::Start(id) => return self.start(id),
            Happening::Tick(id)
            | Happening::Written(id)
            | Happening::Deliver { to: id, .. }
            | Happening::LinkLost { at: id, .. }
            | Happening::SnapshotDone { at: id, .. }
            | Happening::Persisted { at: id, .. } => {
                return self.happen_to(id, happening, incarnation);
            }
        }
        Ok(())
    }

    fn start(&mut self, id: ReplicaId) -> Verdict {
        let (now, Climate { keep, prepare, .. }) = (self.now, self.climate);
        let node = self.nodes.get_mut(&id).expect("it is there");
        if node.process.is_none() {
            if let Err(error) = node.start(now, keep, prepare) {
                return broken(Promise::Alive, format!("{id}: {error}"));
            }
            let phase = self.dice.span(ms(5));
            self.after_in(phase, id, Happening::Tick(id));
        }
        self.carry_out(id)
    }

    fn happen_to(&mut self, id: ReplicaId, happening: Happening, incarnation: u64) -> Verdict {
        let Some(node) = self.nodes.get_mut(&id) else { return Ok(()) };
        let same = incarnation == 0 || incarnation == node.incarnation;
        let Some(process) = node.process.as_mut().filter(|_| same) else {
            self.never_reached(happening);
            return Ok(());
        };
        if node.paused_until > self.now && !matches!(happening, Happening::Written(_)) {
            let until = node.paused_until;
            self.at(until, happening, incarnation);
            return Ok(());
        }
        match happening {
            Happening::Tick(_) => {
                process.replica.tick(self.now);
                if incarnation != 0 {
                    self.after_in(ms(5), id, Happening::Tick(id));
                }
            }
            Happening::Deliver { from, message, .. } => {
                process.replica.receive(from, &message);
                if message.is_snapshot() {
                    let done = Happening::SnapshotDone { at: from, peer: id, reached: true };
                    self.after_in(ms(1), from, done);
                }
            }
            Happening::LinkLost { peer, .. } => process.replica.link_lost(peer),
            Happening::SnapshotDone { peer, reached, .. } => {
                process.replica.snapshot_done(peer, reached);
            }
            Happening::Written(_) => {
                let batch = process.unwritten.pop_front().expect("one for each");
                node.disk.absorb(&batch);
                if !self.climate.disk_lies {
                    let written = Happening::Persisted { at: id, number: batch.number };
                    self.after_in(Duration::ZERO, id, written);
                }
            }
            Happening::Persisted { number, .. } => process.replica.persisted(number),
            _ => {}
        }
        self.carry_out(id)
    }

    /// Carries out the effects of a replica.
    fn carry_out(&mut self, id: ReplicaId) -> Verdict {
        while let Some(effect) = self.process(id).and_then(|it| it.replica.poll_effect()) {
            self.remember(id, &effect);
            let process = self.nodes.get_mut(&id).and_then(|node| node.process.as_mut());
            let process = process.expect("it is up");
            let Process { machine, leads, members, .. } = process;
            match effect {
                RaftEffect::Send { to, message } => self.send(id, to, Box::new(message)),
                RaftEffect::Persist(batch) => self.write(id, batch)?,
                RaftEffect::Apply(entries) => {
                    for agreed in &entries {
                        self.judge.applies(machine, agreed, leads.is_some())?;
                    }
                    self.compact(id);
                }
                RaftEffect::Install(snapshot) => {
                    let installed = Machine::decode(&snapshot.bytes);
                    self.judge.installs(machine, &installed)?;
                    *machine = installed;
                }
                RaftEffect::TakeSnapshot => {
                    let (applied, bytes) = (machine.applied, machine.encode());
                    process.replica.compact(applied, bytes);
                }
                RaftEffect::Leads(term) => {
                    *leads = Some(term);
                    self.judge.leads(id, term)?;
                }
                RaftEffect::Follows { .. } => *leads = None,
                RaftEffect::Read { ticket, .. } => self.judge.reads(ticket, machine)?,
                RaftEffect::ReadLost { ticket } => self.judge.loses(ticket),
                RaftEffect::Members(now) => *members = now,
                RaftEffect::Forgotten { .. } if self.climate.disks_are_lost => {}
                forgotten @ RaftEffect::Forgotten { .. } => {
                    broken(Promise::DurableState, format!("{id:?}: {forgotten:?}"))?;
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, id: ReplicaId, batch: WriteBatch) -> Verdict {
        let Climate { longest_write, disk_lies, .. } = self.climate;
        let node = self.nodes.get_mut(&id).expect("it is there");
        let mut done = node.time_to_write(self.now, longest_write, &mut self.dice);
        let incarnation = node.incarnation;
        let process = node.process.as_mut().expect("it is up");
        process.view.absorb(&batch);
        if let Some(index) = batch.entries.first().map(|first| first.position.index - 1) {
            let term = process.view.term(index).expect("no gap");
            self.judge.writes(&batch, LogPosition { index, term })?;
        }
        let number = batch.number;
        process.unwritten.push_back(batch);
        if disk_lies {
            self.at(done, Happening::Persisted { at: id, number }, incarnation);
            done = done + ms(100);
        }
        self.at(done, Happening::Written(id), incarnation);
        Ok(())
    }

    fn compact(&mut self, id: ReplicaId) {
        let every = self.climate.compact_every;
        let Some(process) = self.process(id) else { return };
        if process.machine.applied > process.view.snapshot.position.index + every {
            process.replica.compact(process.machine.applied, process.machine.encode());
        }
    }

    fn send(&mut self, from: ReplicaId, to: ReplicaId, message: Box<Message>) {
        let Climate { lost, twice, shortest_delay, longest_delay, .. } = self.climate;
        let varies = self.dice.span(longest_delay.saturating_sub(shortest_delay));
        let arrival = self.now + Duration::from_micros(50) + shortest_delay + varies;
        let Some(node) = self.nodes.get(&to) else { return };
        let incarnation = node.incarnation;
        if self.cut.contains(&(from, to)) || node.process.is_none() || self.dice.chance(lost) {
            return self.never_reached(Happening::Deliver { from, to, message });
        }
        let again = self.dice.chance(twice).then(|| message.clone());
        let arrival = match message.is_snapshot() {
            true => arrival,
            false => {
                let lane = self.lanes.entry((from, to)).or_default();
                *lane = arrival.max(*lane);
                *lane
            }
        };
        self.at(arrival, Happening::Deliver { from, to, message }, incarnation);
        if let Some(message) = again {
            self.at(arrival, Happening::Deliver { from, to, message }, incarnation);
        }
    }

    /// The sender of a snapshot that does not arrive hears of that in the end.
    fn never_reached(&mut self, happening: Happening) {
        match happening {
            Happening::Deliver { from, to, message } if message.is_snapshot() => {
                let failed = Happening::SnapshotDone { at: from, peer: to, reached: false };
                self.after_in(ms(20), from, failed);
            }
            _ => {}
        }
    }

    /// A client proposes a number to some replica, and reads at another.
    fn client(&mut self) {
        let ids = self.ids();
        for (proposes, chance) in [(true, 600), (false, 400)] {
            let Some(id) = self.dice.choose(&ids).filter(|_| self.dice.chance(chance)) else {
                continue;
            };
            let id = if self.dice.chance(700) { self.leader().unwrap_or(id) } else { id };
            match proposes {
                true => _ = self.propose(id),
                false => self.read(id),
            }
        }
        let pause = self.dice.span(ms(16));
        self.after(pause, Happening::Client);
    }

    fn read(&mut self, id: ReplicaId) {
        self.numbers += 1;
        let ticket = self.numbers;
        self.judge.begins_to_read(ticket);
        let asked = self.ask(id, |replica| {
            replica.read(ticket);
            Ok(())
        });
        if asked.is_err() {
            self.judge.loses(ticket);
        }
    }

    fn mishap(&mut self) {
        let Some(longest) = self.climate.mishaps else { return };
        let ids = self.ids();
        let (Some(id), Some(other)) = (self.dice.choose(&ids), self.dice.choose(&ids)) else {
            return;
        };
        let span = self.dice.span(ms(800));
        match self.dice.below(if self.climate.changes { 12 } else { 8 }) {
            0 | 1 => self.crash(id, Some(span)),
            2 => self.nodes.get_mut(&id).expect("it is there").paused_until = self.now + span / 2,
            3 => self.cut(id, other, span),
            4 | 5 => {
                for peer in ids.iter().filter(|peer| **peer != id) {
                    self.cut(id, *peer, span);
                    self.cut(*peer, id, span);
                }
            }
            6 => self.nodes.get_mut(&id).expect("it is there").disk_free = self.now + span / 2,
            7 if self.climate.disks_are_lost => {
                self.crash(id, Some(span));
                self.nodes.get_mut(&id).expect("it is there").disk = DurableState::default();
            }
            7 => _ = self.leader().map(|leader| self.ask(leader, |it| it.transfer(other))),
            _ => self.change_members(),
        }
        let pause = self.dice.span(longest);
        self.after(pause, Happening::Mishap);
    }

    /// Asks for other members. Some of them may be new.
    fn change_members(&mut self) {
        let count = 1 + self.dice.below(4);
        let voters: BTreeSet<_> = (0..count).map(|_| ReplicaId(1 + self.dice.below(7))).collect();
        for id in &voters {
            if !self.nodes.contains_key(id) {
                self.join(*id);
            }
        }
        let voters: Vec<_> = voters.into_iter().collect();
        if let Some(leader) = self.leader() {
            let _ = self.ask(leader, |replica| replica.change(voters));
        }
    }

    fn process(&mut self, id: ReplicaId) -> Option<&mut Process> {
        self.nodes.get_mut(&id)?.process.as_mut()
    }

    /// Folds an effect into the trace.
    fn remember(&mut self, id: ReplicaId, effect: &RaftEffect) {
        let kind = match effect {
            RaftEffect::Send { to, .. } => to.0 << 8,
            RaftEffect::Persist(batch) => 1 + ((batch.entries.len() as u64) << 8),
            RaftEffect::Apply(entries) => 2 + ((entries.len() as u64) << 8),
            RaftEffect::Leads(term) => 3 + (term.0 << 8),
            RaftEffect::Follows { term, .. } => 4 + (term.0 << 8),
            _ => 5,
        };
        for number in [self.now.0, id.0, kind] {
            self.trace = (self.trace ^ number).wrapping_mul(0x100_0000_01b3).rotate_left(23);
        }
    }

    fn after(&mut self, span: Duration, happening: Happening) {
        self.at(self.now + span, happening, 0);
    }

    /// Schedules an event that happens only if the replica's process is still the same.
    fn after_in(&mut self, span: Duration, id: ReplicaId, happening: Happening) {
        let incarnation = self.nodes.get(&id).map_or(0, |node| node.incarnation);
        self.at(self.now + span, happening, incarnation);
    }

    fn at(&mut self, time: Time, happening: Happening, incarnation: u64) {
        self.sequence += 1;
        self.events.insert((time, self.sequence), (happening, incarnation));
    }
}

/// Runs a world through a time of faults, and then through the calm.
pub fn endure(seed: u64, voters: u64, climate: Climate) -> (World, Verdict) {
    let mut world = World::new(seed, voters, climate);
    let verdict = world.run(ms(2000)).and_then(|()| world.calm_down());
    (world, verdict)
}
