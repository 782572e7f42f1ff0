//! A Pause under way: the workers that still owe an answer, and how long the leader waits for them.

use std::collections::BTreeSet;
use std::time::Duration;

use everstep_transport::protocol::{Generation, WorkerId};
use everstep_transport::time::Time;

use super::super::plan::{GiveUp, Wait};
use super::super::roster::Roster;
use super::awaiting::Awaiting;

/// The leader goes on without a worker that has not answered a Pause for this long.
const PAUSE_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the leader repeats a Pause to workers that have not answered.
const PAUSE_REPEAT_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(in crate::core) struct Pausing {
    pub(super) number: Generation,
    pub(super) since: Time,
    /// When the leader last sent the Pause.
    said: Time,
    /// The workers that still owe an answer.
    missing: BTreeSet<WorkerId>,
    /// The workers that got a link again during this Pause. Each restarts the deadline, but only
    /// once.
    returned: BTreeSet<WorkerId>,
    /// Why the last attempt gave no plan.
    pub(super) wait: Option<Wait>,
    pub(super) awaiting: Awaiting,
}

impl Pausing {
    /// A Pause for the generation with this number begins.
    pub(super) fn new(now: Time, number: Generation, missing: BTreeSet<WorkerId>) -> Self {
        Self {
            number,
            since: now,
            said: now,
            missing,
            returned: BTreeSet::new(),
            wait: None,
            awaiting: Awaiting::default(),
        }
    }

    /// The workers have as long again to answer.
    pub(super) fn restart_deadline(&mut self, now: Time) {
        self.since = now;
    }

    /// These workers owe an answer as well.
    pub(super) fn expect(&mut self, workers: BTreeSet<WorkerId>) {
        self.missing.extend(workers);
    }

    /// Nothing more is expected of this worker.
    pub(super) fn expect_nothing_of(&mut self, worker: WorkerId) {
        self.missing.remove(&worker);
    }

    /// Expects nothing more of workers that cannot answer.
    pub(super) fn drop_hopeless(&mut self, roster: Roster<'_>) {
        self.missing.retain(|worker| roster.may_answer(*worker));
    }

    /// A worker has a link again: it could not answer before. A worker with an unstable link gets
    /// only one new deadline.
    pub(super) fn on_return(&mut self, now: Time, worker: WorkerId) {
        if self.missing.contains(&worker) && self.returned.insert(worker) {
            self.since = now;
        }
    }

    /// All workers hear the Pause now, and have as long again to answer.
    pub(super) fn renew(&mut self, now: Time) {
        (self.since, self.said) = (now, now);
    }

    /// Whether it is time to repeat the Pause. Each time is reported once.
    pub(super) fn repeats(&mut self, now: Time) -> bool {
        let is_due = now.since(self.said) >= PAUSE_REPEAT_INTERVAL;
        if is_due {
            self.said = now;
        }
        is_due
    }

    /// Whether each expected answer is there, or had its chance. A worker without a link that still
    /// has time to come back could not answer yet, nor could a worker that fell silent together
    /// with many others.
    pub(super) fn has_all_answers(&self, roster: Roster<'_>) -> bool {
        let had_its_chance = |worker: &WorkerId| {
            (roster.is_linked(*worker) || self.returned.contains(worker))
                && !roster.detector.is_awaited(roster.now, *worker)
        };
        self.missing.is_empty()
            || (self.is_late(roster.now) && self.missing.iter().all(had_its_chance))
    }

    /// Whether all linked workers have answered, or are late.
    pub(super) fn everyone_is_heard(
        &self,
        roster: Roster<'_>,
        has_answered: impl Fn(&WorkerId) -> bool,
    ) -> bool {
        let mut linked = roster.links.registered().keys();
        let heard = |worker: &WorkerId| has_answered(worker) || roster.detector.is_dead(*worker);
        self.is_late(roster.now) || linked.all(heard)
    }

    fn is_late(&self, now: Time) -> bool {
        now.since(self.since) >= PAUSE_ANSWER_TIMEOUT
    }

    /// What the run allows the leader to give up, or an operator asks it to.
    pub(super) fn give_up(&self, roster: Roster<'_>) -> Option<GiveUp> {
        if let Some(step) = roster.state.goes_back_to() {
            return Some(GiveUp::After(step));
        }
        let after = Duration::from_millis(roster.state.run()?.give_up_after_ms?);
        let Some(Wait::Owners { owners, hears: true, .. }) = &self.wait else { return None };
        let is_over = |owner: &WorkerId| self.awaiting.is_over(roster, *owner, after);
        Some(GiveUp::Silent(owners.iter().copied().filter(is_over).collect()))
    }
}
