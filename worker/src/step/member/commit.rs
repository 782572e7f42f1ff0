//! Votes and commits: how a round ends.
//!
//! A vote says that a member's whole part is done. The step leader commits when every member has
//! voted. A member that hears of the commit applies it and begins the next round.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::sync::Arc;

use everstep_transport::protocol::{
    Commit, Decision, LossScale, Message, MetricsLine, Prepared, Shard, Step, WorkerId,
};
use everstep_transport::time::Time;

use super::{Member, Round};
#[cfg(feature = "planted")]
use crate::plant::Plant;
use crate::step::event::{Effect, Job};
use crate::step::plan::MemberPlan;
use crate::step::replica_state::MAX_LINES;
use crate::step::version::Version;
use crate::step::vote_tally::{Divergence, StepTotals, VoteTally};

/// The votes of the generation, as this member counts and compares them.
#[derive(Debug)]
pub(super) struct Voting {
    /// The votes on the step under way, if this member is the step leader.
    tally: Option<VoteTally>,
    /// Seconds from the vote for the step before to its commit. 0 in a generation's first step.
    commit_seconds: f64,
    /// The reason why this history must not go on. None if there is none.
    divergence: Option<Divergence>,
}

impl Voting {
    /// A generation begins. The step leader has a tally.
    pub fn new(tally: Option<VoteTally>) -> Self {
        Self { tally, commit_seconds: 0.0, divergence: None }
    }

    /// The votes on the step under way, if this member is the step leader.
    pub fn tally(&self) -> Option<&VoteTally> {
        self.tally.as_ref()
    }

    /// The reason why this history must not go on. None if there is none.
    pub fn divergence(&self) -> Option<&Divergence> {
        self.divergence.as_ref()
    }

    /// Takes a vote. Returns false if it does not count.
    fn cast(&mut self, plan: &MemberPlan, from: WorkerId, vote: Prepared) -> bool {
        self.tally.as_mut().is_some_and(|tally| tally.cast(plan, from, vote).is_ok())
    }
}

impl Member {
    /// Votes when the member can vote. As step leader, commits when the tally is complete.
    pub(super) fn advance(&mut self, now: Time) {
        if self.control.is_at_rest() {
            return;
        }
        if self.may_vote() {
            self.round.voted = Some(now);
            let vote = self.vote();
            self.check_vote(&vote);
            let to = self.plan.record().step_leader();
            if self.plan.is_step_leader() {
                self.cast(to, vote);
            } else {
                self.send(to, Message::Prepared(vote));
            }
            if self.is_over() {
                let data_shards = self.plan.data_shards().to_vec();
                self.device(Job::Finish { version: self.committed(), data_shards });
            }
            #[cfg(feature = "planted")]
            self.update_early();
        }
        let complete = self.voting.tally().is_some_and(|tally| tally.is_complete(&self.plan));
        if complete && self.replica.lines.len() < MAX_LINES {
            self.decide(now);
        }
        #[cfg(feature = "planted")]
        if self.commits_early() {
            self.decide(now);
        }
    }

    /// Whether to vote. A vote also says that every shard of the version before is here. A member
    /// that computes has needed them all. A spare member waits for them.
    fn may_vote(&self) -> bool {
        let entered = self.replica.device.entering.is_none();
        let current = entered && self.all_gather.is_complete();
        let current = current && self.round.kept.is_empty();
        let computed = self.replica.gradients.contributions().len();
        let done = self.is_over()
            || computed == self.plan.data_shards().len()
                && self.replica.prepared.len() == self.plan.owned().len();
        current && done && self.round.voted.is_none()
    }

    /// Whether the last step is committed. The vote for the step after it is empty.
    pub(super) fn is_over(&self) -> bool {
        self.step().0 > self.setup.run.steps
    }

    fn vote(&self) -> Prepared {
        let gradients = &self.replica.gradients;
        Prepared {
            generation: self.plan.generation(),
            step: self.step(),
            squares: self.round.squares.iter().map(|(shard, sum)| (*shard, *sum)).collect(),
            contributions: gradients.contributions().values().cloned().collect(),
            digests: self.all_gather.digests().collect(),
            compute_seconds: gradients.seconds(),
            commit_seconds: self.voting.commit_seconds,
        }
    }

    pub(super) fn cast(&mut self, from: WorkerId, vote: Prepared) {
        if !self.voting.cast(&self.plan, from, vote) {
            self.refuse();
        }
    }

    fn decide(&mut self, now: Time) {
        let over = self.is_over();
        let Some(tally) = self.voting.tally.take() else { return };
        let agreed = tally.agree();
        #[cfg(feature = "planted")]
        let agreed = if self.has_plant(Plant::TrustDigests) { Ok(()) } else { agreed };
        if let Err(mismatch) = agreed {
            self.voting.divergence = Some(Divergence::Digests(mismatch));
            return;
        }
        // All members have voted for this step, so no failure can undo the one before.
        let settled = Step(tally.step().0 - 1);
        assert!(settled >= self.settled(), "I5: settled steps never go backwards");
        self.replica.settled = settled;
        if over {
            return;
        }
        let totals = tally.totals(self.plan.worker(), self.setup.run.batch.accumulate);
        let commit = self.commit_of(now, totals);
        self.check_commit(&commit, &tally);
        let joiners = self.serving.feeds.joiners(commit.step);
        let others: Vec<_> = self.plan.others().chain(joiners).collect();
        for to in others {
            self.send(to, Message::Commit(commit.clone()));
        }
        let last = commit.step.0 == self.setup.run.steps;
        self.voting.tally = Some(VoteTally::new(commit.step.next(), last));
        self.adopt(now, commit);
    }

    fn commit_of(&self, now: Time, totals: StepTotals) -> Commit {
        let step = self.step();
        let finite = totals.is_finite();
        let before = self.commit().map_or(0, |commit| commit.updates);
        let decision = if finite { Decision::Apply } else { Decision::Skip };
        let scale = self.loss_scale();
        let line = MetricsLine {
            step,
            generation: self.plan.generation(),
            world_size: self.plan.record().world_size(),
            loss: totals.loss,
            grad_norm: totals.norm,
            decision,
            loss_scale: scale.factor(),
            learning_rate: f64::from(self.setup.rates.rate(step.0)),
            tokens: self.setup.tokens_per_step,
            seconds: self.replica.committed_at.map_or(0.0, |at| now.since(at).as_secs_f64()),
            unix_ms: self.setup.unix_ms_at_zero + now.0 / 1_000_000,
            compute_seconds: totals.compute_seconds,
            commit_seconds: totals.commit_seconds,
            samples_lost: totals.samples_lost,
            samples_repeated: totals.samples_repeated,
            validation_loss: totals.validation_loss,
            metric: totals.metric,
            scalars: totals.scalars,
        };
        Commit {
            generation: self.plan.generation(),
            step,
            norm: totals.norm,
            loss: totals.loss,
            decision,
            gradient_factor: totals.gradient_factor,
            updates: before + u64::from(finite),
            loss_scale: self.setup.scaling.next(scale, decision),
            hold: self.control.holds_next(),
            line,
        }
    }

    pub(super) fn on_commit(&mut self, now: Time, from: WorkerId, commit: Commit) {
        if commit.generation == self.plan.generation() && commit.step <= self.committed() {
            return self.compare(from, &commit); // The commit came on another lane first.
        }
        let next = commit.generation == self.plan.generation()
            && commit.step == self.step()
            && self.plan.record().rank(from).is_some();
        if !next || self.round.voted.is_none() || self.plan.is_step_leader() {
            return self.refuse();
        }
        if commit.loss_scale != self.setup.scaling.next(self.loss_scale(), commit.decision) {
            self.voting.divergence = Some(Divergence::Unscaled { step: commit.step, from });
            return;
        }
        self.adopt(now, commit);
    }

    /// The factor that the device multiplies the loss of the step under way by.
    fn loss_scale(&self) -> LossScale {
        #[cfg(feature = "planted")]
        if self.forgets_scale() {
            return self.setup.scaling.first();
        }
        self.setup.scaling.after(self.commit())
    }

    /// Compares a commit with the known commit of its step (invariant I2).
    fn compare(&mut self, from: WorkerId, commit: &Commit) {
        let verdict = |commit: &Commit| {
            let Commit { norm, loss, decision, gradient_factor, updates, loss_scale, .. } = *commit;
            let bits = (norm.to_bits(), loss.to_bits(), gradient_factor.to_bits());
            (bits, decision, updates, loss_scale)
        };
        let known = self.commit().filter(|known| known.step == commit.step);
        if known.is_some_and(|known| verdict(known) != verdict(commit)) {
            self.voting.divergence = Some(Divergence::Contradiction { step: commit.step, from });
        }
    }

    /// The step under way has committed: applies the commit and begins the next round.
    fn adopt(&mut self, now: Time, commit: Commit) {
        let before = self.committed();
        assert_eq!(commit.step, before.next(), "I5: commits come one by one");
        let voted = self.round.voted.expect("I19: no commit comes without this member's vote");
        self.voting.commit_seconds = now.since(voted).as_secs_f64();
        assert!(self.keeps_promise(), "I15: nothing is committed after a promise");
        assert!(!self.plan.record().waiting, "I26: a generation that waits takes no step");
        self.check_round();
        self.round = Round::default();
        let reduced = std::mem::take(&mut self.replica.prepared);
        for (shard, reduced) in reduced {
            let update = self.replica.update(&commit, shard, Some(reduced.gradient));
            #[cfg(feature = "planted")]
            if self.has_plant(Plant::UpdateEarly) {
                continue;
            }
            self.device(update);
        }
        match commit.decision {
            Decision::Apply => {
                let shards = (0..self.plan.shards()).map(Shard);
                let others = shards.filter(|shard| !self.plan.owned().contains_key(shard));
                self.all_gather.begin(self.plan.owned().keys().copied(), others);
                self.head_streams(&commit);
            }
            Decision::Skip => {
                let owned = self.plan.owned().keys().copied();
                self.all_gather.begin(owned, std::iter::empty());
                let skip = self.replica.skip(&commit);
                self.out.extend(skip.map(Effect::Device));
            }
        }
        self.replica.gradients.begin(Version::of(&commit));
        self.replica.commit(now, commit.clone());
        self.with_catch_up(|catch_up, context| catch_up.commit(&commit, context));
        self.control.committed(now, commit.hold);
        self.check_adopted(before);
        if !commit.hold {
            self.begin_compute();
        }
    }

    /// Gives the device the work of this member that is not computed or under way already.
    pub(super) fn begin_compute(&mut self) {
        if self.is_over() {
            return;
        }
        let assigned: BTreeSet<u32> = self.plan.data_shards().iter().map(|it| it.0).collect();
        let work = self.replica.gradients.assign(self.plan.tree(), &assigned);
        if let Some(work) = work {
            let (step, scale) = (self.step(), self.loss_scale());
            self.device(Job::Gradient { step, scale, work: Arc::new(work) });
        }
    }

    #[cfg(not(feature = "planted"))]
    fn keeps_promise(&self) -> bool {
        !self.control.is_promised()
    }
}
