//! Which workers are suspected to be gone, and which of them are worth waiting for.
//!
//! A suspicion has a [`Certainty`]. Silence and a refused port are hints: a suspect that answers is
//! cleared, and nothing is given up for a hint alone. Only [`Certainty::Dead`] is proof that a
//! worker's state is gone: its process said goodbye, its host reported the end of the process, or
//! another process has taken its place.
//!
//! When many workers fall silent together, the network of this coordinator is the likelier cause:
//! that is an [`Outage`]. The detector then suspects no worker for silence until the outage has
//! lasted [`OUTAGE_WAITED_OUT_FOR`], and never while it hears no worker at all. Each worker that is
//! heard again gives all the others a fresh deadline, but only once, so that a worker with an
//! unstable link cannot keep a dead worker in the run.
//!
//! A shorter time in which no worker is heard counts for none of them, once one is heard again: a
//! worker may have lost its link meanwhile, and dials again. Between two signs of life of a worker
//! at most one deadline is added, so that no other one can keep it in the run.
//!
//! When the links of several workers are cut at one moment, the worker with the earliest heartbeat
//! due is silent alone for a moment. So the detector suspects a worker for silence only while it
//! hears another worker, and not while so many others have missed heartbeats that they and the
//! worker may be an outage in a moment. A worker that came after the silence began is heard, and
//! proves nothing about the links of the others, until it has been there for as long as an outage
//! is waited out.
//!
//! A coordinator that was itself late (paused, starved, its messages still in a queue) cannot tell
//! its own silence from theirs. Then every worker gets a fresh deadline. The detector does not know
//! which workers are members, nor what a suspicion leads to.

mod suspicion;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::WorkerId;
use everstep_transport::protocol::reason::LossReason;
use everstep_transport::time::Time;

pub(super) use self::suspicion::{Certainty, Suspicion};
use super::CORE_TICK;
use crate::state::Loss;

/// A registered worker that says nothing for this long is suspected.
pub(super) const WORKER_SUSPECT_AFTER: Duration = Duration::from_millis(2_200);
/// Workers that fell silent together are waited for this long, as long as any other worker is
/// heard.
const OUTAGE_WAITED_OUT_FOR: Duration = Duration::from_secs(20);
/// After an outage a worker has this long to dial again, counted from the first worker that did.
const OUTAGE_RETURN_TIME: Duration = Duration::from_secs(6);
/// While another worker was heard within this long, more than two heartbeats, the coordinator
/// hears.
const WORKER_HEARD_WITHIN: Duration = Duration::from_millis(600);
/// How long after a silence of a worker all members know which of their links it has cost: a
/// link's idle time-out of 3 s, and a second for the news.
const LINKS_SETTLE_IN: Duration = Duration::from_secs(4);
/// A tick that is later than this makes all deadlines anew.
const TICK_LATE_AFTER: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Suspect {
    suspicion: Suspicion,
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
    /// The workers that were missing at the last check before `until`, and since when.
    awaited: BTreeMap<WorkerId, Time>,
    /// The workers that an earlier outage has waited for in vain. This one does not wait for them.
    overdue: BTreeSet<WorkerId>,
}

/// What a sign of life of one worker means for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignOfLife {
    /// It means nothing for others.
    Alone,
    /// The worker returns from an outage: the other missing workers have a fresh deadline.
    First,
}

#[derive(Debug)]
pub(super) struct FailureDetector {
    heard: BTreeMap<WorkerId, Time>,
    /// When any worker was heard last.
    newest: Time,
    /// What was added to the deadlines of workers since they were heard.
    added: BTreeMap<WorkerId, Duration>,
    /// Since when this coordinator listens for each worker.
    listening: BTreeMap<WorkerId, Time>,
    /// Since when workers are heard again that may have been silent for long. No entry for a worker
    /// that was never silent.
    back_since: BTreeMap<WorkerId, Time>,
    suspects: BTreeMap<WorkerId, Suspect>,
    /// Workers that were spared when another worker returned from an outage, and until when.
    spared: BTreeMap<WorkerId, Time>,
    /// The workers that have returned from the outage: each spares the others once.
    returned: BTreeSet<WorkerId>,
    outage: Option<Outage>,
    /// The workers that this coordinator has heard since it began to listen.
    met: BTreeSet<WorkerId>,
    ticked: Time,
    #[cfg(feature = "planted")]
    pub(super) plant: Option<crate::plant::CorePlant>,
}

impl FailureDetector {
    pub(super) fn new(now: Time) -> Self {
        let (heard, listening, suspects, spared, returned, met) = Default::default();
        Self {
            heard,
            newest: now,
            added: BTreeMap::new(),
            listening,
            back_since: BTreeMap::new(),
            suspects,
            spared,
            returned,
            outage: None,
            met,
            ticked: now,
            #[cfg(feature = "planted")]
            plant: None,
        }
    }

    /// A coordinator begins to listen to these workers, each with a fresh deadline. It does not
    /// know which of them were silent before.
    pub(super) fn begin(now: Time, workers: impl Iterator<Item = WorkerId>) -> Self {
        let heard: BTreeMap<WorkerId, Time> = workers.map(|worker| (worker, now)).collect();
        Self { listening: heard.clone(), back_since: heard.clone(), heard, ..Self::new(now) }
    }

    /// The worker lives. The detector listens for it from its first sign on. If it was missing in
    /// an outage, the other missing workers get a fresh deadline.
    pub(super) fn heard(&mut self, now: Time, worker: WorkerId) -> SignOfLife {
        self.end_gap(now);
        let was_silent = self.is_silent(now, worker);
        if self.heard.contains_key(&worker) && self.unheard(now, worker) >= WORKER_SUSPECT_AFTER {
            self.back_since.insert(worker, now);
        }
        let known = self.heard.insert(worker, now).is_some();
        self.added.remove(&worker);
        self.listening.entry(worker).or_insert(now);
        self.met.insert(worker);
        let returns = self.outage.is_some() && known && was_silent;
        if !returns || !self.returned.insert(worker) {
            return SignOfLife::Alone;
        }
        let missing: Vec<WorkerId> = self.missing(now).collect();
        self.spared.extend(missing.into_iter().map(|worker| (worker, now + OUTAGE_RETURN_TIME)));
        SignOfLife::First
    }

    /// A worker is heard. A time without a sign of any worker counts for none that is awaited.
    fn end_gap(&mut self, now: Time) {
        let gap = now.since(std::mem::replace(&mut self.newest, now));
        if gap < WORKER_HEARD_WITHIN || self.outage.is_some() {
            return;
        }
        for worker in self.heard.keys() {
            let added = self.added.entry(*worker).or_default();
            *added = (*added + gap).min(WORKER_SUSPECT_AFTER);
        }
    }

    /// The worker is suspected from now on. The first reason stays, unless the new one has a
    /// stronger ground. Returns whether this is news.
    pub(super) fn suspect(&mut self, now: Time, worker: WorkerId, suspicion: Suspicion) -> bool {
        match self.suspects.get_mut(&worker) {
            Some(known) if known.suspicion.certainty >= suspicion.certainty => false,
            Some(known) => {
                known.suspicion = suspicion;
                true
            }
            None => {
                let detect = self.unheard(now, worker);
                self.suspects.insert(worker, Suspect { suspicion, detect, since: now });
                true
            }
        }
    }

    /// The worker has answered: nothing is left of the suspicion, unless its device hangs.
    pub(super) fn clear(&mut self, worker: WorkerId) {
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

    /// How long the worker's answer has been waited for in vain: since it was heard last, or, if
    /// its device hangs while it is heard, since it was suspected of that.
    pub(super) fn in_vain(&self, now: Time, worker: WorkerId) -> Duration {
        let hung = self.suspects.get(&worker).filter(|_| self.is_hung(worker));
        let hung = hung.map_or(Duration::ZERO, |suspect| now.since(suspect.since));
        self.unheard(now, worker).max(hung)
    }

    /// Why the worker is suspected, if it is.
    pub(super) fn reason(&self, worker: WorkerId) -> Option<&LossReason> {
        self.suspects.get(&worker).map(|known| &known.suspicion.reason)
    }

    /// Whether the worker's device is suspected to hang.
    pub(super) fn is_hung(&self, worker: WorkerId) -> bool {
        self.certainty(worker) == Some(Certainty::Hung)
    }

    /// The worker is back on a link of its own. It may still be suspected, but its process has not
    /// ended.
    pub(super) fn revive(&mut self, now: Time, worker: WorkerId) -> SignOfLife {
        let heard = self.heard(now, worker);
        if let Some(known) = self.suspects.get_mut(&worker)
            && known.suspicion.certainty != Certainty::Hung
        {
            known.suspicion.certainty = Certainty::Silent;
        }
        heard
    }

    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.heard.remove(&worker);
        self.added.remove(&worker);
        self.listening.remove(&worker);
        self.back_since.remove(&worker);
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
        self.suspects.get(&worker).map(|known| known.suspicion.certainty)
    }

    /// The loss of a member, for the reason of its suspicion, or else for `otherwise`.
    pub(super) fn loss(&self, now: Time, worker: WorkerId, otherwise: LossReason) -> Loss {
        let (reason, detect, since) = match self.suspects.get(&worker) {
            Some(known) => (known.suspicion.reason.clone(), known.detect, known.since),
            None => (otherwise, self.unheard(now, worker), now),
        };
        let ms = |time: Duration| time.as_millis() as u64;
        Loss { worker, reason, detect_ms: ms(detect), pause_ms: ms(now.since(since)) }
    }

    /// Gives every worker a fresh deadline if this input comes late, before the deadlines are
    /// judged. Returns whether it does.
    pub(super) fn wake(&mut self, now: Time) -> bool {
        let since_tick = now.since(self.ticked);
        let late = since_tick > CORE_TICK + TICK_LATE_AFTER;
        if late {
            self.heard.values_mut().for_each(|heard| *heard = now);
            if since_tick >= WORKER_SUSPECT_AFTER {
                self.back_since = self.heard.clone(); // A silence would not have been noticed.
            }
            (self.ticked, self.newest) = (now, now);
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
                outage.until = outage.until.max(now + OUTAGE_RETURN_TIME);
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
        let (since, until, extended) = (now, now + OUTAGE_WAITED_OUT_FOR, now);
        self.outage = Some(Outage { since, until, extended, awaited, overdue });
        true
    }

    /// The outage lasts, even if it had begun to wane. It begins anew if the workers that fell
    /// silent since would be one. Each counts only once: a flapping worker keeps no dead one in.
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
            outage.extended = now;
        }
        outage.until = outage.until.max(outage.extended + OUTAGE_WAITED_OUT_FOR);
    }

    /// Few workers are missing. The rest have as long as any other worker that returns from an
    /// outage.
    fn wane(&mut self, now: Time, is_any_missing: bool) {
        let waits = is_any_missing || self.spared.values().any(|until| now < *until);
        match &mut self.outage {
            Some(outage) if waits && now < outage.until => {
                outage.until = outage.until.min(now + OUTAGE_RETURN_TIME);
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
        #[cfg(feature = "planted")]
        if self.plant == Some(crate::plant::CorePlant::IgnoreOutages) {
            return false;
        }
        missing >= 2 && self.are_many(missing)
    }

    /// How many workers are silent, and for how long at least one of them has been. `None` if that
    /// is no outage.
    pub(super) fn outage(&self, now: Time) -> Option<(usize, Duration)> {
        let outage = self.outage.as_ref().filter(|outage| now < outage.until)?;
        let silent = self.missing(now).filter(|worker| self.is_silent(now, *worker)).count();
        (silent > 0).then(|| (silent, now.since(outage.since) + WORKER_SUSPECT_AFTER))
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
            .filter(|worker| !self.may_be_first_of_many(now, *worker))
            .collect()
    }

    /// Whether a worker has just fallen silent, and others have missed heartbeats that would be an
    /// outage together with it. They are past their own deadlines a moment later, or are heard. A
    /// worker that has been silent for longer has no part in that.
    fn may_be_first_of_many(&self, now: Time, worker: WorkerId) -> bool {
        let misses = |worker: &&WorkerId| {
            !self.is_suspected(**worker) && self.unheard(now, **worker) >= WORKER_HEARD_WITHIN
        };
        let quiet: Vec<_> = self.heard.keys().filter(misses).collect();
        let all_silent = quiet.iter().all(|worker| self.is_silent(now, **worker));
        let just_silent = self.unheard(now, worker) < self.deadline(worker) + WORKER_HEARD_WITHIN;
        just_silent && !all_silent && self.is_outage(quiet.len())
    }

    /// Whether another worker was heard a moment ago, if there is any that may live. A worker that
    /// came after the silence began counts only later.
    fn hears_another(&self, now: Time, worker: WorkerId) -> bool {
        let fell_silent = self.heard.get(&worker).copied().unwrap_or(now);
        let counts = |other: WorkerId| {
            let since = self.listening.get(&other).copied().unwrap_or(now);
            since <= fell_silent || now.since(since) >= OUTAGE_WAITED_OUT_FOR
        };
        let mut living =
            self.heard.iter().filter(|it| *it.0 != worker && !self.is_missing(now, *it.0));
        let hears = |(other, heard): (&WorkerId, &Time)| {
            counts(*other) && now.since(*heard) < WORKER_HEARD_WITHIN
        };
        living.clone().next().is_none() || living.any(hears)
    }

    /// Whether any worker was heard a moment ago, if there is any that may live.
    pub(super) fn hears_any(&self, now: Time) -> bool {
        let mut living = self.heard.iter().filter(|it| !self.is_missing(now, *it.0)).peekable();
        living.peek().is_none() || living.any(|(_, heard)| now.since(*heard) < WORKER_HEARD_WITHIN)
    }

    /// Whether the worker has been heard for so long that a link which it lost since was lost for
    /// another reason than a silence. Two workers that stand still lose links one after the other:
    /// the others' ends time out, and their own ends turn out to be void when they go on.
    pub(super) fn is_settled(&self, now: Time, worker: WorkerId) -> bool {
        let over = |since: &Time| now.since(*since) >= LINKS_SETTLE_IN;
        self.unheard(now, worker) < WORKER_SUSPECT_AFTER
            && self.back_since.get(&worker).is_none_or(over)
    }

    /// How long the worker may be unheard.
    fn deadline(&self, worker: WorkerId) -> Duration {
        WORKER_SUSPECT_AFTER + self.added.get(&worker).copied().unwrap_or_default()
    }

    /// Whether the worker's deadline has passed.
    pub(super) fn is_silent(&self, now: Time, worker: WorkerId) -> bool {
        let spared = self.spared.get(&worker).is_some_and(|until| now < *until);
        self.unheard(now, worker) >= self.deadline(worker) && !spared
    }

    /// Whether this many are more than a fifth of all. Then this coordinator may be the one that
    /// does not hear.
    pub(super) fn are_many(&self, count: usize) -> bool {
        5 * count > self.heard.len()
    }

    /// How long the worker has been unheard. The answer is [`WORKER_SUSPECT_AFTER`] for a worker
    /// that the detector does not listen for.
    pub(super) fn unheard(&self, now: Time, worker: WorkerId) -> Duration {
        self.heard.get(&worker).map_or(WORKER_SUSPECT_AFTER, |heard| now.since(*heard))
    }
}
