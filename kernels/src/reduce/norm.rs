//! The sum of a gradient's squares, in an order that no machine changes.
//!
//! Input: one reduced parameter shard. Output: its share of the squared global norm. Blocks never
//! cross parameter shards. The step leader adds the shards' own sums in index order.

use std::array;

use super::nan::canonical_f64;
use crate::threads::Threads;

/// Elements of a block.
const BLOCK: usize = 64 << 10;
/// Partial sums of a block: element `i` goes to lane `i % LANES`. A power of two.
const LANES: usize = 16;

/// The sum of the squares of `values`: blocks of 64 Ki elements, added in index order.
///
/// An f64 holds the square of an f32 exactly, so even a fused multiply-add gives these bits.
pub fn sum_of_squares(values: &[f32]) -> f64 {
    sum_of_squares_on(&Threads::default(), values)
}

/// As [`sum_of_squares`], on several threads, with the same bits.
pub fn sum_of_squares_on(threads: &Threads, values: &[f32]) -> f64 {
    let sums = threads.results(values.chunks(BLOCK).collect(), block);
    canonical_f64(sums.into_iter().fold(0.0, |sum, block| sum + block))
}

/// The lanes are summed along a binary tree that halves them: lane `i` and lane `i + half`.
#[multiversion::multiversion(targets("x86_64+avx512f", "x86_64+avx2"))]
fn block(values: &[f32]) -> f64 {
    let mut lanes = [0.0f64; LANES];
    let (rows, rest) = values.as_chunks::<LANES>();
    for row in rows {
        lanes = array::from_fn(|lane| lanes[lane] + square(row[lane]));
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += square(*value);
    }
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

fn square(value: f32) -> f64 {
    f64::from(value) * f64::from(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Philox;

    fn gradient(length: u64) -> Vec<f32> {
        let stream = Philox::new(1, Philox::INITIAL_VALUES, 0);
        (0..length).map(|index| stream.normal(index)).collect()
    }

    #[test]
    fn the_sum_is_that_of_the_definition() {
        for length in [0, 1, 15, 16, 17, 1000] {
            let values = gradient(length);
            let plain: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
            assert!((sum_of_squares(&values) - plain).abs() <= 1e-14 * plain, "{length}");
        }
        // Squares far beyond what an f32 holds.
        assert_eq!(sum_of_squares(&[1e30, 1e-30]), f64::from(1e30f32).powi(2));
        let (nan, minus) = (sum_of_squares(&[1.0, f32::NAN]), sum_of_squares(&[-f32::NAN]));
        assert_eq!((nan.is_nan(), nan.to_bits()), (true, minus.to_bits()));
    }

    #[test]
    fn the_lanes_are_added_in_the_stated_order() {
        let values = gradient(3 * LANES as u64 + 5);
        let mut lanes = vec![0.0; LANES];
        for (index, value) in values.iter().enumerate() {
            lanes[index % LANES] += square(*value);
        }
        while lanes.len() > 1 {
            let upper = lanes.split_off(lanes.len() / 2);
            lanes.iter_mut().zip(upper).for_each(|(lane, other)| *lane += other);
        }
        assert_eq!(sum_of_squares(&values).to_bits(), lanes[0].to_bits());
    }

    #[test]
    fn blocks_are_added_in_index_order() {
        let values = gradient(2 * BLOCK as u64 + 100);
        let blocks = [0..BLOCK, BLOCK..2 * BLOCK, 2 * BLOCK..2 * BLOCK + 100];
        let [first, second, third] = blocks.map(|range| sum_of_squares(&values[range]));
        let sum = ((first + second) + third).to_bits();
        assert_eq!(sum_of_squares(&values).to_bits(), sum);
        assert_eq!(sum_of_squares_on(&Threads::new(2), &values).to_bits(), sum);
    }
}
