//! I17: a record's resume step is at least its predecessor's and at least every settled step,
//! unless it is a rollback. Its commit is one that its predecessor made, or its predecessor's own.
//! The basis of its plan is true: a member made each commit that a worker shows, in that
//! generation.

use std::collections::BTreeMap;

use everstep_transport::protocol::{
    Commit, Generation, MetricsLine, Record, RunOrigin, Step, WorkerId,
};

use super::{Breach, Invariant, Verdict};

#[derive(Debug, Default)]
pub(super) struct Resumes {
    /// All commits, by generation and step.
    decided: BTreeMap<(Generation, Step), Commit>,
    /// The step after which the run goes on that another cluster has begun.
    begun_after: Step,
}

impl Resumes {
    /// Another cluster has made the commits of the checkpoints that `origin` lists. The run goes on
    /// after the last of them, or after an earlier one if the last is damaged.
    pub(super) fn begin_from(&mut self, origin: &RunOrigin) {
        self.begun_after = origin.step();
        let commits = origin.checkpoints.iter().map(|listed| &listed.commit);
        let decided = commits.map(|commit| ((commit.generation, commit.step), commit.clone()));
        self.decided.extend(decided);
    }

    /// A member commits. All members that commit a step in one generation have the same words of
    /// it. Returns true for the first of them.
    pub(super) fn committed(&mut self, commit: &Commit) -> Result<bool, Breach> {
        let key = (commit.generation, commit.step);
        let Some(first) = self.decided.get(&key) else {
            self.decided.insert(key, commit.clone());
            return Ok(true);
        };
        if same(first, commit) {
            return Ok(false);
        }
        Err((Invariant::I2, format!("two commits of one step: {first:?} and {commit:?}")))
    }

    /// A worker shows its last commit as evidence.
    pub(super) fn shown(&self, worker: WorkerId, commit: &Commit) -> Result<(), Breach> {
        let decided = self.decided.get(&(commit.generation, commit.step));
        if decided.is_some_and(|decided| same(decided, commit)) {
            return Ok(());
        }
        Err((Invariant::I17, format!("worker {worker} shows {commit:?}, which no leader has made")))
    }

    /// A record follows another one. `settled` is the newest step that any member took for settled.
    pub(super) fn recorded(
        &self,
        record: &Record,
        before: Option<&Record>,
        settled: Step,
    ) -> Result<(), Breach> {
        let (number, resume) = (record.number, record.resume);
        let broken = |what: String| Err((Invariant::I17, format!("generation {number} {what}")));
        let Some(before) = before else {
            return if resume == self.begun_after {
                Ok(())
            } else {
                broken(format!("is the first, and resumes at step {resume}"))
            };
        };
        if resume < before.resume || resume < settled {
            let least = before.resume.max(settled);
            return broken(format!("resumes at step {resume}, before step {least}"));
        }
        let commit = record.commit.as_ref();
        if commit.map_or(Step(0), |commit| commit.step) != resume {
            return broken(format!("resumes at step {resume} with {commit:?}"));
        }
        let Some(commit) = commit else { return Ok(()) };
        if before.commit.as_ref().is_some_and(|known| same(known, commit)) {
            return Ok(());
        }
        let decided = self.decided.get(&(before.number, resume));
        if decided.is_some_and(|decided| same(decided, commit)) {
            return Ok(());
        }
        broken(format!("resumes with {commit:?}, which generation {} did not make", before.number))
    }
}

/// Whether both are one decision in the same words. A commit in a record never holds.
fn same(one: &Commit, other: &Commit) -> bool {
    let place = |commit: &Commit| (commit.generation, commit.step, commit.updates);
    let told = |line: &MetricsLine| (line.generation, line.world_size, line.unix_ms);
    let verdict = |commit: &Commit| Verdict::of(commit);
    place(one) == place(other)
        && verdict(one) == verdict(other)
        && told(&one.line) == told(&other.line)
        && verdict(one).fits(&other.line)
}
