//! I2, I5, and the part of I3 and I19 about when a member computes.

use std::collections::BTreeMap;
use std::sync::Arc;

use everstep_transport::protocol::{Commit, Generation, MetricsLine, Record, Step, WorkerId};

use super::records::Records;
use super::{Breach, Invariant, RunHistory, Verdict};

#[derive(Debug)]
pub(super) struct Commits {
    reference: Option<Arc<RunHistory>>,
    verdicts: BTreeMap<Step, Verdict>,
    /// Each member's last commit.
    last: BTreeMap<WorkerId, Step>,
    /// The same in each history. A member that goes on in another history may have been further
    /// before.
    reached: BTreeMap<(usize, WorkerId), Step>,
    /// The last step that each member takes for settled, and the generation in which it does.
    settled: BTreeMap<WorkerId, (Generation, Step)>,
    /// The newest settled step of each history.
    newest: BTreeMap<usize, Step>,
    /// The newest step that was ever settled.
    ever: Step,
    /// How many times a step was committed. Steps that were done again count again.
    count: u64,
}

impl Commits {
    pub(super) fn new(reference: Option<Arc<RunHistory>>) -> Self {
        Self {
            reference,
            verdicts: BTreeMap::new(),
            last: BTreeMap::new(),
            reached: BTreeMap::new(),
            settled: BTreeMap::new(),
            newest: BTreeMap::new(),
            ever: Step(0),
            count: 0,
        }
    }

    /// Another cluster has trained the steps up to this one.
    pub(super) fn begin_after(&mut self, step: Step) {
        self.settle(0, step);
    }

    /// A record carries its commit. So no fault can undo that commit any more.
    pub(super) fn recorded(&mut self, history: usize, resume: Step) {
        self.settle(history, resume);
    }

    /// A worker becomes a member, with this last commit.
    pub(super) fn entered(
        &mut self,
        worker: WorkerId,
        record: &Record,
        history: usize,
        committed: Step,
    ) -> Result<(), Breach> {
        self.last.insert(worker, committed);
        self.reached.insert((history, worker), committed);
        if committed == record.resume {
            return Ok(());
        }
        let seen = format!(
            "worker {worker} enters generation {} at step {committed}, but the generation resumes \
             at {}",
            record.number, record.resume
        );
        Err((Invariant::I5, seen))
    }

    pub(super) fn began(&self, worker: WorkerId, step: Step) -> Result<(), Breach> {
        let last = self.last_of(worker);
        if step == last.next() {
            return Ok(());
        }
        let seen = format!("worker {worker} computes step {step}, but its last commit is {last}");
        Err((Invariant::I19, seen))
    }

    /// A member commits. `history` is that of the commit's generation, and `is_current` says that
    /// this is the current generation. `first` says that no member has committed this step in it
    /// before.
    pub(super) fn committed(
        &mut self,
        worker: WorkerId,
        commit: &Commit,
        history: usize,
        is_current: bool,
        first: bool,
    ) -> Result<(), Breach> {
        let (step, last) = (commit.step, self.last_of(worker));
        if step != last.next() {
            let seen = format!("worker {worker} commits step {step} after step {last}");
            return Err((Invariant::I5, seen));
        }
        let settled = self.newest_settled(history);
        if is_current && first && step <= settled {
            let seen =
                format!("worker {worker} commits step {step} anew, but {settled} is settled");
            return Err((Invariant::I5, seen));
        }
        self.last.insert(worker, step);
        self.reached.insert((history, worker), step);
        self.count += u64::from(first);
        Ok(())
    }

    /// A member's commit must equal the commits of all other members, and that of the reference.
    pub(super) fn compare(&mut self, worker: WorkerId, commit: &Commit) -> Result<(), Breach> {
        let (step, verdict) = (commit.step, Verdict::of(commit));
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

    /// A commit makes a version. The world need not have told a joiner of that commit.
    pub(super) fn updated(&self, worker: WorkerId, version: Step) -> Result<(), Breach> {
        let last = self.last.get(&worker).copied().unwrap_or_else(|| self.newest_committed());
        if version <= last {
            return Ok(());
        }
        let seen =
            format!("worker {worker} updates to version {version}, but its last commit is {last}");
        Err((Invariant::I3, seen))
    }

    /// A settled step has the votes of all members for the next one, so all know its commit. If
    /// not, the generation's record carries it.
    pub(super) fn settled(
        &mut self,
        worker: WorkerId,
        generation: Generation,
        step: Step,
        records: &Records,
    ) -> Result<(), Breach> {
        let (then, before) = self.settled.insert(worker, (generation, step)).unwrap_or_default();
        let history = records.lineage(generation);
        if step < before && history == records.lineage(then) {
            let seen = format!("worker {worker} takes {before} for settled, then {step}");
            return Err((Invariant::I5, seen));
        }
        let record = records.record_of(generation).filter(|record| step > record.resume);
        for member in record.iter().flat_map(|record| &record.members) {
            let last = self.reached.get(&(history, member.worker)).copied().unwrap_or_default();
            if last < step {
                let behind = member.worker;
                let seen = format!(
                    "worker {worker} takes {step} for settled, but the last commit of worker \
                     {behind} is {last}"
                );
                return Err((Invariant::I5, seen));
            }
        }
        self.settle(history, step);
        Ok(())
    }

    fn settle(&mut self, history: usize, step: Step) {
        let newest = self.newest.entry(history).or_default();
        *newest = step.max(*newest);
        self.ever = step.max(self.ever);
    }

    /// The newest settled step of a history.
    pub(super) fn newest_settled(&self, history: usize) -> Step {
        self.newest.get(&history).copied().unwrap_or_default()
    }

    /// Whether some member has taken the step for settled.
    pub(super) fn was_settled(&self, step: Step) -> bool {
        self.ever >= step
    }

    pub(super) fn verdict(&self, step: Step) -> Option<Verdict> {
        self.verdicts.get(&step).copied()
    }

    /// The last step that any member has committed.
    fn newest_committed(&self) -> Step {
        self.verdicts.last_key_value().map_or(Step(0), |(step, _)| *step)
    }

    /// How many steps were committed. Steps that were done again count again.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn verdicts(&self) -> BTreeMap<Step, Verdict> {
        self.verdicts.clone()
    }

    fn last_of(&self, worker: WorkerId) -> Step {
        self.last.get(&worker).copied().unwrap_or_default()
    }
}

impl Verdict {
    pub(super) fn of(commit: &Commit) -> Self {
        let Commit { norm, loss, decision, ref line, .. } = *commit;
        let validation = line.validation_loss.map(bits);
        Self { norm: bits(norm), loss: bits(loss), validation, decision }
    }

    pub(super) fn fits(&self, line: &MetricsLine) -> bool {
        let validation = line.validation_loss.map(bits);
        (bits(line.grad_norm), bits(line.loss), validation)
            == (self.norm, self.loss, self.validation)
    }
}

/// The order of additions decides which NaN a value is. The difference means nothing.
fn bits(value: f64) -> u64 {
    if value.is_nan() { f64::NAN.to_bits() } else { value.to_bits() }
}
