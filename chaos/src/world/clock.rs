//! A process's clock: monotonic, and perhaps a tenth too fast or too slow.

use std::time::Duration;

use everstep_transport::time::Time;

/// A clock, read by true time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// When its speed last changed, true time and its own.
    at: Time,
    shown: Time,
    permille: u32,
}

impl Clock {
    /// A clock that shows 0 at `now`.
    pub fn new(now: Time, permille: u32) -> Self {
        Self { at: now, shown: Time(0), permille }
    }

    /// The clock's time at true time `now`.
    pub fn read(&self, now: Time) -> Time {
        let passed = u128::from(now.0 - self.at.0) * u128::from(self.permille) / 1000;
        Time(self.shown.0 + passed as u64)
    }

    /// From now on the clock runs at another speed.
    pub fn drift(&mut self, now: Time, permille: u32) {
        *self = Self { at: now, shown: self.read(now), permille };
    }

    /// The true time that passes while the clock measures `span`.
    pub fn true_time(&self, span: Duration) -> Duration {
        Duration::from_nanos((span.as_nanos() * 1000 / u128::from(self.permille)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_drifts_never_goes_back() {
        let mut clock = Clock::new(Time(1_000), 1_100);
        assert_eq!(clock.read(Time(2_000)), Time(1_100));
        clock.drift(Time(2_000), 900);
        assert_eq!(clock.read(Time(3_000)), Time(2_000));
        assert_eq!(clock.true_time(Duration::from_nanos(900)), Duration::from_micros(1));
    }
}
