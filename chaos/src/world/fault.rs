//! Inflicts faults on the world.

use std::time::Duration;

use everstep_kernels::buffer::Buffer;
use everstep_kernels::reduce;
use everstep_transport::protocol::reason::ProcessExit;
use everstep_transport::protocol::{Chunk, Generation, Message, OperatorCommand};
use everstep_transport::time::Time;
use everstep_worker::step::event::{Input, StreamItem};

use super::active_faults::{Duplicate, PausedProcess};
use super::link::End;
use super::types::{Event, LaneItem, Orphan};
use super::{NodeId, World};
use crate::check::{Observation, Violation};
use crate::fault::{DrainOrigin, DuplicateKind, Fault};

/// A coordinator that stood still for longer gives all workers fresh deadlines.
const COORDINATOR_LATE_AFTER: Duration = Duration::from_secs(1);
/// The longest time until a process starts again that crashes before the run has begun.
const MAX_EARLY_RESTART_DELAY: Duration = Duration::from_secs(1);
/// How often the world tries to start a process in place of one that leaves.
const LEAVER_REPLACEMENTS: u32 = 4;
/// How soon a process starts in place of one that leaves when the faults end.
const LEAVER_REPLACED_AFTER: Duration = Duration::from_secs(4);

impl World {
    /// Inflicts a fault now.
    pub(super) fn inflict(&mut self, fault: &Fault) -> Result<(), Violation> {
        let leader = NodeId::Coordinator(self.leader().unwrap_or_default());
        let fault = &fault.clone().with_leader(leader);
        self.note(format_args!("fault: {fault}"));
        let running = self.running_workers();
        self.checkers.liveness.strike(self.now, fault, &running);
        let (now, all) = (self.now, self.machines());
        let until = (now + fault.outage()).min(self.faults.end());
        match fault {
            Fault::Crash { node, restart } => self.crash(*node, *restart),
            Fault::CrashProposing { restart } => self.faults.armed.arm_crash_on_proposal(*restart),
            Fault::CrashExpelling { restart } => self.faults.armed.arm_crash_on_expel(*restart),
            Fault::CrashTogether { side, restart } => {
                side.iter().for_each(|node| self.crash(*node, *restart));
            }
            Fault::Stop { node: NodeId::Coordinator(place), restart } => {
                self.later(Event::Leave { place: *place, since: None, restart: *restart });
            }
            Fault::Wipe { node, restart } => self.wipe(*node, *restart),
            Fault::Remove { node, restart } => self.remove(*node, *restart),
            Fault::FullDisk { node, restart } => self.fill(*node, *restart),
            Fault::Damage { node, restart } => self.damage(*node, *restart),
            Fault::Join { node } => {
                self.revive(*node);
                return self.start_again(*node);
            }
            Fault::Drain { node, by, grace } => self.drain(*node, *by, *grace),
            Fault::Pause { node, .. } => self.pause(*node, until),
            Fault::PauseTogether { side, .. } => {
                side.iter().for_each(|node| self.pause(*node, until));
            }
            Fault::Stall { node, .. } => self.stall(*node, until),
            Fault::Drift { node, permille } => self.drift(*node, *permille),
            Fault::Disconnect { ends: (a, b) } => {
                let (a, b) = (self.workers.process(*a), self.workers.process(*b));
                self.lose(a, b, End::lost("the connection is lost"))?;
                return self.lose(b, a, End::lost("the connection is lost"));
            }
            Fault::Slow { ends: (a, b), extra, span } => {
                self.network.roads.slow((*a, *b), None, *extra, now + *span);
                self.network.roads.slow((*b, *a), None, *extra, now + *span);
            }
            Fault::Clog { from, to, .. } => self.shut(&[*from], &[*to], until),
            Fault::Partition { side, .. } => {
                self.shut(side, &all, until);
                self.shut(&all, side, until);
            }
            Fault::Isolation { .. } => self.isolate(all, until),
            Fault::OneWay { side, .. } => self.shut(side, &all, until),
            Fault::Bridge { ends: (a, b), .. } => {
                self.shut(&[*a], &[*b], until);
                self.shut(&[*b], &[*a], until);
            }
            Fault::Duplicate { from, to, what, after } => {
                let duplicate = Duplicate { route: (*from, *to), what: *what, after: *after };
                self.faults.armed.repeat(duplicate);
            }
            Fault::Reorder { from, to, lane, extra, span } => {
                self.network.roads.slow((*from, *to), Some(*lane), *extra, now + *span);
            }
            Fault::Hang { node, span } => self.hang(*node, (now + *span).min(self.faults.end())),
            Fault::Flip { node } => self.flip(*node),
            Fault::Garble { node: NodeId::Worker(slot) } => self.faults.armed.garble(*slot),
            Fault::Mistake { node: NodeId::Worker(slot) } => self.faults.armed.mistake(*slot),
            fault => return self.mislead(fault, &all, until),
        }
        Ok(())
    }

    /// Ends all interruptions, and disarms faults that wait for their moment. Clocks stay as they
    /// are. Every slot that had a worker at first gets one again.
    pub(super) fn on_calm(&mut self) -> Result<(), Violation> {
        self.note(format_args!("no more faults"));
        self.checkers.liveness.calm(self.now);
        self.network.roads.clear();
        self.store.files.cut_after(None);
        self.store.outage_until = self.now;
        self.faults.calm_down();
        self.review_all();
        let first = (0..self.scenario.workers as usize).map(NodeId::Worker);
        let members = self.scenario.coordinators as usize;
        let known = (0..self.coordinators.len())
            .filter(|place| *place < members || self.coordinators[*place].directory.id.is_some());
        let missing: Vec<NodeId> = first.clone().chain(known.map(NodeId::Coordinator)).collect();
        first.for_each(|machine| self.restart_later(machine, LEAVER_REPLACED_AFTER));
        missing.into_iter().try_for_each(|node| self.start_again(node))
    }

    // Processes.

    /// The machines of workers on which a process runs.
    fn running_workers(&self) -> Vec<NodeId> {
        let runs = |machine: &NodeId| self.is_alive(self.workers.process(*machine));
        self.workers.machines().filter(runs).collect()
    }

    fn machines(&self) -> Vec<NodeId> {
        let workers = self.workers.machines();
        workers.chain((0..self.coordinators.len()).map(NodeId::Coordinator)).collect()
    }

    pub(super) fn crash(&mut self, machine: NodeId, restart: Option<Duration>) {
        let node = self.workers.process(machine);
        if self.is_alive(node) {
            self.faults.forget(node);
            match node {
                NodeId::Operator | NodeId::Client(_) | NodeId::Leader => return,
                NodeId::Worker(place) => self.end_worker(place, ProcessExit::KILLED),
                NodeId::Coordinator(place) => self.end_coordinator(place),
            }
            self.cut_links(node);
        }
        let begun = self.checkers.invariants.current_record().is_some();
        let at_least = if begun {
            restart
        } else {
            Some(restart.unwrap_or(MAX_EARLY_RESTART_DELAY).min(MAX_EARLY_RESTART_DELAY))
        };
        if let Some(after) = at_least {
            self.queue.put(self.now + after, Event::Restart(machine));
        }
    }

    /// Starts a new process on a machine where none runs.
    pub(super) fn start_again(&mut self, machine: NodeId) -> Result<(), Violation> {
        if self.is_alive(self.workers.process(machine)) {
            return Ok(());
        }
        self.note(format_args!("{machine} is started"));
        match machine {
            NodeId::Worker(slot) => {
                self.start_worker(slot);
                Ok(())
            }
            NodeId::Coordinator(place) => {
                let Some(coordinator) = self.coordinators.get(place) else { return Ok(()) };
                let (soonest, plan) = (coordinator.startable(), coordinator.plan);
                if plan.is_in_the_way() {
                    self.note(format_args!("{machine} does not begin: {plan:?}"));
                    return Ok(());
                }
                if soonest > self.now {
                    self.queue.put(soonest, Event::Restart(machine));
                    return Ok(());
                }
                self.forget_links(machine);
                self.start_coordinator(place)
            }
            NodeId::Operator | NodeId::Client(_) | NodeId::Leader => Ok(()),
        }
    }

    /// The device of a worker does nothing until `until`. Nor does a new device in its place.
    fn hang(&mut self, machine: NodeId, until: Time) {
        let NodeId::Worker(place) = self.workers.process(machine) else { return };
        let Some(worker) = self.workers.find_mut(place) else { return };
        if worker.hangs_until < self.now {
            worker.hangs_since = self.now;
        }
        worker.hangs_until = worker.hangs_until.max(until);
        self.queue.put(until, Event::Free(place, worker.builds));
    }

    /// Asks a worker to leave.
    fn drain(&mut self, machine: NodeId, by: DrainOrigin, grace: Option<Duration>) {
        let NodeId::Worker(place) = self.workers.process(machine) else { return };
        let Some(worker) = self.workers.find(place).filter(|worker| !worker.ended()) else {
            return;
        };
        let id = worker.id();
        self.checkers.liveness.leaves(place);
        match (by, id) {
            (DrainOrigin::Operator, Some(worker)) => {
                self.operator.command(OperatorCommand::Drain(worker));
            }
            (DrainOrigin::Operator, None) => {}
            (DrainOrigin::Machine, _) => {
                self.later(Event::Worker(place, Input::Drain.into()));
                if let Some(grace) = grace {
                    let overdue = Event::Worker(place, Input::DrainOverdue.into());
                    self.queue.put(self.now + grace, overdue);
                }
            }
        }
    }

    /// Asks all workers to leave. Where they have left, others start.
    fn drain_all(&mut self, restart: Duration) {
        let machines: Vec<NodeId> = self.running_workers();
        for machine in machines {
            self.drain(machine, DrainOrigin::Machine, None);
            self.restart_later(machine, restart);
        }
    }

    /// A process starts on a machine where one leaves, at one of these moments.
    pub(super) fn restart_later(&mut self, machine: NodeId, after: Duration) {
        for times in 1..=LEAVER_REPLACEMENTS {
            self.queue.put(self.now + after * times, Event::Restart(machine));
        }
    }

    fn pause(&mut self, machine: NodeId, until: Time) {
        let node = self.workers.process(machine);
        if !self.is_alive(node) {
            return;
        }
        self.faults.pause(self.now, node, until);
        self.queue.put(until, Event::Resume(node, until));
        self.review_node(node);
    }

    /// The process goes on, and handles the events that it has missed.
    pub(super) fn resume(&mut self, node: NodeId, until: Time) -> Result<(), Violation> {
        let Some(PausedProcess { since, held, .. }) = self.faults.resume(node, until) else {
            return Ok(());
        };
        self.note(format_args!("{node} goes on with {} events", held.len()));
        let stood = since.map_or(Duration::ZERO, |since| self.now.since(since));
        if let NodeId::Coordinator(place) = node
            && stood > COORDINATOR_LATE_AFTER
        {
            self.checkers.liveness.awake(self.now, place);
            self.coordinators[place].woke_at(self.now);
        }
        self.review_node(node);
        for event in held {
            self.on_event(event)?;
        }
        Ok(())
    }

    /// The disk of a coordinator writes nothing until `until`.
    fn stall(&mut self, machine: NodeId, until: Time) {
        if let NodeId::Coordinator(place) = machine
            && let Some(coordinator) = self.coordinators.get_mut(place)
        {
            coordinator.disk_mut().stall(until);
        }
    }

    fn drift(&mut self, machine: NodeId, permille: u32) {
        let now = self.now;
        self.faults.drift(machine, permille);
        match self.workers.process(machine) {
            NodeId::Coordinator(place) => {
                if let Some(coordinator) = self.coordinators.get_mut(place) {
                    coordinator.clock_mut().drift(now, permille);
                }
            }
            NodeId::Worker(place) => {
                if let Some(worker) = self.workers.find_mut(place) {
                    worker.clock_mut().drift(now, permille);
                }
            }
            NodeId::Operator | NodeId::Client(_) | NodeId::Leader => {}
        }
    }

    // Roads.

    /// Shuts all roads between coordinators and workers.
    fn isolate(&mut self, machines: Vec<NodeId>, until: Time) {
        let (workers, others): (Vec<NodeId>, Vec<NodeId>) =
            machines.into_iter().partition(|node| matches!(node, NodeId::Worker(_)));
        self.shut(&others, &workers, until);
        self.shut(&workers, &others, until);
    }

    /// Inflicts a fault that looks like the end of a worker, but is none, or one of devices and
    /// stores, or asks all workers or the coordinators for something.
    fn mislead(&mut self, fault: &Fault, all: &[NodeId], until: Time) -> Result<(), Violation> {
        match fault {
            Fault::Deafen { node, .. } => self.deafen(*node, all, until),
            Fault::Refuse { node, .. } => self.firewall(*node, all, until),
            Fault::RefuseProbes { node, span } => {
                self.refuse_probes(*node, (self.now + *span).min(self.faults.end()));
            }
            Fault::SlowDevice { node: NodeId::Worker(slot), permille, span } => {
                let until = (self.now + *span).min(self.faults.end());
                self.faults.slow_device(*slot, *permille, until);
            }
            Fault::FullStore { node, span } => self.fill_store(*node, self.now + *span),
            Fault::SilentDirectory { node, span } => {
                self.silence_directory(*node, self.now + *span);
            }
            Fault::Misstate { node, of } => self.faults.misstate(*node, *of),
            Fault::DrainAll { restart } => self.drain_all(*restart),
            Fault::Preempt { side, ahead, end } => self.announce(side, *ahead, *end),
            Fault::Rest { .. } | Fault::Save => self.direct(fault),
            Fault::StoreAway { span } => {
                self.store.outage_until = self.store.outage_until.max(self.now + *span);
            }
            Fault::CutStore => return self.cut_store(),
            Fault::TearCheckpoint => return self.tear_checkpoint(),
            Fault::LoseCluster => return self.lose_cluster(),
            _ => {} // of machines that have no such process
        }
        Ok(())
    }

    /// Shuts the roads between one coordinator and the workers.
    fn deafen(&mut self, node: NodeId, all: &[NodeId], until: Time) {
        let is_worker = |other: &&NodeId| matches!(other, NodeId::Worker(_));
        let workers: Vec<NodeId> = all.iter().filter(is_worker).copied().collect();
        self.shut(&[node], &workers, until);
        self.shut(&workers, &[node], until);
    }

    /// Shuts the roads between one worker and the coordinators, and refuses the coordinators'
    /// probes of that worker.
    fn firewall(&mut self, node: NodeId, all: &[NodeId], until: Time) {
        self.faults.refuse(node, until);
        let is_other = |other: &&NodeId| matches!(other, NodeId::Coordinator(_));
        let coordinators: Vec<NodeId> = all.iter().filter(is_other).copied().collect();
        self.shut(&[node], &coordinators, until);
        self.shut(&coordinators, &[node], until);
    }

    /// Shuts every road from one group to another.
    fn shut(&mut self, from: &[NodeId], to: &[NodeId], until: Time) {
        for from in from {
            for to in to.iter().filter(|to| *to != from) {
                self.network.roads.shut((*from, *to), until);
            }
        }
        self.queue.put(until, Event::Reopen);
        self.review_all();
    }

    // Duplicates.

    /// Lets a message arrive a second time, if a fault waits for one.
    pub(super) fn repeat_message(&mut self, from: NodeId, to: NodeId, message: &Message) {
        if !self.faults.armed.repeats() {
            return;
        }
        let way = (self.workers.machine(from), self.workers.machine(to));
        let duplicate = self.faults.armed.take_duplicate(way, &[DuplicateKind::Message]);
        if let Some(duplicate) = duplicate {
            self.checkers.invariants.expect_refusals();
            let orphan = Orphan::Message { from, to, message: message.clone().into() };
            self.queue.put(self.now + duplicate.after, Event::Orphan(Box::new(orphan)));
        }
    }

    /// Lets an item arrive a second time, if a fault waits for one.
    pub(super) fn repeat_item(&mut self, from: usize, to: usize, repeated: &LaneItem) {
        if !self.faults.armed.repeats() {
            return;
        }
        let way =
            (self.workers.machine(NodeId::Worker(from)), self.workers.machine(NodeId::Worker(to)));
        let tensor = matches!(repeated.item, StreamItem::Tensor { .. });
        let kinds = [DuplicateKind::Item, DuplicateKind::OlderItem];
        let kinds = if tensor { &kinds[..] } else { &kinds[..1] };
        let Some(duplicate) = self.faults.armed.take_duplicate(way, kinds) else { return };
        self.checkers.invariants.expect_refusals();
        let mut item = repeated.item.clone();
        if let (DuplicateKind::OlderItem, StreamItem::Tensor { chunk, .. }) =
            (duplicate.what, &mut item)
        {
            chunk.generation = Generation(chunk.generation.0.saturating_sub(1));
        }
        let orphan = Orphan::Item { from, to, item: LaneItem { item, ..*repeated } };
        self.queue.put(self.now + duplicate.after, Event::Orphan(Box::new(orphan)));
    }

    // Memory.

    /// Flips a bit in a device's memory, or in the state that it will receive next.
    fn flip(&mut self, machine: NodeId) {
        let (NodeId::Worker(slot), NodeId::Worker(place)) =
            (machine, self.workers.process(machine))
        else {
            return;
        };
        if self.random.below(2) == 0 {
            self.faults.armed.garble_state(slot);
        } else if let Some(worker) = self.workers.find_mut(place)
            && let Some(sim_device) = &mut worker.sim_device
        {
            sim_device.flip();
            self.checkers.liveness.garbled(place);
        }
    }

    /// Garbles a reduced gradient, if a fault waits for one. Its digest shows a change in memory.
    /// After an error in an update only the owners' votes show it.
    pub(super) fn spoil(
        &mut self,
        place: usize,
        chunk: &mut Chunk,
        values: &mut Buffer,
    ) -> Result<(), Violation> {
        let slot = self.workers[place].slot();
        if self.faults.armed.take_garble(slot) {
            flip_a_bit(values);
            self.checkers.liveness.garbled(place);
            self.note(format_args!("a gradient is garbled in the memory of worker {place}"));
        }
        let (id, receiver) = self.workers[place].receiver_state(chunk.shard);
        if receiver.owns && self.faults.armed.take_mistake(slot) {
            flip_a_bit(values);
            chunk.digest = reduce::digest(0, values);
            self.note(format_args!("worker {place} errs in an update"));
            self.checkers.liveness.mistaken();
            self.observe(Observation::Corrupted(id))?;
        }
        Ok(())
    }

    /// Garbles a chunk of a shard's state, if a fault waits for one. Its digest will show it.
    pub(super) fn garble_state(&mut self, place: usize, values: &mut Buffer) {
        let slot = self.workers[place].slot();
        if self.faults.armed.take_garbled_state(slot) {
            flip_a_bit(values);
        }
    }
}

/// Flips the highest bit of the exponent of a small number. No clipping hides that.
fn flip_a_bit(values: &mut Buffer) {
    if let Some(value) = values.first_mut() {
        *value = f32::from_bits(value.to_bits() ^ 1 << 29);
    }
}
