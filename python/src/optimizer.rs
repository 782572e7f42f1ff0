//! PyTorch's optimizers, as rules that the owners of parameter shards apply.
//!
//! In: the groups of a `torch.optim` object, and the learning rate of each group at each step. The
//! formulas are PyTorch's, in f32 with fused multiply-adds where PyTorch's kernels have them. AdamW
//! is its fused kernel's, to the bit (`python/tests/test_optimizer.py`).
//!
//! w: weight, g: gradient, m and v: the means of gradients and of their squares, b: SGD's buffer.

use std::sync::Arc;

use everstep::{UpdateBlock, UpdateInputs, UpdateRule};
use everstep_kernels::optimizer::power;
use multiversion::multiversion;
use serde::Deserialize;

/// An optimizer with its groups. Python states it as JSON.
#[derive(Clone, Debug, Deserialize)]
pub struct TorchRule {
    kind: TorchKind,
    groups: Vec<ParameterGroup>,
    /// Where each run of parameters of one group begins in the flat vector, and which group it is.
    runs: Vec<(usize, usize)>,
}

/// Which formula applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum TorchKind {
    AdamW,
    Adam,
    Sgd,
    Lion,
}

/// The settings of a group of parameters.
#[derive(Clone, Debug, Deserialize)]
struct ParameterGroup {
    /// The rate of each step, from the first. The last one stays.
    rates: Vec<f64>,
    weight_decay: f64,
    betas: [f64; 2],
    epsilon: f64,
    momentum: f64,
    dampening: f64,
    nesterov: bool,
}

impl ParameterGroup {
    fn rate(&self, step: u64) -> f64 {
        self.rates[step.clamp(1, self.rates.len() as u64) as usize - 1]
    }
}

impl TorchRule {
    /// Reads the rule, for so many parameters.
    ///
    /// # Errors
    /// In words, if it is no rule for them.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rule: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let begins = rule.runs.first().is_some_and(|(start, _)| *start == 0);
        let ascends = rule.runs.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let known = rule.runs.iter().all(|(_, group)| *group < rule.groups.len());
        if !(begins && ascends && known) {
            return Err("the groups do not cover the parameters".into());
        }
        match rule.groups.iter().any(|group| group.rates.is_empty()) {
            true => Err("a group has no learning rate".into()),
            false => Ok(rule),
        }
    }

    /// The name of the rule, as the run states it.
    pub fn name(&self) -> &'static str {
        match self.kind {
            TorchKind::AdamW => "adamw",
            TorchKind::Adam => "adam",
            TorchKind::Sgd => "sgd",
            TorchKind::Lion => "lion",
        }
    }

    /// The rate of the first group at the first step.
    pub fn first_rate(&self) -> f64 {
        self.groups[0].rates[0]
    }

    fn update_group(
        &self,
        group: &ParameterGroup,
        block: UpdateBlock<'_>,
        inputs: &UpdateInputs<'_>,
    ) {
        let UpdateBlock { weights, moments, gradient } = block;
        let rate = group.rate(inputs.run_step);
        match (self.kind, moments) {
            (TorchKind::AdamW, [mean, square]) => {
                let kept = 1.0 - rate * group.weight_decay;
                AdamStep::new(group, rate, inputs.step, [kept, 0.0])
                    .update([weights, mean, square], gradient);
            }
            (TorchKind::Adam, [mean, square]) => {
                AdamStep::new(group, rate, inputs.step, [1.0, group.weight_decay])
                    .update([weights, mean, square], gradient);
            }
            (TorchKind::Lion, [mean]) => lion(group, rate, [weights, mean], gradient),
            (TorchKind::Sgd, [buffer]) if group.momentum != 0.0 => {
                let is_first = inputs.step == 1;
                sgd_with_momentum(group, (rate, is_first), [weights, buffer], gradient);
            }
            (TorchKind::Sgd, _) => sgd(group, rate, weights, gradient),
            _ => unreachable!("the number of moments was checked"),
        }
    }
}

impl UpdateRule for TorchRule {
    fn moments(&self) -> usize {
        match self.kind {
            TorchKind::AdamW | TorchKind::Adam => 2,
            TorchKind::Lion => 1,
            TorchKind::Sgd => usize::from(self.groups.iter().any(|group| group.momentum != 0.0)),
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
            let block = UpdateBlock {
                weights: &mut weights[inside.clone()],
                moments: &mut own,
                gradient: &gradient[inside],
            };
            self.update_group(&self.groups[*group], block, inputs);
        }
    }
}

/// The factors of one step of Adam, made in f64 and rounded once.
struct AdamStep {
    /// The share of a weight that decoupled decay keeps.
    kept: f32,
    /// The share of a weight that coupled decay adds to its gradient.
    coupled: f32,
    new_mean: f32,
    beta2: f32,
    new_square: f32,
    /// Minus the rate, over the correction of the first mean.
    rate: f32,
    /// The root of the second mean's correction.
    root: f32,
    epsilon: f32,
}

impl AdamStep {
    fn new(group: &ParameterGroup, rate: f64, step: u64, [kept, coupled]: [f64; 2]) -> Self {
        let [beta1, beta2] = group.betas;
        Self {
            kept: kept as f32,
            coupled: coupled as f32,
            new_mean: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            new_square: (1.0 - beta2) as f32,
            rate: -(rate / (1.0 - power(beta1, step))) as f32,
            root: (1.0 - power(beta2, step)).sqrt() as f32,
            epsilon: group.epsilon as f32,
        }
    }

    fn update(&self, [weights, mean, square]: [&mut [f32]; 3], gradient: &[f32]) {
        adam(self, (weights, mean, square), gradient);
    }
}

#[multiversion(targets = "simd")]
fn adam(step: &AdamStep, state: (&mut [f32], &mut [f32], &mut [f32]), gradient: &[f32]) {
    let (weights, mean, square) = state;
    for (((w, m), v), g) in weights.iter_mut().zip(mean).zip(square).zip(gradient) {
        let g = if step.coupled == 0.0 { *g } else { step.coupled.mul_add(*w, *g) };
        let kept = *w * step.kept;
        *m = step.new_mean.mul_add(g - *m, *m);
        *v = (step.new_square * g).mul_add(g, step.beta2 * *v);
        *w = kept + (step.rate * *m) / (v.sqrt() / step.root + step.epsilon);
    }
}

#[multiversion(targets = "simd")]
fn sgd(group: &ParameterGroup, rate: f64, weights: &mut [f32], gradient: &[f32]) {
    let (rate, decay) = (-rate as f32, group.weight_decay as f32);
    for (w, g) in weights.iter_mut().zip(gradient) {
        let g = if decay == 0.0 { *g } else { decay.mul_add(*w, *g) };
        *w = rate.mul_add(g, *w);
    }
}

#[multiversion(targets = "simd")]
fn sgd_with_momentum(
    group: &ParameterGroup,
    (rate, is_first): (f64, bool),
    state: [&mut [f32]; 2],
    gradient: &[f32],
) {
    let [weights, buffer] = state;
    let (rate, decay, momentum) = (-rate as f32, group.weight_decay as f32, group.momentum as f32);
    let new = (1.0 - group.dampening) as f32;
    for ((w, b), g) in weights.iter_mut().zip(buffer).zip(gradient) {
        let g = if decay == 0.0 { *g } else { decay.mul_add(*w, *g) };
        *b = if is_first { g } else { new.mul_add(g, momentum * *b) };
        let change = if group.nesterov { momentum.mul_add(*b, g) } else { *b };
        *w = rate.mul_add(change, *w);
    }
}

#[multiversion(targets = "simd")]
fn lion(group: &ParameterGroup, rate: f64, state: [&mut [f32]; 2], gradient: &[f32]) {
    let [weights, mean] = state;
    let [beta1, beta2] = group.betas.map(|beta| beta as f32);
    let [new1, new2] = group.betas.map(|beta| (1.0 - beta) as f32);
    let (kept, rate) = ((1.0 - rate * group.weight_decay) as f32, rate as f32);
    for ((w, m), g) in weights.iter_mut().zip(mean).zip(gradient) {
        let direction = beta1 * *m + new1 * g;
        let sign = f32::from(direction > 0.0) - f32::from(direction < 0.0);
        *w = *w * kept - rate * sign;
        *m = beta2 * *m + new2 * g;
    }
}
