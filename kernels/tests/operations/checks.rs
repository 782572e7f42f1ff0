//! Every operation, forward and backward, on any backend, against the f64 reference.

use everstep_kernels::backend::{Arena, Attention, Indices, Norm, Sizes, View};

use super::check::{Check, Subject, VOCABULARY, normals};

/// One test for each operation on `$subject`. Without a subject, the test passes.
macro_rules! test_every_operation {
    ($subject:expr) => {
        test_every_operation! { $subject;
            products_of_all_forms
            products_into_a_gradient
            a_residual_connection
            a_bias_forward_and_backward
            linear_layers_of_all_forms
            a_gelu_between_linear_layers
            an_embedding_forward_and_backward
            layer_norm_forward_and_backward
            layer_norm_of_rows_far_from_zero
            causal_attention_forward_and_backward
            causal_attention_to_a_sequence_shorter_than_planned
            gelu_forward_and_backward
            cross_entropy_and_its_gradient
            totals_and_zeros
            what_is_not_a_number_stays_visible
        }
    };
    ($subject:expr; $($check:ident)+) => {
        $(
            #[test]
            fn $check() {
                $subject.iter().for_each($crate::operations::checks::$check);
            }
        )+
    };
}

/// A module of tests for each precision of a function that makes a subject of a precision and of
/// attention kernels. One more module is for the attention kernels that the others pass over.
#[macro_export]
macro_rules! test_every_precision {
    ($open:path) => {
        mod f32 {
            test_every_operation!($open($crate::Precision::F32, $crate::AttentionKernels::Tensor));
        }

        mod bf16 {
            test_every_operation!($open($crate::Precision::Bf16, $crate::AttentionKernels::Tensor));
        }

        mod fp16 {
            test_every_operation!($open($crate::Precision::Fp16, $crate::AttentionKernels::Tensor));
        }

        mod slower_attention {
            #[test]
            fn in_tiles_of_16_bits_without_tensor_cores() {
                let subject = $open($crate::Precision::Bf16, $crate::AttentionKernels::Flash);
                subject
                    .iter()
                    .for_each($crate::operations::checks::causal_attention_forward_and_backward);
            }

            #[test]
            fn plainly() {
                for precision in [$crate::Precision::F32, $crate::Precision::Bf16] {
                    let subject = $open(precision, $crate::AttentionKernels::Plain);
                    subject.iter().for_each(
                        $crate::operations::checks::causal_attention_forward_and_backward,
                    );
                }
            }
        }
    };
}

pub fn products_of_all_forms(subject: &Subject) {
    for (m, k, n) in [(1, 1, 1), (3, 5, 7), (33, 17, 65), (64, 300, 20), (1, 40, 9), (130, 2, 1)] {
        for (a_transposed, b_transposed) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            for add in [false, true] {
                let mut check = Check::of(subject);
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

pub fn products_into_a_gradient(subject: &Subject) {
    for (rows, inputs, outputs) in [(1, 1, 1), (70, 33, 65), (9, 130, 4)] {
        let mut check = Check::of(subject);
        let (x, dy) = (check.input(rows, inputs), check.input(rows, outputs));
        let weight = check.learned(inputs, outputs);
        check.run(|device| device.matmul_add(x.t(), dy, weight.gradient()));
    }
}

pub fn a_residual_connection(subject: &Subject) {
    // The last views begin where chunks of 16 bytes do, and end within one.
    for (rows, columns, used) in [(1, 1, 1), (7, 13, 7), (40, 64, 40), (41, 8, 33)] {
        let mut check = Check::of(subject);
        let (x, y) = (check.input(rows, columns), check.added(rows, columns));
        let [x, y] = [x, y].map(|view| view.shaped(1, used * columns - used / 33));
        check.run(|device| device.add(x, y));
    }
}

pub fn a_bias_forward_and_backward(subject: &Subject) {
    for (rows, columns) in [(1, 1), (7, 13), (40, 64), (300, 33), (300, 66)] {
        let mut check = Check::of(subject);
        let (bias, y) = (check.learned(1, columns), check.added(rows, columns));
        let dy = check.input(rows, columns);
        check.run(|device| {
            device.add_bias(bias, y);
            device.bias_backward(dy, bias.gradient());
        });
    }
}

/// Rows, inputs and outputs. A library may also do the work after a product, if rows are of a
/// multiple of 8 numbers and a bias begins at a multiple of 16 bytes. Some of these meet that.
const LINEAR: [[usize; 3]; 6] =
    [[1, 2, 17], [3, 5, 7], [33, 17, 64], [64, 30, 24], [7, 16, 40], [70, 9, 130]];

pub fn linear_layers_of_all_forms(subject: &Subject) {
    LINEAR.into_iter().for_each(|shape| linear_layer(subject, shape));
}

pub fn linear_layer(subject: &Subject, [rows, inputs, outputs]: [usize; 3]) {
    let mut check = Check::of(subject);
    let weight = check.parameter(inputs, outputs);
    let bias = check.parameter(1, outputs);
    let (x, y) = (check.input(rows, inputs), check.written(rows, outputs));
    check.run(|device| device.linear(x, weight, bias, y));
}

pub fn a_gelu_between_linear_layers(subject: &Subject) {
    LINEAR.into_iter().for_each(|shape| gelu_after_and_before(subject, shape));
}

pub fn gelu_after_and_before(subject: &Subject, [rows, inputs, outputs]: [usize; 3]) {
    let mut check = Check::of(subject);
    let weight = check.parameter(inputs, outputs);
    let bias = check.parameter(1, outputs);
    // Models begin every activation at a multiple of 16 elements. Here the first one does.
    let (y, activated) = (check.written(rows, outputs), check.written(rows, outputs));
    let x = check.input(rows, inputs);
    check.run(|device| device.linear_gelu(x, weight, bias, [y, activated]));

    let mut check = Check::of(subject);
    let weight = check.parameter(outputs, inputs);
    let (input, d_input) = (check.input(rows, outputs), check.written(rows, outputs));
    let dy = check.input(rows, inputs);
    check.run(|device| device.matmul_gelu_backward(dy, weight.t(), input, d_input));
}

pub fn an_embedding_forward_and_backward(subject: &Subject) {
    for (count, width) in [(1, 1), (37, 5), (64, 48)] {
        let mut check = Check::of(subject);
        let tokens = check.tokens(count);
        let (table, y) = (check.learned(VOCABULARY, width), check.written(count, width));
        let dy = check.input(count, width);
        check.run(|device| {
            device.embedding(tokens, table, y);
            device.embedding_backward(tokens, dy, table.gradient());
        });
    }
}

pub fn layer_norm_forward_and_backward(subject: &Subject) {
    for (rows, width) in [(1, 2), (5, 17), (33, 64), (8, 100), (200, 40), (3, 1104)] {
        let mut check = Check::of(subject);
        let norm = Norm {
            x: check.input(rows, width),
            weight: check.learned(1, width),
            bias: check.learned(1, width),
            y: check.written(rows, width),
            statistics: check.summary(rows, 2),
        };
        let (dy, dx) = (check.input(rows, width), check.added(rows, width));
        check.run(|device| {
            device.layer_norm(norm);
            device.layer_norm_backward(norm, dy, dx);
        });
    }
}

pub fn layer_norm_of_rows_far_from_zero(subject: &Subject) {
    let mut check = Check::of(subject);
    let (weight, x) = (check.learned(1, 48), check.added(9, 48));
    let bias = check.learned(1, 48);
    let (y, statistics) = (check.written(9, 48), check.summary(9, 2));
    let norm = Norm { x, weight, bias, y, statistics };
    // In halves, so that 100 more loses no bit, not even of a bf16.
    let far: Vec<f32> = normals(9, 9 * 48).map(|x| 100.0 + (2.0 * x).round() / 2.0).collect();
    check.run(|device| {
        device.write(x, &far);
        device.layer_norm(norm);
    });
}

pub fn causal_attention_forward_and_backward(subject: &Subject) {
    // Heads of one width after the other: kernels for narrow ones, for wide ones, for any.
    let narrow = [(1, 1, 1, 1), (2, 3, 2, 5), (1, 64, 2, 16), (2, 65, 3, 8), (1, 150, 1, 32)];
    let wide = [(1, 200, 2, 64), (2, 19, 1, 65), (1, 100, 1, 128), (1, 140, 1, 131)];
    let shapes = narrow.into_iter().chain(wide);
    for (sequences, sequence, heads, size) in shapes {
        let mut check = Check::of(subject);
        check.sizes.sequence = sequence;
        let (rows, width) = (sequences * sequence, heads * size);
        let qkv = check.input(rows, 3 * width);
        let y = check.written(rows, width);
        let statistics = check.statistics(rows, heads);
        let attention = Attention { heads, sequence, qkv, y, statistics };
        let (dy, d_qkv) = (check.input(rows, width), check.written(rows, 3 * width));
        let scratch = check.statistics(rows, heads);
        check.run(|device| {
            device.attention(attention);
            device.attention_backward(attention, dy, d_qkv, scratch);
        });
    }
}

pub fn causal_attention_to_a_sequence_shorter_than_planned(subject: &Subject) {
    let mut check = Check::of(subject);
    check.sizes.sequence = 100;
    let (heads, sequence) = (2, 7);
    let qkv = check.input(21, 24);
    let (y, statistics) = (check.written(21, 8), check.statistics(21, heads));
    let attention = Attention { heads, sequence, qkv, y, statistics };
    check.run(|device| device.attention(attention));
}

pub fn gelu_forward_and_backward(subject: &Subject) {
    for (count, deviation) in [(1, 1.0), (77, 0.1), (1000, 3.0), (1000, 50.0)] {
        let mut check = Check::of(subject);
        check.deviation = deviation;
        let (x, y) = (check.input(1, count), check.written(1, count));
        let dy = check.added(1, count);
        check.run(|device| {
            device.gelu(x, y);
            device.gelu_backward(x, dy);
        });
    }
}

pub fn cross_entropy_and_its_gradient(subject: &Subject) {
    for (rows, classes, deviation) in
        [(1, 11, 1.0), (37, 11, 0.01), (9, 256, 5.0), (5, 50, 30.0), (3, 2500, 1.0)]
    {
        let mut check = Check::of(subject);
        check.deviation = deviation;
        let targets = check.tokens(rows);
        let (logits, losses) = (check.added(rows, classes), check.summary(rows, 1));
        check.run(|device| device.cross_entropy(logits, targets, losses, 1.0 / rows as f64));
    }
}

pub fn totals_and_zeros(subject: &Subject) {
    let mut check = Check::of(subject);
    let (x, y) = (check.input(1, 1000), check.written(3, 9));
    check.run(|device| {
        device.zero(y);
        let total = device.total(x).unwrap() as f32;
        device.write(y, &[total; 27]);
    });
}

pub fn what_is_not_a_number_stays_visible(subject: &Subject) {
    let sizes = Sizes { activations: 100, statistics: 2, indices: 2, ..Sizes::default() };
    let mut device = (subject.open)(sizes);
    let (logits, y) = (View::new(Arena::Activations, 0, 2, 20), Arena::Activations);
    let (losses, y) = (View::new(Arena::Statistics, 0, 2, 1), View::new(y, 40, 1, 20));
    let mut values = [0.5; 40];
    values[7] = f32::NAN;
    device.write(logits, &values);
    device.cross_entropy(logits, Indices { offset: 0, len: 2 }, losses, 1.0);
    let found = device.read_back(losses).unwrap().into_owned();
    assert!(found[0].is_nan() && found[1].is_finite());
    device.gelu(logits.top(1), y);
    assert!(device.total(y).unwrap().is_nan());
}
