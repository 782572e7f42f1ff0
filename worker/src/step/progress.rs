//! How long the device takes for a data shard, and how long it has computed the present one.
//!
//! Input: time, whether the device has all that it needs, and its reports. Output: a [`ShardTime`]
//! for the heartbeat, by which a coordinator notices a device that hangs while its worker's
//! heartbeats go on. Waiting for parameters is no part of a data shard's time, but loading is: a
//! data set that is always slow has long data shards. The first data shard of a generation tells
//! nothing, since a device may compile then; nor does a validation, which is no data shard.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::time::Duration;

use everstep_transport::protocol::message::ShardTime;
use everstep_transport::time::Time;

/// Most that counts of the time between two looks: a process that stood still in between has not
/// computed meanwhile.
const LOOK: Duration = Duration::from_millis(500);

/// The device's progress in one generation. It is kept at a change of generation until the device
/// has followed: a device that hangs then never does.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// When somebody last looked while the device had something to compute.
    looked: Option<Time>,
    /// How long it has computed the present data shard.
    under_way: Duration,
    /// The device has reported a data shard in this generation.
    is_warm: bool,
    usual: Option<Duration>,
}

impl Progress {
    /// Time passes. `is_ready` says whether the device has a data shard to compute, and all that it
    /// needs for it.
    pub(super) fn look(&mut self, now: Time, is_ready: bool) {
        if !is_ready {
            (self.looked, self.under_way) = (None, Duration::ZERO);
            return;
        }
        if let Some(looked) = self.looked.replace(now) {
            self.under_way += now.since(looked).min(LOOK);
        }
    }

    /// The device has computed a data shard. What is usual rises at once and falls slowly.
    pub(super) fn computed(&mut self, now: Time) {
        let is_timed = self.looked.is_some();
        self.look(now, true);
        let took = std::mem::take(&mut self.under_way);
        if std::mem::replace(&mut self.is_warm, true) && is_timed {
            let usual = self.usual.unwrap_or(took);
            self.usual = Some(took.max((7 * usual + took) / 8));
        }
    }

    /// The device has followed into the generation.
    pub(super) fn entered(&mut self) {
        *self = Self::default();
    }

    /// What a heartbeat says, once it is known what is usual.
    pub(super) fn told(&self) -> Option<ShardTime> {
        let ms = |time: Duration| time.as_millis() as u64;
        let usual = self.usual.filter(|_| self.looked.is_some())?;
        Some(ShardTime { under_way_ms: ms(self.under_way), usual_ms: ms(usual) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device whose data shards take so many tenths of a second, the last one under way.
    fn computing(tenths: &[u64]) -> Progress {
        let (mut progress, mut now) = (Progress::default(), Time(0));
        progress.look(now, true);
        for (index, length) in tenths.iter().enumerate() {
            for _ in 0..*length {
                now = now + Duration::from_millis(100);
                progress.look(now, true);
            }
            if index + 1 < tenths.len() {
                progress.computed(now);
            }
        }
        progress
    }

    fn told(tenths: &[u64]) -> Option<(u64, u64)> {
        computing(tenths).told().map(|told| (told.under_way_ms, told.usual_ms))
    }

    #[test]
    fn the_first_data_shard_tells_nothing() {
        assert_eq!(told(&[900]), None, "it compiles, perhaps");
        assert_eq!(told(&[900, 10]), None);
        assert_eq!(told(&[900, 10, 3]), Some((300, 1_000)));
    }

    #[test]
    fn what_is_usual_rises_at_once_and_falls_slowly() {
        assert_eq!(told(&[1, 10, 80, 2]), Some((200, 8_000)));
        assert_eq!(told(&[1, 80, 16, 2]), Some((200, 7_200)));
    }

    #[test]
    fn a_device_that_waits_is_not_slow() {
        let mut progress = computing(&[1, 10, 50]);
        progress.look(Time(7_000_000_000), false);
        assert_eq!(progress.told(), None, "it has nothing to compute");
        progress.look(Time(90_000_000_000), true);
        assert_eq!(progress.told().map(|told| told.under_way_ms), Some(0));
    }

    #[test]
    fn a_process_that_stood_still_has_not_computed_meanwhile() {
        let mut progress = computing(&[1, 10, 1]);
        progress.look(Time(60_000_000_000), true);
        assert_eq!(progress.told().map(|told| told.under_way_ms), Some(600));
    }

    #[test]
    fn a_new_generation_measures_anew_once_the_device_has_followed() {
        let mut progress = computing(&[1, 10, 50]);
        progress.entered();
        assert_eq!(progress.told(), None);
        progress.look(Time(8_000_000_000), true);
        progress.computed(Time(8_100_000_000));
        assert_eq!(progress.told(), None, "it is the first of its generation");
    }
}
