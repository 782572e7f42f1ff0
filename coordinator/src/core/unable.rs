//! Workers that cannot compute the run.
//!
//! A reason that follows from the run itself would recur on every worker. So a run that cannot
//! begin without one of these workers fails, with the worker's words. So does a run under way. The
//! workers stay for the next run. A reason of a worker's own place, such as a lack of memory, never
//! ends a run. The status names that worker, which tries again, and counts as a worker that may
//! yet be able to compute.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::protocol::outcome::{EventKind, Inability, Outcome};
use everstep_transport::protocol::{NodeName, WorkerId};
use everstep_transport::time::Time;

use super::links::Phase;
use super::silence::{Certainty, Doubt};
use super::workers::bounded;
use super::{Core, LinkId};

/// Workers that still build the run, or are yet to come, have this long to show that they can.
const PATIENCE: Duration = Duration::from_secs(3);

/// The workers that cannot compute the run, and why.
#[derive(Debug, Default)]
pub(super) struct Unable {
    reasons: BTreeMap<NodeName, Reason>,
    /// Since when there is a worker for which the run is the reason.
    since: Option<Time>,
    /// Whether the end of the run is proposed.
    is_judged: bool,
}

/// Why a worker cannot compute the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// Where the reason lies.
    pub inability: Inability,
    /// The reason in words.
    pub words: String,
}

impl Unable {
    /// A worker has built the run after all.
    pub(super) fn forget(&mut self, name: &NodeName) {
        self.reasons.remove(name);
        if self.hopeless().next().is_none() {
            self.since = None;
        }
    }

    /// The link of a worker is gone: this coordinator no longer knows what its place lacks.
    pub(super) fn disconnected(&mut self, name: &NodeName) {
        if self.reasons.get(name).is_some_and(|why| why.inability == Inability::Place) {
            self.reasons.remove(name);
        }
    }

    /// The workers for which the run is the reason, with their words.
    fn hopeless(&self) -> impl Iterator<Item = (&NodeName, &str)> {
        let of_run = self.reasons.iter().filter(|(_, why)| why.inability == Inability::Run);
        of_run.map(|(name, why)| (name, why.words.as_str()))
    }
}

impl Core {
    /// A worker that was told the run cannot build it.
    pub(super) fn cannot_build(
        &mut self,
        now: Time,
        link: LinkId,
        (inability, words): (Inability, &str),
    ) {
        let Some(name) = self.links.find(link).map(|link| link.identity.name.clone()) else {
            return;
        };
        self.links.enter(link, Phase::Unable);
        if inability == Inability::Run {
            self.unable.since.get_or_insert(now);
        }
        let reason = bounded(words);
        let why = Reason { inability, words: reason.clone() };
        let before = self.unable.reasons.insert(name.clone(), why);
        if before.is_none_or(|before| before.inability != inability) {
            self.note(now, EventKind::Unable { name, reason, inability });
        }
        self.judge_unable(now);
    }

    /// A registered worker cannot go on. If the run is the reason, no other worker could compute
    /// it. Else this worker has given up what it held, and comes back when its place allows that.
    pub(super) fn cannot_compute(
        &mut self,
        now: Time,
        worker: WorkerId,
        (inability, words): (Inability, &str),
    ) {
        let Some(known) = self.state.workers().get(&worker) else { return };
        let (name, reason) = (known.name.clone(), bounded(words));
        if inability == Inability::Place {
            let reason = format!("it cannot compute yet: {reason}");
            return self.suspect(now, worker, Doubt { reason, certainty: Certainty::Dead });
        }
        if self.unable.is_judged || !self.state.is_member(worker) {
            return;
        }
        self.unable.is_judged = true;
        let reason = format!("{} cannot compute it: {reason}", known.label(worker));
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
        let hopeless = self.unable.hopeless().count();
        let waiting = self.unable.reasons.len() - hopeless;
        let able = self.links.registered().len() + self.workers_in(building).len() + waiting;
        let all_came = hopeless >= run.start_workers as usize;
        let is_due = able == 0 && all_came || now.since(since) >= PATIENCE;
        let first = self.unable.hopeless().next();
        let Some((name, reason)) = first.filter(|_| is_due && able < run.start_workers as usize)
        else {
            return;
        };
        let more = match hopeless - 1 {
            0 => String::new(),
            1 => ", nor can another worker".into(),
            others => format!(", nor can {others} other workers"),
        };
        let reason = format!("{name} cannot compute it{more}: {reason}");
        let name = Some(name.clone());
        self.unable.is_judged = true;
        self.propose_end(now, Outcome::Failed { name, reason });
    }

    /// Why workers cannot compute the run. Before the run has begun these are all such workers,
    /// later only those with a place that is the reason.
    pub(super) fn unable(&self) -> Vec<(NodeName, Reason)> {
        let begun = self.state.record().is_some();
        let counts = |why: &Reason| !begun || why.inability == Inability::Place;
        let reasons = self.unable.reasons.iter().filter(|(_, why)| self.running() && counts(why));
        reasons.map(|(name, why)| (name.clone(), why.clone())).collect()
    }
}
