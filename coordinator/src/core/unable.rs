//! Workers that cannot compute the run, for a reason that follows from the run itself.
//!
//! The same reason would recur on every worker, so a run that cannot begin without one of these
//! fails, with its words; so does a run under way. The workers stay for the next run.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::outcome::{EventKind, Outcome};
use everstep_transport::protocol::{NodeName, WorkerId};
use everstep_transport::time::Time;

use super::links::Phase;
use super::workers::bounded;
use super::{Core, LinkId};

/// Workers that still build the run have so long to show that they can: after that it is not
/// waited for others that would come.
const PATIENCE: Duration = Duration::from_secs(3);

/// The workers, and why.
#[derive(Debug, Default)]
pub(super) struct Unable {
    reasons: BTreeMap<NodeName, String>,
    since: Option<Time>,
    /// The end of the run is proposed.
    is_judged: bool,
}

impl Core {
    /// A worker that was told the run cannot build it.
    pub(super) fn cannot_build(&mut self, now: Time, link: LinkId, reason: &str) {
        let Some(name) = self.links.find(link).map(|link| link.identity.name.clone()) else {
            return;
        };
        self.links.enter(link, Phase::Unable);
        self.unable.since.get_or_insert(now);
        let reason = bounded(reason);
        if self.unable.reasons.insert(name.clone(), reason.clone()).is_none() {
            self.note(now, EventKind::Unable { name, reason });
        }
        self.judge_unable(now);
    }

    /// A member cannot go on, and no other worker could.
    pub(super) fn cannot_compute(&mut self, now: Time, worker: WorkerId, reason: &str) {
        let Some(known) = self.state.workers().get(&worker) else { return };
        if self.unable.is_judged || !self.state.is_member(worker) {
            return;
        }
        self.unable.is_judged = true;
        let (name, reason) = (known.name.clone(), bounded(reason));
        let reason = format!("{name} (worker {worker}) cannot compute it: {reason}");
        self.propose_end(now, Outcome::Failed { name: Some(name), reason });
    }

    /// Ends a run that cannot begin without workers that cannot compute it.
    pub(super) fn judge_unable(&mut self, now: Time) {
        let (Some(run), Some(since)) = (self.state.run(), self.unable.since) else { return };
        let begun = self.state.record().is_some();
        if begun || self.unable.is_judged || !self.running() {
            return;
        }
        let building = |phase| matches!(phase, Phase::Welcomed | Phase::Registering(_));
        let able = self.links.registered().len() + self.workers_in(building).len();
        let hopeless = able == 0 || now.since(since) >= PATIENCE;
        let first = self.unable.reasons.iter().next();
        let Some((name, reason)) = first.filter(|_| hopeless && able < run.start_workers as usize)
        else {
            return;
        };
        let more = match self.unable.reasons.len() - 1 {
            0 => String::new(),
            1 => ", nor can another worker".into(),
            others => format!(", nor can {others} other workers"),
        };
        let reason = format!("{name} cannot compute it{more}: {reason}");
        let name = Some(name.clone());
        self.unable.is_judged = true;
        self.propose_end(now, Outcome::Failed { name, reason });
    }

    /// Why workers cannot compute a run that has not begun.
    pub(super) fn unable(&self) -> Vec<(NodeName, String)> {
        let waits = self.running() && self.state.record().is_none();
        let reasons = self.unable.reasons.iter().filter(|_| waits);
        reasons.map(|(name, reason)| (name.clone(), reason.clone())).collect()
    }
}
