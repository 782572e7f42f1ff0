//! Compares every rule with its paper in f64, and checks the common promises of all rules.

use super::*;
use crate::layout::{Init, Statistic};
use crate::random::Philox;
use proptest::prelude::*;

const COUNT: usize = 40;
const STEPS: u64 = 30;
const RATE: f32 = 0.01;
const DECAY: f32 = 0.1;
const CLIP: f32 = 0.5;

const RULES: [Rule; 4] = [
    Rule::AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8 },
    Rule::Sgd { momentum: 0.9 },
    Rule::Sgd { momentum: 0.0 },
    Rule::Lion { beta1: 0.9, beta2: 0.99 },
];

/// A matrix, which decays, and then a bias, which does not.
fn layout() -> Layout {
    let mut layout = Layout::new();
    layout.push("weight", &[5, 6], Init::Normal { deviation: 1.0 });
    layout.push("bias", &[10], Init::Constant(0.5));
    layout
}

fn gradient(step: u64) -> Vec<f32> {
    let stream = Philox::new(9, Philox::DROPOUT, step);
    (0..COUNT as u64).map(|index| stream.normal(index)).collect()
}

fn initial(range: Range<usize>) -> Vec<f32> {
    let mut values = vec![0.0; range.len()];
    layout().init(1, range, &mut values);
    values
}

/// Trains the shard at `range` alone.
fn train(rule: Rule, range: Range<usize>) -> ShardState {
    let optimizer = Optimizer::new(rule, DECAY).expect("valid settings");
    let mut state = optimizer.state(initial(range.clone()));
    let layout = layout();
    for step in 1..=STEPS {
        let gradient = gradient(step);
        let range = range.clone();
        let inputs = UpdateInputs {
            step,
            run_step: step,
            learning_rate: RATE,
            clip: CLIP,
            layout: &layout,
            range,
        };
        update(&optimizer, &mut state, &gradient[inputs.range.clone()], &inputs);
    }
    state
}

/// One step, without a look at the blocks.
fn update(optimizer: &Optimizer, state: &mut ShardState, gradient: &[f32], inputs: &UpdateInputs) {
    optimizer.update(state, gradient, inputs, [0, 0]);
}

/// The change that the paper's algorithm makes of gradients `g[0]`, `g[1]`, … so far, over the
/// learning rate. Running means are written out as sums.
fn paper(rule: Rule, g: &[f64]) -> f64 {
    let now = g.len() as i32;
    // The sum over past gradients of `beta^age` times a function of each.
    let sum = |beta: f32, g: &[f64], of: fn(f64) -> f64| -> f64 {
        let ages = (0..g.len() as i32).rev();
        g.iter().zip(ages).map(|(g, age)| f64::from(beta).powi(age) * of(*g)).sum()
    };
    let mean = |beta: f32, g: &[f64], of| (1.0 - f64::from(beta)) * sum(beta, g, of);
    match rule {
        Rule::AdamW { beta1, beta2, epsilon } => {
            let corrected = |beta: f32, of| mean(beta, g, of) / (1.0 - f64::from(beta).powi(now));
            corrected(beta1, |g| g) / (corrected(beta2, |g| g * g).sqrt() + f64::from(epsilon))
        }
        Rule::Sgd { momentum } => sum(momentum, g, |g| g),
        Rule::Lion { beta1, beta2 } => {
            let (last, past) = g.split_last().expect("a gradient");
            let beta1 = f64::from(beta1);
            (beta1 * mean(beta2, past, |g| g) + (1.0 - beta1) * last).signum()
        }
    }
}

#[test]
fn every_rule_does_what_its_paper_says() {
    let gradients: Vec<Vec<f32>> = (1..=STEPS).map(gradient).collect();
    for rule in RULES {
        let trained = train(rule, 0..COUNT).master;
        for (index, initial) in initial(0..COUNT).into_iter().enumerate() {
            let mut weight = f64::from(initial);
            let past: Vec<f64> =
                gradients.iter().map(|g| f64::from(CLIP) * f64::from(g[index])).collect();
            let decay = if index < 30 { f64::from(DECAY) } else { 0.0 };
            for step in 1..=past.len() {
                let rate = f64::from(RATE);
                weight -= rate * decay * weight + rate * paper(rule, &past[..step]);
            }
            let error = (f64::from(trained[index]) - weight).abs();
            assert!(error < 1e-5, "{rule:?}, element {index}: off by {error}");
        }
    }
}

#[test]
fn lion_stands_still_where_there_is_no_gradient() {
    let optimizer = Optimizer::new(RULES[3], 0.0).expect("valid settings");
    let mut state = optimizer.state(vec![1.0, 1.0]);
    let layout = layout();
    let inputs = UpdateInputs {
        step: 1,
        run_step: 1,
        learning_rate: RATE,
        clip: 1.0,
        layout: &layout,
        range: 3..5,
    };
    update(&optimizer, &mut state, &[0.0, -0.0], &inputs);
    assert_eq!(state.master, [1.0, 1.0]);
}

/// The NaN of an operation depends on the processor. The owners' bits must not.
#[test]
fn i3_what_is_no_number_has_the_same_bits_after_every_update() {
    let layout = layout();
    let numbers = [f32::INFINITY, -f32::NAN, f32::from_bits(0x7fff_ffff), f32::MAX, 1.0];
    for rule in RULES {
        let optimizer = Optimizer::new(rule, 0.1).expect("valid settings");
        for master in numbers {
            for gradient in numbers {
                let mut state = optimizer.state(vec![master; 2]);
                let range = 3..5;
                let inputs = UpdateInputs {
                    step: 1,
                    run_step: 1,
                    learning_rate: f32::MAX,
                    clip: 1.0,
                    layout: &layout,
                    range,
                };
                update(&optimizer, &mut state, &[gradient, -gradient], &inputs);
                for value in state.moments.iter().flatten().chain(&state.master) {
                    let bits = value.to_bits();
                    assert!(!value.is_nan() || bits == 0x7fc0_0000, "{rule:?}: {bits:x}");
                }
            }
        }
    }
}

proptest! {
    /// Invariant I3 for updates: every cut into owned parts gives the same bits.
    #[test]
    fn no_cut_of_the_vector_changes_a_bit(
        rule in prop::sample::select(RULES.to_vec()),
        cuts in prop::collection::btree_set(0..=COUNT, 0..6),
    ) {
        let whole = train(rule, 0..COUNT);
        let starts = std::iter::once(0).chain(cuts.iter().copied());
        let ends = cuts.iter().copied().chain([COUNT]);
        for (start, end) in starts.zip(ends) {
            let part = train(rule, start..end);
            let expected = ShardState {
                master: whole.master[start..end].to_vec(),
                moments: whole.moments.iter().map(|moment| moment[start..end].to_vec()).collect(),
            };
            prop_assert_eq!(part.digest(0), expected.digest(0));
        }
    }
}

/// The step as each rule's formula says it, an element at a time.
fn plain(rule: Rule, state: &mut ShardState, gradient: &[f32], inputs: &UpdateInputs) {
    let ShardState { master, moments } = state;
    for (index, (w, g)) in master.iter_mut().zip(gradient).enumerate() {
        let (tensor, _) = inputs
            .layout
            .parts(inputs.range.start + index..inputs.range.end)
            .next()
            .expect("a tensor");
        if tensor.decay {
            *w *= 1.0 - inputs.learning_rate * DECAY;
        }
        let g = g * inputs.clip;
        match (rule, moments.as_mut_slice()) {
            (Rule::AdamW { beta1, beta2, epsilon }, [mean, square]) => {
                let adamw::Step { rate, root, .. } =
                    adamw::Step::new([beta1, beta2], epsilon, inputs);
                let (m, v) = (&mut mean[index], &mut square[index]);
                *m = beta1 * *m + (1.0 - beta1) * g;
                *v = beta2 * *v + (1.0 - beta2) * (g * g);
                *w -= rate * *m / (v.sqrt() * root + epsilon);
            }
            (Rule::Sgd { momentum }, [velocity]) => {
                velocity[index] = momentum * velocity[index] + g;
                *w -= inputs.learning_rate * velocity[index];
            }
            (Rule::Lion { beta1, beta2 }, [mean]) => {
                let direction = beta1 * mean[index] + (1.0 - beta1) * g;
                *w -=
                    inputs.learning_rate * if direction == 0.0 { 0.0 } else { direction.signum() };
                mean[index] = beta2 * mean[index] + (1.0 - beta2) * g;
            }
            _ => *w -= inputs.learning_rate * g,
        }
    }
}

/// Two blocks and a part of a block, which begins within a tensor.
#[test]
fn neither_blocks_nor_vectors_change_a_bit() {
    let mut layout = Layout::new();
    layout.push("weight", &[reduce::DIGEST_BLOCK + 7], Init::Normal { deviation: 1.0 });
    layout.push("bias", &[reduce::DIGEST_BLOCK + 93], Init::Constant(0.5));
    let range = 13..layout.count();
    let mut initial = vec![0.0; range.len()];
    layout.init(1, range.clone(), &mut initial);
    let noise = Philox::new(9, Philox::DROPOUT, 1);
    let gradient: Vec<f32> = (0..range.len() as u64).map(|index| noise.normal(index)).collect();
    for rule in RULES {
        let optimizer = Optimizer::new(rule, DECAY).expect("valid settings");
        let mut state = optimizer.state(initial.clone());
        let mut expected = state.clone();
        for step in 1..=3 {
            let range = range.clone();
            let inputs = UpdateInputs {
                step,
                run_step: step,
                learning_rate: RATE,
                clip: CLIP,
                layout: &layout,
                range,
            };
            let before = state.digest(step - 1);
            let seen = optimizer.update(&mut state, &gradient, &inputs, [step - 1, step]);
            plain(rule, &mut expected, &gradient, &inputs);
            let after = expected.digest(step);
            assert_eq!(seen, Digests { before, gradient: reduce::digest(0, &gradient), after });
            assert_eq!(state.digest(step), after, "{rule:?}");
        }
    }
}

/// A rule of a program's own: gradient descent with momentum that knows no clipping and no NaN.
#[derive(Debug)]
struct Plain;

impl UpdateRule for Plain {
    fn moments(&self) -> usize {
        1
    }

    fn update(&self, block: UpdateBlock<'_>, inputs: &UpdateInputs<'_>) {
        let [velocity] = block.moments else { panic!("the moments that it asked for") };
        for ((w, v), g) in block.weights.iter_mut().zip(velocity.iter_mut()).zip(block.gradient) {
            *v = 0.9 * *v + g;
            *w -= inputs.learning_rate * *v;
        }
    }
}

#[test]
fn a_rule_of_ones_own_gets_clipped_gradients_and_has_the_bits_of_a_built_in_one() {
    let (layout, range) = (layout(), 0..COUNT);
    let built_in = Optimizer::new(Rule::Sgd { momentum: 0.9 }, DECAY).expect("valid settings");
    let own = Optimizer::of(Arc::new(Plain), DECAY).expect("valid settings");
    assert_eq!(own.bytes_per_parameter(), built_in.bytes_per_parameter());
    let mut states = [&built_in, &own].map(|optimizer| optimizer.state(vec![0.5; COUNT]));
    for step in 1..=3 {
        let mut gradient: Vec<f32> = (0..COUNT).map(|index| index as f32 - 7.0).collect();
        gradient[5] = if step == 2 { -f32::NAN } else { 0.25 };
        let range = range.clone();
        let inputs = UpdateInputs {
            step,
            run_step: step,
            learning_rate: RATE,
            clip: CLIP,
            layout: &layout,
            range,
        };
        update(&built_in, &mut states[0], &gradient, &inputs);
        update(&own, &mut states[1], &gradient, &inputs);
        assert_eq!(states[0].digest(step), states[1].digest(step), "step {step}");
    }
}

/// A state that a checkpoint is being written of stays as it is.
#[test]
fn an_update_beside_its_source_has_the_bits_and_digests_of_one_in_place() {
    for rule in RULES {
        let optimizer = Optimizer::new(rule, DECAY).expect("valid settings");
        let source = train(rule, 0..COUNT);
        let (layout, gradient) = (layout(), gradient(STEPS + 1));
        let (step, range) = (STEPS + 1, 0..COUNT);
        let inputs = UpdateInputs {
            step,
            run_step: step,
            learning_rate: RATE,
            clip: CLIP,
            layout: &layout,
            range,
        };
        let (mut in_place, before) = (source.clone(), source.clone());
        let mut beside = optimizer.state(vec![7.0; COUNT]);
        let target = UpdateTarget { state: &mut beside, source: Some(&source) };
        let seen = optimizer.update(target, &gradient, &inputs, [4, 5]);
        let wanted = optimizer.update(&mut in_place, &gradient, &inputs, [4, 5]);
        assert_eq!((seen, &beside, &source), (wanted, &in_place, &before));
    }
}

#[test]
fn the_digest_tells_version_weights_and_moments() {
    let state = train(RULES[0], 0..COUNT);
    let mut others = vec![state.clone(); 4];
    others[0].master[3] = -others[0].master[3];
    others[1].moments[0][39] += 1.0;
    others[2].moments[1][0] += 1.0;
    others[3].moments.swap(0, 1);
    assert_eq!(state.digest(7), state.clone().digest(7));
    assert_ne!(state.digest(7), state.digest(8));
    for other in others {
        assert_ne!(state.digest(7), other.digest(7));
    }
}

#[test]
fn memory_is_a_word_for_the_weight_and_each_moment() {
    for (rule, bytes) in RULES.into_iter().zip([12, 8, 4, 8]) {
        let optimizer = Optimizer::new(rule, DECAY).expect("valid settings");
        let state = optimizer.state(vec![0.0; 10]);
        assert_eq!(optimizer.bytes_per_parameter(), bytes);
        assert_eq!(4 * (state.master.len() + state.moments.concat().len()), 10 * bytes);
    }
}

#[test]
fn settings_out_of_bounds_are_refused_by_name() {
    let table = [
        (Rule::AdamW { beta1: 1.0, beta2: 0.9, epsilon: 1e-8 }, 0.0, "beta1"),
        (Rule::AdamW { beta1: 0.9, beta2: f32::NAN, epsilon: 1e-8 }, 0.0, "beta2"),
        (Rule::AdamW { beta1: 0.9, beta2: 0.9, epsilon: 0.0 }, 0.0, "epsilon"),
        (Rule::Sgd { momentum: -0.1 }, 0.0, "momentum"),
        (Rule::Lion { beta1: 0.9, beta2: 1.5 }, 0.0, "beta2"),
        (Rule::Sgd { momentum: 0.0 }, f32::INFINITY, "weight_decay"),
    ];
    for (rule, weight_decay, setting) in table {
        let error = Optimizer::new(rule, weight_decay).expect_err("a setting is out of bounds");
        assert_eq!(error.setting, setting);
    }
    let error = Optimizer::new(Rule::Sgd { momentum: 1.0 }, 0.0).expect_err("too much momentum");
    assert_eq!(error.to_string(), "momentum = 1: it must be at least 0 and below 1");
}

#[test]
fn gradients_are_clipped_only_beyond_the_maximum() {
    assert_eq!(clip_factor(5.0, None), 1.0);
    assert_eq!(clip_factor(0.0, Some(1.0)), 1.0);
    assert_eq!(clip_factor(0.5, Some(1.0)), 1.0);
    assert_eq!(clip_factor(4.0, Some(1.0)), (1.0 / 4.000001f64) as f32);
}

/// A rule of the program's own: plain gradient descent at a rate of 1, with one moment.
#[derive(Debug)]
struct Descent;

impl UpdateRule for Descent {
    fn moments(&self) -> usize {
        1
    }

    fn update(&self, block: UpdateBlock<'_>, inputs: &UpdateInputs<'_>) {
        assert!(inputs.range.end <= inputs.layout.trained(), "no rule sees a statistic");
        let UpdateBlock { weights, moments, gradient } = block;
        weights.iter_mut().zip(gradient).for_each(|(weight, gradient)| *weight -= gradient);
        moments[0].fill(inputs.step as f32);
    }
}

#[test]
fn statistics_follow_the_forward_passes_alone() {
    let mut layout = Layout::new();
    let one = Init::Constant(1.0);
    layout.push("weight", &[2, 2], one);
    layout.push_statistic("mean", &[2, 2], one, Statistic::Mean);
    layout.push_statistic("count", &[], one, Statistic::Count);
    layout.push_statistic("queue", &[2], one, Statistic::First);
    let gradient = [2.0, 2.0, 2.0, 2.0, 0.25, -0.5, 0.0, 3.0, 0.999_999_9, 5.0, 0.0];
    let built_in = Optimizer::new(Rule::Sgd { momentum: 0.9 }, DECAY).expect("valid settings");
    let own = Optimizer::of(Arc::new(Descent), DECAY).expect("valid settings");
    for optimizer in [built_in, own] {
        for range in [0..11, 3..6, 4..11, 8..9] {
            let mut state = optimizer.state(vec![1.0; range.len()]);
            let inputs = UpdateInputs {
                step: 1,
                run_step: 1,
                learning_rate: 1.0,
                clip: CLIP,
                layout: &layout,
                range: range.clone(),
            };
            update(&optimizer, &mut state, &gradient[range.clone()], &inputs);
            let trained = (1.0 - DECAY) - CLIP * 2.0;
            let expected = [trained; 4].into_iter();
            let expected = expected.chain([1.25, 0.5, 1.0, 4.0, 2.0, 5.0, 0.0]);
            let expected: Vec<f32> = expected.skip(range.start).take(range.len()).collect();
            assert_eq!(state.master, expected, "{range:?}");
            let untouched = layout.trained().saturating_sub(range.start).min(range.len());
            assert!(state.moments[0][untouched..].iter().all(|moment| *moment == 0.0));
        }
    }
}
