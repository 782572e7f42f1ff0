//! A small cluster, simulated seed by seed.
//!
//! The caller gives a [`Simulation`]: how many workers, for how long, with which faults. For each
//! seed it returns what the cluster has endured, or the first broken promise, with the faults that
//! it takes. Equal seeds give equal results, on any thread of any machine of one kind.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use everstep_transport::protocol::run::Precision;
use everstep_transport::protocol::{CheckpointSpec, OnFailure, RunSpec};
use everstep_worker::registry::Registry;

use crate::check::RunHistory;
use crate::fault::{Rates, Schedule};
use crate::random::mix;
use crate::shrink::shrink;
use crate::toy;
use crate::world::{Endured, Exits, Failure, Prepare, Scenario, World};

/// A simulation without its seed.
#[derive(Clone, Debug)]
pub struct Simulation {
    /// The references in f32, and in fp16.
    references: [Reference; 2],
    registry: Arc<Registry>,
    workers: u32,
    /// None: the seed decides.
    coordinators: Option<u32>,
    /// None: the seed decides.
    precision: Option<Precision>,
    span: Duration,
    rates: Rates,
    prepare: Prepare,
}

/// A run, and its results on one worker without a fault.
#[derive(Clone, Debug)]
struct Reference {
    run: RunSpec,
    run_history: Arc<RunHistory>,
    state_hash: [u8; 32],
}

/// What came of the simulation of one seed.
#[derive(Clone, Debug)]
pub struct Simulated {
    /// The results of the run, or the promise that did not hold.
    pub result: Result<Endured, Failure>,
    /// Equal for equal histories. See [`crate::trace::Trace`].
    pub digest: u64,
    /// How many events there were.
    pub events: u64,
    /// A line for each event, if the caller asked for lines.
    pub lines: Vec<String>,
}

/// Far more virtual time than the run needs without faults.
const FAULTLESS_TIME_LIMIT: Duration = Duration::from_secs(3_600);
/// A second cluster begins this long after the first one, and up to twice as long, milliseconds.
const CONTENDED_AFTER_MS: u64 = 2_000;
/// Far more virtual time than two clusters need.
const CONTENTION_TIME_LIMIT: Duration = Duration::from_secs(300);
/// A seed's run has from 1 to this many owners of each parameter shard.
const MOST_COPIES: u64 = 3;
/// A run waits below 1 to this many members, or below the number of workers at first.
const MOST_WANTED: u64 = 3;
/// Sets the draw of the coordinators apart from others of the same seed.
const COORDINATORS: u64 = 0xC00D;
/// Sets the draw of the precision apart from others of the same seed.
const PRECISION: u64 = 0xF16;
/// Sets the draw of the [`Exits`] apart from others of the same seed.
const EXITS: u64 = 0xE817;
/// One seed of this many trains in fp16.
const SCALED: u64 = 4;
/// Sets the draw of the checkpoints apart from others of the same seed.
const CHECKPOINTS: u64 = 0xC4EC;
/// One seed of this many writes no checkpoints.
const UNSAVED: u64 = 3;
/// The most simulations of a search for fewer faults.
const SHRINKING: usize = 200;

impl Simulation {
    /// The toy run on `workers` workers, with faults at `rates` for `span`.
    ///
    /// # Errors
    /// When the run fails without any fault.
    pub fn new(workers: u32, span: Duration, rates: Rates) -> Result<Self, Failure> {
        Self::of(toy::long_run(), workers, span, rates)
    }

    /// As [`Simulation::new`] with this run, in f32 and in fp16.
    ///
    /// # Errors
    /// When the run fails without any fault.
    pub fn of(run: RunSpec, workers: u32, span: Duration, rates: Rates) -> Result<Self, Failure> {
        let registry = Arc::new(toy::registry());
        let mut scaled = run.clone();
        scaled.model.precision = Precision::F16;
        let references = [Reference::of(run, &registry)?, Reference::of(scaled, &registry)?];
        let (coordinators, precision, prepare) = (None, None, Prepare::default());
        Ok(Self { references, registry, workers, coordinators, precision, span, rates, prepare })
    }

    /// The same with prepared cores and devices. The reference has no such change.
    pub fn prepared(self, prepare: Prepare) -> Self {
        Self { prepare, ..self }
    }

    /// The same with this many coordinators for every seed.
    pub fn coordinated(self, coordinators: u32) -> Self {
        Self { coordinators: Some(coordinators), ..self }
    }

    /// The same in this precision for every seed: f32 or fp16.
    pub fn precise(self, precision: Precision) -> Self {
        Self { precision: Some(precision), ..self }
    }

    /// The faults of a seed.
    pub fn schedule(&self, seed: u64) -> Schedule {
        let coordinators = self.coordinators.unwrap_or_else(|| coordinators(seed));
        Schedule::draw(seed, self.span, self.workers, coordinators, &self.rates)
    }

    /// Simulates a seed with its faults.
    pub fn simulate(&self, seed: u64) -> Simulated {
        self.simulate_with(seed, &self.schedule(seed), false)
    }

    /// Simulates a seed with these faults instead of its own.
    pub fn endure(&self, seed: u64, schedule: &Schedule) -> Simulated {
        self.simulate_with(seed, schedule, false)
    }

    /// Simulates a seed with its faults, and records a line for every event.
    pub fn record(&self, seed: u64) -> Simulated {
        self.simulate_with(seed, &self.schedule(seed), true)
    }

    /// Lets a second cluster go on with the run of a seed from its store, or begin it `anew` in the
    /// same directory, while the first one lives on. No other fault happens. Both must end with the
    /// reference's bits. Returns false if the store had no checkpoint to go on from.
    ///
    /// # Errors
    /// [`Failure`] of the cluster that has one.
    pub fn contend(&self, seed: u64, anew: bool) -> Result<bool, Failure> {
        let mut first = self.world(seed)?;
        let before = Duration::from_millis(CONTENDED_AFTER_MS + mix(seed) % CONTENDED_AFTER_MS);
        first.run_for(before)?;
        let Some(mut second) = first.successor(anew)? else { return Ok(false) };
        let done = World::contend(&mut first, &mut second, CONTENTION_TIME_LIMIT)?;
        let expected = self.reference(seed).state_hash;
        match done.iter().all(|finished| finished.state_hash == expected) {
            true => Ok(true),
            false => Err(Failure::Run("a cluster ends with other bits".into())),
        }
    }

    /// Fewer of a failing seed's faults that still break the same promise. The search takes bounded
    /// time.
    pub fn shrink(&self, seed: u64, failure: &Failure) -> Schedule {
        let fails_alike = |faults: &[_]| {
            let met = self.simulate_with(seed, &Schedule(faults.to_vec()), false).result;
            met.is_err_and(|other| other.invariant() == failure.invariant())
        };
        Schedule(shrink(self.schedule(seed).0, SHRINKING, fails_alike))
    }

    fn simulate_with(&self, seed: u64, schedule: &Schedule, record: bool) -> Simulated {
        let mut world = match self.world(seed) {
            Ok(world) => world,
            Err(failure) => {
                return Simulated { result: Err(failure), digest: 0, events: 0, lines: vec![] };
            }
        };
        if record {
            world.record();
        }
        // A core that stops at an assertion is a finding like any other.
        let expected = self.reference(seed).state_hash;
        let endured =
            catch_unwind(AssertUnwindSafe(|| world.endure(schedule, self.span, expected)));
        let result = endured.unwrap_or_else(|panic| Err(Failure::Assertion(words(&*panic))));
        let trace = world.trace();
        let (digest, events) = (trace.digest(), trace.events());
        Simulated { result, digest, events, lines: trace.lines().map(str::to_string).collect() }
    }

    fn reference(&self, seed: u64) -> &Reference {
        let drawn = mix(seed ^ PRECISION).is_multiple_of(SCALED);
        let scaled = self.precision.map_or(drawn, |precision| precision == Precision::F16);
        &self.references[usize::from(scaled)]
    }

    fn world(&self, seed: u64) -> Result<World, Failure> {
        // The assignment of owners makes no difference to the bits: the reference is the same.
        let copies = 1 + (mix(seed) % MOST_COPIES) as u32;
        let wanted = 1 + (mix(mix(seed)) % MOST_WANTED) as u32;
        let min_workers = wanted.min(self.workers);
        let Reference { run, run_history, .. } = self.reference(seed);
        let scenario = Scenario {
            run: RunSpec { copies, min_workers, checkpoint: checkpoint(seed), ..run.clone() },
            registry: self.registry.clone(),
            workers: self.workers,
            coordinators: self.coordinators.unwrap_or_else(|| coordinators(seed)),
            seed,
            exits: exits(seed),
            reference: Some(run_history.clone()),
            prepare: self.prepare,
        };
        World::new(scenario).map_err(|error| Failure::Run(error.to_string()))
    }
}

impl Reference {
    fn of(run: RunSpec, registry: &Arc<Registry>) -> Result<Self, Failure> {
        let alone = Scenario {
            run: run.clone(),
            registry: registry.clone(),
            workers: 1,
            coordinators: 1,
            seed: 0,
            exits: Exits::Reported,
            reference: None,
            prepare: Prepare::default(),
        };
        let mut world = World::new(alone).map_err(|error| Failure::Run(error.to_string()))?;
        let finished = world.run(FAULTLESS_TIME_LIMIT)?;
        let (run_history, state_hash) = (Arc::new(finished.run_history), finished.state_hash);
        Ok(Self { run, run_history, state_hash })
    }
}

/// A seed's cluster has one coordinator, or in two seeds of three more: mostly three, and five for
/// one such seed in eight.
pub fn coordinators(seed: u64) -> u32 {
    let drawn = mix(seed ^ COORDINATORS);
    match (drawn % 3, drawn / 3 % 8) {
        (0, _) => 1,
        (_, 0) => 5,
        _ => 3,
    }
}

/// A seed's checkpoints: two in three seeds have some, every two to five steps.
fn checkpoint(seed: u64) -> Option<CheckpointSpec> {
    let drawn = mix(seed ^ CHECKPOINTS);
    let (every, keep) = (2 + drawn / UNSAVED % 4, 1 + drawn / 64 % 3);
    let (path, on_failure) = ("/store".into(), OnFailure::Continue);
    let spec = CheckpointSpec { path, every, keep, keep_every: 0, on_failure };
    (!drawn.is_multiple_of(UNSAVED)).then_some(spec)
}

/// How the coordinators of a seed learn of the ends of processes.
fn exits(seed: u64) -> Exits {
    match mix(seed ^ EXITS) % 4 {
        0 => Exits::GivenUp,
        1 => Exits::RolledBack,
        _ => Exits::Reported,
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref().cloned()).unwrap_or_else(|| "a panic".into())
}
