//! A cluster in one thread: the cores and the devices of production, on virtual time.
//!
//! In goes a [`Scenario`]. Out comes what the run ended with ([`Finished`]), or why it did not
//! ([`Failure`]). Whatever takes time takes a random one, drawn from the scenario's seed: messages,
//! pieces, jobs of devices, entries of the log. A control lane keeps its order, and so does a bulk
//! stream; between lanes, streams and links there is none. All numbers are real: the simulation
//! computes what a cluster would.
//!
//! The world does not know what a message means. It carries what cores say, as their shells do, and
//! shows it to the [`check`](crate::check)ers.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod bench;
mod coordinator;
mod operator;
mod queue;
mod wire;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use everstep_coordinator::core as coordination;
use everstep_transport::protocol::outcome::{Outcome, WorkerResult, state_hash};
use everstep_transport::protocol::{Message, MetricsLine, RunSpec, WorkerId, codec};
use everstep_transport::time::Time;
use everstep_worker::registry::{Registry, RegistryError};
use everstep_worker::step::event::{Input, Lane, Parcel};

use crate::check::{Checks, Chronicle, Invariant, Observation, Violation};
use crate::random::Random;
use crate::trace::Trace;
use coordinator::Coordinator;
use operator::Operator;
use queue::Queue;
use wire::{StreamId, Wire};
use worker::Worker;

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The run. It starts with all workers, whatever its `start_workers` says.
    pub run: RunSpec,
    /// What its model and data set are.
    pub registry: Arc<Registry>,
    /// How many workers there are.
    pub workers: u32,
    /// The schedule follows from it.
    pub seed: u64,
    /// The same run without faults, to compare every step with.
    pub reference: Option<Arc<Chronicle>>,
}

/// A process of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// The one coordinator.
    Coordinator,
    /// Who submits the run and watches it.
    Operator,
    /// A worker, by its place among the processes; its rank is the coordinator's to say.
    Worker(usize),
}

/// Something on its way: a list of one. Who meddles may empty the list, change what is in it, or
/// add to it.
#[derive(Debug)]
pub enum Passing<'a> {
    /// On a control lane.
    Messages {
        /// Who says it.
        from: Node,
        /// To whom.
        to: Node,
        /// What.
        messages: &'a mut Vec<Message>,
    },
    /// On a bulk stream; what is added gets a stream of its own, so that it holds up nothing.
    Parcels {
        /// The sending worker.
        from: Node,
        /// The receiving worker.
        to: Node,
        /// The lane.
        lane: Lane,
        /// What.
        parcels: &'a mut Vec<Parcel>,
    },
}

/// Stands between the cores and the wire, to prove that the cores or the checkers notice.
pub type Meddler = Box<dyn FnMut(Passing<'_>)>;

/// A complete run.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Of the parameters and the optimizer's state; see [`state_hash`].
    pub state_hash: [u8; 32],
    /// The metrics, as a watcher was told them.
    pub lines: Vec<MetricsLine>,
    /// What the members reported.
    pub results: Vec<WorkerResult>,
    /// Every step of it, for comparison.
    pub chronicle: Chronicle,
    /// Messages and pieces that workers took and refused, or dropped at their header.
    pub refused: u64,
    /// How long it took, in virtual time.
    pub at: Time,
}

/// A run that did not become complete.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// An invariant did not hold.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The cluster itself says that the run has failed.
    #[error("the run failed: {0}")]
    Run(String),
    /// It was not complete in time (invariant I11).
    #[error("not complete after {:?}; commits: {committed}", .limit)]
    Stuck {
        /// The time that there was.
        limit: Duration,
        /// Each worker's last commit, in words.
        committed: String,
    },
}

/// What is going to happen.
#[derive(Debug)]
enum Happening {
    /// A worker's link to the coordinator comes up.
    Connected(usize),
    /// A message arrives.
    Message { from: Node, to: Node, message: Message },
    /// Anything else happens to the coordinator.
    Coordinator(coordination::Input),
    /// Anything else happens to a worker.
    Worker(usize, Input),
    /// The operator asks what is new.
    Watch,
    /// The header of a stream's next parcel is there to be admitted.
    Header(StreamId),
    /// The rest of it has arrived.
    Body(StreamId),
    /// A worker's device has done its job.
    Free(usize),
    /// A worker looks at the clock.
    WorkerTick(usize),
    /// The coordinator does.
    CoordinatorTick,
}

/// The simulation.
pub struct World {
    scenario: Scenario,
    now: Time,
    random: Random,
    queue: Queue<Happening>,
    wire: Wire,
    coordinator: Coordinator,
    operator: Operator,
    workers: Vec<Worker>,
    /// The members' places, by the ids that the coordinator gave them.
    places: BTreeMap<WorkerId, usize>,
    meddler: Option<Meddler>,
    checks: Checks,
    refused: u64,
    trace: Trace,
}

/// Wall clock at time zero: the simulation is of no day in particular.
const UNIX_MS_AT_ZERO: u64 = 1_700_000_000_000;
/// How often a worker's shell tells its core the time.
const WORKER_TICK: Duration = Duration::from_millis(50);
/// Messages that come again and again, and would fill the trace of a cluster that is stuck.
const ROUTINE: [&str; 4] = ["heartbeat", "heartbeat_answer", "watch", "update"];

impl World {
    /// The world of `scenario`, before anything has happened.
    ///
    /// # Errors
    /// Where the scenario's registry has no data set for its run.
    pub fn new(mut scenario: Scenario) -> Result<Self, RegistryError> {
        scenario.run.start_workers = scenario.workers;
        let samples = scenario.registry.build_dataset(&scenario.run)?.len();
        let checks = Checks::new(&scenario.run, samples, scenario.reference.clone());
        let mut world = Self {
            now: Time(0),
            random: Random::new(scenario.seed),
            queue: Queue::new(),
            wire: Wire::default(),
            coordinator: Coordinator::new(UNIX_MS_AT_ZERO),
            operator: Operator::default(),
            workers: (0..scenario.workers as usize).map(Worker::new).collect(),
            places: BTreeMap::new(),
            meddler: None,
            checks,
            refused: 0,
            trace: Trace::default(),
            scenario,
        };
        world.begin();
        Ok(world)
    }

    /// From now on `meddler` sees everything first that is sent, and may change it.
    pub fn meddle(&mut self, meddler: impl FnMut(Passing<'_>) + 'static) {
        self.checks.expect_refusals();
        self.meddler = Some(Box::new(meddler));
    }

    /// Lets things happen until the run is complete and every worker has been dismissed.
    ///
    /// # Errors
    /// [`Failure`]; the [`World::trace`] says what came before.
    ///
    /// # Panics
    /// Where a core meets a broken invariant itself.
    pub fn run(&mut self, limit: Duration) -> Result<Finished, Failure> {
        while let Some((now, happening)) = self.queue.pop() {
            if now > Time(0) + limit {
                break;
            }
            self.now = now;
            self.happen(happening)?;
            match self.operator.outcome() {
                Outcome::Running => {}
                Outcome::Failed { reason, .. } => return Err(Failure::Run(reason.clone())),
                Outcome::Complete(_) if self.workers.iter().any(|worker| !worker.ended()) => {}
                Outcome::Complete(results) => return Ok(self.finish(results.clone())?),
            }
        }
        let committed = self.workers.iter().map(Worker::standing).collect::<Vec<_>>().join(", ");
        Err(Failure::Stuck { limit, committed })
    }

    /// What has happened.
    pub fn trace(&self) -> &Trace {
        &self.trace
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

    // Events.

    fn begin(&mut self) {
        self.connect_operator();
        self.queue.put(self.now, Happening::Watch);
        self.queue.put(self.now, Happening::CoordinatorTick);
        for place in 0..self.workers.len() {
            let at = self.now + self.random.delay();
            self.queue.put(at, Happening::Connected(place));
            self.queue.put(at, Happening::WorkerTick(place));
        }
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::Connected(place) => self.connect_worker(place),
            Happening::Message { from, to, message } => return self.hear(from, to, message),
            Happening::Coordinator(input) => self.coordinate(input),
            Happening::Worker(place, input) => return self.feed(place, input),
            Happening::Watch => self.watch(),
            Happening::Header(stream) => return self.header(stream),
            Happening::Body(stream) => return self.body(stream),
            Happening::Free(place) => return self.free(place),
            Happening::WorkerTick(place) => {
                self.queue.put(self.now + WORKER_TICK, Happening::WorkerTick(place));
                return self.feed(place, Input::Tick);
            }
            Happening::CoordinatorTick => {
                self.queue.put(self.now + coordination::TICK, Happening::CoordinatorTick);
                self.coordinate(coordination::Input::Tick);
            }
        }
        Ok(())
    }

    // Control lanes.

    /// Puts a message on the control lane between two nodes.
    fn say(&mut self, from: Node, to: Node, message: Message) {
        let mut messages = vec![message];
        if let Some(meddler) = &mut self.meddler {
            meddler(Passing::Messages { from, to, messages: &mut messages });
        }
        for message in messages {
            let message = over_the_wire(&message);
            self.arrive((from, to), Happening::Message { from, to, message });
        }
    }

    /// Lets something happen at the end of a lane, after all that was put on it before.
    fn arrive(&mut self, lane: (Node, Node), happening: Happening) {
        let at = self.wire.arrival(lane, self.now + self.random.delay());
        self.queue.put(at, happening);
    }

    fn hear(&mut self, from: Node, to: Node, message: Message) -> Result<(), Violation> {
        if !ROUTINE.contains(&message.name()) {
            self.note(format_args!("{to:?} hears {} of {from:?}", message.name()));
        }
        match (from, to) {
            (_, Node::Operator) => self.told(message),
            (_, Node::Coordinator) => {
                self.coordinate(coordination::Input::Message { from: from.link(), message });
                Ok(())
            }
            (Node::Worker(sender), Node::Worker(place)) => {
                let from = self.workers[sender].id();
                self.feed(place, Input::Peer { from, message })
            }
            (_, Node::Worker(place)) => self.feed(place, Input::Coordinator(message)),
        }
    }

    // Small words.

    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.note(self.now, what);
    }

    fn observe(&mut self, seen: Observation<'_>) -> Result<(), Violation> {
        if let Observation::Refused(_) = seen {
            self.refused += 1;
        }
        self.checks.observe(self.now, seen)
    }
}

impl Node {
    /// The coordinator's number for its link to this node.
    fn link(self) -> coordination::LinkId {
        coordination::LinkId(match self {
            Self::Coordinator => u64::MAX,
            Self::Operator => 0,
            Self::Worker(place) => place as u64 + 1,
        })
    }

    fn at(link: coordination::LinkId) -> Self {
        link.0.checked_sub(1).map_or(Self::Operator, |place| Self::Worker(place as usize))
    }
}

/// A message as its receiver decodes it.
fn over_the_wire(message: &Message) -> Message {
    codec::decode(&codec::encode(message)).expect("what a core says can be said")
}
