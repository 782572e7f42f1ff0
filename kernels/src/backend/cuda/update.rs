//! The work of an owner on a parameter shard in a device's memory. It gives the same bits as
//! [`Optimizer::update`], [`reduce`] and their rounding on the CPU.
//!
//! Input: addresses of f32. This module knows no arenas and no models.

use super::driver::{Address, Argument, Driver, DriverError};
use super::{kernels, launch, long};
use crate::optimizer::{Apply, Optimizer, Rule, adamw};
use crate::random::Philox;
use crate::reduce;

/// A parameter shard on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceShard {
    /// The master weights.
    pub weights: Address,
    /// The moments of the rule. Moments that the rule does not have are not read.
    pub moments: [Address; 2],
    /// The reduced gradient, not yet clipped.
    pub gradient: Address,
}

/// Makes one step of the shard at `apply.range`.
pub fn update(driver: &mut dyn Driver, optimizer: &Optimizer, shard: DeviceShard, apply: &Apply) {
    for (tensor, part) in apply.layout.parts(apply.range.clone()) {
        let kept = if tensor.decay { optimizer.kept(apply.learning_rate) } else { 1.0 };
        let start = 4 * (part.start - apply.range.start);
        let at = |address: Address| Argument::Address(address.plus(start));
        let (weights, [first, second]) = (at(shard.weights), shard.moments.map(at));
        let (gradient, count) = (at(shard.gradient), long(part.len()));
        let [kept, clip] = [kept, apply.clip].map(Argument::Float);
        let rate = Argument::Float(apply.learning_rate);
        let shape = launch::elements(part.len());
        match optimizer.rule() {
            Rule::AdamW { beta1, beta2, epsilon } => {
                let adamw::Step { rate, root, .. } =
                    adamw::Step::new([beta1, beta2], epsilon, apply);
                let factors = [beta1, beta2, epsilon, rate, root].map(Argument::Float);
                let state = [weights, first, second, gradient, count, kept, clip];
                driver.launch(&kernels::ADAMW, shape, &[&state[..], &factors].concat());
            }
            Rule::Sgd { momentum: 0.0 } => {
                driver.launch(&kernels::SGD, shape, &[weights, gradient, count, kept, clip, rate]);
            }
            Rule::Sgd { momentum } => {
                let momentum = Argument::Float(momentum);
                let arguments = [weights, first, gradient, count, kept, clip, rate, momentum];
                driver.launch(&kernels::SGD_MOMENTUM, shape, &arguments);
            }
            Rule::Lion { beta1, beta2 } => {
                let [beta1, beta2] = [beta1, beta2].map(Argument::Float);
                let arguments = [weights, first, gradient, count, kept, clip, rate, beta1, beta2];
                driver.launch(&kernels::LION, shape, &arguments);
            }
        }
    }
}

/// The sum of the squares of `count` f32. `scratch` has room for an f64 for each 64 Ki of them.
pub fn sum_of_squares(
    driver: &mut dyn Driver,
    values: Address,
    count: usize,
    scratch: Address,
) -> Result<f64, DriverError> {
    if count == 0 {
        return Ok(0.0);
    }
    let arguments = [Argument::Address(values), Argument::Address(scratch), long(count)];
    driver.launch(&kernels::SUM_OF_SQUARES, launch::squares(count), &arguments);
    let mut blocks = vec![0.0f64; count.div_ceil(launch::SQUARES)];
    driver.read(scratch, bytemuck::cast_slice_mut(&mut blocks))?;
    Ok(reduce::canonical_f64(blocks.iter().fold(0.0, |sum, block| sum + block)))
}

/// Adds `count` f32 at `partial` to those at `sum`.
pub fn add(driver: &mut dyn Driver, partial: Address, sum: Address, count: usize) {
    elementwise(driver, &kernels::ACCUMULATE, [partial, sum], count);
}

/// Adds `count` bf16 at `partial` to the f32 at `sum`.
pub fn add_bf16(driver: &mut dyn Driver, partial: Address, sum: Address, count: usize) {
    elementwise(driver, &kernels::ACCUMULATE_BF16, [partial, sum], count);
}

/// Writes `count` f32 at `from` in the driver's precision: the computing copy of master weights.
pub fn round(driver: &mut dyn Driver, from: Address, to: Address, count: usize) {
    elementwise(driver, &kernels::CAST, [from, to], count);
}

/// Writes `count` f32 at `from` as bf16, each rounded up or down at random. `first` is the index of
/// the first in the flat parameter vector, and `seed` the run's.
pub fn round_stochastically(
    driver: &mut dyn Driver,
    [from, to]: [Address; 2],
    count: usize,
    first: usize,
    seed: u64,
) {
    if count == 0 {
        return;
    }
    let [key, stream] = Philox::new(seed, Philox::ROUNDING, 0).words().map(Argument::Long);
    let [from, to] = [from, to].map(Argument::Address);
    let arguments = [from, to, long(count), key, stream, long(first)];
    driver.launch(&kernels::CAST_STOCHASTIC, launch::elements(count), &arguments);
}

fn elementwise(
    driver: &mut dyn Driver,
    kernel: &'static super::Kernel,
    [from, to]: [Address; 2],
    count: usize,
) {
    if count > 0 {
        let arguments = [Argument::Address(from), Argument::Address(to), long(count)];
        driver.launch(kernel, launch::elements(count), &arguments);
    }
}
