//! A cluster that endures a schedule of faults. None of them ends its run; whenever the run is
//! complete, another is started from the beginning.
//!
//! Until the schedule's end anything may happen, but nothing wrong may be computed and nothing may
//! hang. After it nothing goes wrong any more, and the run must become complete.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::Step;
use everstep_transport::protocol::outcome::{Outcome, WorkerResult};
use everstep_transport::time::Time;

use super::course::Tally;
use super::types::{Failure, Happening};
use super::{Node, World};
use crate::check::{Invariant, Violation};
use crate::fault::Schedule;

/// So long after a fault a run goes on, if enough workers live: a second for an election, a link's
/// idle time-out (3 s), a second until all are linked again, 20 s in which workers that fell silent
/// together are waited for, 10 s until a run gives up an owner that has ended unnoticed, 2 s in
/// which all answer a Pause, by clocks that are a tenth slow; and a second for a step.
pub const STANDSTILL: Duration = Duration::from_millis(42_000);
/// So long after the last fault a run is complete: it has gone on, perhaps from the beginning.
pub const RECOVERY: Duration = Duration::from_secs(75);
/// So soon a cluster that has ended is started again.
const RESTART: Duration = Duration::from_millis(200);

/// What a cluster has endured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endured {
    /// How often each kind of fault has happened.
    pub faults: BTreeMap<&'static str, u64>,
    /// Runs that became complete, all with the reference's hash.
    pub completed: u64,
    /// Runs that failed: only for memory that was changed, if that broke the history or the last
    /// worker.
    pub failed: u64,
    /// Steps that were committed, over all runs.
    pub steps: u64,
    /// How often members have changed.
    pub changes: Tally,
    /// The longest time in which a run that could go on did not.
    pub longest: Duration,
    /// The longest time from a Pause to its record.
    pub longest_change: Duration,
    /// How many elements of sums, gradients and parameters came to members for each step of the
    /// last run, those of aborted tries included; nothing that is learned or resumed with.
    pub elements: BTreeMap<Step, u64>,
    /// From the last fault to the end.
    pub recovery: Duration,
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
        while self.advance(self.calm + RECOVERY)? {
            let idle = self.course.standstill(self.now).ok_or_else(|| self.stuck(STANDSTILL))?;
            endured.longest = endured.longest.max(idle);
            let Some(complete) = self.verdict(state_hash)? else { continue };
            endured.steps += self.checks.steps();
            endured.completed += u64::from(complete);
            endured.failed += u64::from(!complete);
            endured.longest_change = endured.longest_change.max(self.checks.longest_change());
            (endured.at, endured.changes) = (self.now, self.course.tally);
            endured.elements = self.wire.elements().clone();
            endured.recovery = self.now.since(self.calm);
            if complete && self.now >= self.calm {
                return Ok(endured);
            }
            self.start_over()?;
        }
        Err(self.stuck(RECOVERY))
    }

    /// Whether the run is over, and if it is, whether it is complete; both only as they should be.
    fn verdict(&self, state_hash: [u8; 32]) -> Result<Option<bool>, Violation> {
        match self.operator.outcome() {
            Outcome::Running => Ok(None),
            Outcome::Complete(_) if !self.all_gone() => Ok(None),
            Outcome::Complete(results) => {
                self.compare(results.clone(), state_hash)?;
                Ok(Some(true))
            }
            Outcome::Failed { reason, .. } if self.course.may_fail(reason) => Ok(Some(false)),
            Outcome::Failed { reason, .. } => {
                let seen = format!("the run failed, and no fault explains it: {reason}");
                Err(Violation { invariant: Invariant::I8, at: self.now, seen })
            }
        }
    }

    /// The cluster's processes are ended, and others started from the beginning.
    fn start_over(&mut self) -> Result<(), Violation> {
        self.note(format_args!("the cluster is started again"));
        self.queue.retain(Happening::is_fate);
        self.now = self.now + RESTART;
        self.begin()
    }

    /// Whether every worker has ended, but for who was cut off or stands still: it will be told
    /// when it reaches whoever leads again.
    fn all_gone(&self) -> bool {
        let Some(leader) = self.leader().map(Node::Coordinator) else { return false };
        let cut_off = |node: Node| !self.links.is_open(node, leader);
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
