//! PyTorch's optimizers, as rules that the owners of parameter shards apply.
//!
//! In: the groups of a `torch.optim` object, and the settings of each group that change from step
//! to step. The formulas are PyTorch's, in f32. AdamW is its fused kernel's, to the bit
//! (`python/tests/test_optimizer.py`). No formula uses the platform's mathematics library, so
//! unlike machines have the same bits.
//!
//! - `adam`: AdamW, Adam, NAdam, RAdam, Adamax.
//! - `squares`: RMSprop, Adagrad, Adadelta: steps over a root of squared gradients.
//! - `sgd`: SGD, ASGD.
//! - `signs`: Lion, Rprop: the direction of a step is a sign.

mod adam;
mod sgd;
mod signs;
mod squares;

use std::borrow::Cow;
use std::sync::Arc;

use everstep::{UpdateBlock, UpdateInputs, UpdateRule};
use serde::Deserialize;

/// An optimizer with its groups. Python states it as JSON.
#[derive(Clone, Debug, Deserialize)]
pub struct TorchRule {
    kind: TorchKind,
    groups: Vec<ParameterGroup>,
    /// Where each run of parameters of one group begins in the flat vector, and which group it is.
    runs: Vec<(usize, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TorchKind {
    AdamW,
    Adam,
    Adamax,
    Nadam,
    Radam,
    Rmsprop,
    Adagrad,
    Adadelta,
    Sgd,
    Asgd,
    Lion,
    Rprop,
}

/// The settings of a group of parameters. A table has a value for each step, from the first. Its
/// last value stays.
#[derive(Clone, Debug, Deserialize)]
struct ParameterGroup {
    rates: Vec<f64>,
    betas: Vec<[f64; 2]>,
    momenta: Vec<f64>,
    /// NAdam's: the momentum of this step and of the next, and the product of all so far. ASGD's:
    /// the rate, the factor of the weights, and the share of them that their mean gets.
    schedules: Vec<[f64; 3]>,
    settings: GroupSettings,
}

/// What never changes in a group. Each formula uses a part of it.
#[derive(Clone, Debug, Deserialize)]
struct GroupSettings {
    weight_decay: f64,
    /// Weights decay by themselves, and not as a part of their gradients.
    is_decoupled: bool,
    epsilon: f64,
    dampening: f64,
    nesterov: bool,
    /// The share that a mean of squares keeps: RMSprop's alpha, Adadelta's rho.
    kept_squares: f64,
    /// RMSprop subtracts the square of the mean.
    is_centered: bool,
    /// How fast the rate of Adagrad falls with its steps.
    rate_decay: f64,
    /// Adagrad's sum of squares before the first step.
    first_sum: f64,
    /// Rprop's factors of a step's size, after a change of sign and without one.
    factors: [f64; 2],
    /// Rprop's smallest and greatest step.
    sizes: [f64; 2],
    /// Adam divides by the greatest mean of squares so far.
    #[serde(default)]
    amsgrad: bool,
    /// Weights move along their gradients, and not against them.
    #[serde(default)]
    maximize: bool,
}

/// The settings of a group at one step.
struct GroupStep<'a> {
    settings: &'a GroupSettings,
    rate: f64,
    betas: [f64; 2],
    momentum: f64,
    schedule: [f64; 3],
    /// The number of this update, from 1.
    number: u64,
}

impl ParameterGroup {
    fn at(&self, inputs: &UpdateInputs<'_>) -> GroupStep<'_> {
        let step = inputs.run_step;
        GroupStep {
            settings: &self.settings,
            rate: entry(&self.rates, step),
            betas: entry(&self.betas, step),
            momentum: entry(&self.momenta, step),
            schedule: entry(&self.schedules, inputs.step),
            number: inputs.step,
        }
    }

    fn has_momentum(&self) -> bool {
        self.momenta.iter().any(|momentum| *momentum != 0.0)
    }

    fn is_whole(&self) -> bool {
        let empty = [self.rates.is_empty(), self.betas.is_empty(), self.momenta.is_empty()];
        !empty.contains(&true) && !self.schedules.is_empty()
    }
}

impl GroupStep<'_> {
    /// The factor of a weight that decays by itself, and the share of it that its gradient gets.
    fn decay(&self) -> [f32; 2] {
        let GroupSettings { weight_decay, is_decoupled, .. } = *self.settings;
        match is_decoupled {
            true => [(1.0 - self.rate * weight_decay) as f32, 0.0],
            false => [1.0, weight_decay as f32],
        }
    }
}

/// The entry of a table at a step, from 1.
fn entry<T: Copy>(table: &[T], step: u64) -> T {
    table[step.clamp(1, table.len() as u64) as usize - 1]
}

/// A gradient with a share of its weight.
#[inline(always)]
fn with_decay(gradient: f32, share: f32, weight: f32) -> f32 {
    if share == 0.0 { gradient } else { share.mul_add(weight, gradient) }
}

/// Why a text is no rule of an optimizer.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// It is no JSON of a rule.
    #[error(transparent)]
    Form(#[from] serde_json::Error),
    /// The groups leave parameters out, or name groups that are not there.
    #[error("the groups do not cover the parameters")]
    Groups,
    /// A table of rates or betas has no value.
    #[error("a group of the optimizer has an empty table")]
    Table,
}

impl TorchRule {
    /// Reads the rule, for so many parameters.
    ///
    /// # Errors
    /// If it is no rule for them.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let rule: Self = serde_json::from_str(text)?;
        let begins = rule.runs.first().is_some_and(|(start, _)| *start == 0);
        let ascends = rule.runs.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let known = rule.runs.iter().all(|(_, group)| *group < rule.groups.len());
        if !(begins && ascends && known) {
            return Err(RuleError::Groups);
        }
        match rule.groups.iter().all(ParameterGroup::is_whole) {
            true => Ok(rule),
            false => Err(RuleError::Table),
        }
    }

    /// The name of the rule, as the run states it.
    pub fn name(&self) -> &'static str {
        match self.kind {
            TorchKind::AdamW => "adamw",
            TorchKind::Adam => "adam",
            TorchKind::Adamax => "adamax",
            TorchKind::Nadam => "nadam",
            TorchKind::Radam => "radam",
            TorchKind::Rmsprop => "rmsprop",
            TorchKind::Adagrad => "adagrad",
            TorchKind::Adadelta => "adadelta",
            TorchKind::Sgd => "sgd",
            TorchKind::Asgd => "asgd",
            TorchKind::Lion => "lion",
            TorchKind::Rprop => "rprop",
        }
    }

    /// The rate of the first group at the first step.
    pub fn first_rate(&self) -> f64 {
        self.groups[0].rates[0]
    }

    fn has_momentum(&self) -> bool {
        self.groups.iter().any(ParameterGroup::has_momentum)
    }

    fn is_centered(&self) -> bool {
        self.groups.iter().any(|group| group.settings.is_centered)
    }

    fn is_amsgrad(&self) -> bool {
        self.groups.iter().any(|group| group.settings.amsgrad)
    }

    fn update_group(&self, step: &GroupStep<'_>, block: UpdateBlock<'_>) {
        let UpdateBlock { weights, moments, gradient } = block;
        match (self.kind, moments) {
            (TorchKind::AdamW | TorchKind::Adam, [mean, square, greatest])
                if step.settings.amsgrad =>
            {
                adam::amsgrad(step, [weights, mean, square, greatest], gradient);
            }
            (TorchKind::AdamW | TorchKind::Adam, [mean, square, ..]) => {
                adam::adam(step, [weights, mean, square], gradient);
            }
            (TorchKind::Nadam, [mean, square]) => {
                adam::nadam(step, [weights, mean, square], gradient);
            }
            (TorchKind::Radam, [mean, square]) => {
                adam::radam(step, [weights, mean, square], gradient);
            }
            (TorchKind::Adamax, [mean, greatest]) => {
                adam::adamax(step, [weights, mean, greatest], gradient);
            }
            (TorchKind::Rmsprop, [square, others @ ..]) => {
                let (buffer, mean) = others.split_at_mut(usize::from(self.has_momentum()));
                let others = [buffer, mean].map(|part| part.first_mut().map(|it| &mut **it));
                squares::rmsprop(step, ([weights, square], others), gradient);
            }
            (TorchKind::Adagrad, [sum]) => squares::adagrad(step, [weights, sum], gradient),
            (TorchKind::Adadelta, [square, change]) => {
                squares::adadelta(step, [weights, square, change], gradient);
            }
            (TorchKind::Sgd, [buffer]) if step.momentum != 0.0 => {
                sgd::with_momentum(step, [weights, buffer], gradient);
            }
            (TorchKind::Sgd, _) => sgd::plain(step, weights, gradient),
            (TorchKind::Asgd, [mean]) => sgd::averaged(step, [weights, mean], gradient),
            (TorchKind::Lion, [mean]) => signs::lion(step, [weights, mean], gradient),
            (TorchKind::Rprop, [before, size]) => {
                signs::rprop(step, [weights, before, size], gradient);
            }
            _ => unreachable!("the number of moments was checked"),
        }
    }
}

impl UpdateRule for TorchRule {
    fn moments(&self) -> usize {
        match self.kind {
            TorchKind::AdamW | TorchKind::Adam => 2 + usize::from(self.is_amsgrad()),
            TorchKind::Nadam | TorchKind::Radam => 2,
            TorchKind::Adamax | TorchKind::Adadelta | TorchKind::Rprop => 2,
            TorchKind::Lion | TorchKind::Adagrad | TorchKind::Asgd => 1,
            TorchKind::Sgd => usize::from(self.has_momentum()),
            TorchKind::Rmsprop => {
                1 + usize::from(self.has_momentum()) + usize::from(self.is_centered())
            }
        }
    }

    fn rates(&self) -> Option<Arc<[f32]>> {
        Some(self.groups[0].rates.iter().map(|rate| *rate as f32).collect())
    }

    fn update(&self, block: UpdateBlock<'_>, inputs: &UpdateInputs<'_>) {
        let UpdateBlock { weights, moments, gradient } = block;
        let range = inputs.range.clone();
        let first = self.runs.partition_point(|(start, _)| *start <= range.start) - 1;
        for (at, (start, group)) in self.runs.iter().enumerate().skip(first) {
            let end = self.runs.get(at + 1).map_or(usize::MAX, |next| next.0);
            let part = (*start).max(range.start)..end.min(range.end);
            if part.start >= part.end {
                break;
            }
            let inside = part.start - range.start..part.end - range.start;
            let mut own: Vec<&mut [f32]> =
                moments.iter_mut().map(|moment| &mut moment[inside.clone()]).collect();
            let group = self.groups[*group].at(inputs);
            let mut gradient = Cow::Borrowed(&gradient[inside.clone()]);
            if group.settings.maximize {
                gradient.to_mut().iter_mut().for_each(|value| *value = -*value);
            }
            let (weights, gradient) = (&mut weights[inside], gradient.as_ref());
            self.update_group(&group, UpdateBlock { weights, moments: &mut own, gradient });
        }
    }
}
