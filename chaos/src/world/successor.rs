//! A cluster that goes on with a run from its store, as `everstep resume URL` does: after the one
//! before has ended, or while that one lives on.

use std::time::Duration;

use everstep_checkpoint::choose::{self, Wanted};
use everstep_checkpoint::claims::{self, Claim, Standing};
use everstep_checkpoint::history;
use everstep_checkpoint::manifest::MAX_MANIFEST_BYTES;
use everstep_checkpoint::names::ObjectName;
use everstep_checkpoint::origin;
use everstep_checkpoint::store::Store;
use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::protocol::{MetricsLine, RunOrigin};

use super::checkers::Checkers;
use super::endure::CLUSTER_RESTART_DELAY;
use super::network::Network;
use super::operator::SimOperator;
use super::queue::Queue;
use super::store::SimStore;
use super::types::{Event, Failure, Finished};
use super::workers::Workers;
use super::{ActiveFaults, World};
use crate::check::Violation;
use crate::random::{Random, mix};
use crate::trace::Trace;

/// Sets the draws of a second cluster apart from those of the first.
const SUCCESSOR: u64 = 0x5ECC;

/// What a new cluster finds in the store of a run that another one has begun.
pub(super) struct Continuation {
    /// The checkpoints, and the generations that the store names.
    pub(super) origin: RunOrigin,
    /// The lines of the steps up to the checkpoint from which the run goes on.
    pub(super) lines: Vec<MetricsLine>,
}

impl SimStore {
    /// Claims the store for its cluster, and reads where the run goes on. None if the store has no
    /// checkpoint that is usable by its listing.
    fn go_on(&self) -> Option<Continuation> {
        let store = self.open(None).ok()?;
        let before = choose::newest(&store, Wanted::default()).ok()?.manifest?;
        let (nonce, cluster) = (self.cluster.nonce.clone(), self.cluster.words.clone());
        let claim = Claim { run: before.run, nonce, cluster };
        let standing = claims::hold(&store, &store.list_claims().ok()?, &claim, None);
        assert!(matches!(standing, Ok(Standing::Holds(_))), "a new cluster takes the next claim");
        // What was read before the claim may be gone by now: the earlier cluster may live.
        let listing = store.list().ok()?;
        let manifest = choose::newest(&store, Wanted::default()).ok()?.manifest?;
        let mut read = |step| store.read_whole(&ObjectName::Manifest(step), MAX_MANIFEST_BYTES);
        let origin = origin::of(&listing, &manifest, true, &mut read).ok()??;
        origin::make_durable(&store, &listing, &origin).ok()?;
        let id = origin.checkpoints.last()?.id();
        let lines = history::lines(&store, &listing, id, &mut |_| {}).ok()?;
        Some(Continuation { origin, lines })
    }
}

impl World {
    /// All processes end, and the disks of all coordinators are lost. Another cluster goes on from
    /// the store. Nothing happens if the store has no checkpoint yet, or the run is over.
    pub(super) fn lose_cluster(&mut self) -> Result<(), Violation> {
        self.store.files.cut_after(None);
        let runs = *self.operator.outcome() == Outcome::Running;
        let number = 2 + self.checkers.liveness.tally.continued;
        let another = self.store.of_another_cluster(self.scenario.seed, number);
        let Some(found) = runs.then(|| another.go_on()).flatten() else { return Ok(()) };
        self.note(format_args!("the cluster is lost: another one goes on from the store"));
        self.checkers.liveness.tally.continued += 1;
        self.queue.retain(Event::is_fate);
        self.now = self.now + CLUSTER_RESTART_DELAY;
        self.store = another;
        self.begin(Some(found))
    }

    /// A second cluster with the same run and the same store, while this one lives on. It goes on
    /// from the store. With `anew` it begins the run from the first step, in the same directory.
    /// None if it is to go on, and the store has no checkpoint yet.
    ///
    /// # Errors
    /// When coordinators that have done nothing yet break a promise.
    pub fn successor(&self, anew: bool) -> Result<Option<Self>, Violation> {
        let mut scenario = self.scenario.clone();
        scenario.seed = mix(scenario.seed ^ SUCCESSOR);
        let store = self.store.of_another_cluster(scenario.seed, 2);
        let found = match anew {
            true => None,
            false => match store.go_on() {
                None => return Ok(None),
                found => found,
            },
        };
        let run = &scenario.run;
        let mut second = Self {
            now: self.now,
            random: Random::new(scenario.seed),
            queue: Queue::new(),
            network: Network::default(),
            coordinators: Vec::new(),
            operator: SimOperator::default(),
            clients: Vec::new(),
            workers: Workers::default(),
            store,
            faults: ActiveFaults::new(),
            checkers: Checkers::new(run, self.checkers.samples(), scenario.reference.clone()),
            trace: Trace::default(),
            scenario,
        };
        second.checkers.invariants.follow(&self.checkers.invariants);
        second.begin(found)?;
        Ok(Some(second))
    }

    /// Lets two clusters with one store run until both are done, each within its limit of virtual
    /// time.
    ///
    /// # Errors
    /// [`Failure`] of the first cluster that has one.
    pub fn contend(
        first: &mut Self,
        second: &mut Self,
        limit: Duration,
    ) -> Result<[Finished; 2], Failure> {
        let end = first.now + limit;
        let mut done = [None, None];
        while done.iter().any(Option::is_none) {
            let times = [first.queue.next_at(), second.queue.next_at()];
            let is_first = match (&done, times) {
                ([None, Some(_)], _) => true,
                ([None, None], [Some(one), other]) => other.is_none_or(|other| one <= other),
                _ => false,
            };
            let world = if is_first { &mut *first } else { &mut *second };
            if !world.advance(end)? {
                return Err(world.stuck(limit));
            }
            match world.operator.outcome() {
                Outcome::Failed { reason, .. } => return Err(Failure::Run(reason.to_string())),
                Outcome::Complete(results) if world.workers.have_ended() => {
                    done[usize::from(!is_first)] = Some(world.finish(results.clone())?);
                }
                Outcome::Running | Outcome::Complete(_) => {}
            }
        }
        Ok(done.map(|finished| finished.expect("both are done")))
    }

    /// Handles the events of so much virtual time.
    ///
    /// # Errors
    /// [`Failure`]. The [`World::trace`] shows the events before it.
    pub fn run_for(&mut self, span: Duration) -> Result<(), Failure> {
        let end = self.now + span;
        while self.queue.next_at().is_some_and(|at| at <= end) {
            self.advance(end)?;
        }
        Ok(())
    }
}
