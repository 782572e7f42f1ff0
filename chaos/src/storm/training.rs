//! The training in a storm: steps without contents, that take time and that all members commit at
//! once.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::{
    Commit, Decision, Generation, LossScale, MetricsLine, Record, Shard, Step, WorkerId,
};
use everstep_transport::time::Time;

/// The most lines in one message.
const LINES: u64 = 64;

/// The current generation, and its progress.
#[derive(Debug)]
pub(super) struct Training {
    steps: u64,
    /// How long all steps take together.
    training: Duration,
    record: Option<Record>,
    /// When its first member entered it.
    began: Time,
    /// The step at which training stands still. None while it goes on.
    stopped: Option<Step>,
    owned: BTreeMap<WorkerId, Vec<Shard>>,
}

impl Training {
    pub(super) fn new(steps: u64, training: Duration) -> Self {
        let (record, began, stopped, owned) = Default::default();
        Self { steps, training, record, began, stopped, owned }
    }

    /// Follows a record. Returns true the first time that a worker hears of it.
    pub(super) fn follow(&mut self, now: Time, record: &Record) -> bool {
        if record.number <= self.generation() {
            return false;
        }
        self.owned = record.members.iter().map(|member| (member.worker, Vec::new())).collect();
        for ownership in &record.owners {
            for shard in (ownership.first.0..).take(ownership.count as usize).map(Shard) {
                for rank in &ownership.owners {
                    let owner = record.member(*rank).worker;
                    self.owned.entry(owner).or_default().push(shard);
                }
            }
        }
        self.began = now;
        self.stopped = record.waiting.then_some(record.resume);
        self.record = Some(record.clone());
        true
    }

    /// No member commits a step any more in this generation.
    pub(super) fn stop(&mut self, now: Time) {
        let (step, _) = self.version(now);
        self.stopped.get_or_insert(step);
    }

    pub(super) fn generation(&self) -> Generation {
        self.record.as_ref().map_or(Generation(0), |record| record.number)
    }

    pub(super) fn is_first(&self) -> bool {
        self.generation() == Generation(1)
    }

    pub(super) fn lists(&self, worker: WorkerId) -> bool {
        self.owned.contains_key(&worker)
    }

    pub(super) fn leads(&self, worker: WorkerId) -> bool {
        self.record.as_ref().is_some_and(|record| record.step_leader() == worker)
    }

    pub(super) fn owned(&self, worker: WorkerId) -> &[Shard] {
        self.owned.get(&worker).map_or(&[], Vec::as_slice)
    }

    /// The last commit, and the generation that made it. All steps take the same time.
    pub(super) fn version(&self, now: Time) -> (Step, Generation) {
        let Some(record) = &self.record else { return Default::default() };
        let passed = now.since(self.began).as_nanos() * u128::from(self.steps);
        let passed = (passed / self.training.as_nanos().max(1)) as u64;
        let step = Step(record.resume.0.saturating_add(passed).min(self.steps));
        let step = self.stopped.unwrap_or(step);
        let before = record.commit.as_ref().map_or(Generation(0), |commit| commit.generation);
        (step, if step > record.resume { record.number } else { before })
    }

    /// When the members commit the last step. None if training stands still.
    pub(super) fn end(&self) -> Option<Time> {
        let record = self.record.as_ref().filter(|_| self.stopped.is_none())?;
        let left = self.steps.saturating_sub(record.resume.0);
        let time = self.training.as_nanos() * u128::from(left) / u128::from(self.steps.max(1));
        Some(self.began + Duration::from_nanos(time as u64))
    }

    /// The last commit, if there is one.
    pub(super) fn commit(&self, now: Time) -> Option<Commit> {
        let record = self.record.as_ref()?;
        let (step, generation) = self.version(now);
        if step <= record.resume {
            return record.commit.clone();
        }
        Some(Commit {
            generation,
            step,
            norm: 1.0,
            loss: 1.0,
            decision: Decision::Apply,
            gradient_factor: 1.0,
            updates: step.0,
            loss_scale: LossScale::default(),
            hold: false,
            line: line(step, generation),
        })
    }

    /// The lines of commits after `written`.
    pub(super) fn lines(&self, written: Step, now: Time) -> Vec<MetricsLine> {
        let (Step(last), generation) = self.version(now);
        let last = last.min(written.0 + LINES);
        (written.0 + 1..=last).map(|step| line(Step(step), generation)).collect()
    }
}

fn line(step: Step, generation: Generation) -> MetricsLine {
    MetricsLine { step, generation, ..MetricsLine::default() }
}
