//! The votes of one step, as the step leader counts them.
//!
//! A step commits when every member has voted, the votes together cover every data shard and every
//! parameter shard exactly once, and the owners of each shard agree on the digest of its version
//! before the step. The step leader adds norm and loss in index order, so they depend neither on
//! the order of votes nor on the owners.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeMap;

use everstep_transport::protocol::figures::mean_of_parts;
use everstep_transport::protocol::scalar::{Scalar, means};
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{Prepared, Shard, Step, WorkerId};

use super::plan::MemberPlan;

/// The votes that have arrived.
#[derive(Debug)]
pub struct VoteTally {
    step: Step,
    /// The run is over: the votes are empty, and only say that the step before has settled.
    empty: bool,
    votes: BTreeMap<WorkerId, Prepared>,
}

/// A vote that does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VoteError {
    /// The vote is of another step, or its sender is not a member.
    #[error("a vote of the worker with id {0} that the step leader does not expect")]
    Stray(WorkerId),
    /// The member has voted already.
    #[error("a second vote of the worker with id {0}")]
    Repeated(WorkerId),
    /// The vote does not match what the plan assigns to the member.
    #[error("a vote of the worker with id {0} that does not match its assignment")]
    Mismatch(WorkerId),
}

/// Two owners hold different bits of one version of a shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the workers with ids {first} and {second} hold different bits of parameter shard {shard}")]
pub struct DigestMismatch {
    /// The shard that the owners disagree on.
    pub shard: Shard,
    /// The first owner in the order of ids.
    pub first: WorkerId,
    /// An owner with another digest than the first one.
    pub second: WorkerId,
}

/// Why a history must not go on: silently wrong parameters are worse than none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Divergence {
    /// Two owners hold different bits (invariants I3 and I19).
    #[error(transparent)]
    Digests(DigestMismatch),
    /// A commit's loss scale does not follow from the one before and its decision (invariant I2).
    #[error(
        "the worker with id {from} tells a commit of step {step} with a loss scale that does not \
         follow"
    )]
    Unscaled {
        /// The step that the commit is of.
        step: Step,
        /// The worker that sent the commit.
        from: WorkerId,
    },
    /// One step was committed in two ways (invariant I2).
    #[error(
        "the worker with id {from} tells another commit of step {step} than the one that is known"
    )]
    Contradiction {
        /// The step that the commit is of.
        step: Step,
        /// The worker that sent the second commit.
        from: WorkerId,
    },
}

impl Divergence {
    /// The member that is surely at fault. None if no single member is.
    pub fn at_fault(&self) -> Option<WorkerId> {
        match self {
            Self::Digests(_) => None,
            Self::Unscaled { from, .. } | Self::Contradiction { from, .. } => Some(*from),
        }
    }
}

/// The sums and maxima of all votes of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTotals {
    /// Global norm of the gradient.
    pub norm: f64,
    /// The mean loss over the step, in which each micro-batch counts by its weight.
    pub loss: f64,
    /// 1 over the mean weight of the micro-batches. Norm and loss contain it.
    pub gradient_factor: f32,
    /// Mean loss over the held-out samples, if the step evaluates them.
    pub validation_loss: Option<f64>,
    /// The model's own metric over the held-out samples, if it has one.
    pub metric: Option<f64>,
    /// Means of the scalars that the model has logged, by name.
    pub scalars: Vec<Scalar>,
    /// Compute time of the slowest member, seconds.
    pub compute_seconds: f64,
    /// Seconds from vote to commit of the step before, for the member that waited least for the
    /// step leader's commit.
    pub commit_seconds: f64,
    /// Planned samples that no data shard contains.
    pub samples_lost: u64,
    /// Samples that were not planned, or were used more often than planned.
    pub samples_repeated: u64,
}

impl StepTotals {
    /// Whether owners can apply the step: the gradient and the loss are finite, and its
    /// micro-batches weigh something.
    pub fn is_finite(&self) -> bool {
        let factor = self.gradient_factor;
        self.norm.is_finite() && self.loss.is_finite() && factor.is_finite() && factor > 0.0
    }
}

impl VoteTally {
    /// A tally without votes on `step`. After the last step the votes are `empty`.
    pub fn new(step: Step, empty: bool) -> Self {
        Self { step, empty, votes: BTreeMap::new() }
    }

    /// The step of the votes.
    pub fn step(&self) -> Step {
        self.step
    }

    /// Takes a vote. A refused vote changes nothing.
    pub fn cast(
        &mut self,
        plan: &MemberPlan,
        from: WorkerId,
        vote: Prepared,
    ) -> Result<(), VoteError> {
        if vote.step != self.step || vote.generation != plan.generation() {
            return Err(VoteError::Stray(from));
        }
        if self.votes.contains_key(&from) {
            return Err(VoteError::Repeated(from));
        }
        let rank = plan.record().rank(from).ok_or(VoteError::Stray(from))?;
        let owned = plan.record().owned_by(rank);
        let digests = vote.digests.iter().map(|(shard, _)| *shard);
        if !digests.eq(owned.iter().map(|(shard, _)| *shard)) {
            return Err(VoteError::Mismatch(from));
        }
        let primaries = owned.iter().filter(|(_, primary)| *primary).map(|(shard, _)| *shard);
        let squares = vote.squares.iter().map(|(shard, _)| *shard);
        let computed = vote.contributions.iter().map(|part| part.data_shard);
        let matches = if self.empty {
            vote.squares.is_empty() && vote.contributions.is_empty()
        } else {
            let assigned = plan.record().member(rank).data_shards.iter().copied();
            squares.eq(primaries) && computed.eq(assigned)
        };
        if !matches {
            return Err(VoteError::Mismatch(from));
        }
        self.votes.insert(from, vote);
        Ok(())
    }

    /// Whether every member has voted.
    pub fn is_complete(&self, plan: &MemberPlan) -> bool {
        self.votes.len() == plan.record().members.len()
    }

    /// How many data shards the votes have, and the squares of how many parameter shards.
    pub fn covered(&self) -> (usize, usize) {
        let votes = self.votes.values();
        let covered = votes.map(|vote| (vote.contributions.len(), vote.squares.len()));
        covered.fold((0, 0), |sum, vote| (sum.0 + vote.0, sum.1 + vote.1))
    }

    /// How many members have voted.
    #[cfg(feature = "planted")]
    pub fn count(&self) -> usize {
        self.votes.len()
    }

    /// Compares the owners' digests (invariants I3 and I19).
    pub fn agree(&self) -> Result<(), DigestMismatch> {
        let mut known: BTreeMap<Shard, (WorkerId, u64)> = BTreeMap::new();
        for (worker, vote) in &self.votes {
            for (shard, digest) in &vote.digests {
                let (first, expected) = *known.entry(*shard).or_insert((*worker, *digest));
                if expected != *digest {
                    return Err(DigestMismatch { shard: *shard, first, second: *worker });
                }
            }
        }
        Ok(())
    }

    /// Counts the votes of a complete tally, for the step leader. Each data shard has `accumulate`
    /// micro-batches.
    pub fn totals(&self, leader: WorkerId, accumulate: u32) -> StepTotals {
        let votes = self.votes.values();
        let others = self.votes.iter().filter(|(voter, _)| **voter != leader);
        let waits = others.map(|(_, vote)| vote.commit_seconds);
        let mut squares: Vec<_> = votes.clone().flat_map(|vote| &vote.squares).collect();
        squares.sort_by_key(|(shard, _)| *shard);
        let mut parts: Vec<&Contribution> =
            votes.clone().flat_map(|vote| &vote.contributions).collect();
        parts.sort_by_key(|part| part.data_shard);
        let shards = parts.len() as f64;
        // Without weights the quotient is 1, and changes no bits.
        let factor =
            shards * f64::from(accumulate) / parts.iter().map(|part| part.weight).sum::<f64>();
        let gradient_factor = factor as f32;
        let norm = squares.iter().map(|(_, sum)| sum).sum::<f64>().sqrt();
        let loss = parts.iter().map(|part| part.loss).sum::<f64>() / shards;
        let evaluations = parts.iter().filter_map(|part| part.evaluation.as_ref());
        let (validation_loss, metric) = mean_of_parts(evaluations);
        StepTotals {
            norm: norm * f64::from(gradient_factor),
            loss: loss * factor,
            gradient_factor,
            validation_loss,
            metric,
            scalars: means(parts.iter().map(|part| part.scalars.as_slice())),
            compute_seconds: votes.map(|vote| vote.compute_seconds).fold(0.0, f64::max),
            commit_seconds: waits.reduce(f64::min).unwrap_or(0.0),
            samples_lost: parts.iter().map(|part| part.samples_lost).sum(),
            samples_repeated: parts.iter().map(|part| part.samples_repeated).sum(),
        }
    }
}
