//! The learning rate of every step: a warm-up, then a curve down to a floor.
//!
//! Or a table of rates, which an optimizer brings with it. A pure function of the step, so every
//! owner that applies a step uses the same bits. It knows no optimizer.

use std::f64::consts::PI;
use std::sync::Arc;

/// A curve from the full learning rate down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The full rate at every step after the warm-up.
    Constant,
    /// The rate falls along a straight line to the floor.
    Linear,
    /// The rate falls along half a cosine to the floor (Loshchilov, Hutter: "SGDR", ICLR 2017,
    /// equation 5).
    Cosine,
}

/// The source of a run's learning rates.
#[derive(Clone, Debug, PartialEq)]
pub enum LearningRates {
    /// A curve that the run's specification states.
    Curve(LearningRateSchedule),
    /// One rate for each step, from the first. The run's optimizer has brought it.
    Table(Arc<[f32]>),
}

impl LearningRates {
    /// The learning rate of `step`, counted from 1. Beyond the end of a table it stays the last.
    ///
    /// # Panics
    /// If the table is empty.
    pub fn rate(&self, step: u64) -> f32 {
        match self {
            Self::Curve(schedule) => schedule.rate(step),
            Self::Table(rates) => rates[step.clamp(1, rates.len() as u64) as usize - 1],
        }
    }
}

/// The learning rate as a function of the step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRateSchedule {
    /// The curve after the warm-up.
    pub kind: Kind,
    /// The rate rises in this many equal steps from 0. The last of them has the full rate.
    pub warmup_steps: u64,
    /// The steps of the run, including the warm-up's. The last has the floor's rate.
    pub steps: u64,
    /// The full rate, right after the warm-up.
    pub learning_rate: f32,
    /// The least rate after the warm-up, at most the full one.
    pub floor: f32,
}

impl LearningRateSchedule {
    /// The learning rate of `step`, counted from 1. Beyond the last step it stays that of the last
    /// step.
    pub fn rate(&self, step: u64) -> f32 {
        let full = f64::from(self.learning_rate);
        if step < self.warmup_steps {
            return (full * step as f64 / self.warmup_steps as f64) as f32;
        }
        let share = match self.kind {
            Kind::Constant => 1.0,
            Kind::Linear => 1.0 - self.progress(step),
            Kind::Cosine => (1.0 + cos_pi(self.progress(step))) / 2.0,
        };
        // The cosine's own rounding must not turn the last step around.
        let share = share.clamp(0.0, 1.0);
        let floor = f64::from(self.floor);
        (floor + (full - floor) * share) as f32
    }

    /// From 0 at the end of the warm-up to 1 at the last step.
    fn progress(&self, step: u64) -> f64 {
        let after = |step: u64| step.saturating_sub(self.warmup_steps);
        (after(step) as f64 / after(self.steps).max(1) as f64).min(1.0)
    }
}

/// The cosine of `x` half turns, `x` from 0 to 1, to about 1e-16, as `sin(pi (1/2 - x))` by its
/// series: the platform's functions differ between platforms.
fn cos_pi(x: f64) -> f64 {
    let z = PI * (0.5 - x);
    // z is at most pi/2: the twelfth term is below 1e-17.
    let mut term = z;
    let mut sum = z;
    for n in 1..12 {
        term *= -z * z / f64::from(2 * n * (2 * n + 1));
        sum += term;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(kind: Kind) -> LearningRateSchedule {
        LearningRateSchedule { kind, warmup_steps: 4, steps: 12, learning_rate: 1.0, floor: 0.2 }
    }

    #[test]
    fn rates_by_table() {
        let step = [1, 2, 4, 6, 8, 10, 12, 13, 1 << 60];
        let table = [
            (Kind::Constant, [0.25, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
            (Kind::Linear, [0.25, 0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2]),
            (Kind::Cosine, [0.25, 0.5, 1.0, 0.882_842_7, 0.6, 0.317_157_3, 0.2, 0.2, 0.2]),
        ];
        for (kind, rates) in table {
            for (step, expected) in step.into_iter().zip(rates) {
                let rate = schedule(kind).rate(step);
                assert!((rate - expected).abs() < 1e-6, "{kind:?} at {step}: {rate}");
            }
        }
    }

    #[test]
    fn a_table_has_a_rate_for_each_step_and_keeps_the_last() {
        let rates = LearningRates::Table([0.5, 0.25, 2.0].into());
        let found = [0, 1, 2, 3, 4, u64::MAX].map(|step| rates.rate(step));
        assert_eq!(found, [0.5, 0.5, 0.25, 2.0, 2.0, 2.0]);
        let curve = schedule(Kind::Linear);
        assert_eq!(LearningRates::Curve(curve).rate(6), curve.rate(6));
    }

    #[test]
    fn without_a_warm_up_the_curve_begins_below_the_full_rate() {
        let schedule = LearningRateSchedule { warmup_steps: 0, steps: 2, ..schedule(Kind::Linear) };
        assert_eq!([1, 2].map(|step| schedule.rate(step)), [0.6, 0.2]);
    }

    #[test]
    fn the_last_step_never_has_a_negative_rate() {
        let schedule = LearningRateSchedule {
            warmup_steps: 20,
            steps: 400,
            floor: 0.0,
            ..schedule(Kind::Cosine)
        };
        assert_eq!(schedule.rate(400), 0.0);
        assert!((1..=401).all(|step| schedule.rate(step) >= 0.0));
    }

    #[test]
    fn a_run_may_end_within_its_warm_up() {
        for steps in [0, 3, 4] {
            let schedule = LearningRateSchedule { steps, ..schedule(Kind::Cosine) };
            assert_eq!([3, 4, 5].map(|step| schedule.rate(step)), [0.75, 1.0, 0.2]);
        }
    }

    #[test]
    fn the_cosine_agrees_with_the_platform() {
        for tick in 0..=1000 {
            let x = f64::from(tick) / 1000.0;
            assert!((cos_pi(x) - (PI * x).cos()).abs() < 5e-16, "{x}");
        }
    }
}
