//! Whether steps are held back for workers that learn, and when a join is given up.
//!
//! Intuition: each step adds to what a worker that learns has to take. Where its link carries no
//! more than that, it is never done. So the leader looks every few seconds whether what is lacking
//! has shrunk by a fair part; where it has not, no step begins for a while, which is bounded, and
//! goes on only as long as more arrives. Where even that helps nothing, several times, no step is
//! held back for some time; a worker that is no member is fed no more until then, and its view says
//! why.
//!
//! Input: how far each worker says to be behind. Output: an [`Order`]. It knows no messages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::WorkerId;
use everstep_transport::time::Time;

/// Progress is judged after at least so long, or three steps.
const LOOK: Duration = Duration::from_secs(5);
/// Steps are held back for so long at once, at most: less than an operator would look for a fault.
const LONGEST: Duration = Duration::from_secs(20);
/// A hold ends early when nothing has arrived for so long.
const IDLE: Duration = Duration::from_secs(4);
/// The step leader is asked again after so long: it holds for a second, and then goes on by itself.
const REPEAT: Duration = Duration::from_millis(400);
/// After so many holds in vain a join is given up.
const TRIES: u32 = 3;
/// It is tried again after so long, and each time after twice as long.
const PAUSE: Duration = Duration::from_secs(60);
/// How often that is doubled, at most.
const MAX_DOUBLINGS: u32 = 6;

/// What a look comes to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    /// The step leader is to hold, or to hold on.
    pub(super) hold: bool,
    /// These are fed in vain.
    pub(super) hopeless: Vec<WorkerId>,
}

#[derive(Debug, Default)]
pub(super) struct CatchUp {
    learners: BTreeMap<WorkerId, Progress>,
    hold: Option<Hold>,
    /// Until then no other hold begins: the run is to make progress, too.
    rests_until: Option<Time>,
    given_up: BTreeMap<WorkerId, GivenUp>,
}

/// How far a worker is behind, bytes.
#[derive(Clone, Copy, Debug)]
struct Progress {
    behind: u64,
    /// The same when it was last looked at.
    before: u64,
    looked: Time,
    /// How many holds have not brought it up to date.
    in_vain: u32,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    since: Time,
    asked: Time,
    /// The least that was lacking, in all, and since when.
    least: u64,
    shrunk: Time,
}

/// A join that does not come to its end.
#[derive(Debug)]
struct GivenUp {
    until: Time,
    times: u32,
    reason: String,
}

impl CatchUp {
    /// A worker says how far it is behind.
    pub(super) fn tell(&mut self, now: Time, worker: WorkerId, behind: u64) {
        let new = Progress { behind, before: behind, looked: now, in_vain: 0 };
        self.learners.entry(worker).or_insert(new).behind = behind;
    }

    /// Another generation begins: what is learned is learned anew.
    pub(super) fn renew(&mut self) {
        self.learners.clear();
        (self.hold, self.rests_until) = (None, None);
    }

    /// A worker is gone.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.learners.remove(&worker);
        self.given_up.remove(&worker);
    }

    /// Whether a worker is not to be fed now.
    pub(super) fn is_given_up(&self, now: Time, worker: WorkerId) -> bool {
        self.given_up.get(&worker).is_some_and(|given_up| now < given_up.until)
    }

    /// What a worker's join waits for, in words.
    pub(super) fn reason(&self, worker: WorkerId) -> Option<String> {
        let given_up = self.given_up.get(&worker).filter(|_| !self.learners.contains_key(&worker));
        let behind = self.learners.get(&worker).filter(|_| self.hold.is_some());
        let held = |it: &Progress| format!("steps pause until it has {} more", bytes(it.behind));
        given_up.map(|it| it.reason.clone()).or_else(|| behind.map(held))
    }

    /// Looks at those who learn and are not ready, where a step takes so long.
    pub(super) fn look(
        &mut self,
        now: Time,
        unready: &BTreeSet<WorkerId>,
        step: Duration,
    ) -> Order {
        self.learners.retain(|worker, _| unready.contains(worker));
        if self.learners.is_empty() {
            self.hold = None;
            return Order::default();
        }
        if self.hold.is_some() { self.keep_holding(now, step) } else { self.judge(now, step) }
    }

    /// Holds where somebody has not come a quarter of its way since the last look.
    fn judge(&mut self, now: Time, step: Duration) -> Order {
        let span = LOOK.max(3 * step);
        let mut stalls = false;
        for progress in self.learners.values_mut() {
            if now.since(progress.looked) >= span {
                stalls |= progress.behind / 3 >= progress.before / 4 && progress.behind > 0;
                (progress.before, progress.looked) = (progress.behind, now);
            }
        }
        let rested = self.rests_until.is_none_or(|until| now >= until);
        if stalls && rested {
            let least = self.lacking();
            self.hold = Some(Hold { since: now, asked: now, least, shrunk: now });
        }
        Order { hold: stalls && rested, hopeless: Vec::new() }
    }

    fn keep_holding(&mut self, now: Time, step: Duration) -> Order {
        let lacking = self.lacking();
        let Some(hold) = &mut self.hold else { return Order::default() };
        if lacking < hold.least {
            (hold.least, hold.shrunk) = (lacking, now);
        }
        // The step under way comes to its end first.
        let idle = now.since(hold.shrunk) >= IDLE + step;
        let held = now.since(hold.since);
        if idle || held >= LONGEST + step {
            self.hold = None;
            let hopeless = self.count_in_vain(now);
            let times = hopeless.iter().map(|worker| self.learners[worker].in_vain - TRIES).max();
            let rest = times.map_or(held.max(LOOK), pause);
            self.rests_until = Some(now + rest);
            return Order { hold: false, hopeless };
        }
        let again = now.since(hold.asked) >= REPEAT;
        if again {
            hold.asked = now;
        }
        Order { hold: again, hopeless: Vec::new() }
    }

    /// A hold is over, and these are still behind; returns those for whom it was the last.
    fn count_in_vain(&mut self, now: Time) -> Vec<WorkerId> {
        for progress in self.learners.values_mut().filter(|progress| progress.behind > 0) {
            progress.in_vain += 1;
            (progress.before, progress.looked) = (progress.behind, now);
        }
        let hopeless = self.learners.iter().filter(|(_, progress)| progress.in_vain >= TRIES);
        hopeless.map(|(worker, _)| *worker).collect()
    }

    /// A worker is fed no more for a while.
    pub(super) fn give_up(&mut self, now: Time, worker: WorkerId) {
        let Some(Progress { behind, in_vain, .. }) = self.learners.remove(&worker) else { return };
        let times = self.given_up.get(&worker).map_or(0, |before| before.times);
        let pause = pause(times);
        let reason = format!(
            "it did not keep up with the steps: {} of its shards were lacking after {in_vain} \
             pauses of the run; joining is tried again {pause:?} after that",
            bytes(behind)
        );
        self.given_up.insert(worker, GivenUp { until: now + pause, times: times + 1, reason });
    }

    fn lacking(&self) -> u64 {
        self.learners.values().fold(0, |sum, it| sum.saturating_add(it.behind))
    }
}

/// How long something that was in vain is not tried again.
fn pause(times: u32) -> Duration {
    PAUSE * (1 << times.min(MAX_DOUBLINGS))
}

fn bytes(count: u64) -> String {
    format!("{:.1} MB", count as f64 / 1e6)
}

#[cfg(test)]
mod tests;
