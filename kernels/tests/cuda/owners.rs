//! The work of an owner of a parameter shard, on the emulated device: the bits of the CPU.

use everstep_kernels::backend::cuda::update::{self, DeviceShard};
use everstep_kernels::backend::cuda::{Address, Driver, Precision};
use everstep_kernels::layout::{Init, Layout};
use everstep_kernels::optimizer::{Apply, Optimizer, Rule};
use everstep_kernels::random::Philox;
use everstep_kernels::reduce;
use half::{bf16, f16};

use super::emulated::Emulated;

/// Values of very different sizes, some of them zero.
fn values(stream: u64, count: usize) -> Vec<f32> {
    let philox = Philox::new(8, 0, stream);
    let value = |index: u64| match philox.u32(index) % 8 {
        0 => 0.0,
        size => philox.normal(index) * 10f32.powi(size as i32 - 4),
    };
    (0..count as u64).map(value).collect()
}

fn upload(driver: &mut Emulated, values: &[f32]) -> Address {
    let address = driver.allocate(4 * values.len()).expect("the host has the memory");
    driver.write(address, bytemuck::cast_slice(values));
    address
}

fn download(driver: &mut Emulated, from: Address, count: usize) -> Vec<u32> {
    let mut bits = vec![0; count];
    driver.read(from, bytemuck::cast_slice_mut(&mut bits)).expect("nothing fails");
    bits
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn layout() -> Layout {
    let mut layout = Layout::new();
    layout.push("bias", &[100], Init::Constant(0.0));
    layout.push("matrix", &[20, 30], Init::Constant(0.0));
    layout.push("another", &[7], Init::Constant(0.0));
    layout
}

/// Five steps of a shard that begins and ends within a tensor.
fn check_rule(rule: Rule) {
    let Some(mut driver) = Emulated::new(Precision::Bf16) else { return };
    let (layout, range) = (layout(), 37..703);
    let optimizer = Optimizer::new(rule, 0.1).expect("valid settings");
    let mut state = optimizer.state(values(0, range.len()));
    let zeros = vec![0.0; range.len()];
    let shard = DeviceShard {
        weights: upload(&mut driver, &state.master),
        moments: [upload(&mut driver, &zeros), upload(&mut driver, &zeros)],
        gradient: upload(&mut driver, &zeros),
    };
    for step in 1..=5 {
        let mut gradient = values(step, range.len());
        // NaN and infinity have the same bits, too.
        gradient[..3].copy_from_slice(&[f32::INFINITY, -f32::NAN, f32::from_bits(0x7fff_ffff)]);
        let range = range.clone();
        let apply = Apply { step, learning_rate: 0.01, clip: 0.7, layout: &layout, range };
        driver.write(shard.gradient, bytemuck::cast_slice(&gradient));
        update::update(&mut driver, &optimizer, shard, &apply);
        optimizer.update(&mut state, &gradient, &apply, [0, 0], &mut |_, _| {});
        let found = download(&mut driver, shard.weights, apply.range.len());
        assert!(found == bits(&state.master), "{rule:?}: the weights after step {step}");
        for (found, expected) in shard.moments.into_iter().zip(&state.moments) {
            let found = download(&mut driver, found, expected.len());
            assert!(found == bits(expected), "{rule:?}: the moments after step {step}");
        }
    }
}

#[test]
fn every_rule_gives_the_weights_and_moments_of_the_cpu() {
    check_rule(Rule::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8 });
    check_rule(Rule::Sgd { momentum: 0.0 });
    check_rule(Rule::Sgd { momentum: 0.9 });
    check_rule(Rule::Lion { beta1: 0.9, beta2: 0.99 });
}

#[test]
fn sums_of_squares_are_those_of_the_cpu() {
    let Some(mut driver) = Emulated::new(Precision::F32) else { return };
    let blocks = driver.allocate(8 * 16).expect("the host has the memory");
    // Within a row of lanes, at the end of a block, and beyond the blocks of one group of threads.
    for count in [0, 1, 15, 1000, 65_536, 65_537, 600_001] {
        let values = values(0, count);
        let at = upload(&mut driver, &values);
        let found = update::sum_of_squares(&mut driver, at, count, blocks);
        let expected = reduce::sum_of_squares(&values);
        assert_eq!(found.expect("nothing fails").to_bits(), expected.to_bits(), "{count}");
    }
}

#[test]
fn partials_are_added_as_on_the_cpu() {
    let Some(mut driver) = Emulated::new(Precision::F32) else { return };
    let (left, right) = (values(0, 1001), values(1, 1001));
    let (partial, sum) = (upload(&mut driver, &left), upload(&mut driver, &right));
    update::add(&mut driver, partial, sum, 1001);
    let expected: Vec<f32> = left.iter().zip(&right).map(|(left, right)| left + right).collect();
    assert_eq!(download(&mut driver, sum, 1001), bits(&expected));

    let (mut encoded, mut rounded) = (vec![0; 2 * 1001], left);
    reduce::encode_bf16(&rounded, &mut encoded);
    reduce::round_bf16(&mut rounded);
    driver.write(partial, &encoded);
    update::add_bf16(&mut driver, partial, sum, 1001);
    let expected: Vec<f32> =
        rounded.iter().zip(&expected).map(|(left, right)| left + right).collect();
    assert_eq!(download(&mut driver, sum, 1001), bits(&expected));
}

/// Every upper half of an f32, with the lower halves at which rounding changes.
fn all_kinds() -> Vec<f32> {
    let lower = [0u32, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff];
    let uppers = (0..=u16::MAX).step_by(3).chain([0x7f80, 0xff80, 0x7fc0, 0x4780]);
    uppers.flat_map(|upper| lower.map(|l| f32::from_bits(u32::from(upper) << 16 | l))).collect()
}

#[test]
fn computing_copies_are_rounded_as_on_the_cpu() {
    let values = all_kinds();
    for (precision, infinity) in [(Precision::Bf16, 0x7f80), (Precision::Fp16, 0x7c00)] {
        let Some(mut driver) = Emulated::new(precision) else { return };
        let (from, to) = (upload(&mut driver, &values), upload(&mut driver, &values));
        update::round(&mut driver, from, to, values.len());
        let mut found = vec![0u16; values.len()];
        driver.read(to, bytemuck::cast_slice_mut(&mut found)).expect("nothing fails");
        for (value, found) in values.iter().zip(found) {
            // Any NaN is as good as another.
            let good = match value.is_nan() {
                true => found & 0x7fff > infinity,
                false if precision == Precision::Bf16 => found == bf16::from_f32(*value).to_bits(),
                false => found == f16::from_f32(*value).to_bits(),
            };
            assert!(good, "{value:e} in {precision} is not {found:x}");
        }
    }
}

#[test]
fn stochastic_rounding_is_that_of_the_cpu() {
    let Some(mut driver) = Emulated::new(Precision::F32) else { return };
    let (values, seed) = (all_kinds(), 9 << 40);
    // The index in the flat vector may need more than 32 bits.
    let (count, first) = (values.len(), (1 << 33) - 1000);
    let (mut rounded, mut expected) = (values.clone(), vec![0; 2 * count]);
    reduce::round_bf16_stochastically(&mut rounded, seed, first as u64);
    reduce::encode_bf16(&rounded, &mut expected);
    let (from, to) = (upload(&mut driver, &values), upload(&mut driver, &values));
    update::round_stochastically(&mut driver, [from, to], count, first, seed);
    let mut found = vec![0; 2 * count];
    driver.read(to, &mut found).expect("nothing fails");
    assert!(found == expected, "other bits than the CPU's");
}
