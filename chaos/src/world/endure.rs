//! A cluster that endures a schedule of faults. No fault may end its run. When the run is complete,
//! the world starts another one from the beginning.
//!
//! Until the schedule's end the world inflicts faults, but no result may be wrong and no run may
//! hang. After it no fault happens any more, and the run must become complete.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::Step;
use everstep_transport::protocol::outcome::{Outcome, WorkerResult};
use everstep_transport::time::Time;

use super::liveness::Tally;
use super::store::SimStore;
use super::types::{Event, Failure};
use super::{NodeId, World};
use crate::check::{Invariant, Violation};
use crate::fault::Schedule;

/// The longest time without progress after a fault, if enough workers live. It allows a second for
/// an election, a link's idle time-out (3 s), a second until all are linked again, 20 s of waiting
/// for workers that fell silent together, 10 s until a run gives up an owner that has ended
/// unnoticed, 2 s in which all answer a Pause, all by clocks that are a tenth slow, and a second
/// for a step.
pub const MAX_STANDSTILL: Duration = Duration::from_millis(42_000);
/// A run must be complete this long after the last fault: it has gone on, perhaps from the
/// beginning.
pub const MAX_RECOVERY: Duration = Duration::from_secs(75);
/// How soon a cluster that has ended starts again.
pub(super) const CLUSTER_RESTART_DELAY: Duration = Duration::from_millis(200);

/// The results of a schedule of faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endured {
    /// How often each kind of fault has happened.
    pub faults: BTreeMap<&'static str, u64>,
    /// Runs that became complete, all with the reference's hash.
    pub completed: u64,
    /// Runs that failed. Only changed memory may cause that, if it broke the history or the last
    /// worker.
    pub failed: u64,
    /// Steps that members committed, over all runs.
    pub steps: u64,
    /// Counts of changes of members.
    pub changes: Tally,
    /// The longest time without progress of a run that could go on.
    pub longest: Duration,
    /// The longest time from a Pause to its record.
    pub longest_change: Duration,
    /// How many elements of sums, gradients and parameters came to members for each step of the
    /// last run. This includes aborted tries. It excludes elements for joiners and for a
    /// resumption.
    pub elements: BTreeMap<Step, u64>,
    /// The time from the last fault to the end.
    pub recovery: Duration,
    /// The virtual time of the end.
    pub at: Time,
}

impl World {
    /// Inflicts the faults of `schedule` until `end`, then waits for a complete run.
    ///
    /// # Errors
    /// [`Failure`]. The [`World::trace`] shows the events before it.
    ///
    /// # Panics
    /// When a core itself detects a broken invariant.
    pub fn endure(
        &mut self,
        schedule: &Schedule,
        end: Duration,
        state_hash: [u8; 32],
    ) -> Result<Endured, Failure> {
        let mut endured = Endured::default();
        for (at, fault) in &schedule.0 {
            *endured.faults.entry(fault.kind()).or_default() += 1;
            self.queue.put(*at, Event::Fault(Box::new(fault.clone())));
        }
        self.faults.end_at(Time(0) + end);
        self.queue.put(self.faults.end(), Event::Calm);
        self.checkers.liveness.judge();
        while self.advance(self.faults.end() + MAX_RECOVERY)? {
            let idle = self
                .checkers
                .liveness
                .standstill(self.now)
                .ok_or_else(|| self.stuck(MAX_STANDSTILL))?;
            endured.longest = endured.longest.max(idle);
            let Some(complete) = self.verdict(state_hash)? else { continue };
            endured.steps += self.checkers.invariants.steps();
            endured.completed += u64::from(complete);
            endured.failed += u64::from(!complete);
            endured.longest_change =
                endured.longest_change.max(self.checkers.invariants.longest_change());
            (endured.at, endured.changes) = (self.now, self.checkers.liveness.tally);
            endured.elements = self.network.wire.elements().clone();
            endured.recovery = self.now.since(self.faults.end());
            if complete && self.now >= self.faults.end() {
                return Ok(endured);
            }
            self.start_over()?;
        }
        Err(self.stuck(MAX_RECOVERY))
    }

    /// Whether the run is over, and then whether it is complete. It fails if the result is wrong,
    /// or if no fault explains the run's failure.
    fn verdict(&self, state_hash: [u8; 32]) -> Result<Option<bool>, Violation> {
        match self.operator.outcome() {
            Outcome::Running => Ok(None),
            Outcome::Complete(_) if !self.all_gone() => Ok(None),
            Outcome::Complete(results) => {
                self.compare(results.clone(), state_hash)?;
                Ok(Some(true))
            }
            Outcome::Failed { reason, .. }
                if self.checkers.liveness.may_fail(&reason.to_string()) =>
            {
                Ok(Some(false))
            }
            Outcome::Failed { reason, .. } => {
                let seen = format!("the run failed, and no fault explains it: {reason}");
                Err(Violation { invariant: Invariant::I8, at: self.now, seen })
            }
        }
    }

    /// Ends all processes of the cluster, and starts new ones from the beginning.
    fn start_over(&mut self) -> Result<(), Violation> {
        self.note(format_args!("the cluster is started again"));
        self.queue.retain(Event::is_fate);
        self.now = self.now + CLUSTER_RESTART_DELAY;
        self.store =
            SimStore::of(&self.scenario.run, self.scenario.seed, self.scenario.prepare.sync_flaws);
        self.begin(None)
    }

    /// Whether every worker has ended. A worker without a link to the leader, or one that stands
    /// still, does not count: the next leader that it reaches tells it.
    fn all_gone(&self) -> bool {
        let Some(leader) = self.leader().map(NodeId::Coordinator) else { return false };
        let cut_off = |node: NodeId| !self.network.links.is_open(node, leader);
        let mut places = (0..self.workers.len()).map(NodeId::Worker);
        let waited_for = |node: NodeId| !cut_off(node) && !self.faults.is_paused(node);
        places.all(|node| !self.is_alive(node) || !waited_for(node))
    }

    fn compare(&self, results: Vec<WorkerResult>, expected: [u8; 32]) -> Result<(), Violation> {
        let finished = self.finish(results)?;
        if finished.state_hash == expected {
            return Ok(());
        }
        let seen = "the run is complete with another hash than without faults".to_string();
        Err(Violation { invariant: Invariant::I3, at: self.now, seen })
    }
}
