//! Votes and commits: how a round ends.
//!
//! A vote says that a member's whole part is done. The step leader commits when every member has
//! voted. A member that learns of the commit applies it and begins the next round.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::sync::Arc;

use everstep_transport::protocol::{
    Commit, Decision, LossScale, Message, MetricsLine, Prepared, Shard, Step, WorkerId,
};
use everstep_transport::time::Time;

use super::{Member, Pace, Round};
#[cfg(feature = "planted")]
use crate::plant::Plant;
use crate::step::ballot::{Ballot, Broken, Tally};
use crate::step::event::{Effect, Job};
use crate::step::holdings::MAX_LINES;
use crate::step::version::Version;

impl Member {
    /// Votes when the member can vote. As step leader, commits when the ballot is complete.
    pub(super) fn advance(&mut self, now: Time) {
        if matches!(self.pace, Pace::Promised | Pace::Waiting) {
            return;
        }
        if self.may_vote() {
            self.round.voted = Some(now);
            let vote = self.vote();
            let to = self.plan.record().step_leader();
            if self.plan.leads() {
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
        let complete = self.ballot.as_ref().is_some_and(|ballot| ballot.is_complete(&self.plan));
        if complete && self.holdings.lines.len() < MAX_LINES {
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
        let entered = self.holdings.device.entering.is_none();
        let current = entered && self.updating.is_empty() && self.gathering.is_empty();
        let current = current && self.round.kept.is_empty();
        let computed = self.holdings.gradients.contributions().len();
        let done = self.is_over()
            || computed == self.plan.data_shards().len()
                && self.holdings.prepared.len() == self.plan.owned().len();
        current && done && self.round.voted.is_none()
    }

    /// Whether the last step is committed. The vote for the step after it is empty.
    pub(super) fn is_over(&self) -> bool {
        self.step().0 > self.setup.run.steps
    }

    fn vote(&self) -> Prepared {
        let gradients = &self.holdings.gradients;
        Prepared {
            generation: self.plan.generation(),
            step: self.step(),
            squares: self.round.squares.iter().map(|(shard, sum)| (*shard, *sum)).collect(),
            contributions: gradients.contributions().values().cloned().collect(),
            digests: self.digests.iter().map(|(shard, digest)| (*shard, *digest)).collect(),
            compute_seconds: gradients.seconds(),
            commit_seconds: self.commit_seconds,
        }
    }

    pub(super) fn cast(&mut self, from: WorkerId, vote: Prepared) {
        let Some(ballot) = &mut self.ballot else { return self.refuse() };
        if ballot.cast(&self.plan, from, vote).is_err() {
            self.refuse();
        }
    }

    fn decide(&mut self, now: Time) {
        let over = self.is_over();
        let Some(ballot) = self.ballot.take() else { return };
        let agreed = ballot.agree();
        #[cfg(feature = "planted")]
        let agreed = if self.has_plant(Plant::TrustDigests) { Ok(()) } else { agreed };
        if let Err(diverged) = agreed {
            self.broken = Some(Broken::Diverged(diverged));
            return;
        }
        // All members have voted for this step, so no failure can undo the one before.
        let settled = Step(ballot.step().0 - 1);
        assert!(settled >= self.settled(), "I5: settled steps never go backwards");
        self.holdings.settled = settled;
        if over {
            return;
        }
        let commit = self.commit_of(now, ballot.tally(self.plan.worker()));
        let strangers = self.feeds.strangers(commit.step);
        let others: Vec<_> = self.plan.others().chain(strangers).collect();
        for to in others {
            self.send(to, Message::Commit(commit.clone()));
        }
        let last = commit.step.0 == self.setup.run.steps;
        self.ballot = Some(Ballot::new(commit.step.next(), last));
        self.adopt(now, commit);
    }

    fn commit_of(&self, now: Time, tally: Tally) -> Commit {
        let step = self.step();
        let finite = tally.norm.is_finite() && tally.loss.is_finite();
        let before = self.commit().map_or(0, |commit| commit.updates);
        let decision = if finite { Decision::Apply } else { Decision::Skip };
        let scale = self.loss_scale();
        let line = MetricsLine {
            step,
            generation: self.plan.generation(),
            world_size: self.plan.record().world_size(),
            loss: tally.loss,
            grad_norm: tally.norm,
            decision,
            loss_scale: scale.factor(),
            learning_rate: f64::from(self.setup.schedule.rate(step.0)),
            tokens: self.setup.tokens_per_step,
            seconds: self.holdings.committed_at.map_or(0.0, |at| now.since(at).as_secs_f64()),
            unix_ms: self.setup.unix_ms_at_zero + now.0 / 1_000_000,
            compute_seconds: tally.compute_seconds,
            commit_seconds: tally.commit_seconds,
            samples_lost: tally.samples_lost,
            samples_repeated: tally.samples_repeated,
        };
        Commit {
            generation: self.plan.generation(),
            step,
            norm: tally.norm,
            loss: tally.loss,
            decision,
            updates: before + u64::from(finite),
            loss_scale: self.setup.scaling.next(scale, decision),
            hold: self.hold,
            line,
        }
    }

    pub(super) fn learn(&mut self, now: Time, from: WorkerId, commit: Commit) {
        if commit.generation == self.plan.generation() && commit.step <= self.committed() {
            return self.compare(from, &commit); // The commit came on another lane first.
        }
        let next = commit.generation == self.plan.generation()
            && commit.step == self.step()
            && self.plan.record().rank(from).is_some();
        if !next || self.round.voted.is_none() || self.plan.leads() {
            return self.refuse();
        }
        if commit.loss_scale != self.setup.scaling.next(self.loss_scale(), commit.decision) {
            self.broken = Some(Broken::Unscaled { step: commit.step, from });
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
            let Commit { norm, loss, decision, updates, loss_scale, .. } = *commit;
            (norm.to_bits(), loss.to_bits(), decision, updates, loss_scale)
        };
        let known = self.commit().filter(|known| known.step == commit.step);
        if known.is_some_and(|known| verdict(known) != verdict(commit)) {
            self.broken = Some(Broken::Contradiction { step: commit.step, from });
        }
    }

    /// The step under way has committed: applies the commit and begins the next round.
    fn adopt(&mut self, now: Time, commit: Commit) {
        assert_eq!(commit.step, self.step(), "I5: commits come one by one");
        let voted = self.round.voted.expect("I19: nobody commits without this member's vote");
        self.commit_seconds = now.since(voted).as_secs_f64();
        assert!(self.keeps_promise(), "I15: nothing is committed after a promise");
        self.round = Round::default();
        self.hold = false;
        self.updating = self.plan.owned().keys().copied().collect();
        let reduced = std::mem::take(&mut self.holdings.prepared);
        for (shard, reduced) in reduced {
            let update = self.holdings.update(&commit, shard, Some(reduced.gradient));
            #[cfg(feature = "planted")]
            if self.has_plant(Plant::UpdateEarly) {
                continue;
            }
            self.device(update);
        }
        match commit.decision {
            Decision::Apply => {
                let shards = (0..self.plan.shards()).map(Shard);
                self.gathering =
                    shards.filter(|shard| !self.plan.owned().contains_key(shard)).collect();
                self.head_streams(&commit);
            }
            Decision::Skip => {
                self.gathering.clear();
                let skip = self.holdings.skip(&commit);
                self.out.extend(skip.map(Effect::Device));
            }
        }
        self.holdings.gradients.begin(Version::of(&commit));
        self.holdings.commit(now, commit.clone());
        self.learn_with(|learning, scene| learning.commit(&commit, scene));
        if commit.hold {
            self.pace = Pace::Holding { since: now };
        } else {
            self.begin_compute();
        }
    }

    /// Gives the device the work of this member that is not computed or under way already.
    pub(super) fn begin_compute(&mut self) {
        if self.is_over() {
            return;
        }
        let assigned: BTreeSet<u32> = self.plan.data_shards().iter().map(|it| it.0).collect();
        let work = self.holdings.gradients.assign(self.plan.tree(), &assigned);
        if let Some(work) = work {
            let (step, scale) = (self.step(), self.loss_scale());
            self.device(Job::Gradient { step, scale, work: Arc::new(work) });
        }
    }

    #[cfg(not(feature = "planted"))]
    fn keeps_promise(&self) -> bool {
        !self.pace.is_promised()
    }
}
