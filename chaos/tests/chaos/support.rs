//! The one fixture: a run, a number of workers, a schedule.

use std::sync::Arc;
use std::time::Duration;

use everstep_chaos::check::RunHistory;
use everstep_chaos::simulate::coordinators;
use everstep_chaos::toy;
use everstep_chaos::world::{Failure, Finished, InFlight, Prepare, Scenario, World};
use everstep_transport::protocol::RunSpec;
use everstep_worker::registry::Registry;

/// A seed by which each parameter shard has one owner.
pub const OF_ONE_COPY: u64 = 3;
/// A seed by which each parameter shard has more than one owner.
pub const OF_COPIES: u64 = 1;
/// A seed by which each parameter shard has three owners, and one worker is enough to go on.
pub const OF_THREE_COPIES: u64 = 5;

/// Far more virtual time than any toy run needs.
pub const VIRTUAL_TIME_LIMIT: Duration = Duration::from_secs(30);

/// Power-of-two counts and others, alone and more than there are data shards.
pub const WORKERS: [u32; 6] = [1, 2, 3, 4, 5, 8];

/// A run to simulate again and again.
#[derive(Clone)]
pub struct Toy {
    pub run: RunSpec,
    pub registry: Arc<Registry>,
    pub reference: Option<Arc<RunHistory>>,
}

impl Toy {
    /// `toy::run()` with what `change` changes.
    pub fn new(change: impl FnOnce(&mut RunSpec)) -> Self {
        let mut run = toy::run();
        change(&mut run);
        Self { run, registry: Arc::new(toy::registry()), reference: None }
    }

    /// Compares every later run with one of a single worker. Returns the run of that worker.
    pub fn with_reference(mut self) -> (Self, Finished) {
        let alone = self.complete(1, 0);
        self.reference = Some(Arc::new(alone.run_history.clone()));
        (self, alone)
    }

    pub fn copies(&self, copies: u32) -> Self {
        let run = RunSpec { copies, ..self.run.clone() };
        Self { run, ..self.clone() }
    }

    pub fn world(&self, workers: u32, seed: u64) -> World {
        let Self { run, registry, reference } = self.clone();
        let prepare = Prepare::default();
        let coordinators = coordinators(seed);
        let exits = everstep_chaos::world::Exits::default();
        let scenario =
            Scenario { run, registry, workers, coordinators, seed, exits, reference, prepare };
        World::new(scenario).expect("the toy is there")
    }

    /// Runs to the end. On a failure, panics with the events before it.
    pub fn complete(&self, workers: u32, seed: u64) -> Finished {
        let mut world = self.world(workers, seed);
        let finished = world.run(VIRTUAL_TIME_LIMIT);
        finished.unwrap_or_else(|failure| {
            let mut again = self.world(workers, seed);
            again.record();
            let _ = again.run(VIRTUAL_TIME_LIMIT); // the same, in words
            let trace: Vec<&str> = again.trace().lines().rev().take(100).collect();
            panic!("{workers} workers, seed {seed}: {failure}\n{}", trace.join("\n"))
        })
    }

    /// Runs with an interceptor.
    pub fn intercepted(
        &self,
        workers: u32,
        interceptor: impl FnMut(InFlight<'_>) + 'static,
    ) -> Result<Finished, Failure> {
        let mut world = self.world(workers, 7);
        world.intercept(interceptor);
        world.run(VIRTUAL_TIME_LIMIT)
    }
}
