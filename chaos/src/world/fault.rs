//! Makes faults happen.

use std::collections::BTreeSet;
use std::time::Duration;

use everstep_kernels::buffer::Buffer;
use everstep_transport::protocol::{Generation, Message, Step};
use everstep_transport::time::Time;
use everstep_worker::step::event::{Lane, Parcel};

use super::types::{Happening, Stray};
use super::{Node, World};
use crate::check::{Observation, Violation};
use crate::fault::{Fault, Twice};

/// A process that stands still.
#[derive(Debug, Default)]
pub struct Pause {
    until: Time,
    /// What has come meanwhile.
    held: Vec<Happening>,
}

impl Pause {
    /// Something has come.
    pub fn hold(&mut self, happening: Happening) {
        self.held.push(happening);
    }
}

/// Faults that wait for their moment.
#[derive(Debug, Default)]
pub struct Armed {
    duplicates: Vec<Duplicate>,
    /// Slots in whose memory a bit will flip.
    flips: BTreeSet<usize>,
}

#[derive(Debug)]
struct Duplicate {
    /// From which machine to which.
    way: (Node, Node),
    what: Twice,
    after: Duration,
}

impl World {
    /// Something goes wrong now.
    pub(super) fn inflict(&mut self, fault: &Fault) -> Result<(), Violation> {
        self.note(format_args!("fault: {fault}"));
        self.course.strike(self.now, fault);
        let (now, all) = (self.now, self.machines());
        let until = (now + fault.outage()).min(self.calm);
        match fault {
            Fault::Crash { node, restart } => self.crash(*node, *restart),
            Fault::Pause { node, .. } => self.pause(*node, until),
            Fault::Drift { node, permille } => self.drift(*node, *permille),
            Fault::Disconnect { ends: (a, b) } => {
                let (a, b) = (self.process(*a), self.process(*b));
                self.lose(a, b, "the connection is lost")?;
                return self.lose(b, a, "the connection is lost");
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
            Fault::Flip { node: Node::Worker(slot) } => _ = self.armed.flips.insert(*slot),
            Fault::Flip { .. } => {}
        }
        Ok(())
    }

    /// Interruptions end now; what waits for its moment will not have one. Clocks stay as they are.
    pub(super) fn calm_down(&mut self) {
        self.note(format_args!("no more faults"));
        self.roads.clear();
        self.armed = Armed::default();
        self.review_all();
    }

    // Processes.

    /// The process that is on a machine.
    fn process(&self, machine: Node) -> Node {
        match machine {
            Node::Worker(slot) => Node::Worker(self.slots.get(slot).copied().unwrap_or(usize::MAX)),
            other => other,
        }
    }

    fn machines(&self) -> Vec<Node> {
        let slots = (0..self.slots.len()).map(Node::Worker);
        slots.chain([Node::Coordinator]).collect()
    }

    fn crash(&mut self, machine: Node, restart: Option<Duration>) {
        let node = self.process(machine);
        if self.is_alive(node) {
            self.paused.remove(&node);
            match node {
                Node::Operator => return,
                Node::Worker(place) => self.workers[place].crash(),
                Node::Coordinator => {
                    self.coordinator.crash();
                    self.queue.retain(|to_come| to_come.owner() != Some(Node::Coordinator));
                }
            }
            self.cut_links(node);
        }
        if let Some(after) = restart {
            self.queue.put(self.now + after, Happening::Restart(machine));
        }
    }

    /// A new process on the machine of one that has ended.
    pub(super) fn start_again(&mut self, machine: Node) {
        if self.is_alive(self.process(machine)) {
            return;
        }
        self.note(format_args!("{machine} is started again"));
        match machine {
            Node::Worker(slot) if slot < self.slots.len() => self.start_worker(slot),
            Node::Coordinator => {
                self.forget_links(machine);
                self.start_coordinator();
            }
            Node::Worker(_) | Node::Operator => {}
        }
    }

    fn pause(&mut self, machine: Node, until: Time) {
        let node = self.process(machine);
        if !self.is_alive(node) {
            return;
        }
        let pause = self.paused.entry(node).or_default();
        pause.until = pause.until.max(until);
        self.queue.put(until, Happening::Resume(node, until));
        self.review_node(node);
    }

    /// The process goes on, and handles what has come meanwhile.
    pub(super) fn resume(&mut self, node: Node, until: Time) -> Result<(), Violation> {
        if self.paused.get(&node).is_none_or(|pause| pause.until > until) {
            return Ok(());
        }
        let held = self.paused.remove(&node).map(|pause| pause.held).unwrap_or_default();
        self.note(format_args!("{node} goes on with {} happenings", held.len()));
        self.review_node(node);
        for happening in held {
            self.happen(happening)?;
        }
        Ok(())
    }

    fn drift(&mut self, machine: Node, permille: u32) {
        let now = self.now;
        self.drifts.insert(machine, permille);
        match self.process(machine) {
            Node::Coordinator => self.coordinator.clock_mut().drift(now, permille),
            Node::Worker(place) => {
                if let Some(worker) = self.workers.get_mut(place) {
                    worker.clock_mut().drift(now, permille);
                }
            }
            Node::Operator => {}
        }
    }

    // Ways.

    /// Shuts every way from one group to another.
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

    /// Lets a message arrive again, if a fault waits for one.
    pub(super) fn repeat_message(&mut self, from: Node, to: Node, message: &Message) {
        if self.armed.duplicates.is_empty() {
            return;
        }
        let way = (self.machine(from), self.machine(to));
        if let Some(duplicate) = self.take_duplicate(way, &[Twice::Message]) {
            let stray = Stray::Message { from, to, message: message.clone() };
            self.queue.put(self.now + duplicate.after, Happening::Stray(Box::new(stray)));
        }
    }

    /// Lets a parcel arrive again, if a fault waits for one.
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

    /// Flips a bit of a reduced gradient, if a fault waits for one.
    pub(super) fn flip(&mut self, place: usize, values: &mut Buffer) -> Result<(), Violation> {
        if self.armed.flips.is_empty() || !self.armed.flips.remove(&self.workers[place].slot()) {
            return Ok(());
        }
        // The highest bit of the exponent of a small number: nobody's clipping hides that.
        if let Some(value) = values.first_mut() {
            *value = f32::from_bits(value.to_bits() ^ 1 << 29);
        }
        self.note(format_args!("a bit flips in the memory of worker {place}"));
        self.course.corrupted(self.now);
        self.observe(Observation::Corrupted(self.workers[place].id()))
    }
}
