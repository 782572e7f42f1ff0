//! Who has not been heard for too long, and who else is suspected to be gone.
//!
//! A suspicion is no verdict: a suspect that answers is acquitted. Some are known to be dead: their
//! process said goodbye, or its end was noticed. Silence alone is not death, but after
//! [`GIVEN_UP`] nobody waits any longer.
//!
//! A coordinator that was itself late (paused, starved, its messages still in a queue) cannot tell
//! its own silence from theirs: then everyone gets a fresh deadline. It does not know who is a
//! member, nor what a suspicion leads to.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::WorkerId;
use everstep_transport::time::Time;

use super::TICK;
use crate::state::Loss;

/// A registered worker that says nothing for this long is suspected.
pub(super) const PATIENCE: Duration = Duration::from_millis(2_200);
/// A worker that was not heard for this long counts as dead.
pub(super) const GIVEN_UP: Duration = Duration::from_secs(10);
/// A tick that is later than this makes all deadlines anew.
const LATE: Duration = Duration::from_millis(500);

/// Why a worker is suspected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    pub(super) reason: String,
    /// Its process is known to be gone, or to have given up.
    pub(super) dead: bool,
}

#[derive(Debug)]
struct Suspicion {
    doubt: Doubt,
    /// From its last sign of life until the suspicion.
    detect: Duration,
    /// When that was.
    since: Time,
}

#[derive(Debug)]
pub(super) struct Silence {
    heard: BTreeMap<WorkerId, Time>,
    suspects: BTreeMap<WorkerId, Suspicion>,
    ticked: Time,
}

impl Silence {
    pub(super) fn new(now: Time) -> Self {
        Self { heard: BTreeMap::new(), suspects: BTreeMap::new(), ticked: now }
    }

    /// A coordinator begins to listen: to these workers, each with a fresh deadline.
    pub(super) fn begin(now: Time, workers: impl Iterator<Item = WorkerId>) -> Self {
        let heard = workers.map(|worker| (worker, now)).collect();
        Self { heard, ..Self::new(now) }
    }

    /// The worker lives; from its first sign on it is listened for.
    pub(super) fn heard(&mut self, now: Time, worker: WorkerId) {
        self.heard.insert(worker, now);
    }

    /// The worker is suspected from now on. The first reason stays, unless it was a guess and the
    /// new one is knowledge. Returns whether this is news.
    pub(super) fn suspect(&mut self, now: Time, worker: WorkerId, doubt: Doubt) -> bool {
        match self.suspects.get_mut(&worker) {
            Some(known) if known.doubt.dead || !doubt.dead => false,
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

    /// It has answered: nothing is left of the suspicion.
    pub(super) fn acquit(&mut self, worker: WorkerId) {
        self.suspects.remove(&worker);
    }

    /// It is back on a link of its own: suspected perhaps, but not dead.
    pub(super) fn revive(&mut self, now: Time, worker: WorkerId) {
        self.heard(now, worker);
        if let Some(known) = self.suspects.get_mut(&worker) {
            known.doubt.dead = false;
        }
    }

    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.heard.remove(&worker);
        self.suspects.remove(&worker);
    }

    pub(super) fn is_suspected(&self, worker: WorkerId) -> bool {
        self.suspects.contains_key(&worker)
    }

    pub(super) fn suspects(&self) -> impl Iterator<Item = WorkerId> {
        self.suspects.keys().copied()
    }

    pub(super) fn is_dead(&self, worker: WorkerId) -> bool {
        self.suspects.get(&worker).is_some_and(|known| known.doubt.dead)
    }

    /// Nothing is to be expected of the worker any more: it is dead, or unheard for too long.
    pub(super) fn has_given_up(&self, now: Time, worker: WorkerId) -> bool {
        self.is_dead(worker) || self.unheard(now, worker) >= GIVEN_UP
    }

    /// How a member is lost: by what it was suspected of, else by `otherwise`.
    pub(super) fn loss(&self, now: Time, worker: WorkerId, otherwise: &str) -> Loss {
        let (reason, detect, since) = match self.suspects.get(&worker) {
            Some(known) => (known.doubt.reason.clone(), known.detect, known.since),
            None => (otherwise.to_string(), self.unheard(now, worker), now),
        };
        let ms = |time: Duration| time.as_millis() as u64;
        Loss { worker, reason, detect_ms: ms(detect), pause_ms: ms(now.since(since)) }
    }

    /// Something happens: if it comes late, everyone gets a fresh deadline, before it is judged.
    /// Returns whether that is so.
    pub(super) fn wake(&mut self, now: Time) -> bool {
        let late = now.since(self.ticked) > TICK + LATE;
        if late {
            self.heard.values_mut().for_each(|heard| *heard = now);
            self.ticked = now;
        }
        late
    }

    /// Whether an answer of the worker is worth waiting for: it is not suspected, or only of a lost
    /// link, which it may have again in a moment.
    pub(super) fn may_answer(&self, now: Time, worker: WorkerId) -> bool {
        !self.is_suspected(worker)
            || (!self.is_dead(worker) && self.unheard(now, worker) < PATIENCE)
    }

    /// Time has passed, and this coordinator was there.
    pub(super) fn tick(&mut self, now: Time) {
        self.ticked = now;
    }

    /// The workers whose deadline has passed and that are not suspected yet, by id.
    pub(super) fn silent(&self, now: Time) -> Vec<WorkerId> {
        let silent = self.heard.iter().filter(|(_, heard)| now.since(**heard) >= PATIENCE);
        silent.map(|(&worker, _)| worker).filter(|worker| !self.is_suspected(*worker)).collect()
    }

    /// Whether so many are more than a fifth of all: then it may be this coordinator that does not
    /// hear.
    pub(super) fn are_many(&self, count: usize) -> bool {
        5 * count > self.heard.len()
    }

    /// How long nothing was heard of the worker. One that is not listened for was never heard.
    fn unheard(&self, now: Time, worker: WorkerId) -> Duration {
        self.heard.get(&worker).map_or(GIVEN_UP, |heard| now.since(*heard))
    }
}
