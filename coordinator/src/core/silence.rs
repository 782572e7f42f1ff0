//! Which workers are suspected to be gone, and which of them are worth waiting for.
//!
//! A suspicion has a [`Certainty`]. Silence and a refused port are hints: a suspect that answers is
//! acquitted, and nothing is given up for a hint alone. Only [`Certainty::Dead`] is proof that a
//! worker's state is gone: its process said goodbye, its host reported the end of the process, or
//! another process has taken its place.
//!
//! When many workers fall silent together, the network of this coordinator is the likelier cause:
//! that is an [`Outage`]. The detector then suspects no worker for silence until the outage has
//! lasted [`OUTAGE`], and never while it hears no worker at all. Each worker that is heard again
//! gives all the others a fresh deadline, but only once, so that a worker with an unstable link
//! cannot keep a dead worker in the run.
//!
//! When the links of several workers are cut at one moment, the worker with the earliest heartbeat
//! due is silent alone for a moment. So the detector suspects a worker for silence only while it
//! hears another worker.
//!
//! A coordinator that was itself late (paused, starved, its messages still in a queue) cannot tell
//! its own silence from theirs. Then every worker gets a fresh deadline. The detector does not know
//! which workers are members, nor what a suspicion leads to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::WorkerId;
use everstep_transport::time::Time;

use super::TICK;
use crate::state::Loss;

/// A registered worker that says nothing for this long is suspected.
pub(super) const PATIENCE: Duration = Duration::from_millis(2_200);
/// Workers that fell silent together are waited for this long, as long as any other worker is
/// heard.
const OUTAGE: Duration = Duration::from_secs(20);
/// After an outage a worker has this long to dial again, counted from the first worker that did.
const RETURN: Duration = Duration::from_secs(6);
/// While another worker was heard within this long, more than two heartbeats, the coordinator
/// hears.
const HEARS: Duration = Duration::from_millis(600);
/// A tick that is later than this makes all deadlines anew.
const LATE: Duration = Duration::from_millis(500);

/// Why a worker is suspected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    pub(super) reason: String,
    pub(super) certainty: Certainty,
}

/// How certain it is that nothing more comes from a suspect, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Certainty {
    /// The worker is silent, or has lost a link. It may answer at any moment.
    Silent,
    /// The worker answers, but its device computes one data shard for far too long. Only progress
    /// acquits it.
    Hung,
    /// The worker's host refuses packets for its process: the worker's answer is worth no wait. But
    /// anyone can forge a refusal, so it proves nothing.
    Refused,
    /// The worker's process has ended, or has given up what it held.
    Dead,
}

#[derive(Debug)]
struct Suspicion {
    doubt: Doubt,
    /// From the worker's last sign of life until the suspicion.
    detect: Duration,
    /// When the suspicion began.
    since: Time,
}

/// Many workers are missing at once.
#[derive(Clone, Debug)]
struct Outage {
    since: Time,
    /// Until when the coordinator waits for the missing workers.
    until: Time,
    /// When the outage was last extended, because many more workers fell silent together. At first,
    /// when it began.
    extended: Time,
    /// The workers that were missing at the last look before `until`, and since when.
    awaited: BTreeMap<WorkerId, Time>,
    /// The workers that an earlier outage has waited for in vain. This one does not wait for them.
    overdue: BTreeSet<WorkerId>,
}

/// What a sign of life of one worker means for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It means nothing for others.
    Alone,
    /// The worker returns from an outage: the other missing workers have a fresh deadline.
    First,
}

#[derive(Debug)]
pub(super) struct Silence {
    heard: BTreeMap<WorkerId, Time>,
    suspects: BTreeMap<WorkerId, Suspicion>,
    /// Workers that were spared when another worker returned from an outage, and until when.
    spared: BTreeMap<WorkerId, Time>,
    /// The workers that have returned from the outage: each spares the others once.
    returned: BTreeSet<WorkerId>,
    outage: Option<Outage>,
    /// The workers that this coordinator has heard since it began to listen.
    met: BTreeSet<WorkerId>,
    ticked: Time,
}

impl Silence {
    pub(super) fn new(now: Time) -> Self {
        let (heard, suspects, spared, returned, met) = Default::default();
        Self { heard, suspects, spared, returned, outage: None, met, ticked: now }
    }

    /// A coordinator begins to listen to these workers, each with a fresh deadline.
    pub(super) fn begin(now: Time, workers: impl Iterator<Item = WorkerId>) -> Self {
        let heard = workers.map(|worker| (worker, now)).collect();
        Self { heard, ..Self::new(now) }
    }

    /// The worker lives. The detector listens for it from its first sign on. If it was missing in
    /// an outage, the other missing workers get a fresh deadline.
    pub(super) fn heard(&mut self, now: Time, worker: WorkerId) -> Heard {
        let was_silent = self.is_silent(now, worker);
        let known = self.heard.insert(worker, now).is_some();
        self.met.insert(worker);
        let returns = self.outage.is_some() && known && was_silent;
        if !returns || !self.returned.insert(worker) {
            return Heard::Alone;
        }
        let missing: Vec<WorkerId> = self.missing(now).collect();
        self.spared.extend(missing.into_iter().map(|worker| (worker, now + RETURN)));
        Heard::First
    }

    /// The worker is suspected from now on. The first reason stays, unless the new one has a
    /// stronger ground. Returns whether this is news.
    pub(super) fn suspect(&mut self, now: Time, worker: WorkerId, doubt: Doubt) -> bool {
        match self.suspects.get_mut(&worker) {
            Some(known) if known.doubt.certainty >= doubt.certainty => false,
            Some(known) => {
                known.doubt = doubt;
                true
            }
            None => {
                let detect = self.unheard(now, worker);
                self.suspects.insert(worker, Suspicion { doubt, detect, since: now });
                true
            }
        }
    }

    /// The worker has answered: nothing is left of the suspicion, unless its device hangs.
    pub(super) fn acquit(&mut self, worker: WorkerId) {
        if !self.is_hung(worker) {
            self.suspects.remove(&worker);
        }
    }

    /// The worker's device has gone on. Returns whether it was suspected to hang.
    pub(super) fn goes_on(&mut self, worker: WorkerId) -> bool {
        let was_hung = self.is_hung(worker);
        if was_hung {
            self.suspects.remove(&worker);
        }
        was_hung
    }

    fn is_hung(&self, worker: WorkerId) -> bool {
        self.certainty(worker) == Some(Certainty::Hung)
    }

    /// The worker is back on a link of its own. It may still be suspected, but its process has not
    /// ended.
    pub(super) fn revive(&mut self, now: Time, worker: WorkerId) -> Heard {
        let heard = self.heard(now, worker);
        if let Some(known) = self.suspects.get_mut(&worker)
            && known.doubt.certainty != Certainty::Hung
        {
            known.doubt.certainty = Certainty::Silent;
        }
        heard
    }

    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.heard.remove(&worker);
        self.met.remove(&worker);
        self.suspects.remove(&worker);
        self.spared.remove(&worker);
        self.returned.remove(&worker);
    }

    pub(super) fn is_suspected(&self, worker: WorkerId) -> bool {
        self.suspects.contains_key(&worker)
    }

    pub(super) fn suspects(&self) -> impl Iterator<Item = WorkerId> {
        self.suspects.keys().copied()
    }

    /// Whether the worker's process is known to have ended, or to have given up what it held.
    pub(super) fn is_dead(&self, worker: WorkerId) -> bool {
        self.certainty(worker) == Some(Certainty::Dead)
    }

    /// Whether this coordinator has heard the worker since it began to listen.
    pub(super) fn has_heard(&self, worker: WorkerId) -> bool {
        self.met.contains(&worker)
    }

    fn certainty(&self, worker: WorkerId) -> Option<Certainty> {
        self.suspects.get(&worker).map(|known| known.doubt.certainty)
    }

    /// The loss of a member, for the reason of its suspicion, or else for `otherwise`.
    pub(super) fn loss(&self, now: Time, worker: WorkerId, otherwise: &str) -> Loss {
        let (reason, detect, since) = match self.suspects.get(&worker) {
            Some(known) => (known.doubt.reason.clone(), known.detect, known.since),
            None => (otherwise.to_string(), self.unheard(now, worker), now),
        };
        let ms = |time: Duration| time.as_millis() as u64;
        Loss { worker, reason, detect_ms: ms(detect), pause_ms: ms(now.since(since)) }
    }

    /// Gives every worker a fresh deadline if this input comes late, before the deadlines are
    /// judged. Returns whether it does.
    pub(super) fn wake(&mut self, now: Time) -> bool {
        let late = now.since(self.ticked) > TICK + LATE;
        if late {
            self.heard.values_mut().for_each(|heard| *heard = now);
            self.ticked = now;
        }
        late
    }

    /// Whether an answer of the worker is worth waiting for. That is so if it is not suspected. It
    /// is also so if the worker is not dead, and may be back in a moment or is missing together
    /// with many others.
    pub(super) fn may_answer(&self, now: Time, worker: WorkerId) -> bool {
        let soon = !self.is_silent(now, worker);
        match self.certainty(worker) {
            None => true,
            Some(Certainty::Silent) => soon || self.is_awaited(now, worker),
            Some(Certainty::Hung) => false,
            Some(Certainty::Refused) => soon && self.outage.is_some(),
            Some(Certainty::Dead) => false,
        }
    }

    /// Whether the worker is silent, and awaited all the same, since many fell silent together.
    pub(super) fn is_awaited(&self, now: Time, worker: WorkerId) -> bool {
        let is_excused = |outage: &Outage| now < outage.until && !outage.overdue.contains(&worker);
        self.outage.as_ref().is_some_and(is_excused)
            && self.is_silent(now, worker)
            && self.certainty(worker) <= Some(Certainty::Silent)
    }

    /// Time has passed, and this coordinator was awake.
    pub(super) fn tick(&mut self, now: Time) {
        self.ticked = now;
        self.look_for_outage(now);
    }

    /// Checks whether many workers are missing, or no longer are. Returns whether an outage begins.
    /// Workers that an earlier outage has waited for in vain begin no new one. An outage goes on
    /// while no worker is heard, even if few of them may still live.
    pub(super) fn look_for_outage(&mut self, now: Time) -> bool {
        let missing: BTreeSet<WorkerId> = self.missing(now).collect();
        let all = self.heard.keys().filter(|worker| !self.is_dead(**worker)).count();
        let hears_none = all > 0 && missing.len() == all;
        let goes_on = hears_none && self.outage.is_some();
        if !goes_on && !self.is_outage(missing.len()) {
            self.wane(now, !missing.is_empty());
            return false;
        }
        let mut overdue = BTreeSet::new();
        if let Some(mut outage) = self.outage.take() {
            if hears_none {
                outage.until = outage.until.max(now + RETURN);
            }
            if now < outage.until {
                self.go_on(now, &mut outage, &missing);
                self.outage = Some(outage);
                return false;
            }
            overdue =
                missing.iter().filter(|it| outage.awaited.contains_key(it)).copied().collect();
            let others = missing.len() - overdue.len();
            self.outage = Some(outage);
            if !self.is_outage(others) {
                return false;
            }
        }
        let awaited = missing.into_iter().map(|worker| (worker, now)).collect();
        let (since, until, extended) = (now, now + OUTAGE, now);
        self.outage = Some(Outage { since, until, extended, awaited, overdue });
        true
    }

    /// The outage lasts. It begins anew if the workers that have fallen silent since would be an
    /// outage by themselves. But a worker counts only once, so that workers with unstable links
    /// cannot keep a dead worker in the run.
    fn go_on(&self, now: Time, outage: &mut Outage, missing: &BTreeSet<WorkerId>) {
        outage.overdue.retain(|worker| missing.contains(worker));
        outage.awaited.retain(|worker, _| missing.contains(worker));
        for worker in missing {
            outage.awaited.entry(*worker).or_insert(now);
        }
        let is_new = |(worker, since): &(&WorkerId, &Time)| {
            **since > outage.extended && !self.returned.contains(worker)
        };
        if self.is_outage(outage.awaited.iter().filter(is_new).count()) {
            (outage.extended, outage.until) = (now, outage.until.max(now + OUTAGE));
        }
    }

    /// Few workers are missing. The rest have as long as any other worker that returns from an
    /// outage.
    fn wane(&mut self, now: Time, is_any_missing: bool) {
        let waits = is_any_missing || self.spared.values().any(|until| now < *until);
        match &mut self.outage {
            Some(outage) if waits && now < outage.until => {
                outage.until = outage.until.min(now + RETURN);
            }
            _ => {
                self.outage = None;
                self.returned.clear();
                self.spared.clear();
            }
        }
    }

    /// Whether this many workers missing at once are an outage.
    fn is_outage(&self, missing: usize) -> bool {
        missing >= 2 && self.are_many(missing)
    }

    /// How many workers are silent, and for how long at least one of them has been. `None` if that
    /// is no outage.
    pub(super) fn outage(&self, now: Time) -> Option<(usize, Duration)> {
        let outage = self.outage.as_ref().filter(|outage| now < outage.until)?;
        let silent = self.missing(now).filter(|worker| self.is_silent(now, *worker)).count();
        (silent > 0).then(|| (silent, now.since(outage.since) + PATIENCE))
    }

    /// Workers that are silent or suspected, and may live.
    fn missing(&self, now: Time) -> impl Iterator<Item = WorkerId> {
        self.heard.keys().copied().filter(move |worker| self.is_missing(now, *worker))
    }

    fn is_missing(&self, now: Time, worker: WorkerId) -> bool {
        let is_missed = self.is_suspected(worker) && !self.is_hung(worker);
        !self.is_dead(worker) && (is_missed || self.is_silent(now, worker))
    }

    /// The workers that are past their deadlines and not suspected yet, by id. None that an outage
    /// excuses, and none while no other worker is heard.
    pub(super) fn silent(&self, now: Time) -> Vec<WorkerId> {
        let silent = self.heard.keys().copied().filter(|worker| self.is_silent(now, *worker));
        silent
            .filter(|worker| !self.is_suspected(*worker) && !self.is_awaited(now, *worker))
            .filter(|worker| self.hears_another(now, *worker))
            .collect()
    }

    /// Whether another worker was heard a moment ago, if there is any that may live.
    fn hears_another(&self, now: Time, worker: WorkerId) -> bool {
        self.hears_any_of(now, |other| other != worker)
    }

    /// Whether any worker was heard a moment ago, if there is any that may live.
    pub(super) fn hears_any(&self, now: Time) -> bool {
        self.hears_any_of(now, |_| true)
    }

    fn hears_any_of(&self, now: Time, counts: impl Fn(WorkerId) -> bool) -> bool {
        let workers = self.heard.iter().filter(|(worker, _)| counts(**worker));
        let mut living = workers.filter(|(worker, _)| !self.is_missing(now, **worker)).peekable();
        living.peek().is_none() || living.any(|(_, heard)| now.since(*heard) < HEARS)
    }

    /// Whether the worker's deadline has passed.
    pub(super) fn is_silent(&self, now: Time, worker: WorkerId) -> bool {
        let spared = self.spared.get(&worker).is_some_and(|until| now < *until);
        self.unheard(now, worker) >= PATIENCE && !spared
    }

    /// Whether this many are more than a fifth of all. Then this coordinator may be the one that
    /// does not hear.
    pub(super) fn are_many(&self, count: usize) -> bool {
        5 * count > self.heard.len()
    }

    /// How long the worker has been unheard. The answer is [`PATIENCE`] for a worker that the
    /// detector does not listen for.
    pub(super) fn unheard(&self, now: Time, worker: WorkerId) -> Duration {
        self.heard.get(&worker).map_or(PATIENCE, |heard| now.since(*heard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time(0) + Duration::from_millis(ms)
    }

    #[test]
    fn i8_the_first_that_a_cut_silences_is_not_suspected_before_the_others_fall_silent() {
        let [first, second, third] = [WorkerId(1), WorkerId(2), WorkerId(3)];
        let mut silence = Silence::begin(at(0), [first, second, third].into_iter());
        silence.heard(at(200), second);
        silence.heard(at(200), third);
        assert_eq!(silence.silent(at(2_300)), [], "nobody is heard any more");
        silence.tick(at(2_400));
        assert_eq!(silence.silent(at(2_400)), [], "all have fallen silent: an outage");
    }

    #[test]
    fn i8_the_last_worker_that_may_live_is_waited_for_while_nobody_is_heard() {
        let workers = [WorkerId(1), WorkerId(2), WorkerId(3)];
        let mut silence = Silence::begin(at(0), workers.into_iter());
        silence.tick(at(2_300));
        for worker in [WorkerId(1), WorkerId(2)] {
            let doubt = Doubt { reason: "its host says so".into(), certainty: Certainty::Dead };
            silence.suspect(at(2_400), worker, doubt);
        }
        for ms in (2_400..60_000).step_by(100) {
            silence.tick(at(ms));
            assert_eq!(silence.silent(at(ms)), [], "after {ms} ms");
        }
        // Another worker comes, and is heard: the last one has as long as after any outage.
        let waited = (60_000..70_000).step_by(100).find(|ms| {
            silence.heard(at(*ms), WorkerId(4));
            silence.tick(at(*ms));
            !silence.silent(at(*ms)).is_empty()
        });
        assert!(waited.is_some_and(|ms| (65_000..67_000).contains(&ms)), "{waited:?}");
    }

    #[test]
    fn a_worker_that_is_silent_while_others_are_heard_is_suspected_at_its_deadline() {
        let mut silence = Silence::begin(at(0), [WorkerId(1), WorkerId(2)].into_iter());
        silence.heard(at(2_000), WorkerId(2));
        assert_eq!(silence.silent(at(2_200)), [WorkerId(1)]);
        let alone = Silence::begin(at(0), [WorkerId(1)].into_iter());
        assert_eq!(alone.silent(at(2_200)), [WorkerId(1)]);
    }
}
