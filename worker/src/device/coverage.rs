//! Whether a model announces each part of its gradient exactly once.
//!
//! A model that leaves a parameter out, or announces one twice, would train on arbitrary bytes of
//! memory there. The build checks it once, with the first micro-batch, before the worker registers.
//! So the worker refuses such a model by name, and no run begins with it.

use std::ops::Range;

use everstep_kernels::compute::{GradientCollector, GradientSink, ParameterSource};
use everstep_kernels::layout::Layout;

use crate::registry::BuildError;

/// The most tensors that an error names.
const NAMED: usize = 4;

/// The gradient of one pass, and the announced ranges of it.
#[derive(Debug, Default)]
pub(super) struct GradientCoverage {
    pub collect: GradientCollector,
    /// The announced ranges, in the order of the model.
    ranges: Vec<Range<usize>>,
    /// A range with the wrong number of values, and that number.
    misfit: Option<(Range<usize>, usize)>,
}

impl ParameterSource for GradientCoverage {
    fn await_parameters(&mut self, range: Range<usize>, write: &mut dyn FnMut(usize, &[f32])) {
        self.collect.await_parameters(range, write);
    }
}

impl GradientSink for GradientCoverage {
    fn publish_gradient(&mut self, range: Range<usize>, gradient: &[f32]) {
        if range.is_empty() {
            return;
        }
        if range.len() == gradient.len() {
            self.collect.publish_gradient(range.clone(), gradient);
            self.ranges.push(range);
        } else {
            self.misfit.get_or_insert((range, gradient.len()));
        }
    }
}

impl GradientCoverage {
    /// Returns an error if a gradient does not cover all parameters of `layout` exactly once.
    pub(super) fn check(&mut self, layout: &Layout) -> Result<(), CoverageError> {
        if let Some((range, values)) = self.misfit.clone() {
            return Err(CoverageError::Misfit { range, values });
        }
        self.ranges.sort_by_key(|range| (range.start, range.end));
        let (mut twice, mut never) = (Vec::new(), Vec::new());
        let mut covered = 0;
        for range in &self.ranges {
            if range.start > covered {
                never.push(covered..range.start);
            } else if range.start < covered {
                twice.push(range.start..range.end.min(covered));
            }
            covered = covered.max(range.end);
        }
        let count = layout.count();
        if covered > count {
            return Err(CoverageError::TooLong { announced: covered, count });
        }
        if covered < count {
            never.push(covered..count);
        }
        if twice.is_empty() && never.is_empty() {
            return Ok(());
        }
        let [twice, never] = [twice, never].map(|ranges| named(layout, &ranges));
        Err(CoverageError::NotOnce { twice, never })
    }
}

/// Why a worker refuses a model: its first gradient is not whole.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum CoverageError {
    #[error(
        "the model announces {values} values for the {} parameters from {} on",
        range.len(), range.start
    )]
    Misfit { range: Range<usize>, values: usize },
    #[error("the model announces a gradient of {announced} parameters, and has {count}")]
    TooLong { announced: usize, count: usize },
    /// The tensors that are announced twice and never, by name. Either text may be empty.
    #[error(
        "the model {}{}{}: a last pass must announce every range once",
        announced("announces twice", twice),
        if twice.is_empty() || never.is_empty() { "" } else { ", and " },
        announced("never announces", never)
    )]
    NotOnce { twice: String, never: String },
}

impl From<CoverageError> for BuildError {
    fn from(error: CoverageError) -> Self {
        Self::Run(error.to_string())
    }
}

fn announced(how: &str, tensors: &str) -> String {
    match tensors {
        "" => String::new(),
        tensors => format!("{how} the gradient of {tensors}"),
    }
}

/// The tensors that these ranges touch, by name.
fn named(layout: &Layout, ranges: &[Range<usize>]) -> String {
    let touched = |range: &Range<usize>| {
        ranges.iter().any(|other| other.start < range.end && range.start < other.end)
    };
    let tensors = layout.tensors().iter().filter(|tensor| touched(&tensor.range()));
    let names: Vec<&str> = tensors.map(|tensor| tensor.name.as_str()).collect();
    let listed = names[..names.len().min(NAMED)].join(", ");
    match names.len().saturating_sub(NAMED) {
        0 => listed,
        more => format!("{listed} and {more} more tensors"),
    }
}

#[cfg(test)]
mod tests {
    use everstep_kernels::layout::Init;

    use super::*;

    /// Tensors of ten parameters each.
    fn layout(names: &[&str]) -> Layout {
        let mut layout = Layout::new();
        for name in names {
            layout.push(*name, &[10], Init::Constant(0.0));
        }
        layout
    }

    fn announce(ranges: &[Range<usize>]) -> Result<(), CoverageError> {
        let mut coverage = GradientCoverage::default();
        for range in ranges {
            coverage.publish_gradient(range.clone(), &vec![1.0; range.len()]);
        }
        coverage.check(&layout(&["first", "second", "third"]))
    }

    #[test]
    fn ranges_may_come_in_any_order() {
        assert_eq!(announce(&[20..30, 3..20, 0..3, 7..7]), Ok(()));
    }

    #[test]
    fn what_is_announced_twice_or_never_is_named() {
        let once = ": a last pass must announce every range once";
        let table = [
            (vec![0..30, 12..13], "announces twice the gradient of second"),
            (vec![0..9, 10..30], "never announces the gradient of first"),
            (vec![], "never announces the gradient of first, second, third"),
            (
                vec![0..10, 0..10, 20..30],
                "announces twice the gradient of first, and never announces the gradient of second",
            ),
        ];
        for (ranges, expected) in table {
            let words = announce(&ranges).expect_err(expected).to_string();
            assert_eq!(words, format!("the model {expected}{once}"));
        }
        let more = announce(&[0..15, 15..31]).expect_err("there are thirty");
        assert_eq!(more.to_string(), "the model announces a gradient of 31 parameters, and has 30");
    }

    #[test]
    fn a_range_without_its_values_is_refused() {
        let mut coverage = GradientCoverage::default();
        coverage.publish_gradient(0..30, &[0.0; 7]);
        let refused = coverage.check(&layout(&["first", "second", "third"]));
        assert_eq!(refused, Err(CoverageError::Misfit { range: 0..30, values: 7 }));
    }

    #[test]
    fn of_many_tensors_the_first_are_named() {
        let layout = layout(&["a", "b", "c", "d", "e", "f"]);
        assert_eq!(named(&layout, std::slice::from_ref(&(0..60))), "a, b, c, d and 2 more tensors");
    }
}
