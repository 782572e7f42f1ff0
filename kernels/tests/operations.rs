//! Every operation of the CPU, forward and backward, against the f64 reference.
//!
//! Both backends start from the same random values everywhere, except that outputs which the
//! operation overwrites start as NaN. Results may differ by 1e-5 in relative norm.

use everstep_kernels::backend::{Arena, Attention, Backend, Cpu, Indices, Norm, Reference};
use everstep_kernels::backend::{Sizes, View};
use everstep_kernels::random::Philox;

const TOLERANCE: f64 = 1e-5;
const VOCABULARY: usize = 11;

/// Places operands one after the other, and compares what an operation makes of them.
#[derive(Default)]
struct Check {
    sizes: Sizes,
    indices: usize,
    poisoned: Vec<View>,
    changed: Vec<View>,
    deviation: Option<f32>,
}

impl Check {
    fn parameter(&mut self, rows: usize, columns: usize) -> View {
        let view = View::new(Arena::Parameters, self.sizes.parameters, rows, columns);
        self.sizes.parameters += view.len();
        view
    }

    fn input(&mut self, rows: usize, columns: usize) -> View {
        let view = View::new(Arena::Activations, self.sizes.activations, rows, columns);
        self.sizes.activations += view.len();
        view
    }

    /// An output that is overwritten.
    fn written(&mut self, rows: usize, columns: usize) -> View {
        let view = self.input(rows, columns);
        self.poisoned.push(view);
        self.changed.push(view);
        view
    }

    /// An output that is added to or changed in place.
    fn added(&mut self, rows: usize, columns: usize) -> View {
        let view = self.input(rows, columns);
        self.changed.push(view);
        view
    }

    /// A parameter whose gradient is added to.
    fn learned(&mut self, rows: usize, columns: usize) -> View {
        let view = self.parameter(rows, columns);
        self.changed.push(view.gradient());
        view
    }

    fn tokens(&mut self, len: usize) -> Indices {
        self.indices = len;
        self.sizes.indices = len;
        Indices { offset: 0, len }
    }

    fn run(self, operation: impl Fn(&mut dyn Backend)) {
        let (mut cpu, mut reference) = (Cpu::new(self.sizes), Reference::new(self.sizes));
        self.prepare(&mut cpu);
        self.prepare(&mut reference);
        operation(&mut cpu);
        operation(&mut reference);
        assert!(!self.changed.is_empty(), "the check compares something");
        for view in &self.changed {
            let (found, expected) =
                (cpu.read_back(*view).unwrap(), reference.read_back(*view).unwrap());
            let difference = distance(&found, &expected);
            assert!(difference <= TOLERANCE, "{view:?} differs by {difference:e}");
        }
    }

    fn prepare(&self, device: &mut dyn Backend) {
        let Sizes { parameters, activations, .. } = self.sizes;
        let deviation = self.deviation.unwrap_or(1.0);
        let arenas = [
            (Arena::Parameters, parameters),
            (Arena::Gradients, parameters),
            (Arena::Activations, activations),
        ];
        for (stream, (arena, size)) in arenas.into_iter().enumerate() {
            let values: Vec<f32> =
                normals(stream as u64, size).map(|value| deviation * value).collect();
            device.write(View::row(arena, 0..size), &values);
        }
        for view in &self.poisoned {
            device.write(*view, &vec![f32::NAN; view.len()]);
        }
        let tokens: Vec<u32> = (0..self.indices).map(token).collect();
        device.write_indices(Indices { offset: 0, len: self.indices }, &tokens);
    }
}

fn normals(stream: u64, count: usize) -> impl Iterator<Item = f32> {
    let philox = Philox::new(5, 0, stream);
    (0..count as u64).map(move |index| philox.normal(index))
}

/// Some tokens appear often, some never.
fn token(index: usize) -> u32 {
    Philox::new(6, 0, 0).u32(index as u64) % (VOCABULARY as u32 - 2)
}

/// The norm of the difference, relative to the expected norm. NaN where anything is not finite.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    let square = |value: f64| value * value;
    let pairs = found.iter().zip(expected);
    let error: f64 = pairs.map(|(f, e)| square(f64::from(*f) - f64::from(*e))).sum();
    let norm: f64 = expected.iter().map(|e| square(f64::from(*e))).sum();
    (error / norm).sqrt()
}

#[test]
fn products_of_all_forms() {
    for (m, k, n) in [(1, 1, 1), (3, 5, 7), (33, 17, 65), (64, 300, 20), (1, 40, 9), (130, 2, 1)] {
        for (a_transposed, b_transposed) in [(false, false), (false, true), (true, false)] {
            for add in [false, true] {
                let mut check = Check::default();
                let a = match a_transposed {
                    false => check.input(m, k),
                    true => check.input(k, m).t(),
                };
                let b = match b_transposed {
                    false => check.parameter(k, n),
                    true => check.parameter(n, k).t(),
                };
                let c = if add { check.added(m, n) } else { check.written(m, n) };
                check.run(|device| match add {
                    false => device.matmul(a, b, c),
                    true => device.matmul_add(a, b, c),
                });
            }
        }
    }
}

#[test]
fn a_residual_connection() {
    for (rows, columns) in [(1, 1), (7, 13), (40, 64)] {
        let mut check = Check::default();
        let (x, y) = (check.input(rows, columns), check.added(rows, columns));
        check.run(|device| device.add(x, y));
    }
}

#[test]
fn a_bias_forward_and_backward() {
    for (rows, columns) in [(1, 1), (7, 13), (40, 64)] {
        let mut check = Check::default();
        let (bias, y) = (check.learned(1, columns), check.added(rows, columns));
        let dy = check.input(rows, columns);
        check.run(|device| {
            device.add_bias(bias, y);
            device.bias_backward(dy, bias.gradient());
        });
    }
}

#[test]
fn an_embedding_forward_and_backward() {
    for (count, width) in [(1, 1), (37, 5), (64, 48)] {
        let mut check = Check::default();
        let tokens = check.tokens(count);
        let (table, y) = (check.learned(VOCABULARY, width), check.written(count, width));
        let dy = check.input(count, width);
        check.run(|device| {
            device.embedding(tokens, table, y);
            device.embedding_backward(tokens, dy, table.gradient());
        });
    }
}

#[test]
fn layer_norm_forward_and_backward() {
    for (rows, width) in [(1, 2), (5, 17), (33, 64), (8, 100)] {
        let mut check = Check::default();
        let norm = Norm {
            x: check.input(rows, width),
            weight: check.learned(1, width),
            bias: check.learned(1, width),
            y: check.written(rows, width),
            statistics: check.written(rows, 2),
        };
        let (dy, dx) = (check.input(rows, width), check.added(rows, width));
        check.run(|device| {
            device.layer_norm(norm);
            device.layer_norm_backward(norm, dy, dx);
        });
    }
}

#[test]
fn layer_norm_of_rows_far_from_zero() {
    let mut check = Check::default();
    let (weight, x) = (check.learned(1, 48), check.added(9, 48));
    let (bias, shift) = (check.learned(1, 48), check.input(9, 48));
    let (y, statistics) = (check.written(9, 48), check.written(9, 2));
    let norm = Norm { x, weight, bias, y, statistics };
    check.run(|device| {
        device.write(shift, &[100.0; 9 * 48]);
        device.add(shift, x);
        // In eighths, so that 100 more or less loses no bit.
        let eighths: Vec<f32> =
            device.read_back(x).unwrap().iter().map(|x| (x * 8.0).round() / 8.0).collect();
        device.write(x, &eighths);
        device.layer_norm(norm);
    });
}

#[test]
fn causal_attention_forward_and_backward() {
    let shapes = [(1, 1, 1, 1), (2, 3, 2, 5), (1, 64, 2, 16), (2, 65, 3, 8), (1, 150, 1, 32)];
    for (sequences, sequence, heads, size) in shapes {
        let mut check = Check::default();
        check.sizes.sequence = sequence;
        let (rows, width) = (sequences * sequence, heads * size);
        let qkv = check.input(rows, 3 * width);
        let y = check.written(rows, width);
        let statistics = check.input(rows, heads);
        let attention = Attention { heads, sequence, qkv, y, statistics };
        let (dy, d_qkv) = (check.input(rows, width), check.written(rows, 3 * width));
        check.poisoned.push(statistics);
        check.run(|device| {
            device.attention(attention);
            device.attention_backward(attention, dy, d_qkv);
        });
    }
}

#[test]
fn causal_attention_to_a_sequence_shorter_than_planned() {
    let mut check = Check::default();
    check.sizes.sequence = 100;
    let (heads, sequence) = (2, 7);
    let qkv = check.input(21, 24);
    let (y, statistics) = (check.written(21, 8), check.input(21, heads));
    let attention = Attention { heads, sequence, qkv, y, statistics };
    check.run(|device| device.attention(attention));
}

#[test]
fn gelu_forward_and_backward() {
    for (count, deviation) in [(1, 1.0), (77, 0.1), (1000, 3.0), (1000, 50.0)] {
        let mut check = Check { deviation: Some(deviation), ..Check::default() };
        let (x, y) = (check.input(1, count), check.written(1, count));
        let dy = check.added(1, count);
        check.run(|device| {
            device.gelu(x, y);
            device.gelu_backward(x, dy);
        });
    }
}

#[test]
fn cross_entropy_and_its_gradient() {
    for (rows, classes, deviation) in [(1, 11, 1.0), (37, 11, 0.01), (9, 256, 5.0), (5, 50, 30.0)] {
        let mut check = Check { deviation: Some(deviation), ..Check::default() };
        let targets = check.tokens(rows);
        let (logits, losses) = (check.added(rows, classes), check.written(rows, 1));
        check.run(|device| device.cross_entropy(logits, targets, losses, 1.0 / rows as f64));
    }
}

#[test]
fn totals_and_zeros() {
    let mut check = Check::default();
    let (x, y) = (check.input(1, 1000), check.written(3, 9));
    check.run(|device| {
        device.zero(y);
        let total = device.total(x).unwrap() as f32;
        device.write(y, &[total; 27]);
    });
}

#[test]
fn what_is_not_a_number_stays_visible() {
    let sizes = Sizes { parameters: 0, activations: 100, statistics: 2, indices: 2, sequence: 0 };
    let mut device = Cpu::new(sizes);
    let logits = View::new(Arena::Activations, 0, 2, 20);
    let losses = View::new(Arena::Statistics, 0, 2, 1);
    let mut values = [0.5; 40];
    values[7] = f32::NAN;
    device.write(logits, &values);
    device.cross_entropy(logits, Indices { offset: 0, len: 2 }, losses, 1.0);
    let found = device.read_back(losses).unwrap().into_owned();
    assert!(found[0].is_nan() && found[1].is_finite());
    device.gelu(logits.top(1), View::new(Arena::Activations, 40, 1, 20));
    assert!(device.total(View::new(Arena::Activations, 40, 1, 20)).unwrap().is_nan());
}
