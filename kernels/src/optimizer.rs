//! Optimizers: what an owner does to a parameter shard once its step has committed.
//!
//! Input: a shard's [`ShardState`] (f32 master weights and moments), its reduced gradient, and the
//! [`UpdateInputs`] that all owners agree on. Output: the state after the step. Every
//! [`UpdateRule`] is elementwise, so the bits do not depend on the cut into shards or on the
//! owners. Each built-in rule has a file. A program may have rules of its own.
//!
//! Weight decay is decoupled from the gradient in every rule (Loshchilov, Hutter: "Decoupled Weight
//! Decay Regularization", ICLR 2019). It comes first: `master *= 1 - learning_rate * weight_decay`,
//! in those tensors that decay. No rule, decay or clipping touches a
//! [`Statistic`](crate::layout::Statistic). This module knows no skipped steps, versions or peers.

mod adamw;
mod lion;
mod sgd;
mod statistics;

use std::ops::Range;
use std::sync::Arc;
use std::{fmt, iter};

pub use self::adamw::power;

use crate::layout::Layout;
use crate::reduce;

/// An optimizer with valid settings.
#[derive(Clone, Debug)]
pub struct Optimizer {
    rule: Arc<dyn UpdateRule>,
    /// The rule is the program's own: it gets gradients that are clipped, and its NaNs get the one
    /// pattern of bits that all processors agree on.
    is_own: bool,
    weight_decay: f32,
}

/// How a gradient becomes a change of the weights.
///
/// # Elementwise
///
/// The new value of an element may depend on the element's own weight, moments and gradient, and on
/// the inputs of the step. It must not depend on other elements, nor on where the block begins or
/// ends: another number of workers has other blocks, and must get the same bits. All owners run the
/// same code, so a rule that uses a function of the platform's mathematics library, such as
/// [`f32::exp`], has the same bits only on machines with the same library.
pub trait UpdateRule: fmt::Debug + Send + Sync {
    /// The number of moments: f32 vectors as long as the weights, which are zero before the first
    /// step. It never changes.
    fn moments(&self) -> usize;

    /// The learning rate of each step of the run, from the first, if the rule brings a table of its
    /// own. `None`, or an empty table: the run's schedule. Every worker must bring the same.
    fn rates(&self) -> Option<Arc<[f32]>> {
        None
    }

    /// Makes one step of a block. Weights that decay have already decayed.
    fn update(&self, block: UpdateBlock<'_>, inputs: &UpdateInputs<'_>);
}

/// A part of a parameter shard. All slices have the same length.
#[derive(Debug)]
pub struct UpdateBlock<'a> {
    /// The master weights, in f32.
    pub weights: &'a mut [f32],
    /// The moments of the rule, [`UpdateRule::moments`] of them.
    pub moments: &'a mut [&'a mut [f32]],
    /// The reduced gradient. A rule multiplies it by [`UpdateInputs::clip`].
    pub gradient: &'a [f32],
}

/// A built-in rule with its settings.
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
    /// [`UpdateRule::moments`] vectors as long as the weights.
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

/// The state that an update makes.
#[derive(Debug)]
pub struct UpdateTarget<'a> {
    /// The state after the update. Without `source` it is also the state before.
    pub state: &'a mut ShardState,
    /// The state before the update, which stays as it is. What `state` has does not matter then.
    pub source: Option<&'a ShardState>,
}

impl<'a> From<&'a mut ShardState> for UpdateTarget<'a> {
    fn from(state: &'a mut ShardState) -> Self {
        Self { state, source: None }
    }
}

/// One update of one parameter shard, with the values that its owners agree on.
#[derive(Clone, Debug)]
pub struct UpdateInputs<'a> {
    /// Counts the updates from 1, for rules that correct the bias of their first ones.
    pub step: u64,
    /// The step of the run, from 1. It counts steps that were skipped, too.
    pub run_step: u64,
    /// The schedule's rate at this step.
    pub learning_rate: f32,
    /// The factor that multiplies the gradient first: [`clip_factor`], or 1. In a step of weighted
    /// micro-batches it also divides by their mean weight. It is 1 in a rule of the program's own,
    /// which gets clipped gradients.
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
        Ok(Self { rule: Arc::new(rule), is_own: false, weight_decay })
    }

    /// An optimizer of a rule of the program's own, with decoupled weight decay.
    pub fn of(rule: Arc<dyn UpdateRule>, weight_decay: f32) -> Result<Self, InvalidSetting> {
        at_least_zero("weight_decay", weight_decay)?;
        Ok(Self { rule, is_own: true, weight_decay })
    }

    /// The table of rates that the rule brings. `None`: the run's schedule applies.
    pub fn rates(&self) -> Option<Arc<[f32]>> {
        self.rule.rates().filter(|rates| !rates.is_empty())
    }

    /// The number of vectors that an owner holds: the master weights and the moments.
    pub fn state_vectors(&self) -> usize {
        1 + self.rule.moments()
    }

    /// The state before the first step: these weights, and moments of zero.
    pub fn state(&self, master: Vec<f32>) -> ShardState {
        let moments = vec![vec![0.0; master.len()]; self.rule.moments()];
        ShardState { master, moments }
    }

    /// Bytes that an owner holds for each parameter: master weight and moments, four each.
    pub fn bytes_per_parameter(&self) -> usize {
        size_of::<f32>() * self.state_vectors()
    }

    /// Makes one step. Block by block, while a block is in the cache, it also takes the digests of
    /// the gradient and of the state, as the version `before` and as the version `after`.
    /// `gradient` is the shard's reduced gradient, not yet clipped. An update from a source costs
    /// one more write of the state, and no more reads.
    ///
    /// # Panics
    ///
    /// If state, gradient and range differ in length, or the state is that of another rule. To go
    /// on would make silently wrong weights.
    pub fn update<'a>(
        &self,
        target: impl Into<UpdateTarget<'a>>,
        gradient: &[f32],
        inputs: &UpdateInputs,
        [before, after]: [u64; 2],
    ) -> Digests {
        let (UpdateTarget { state, source }, length) = (target.into(), inputs.range.len());
        assert_eq!(gradient.len(), length, "a gradient of the shard's length");
        self.check(state, length);
        source.inspect(|source| self.check(source, length));
        let mut digests = Digests { before, gradient: 0, after };
        for block in blocks(length) {
            let gradient = &gradient[block.clone()];
            source.inspect(|source| state.copy_block(source, block.clone()));
            digests.before = state.digest_block(digests.before, block.clone());
            digests.gradient = reduce::digest(digests.gradient, gradient);
            self.update_block(state, gradient, block.clone(), inputs);
            digests.after = state.digest_block(digests.after, block);
        }
        digests
    }

    fn check(&self, state: &ShardState, length: usize) {
        assert_eq!(state.master.len(), length, "weights of the shard's length");
        assert_eq!(state.moments.len(), self.rule.moments(), "the moments of the rule");
        assert!(state.moments.iter().all(|moment| moment.len() == length), "moments as long");
    }

    /// Makes the step of one block of the shard. `gradient` is that of the block.
    fn update_block(
        &self,
        state: &mut ShardState,
        gradient: &[f32],
        block: Range<usize>,
        shard: &UpdateInputs,
    ) {
        let (start, layout) = (shard.range.start, shard.layout);
        let cut = layout.trained().saturating_sub(start).clamp(block.start, block.end);
        let (trained, changes) = gradient.split_at(cut - block.start);
        if !trained.is_empty() {
            self.train_block(state, trained, block.start..cut, shard);
        }
        if !changes.is_empty() {
            let values = &mut state.master[cut..block.end];
            statistics::update(values, changes, layout, start + cut..start + block.end);
        }
    }

    fn train_block(
        &self,
        state: &mut ShardState,
        gradient: &[f32],
        block: Range<usize>,
        shard: &UpdateInputs,
    ) {
        let start = shard.range.start;
        let inputs = UpdateInputs { range: start + block.start..start + block.end, ..*shard };
        let ShardState { master, moments } = state;
        let weights = &mut master[block.clone()];
        self.decay(weights, &inputs);
        let mut moments: Vec<&mut [f32]> =
            moments.iter_mut().map(|moment| &mut moment[block.clone()]).collect();
        if !self.is_own {
            let block = UpdateBlock { weights, moments: &mut moments, gradient };
            return self.rule.update(block, &inputs);
        }
        let clipped: Vec<f32> = gradient.iter().map(|value| value * inputs.clip).collect();
        let inputs = UpdateInputs { clip: 1.0, ..inputs };
        self.rule
            .update(UpdateBlock { weights, moments: &mut moments, gradient: &clipped }, &inputs);
        canonicalize(&mut master[block.clone()]);
        state.moments.iter_mut().for_each(|moment| canonicalize(&mut moment[block.clone()]));
    }

    fn decay(&self, master: &mut [f32], inputs: &UpdateInputs) {
        let kept = 1.0 - inputs.learning_rate * self.weight_decay;
        for (tensor, part) in inputs.layout.parts(inputs.range.clone()) {
            if tensor.decay {
                let start = inputs.range.start;
                master[part.start - start..part.end - start].iter_mut().for_each(|w| *w *= kept);
            }
        }
    }
}

impl UpdateRule for Rule {
    fn moments(&self) -> usize {
        match self {
            Self::AdamW { .. } => 2,
            Self::Sgd { momentum: 0.0 } => 0,
            Self::Sgd { .. } | Self::Lion { .. } => 1,
        }
    }

    fn update(&self, block: UpdateBlock<'_>, inputs: &UpdateInputs<'_>) {
        let UpdateBlock { weights, moments, gradient } = block;
        match (*self, moments) {
            (Self::AdamW { beta1, beta2, epsilon }, [mean, square]) => {
                adamw::Step::new([beta1, beta2], epsilon, inputs)
                    .update([weights, mean, square], gradient);
            }
            (Self::Sgd { momentum }, [velocity]) => {
                sgd::update_with_momentum(weights, velocity, gradient, momentum, inputs);
            }
            (Self::Sgd { .. }, _) => sgd::update(weights, gradient, inputs),
            (Self::Lion { beta1, beta2 }, [mean]) => {
                lion::update(weights, mean, gradient, [beta1, beta2], inputs);
            }
            _ => unreachable!("the number of moments was checked"),
        }
    }
}

impl Rule {
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

    fn copy_block(&mut self, source: &Self, block: Range<usize>) {
        self.master[block.clone()].copy_from_slice(&source.master[block.clone()]);
        for (moment, from) in self.moments.iter_mut().zip(&source.moments) {
            moment[block.clone()].copy_from_slice(&from[block.clone()]);
        }
    }

    fn digest_block(&self, seed: u64, block: Range<usize>) -> u64 {
        let parts = iter::once(&self.master).chain(&self.moments);
        parts.fold(seed, |seed, values| reduce::digest(seed, &values[block.clone()]))
    }
}

/// Gives every NaN the one pattern of bits that all processors agree on.
fn canonicalize(values: &mut [f32]) {
    values.iter_mut().for_each(|value| *value = reduce::canonical(*value));
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
