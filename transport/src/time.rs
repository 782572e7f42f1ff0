//! The clock of the cores: a number that the driver passes in.
//!
//! Cores never read a clock. A production shell measures time from its own start. A simulator
//! invents it.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A moment, in nanoseconds since the driver's own beginning. Monotonic within one driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The time that has passed since `earlier`. Zero if `earlier` is in the future.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Microseconds since the driver's own beginning.
    pub fn as_micros(self) -> u64 {
        self.0 / 1000
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, span: Duration) -> Time {
        Time(self.0 + span.as_nanos() as u64)
    }
}

impl Sub for Time {
    type Output = Duration;

    fn sub(self, earlier: Time) -> Duration {
        self.since(earlier)
    }
}
