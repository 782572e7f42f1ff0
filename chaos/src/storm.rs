//! Thousands of workers as events only: the coordinator's core of production under a storm.
//!
//! The caller gives a [`StormScenario`]. It gets a [`StormReport`] (how long the run took in
//! virtual time, how many messages there were, how long queues were), or the first
//! [`BrokenPromise`]. A simulated worker registers, sends heartbeats, promises, catches up and
//! finishes as a real one does, but computes nothing, and steps have no contents. The simulation
//! encodes messages only to measure the largest ones. The same scenario gives the same digest of
//! all events.
//!
//! The coordinator takes its inputs one by one, each for [`StormScenario::service`] of virtual
//! time, so that a storm makes a queue. The caller measures its real cost: only the function given
//! to [`StormSim::run`] touches the core.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod checks;
mod coordinator;
mod operator;
mod training;
mod worker;

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_coordinator::core::{CORE_TICK, Core, CoreInput, LinkId, ShellInput};
use everstep_coordinator::state::FOUNDER;
use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::protocol::{Message, RunSpec};
use everstep_transport::time::Time;

use crate::random::Random;
use crate::toy;
pub use checks::BrokenPromise;
use checks::StormChecks;
use coordinator::{StormCoordinator, TERM};
use operator::StormOperator;
use training::Training;
use worker::{StormFault, StormWorker};

/// A run to simulate.
#[derive(Clone, Copy, Debug)]
pub struct StormScenario {
    /// The seed of all random times.
    pub seed: u64,
    /// How many workers there are. The run starts with all of them. At most 65,536.
    pub workers: u32,
    /// All workers connect for the first time within this time.
    pub storm: Duration,
    /// How many workers fall silent after registration, until the coordinator says that they are
    /// lost. Then they begin anew.
    pub silent: u32,
    /// How many workers lose their link once while the others join, and come again.
    pub cut: u32,
    /// How many members end, within half of the training's time.
    pub killed: u32,
    /// Virtual time that the coordinator takes for one input.
    pub service: Duration,
    /// Steps of the run.
    pub steps: u64,
    /// How long all steps take together.
    pub training: Duration,
}

impl StormScenario {
    /// All workers join within a second, none fails, and training takes two seconds.
    pub fn storm(seed: u64, workers: u32) -> Self {
        Self {
            seed,
            workers,
            storm: Duration::from_secs(1),
            silent: 0,
            cut: 0,
            killed: 0,
            service: Duration::from_micros(5),
            steps: 20,
            training: Duration::from_secs(2),
        }
    }
}

/// The measurements of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StormReport {
    /// When the last member had heard of the generation.
    pub announced_at: Time,
    /// When the last worker was killed.
    pub killed_at: Time,
    /// When the first member heard of a generation after that.
    pub mended_at: Time,
    /// When all workers had been dismissed.
    pub finished_at: Time,
    /// The number of generations that began.
    pub generations: u64,
    /// Inputs that the coordinator took.
    pub inputs: u64,
    /// How many of the inputs were heartbeats.
    pub heartbeats: u64,
    /// Entries that it proposed for the log.
    pub entries: u64,
    /// How many of them it had proposed by [`Self::announced_at`].
    pub entries_of_joins: u64,
    /// Messages that the coordinator sent.
    pub sent: u64,
    /// Workers that were lost, and came again.
    pub lost: u64,
    /// The most inputs that waited for the coordinator. Each takes `size_of::<CoreInput>()` bytes,
    /// and the memory that it points to.
    pub longest_queue: u64,
    /// The most events that were to come: messages on their way, and timers.
    pub most_to_come: u64,
    /// The most effects of one input.
    pub most_effects: u64,
    /// The generation's record as a message, bytes.
    pub record_bytes: u64,
    /// The largest answer to the operator, bytes.
    pub update_bytes: u64,
    /// All answers to the operator together, bytes.
    pub told_bytes: u64,
    /// BLAKE3 of all events, in order: equal for equal histories.
    pub digest: [u8; 32],
}

/// A run that did not become complete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StormFailure {
    /// A promise did not hold.
    #[error(transparent)]
    Broken(#[from] BrokenPromise),
    /// The coordinator says that the run has failed, or refuses a worker.
    #[error("the run failed: {0}")]
    Run(String),
    /// It was not complete in time (I11).
    #[error("not complete after {limit:?}: {present} workers are present")]
    Stuck {
        /// The virtual time that the scenario may take.
        limit: Duration,
        /// Workers that are registered and send heartbeats.
        present: usize,
    },
}

/// An event to come.
#[derive(Debug)]
enum StormEvent {
    /// An event of a worker, by its place. It is void if the worker has a newer link.
    Worker(usize, LinkId, worker::WorkerEvent),
    Connect(usize),
    /// An input reaches the coordinator's queue.
    Arrive(CoreInput),
    /// The coordinator takes the oldest input.
    Serve,
    /// The coordinator's shell tells it the time.
    Tick,
    /// The operator asks for news.
    Watch,
    /// The operator takes a message.
    Told(Message),
}

/// A direction of a control lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StormLane {
    /// From a peer to the coordinator.
    Up(LinkId),
    /// From the coordinator to a peer.
    Down(LinkId),
    /// The log: from the coordinator to itself.
    Log,
}

/// The operator's link. The workers' links have higher numbers.
const OPERATOR: LinkId = LinkId(0);

/// A storm of joins: one core, and workers that are events.
pub struct StormSim {
    scenario: StormScenario,
    now: Time,
    random: Random,
    /// Events by time. Those of one moment come in the order in which they were put in.
    to_come: BTreeMap<(Time, u64), StormEvent>,
    /// When the newest message of a lane arrives. The next ones come later.
    lanes: BTreeMap<StormLane, Time>,
    sequence: u64,
    coordinator: StormCoordinator,
    operator: StormOperator,
    workers: Vec<StormWorker>,
    /// The worker's place behind each link, by the link's number. Zero for the operator's link.
    places: Vec<usize>,
    /// Faulty workers that have not yet come again. The last worker waits for them, so that the run
    /// cannot start without them.
    to_come_again: u32,
    history: Training,
    /// Registrations so far. Each has another incarnation.
    incarnations: u64,
    checks: StormChecks,
    hasher: blake3::Hasher,
    report: StormReport,
}

impl StormSim {
    /// The storm of `scenario`, before anything has happened.
    ///
    /// # Panics
    /// When all workers are silent, cut or killed. The last one waits for the others, and must be
    /// sound.
    pub fn new(scenario: StormScenario) -> Self {
        let StormScenario { silent, cut, killed, .. } = scenario;
        let faulty = silent.saturating_add(cut);
        let sound = faulty.saturating_add(killed) < scenario.workers;
        assert!(sound, "one worker of {scenario:?} must be sound");
        let mut faults =
            [(StormFault::Silent, silent), (StormFault::Cut, cut), (StormFault::Killed, killed)]
                .into_iter()
                .flat_map(|(fault, count)| (0..count).map(move |_| fault));
        let workers: Vec<_> =
            (0..scenario.workers).map(|_| StormWorker::new(faults.next())).collect();
        let mut sim = Self {
            scenario,
            now: Time(0),
            random: Random::new(scenario.seed),
            to_come: BTreeMap::new(),
            lanes: BTreeMap::new(),
            sequence: 0,
            coordinator: StormCoordinator::new(),
            operator: StormOperator::default(),
            to_come_again: faulty,
            workers,
            places: vec![0],
            history: Training::new(scenario.steps, scenario.training),
            incarnations: 0,
            checks: StormChecks::default(),
            hasher: blake3::Hasher::new(),
            report: StormReport::default(),
        };
        sim.begin();
        sim
    }

    /// Handles events until the run is complete and all workers have been dismissed. `handle` gives
    /// the core an input: it is [`Core::handle`], or that with a stopwatch around it.
    ///
    /// # Errors
    /// [`StormFailure`].
    pub fn run(
        &mut self,
        limit: Duration,
        mut handle: impl FnMut(&mut Core, Time, CoreInput),
    ) -> Result<StormReport, StormFailure> {
        while let Some(((now, _), event)) = self.to_come.pop_first() {
            if now > Time(0) + limit {
                break;
            }
            self.now = now;
            self.on_event(event, &mut handle)?;
            if let Outcome::Failed { reason, .. } = self.operator.outcome() {
                return Err(StormFailure::Run(reason.to_string()));
            }
            if self.is_over() {
                self.checks.conclude(self.coordinator.events(), self.scenario.steps)?;
                let (finished_at, digest) = (self.now, *self.hasher.finalize().as_bytes());
                return Ok(StormReport { finished_at, digest, ..self.report });
            }
        }
        Err(StormFailure::Stuck { limit, present: self.checks.present() })
    }

    /// The run: a toy's, with as many data shards as workers.
    fn run_spec(&self) -> RunSpec {
        let mut run = toy::run();
        run.steps = self.scenario.steps;
        run.start_workers = self.scenario.workers;
        run.batch.data_shards = self.scenario.workers;
        run
    }

    fn is_over(&self) -> bool {
        matches!(self.operator.outcome(), Outcome::Complete(_))
            && self.workers.iter().all(StormWorker::is_gone)
    }

    // Events.

    fn begin(&mut self) {
        let elected = CoreInput::Elected { term: TERM, id: FOUNDER };
        self.put(self.now, StormEvent::Arrive(elected));
        self.put(self.now, StormEvent::Tick);
        self.connect_operator();
        let (storm, last) = (self.scenario.storm, self.workers.len() - 1);
        for place in 0..=last {
            let at = self.now + self.up_to(storm);
            if place != last || self.to_come_again == 0 {
                self.put(at, StormEvent::Connect(place));
            }
        }
    }

    fn on_event(
        &mut self,
        event: StormEvent,
        handle: &mut impl FnMut(&mut Core, Time, CoreInput),
    ) -> Result<(), StormFailure> {
        match event {
            StormEvent::Worker(place, link, event) => return self.work(place, link, event),
            StormEvent::Connect(place) => self.connect(place),
            StormEvent::Arrive(input) => self.arrive(input)?,
            StormEvent::Serve => self.serve(handle)?,
            StormEvent::Tick => {
                self.put(self.now + CORE_TICK, StormEvent::Tick);
                self.arrive(CoreInput::Tick)?;
            }
            StormEvent::Watch => self.watch(),
            StormEvent::Told(message) => return self.told(message),
        }
        let to_come = self.to_come.len() as u64;
        self.report.most_to_come = self.report.most_to_come.max(to_come);
        Ok(())
    }

    // Lanes and time.

    /// Sends a message of a peer to the coordinator.
    fn say(&mut self, from: LinkId, message: Message) {
        self.bring(
            StormLane::Up(from),
            StormEvent::Arrive(CoreInput::Shell(ShellInput::Message { from, message })),
        );
    }

    /// Sends an event of the coordinator to a worker. A message to many workers is shared.
    fn tell(&mut self, to: LinkId, event: worker::WorkerEvent) {
        let place = self.places[to.0 as usize];
        self.bring(StormLane::Down(to), StormEvent::Worker(place, to, event));
    }

    /// Schedules an event at the end of a lane, after all that was put on it before.
    fn bring(&mut self, lane: StormLane, event: StormEvent) {
        let earliest = self.lanes.get(&lane).copied().unwrap_or_default();
        let at = earliest.max(self.now + self.random.delay());
        self.lanes.insert(lane, at);
        self.put(at, event);
    }

    fn put(&mut self, at: Time, event: StormEvent) {
        self.sequence += 1;
        self.to_come.insert((at, self.sequence), event);
    }

    /// A random time shorter than `most`.
    fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.random.below((most.as_nanos() as u64).max(1)))
    }

    /// Adds an event to the digest: its name, and the number of the worker or link.
    fn note(&mut self, what: &str, whom: u64) {
        let Time(now) = self.now;
        self.hasher.update(&now.to_le_bytes()).update(what.as_bytes()).update(&whom.to_le_bytes());
    }
}
