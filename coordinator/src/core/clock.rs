//! The wall clock that a coordinator stamps entries and events with.
//!
//! The shell gives the wall clock anew before every input: virtual time stands still while a
//! machine is suspended, and a clock may be set. The stamps wait out a small step back, so that
//! they never go backwards. If a clock goes back by more than [`CLOCK_CORRECTED_ABOVE`], its old
//! time was wrong, and the coordinator takes the new one.

use std::time::Duration;

use everstep_transport::time::Time;

/// A larger step back is a correction.
const CLOCK_CORRECTED_ABOVE: Duration = Duration::from_secs(60);

/// The wall clock of this coordinator, by way of virtual time.
#[derive(Debug)]
pub(super) struct Clock {
    /// The wall clock at time zero, milliseconds of Unix time.
    epoch_unix_ms: u64,
    /// The newest wall clock that the shell gave, milliseconds of Unix time.
    newest_unix_ms: u64,
}

impl Clock {
    pub(super) fn new(epoch_unix_ms: u64) -> Self {
        Self { epoch_unix_ms, newest_unix_ms: epoch_unix_ms }
    }

    /// Takes the wall clock of `now`, milliseconds of Unix time.
    pub(super) fn set(&mut self, now: Time, unix_ms: u64) {
        let is_correction =
            unix_ms + (CLOCK_CORRECTED_ABOVE.as_millis() as u64) < self.newest_unix_ms;
        let unix_ms = if is_correction { unix_ms } else { unix_ms.max(self.newest_unix_ms) };
        self.newest_unix_ms = unix_ms;
        self.epoch_unix_ms = unix_ms.saturating_sub(now.since(Time(0)).as_millis() as u64);
    }

    /// The wall clock at this time, milliseconds of Unix time.
    pub(super) fn unix_ms(&self, at: Time) -> u64 {
        self.epoch_unix_ms.saturating_add(at.since(Time(0)).as_millis() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspended_machine_a_small_step_back_and_a_correction_are_told_apart() {
        let mut clock = Clock::new(1_000_000);
        let second = |number: u64| Time(number * 1_000_000_000);
        assert_eq!(clock.unix_ms(second(5)), 1_005_000);
        clock.set(second(6), 9_000_000);
        assert_eq!(clock.unix_ms(second(7)), 9_001_000, "time zero stood still meanwhile");
        clock.set(second(8), 8_999_000);
        assert_eq!(clock.unix_ms(second(8)), 9_000_000, "stamps never go backwards");
        clock.set(second(9), 2_000_000);
        assert_eq!(clock.unix_ms(second(9)), 2_000_000, "it was wrong before");
    }
}
