//! Inflicts faults on the world.

use std::collections::BTreeSet;
use std::time::Duration;

use everstep_kernels::buffer::Buffer;
use everstep_kernels::reduce;
use everstep_transport::protocol::{Chunk, Generation, Message, Step, Wish};
use everstep_transport::time::Time;
use everstep_worker::step::event::{Input, Lane, Parcel};

use super::link::End;
use super::types::{Happening, Stray};
use super::{Node, World};
use crate::check::{Observation, Violation};
use crate::fault::{Asker, Fault, Twice};

/// A process that stands still.
#[derive(Debug, Default)]
pub struct Pause {
    /// Since when the process stands still. None before the world has set it.
    since: Option<Time>,
    until: Time,
    /// Events that wait until the process goes on.
    held: Vec<Happening>,
}

impl Pause {
    /// Keeps an event until the process goes on.
    pub fn hold(&mut self, happening: Happening) {
        self.held.push(happening);
    }
}

/// Faults that wait for their moment.
#[derive(Debug, Default)]
pub struct Armed {
    duplicates: Vec<Duplicate>,
    /// A coordinator crashes at its next proposal, and starts again after this time.
    proposing: Option<Duration>,
    /// A coordinator crashes when it next shuts another one out, and starts again after this time.
    expelling: Option<Duration>,
    /// Slots of workers whose next reduced gradient the world will garble in memory.
    garbles: BTreeSet<usize>,
    /// Slots of workers that will err in an update.
    mistakes: BTreeSet<usize>,
    /// Slots of workers whose next piece of a shard's state the world will garble in memory.
    states: BTreeSet<usize>,
}

/// A coordinator that stood still for longer gives all workers fresh deadlines.
const LATE: Duration = Duration::from_secs(1);
/// The longest time until a process starts again that crashes before the run has begun.
const BEGIN: Duration = Duration::from_secs(1);

impl Armed {
    /// A leader has proposed a generation. If it is to crash, returns when it starts again.
    pub fn proposing(&mut self) -> Option<Duration> {
        self.proposing.take()
    }

    /// A coordinator shuts another one out. If it is to crash, returns when it starts again.
    pub fn expelling(&mut self) -> Option<Duration> {
        self.expelling.take()
    }
}

#[derive(Debug)]
struct Duplicate {
    /// The machine that sends, and the one that receives.
    way: (Node, Node),
    what: Twice,
    after: Duration,
}

impl World {
    /// Inflicts a fault now.
    pub(super) fn inflict(&mut self, fault: &Fault) -> Result<(), Violation> {
        let leader = Node::Coordinator(self.leader().unwrap_or_default());
        let fault = &fault.clone().with_leader(leader);
        self.note(format_args!("fault: {fault}"));
        self.course.strike(self.now, fault);
        let (now, all) = (self.now, self.machines());
        let until = (now + fault.outage()).min(self.calm);
        match fault {
            Fault::Crash { node, restart } => self.crash(*node, *restart),
            Fault::CrashProposing { restart } => self.armed.proposing = Some(*restart),
            Fault::CrashExpelling { restart } => self.armed.expelling = Some(*restart),
            Fault::CrashTogether { side, restart } => {
                side.iter().for_each(|node| self.crash(*node, *restart));
            }
            Fault::Stop { node: Node::Coordinator(place), restart } => {
                let leave = Happening::Leave { place: *place, since: None, restart: *restart };
                self.later(leave);
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
                let (a, b) = (self.process(*a), self.process(*b));
                self.lose(a, b, End::lost("the connection is lost"))?;
                return self.lose(b, a, End::lost("the connection is lost"));
            }
            Fault::Slow { ends: (a, b), extra, span } => {
                self.roads.slow((*a, *b), None, *extra, now + *span);
                self.roads.slow((*b, *a), None, *extra, now + *span);
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
                let duplicate = Duplicate { way: (*from, *to), what: *what, after: *after };
                self.armed.duplicates.push(duplicate);
            }
            Fault::Reorder { from, to, lane, extra, span } => {
                self.roads.slow((*from, *to), Some(*lane), *extra, now + *span);
            }
            Fault::Hang { node, span } => self.hang(*node, (now + *span).min(self.calm)),
            Fault::FullStore { node, span } => self.fill_store(*node, now + *span),
            Fault::Flip { node } => self.flip(*node),
            Fault::Garble { node: Node::Worker(slot) } => _ = self.armed.garbles.insert(*slot),
            Fault::Mistake { node: Node::Worker(slot) } => _ = self.armed.mistakes.insert(*slot),
            fault => self.mislead(fault, &all, until),
        }
        Ok(())
    }

    /// Ends all interruptions, and disarms faults that wait for their moment. Clocks stay as they
    /// are. Every slot that had a worker at first gets one again.
    pub(super) fn calm_down(&mut self) -> Result<(), Violation> {
        self.note(format_args!("no more faults"));
        self.course.calm(self.now);
        self.roads.clear();
        self.refused_until.clear();
        self.armed = Armed::default();
        self.review_all();
        let first = (0..self.scenario.workers as usize).map(Node::Worker);
        let members = self.scenario.coordinators as usize;
        let known = (0..self.coordinators.len())
            .filter(|place| *place < members || self.coordinators[*place].directory.id.is_some());
        let missing: Vec<Node> = first.chain(known.map(Node::Coordinator)).collect();
        missing.into_iter().try_for_each(|node| self.start_again(node))
    }

    // Processes.

    /// The newest process on a machine.
    pub(super) fn process(&self, machine: Node) -> Node {
        match machine {
            Node::Worker(slot) => Node::Worker(self.slots.get(slot).copied().unwrap_or(usize::MAX)),
            other => other,
        }
    }

    fn machines(&self) -> Vec<Node> {
        let slots = (0..self.slots.len()).map(Node::Worker);
        slots.chain((0..self.coordinators.len()).map(Node::Coordinator)).collect()
    }

    pub(super) fn crash(&mut self, machine: Node, restart: Option<Duration>) {
        let node = self.process(machine);
        if self.is_alive(node) {
            self.paused.remove(&node);
            match node {
                Node::Operator | Node::Client(_) | Node::Leader => return,
                Node::Worker(place) => self.end_worker(place, "it was killed"),
                Node::Coordinator(place) => self.end_coordinator(place),
            }
            self.cut_links(node);
        }
        let begun = self.checks.current_record().is_some();
        let at_least = if begun { restart } else { Some(restart.unwrap_or(BEGIN).min(BEGIN)) };
        if let Some(after) = at_least {
            self.queue.put(self.now + after, Happening::Restart(machine));
        }
    }

    /// Starts a new process on a machine where none runs.
    pub(super) fn start_again(&mut self, machine: Node) -> Result<(), Violation> {
        if self.is_alive(self.process(machine)) {
            return Ok(());
        }
        self.note(format_args!("{machine} is started"));
        match machine {
            Node::Worker(slot) => {
                self.slots.resize(self.slots.len().max(slot + 1), usize::MAX);
                self.start_worker(slot);
                Ok(())
            }
            Node::Coordinator(place) => {
                let Some(coordinator) = self.coordinators.get(place) else { return Ok(()) };
                let (soonest, prospect) = (coordinator.startable(), coordinator.prospect);
                if prospect.is_in_the_way() {
                    self.note(format_args!("{machine} does not begin: {prospect:?}"));
                    return Ok(());
                }
                if soonest > self.now {
                    self.queue.put(soonest, Happening::Restart(machine));
                    return Ok(());
                }
                self.forget_links(machine);
                self.start_coordinator(place)
            }
            Node::Operator | Node::Client(_) | Node::Leader => Ok(()),
        }
    }

    /// The device of a worker does nothing until `until`. Nor does a new device in its place.
    fn hang(&mut self, machine: Node, until: Time) {
        let Node::Worker(place) = self.process(machine) else { return };
        let Some(worker) = self.workers.get_mut(place) else { return };
        worker.hangs_until = worker.hangs_until.max(until);
        self.queue.put(until, Happening::Free(place, worker.builds));
    }

    /// Asks a worker to leave.
    fn drain(&mut self, machine: Node, by: Asker, grace: Option<Duration>) {
        let Node::Worker(place) = self.process(machine) else { return };
        let Some(worker) = self.workers.get(place).filter(|worker| !worker.ended()) else {
            return;
        };
        let id = worker.id();
        self.course.leaves(place);
        match (by, id) {
            (Asker::Operator, Some(worker)) => {
                self.operator.wish(Wish::Drain(worker));
            }
            (Asker::Operator, None) => {}
            (Asker::Machine, _) => {
                self.later(Happening::Worker(place, Input::Drain));
                if let Some(grace) = grace {
                    let overdue = Happening::Worker(place, Input::DrainOverdue);
                    self.queue.put(self.now + grace, overdue);
                }
            }
        }
    }

    fn pause(&mut self, machine: Node, until: Time) {
        let node = self.process(machine);
        if !self.is_alive(node) {
            return;
        }
        let pause = self.paused.entry(node).or_default();
        pause.since.get_or_insert(self.now);
        pause.until = pause.until.max(until);
        self.queue.put(until, Happening::Resume(node, until));
        self.review_node(node);
    }

    /// The process goes on, and handles the events that it has missed.
    pub(super) fn resume(&mut self, node: Node, until: Time) -> Result<(), Violation> {
        if self.paused.get(&node).is_none_or(|pause| pause.until > until) {
            return Ok(());
        }
        let Some(Pause { since, held, .. }) = self.paused.remove(&node) else { return Ok(()) };
        self.note(format_args!("{node} goes on with {} happenings", held.len()));
        let stood = since.map_or(Duration::ZERO, |since| self.now.since(since));
        if let Node::Coordinator(place) = node
            && stood > LATE
        {
            self.course.awake(self.now, place);
            self.coordinators[place].awakes(self.now);
        }
        self.review_node(node);
        for happening in held {
            self.happen(happening)?;
        }
        Ok(())
    }

    /// The disk of a coordinator writes nothing until `until`.
    fn stall(&mut self, machine: Node, until: Time) {
        if let Node::Coordinator(place) = machine
            && let Some(coordinator) = self.coordinators.get_mut(place)
        {
            coordinator.disk_mut().stall(until);
        }
    }

    fn drift(&mut self, machine: Node, permille: u32) {
        let now = self.now;
        self.drifts.insert(machine, permille);
        match self.process(machine) {
            Node::Coordinator(place) => {
                if let Some(coordinator) = self.coordinators.get_mut(place) {
                    coordinator.clock_mut().drift(now, permille);
                }
            }
            Node::Worker(place) => {
                if let Some(worker) = self.workers.get_mut(place) {
                    worker.clock_mut().drift(now, permille);
                }
            }
            Node::Operator | Node::Client(_) | Node::Leader => {}
        }
    }

    // Roads.

    /// Shuts all roads between coordinators and workers.
    fn isolate(&mut self, machines: Vec<Node>, until: Time) {
        let (workers, others): (Vec<Node>, Vec<Node>) =
            machines.into_iter().partition(|node| matches!(node, Node::Worker(_)));
        self.shut(&others, &workers, until);
        self.shut(&workers, &others, until);
    }

    /// Inflicts a fault that looks like the end of a worker, but is none.
    fn mislead(&mut self, fault: &Fault, all: &[Node], until: Time) {
        match fault {
            Fault::Deafen { node, .. } => self.deafen(*node, all, until),
            Fault::Refuse { node, .. } => self.firewall(*node, all, until),
            Fault::Misstate { node, of } => _ = self.misstated.insert(*node, *of),
            _ => {} // of machines that have no such process
        }
    }

    /// Shuts the roads between one coordinator and the workers.
    fn deafen(&mut self, node: Node, all: &[Node], until: Time) {
        let is_worker = |other: &&Node| matches!(other, Node::Worker(_));
        let workers: Vec<Node> = all.iter().filter(is_worker).copied().collect();
        self.shut(&[node], &workers, until);
        self.shut(&workers, &[node], until);
    }

    /// Shuts the roads between one worker and the coordinators, and refuses the coordinators'
    /// probes of that worker.
    fn firewall(&mut self, node: Node, all: &[Node], until: Time) {
        let refused = self.refused_until.entry(node).or_default();
        *refused = until.max(*refused);
        let is_other = |other: &&Node| matches!(other, Node::Coordinator(_));
        let coordinators: Vec<Node> = all.iter().filter(is_other).copied().collect();
        self.shut(&[node], &coordinators, until);
        self.shut(&coordinators, &[node], until);
    }

    /// Shuts every road from one group to another.
    fn shut(&mut self, from: &[Node], to: &[Node], until: Time) {
        for from in from {
            for to in to.iter().filter(|to| *to != from) {
                self.roads.shut((*from, *to), until);
            }
        }
        self.queue.put(until, Happening::Reopen);
        self.review_all();
    }

    // Duplicates.

    fn take_duplicate(&mut self, way: (Node, Node), kinds: &[Twice]) -> Option<Duplicate> {
        let fits = |armed: &Duplicate| armed.way == way && kinds.contains(&armed.what);
        let found = self.armed.duplicates.iter().position(fits)?;
        self.checks.expect_refusals();
        Some(self.armed.duplicates.remove(found))
    }

    /// Lets a message arrive a second time, if a fault waits for one.
    pub(super) fn repeat_message(&mut self, from: Node, to: Node, message: &Message) {
        if self.armed.duplicates.is_empty() {
            return;
        }
        let way = (self.machine(from), self.machine(to));
        if let Some(duplicate) = self.take_duplicate(way, &[Twice::Message]) {
            let stray = Stray::Message { from, to, message: message.clone().into() };
            self.queue.put(self.now + duplicate.after, Happening::Stray(Box::new(stray)));
        }
    }

    /// Lets a parcel arrive a second time, if a fault waits for one.
    pub(super) fn repeat_parcel(
        &mut self,
        (from, to): (usize, usize),
        (lane, step, parcel): (Lane, Step, &Parcel),
    ) {
        if self.armed.duplicates.is_empty() {
            return;
        }
        let way = (self.machine(Node::Worker(from)), self.machine(Node::Worker(to)));
        let tensor = matches!(parcel, Parcel::Tensor { .. });
        let kinds = [Twice::Parcel, Twice::OlderParcel];
        let kinds = if tensor { &kinds[..] } else { &kinds[..1] };
        let Some(duplicate) = self.take_duplicate(way, kinds) else { return };
        let mut parcel = parcel.clone();
        if let (Twice::OlderParcel, Parcel::Tensor { chunk, .. }) = (duplicate.what, &mut parcel) {
            chunk.generation = Generation(chunk.generation.0.saturating_sub(1));
        }
        let stray = Stray::Parcel { from, to, parcel: (lane, step, parcel) };
        self.queue.put(self.now + duplicate.after, Happening::Stray(Box::new(stray)));
    }

    // Memory.

    /// Flips a bit in a device's memory, or in the state that it will receive next.
    fn flip(&mut self, machine: Node) {
        let (Node::Worker(slot), Node::Worker(place)) = (machine, self.process(machine)) else {
            return;
        };
        if self.random.below(2) == 0 {
            self.armed.states.insert(slot);
        } else if let Some(worker) = self.workers.get_mut(place)
            && let Some(bench) = &mut worker.bench
        {
            bench.flip();
            self.course.garbled(place);
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
        if !self.armed.garbles.is_empty() && self.armed.garbles.remove(&slot) {
            flip_a_bit(values);
            self.course.garbled(place);
            self.note(format_args!("a gradient is garbled in the memory of worker {place}"));
        }
        let (id, standing) = self.workers[place].standing_for(chunk.shard);
        if standing.owns && !self.armed.mistakes.is_empty() && self.armed.mistakes.remove(&slot) {
            flip_a_bit(values);
            chunk.digest = reduce::digest(0, values);
            self.note(format_args!("worker {place} errs in an update"));
            self.course.mistaken();
            self.observe(Observation::Corrupted(id))?;
        }
        Ok(())
    }

    /// Garbles a piece of a shard's state, if a fault waits for one. Its digest will show it.
    pub(super) fn garble_state(&mut self, place: usize, values: &mut Buffer) {
        let slot = self.workers[place].slot();
        if !self.armed.states.is_empty() && self.armed.states.remove(&slot) {
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
