//! Whether steps are held back for workers that catch up, and when a join is given up.
//!
//! Intuition: each step adds to the data that a joiner has to take. A worker is never done
//! if its link carries no more than that. So the leader checks every few seconds whether the
//! missing amount has shrunk by a fair part. If it has not, the leader lets no step begin for a
//! while. This hold is bounded, and lasts only as long as more data arrives. If several holds do
//! not bring a worker up to date, the leader holds no step back for some time. Until then it does
//! not feed a worker that is no member, and the worker's view says why.
//!
//! Input: how far each worker says to be behind. Output: a [`HoldDecision`]. It knows no messages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::WorkerId;
use everstep_transport::time::Time;

/// The leader judges progress after at least this long, or after three steps.
const PROGRESS_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The longest hold of steps at once: shorter than an operator would wait before looking for a
/// fault.
const STEP_HOLD_MAX: Duration = Duration::from_secs(20);
/// A hold ends early when no data has arrived for this long.
const STEP_HOLD_ENDS_AFTER_IDLE: Duration = Duration::from_secs(4);
/// How often the leader asks the step leader again, which holds for a second and then goes on by
/// itself.
const STEP_HOLD_REPEAT_INTERVAL: Duration = Duration::from_millis(400);
/// After this many holds in vain the leader gives a join up.
const MAX_HOLDS: u32 = 3;
/// The leader tries a join again after this long, and each next time after twice as long.
const WORKER_JOIN_BACKOFF: Duration = Duration::from_secs(60);
/// How often that time is doubled, at most.
const MAX_DOUBLINGS: u32 = 6;

/// The result of a check.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HoldDecision {
    /// The step leader is to begin a hold, or to prolong it.
    pub(super) hold: bool,
    /// The workers that the leader feeds in vain.
    pub(super) hopeless: Vec<WorkerId>,
}

#[derive(Debug, Default)]
pub(super) struct CatchUp {
    joiners: BTreeMap<WorkerId, JoinerProgress>,
    hold: Option<StepHold>,
    /// No other hold begins before this time, so that the run makes progress, too.
    rests_until: Option<Time>,
    given_up: BTreeMap<WorkerId, GivenUpJoin>,
}

/// How far a worker is behind.
#[derive(Clone, Copy, Debug)]
struct JoinerProgress {
    behind: u64,
    /// How many bytes it was behind at the last check.
    before: u64,
    checked_at: Time,
    /// How many holds have not brought the worker up to date.
    in_vain: u32,
}

#[derive(Clone, Copy, Debug)]
struct StepHold {
    since: Time,
    asked: Time,
    /// The least number of bytes that all workers together lacked, since `shrunk`.
    least: u64,
    shrunk: Time,
}

/// A join that was given up.
#[derive(Debug)]
struct GivenUpJoin {
    until: Time,
    times: u32,
    reason: String,
}

impl CatchUp {
    /// A worker says how many bytes it is behind.
    pub(super) fn set_behind(&mut self, now: Time, worker: WorkerId, behind: u64) {
        let new = JoinerProgress { behind, before: behind, checked_at: now, in_vain: 0 };
        self.joiners.entry(worker).or_insert(new).behind = behind;
    }

    /// Another generation begins: the joiners begin anew.
    pub(super) fn renew(&mut self) {
        self.joiners.clear();
        (self.hold, self.rests_until) = (None, None);
    }

    /// Drops what is known of a worker that is gone.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.joiners.remove(&worker);
        self.given_up.remove(&worker);
    }

    /// Whether the leader is not to feed a worker now.
    pub(super) fn is_given_up(&self, now: Time, worker: WorkerId) -> bool {
        self.given_up.get(&worker).is_some_and(|given_up| now < given_up.until)
    }

    /// Why a worker's join waits, in words.
    pub(super) fn reason(&self, worker: WorkerId) -> Option<String> {
        let given_up = self.given_up.get(&worker).filter(|_| !self.joiners.contains_key(&worker));
        let behind = self.joiners.get(&worker).filter(|_| self.hold.is_some());
        let held =
            |it: &JoinerProgress| format!("steps pause until it has {} more", bytes(it.behind));
        given_up.map(|it| it.reason.clone()).or_else(|| behind.map(held))
    }

    /// Checks the progress of the joiners that are not ready. `step` is how long a step takes.
    pub(super) fn check(
        &mut self,
        now: Time,
        unready: &BTreeSet<WorkerId>,
        step: Duration,
    ) -> HoldDecision {
        self.joiners.retain(|worker, _| unready.contains(worker));
        if self.joiners.is_empty() {
            self.hold = None;
            return HoldDecision::default();
        }
        if self.hold.is_some() { self.keep_holding(now, step) } else { self.judge(now, step) }
    }

    /// Begins a hold if a joiner has not come a quarter of its way since the last check.
    fn judge(&mut self, now: Time, step: Duration) -> HoldDecision {
        let span = PROGRESS_CHECK_INTERVAL.max(3 * step);
        let mut stalls = false;
        for progress in self.joiners.values_mut() {
            if now.since(progress.checked_at) >= span {
                stalls |= progress.behind / 3 >= progress.before / 4 && progress.behind > 0;
                (progress.before, progress.checked_at) = (progress.behind, now);
            }
        }
        let rested = self.rests_until.is_none_or(|until| now >= until);
        if stalls && rested {
            let least = self.lacking();
            self.hold = Some(StepHold { since: now, asked: now, least, shrunk: now });
        }
        HoldDecision { hold: stalls && rested, hopeless: Vec::new() }
    }

    fn keep_holding(&mut self, now: Time, step: Duration) -> HoldDecision {
        let lacking = self.lacking();
        let Some(hold) = &mut self.hold else { return HoldDecision::default() };
        if lacking < hold.least {
            (hold.least, hold.shrunk) = (lacking, now);
        }
        // The step under way comes to its end first.
        let idle = now.since(hold.shrunk) >= STEP_HOLD_ENDS_AFTER_IDLE + step;
        let held = now.since(hold.since);
        if idle || held >= STEP_HOLD_MAX + step {
            self.hold = None;
            let hopeless = self.count_in_vain(now);
            let times =
                hopeless.iter().map(|worker| self.joiners[worker].in_vain - MAX_HOLDS).max();
            let rest = times.map_or(held.max(PROGRESS_CHECK_INTERVAL), pause);
            self.rests_until = Some(now + rest);
            return HoldDecision { hold: false, hopeless };
        }
        let again = now.since(hold.asked) >= STEP_HOLD_REPEAT_INTERVAL;
        if again {
            hold.asked = now;
        }
        HoldDecision { hold: again, hopeless: Vec::new() }
    }

    /// Counts a hold that has ended for all workers that are still behind. Returns the workers that
    /// have no further try.
    fn count_in_vain(&mut self, now: Time) -> Vec<WorkerId> {
        for progress in self.joiners.values_mut().filter(|progress| progress.behind > 0) {
            progress.in_vain += 1;
            (progress.before, progress.checked_at) = (progress.behind, now);
        }
        let hopeless = self.joiners.iter().filter(|(_, progress)| progress.in_vain >= MAX_HOLDS);
        hopeless.map(|(worker, _)| *worker).collect()
    }

    /// Stops feeding a worker for a while.
    pub(super) fn give_up(&mut self, now: Time, worker: WorkerId) {
        let Some(JoinerProgress { behind, in_vain, .. }) = self.joiners.remove(&worker) else {
            return;
        };
        let times = self.given_up.get(&worker).map_or(0, |before| before.times);
        let pause = pause(times);
        let reason = format!(
            "it did not keep up with the steps: {} of its shards were lacking after {in_vain} \
             pauses of the run. Joining is tried again {pause:?} after that",
            bytes(behind)
        );
        self.given_up.insert(worker, GivenUpJoin { until: now + pause, times: times + 1, reason });
    }

    fn lacking(&self) -> u64 {
        self.joiners.values().fold(0, |sum, it| sum.saturating_add(it.behind))
    }
}

/// How long the leader rests after an attempt in vain, before it tries again.
fn pause(times: u32) -> Duration {
    WORKER_JOIN_BACKOFF * (1 << times.min(MAX_DOUBLINGS))
}

fn bytes(count: u64) -> String {
    format!("{:.1} MB", count as f64 / 1e6)
}

#[cfg(test)]
mod tests;
