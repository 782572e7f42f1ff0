//! Optimizers: what an owner does to a parameter shard once its step has committed.
//!
//! Input: a shard's [`ShardState`] (f32 master weights and moments), its reduced gradient, and the
//! [`Apply`] that all owners agree on. Output: the state after the step. Every rule is elementwise,
//! so the bits do not depend on the cut into shards or on the owners. Each rule has a file.
//!
//! Weight decay is decoupled from the gradient in every rule (Loshchilov, Hutter: "Decoupled Weight
//! Decay Regularization", ICLR 2019). It comes first: `master *= 1 - learning_rate * weight_decay`,
//! in those tensors that decay. This module knows no skipped steps, versions or peers.

pub(crate) mod adamw;
mod lion;
mod sgd;

use std::iter;
use std::ops::Range;

use crate::layout::Layout;
use crate::reduce;

/// An optimizer with valid settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimizer {
    rule: Rule,
    weight_decay: f32,
}

/// How a gradient becomes a change, with the settings of the rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Adam (Kingma, Ba: "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1).
    AdamW {
        /// The share that the mean of gradients keeps at each step, in `[0, 1)`.
        beta1: f32,
        /// The share that the mean of squared gradients keeps at each step, in `[0, 1)`.
        beta2: f32,
        /// Added to the root of the mean of squares. Positive.
        epsilon: f32,
    },
    /// Stochastic gradient descent with heavy-ball momentum.
    Sgd {
        /// The share of the last change's direction that is kept, in `[0, 1)`. With 0 there is no
        /// moment.
        momentum: f32,
    },
    /// Lion (Chen et al.: "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023,
    /// algorithm 2).
    Lion {
        /// The share of the moment in the direction, in `[0, 1)`.
        beta1: f32,
        /// The share that the moment keeps at each step, in `[0, 1)`.
        beta2: f32,
    },
}

/// A setting that no optimizer can have.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{setting} = {value}: it must be {bound}")]
pub struct InvalidSetting {
    /// The name of the setting.
    pub setting: &'static str,
    /// The value that was given.
    pub value: f32,
    /// The allowed range, in words.
    pub bound: &'static str,
}

/// A parameter shard as its owners hold it.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardState {
    /// The weights. Members compute with these, or with them rounded.
    pub master: Vec<f32>,
    /// [`Rule::moments`] vectors as long as the weights.
    pub moments: Vec<Vec<f32>>,
}

/// Digests of everything that an update has read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digests {
    /// Of the state before the update, as the version before ([`ShardState::digest`]).
    pub before: u64,
    /// Of the gradient ([`reduce::digest`], seeded by 0).
    pub gradient: u64,
    /// Of the state after the update, as the version after.
    pub after: u64,
}

/// One update of one parameter shard, with the values that its owners agree on.
#[derive(Clone, Debug)]
pub struct Apply<'a> {
    /// Counts the updates from 1, for rules that correct the bias of their first ones.
    pub step: u64,
    /// The schedule's rate at this step.
    pub learning_rate: f32,
    /// The factor that multiplies the gradient first: [`clip_factor`], or 1.
    pub clip: f32,
    /// The tensors. It tells which of them decay.
    pub layout: &'a Layout,
    /// Where the shard lies in the flat vector, elements.
    pub range: Range<usize>,
}

impl Optimizer {
    /// An optimizer of `rule` with decoupled weight decay, unless a setting is out of its bounds.
    pub fn new(rule: Rule, weight_decay: f32) -> Result<Self, InvalidSetting> {
        rule.validate()?;
        at_least_zero("weight_decay", weight_decay)?;
        Ok(Self { rule, weight_decay })
    }

    /// The state before the first step: these weights, and moments of zero.
    pub fn state(&self, master: Vec<f32>) -> ShardState {
        let moments = vec![vec![0.0; master.len()]; self.rule.moments()];
        ShardState { master, moments }
    }

    /// Bytes that an owner holds for each parameter: master weight and moments, four each.
    pub fn bytes_per_parameter(&self) -> usize {
        size_of::<f32>() * (1 + self.rule.moments())
    }

    /// Makes one step. Block by block, while a block is in the cache, it also takes the digests of
    /// the gradient and of the state, as the version `before` and as the version `after`, and shows
    /// the new weights to `wrote(offset, weights)`. `gradient` is the shard's reduced gradient, not
    /// yet clipped.
    ///
    /// # Panics
    ///
    /// If state, gradient and range differ in length, or the state is that of another rule. To go
    /// on would make silently wrong weights.
    pub fn update(
        &self,
        state: &mut ShardState,
        gradient: &[f32],
        apply: &Apply,
        [before, after]: [u64; 2],
        wrote: &mut dyn FnMut(usize, &[f32]),
    ) -> Digests {
        let length = apply.range.len();
        assert_eq!(state.master.len(), length, "weights of the shard's length");
        assert_eq!(gradient.len(), length, "a gradient of the shard's length");
        assert_eq!(state.moments.len(), self.rule.moments(), "the moments of the rule");
        assert!(state.moments.iter().all(|moment| moment.len() == length), "moments as long");
        let mut digests = Digests { before, gradient: 0, after };
        for block in blocks(length) {
            let gradient = &gradient[block.clone()];
            digests.before = state.digest_block(digests.before, block.clone());
            digests.gradient = reduce::digest(digests.gradient, gradient);
            self.update_block(state, gradient, block.clone(), apply);
            digests.after = state.digest_block(digests.after, block.clone());
            wrote(block.start, &state.master[block]);
        }
        digests
    }

    /// Makes the step of one block of the shard. `gradient` is that of the block.
    fn update_block(
        &self,
        state: &mut ShardState,
        gradient: &[f32],
        block: Range<usize>,
        shard: &Apply,
    ) {
        let start = shard.range.start;
        let apply = Apply { range: start + block.start..start + block.end, ..*shard };
        let weights = &mut state.master[block.clone()];
        self.decay(weights, &apply);
        match (self.rule, state.moments.as_mut_slice()) {
            (Rule::AdamW { beta1, beta2, epsilon }, [mean, square]) => {
                adamw::Step::new([beta1, beta2], epsilon, &apply)
                    .update([weights, &mut mean[block.clone()], &mut square[block]], gradient);
            }
            (Rule::Sgd { momentum }, [velocity]) => {
                let velocity = &mut velocity[block];
                sgd::update_with_momentum((weights, velocity), gradient, momentum, &apply);
            }
            (Rule::Sgd { .. }, _) => sgd::update(weights, gradient, &apply),
            (Rule::Lion { beta1, beta2 }, [mean]) => {
                lion::update((weights, &mut mean[block]), gradient, (beta1, beta2), &apply);
            }
            _ => unreachable!("the number of moments was checked"),
        }
    }

    /// The rule with its settings.
    pub(crate) fn rule(&self) -> Rule {
        self.rule
    }

    /// The factor for decaying weights at each step.
    pub(crate) fn kept(&self, learning_rate: f32) -> f32 {
        1.0 - learning_rate * self.weight_decay
    }

    fn decay(&self, master: &mut [f32], apply: &Apply) {
        let kept = self.kept(apply.learning_rate);
        for (tensor, part) in apply.layout.parts(apply.range.clone()) {
            if tensor.decay {
                let start = apply.range.start;
                master[part.start - start..part.end - start].iter_mut().for_each(|w| *w *= kept);
            }
        }
    }
}

impl Rule {
    /// The number of moments of a parameter.
    pub fn moments(&self) -> usize {
        match self {
            Self::AdamW { .. } => 2,
            Self::Sgd { momentum: 0.0 } => 0,
            Self::Sgd { .. } | Self::Lion { .. } => 1,
        }
    }

    fn validate(&self) -> Result<(), InvalidSetting> {
        match *self {
            Self::AdamW { beta1, beta2, epsilon } => {
                share("beta1", beta1)?;
                share("beta2", beta2)?;
                let valid = epsilon > 0.0 && epsilon.is_finite();
                bounded(valid, "epsilon", epsilon, "positive and finite")
            }
            Self::Sgd { momentum } => share("momentum", momentum),
            Self::Lion { beta1, beta2 } => {
                share("beta1", beta1)?;
                share("beta2", beta2)
            }
        }
    }
}

impl ShardState {
    /// A digest of this state as `version` of its shard: block by block of the weights and then of
    /// each moment. The digest before seeds each block, and the version seeds the first.
    pub fn digest(&self, version: u64) -> u64 {
        blocks(self.master.len()).fold(version, |seed, block| self.digest_block(seed, block))
    }

    fn digest_block(&self, seed: u64, block: Range<usize>) -> u64 {
        let parts = iter::once(&self.master).chain(&self.moments);
        parts.fold(seed, |seed, values| reduce::digest(seed, &values[block.clone()]))
    }
}

/// The blocks of a shard of `length` elements.
fn blocks(length: usize) -> impl Iterator<Item = Range<usize>> {
    let starts = (0..length).step_by(reduce::DIGEST_BLOCK);
    starts.map(move |start| start..length.min(start + reduce::DIGEST_BLOCK))
}

/// The factor for gradients that keeps their global norm, which is finite, at most `max`: `min(1,
/// max / (norm + 1e-6))`, and 1 without a maximum.
pub fn clip_factor(norm: f64, max: Option<f64>) -> f32 {
    max.map_or(1.0, |max| (max / (norm + 1e-6)).min(1.0) as f32)
}

fn share(setting: &'static str, value: f32) -> Result<(), InvalidSetting> {
    bounded((0.0..1.0).contains(&value), setting, value, "at least 0 and below 1")
}

fn at_least_zero(setting: &'static str, value: f32) -> Result<(), InvalidSetting> {
    bounded(value >= 0.0 && value.is_finite(), setting, value, "at least 0 and finite")
}

fn bounded(
    valid: bool,
    setting: &'static str,
    value: f32,
    bound: &'static str,
) -> Result<(), InvalidSetting> {
    if valid { Ok(()) } else { Err(InvalidSetting { setting, value, bound }) }
}

#[cfg(test)]
mod tests;
