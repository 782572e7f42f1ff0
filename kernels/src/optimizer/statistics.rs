//! What an owner does to statistics: tensors that the forward passes of a model change.

use std::ops::Range;

use crate::layout::{Layout, Statistic};
use crate::reduce::canonical;

/// Values and the sums of what the data shards have announced, in `range` of the flat vector. All
/// of it lies in statistics.
pub(super) fn update(values: &mut [f32], sums: &[f32], layout: &Layout, range: Range<usize>) {
    for (tensor, part) in layout.parts(range.clone()) {
        let next: fn(f32, f32) -> f32 = match tensor.statistic {
            Some(Statistic::Mean) => |value, sum| value + sum,
            Some(Statistic::Count) => |value, sum| (value + sum).round_ties_even(),
            Some(Statistic::First) => |_, sum| sum,
            None => unreachable!("the range lies in statistics"),
        };
        let inside = part.start - range.start..part.end - range.start;
        for (value, sum) in values[inside.clone()].iter_mut().zip(&sums[inside]) {
            *value = canonical(next(*value, *sum));
        }
    }
}
