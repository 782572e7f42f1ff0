//! A cluster in one thread: the cores and the devices of production, on virtual time.
//!
//! The caller gives a [`Scenario`], and to [`World::endure`] also a schedule of faults. The world
//! returns the end of the run ([`Finished`], [`Endured`]), or the reason for a [`Failure`].
//! Messages, pieces, jobs of devices and entries of the log take random times, which the world
//! draws from the scenario's seed. A control lane keeps its order, and so does a bulk stream.
//! Between lanes, streams and links there is no order. All numbers are real: the simulation
//! computes what a cluster would.
//!
//! The world does not know what a message means. It carries the messages of the cores, as their
//! shells do, and shows them to the [`check`](crate::check)ers.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod bench;
mod client;
mod clock;
mod coordinator;
mod course;
mod device;
mod disk;
mod endure;
mod fault;
mod journal;
mod lines;
mod link;
mod membership;
mod operator;
mod peer;
mod queue;
mod reign;
mod road;
mod seek;
mod types;
mod wire;
mod witness;
mod worker;

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_coordinator::{core as coordination, seat};
use everstep_transport::protocol::outcome::{Outcome, WorkerResult, state_hash};
use everstep_transport::protocol::{Message, Wish, WorkerId, codec};
use everstep_transport::time::Time;
use everstep_worker::registry::RegistryError;
use everstep_worker::step::event::{Input, LinkId};

use crate::check::{Checks, Invariant, Observation, Violation};
use crate::fault::SPARE_COORDINATORS;
use crate::random::Random;
use crate::trace::Trace;
use client::{CLIENTS, Client};
use coordinator::Coordinator;
use course::Course;
use fault::{Armed, Pause};
use link::Links;
use operator::Operator;
use queue::Queue;
use reign::Reigns;
use road::Roads;
use types::{Happening, Stray};
use wire::Wire;
use worker::Worker;

pub use course::Tally;
pub use endure::{Endured, RECOVERY, STANDSTILL};
pub use types::{
    Exits, Failure, Finished, GIVE_UP_AFTER, Meddler, Node, Passing, Prepare, Scenario,
};

/// The simulation.
pub struct World {
    scenario: Scenario,
    /// How many samples the data set has.
    samples: u64,
    now: Time,
    random: Random,
    queue: Queue<Happening>,
    roads: Roads,
    links: Links,
    wire: Wire,
    coordinators: Vec<Coordinator>,
    reigns: Reigns,
    operator: Operator,
    clients: Vec<Client>,
    workers: Vec<Worker>,
    /// The place of the newest process in each slot. An empty slot has `usize::MAX`.
    slots: Vec<usize>,
    /// The workers' places, by the ids that the log gave them.
    places: BTreeMap<WorkerId, usize>,
    /// How long each node waits before it dials the coordinator at a place again.
    seeking: BTreeMap<(Node, usize), Duration>,
    paused: BTreeMap<Node, Pause>,
    /// How fast each machine's clock runs, in thousandths of true time.
    drifts: BTreeMap<Node, u32>,
    /// By machine, the other machine whose address its workers state.
    misstated: BTreeMap<Node, Node>,
    /// Until when a firewall refuses machines to the coordinators.
    refused_until: BTreeMap<Node, Time>,
    /// Until when the stores of workers' machines are full, by slot.
    full_stores: BTreeMap<usize, Time>,
    armed: Armed,
    /// When faults end.
    calm: Time,
    meddler: Option<Meddler>,
    checks: Checks,
    course: Course,
    refused: u64,
    trace: Trace,
}

/// Wall clock at time zero: the simulation is of no day in particular.
const UNIX_MS_AT_ZERO: u64 = 1_700_000_000_000;
/// How often a worker's shell tells its core the time.
const WORKER_TICK: Duration = Duration::from_millis(50);
/// How often the world tells the checkers that time passes.
const GLANCE: Duration = Duration::from_millis(100);

impl World {
    /// The world of `scenario`, before anything has happened.
    ///
    /// # Errors
    /// When the scenario's registry has no data set for its run.
    ///
    /// # Panics
    /// When coordinators that have done nothing yet break a promise.
    pub fn new(mut scenario: Scenario) -> Result<Self, RegistryError> {
        scenario.run.start_workers = scenario.workers;
        if scenario.exits == Exits::GivenUp {
            scenario.run.give_up_after_ms = Some(GIVE_UP_AFTER.as_millis() as u64);
        }
        let samples = scenario.registry.build_dataset(&scenario.run)?.len();
        let mut world = Self {
            samples,
            now: Time(0),
            random: Random::new(scenario.seed),
            queue: Queue::new(),
            roads: Roads::default(),
            links: Links::default(),
            wire: Wire::default(),
            coordinators: Vec::new(),
            reigns: Reigns::default(),
            operator: Operator::default(),
            clients: Vec::new(),
            workers: Vec::new(),
            slots: Vec::new(),
            places: BTreeMap::new(),
            seeking: BTreeMap::new(),
            paused: BTreeMap::new(),
            drifts: BTreeMap::new(),
            misstated: BTreeMap::new(),
            refused_until: BTreeMap::new(),
            full_stores: BTreeMap::new(),
            armed: Armed::default(),
            calm: Time(u64::MAX),
            meddler: None,
            checks: Checks::new(&scenario.run, samples, scenario.reference.clone()),
            course: Course::default(),
            refused: 0,
            trace: Trace::default(),
            scenario,
        };
        world.begin().expect("nothing has happened yet");
        Ok(world)
    }

    /// From now on `meddler` sees every message and parcel before its receiver, and may change it.
    pub fn meddle(&mut self, meddler: impl FnMut(Passing<'_>) + 'static) {
        self.checks.expect_refusals();
        self.meddler = Some(Box::new(meddler));
    }

    /// From now on every event leaves a line in the [`World::trace`].
    pub fn record(&mut self) {
        self.trace.record();
    }

    /// Handles events until the run is complete and every worker has been dismissed.
    ///
    /// # Errors
    /// [`Failure`]. The [`World::trace`] shows the events before it.
    ///
    /// # Panics
    /// When a core itself detects a broken invariant.
    pub fn run(&mut self, limit: Duration) -> Result<Finished, Failure> {
        while self.advance(Time(0) + limit)? {
            match self.operator.outcome() {
                Outcome::Failed { reason, .. } => return Err(Failure::Run(reason.clone())),
                Outcome::Complete(results) if self.all_ended() => {
                    return Ok(self.finish(results.clone())?);
                }
                Outcome::Running | Outcome::Complete(_) => {}
            }
        }
        Err(self.stuck(limit))
    }

    /// The record of all events so far.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Handles the next event. Returns false when there is none until `end`.
    fn advance(&mut self, end: Time) -> Result<bool, Violation> {
        let Some((now, happening)) = self.queue.pop() else { return Ok(false) };
        if now > end {
            return Ok(false);
        }
        // A fault may have moved the time on while there was no cluster.
        self.now = now.max(self.now);
        self.trace.mark(self.now, happening.words());
        self.happen(happening)?;
        Ok(true)
    }

    fn all_ended(&self) -> bool {
        self.workers.iter().all(Worker::ended)
    }

    fn finish(&self, results: Vec<WorkerResult>) -> Result<Finished, Violation> {
        let chronicle = self.checks.conclude(self.now)?;
        let seen = "the owners' final digests are not of one state";
        let broken = || Violation { invariant: Invariant::I3, at: self.now, seen: seen.into() };
        Ok(Finished {
            state_hash: state_hash(self.scenario.run.steps, &results).ok_or_else(broken)?,
            lines: self.operator.lines().to_vec(),
            results,
            chronicle,
            refused: self.refused,
            at: self.now,
        })
    }

    fn stuck(&self, limit: Duration) -> Failure {
        let place = |place: usize| self.waits_for(place);
        let waiting = (0..self.workers.len()).map(place).collect::<Vec<_>>().join(", ");
        Failure::Stuck { at: self.now, limit, waiting }
    }

    // The cluster.

    /// Starts all processes. They know nothing of each other yet.
    fn begin(&mut self) -> Result<(), Violation> {
        let run = &self.scenario.run;
        self.checks = Checks::new(run, self.samples, self.scenario.reference.clone());
        if self.meddler.is_some() {
            self.checks.expect_refusals();
        }
        (self.links, self.wire, self.armed) = Default::default();
        (self.operator, self.workers, self.places) = Default::default();
        (self.slots, self.paused, self.seeking) = Default::default();
        self.reigns = Reigns::default();
        self.course.begin_anew(self.now);
        let members = self.scenario.coordinators as usize;
        self.coordinators = coordinator::machines(members, SPARE_COORDINATORS as usize);
        self.operator.wish(Wish::Submit(self.scenario.run.clone()));
        for place in 0..self.coordinators.len() {
            if place < members {
                self.start_coordinator(place)?;
            }
            self.queue.put(self.now, Happening::Connect(Node::Operator, place));
            for client in 0..CLIENTS {
                self.queue.put(self.now, Happening::Connect(Node::Client(client), place));
            }
        }
        self.clients = vec![Client::default(); CLIENTS];
        for client in 0..CLIENTS {
            self.queue.put(self.now, Happening::Ask { client, attempt: 0 });
        }
        self.queue.put(self.now, Happening::Glance);
        for slot in 0..self.scenario.workers as usize {
            self.slots.push(usize::MAX);
            self.start_worker(slot);
        }
        Ok(())
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Violation> {
        let owner = happening.owner();
        if let Some(pause) = owner.and_then(|node| self.paused.get_mut(&node)) {
            pause.hold(happening);
            return Ok(());
        }
        if let Some((from, to)) = happening.path()
            && let Some(until) = self.shut_until(from, to)
        {
            self.queue.put(until, happening);
            return Ok(());
        }
        match happening {
            Happening::Connect(node, place) => return self.connect(node, place),
            Happening::Dial { place, to, since, wait } => {
                return self.dial(place, to, since, wait);
            }
            Happening::Overdue { place, to, since } => return self.overdue(place, to, since),
            Happening::Deliver(from, to, link) => return self.deliver(from, to, link),
            Happening::Stray(stray) => return self.deliver_stray(*stray),
            Happening::Coordinator(place, input) => return self.coordinate(place, input),
            Happening::Durable(place) => return self.endured(place),
            Happening::LinesDurable(place, lineage, reach) => {
                return self.lines_endured(place, (lineage, reach));
            }
            Happening::Worker(place, input) => return self.feed(place, input),
            Happening::Device(place, build, done) => return self.heed(place, build, done),
            Happening::Watch(link) => self.watch(link),
            Happening::Ask { client, attempt } => return self.ask(client, attempt),
            Happening::Operator(message) => self.tell_leader(*message),
            Happening::Header(stream) => return self.header(stream),
            Happening::Body(stream) => return self.body(stream),
            Happening::Free(place, build) => return self.free(place, build),
            Happening::WorkerTick(place) => return self.tick_worker(place),
            Happening::CoordinatorTick(place) => return self.tick_coordinator(place),
            Happening::Idle { owner, peer, due } => return self.idle(owner, peer, due),
            Happening::Fault(fault) => return self.inflict(&fault),
            Happening::Resume(node, until) => return self.resume(node, until),
            Happening::Reopen => self.review_all(),
            Happening::Restart(node) => return self.start_again(node),
            Happening::Leave { place, since, restart } => {
                return self.leave(place, since, restart);
            }
            Happening::Removed(place) => return self.removed(place),
            Happening::Glance => return self.glance(),
            Happening::Calm => return self.calm_down(),
        }
        Ok(())
    }

    /// Lets time pass. The event does nothing else unless a process has ended.
    fn glance(&mut self) -> Result<(), Violation> {
        self.queue.put(self.now + GLANCE, Happening::Glance);
        self.look_after_exits();
        let able = self.is_able();
        self.course.passes(self.now, able);
        let undisturbed = able && self.course.is_undisturbed(self.now);
        self.observe(Observation::Passes(undisturbed))
    }

    /// Whether a majority of the coordinators and enough workers run for the run to go on.
    fn is_able(&self) -> bool {
        let run = &self.scenario.run;
        let begun = self.checks.current_record().is_some();
        let wanted = if begun { run.min_workers.max(1) } else { run.start_workers };
        let runs = |node: Node| self.is_alive(node) && !self.paused.contains_key(&node);
        let places = (0..self.workers.len()).filter(|place| !self.course.is_leaving(*place));
        let running = places.filter(|place| runs(Node::Worker(*place))).count();
        self.has_quorum() && running >= wanted as usize
    }

    // Messages.

    /// Puts a message on the control lane between two nodes.
    fn say(&mut self, from: Node, to: Node, message: Message) {
        let mut messages = vec![message];
        if let Some(meddler) = &mut self.meddler {
            meddler(Passing::Messages { from, to, messages: &mut messages });
        }
        for message in messages {
            let message = over_the_wire(&message);
            self.repeat_message(from, to, &message);
            self.put_on_lane(from, to, link::Item::Message(message.into()));
        }
    }

    fn hear(&mut self, from: Node, to: Node, message: Message) -> Result<(), Violation> {
        self.note(format_args!("{to} hears {} of {from}", message.name()));
        match (from, to) {
            (_, Node::Operator) => self.told(from, message),
            (_, Node::Client(client)) => self.told_client(client, from, message),
            (_, Node::Coordinator(place)) => {
                if let Node::Worker(worker) = from {
                    self.course.heard(self.now, place, worker);
                    self.coordinators[place].hears(self.now, worker);
                }
                let link = self.links.number(to, from).unwrap_or_default();
                let from = coordination::LinkId(link);
                self.coordinate(place, seat::Input::Message { from, message })
            }
            (Node::Worker(sender), Node::Worker(place)) => {
                match self.workers[place].peers().id_of(sender) {
                    Some(from) => self.feed(place, Input::Peer { from, message }),
                    None => Ok(()),
                }
            }
            (_, Node::Worker(place)) => {
                let link = LinkId(self.links.number(to, from).unwrap_or_default());
                self.feed(place, Input::Coordinator { link, message })
            }
            (_, Node::Leader) => Ok(()),
        }
    }

    fn deliver_stray(&mut self, stray: Stray) -> Result<(), Violation> {
        match stray {
            Stray::Message { from, to, message } if self.links.is_open(to, from) => {
                self.hear(from, to, *message)
            }
            Stray::Message { .. } => Ok(()),
            Stray::Parcel { from, to, parcel } => self.add_stray(from, to, parcel),
        }
    }

    // The judgement of a loss.

    /// A coordinator says that a worker is lost. It needs a reason.
    ///
    /// # Errors
    /// I8.
    fn judge_loss(
        &self,
        worker: WorkerId,
        reason: &str,
        coordinator: usize,
    ) -> Result<(), Violation> {
        let Some(&place) = self.places.get(&worker) else { return Ok(()) };
        let machine = Node::Worker(self.workers[place].slot());
        let explained = self.course.explains(self.now, (place, machine), coordinator)
            || self.is_last_member(worker) && self.course.hides(self.now, place, coordinator);
        if self.is_gone(worker) || explained {
            return Ok(());
        }
        let seen = format!("worker {worker} (process {place}) was lost for no reason: {reason}");
        Err(Violation { invariant: Invariant::I8, at: self.now, seen })
    }

    /// Whether all other members of the current generation are gone.
    fn is_last_member(&self, worker: WorkerId) -> bool {
        let record = self.checks.current_record();
        let members = record.iter().flat_map(|record| &record.members);
        let mut others = members.map(|member| member.worker).filter(|other| *other != worker);
        others.all(|other| self.is_gone(other))
    }

    /// Whether a worker's process has ended, or has discarded all that it held as this worker.
    fn is_gone(&self, worker: WorkerId) -> bool {
        let process = self.places.get(&worker).map(|place| &self.workers[*place]);
        process.is_none_or(|process| process.ended() || process.id() != Some(worker))
    }

    /// A worker has left. It may do so only at an operator's request.
    ///
    /// # Errors
    /// I8.
    fn judge_leave(&self, worker: WorkerId) -> Result<(), Violation> {
        let Some(&place) = self.places.get(&worker) else { return Ok(()) };
        if self.course.is_leaving(place) {
            return Ok(());
        }
        let seen = format!("worker {worker} (process {place}) has left, and nobody asked it to");
        Err(Violation { invariant: Invariant::I8, at: self.now, seen })
    }

    // Helpers.

    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.note(self.now, what);
    }

    fn observe(&mut self, seen: Observation<'_>) -> Result<(), Violation> {
        self.checks.observe(self.now, seen)
    }

    /// Schedules an event after a random delay.
    fn later(&mut self, happening: Happening) {
        let at = self.now + self.random.delay();
        self.queue.put(at, happening);
    }

    fn is_alive(&self, node: Node) -> bool {
        match node {
            Node::Operator | Node::Client(_) => true,
            Node::Leader => false,
            Node::Coordinator(place) => {
                self.coordinators.get(place).is_some_and(|known| !known.is_down())
            }
            Node::Worker(place) => self.workers.get(place).is_some_and(|worker| !worker.ended()),
        }
    }
}

/// A message as its receiver decodes it.
fn over_the_wire(message: &Message) -> Message {
    codec::decode(&codec::encode(message)).expect("what a core says can be said")
}
