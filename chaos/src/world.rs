//! A cluster in one thread: the cores and the devices of production, on virtual time.
//!
//! The caller gives a [`Scenario`], and to [`World::endure`] also a schedule of faults. The world
//! returns the end of the run ([`Finished`], [`Endured`]), or the reason for a [`Failure`].
//! Messages, chunks, jobs of devices and entries of the log take random times, which the world
//! draws from the scenario's seed. A control lane keeps its order, and so does a bulk stream.
//! Between lanes, streams and links there is no order. All numbers are real: the simulation
//! computes what a cluster would.
//!
//! The world does not know what a message means. It carries the messages of the cores, as their
//! shells do, and shows them to the [`check`](crate::check)ers.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod active_faults;
mod balance;
mod checkers;
mod client;
mod clock;
mod coordinator;
mod device;
mod disk;
mod endure;
mod fault;
mod history_file;
mod lane_memory;
mod leadership;
mod lines;
mod link;
mod liveness;
mod membership;
mod network;
mod operator;
mod peer;
mod preemption;
mod probe;
mod queue;
mod reconnect;
mod road;
mod sim_device;
mod sim_model_file;
mod store;
mod successor;
mod types;
mod upgrade;
mod wire;
mod witness;
mod worker;
mod workers;

use std::time::Duration;

use everstep_coordinator::core as coordination;
use everstep_coordinator::core::ShellInput;
use everstep_transport::protocol::outcome::{Outcome, WorkerResult, state_hash};
use everstep_transport::protocol::reason::LossReason;
use everstep_transport::protocol::{Message, Step, WorkerId, codec};
use everstep_transport::time::Time;
use everstep_worker::registry::RegistryError;
use everstep_worker::step::event::{Input, LinkId};

use crate::check::{Invariant, Observation, Violation};
use crate::fault::SPARE_COORDINATORS;
use crate::random::Random;
use crate::trace::Trace;
use active_faults::ActiveFaults;
use checkers::Checkers;
use client::{CLIENTS, Client};
use coordinator::SimCoordinator;
use network::Network;
use operator::SimOperator;
use queue::Queue;
use store::{SimStore, StoreThreadId};
use successor::Continuation;
use types::{Event, Orphan};
use workers::Workers;

pub use endure::{Endured, MAX_RECOVERY, MAX_STANDSTILL};
pub use liveness::Tally;
pub use types::{
    Exits, Failure, Finished, GIVE_UP_AFTER, InFlight, Interceptor, NodeId, Prepare, Scenario,
};
pub use upgrade::LATER_LOG_FORMAT;

/// A cluster on virtual time, with its faults and its checkers.
pub struct World {
    scenario: Scenario,
    now: Time,
    random: Random,
    queue: Queue<Event>,
    network: Network,
    coordinators: Vec<SimCoordinator>,
    operator: SimOperator,
    clients: Vec<Client>,
    workers: Workers,
    store: SimStore,
    faults: ActiveFaults,
    checkers: Checkers,
    trace: Trace,
}

/// Wall clock at time zero: the simulation is of no day in particular.
const UNIX_MS_AT_ZERO: u64 = 1_700_000_000_000;
/// How often a worker's shell tells its core the time.
const WORKER_TICK_INTERVAL: Duration = Duration::from_millis(50);
/// How often the world tells the checkers that time passes.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

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
            now: Time(0),
            random: Random::new(scenario.seed),
            queue: Queue::new(),
            network: Network::default(),
            coordinators: Vec::new(),
            operator: SimOperator::default(),
            clients: Vec::new(),
            workers: Workers::default(),
            store: SimStore::of(&scenario.run, scenario.seed, scenario.prepare.sync_flaws),
            faults: ActiveFaults::new(),
            checkers: Checkers::new(&scenario.run, samples, scenario.reference.clone()),
            trace: Trace::default(),
            scenario,
        };
        world.begin(None).expect("nothing has happened yet");
        Ok(world)
    }

    /// From now on `interceptor` sees every message and item before its receiver, and may change
    /// it.
    pub fn intercept(&mut self, interceptor: impl FnMut(InFlight<'_>) + 'static) {
        self.checkers.invariants.expect_refusals();
        self.network.intercept(Box::new(interceptor));
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
                Outcome::Failed { reason, .. } => return Err(Failure::Run(reason.to_string())),
                Outcome::Complete(results) if self.workers.have_ended() => {
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
        let Some((now, event)) = self.queue.pop() else { return Ok(false) };
        if now > end {
            return Ok(false);
        }
        // A fault may have moved the time on while there was no cluster.
        self.now = now.max(self.now);
        self.trace.mark(self.now, event.words());
        self.on_event(event)?;
        Ok(true)
    }

    fn finish(&self, results: Vec<WorkerResult>) -> Result<Finished, Violation> {
        let run_history = self.checkers.invariants.conclude(self.now)?;
        let seen = "the owners' final digests are not of one state";
        let broken = || Violation { invariant: Invariant::I3, at: self.now, seen: seen.into() };
        Ok(Finished {
            state_hash: state_hash(self.scenario.run.steps, &results).ok_or_else(broken)?,
            lines: self.operator.lines().to_vec(),
            results,
            run_history,
            refused: self.checkers.refused,
            at: self.now,
        })
    }

    fn stuck(&self, limit: Duration) -> Failure {
        let place = |place: usize| self.waits_for(place);
        let waiting = (0..self.workers.len()).map(place).collect::<Vec<_>>().join(", ");
        Failure::Stuck { at: self.now, limit, waiting }
    }

    // The cluster.

    /// Starts all processes. They know nothing of each other yet. The run goes on from a store, or
    /// begins.
    fn begin(&mut self, from: Option<Continuation>) -> Result<(), Violation> {
        let Scenario { run, reference, .. } = &self.scenario;
        let origin = from.as_ref().map(|from| &from.origin);
        self.checkers.begin_anew(self.now, run, reference.clone(), origin);
        if self.network.is_intercepted() {
            self.checkers.invariants.expect_refusals();
        }
        self.network.begin_anew();
        self.faults.on_cluster_restart();
        (self.operator, self.workers) = Default::default();
        let members = self.scenario.coordinators as usize;
        self.coordinators = coordinator::machines(members, SPARE_COORDINATORS as usize);
        self.operator.submit(self.scenario.run.clone(), from);
        for place in 0..self.coordinators.len() {
            if place < members {
                self.start_coordinator(place)?;
            }
            self.queue.put(self.now, Event::Connect(NodeId::Operator, place));
            for client in 0..CLIENTS {
                self.queue.put(self.now, Event::Connect(NodeId::Client(client), place));
            }
        }
        self.clients = vec![Client::default(); CLIENTS];
        for client in 0..CLIENTS {
            self.queue.put(self.now, Event::Ask { client, attempt: 0 });
        }
        self.queue.put(self.now, Event::Check);
        for slot in 0..self.scenario.workers as usize {
            self.start_worker(slot);
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<(), Violation> {
        let Some(event) = self.faults.hold(event) else { return Ok(()) };
        if let Some((from, to)) = event.path()
            && let Some(until) = self.shut_until(from, to)
        {
            self.queue.put(until, event);
            return Ok(());
        }
        match event {
            Event::Connect(node, place) => return self.connect(node, place),
            Event::Dial { place, to, since, wait } => {
                return self.dial(place, to, since, wait);
            }
            Event::Overdue { place, to, since } => return self.on_overdue(place, to, since),
            Event::Deliver(from, to, link) => return self.deliver(from, to, link),
            Event::Orphan(orphan) => return self.deliver_orphan(*orphan),
            Event::Coordinator(place, input) => return self.step_coordinator(place, *input),
            Event::Durable(place) => return self.on_durable(place),
            Event::LinesDurable(place, lineage, reach) => {
                return self.on_lines_durable(place, lineage, reach);
            }
            Event::Worker(place, input) => return self.step_worker(place, *input),
            Event::Device(place, build, done) => {
                return self.on_device_output(place, build, *done);
            }
            Event::ModelFile(place, build, done) => {
                let (generation, report) = *done;
                return self.on_file_report(place, build, generation, report);
            }
            Event::Store { place, builds, was_away, job } => {
                return self.on_store_job(StoreThreadId { place, builds }, was_away, *job);
            }
            Event::StoreAgain(place, builds) => {
                return self.work_in_store(StoreThreadId { place, builds });
            }
            Event::Watch(link) => self.watch(link),
            Event::Ask { client, attempt } => return self.ask(client, attempt),
            Event::Operator(message) => self.tell_leader(*message),
            Event::Header(stream) => return self.on_header(stream),
            Event::Body(stream) => return self.on_body(stream),
            Event::Free(place, build) => return self.on_free(place, build),
            Event::WorkerTick(place) => return self.tick_worker(place),
            Event::CoordinatorTick(place) => return self.tick_coordinator(place),
            Event::Idle { owner, peer, due } => return self.on_idle(owner, peer, due),
            Event::Probe { owner, peer, link } => return self.on_probe(owner, peer, link),
            Event::Fault(fault) => return self.inflict(&fault),
            Event::Cloud(event) => return self.on_cloud_event(event),
            Event::Resume(node, until) => return self.resume(node, until),
            Event::Reopen => self.review_all(),
            Event::Restart(node) => return self.start_again(node),
            Event::ResumeRun => self.resume_run(),
            Event::Leave { place, since, restart } => {
                return self.on_leave(place, since, restart);
            }
            Event::Removed(place) => return self.on_removed(place),
            Event::Check => return self.check_progress(),
            Event::Calm => return self.on_calm(),
        }
        Ok(())
    }

    /// Lets time pass. The event does nothing else unless a process has ended.
    fn check_progress(&mut self) -> Result<(), Violation> {
        self.queue.put(self.now + CHECK_INTERVAL, Event::Check);
        self.look_after_exits();
        let able = self.is_able();
        self.checkers.liveness.passes(self.now, able);
        let undisturbed = able && self.checkers.liveness.is_undisturbed(self.now);
        self.check_balance(undisturbed)?;
        self.observe(Observation::Passes(undisturbed))
    }

    fn check_balance(&mut self, undisturbed: bool) -> Result<(), Violation> {
        let Self { checkers: Checkers { invariants, balance, .. }, workers, faults, now, .. } =
            self;
        let record = invariants.current_record().filter(|_| undisturbed);
        let pace = |worker| {
            let slot = workers.place_of(worker).map(|place| workers[place].slot());
            slot.map_or(1_000, |slot| u64::from(faults.device_permille(*now, slot)))
        };
        balance.passes(*now, Step(invariants.steps()), record, pace)
    }

    /// Whether a majority of the coordinators and enough workers run for the run to go on, and it
    /// is not paused, nor restores anything from a store that is away.
    fn is_able(&self) -> bool {
        let run = &self.scenario.run;
        let record = self.checkers.invariants.current_record();
        let restores = record.is_some_and(|record| record.restores().is_some());
        let begun = record.is_some();
        let wanted = if begun { run.min_workers.max(1) } else { run.start_workers };
        let runs = |node: NodeId| self.is_alive(node) && !self.faults.is_paused(node);
        let places =
            (0..self.workers.len()).filter(|place| !self.checkers.liveness.is_leaving(*place));
        let running = places.filter(|place| runs(NodeId::Worker(*place))).count();
        let waits = self.operator.rests() || restores && self.store.is_away(self.now);
        self.has_quorum() && running >= wanted as usize && !waits
    }

    // Messages.

    /// Puts a message on the control lane between two nodes.
    fn say(&mut self, from: NodeId, to: NodeId, message: Message) {
        for message in self.network.messages(from, to, message) {
            let message = over_the_wire(&message);
            self.repeat_message(from, to, &message);
            self.put_on_lane(from, to, link::Item::Message(message.into()));
        }
    }

    fn hear(&mut self, from: NodeId, to: NodeId, message: Message) -> Result<(), Violation> {
        self.note(format_args!("{to} hears {} of {from}", message.name()));
        match (from, to) {
            (_, NodeId::Operator) => self.told(from, message),
            (_, NodeId::Client(client)) => self.told_client(client, from, message),
            (_, NodeId::Coordinator(place)) => {
                if let NodeId::Worker(worker) = from {
                    self.checkers.liveness.heard(self.now, place, worker);
                    self.coordinators[place].hears(self.now, worker);
                }
                let link = self.network.links.number(to, from).unwrap_or_default();
                let from = coordination::LinkId(link);
                self.step_coordinator(place, ShellInput::Message { from, message })
            }
            (NodeId::Worker(sender), NodeId::Worker(place)) => {
                match self.workers[place].peers().id_of(sender) {
                    Some(from) => self.step_worker(place, Input::Peer { from, message }),
                    None => Ok(()),
                }
            }
            (_, NodeId::Worker(place)) => {
                let link = LinkId(self.network.links.number(to, from).unwrap_or_default());
                self.step_worker(place, Input::Coordinator { link, message })
            }
            (_, NodeId::Leader) => Ok(()),
        }
    }

    fn deliver_orphan(&mut self, orphan: Orphan) -> Result<(), Violation> {
        match orphan {
            Orphan::Message { from, to, message } if self.network.links.is_open(to, from) => {
                self.hear(from, to, *message)
            }
            Orphan::Message { .. } => Ok(()),
            Orphan::Item { from, to, item } => self.add_orphan(from, to, item),
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
        reason: &LossReason,
        coordinator: usize,
    ) -> Result<(), Violation> {
        let Some(place) = self.workers.place_of(worker) else { return Ok(()) };
        let machine = NodeId::Worker(self.workers[place].slot());
        let explained = self.checkers.liveness.explains(self.now, place, machine, coordinator)
            || self.is_last_member(worker)
                && self.checkers.liveness.hides(self.now, place, coordinator);
        let has_departed = self.checkers.leadership.has_departed(worker);
        if self.workers.is_gone(worker) || has_departed || explained {
            return Ok(());
        }
        let seen = format!("worker {worker} (process {place}) was lost for no reason: {reason}");
        Err(Violation { invariant: Invariant::I8, at: self.now, seen })
    }

    /// Whether all other members of the current generation are gone.
    fn is_last_member(&self, worker: WorkerId) -> bool {
        let record = self.checkers.invariants.current_record();
        let members = record.iter().flat_map(|record| &record.members);
        let mut others = members.map(|member| member.worker).filter(|other| *other != worker);
        others.all(|other| self.workers.is_gone(other))
    }

    /// A worker has left. It may do so only at an operator's request.
    ///
    /// # Errors
    /// I8.
    fn judge_leave(&self, worker: WorkerId) -> Result<(), Violation> {
        let Some(place) = self.workers.place_of(worker) else { return Ok(()) };
        if self.checkers.liveness.is_leaving(place) {
            return Ok(());
        }
        let seen = format!("worker {worker} (process {place}) has left, and was not asked to");
        Err(Violation { invariant: Invariant::I8, at: self.now, seen })
    }

    // Helpers.

    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.note(self.now, what);
    }

    fn observe(&mut self, seen: Observation<'_>) -> Result<(), Violation> {
        self.checkers.invariants.observe(self.now, seen)
    }

    /// Schedules an event after a random delay.
    fn later(&mut self, event: Event) {
        let at = self.now + self.random.delay();
        self.queue.put(at, event);
    }

    fn is_alive(&self, node: NodeId) -> bool {
        match node {
            NodeId::Operator | NodeId::Client(_) => true,
            NodeId::Leader => false,
            NodeId::Coordinator(place) => {
                self.coordinators.get(place).is_some_and(|known| !known.is_down())
            }
            NodeId::Worker(place) => self.workers.find(place).is_some_and(|worker| !worker.ended()),
        }
    }
}

/// A message as its receiver decodes it.
fn over_the_wire(message: &Message) -> Message {
    codec::decode(&codec::encode(message)).expect("what a core says can be said")
}
