//! Workers that cannot compute the run.
//!
//! A reason that follows from the run itself would recur on every worker. So a run that cannot
//! begin without one of these workers fails, with the worker's words. So does a run under way. The
//! workers stay for the next run. A reason of a worker's own place, such as a lack of memory, never
//! ends a run. The status names that worker, which tries again, and counts as a worker that may
//! yet be able to compute. So does a worker with a build that takes very long: it may hang.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::outcome::{EventKind, Inability, Outcome};
use everstep_transport::protocol::reason::{FailReason, LossReason, UnableCause, UnableReason};
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{Message, NodeName, WorkerId};
use everstep_transport::time::Time;

use super::failure_detector::{Certainty, Suspicion};
use super::links::{Link, PeerPhase};
use super::progress::FIRST_TIMES;
use super::workers::bounded;
use super::{Core, LinkId};

/// Workers that still build the run, or are yet to come, have this long to show that they can.
const ABLE_WORKER_AWAITED_FOR: Duration = Duration::from_secs(3);

/// The workers that cannot compute the run, and why.
#[derive(Debug, Default)]
pub(super) struct UnableWorkers {
    reasons: BTreeMap<NodeName, UnableWorker>,
    /// Since when there is a worker for which the run is the reason.
    since: Option<Time>,
    /// The links of workers that were refused for what they would compute.
    turned_away: BTreeSet<LinkId>,
    /// The workers that build the run, and since when.
    building: BTreeMap<LinkId, Time>,
    /// Whether the end of the run is proposed.
    is_judged: bool,
}

/// A worker that cannot compute the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnableWorker {
    /// Where the reason lies.
    pub inability: Inability,
    /// What keeps the worker from computing the run, and its address.
    pub reason: UnableReason,
}

impl UnableWorkers {
    /// A worker has built the run after all.
    pub(super) fn forget(&mut self, name: &NodeName) {
        self.reasons.remove(name);
        if self.hopeless().next().is_none() {
            self.since = None;
        }
    }

    /// This coordinator no longer knows what the worker's place lacks.
    pub(super) fn forget_place(&mut self, name: &NodeName) {
        if self.reasons.get(name).is_some_and(|why| why.inability == Inability::Place) {
            self.reasons.remove(name);
        }
    }

    /// A worker that was told the run cannot build it. Returns whether that is news.
    fn note(&mut self, now: Time, name: &NodeName, why: UnableWorker) -> bool {
        let inability = why.inability;
        if inability == Inability::Run {
            self.since.get_or_insert(now);
        }
        let before = self.reasons.insert(name.clone(), why);
        before.is_none_or(|before| before.inability != inability)
    }

    /// These workers build the run now. Returns those that have done so for as long as this.
    fn build(&mut self, now: Time, building: Vec<LinkId>, most: Duration) -> Vec<LinkId> {
        let since = |link| (link, self.building.get(&link).copied().unwrap_or(now));
        self.building = building.into_iter().map(since).collect();
        let overdue = self.building.iter().filter(|(_, since)| now.since(**since) >= most);
        overdue.map(|(link, _)| *link).collect()
    }

    /// The first worker for which the run is the reason, and why a run that has not begun fails.
    /// `None` while enough of the other workers may yet compute it: `building` of them build it or
    /// have done so.
    fn verdict(
        &self,
        now: Time,
        start_workers: usize,
        building: usize,
    ) -> Option<(NodeName, FailReason)> {
        let since = self.since.filter(|_| !self.is_judged)?;
        let hopeless = self.hopeless().count();
        let able = building + self.reasons.len() - hopeless;
        let all_came = hopeless >= start_workers;
        let is_due = able == 0 && all_came || now.since(since) >= ABLE_WORKER_AWAITED_FOR;
        let first = self.hopeless().next();
        let (name, reason) = first.filter(|_| is_due && able < start_workers)?;
        let (name, reason, others) = (name.clone(), reason.clone(), hopeless as u64 - 1);
        let reason = FailReason::Unable { name: name.clone(), others, reason };
        Some((name, reason))
    }

    /// The workers for which the run is the reason, and that reason in full.
    fn hopeless(&self) -> impl Iterator<Item = (&NodeName, &UnableReason)> {
        let of_run = self.reasons.iter().filter(|(_, why)| why.inability == Inability::Run);
        of_run.map(|(name, why)| (name, &why.reason))
    }

    /// Why workers cannot compute the run. Once it has `begun`, only workers with a place that is
    /// the reason count.
    fn reasons(&self, begun: bool) -> Vec<(NodeName, UnableWorker)> {
        let counts = |why: &UnableWorker| !begun || why.inability == Inability::Place;
        let reasons = self.reasons.iter().filter(|(_, why)| counts(why));
        reasons.map(|(name, why)| (name.clone(), why.clone())).collect()
    }
}

impl Core {
    /// A worker that was told the run cannot build it.
    pub(super) fn cannot_build(
        &mut self,
        now: Time,
        link: LinkId,
        inability: Inability,
        cause: UnableCause,
    ) {
        if let Some((name, reason)) = self.enter_unable(now, link, inability, cause) {
            self.note(now, EventKind::Unable { name, reason, inability });
        }
        self.judge_unable(now);
    }

    /// Refuses a registration in a cluster that outlives its runs: the worker stays, for the next
    /// run or to try again. The refusal itself is an event.
    pub(super) fn turn_away(&mut self, now: Time, link: LinkId, refusal: &Rejection) {
        let Some(Link { identity, .. }) = self.links.find(link) else { return };
        let (inability, mut reason) = (Inability::Place, refusal.to_string());
        // The sentences that say why this worker waits name it already.
        if matches!(refusal, Rejection::OtherFingerprint { .. } | Rejection::Sizes { .. }) {
            reason = reason.replacen(identity.name.as_str(), "it", 1);
        }
        self.completion.unable.turned_away.insert(link);
        self.outbox.send(link, Message::Unable { inability, reason: reason.clone() });
        self.enter_unable(now, link, inability, UnableCause::Words(reason));
        self.judge_unable(now);
    }

    /// The only worker there is has registered, and says which data are right. Workers that were
    /// refused before for theirs try again.
    pub(super) fn free_turned_away(&mut self) {
        for link in std::mem::take(&mut self.completion.unable.turned_away) {
            let Some(Link { identity, phase, .. }) = self.links.find(link) else { continue };
            if *phase == PeerPhase::Unable {
                self.completion.unable.forget_place(&identity.name);
                self.set_free(link);
            }
        }
    }

    /// The worker on this link cannot compute the run. Returns its name and the reason if that is
    /// news.
    fn enter_unable(
        &mut self,
        now: Time,
        link: LinkId,
        inability: Inability,
        cause: UnableCause,
    ) -> Option<(NodeName, UnableReason)> {
        let Link { identity, address, .. } = self.links.find(link)?;
        let name = identity.name.clone();
        let reason = UnableReason { cause, address: address.map(|address| address.ip()) };
        self.links.enter(link, PeerPhase::Unable);
        let why = UnableWorker { inability, reason: reason.clone() };
        self.completion.unable.note(now, &name, why).then_some((name, reason))
    }

    /// A registered worker cannot go on. If the run is the reason, no other worker could compute
    /// it. Else this worker has given up what it held, and comes back when its place allows that.
    pub(super) fn cannot_compute(
        &mut self,
        now: Time,
        worker: WorkerId,
        inability: Inability,
        words: &str,
    ) {
        let Some(known) = self.state.workers().get(&worker) else { return };
        let (name, words) = (known.name.clone(), bounded(words));
        if inability == Inability::Place {
            let reason = LossReason::CannotCompute(words);
            return self.suspect(now, worker, Suspicion { reason, certainty: Certainty::Dead });
        }
        if self.completion.unable.is_judged || !self.state.is_member(worker) {
            return;
        }
        self.completion.unable.is_judged = true;
        let reason = FailReason::MemberUnable { worker: known.label(worker), words };
        self.propose_end(now, Outcome::Failed { name: Some(name), reason });
    }

    /// Says of workers with a build that takes very long that they cannot compute the run yet.
    pub(super) fn judge_builds(&mut self, now: Time) {
        let Some(least) = self.state.run().map(|run| run.hang_after_ms) else { return };
        let most_ms = least.saturating_mul(FIRST_TIMES);
        let most = Duration::from_millis(most_ms);
        let building = self.workers_in(|phase| phase == PeerPhase::Welcomed);
        for link in self.completion.unable.build(now, building, most) {
            self.cannot_build(now, link, Inability::Place, UnableCause::BuildOverdue(most_ms));
        }
    }

    /// Ends a run that cannot begin without workers that cannot compute it.
    pub(super) fn judge_unable(&mut self, now: Time) {
        let Some(start_workers) = self.state.run().map(|run| run.start_workers) else { return };
        if self.state.record().is_some() || !self.running() {
            return;
        }
        let building = |phase| matches!(phase, PeerPhase::Welcomed | PeerPhase::Registering(_));
        let building = self.links.registered().len() + self.workers_in(building).len();
        let unable = &mut self.completion.unable;
        if let Some((name, reason)) = unable.verdict(now, start_workers as usize, building) {
            unable.is_judged = true;
            self.propose_end(now, Outcome::Failed { name: Some(name), reason });
        }
    }

    /// Why workers cannot compute the run. Before the run has begun these are all such workers,
    /// later only those with a place that is the reason.
    pub(super) fn unable(&self) -> Vec<(NodeName, UnableWorker)> {
        let begun = self.state.record().is_some();
        if self.running() { self.completion.unable.reasons(begun) } else { Vec::new() }
    }
}
