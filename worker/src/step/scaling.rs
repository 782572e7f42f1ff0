//! The loss scale of each step, as a pure function of the decisions on all steps before.
//!
//! Gradients of fp16 vanish below 6e-8 and overflow above 65,504. The largest scale that does not
//! overflow keeps the most of them (Micikevicius et al., "Mixed Precision Training", 2018). Nothing
//! tells this scale beforehand, so the run finds it. A skipped step halves the scale, and a long
//! row of good steps doubles it. Only this module knows the rule. The device applies the scale.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_transport::protocol::run::Precision;
use everstep_transport::protocol::{Commit, Decision, LossScale};

/// After so many good steps in a row the scale doubles.
pub const GROWTH_INTERVAL: u32 = 2_000;

/// The scale of the first step: 65,536.
const FIRST_EXPONENT: u8 = 16;

/// How the loss scale of a run changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// The scale is always 1: f32 and bf16 have the range.
    Fixed,
    /// The scale follows from the skipped steps: fp16.
    Dynamic {
        /// After so many good steps in a row the scale doubles.
        growth: u32,
    },
}

impl Scaling {
    /// The rule for a run in this precision. The scale of fp16 doubles after `growth` good steps.
    pub fn of(precision: Precision, growth: u32) -> Self {
        match precision {
            Precision::F32 | Precision::Bf16 => Self::Fixed,
            Precision::F16 => Self::Dynamic { growth },
        }
    }

    /// The scale of the first step.
    pub fn first(self) -> LossScale {
        match self {
            Self::Fixed => LossScale::default(),
            Self::Dynamic { .. } => LossScale { exponent: FIRST_EXPONENT, good: 0 },
        }
    }

    /// The scale of the step after the last committed one.
    pub fn after(self, last: Option<&Commit>) -> LossScale {
        match (self, last) {
            (Self::Dynamic { .. }, Some(commit)) => commit.loss_scale,
            _ => self.first(),
        }
    }

    /// The scale of the next step, from a step's scale and the decision on it.
    pub fn next(self, scale: LossScale, decision: Decision) -> LossScale {
        let Self::Dynamic { growth } = self else { return self.first() };
        let LossScale { exponent, good } = scale;
        match decision {
            Decision::Skip => LossScale { exponent: exponent.saturating_sub(1), good: 0 },
            Decision::Apply if good.saturating_add(1) < growth => {
                LossScale { exponent, good: good + 1 }
            }
            Decision::Apply => {
                let exponent = exponent.saturating_add(1).min(LossScale::MAX_EXPONENT);
                LossScale { exponent, good: 0 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DYNAMIC: Scaling = Scaling::Dynamic { growth: GROWTH_INTERVAL };

    /// The scale after the first one and so many good steps.
    fn grown(steps: u32) -> LossScale {
        (0..steps).fold(DYNAMIC.first(), |scale, _| DYNAMIC.next(scale, Decision::Apply))
    }

    #[test]
    fn it_doubles_after_two_thousand_good_steps_in_a_row() {
        for (steps, factor) in [(0, 65_536), (1_999, 65_536), (2_000, 131_072), (4_000, 262_144)] {
            assert_eq!(grown(steps).factor(), factor, "{steps} steps");
        }
        let skipped = DYNAMIC.next(grown(1_999), Decision::Skip);
        assert_eq!(skipped, LossScale { exponent: 15, good: 0 });
        assert_eq!(DYNAMIC.next(skipped, Decision::Apply).factor(), 32_768, "it counts anew");
    }

    #[test]
    fn it_is_never_below_one_or_above_two_to_the_24th() {
        assert_eq!(grown(100 * GROWTH_INTERVAL).factor(), 1 << 24);
        let least = (0..100).fold(DYNAMIC.first(), |it, _| DYNAMIC.next(it, Decision::Skip));
        assert_eq!(least.factor(), 1);
    }

    #[test]
    fn of_f32_and_bf16_it_is_one_forever() {
        for precision in [Precision::F32, Precision::Bf16] {
            let scaling = Scaling::of(precision, 1);
            let (one, said) = (scaling.first(), LossScale { exponent: 24, good: 1 });
            assert_eq!(one.factor(), 1);
            assert_eq!(scaling.next(one, Decision::Skip), one);
            assert_eq!(scaling.next(said, Decision::Apply), one, "whatever a peer says");
        }
    }

    proptest! {
        #[test]
        fn each_step_keeps_halves_or_doubles_it(
            decisions in prop::collection::vec(prop::bool::weighted(0.8), 0..400),
            growth in 1u32..9,
        ) {
            let scaling = Scaling::of(Precision::F16, growth);
            let (mut scale, mut row) = (scaling.first(), 0);
            for good in decisions {
                let decision = if good { Decision::Apply } else { Decision::Skip };
                let next = scaling.next(scale, decision);
                row = if good { row + 1 } else { 0 };
                let (before, after) = (scale.factor(), next.factor());
                let expected = match (good, row == growth) {
                    (false, _) => (before / 2).max(1),
                    (true, true) => (before * 2).min(1 << 24),
                    (true, false) => before,
                };
                prop_assert_eq!(after, expected);
                row %= growth;
                scale = next;
            }
        }

        #[test]
        fn whatever_a_peer_says_is_a_scale(exponent: u8, good: u32, growth: u32, skip: bool) {
            let decision = if skip { Decision::Skip } else { Decision::Apply };
            let said = LossScale { exponent, good };
            prop_assert!((1..=1 << 24).contains(&said.factor()));
            let next = Scaling::Dynamic { growth }.next(said, decision);
            prop_assert!(next.factor().is_power_of_two());
        }
    }
}
