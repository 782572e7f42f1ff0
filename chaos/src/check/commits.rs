//! I2, I5, and I3 and I19 as far as they are about when a member computes.

use std::collections::BTreeMap;
use std::sync::Arc;

use everstep_transport::protocol::{Commit, MetricsLine, Record, Step, WorkerId};

use super::{Chronicle, Found, Invariant, Verdict};

#[derive(Debug)]
pub(super) struct Commits {
    reference: Option<Arc<Chronicle>>,
    verdicts: BTreeMap<Step, Verdict>,
    /// Each member's last commit.
    last: BTreeMap<WorkerId, Step>,
    /// What each member takes for settled.
    settled: BTreeMap<WorkerId, Step>,
}

impl Commits {
    pub(super) fn new(reference: Option<Arc<Chronicle>>) -> Self {
        let (verdicts, last, settled) = Default::default();
        Self { reference, verdicts, last, settled }
    }

    /// All members count from the moment that the first has entered.
    pub(super) fn entered(&mut self, record: &Record) {
        for member in &record.members {
            self.last.entry(member.worker).or_insert(record.resume);
        }
    }

    pub(super) fn began(&self, worker: WorkerId, step: Step) -> Result<(), Found> {
        let last = self.last_of(worker);
        if step == last.next() {
            return Ok(());
        }
        let seen = format!("worker {worker} computes step {step}; its last commit is {last}");
        Err((Invariant::I19, seen))
    }

    pub(super) fn committed(&mut self, worker: WorkerId, commit: &Commit) -> Result<(), Found> {
        let (step, last) = (commit.step, self.last_of(worker));
        if step != last.next() {
            let seen = format!("worker {worker} commits step {step} after step {last}");
            return Err((Invariant::I5, seen));
        }
        self.last.insert(worker, step);
        let verdict = Verdict::of(commit);
        let first = *self.verdicts.entry(step).or_insert(verdict);
        let reference = self.reference.as_ref().and_then(|run| run.verdicts.get(&step).copied());
        for (whose, expected) in [("another member", Some(first)), ("the reference", reference)] {
            if expected.is_some_and(|expected| expected != verdict) {
                let seen = format!(
                    "worker {worker} commits step {step} with {verdict:x?}, {whose} with \
                     {expected:x?}"
                );
                return Err((Invariant::I2, seen));
            }
        }
        Ok(())
    }

    /// A version is made by its commit.
    pub(super) fn updated(&self, worker: WorkerId, version: Step) -> Result<(), Found> {
        let last = self.last_of(worker);
        if version <= last {
            return Ok(());
        }
        let seen =
            format!("worker {worker} updates to version {version}; its last commit is {last}");
        Err((Invariant::I3, seen))
    }

    /// A settled step has the votes of all members for the next one, so all know its commit.
    pub(super) fn settled(&mut self, worker: WorkerId, step: Step) -> Result<(), Found> {
        let before = self.settled.insert(worker, step).unwrap_or_default();
        let behind = self.last.iter().find(|(_, last)| **last < step);
        let seen = match behind {
            _ if step < before => {
                format!("worker {worker} takes {before} for settled, then {step}")
            }
            Some((behind, last)) => format!(
                "worker {worker} takes {step} for settled; the last commit of worker {behind} is \
                 {last}"
            ),
            None => return Ok(()),
        };
        Err((Invariant::I5, seen))
    }

    /// Whether some member takes the step for settled.
    pub(super) fn is_settled(&self, step: Step) -> bool {
        self.settled.values().any(|settled| *settled >= step)
    }

    pub(super) fn verdict(&self, step: Step) -> Option<Verdict> {
        self.verdicts.get(&step).copied()
    }

    pub(super) fn newest(&self) -> Step {
        self.verdicts.last_key_value().map_or(Step(0), |(step, _)| *step)
    }

    pub(super) fn verdicts(&self) -> BTreeMap<Step, Verdict> {
        self.verdicts.clone()
    }

    fn last_of(&self, worker: WorkerId) -> Step {
        self.last.get(&worker).copied().unwrap_or_default()
    }
}

impl Verdict {
    fn of(commit: &Commit) -> Self {
        Self { norm: bits(commit.norm), loss: bits(commit.loss), decision: commit.decision }
    }

    pub(super) fn fits(&self, line: &MetricsLine) -> bool {
        (bits(line.grad_norm), bits(line.loss)) == (self.norm, self.loss)
    }
}

/// Which of the values that are no number it is depends on the order of additions, and means
/// nothing.
fn bits(value: f64) -> u64 {
    if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() }
}
