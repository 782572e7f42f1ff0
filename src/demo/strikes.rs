//! The moments and victims of chance.
//!
//! A Poisson process: the times between two strikes are exponential, so that no moment of a step is
//! safer than another. The same seed strikes at the same times.

use std::time::Duration;

use everstep_kernels::random::Philox;

use crate::cli::Chances;

/// The strikes of one run.
pub(crate) struct Strikes {
    random: Philox,
    drawn: u64,
    mean: Duration,
    /// The time of the next strike, since the run's first step.
    next: Duration,
}

/// Philox's purpose for these random numbers.
const STRIKES: u32 = Philox::USER + 1;

impl Strikes {
    /// The strikes that follow from `seed`.
    pub(crate) fn new(chances: Chances, seed: u64) -> Self {
        let random = Philox::new(seed, STRIKES, 0);
        let mut strikes = Self { random, drawn: 0, mean: chances.mtbf, next: Duration::ZERO };
        strikes.next = strikes.pause();
        strikes
    }

    /// The struck candidate, by number, if a strike is due. However often it is called, it strikes
    /// once for each due strike. A strike without candidates is lost.
    pub(crate) fn strike(&mut self, elapsed: Duration, candidates: usize) -> Option<usize> {
        if elapsed < self.next {
            return None;
        }
        self.next = elapsed + self.pause();
        let victim = (self.unit() * candidates as f64) as usize;
        (candidates > 0).then(|| victim.min(candidates - 1))
    }

    fn pause(&mut self) -> Duration {
        self.mean.mul_f64(-(1.0 - self.unit()).ln())
    }

    /// A random number, uniform in `[0, 1)`.
    fn unit(&mut self) -> f64 {
        self.drawn += 1;
        self.random.unit(self.drawn).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strikes(seed: u64) -> Vec<(u64, usize)> {
        let mut strikes = Strikes::new(Chances { mtbf: Duration::from_secs(20) }, seed);
        let strike = |ms| Some((ms, strikes.strike(Duration::from_millis(ms), 4)?));
        (0..40_000_000).step_by(50).filter_map(strike).collect()
    }

    #[test]
    fn strikes_are_as_frequent_as_stated_and_spare_nobody() {
        let strikes = strikes(1);
        let mean = 40_000.0 / strikes.len() as f64;
        assert!((19.0..21.0).contains(&mean), "{mean} s");
        for victim in 0..4 {
            let share = strikes.iter().filter(|strike| strike.1 == victim).count() as f64;
            assert!((0.2..0.3).contains(&(share / strikes.len() as f64)), "{victim}: {share}");
        }
    }

    #[test]
    fn the_same_seed_strikes_at_the_same_times() {
        assert_eq!(strikes(7), strikes(7));
        assert_ne!(strikes(7), strikes(8));
    }

    #[test]
    fn nobody_is_struck_where_there_is_nobody() {
        let mut strikes = Strikes::new(Chances { mtbf: Duration::from_millis(100) }, 1);
        assert_eq!(strikes.strike(Duration::from_secs(9), 0), None);
        assert_eq!(strikes.strike(Duration::from_secs(9), 1), None, "it was lost");
    }
}
