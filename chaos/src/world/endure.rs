//! A cluster that endures a schedule of faults: whenever its run has failed, somebody starts it
//! again from the beginning, as a user would.
//!
//! Until the schedule's end anything may happen, but nothing wrong may be computed and nothing may
//! hang. After it nothing goes wrong any more, and the run must become complete.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::outcome::{Outcome, WorkerResult};
use everstep_transport::time::Time;

use super::types::{Failure, Happening};
use super::{Node, World};
use crate::check::{Invariant, Violation};
use crate::fault::Schedule;

/// So long after a fault, or after the last progress, the run has failed or goes on: an idle
/// time-out (3 s), then the coordinator's patience (2.5 s), by clocks that are a tenth slow.
pub const DECLARED: Duration = Duration::from_millis(6_500);
/// So long after the last fault a run is complete: what was doomed is declared, and one is trained
/// from the beginning.
pub const RECOVERY: Duration = Duration::from_secs(40);
/// So long the operator waits for a first generation.
const START: Duration = Duration::from_secs(10);
/// So soon a cluster that has ended is started again.
const RESTART: Duration = Duration::from_millis(200);

/// What a cluster has endured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endured {
    /// How often each kind of fault has happened.
    pub faults: BTreeMap<&'static str, u64>,
    /// Runs that became complete, all with the reference's hash.
    pub completed: u64,
    /// Runs that failed, each for a fault's sake.
    pub failed: u64,
    /// Steps that were committed, over all runs.
    pub steps: u64,
    /// The longest time from a fault to the end of its run, or to the next progress.
    pub longest: Duration,
    /// The virtual time of the end.
    pub at: Time,
}

impl World {
    /// Lets the faults of `schedule` happen until `end`, then waits for a complete run.
    ///
    /// # Errors
    /// [`Failure`]; the [`World::trace`] says what came before.
    ///
    /// # Panics
    /// Where a core meets a broken invariant itself.
    pub fn endure(
        &mut self,
        schedule: &Schedule,
        end: Duration,
        state_hash: [u8; 32],
    ) -> Result<Endured, Failure> {
        let mut endured = Endured::default();
        for (at, fault) in &schedule.0 {
            *endured.faults.entry(fault.kind()).or_default() += 1;
            self.queue.put(*at, Happening::Fault(Box::new(fault.clone())));
        }
        self.calm = Time(0) + end;
        self.queue.put(self.calm, Happening::Calm);
        self.course.judge();
        let mut began = Time(0);
        while self.advance(self.calm + RECOVERY)? {
            if self.coordinator.has_begun() {
                endured.longest = endured.longest.max(self.standstill()?);
            } else if self.now.since(began) > START {
                self.operator.give_up("the run did not begin".into());
            }
            let Some(complete) = self.verdict(began, state_hash)? else { continue };
            endured.steps += self.checks.committed().0;
            endured.completed += u64::from(complete);
            endured.failed += u64::from(!complete);
            endured.at = self.now;
            if complete && self.now >= self.calm {
                return Ok(endured);
            }
            self.start_over();
            began = self.now;
        }
        Err(self.stuck(RECOVERY))
    }

    /// How long nothing has gone on, nor gone wrong: not too long.
    fn standstill(&self) -> Result<Duration, Failure> {
        let idle = self.now.since(self.course.quiet_since());
        if idle > DECLARED { Err(self.stuck(DECLARED)) } else { Ok(idle) }
    }

    /// Whether the run is over, and if it is, whether it is complete; both only as they should be.
    fn verdict(&self, began: Time, state_hash: [u8; 32]) -> Result<Option<bool>, Violation> {
        match self.operator.outcome() {
            Outcome::Running => Ok(None),
            Outcome::Complete(_) if !self.all_gone() => Ok(None),
            Outcome::Complete(results) => {
                self.compare(results.clone(), state_hash)?;
                Ok(Some(true))
            }
            Outcome::Failed { reason, .. } => {
                if self.coordinator.has_begun() {
                    self.course.judge_failure(self.now, reason)?;
                } else {
                    self.course.judge_start(self.now, began)?;
                }
                Ok(Some(false))
            }
        }
    }

    /// The cluster's processes are ended, and others started from the beginning.
    fn start_over(&mut self) {
        self.note(format_args!("the cluster is started again"));
        self.queue.retain(Happening::is_fate);
        self.now = self.now + RESTART;
        self.course.progress(self.now);
        self.begin();
    }

    /// Whether every worker has ended, but for who was cut off or stands still: it learns by the
    /// silence that it is alone.
    fn all_gone(&self) -> bool {
        let cut_off = |node: Node| !self.links.is_open(node, Node::Coordinator);
        let mut places = (0..self.workers.len()).map(Node::Worker);
        let waited_for = |node: Node| !cut_off(node) && !self.paused.contains_key(&node);
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
