//! How long the device takes for a data shard, and how long it has computed the present one.
//!
//! Input: time, what the device has all that it needs for, and its reports. Output for the
//! heartbeat: the pace of the device, by which data shards are shared out, and a [`ShardTime`]. A
//! coordinator uses the latter to notice a device that hangs while its worker's heartbeats go on.
//! The time of a data shard does not include waiting for parameters, but it includes loading: a
//! data set that is always slow has long data shards. A stall, in which the data set cannot read a
//! sample yet, is left out: the run waits for it. The first data shard after a build has no usual
//! time, since a device may compile then: the coordinator is patient. A batch of held-out samples
//! never has one, nor have the digests at the end. A change of generation builds nothing, so the
//! usual time outlives it: the coordinator finds a sample that hangs one worker after the other at
//! each of them.
//!
//! A device that waits for parameters, or has no data shard, still updates what its worker owns.
//! Then the same is told of the update of a parameter shard. Where a data shard can be computed,
//! the updates before it are part of its time. A device that has not followed into the generation,
//! or may be at a data shard that no longer counts, may take as long as the longer one of the two.
//! Where a generation begins with another state, the usual time is not known.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::time::Duration;

use everstep_transport::protocol::Step;
use everstep_transport::protocol::message::ShardTime;
use everstep_transport::time::Time;

use super::event::Report;

/// The most that counts of the time between two looks. A process that stood still in between has
/// not computed meanwhile.
pub(super) const MAX_COUNTED_GAP: Duration = Duration::from_millis(500);

/// The pace of a device follows from so many steps.
const RECENT_STEPS: usize = 32;

/// What the device has to do, with all that it needs for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceTask {
    /// Compute a data shard.
    DataShard,
    /// Update parameter shards, and nothing else.
    Updates,
    /// End what it did for an earlier step or generation, at most a data shard, and follow.
    Remainder,
    /// End that, and begin with the initial state or that of a checkpoint.
    Beginning,
    /// Evaluate a batch of held-out samples. After the last step, also digest the shards.
    Evaluation,
}

/// The device's progress since its model was built. At a change of generation the time under way
/// stays until the device has followed, because a device that hangs then never follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// What the device had to do at the last look, and when that was. None if it had nothing.
    looked: Option<(DeviceTask, Time)>,
    /// How long the device has been at it.
    under_way: Duration,
    /// How long a data shard takes.
    usual_shard: Usual,
    /// How long data shards took lately.
    recent: RecentTimes,
    /// How long the update of a parameter shard takes, where there is nothing else to do.
    usual_update: Usual,
    /// The data set cannot read a sample yet: the device computes nothing, and does not hang.
    is_stalled: bool,
    /// The device evaluates held-out samples, or digests. Other work waits meanwhile.
    evaluates: bool,
    /// The last look at all.
    last_look: Option<Time>,
    /// The time since the newest data shard, without spans in which this process stood still.
    since_shard: Duration,
}

/// How long something takes the device as a rule.
#[derive(Clone, Copy, Debug, Default)]
enum Usual {
    /// The device has not done it yet.
    #[default]
    Unknown,
    /// Not longer than the first one, in which the device may have compiled.
    AtMost(Duration),
    /// About so long.
    About(Duration),
}

impl Usual {
    /// Another time it took so long. The usual time rises at once and falls slowly.
    fn after(self, took: Duration) -> Self {
        match self {
            Self::Unknown => Self::AtMost(took),
            Self::AtMost(_) => Self::About(took),
            Self::About(usual) => Self::About(took.max((7 * usual + took) / 8)),
        }
    }

    /// The longer one of the two.
    fn longer(self, other: Self) -> Self {
        if self.known() < other.known() { other } else { self }
    }

    fn known(self) -> Option<Duration> {
        match self {
            Self::Unknown => None,
            Self::AtMost(usual) | Self::About(usual) => Some(usual),
        }
    }
}

/// How long data shards took in the last steps.
#[derive(Clone, Copy, Debug, Default)]
struct RecentTimes {
    /// The mean time of a data shard in each of them.
    means: [Duration; RECENT_STEPS],
    /// How many means there were, with those that others have replaced.
    count: usize,
    newest: StepTime,
}

/// How long the data shards of a step took so far, and how many these are.
#[derive(Clone, Copy, Debug, Default)]
struct StepTime {
    step: Step,
    time: Duration,
    shards: u32,
}

impl RecentTimes {
    fn push(&mut self, step: Step, took: Duration) {
        if self.newest.step == step {
            self.newest.time += took;
            self.newest.shards += 1;
            return;
        }
        let StepTime { time, shards, .. } = self.newest;
        if shards > 0 {
            self.means[self.count % RECENT_STEPS] = time / shards;
            self.count += 1;
        }
        self.newest = StepTime { step, time: took, shards: 1 };
    }

    /// The mean of the middle half: stalls do not count, and it varies less than the median. None
    /// until half of the times are there.
    fn typical(&self) -> Option<Duration> {
        let mut means = self.means;
        let means = &mut means[..self.count.min(RECENT_STEPS)];
        means.sort_unstable();
        let middle = &means[means.len() / 4..means.len() - means.len() / 4];
        let is_known = means.len() >= RECENT_STEPS / 2;
        is_known.then(|| middle.iter().sum::<Duration>() / middle.len() as u32)
    }
}

impl Progress {
    /// Time passes, and the device has this to do.
    pub(super) fn look(&mut self, now: Time, task: Option<DeviceTask>) {
        let before = self.last_look.replace(now);
        self.since_shard +=
            before.map_or(Duration::ZERO, |before| now.since(before).min(MAX_COUNTED_GAP));
        let task = if self.evaluates { Some(DeviceTask::Evaluation) } else { task };
        let task = task.filter(|_| !self.is_stalled);
        let before = std::mem::replace(&mut self.looked, task.map(|task| (task, now)));
        match before.filter(|(before, _)| Some(*before) == task) {
            Some((_, looked)) => self.under_way += now.since(looked).min(MAX_COUNTED_GAP),
            None => self.under_way = Duration::ZERO,
        }
    }

    /// The device says that it waits for its data set, or evaluates, or does so no longer.
    pub(super) fn report(&mut self, report: &Report) {
        match report {
            Report::LoadStalled(is_stalled) => self.is_stalled = *is_stalled,
            Report::Evaluating | Report::Evaluated => {
                self.evaluates = matches!(report, Report::Evaluating);
                self.restart();
            }
            _ => {}
        }
    }

    /// The device is done with what it was at.
    fn restart(&mut self) {
        (self.looked, self.under_way) = (None, Duration::ZERO);
    }

    /// The device has computed a data shard, and its samples took so long to load. The loader may
    /// have loaded them ahead, and cannot do so when a generation begins. So the usual time
    /// includes the load time, except for spans in which this process stood still.
    pub(super) fn computed(&mut self, now: Time, loaded: Duration) {
        let is_timed = self.is_at(DeviceTask::DataShard);
        self.look(now, Some(DeviceTask::DataShard));
        let since_shard = std::mem::take(&mut self.since_shard);
        let took = std::mem::take(&mut self.under_way).max(loaded.min(since_shard));
        if is_timed {
            self.usual_shard = self.usual_shard.after(took);
        }
    }

    /// The device has updated a parameter shard. It may have made several updates at once: those
    /// that come in no time after the first one say nothing.
    pub(super) fn updated(&mut self, now: Time) {
        if self.is_at(DeviceTask::Updates) {
            self.look(now, Some(DeviceTask::Updates));
            let took = std::mem::take(&mut self.under_way);
            if took >= self.usual_update.known().unwrap_or_default() / 8 {
                self.usual_update = self.usual_update.after(took);
            }
        }
    }

    fn is_at(&self, task: DeviceTask) -> bool {
        self.looked.is_some_and(|(at, _)| at == task)
    }

    /// The device has followed into the generation, so its work of the one before is done.
    pub(super) fn entered(&mut self) {
        self.restart();
    }

    /// A data shard of this step took so long, without waits for parameters. What the device does
    /// besides, such as the updates of what its worker owns, is no part of its pace: another share
    /// of the data shards would not change that.
    pub(super) fn pace(&mut self, step: Step, took: Duration) {
        self.recent.push(step, took);
    }

    /// How long a data shard takes, microseconds. 0 if it is not known.
    pub(super) fn shard_us(&self) -> u64 {
        self.recent.typical().map_or(0, |typical| (typical.as_micros() as u64).max(1))
    }

    /// The times for a heartbeat. None while nothing is computed.
    pub(super) fn told(&self) -> Option<ShardTime> {
        let usual = match self.looked?.0 {
            DeviceTask::DataShard => self.usual_shard,
            DeviceTask::Updates => self.usual_update,
            DeviceTask::Remainder => self.usual_shard.longer(self.usual_update),
            DeviceTask::Beginning | DeviceTask::Evaluation => Usual::Unknown,
        };
        let ms = |time: Duration| time.as_millis() as u64;
        let usual_ms = usual.known().map_or(0, |usual| ms(usual).max(1));
        Some(ShardTime { under_way_ms: ms(self.under_way), usual_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARD: Option<DeviceTask> = Some(DeviceTask::DataShard);

    /// A device with data shards that take so many tenths of a second. The last one is under way.
    fn computing(tenths: &[u64]) -> Progress {
        let (mut progress, mut now) = (Progress::default(), Time(0));
        progress.look(now, SHARD);
        for (index, length) in tenths.iter().enumerate() {
            for _ in 0..*length {
                now = now + Duration::from_millis(100);
                progress.look(now, SHARD);
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

    /// The pace of a device whose data shards took so many tenths of a second, `shards` in a step.
    fn pace(shards: u64, tenths: impl IntoIterator<Item = u64>) -> u64 {
        let mut recent = RecentTimes::default();
        for (index, tenths) in (0..).zip(tenths) {
            recent.push(Step(index / shards), Duration::from_millis(100 * tenths));
        }
        recent.typical().map_or(0, |typical| typical.as_millis() as u64)
    }

    #[test]
    fn the_pace_is_that_of_the_last_steps_without_stalls() {
        assert_eq!(pace(1, vec![2; 16]), 0, "the last of these steps may not be over");
        assert_eq!(pace(1, vec![2; 17]), 200);
        assert_eq!(pace(4, vec![2; 65]), 200, "sixteen steps");
        assert_eq!(pace(1, (0..33).map(|index| if index % 4 == 0 { 90 } else { 2 })), 200);
        assert_eq!(pace(1, 1..=33), 1_650, "the mean of 9 to 24 tenths");
        assert_eq!(pace(2, [vec![9; 64], [4, 6].repeat(33)].concat()), 500, "it follows");
    }

    #[test]
    fn a_device_that_waits_is_not_slow() {
        let mut progress = computing(&[1, 10, 50]);
        progress.look(Time(7_000_000_000), None);
        assert_eq!(progress.told(), None, "it has nothing to compute");
        progress.look(Time(90_000_000_000), SHARD);
        assert_eq!(progress.told().map(|told| told.under_way_ms), Some(0));
    }

    #[test]
    fn a_device_whose_data_cannot_be_read_yet_does_not_hang() {
        let mut progress = computing(&[1, 10, 50]);
        progress.report(&Report::LoadStalled(true));
        for tenths in 61..=900 {
            progress.look(Time(tenths * 100_000_000), SHARD);
            assert_eq!(progress.told(), None);
        }
        progress.report(&Report::LoadStalled(false));
        progress.computed(Time(90_000_000_000), Duration::from_millis(10));
        assert_eq!(progress.told().map(|told| told.usual_ms), Some(1_000), "nor is it slow");
    }

    #[test]
    fn an_evaluation_is_told_of_by_the_batch_and_changes_nothing_that_is_usual() {
        let mut progress = computing(&[1, 10, 1]);
        let mut now = 13;
        for _ in 0..3 {
            progress.report(&Report::Evaluating);
            for tenths in 0..300 {
                progress.look(Time((now + tenths) * 100_000_000), SHARD);
                let told = progress.told().map(|told| (told.under_way_ms, told.usual_ms));
                assert_eq!(told, Some((tenths * 100, 0)));
            }
            now += 300;
        }
        progress.report(&Report::LoadStalled(true));
        progress.look(Time(91_300_000_000), SHARD);
        assert_eq!(progress.told(), None, "it waits for held-out samples");
        progress.report(&Report::LoadStalled(false));
        progress.report(&Report::Evaluated);
        for tenths in 914..=919 {
            progress.look(Time(tenths * 100_000_000), SHARD);
        }
        progress.computed(Time(91_900_000_000), Duration::ZERO);
        assert_eq!(progress.told().map(|told| told.usual_ms), Some(937), "it falls slowly");
    }

    #[test]
    fn a_process_that_stood_still_has_not_computed_meanwhile() {
        let mut progress = computing(&[1, 10, 1]);
        progress.look(Time(60_000_000_000), SHARD);
        assert_eq!(progress.told().map(|told| told.under_way_ms), Some(600));
    }

    #[test]
    fn what_is_loaded_ahead_is_usual_too() {
        let mut progress = computing(&[1, 10, 5]);
        (17..=100).for_each(|tenths| progress.look(Time(tenths * 100_000_000), None));
        progress.look(Time(10_000_000_000), SHARD);
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
            progress.look(Time(tenths * 100_000_000), SHARD);
        }
        let told = progress.told().map(|told| (told.under_way_ms, told.usual_ms));
        assert_eq!(told, Some((4_000, 1_000)));
    }

    /// A spare member's device, which updates a shard in a tenth of a second.
    #[test]
    fn a_device_that_hangs_in_an_update_is_told_of() {
        let (mut progress, mut now) = (Progress::default(), Time(0));
        let mut pass = |progress: &mut Progress, task| {
            now = now + Duration::from_millis(100);
            progress.look(now, task);
            now
        };
        let updates = Some(DeviceTask::Updates);
        for _ in 0..3 {
            pass(&mut progress, None);
            pass(&mut progress, updates);
            assert_eq!(progress.told().map(|told| told.under_way_ms), Some(0));
            let now = pass(&mut progress, updates);
            progress.updated(now);
        }
        for _ in 0..50 {
            pass(&mut progress, updates);
        }
        let told = progress.told().map(|told| (told.under_way_ms, told.usual_ms));
        assert_eq!(told, Some((5_000, 100)));
        pass(&mut progress, SHARD);
        let told = progress.told().map(|told| (told.under_way_ms, told.usual_ms));
        assert_eq!(told, Some((0, 0)), "no data shard was computed here yet");
        for (task, usual) in [(DeviceTask::Remainder, 100), (DeviceTask::Beginning, 0)] {
            for _ in 0..=10 {
                pass(&mut progress, Some(task));
            }
            let told = progress.told().map(|told| (told.under_way_ms, told.usual_ms));
            assert_eq!(told, Some((1_000, usual)), "{task:?}");
        }
    }
}
