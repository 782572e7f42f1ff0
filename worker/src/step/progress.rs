//! How long the device takes for a data shard, and how long it has computed the present one.
//!
//! Input: time, whether the device has all that it needs, and its reports. Output: a [`ShardTime`]
//! for the heartbeat. A coordinator uses it to notice a device that hangs while its worker's
//! heartbeats go on. The time of a data shard does not include waiting for parameters, but it
//! includes loading: a data set that is always slow has long data shards. A stall, in which the
//! data set cannot read a sample yet, is left out: the run waits for it. The first data shard after
//! a build has no usual time, since a device may compile then: the coordinator is patient. An
//! evaluation of held-out samples is no data shard, and is never under suspicion. A change of
//! generation builds nothing, so the usual time outlives it: the coordinator finds a sample that
//! hangs one worker after the other at each of them.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::time::Duration;

use everstep_transport::protocol::message::ShardTime;
use everstep_transport::time::Time;

/// The most that counts of the time between two looks. A process that stood still in between has
/// not computed meanwhile.
const MAX_COUNTED_GAP: Duration = Duration::from_millis(500);

/// The device's progress since its model was built. At a change of generation the time under way
/// stays until the device has followed, because a device that hangs then never follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// The last look at which the device had something to compute. None if it had nothing.
    looked: Option<Time>,
    /// How long the device has computed the present data shard.
    under_way: Duration,
    usual: Usual,
    /// The data set cannot read a sample yet, or the device evaluates held-out samples: no data
    /// shard is computed, and nothing hangs.
    is_exempt: bool,
    /// The last look at all.
    last_look: Option<Time>,
    /// The time since the newest data shard, without spans in which this process stood still.
    since_shard: Duration,
}

/// How long a data shard takes as a rule.
#[derive(Clone, Copy, Debug, Default)]
enum Usual {
    /// The device has computed no data shard yet.
    #[default]
    Unknown,
    /// Not longer than the first one, in which the device may have compiled.
    AtMost(Duration),
    /// About so long.
    About(Duration),
}

impl Usual {
    /// Another data shard took so long. The usual time rises at once and falls slowly.
    fn after(self, took: Duration) -> Self {
        match self {
            Self::Unknown => Self::AtMost(took),
            Self::AtMost(_) => Self::About(took),
            Self::About(usual) => Self::About(took.max((7 * usual + took) / 8)),
        }
    }

    fn known(self) -> Option<Duration> {
        match self {
            Self::Unknown => None,
            Self::AtMost(usual) | Self::About(usual) => Some(usual),
        }
    }
}

impl Progress {
    /// Time passes. `is_ready` says whether the device has a data shard to compute, and all that it
    /// needs for it.
    pub(super) fn look(&mut self, now: Time, is_ready: bool) {
        let before = self.last_look.replace(now);
        self.since_shard +=
            before.map_or(Duration::ZERO, |before| now.since(before).min(MAX_COUNTED_GAP));
        if !is_ready || self.is_exempt {
            (self.looked, self.under_way) = (None, Duration::ZERO);
            return;
        }
        if let Some(looked) = self.looked.replace(now) {
            self.under_way += now.since(looked).min(MAX_COUNTED_GAP);
        }
    }

    /// The time from now on does not count, since the data set cannot read a sample yet or the
    /// device evaluates held-out samples. Or it counts again.
    pub(super) fn exempt(&mut self, is_exempt: bool) {
        self.is_exempt = is_exempt;
    }

    /// The device has computed a data shard, and its samples took so long to load. The loader may
    /// have loaded them ahead, and cannot do so when a generation begins. So the usual time
    /// includes the load time, except for spans in which this process stood still.
    pub(super) fn computed(&mut self, now: Time, loaded: Duration) {
        let is_timed = self.looked.is_some();
        self.look(now, true);
        let since_shard = std::mem::take(&mut self.since_shard);
        let took = std::mem::take(&mut self.under_way).max(loaded.min(since_shard));
        if is_timed {
            self.usual = self.usual.after(took);
        }
    }

    /// The device has followed into the generation, so its work of the one before is done.
    pub(super) fn entered(&mut self) {
        (self.looked, self.under_way) = (None, Duration::ZERO);
    }

    /// The times for a heartbeat. None while nothing is computed.
    pub(super) fn told(&self) -> Option<ShardTime> {
        self.looked?;
        let ms = |time: Duration| time.as_millis() as u64;
        let usual_ms = self.usual.known().map_or(0, |usual| ms(usual).max(1));
        Some(ShardTime { under_way_ms: ms(self.under_way), usual_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with data shards that take so many tenths of a second. The last one is under way.
    fn computing(tenths: &[u64]) -> Progress {
        let (mut progress, mut now) = (Progress::default(), Time(0));
        progress.look(now, true);
        for (index, length) in tenths.iter().enumerate() {
            for _ in 0..*length {
                now = now + Duration::from_millis(100);
                progress.look(now, true);
            }
            if index + 1 < tenths.len() {
                progress.computed(now, Duration::ZERO);
            }
        }
        progress
    }

    fn told(tenths: &[u64]) -> Option<(u64, u64)> {
        computing(tenths).told().map(|told| (told.under_way_ms, told.usual_ms))
    }

    #[test]
    fn only_the_first_data_shard_of_a_build_has_no_usual_time() {
        assert_eq!(told(&[900]), Some((90_000, 0)), "it compiles, perhaps");
        assert_eq!(told(&[900, 10]), Some((1_000, 90_000)), "no other one takes as long");
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
    fn a_device_whose_data_cannot_be_read_yet_does_not_hang() {
        let mut progress = computing(&[1, 10, 50]);
        progress.exempt(true);
        for tenths in 61..=900 {
            progress.look(Time(tenths * 100_000_000), true);
            assert_eq!(progress.told(), None);
        }
        progress.exempt(false);
        progress.computed(Time(90_000_000_000), Duration::from_millis(10));
        assert_eq!(progress.told().map(|told| told.usual_ms), Some(1_000), "nor is it slow");
    }

    #[test]
    fn an_evaluation_is_neither_a_hang_nor_usual() {
        let mut progress = computing(&[1, 10, 1]);
        progress.exempt(true);
        for tenths in 13..=900 {
            progress.look(Time(tenths * 100_000_000), true);
            assert_eq!(progress.told(), None);
        }
        progress.exempt(false);
        for tenths in 900..=905 {
            progress.look(Time(tenths * 100_000_000), true);
        }
        progress.computed(Time(90_500_000_000), Duration::ZERO);
        assert_eq!(progress.told().map(|told| told.usual_ms), Some(937), "it falls slowly");
    }

    #[test]
    fn a_process_that_stood_still_has_not_computed_meanwhile() {
        let mut progress = computing(&[1, 10, 1]);
        progress.look(Time(60_000_000_000), true);
        assert_eq!(progress.told().map(|told| told.under_way_ms), Some(600));
    }

    #[test]
    fn what_is_loaded_ahead_is_usual_too() {
        let mut progress = computing(&[1, 10, 5]);
        (17..=100).for_each(|tenths| progress.look(Time(tenths * 100_000_000), false));
        progress.look(Time(10_000_000_000), true);
        progress.computed(Time(10_000_000_000), Duration::from_secs(8));
        assert_eq!(progress.told().map(|told| told.usual_ms), Some(8_000));
    }

    #[test]
    fn the_time_in_which_a_process_stood_still_is_not_usual() {
        let mut progress = computing(&[1, 10, 5]);
        progress.computed(Time(601_600_000_000), Duration::from_secs(600));
        assert_eq!(progress.told().map(|told| told.usual_ms), Some(1_000));
    }

    #[test]
    fn a_device_that_hangs_in_the_first_data_shard_of_a_generation_is_told_of() {
        let mut progress = computing(&[1, 10, 50]);
        progress.entered();
        assert_eq!(progress.told(), None, "what was under way is done");
        for tenths in 80..=120 {
            progress.look(Time(tenths * 100_000_000), true);
        }
        let told = progress.told().map(|told| (told.under_way_ms, told.usual_ms));
        assert_eq!(told, Some((4_000, 1_000)));
    }
}
