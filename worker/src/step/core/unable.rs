//! A run that this worker cannot compute.
//!
//! The worker says so, drops its state, and stays. It says so again whenever its message may have
//! been lost. A reason of the run would recur on every worker, and only the coordinator can end the
//! run. As long as the run goes on, other workers can evidently compute it, so this worker tries
//! again. A reason of the worker's place may pass, so the worker tries again sooner.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::time::Duration;

use everstep_transport::protocol::Message;
use everstep_transport::protocol::outcome::Inability;
use everstep_transport::time::Time;

use super::{Core, Phase};

/// The pause after the first error of the place. Each further pause is twice as long.
const BUILD_BACKOFF: Duration = Duration::from_secs(5);
/// The longest pause after an error of the place, and the pause after each error of the run.
const BUILD_BACKOFF_MAX: Duration = Duration::from_secs(30);

/// The pause after the leader has refused what this worker would compute. Each attempt reads all
/// data again, and each refusal is an event.
const REFUSED_BACKOFF: Duration = Duration::from_secs(600);

/// Why a worker cannot compute the run, and when it tries again.
#[derive(Clone, Debug)]
pub(super) struct Unable {
    inability: Inability,
    reason: String,
    again_at: Time,
}

/// The pause after the next error of the place.
#[derive(Clone, Copy, Debug)]
pub(super) struct BuildBackoff(Duration);

impl Default for BuildBackoff {
    fn default() -> Self {
        Self(BUILD_BACKOFF)
    }
}

impl BuildBackoff {
    /// The pause after an error of this kind.
    fn after(&mut self, inability: Inability) -> Duration {
        match inability {
            Inability::Run => BUILD_BACKOFF_MAX,
            Inability::Place => {
                let longer = Self((2 * self.0).min(BUILD_BACKOFF_MAX));
                std::mem::replace(self, longer).0
            }
        }
    }
}

impl Core {
    /// The model or the data cannot be built, or fail later.
    pub(super) fn unable(&mut self, now: Time, inability: Inability, reason: String) {
        let run = match self.leave() {
            Some((setup, _)) => setup.run.clone(),
            None => match &self.phase {
                Phase::Building(run) => (**run).clone(),
                _ => return, // The error is of a run that is over.
            },
        };
        self.renew_model(false);
        let again_at = now + self.backoff.after(inability);
        self.phase = Phase::Unable(Box::new(run), Unable { inability, reason, again_at });
        self.report_unable();
    }

    /// The leader refuses what this worker would compute: its data or its model differ from those
    /// of the other workers. A user may correct this worker's files, so the worker tries again.
    pub(super) fn turned_away(&mut self, now: Time, reason: String) {
        if !matches!(self.phase, Phase::Registering(..)) {
            self.refused += 1;
            return;
        }
        let Some((setup, _)) = self.leave() else { return };
        self.renew_model(false);
        let (inability, again_at) = (Inability::Place, now + REFUSED_BACKOFF);
        let unable = Unable { inability, reason, again_at };
        self.phase = Phase::Unable(Box::new(setup.run.clone()), unable);
    }

    /// When a worker that cannot compute the run tries again. `None` for other workers.
    pub fn tries_again_at(&self) -> Option<Time> {
        match &self.phase {
            Phase::Unable(_, Unable { again_at, .. }) => Some(*again_at),
            _ => None,
        }
    }

    /// Tells the leader again why this worker cannot compute the run.
    pub(super) fn report_unable(&mut self) {
        if let Phase::Unable(_, Unable { inability, reason, .. }) = &self.phase {
            let (inability, reason) = (*inability, reason.clone());
            self.send_to_leader(Message::Unable { inability, reason });
        }
    }

    /// Time passes: the worker may be able to compute the run by now. If a worker with an id has
    /// said that the run itself cannot be computed, the run is about to end, and the worker does
    /// not try.
    pub(super) fn retry_build(&mut self, now: Time) {
        let Phase::Unable(run, Unable { inability, again_at, .. }) = &self.phase else { return };
        match (inability, self.worker()) {
            _ if now < *again_at => {}
            (_, None) => {
                let run = (**run).clone();
                self.build(run);
            }
            (Inability::Place, Some(_)) => self.evicted(), // The worker's state is gone.
            (Inability::Run, Some(_)) => {}
        }
    }
}
