//! Devices that hang while the heartbeats of their workers go on.
//!
//! A worker says how long its device has computed a data shard, and how long one usually takes
//! there. A device that takes [`TIMES`] as long, and at least what the run allows, counts as hung.
//! The first data shard after a build may take [`FIRST_TIMES`] what the run allows, since a device
//! may compile then, and [`FIRST_TIMES_OTHERS`] what is usual for any other worker.
//! Its worker is suspected, and the others go on without it if they can. When all members are slow
//! at once, the cause is one that they share, such as the storage of their data. Then no other
//! worker could go on better, and none is suspected. Instead the run says, in an event and in its
//! status, that no device gets on. A run of one worker does the same. A suspect is cleared when
//! its device goes on.

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::WorkerId;
use everstep_transport::protocol::message::ShardTime;
use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::reason::{DeviceHang, LossReason, StandstillReason};
use everstep_transport::time::Time;

use super::Core;
use super::failure_detector::{Certainty, Suspicion};
use super::health::WorkerHealth;
use super::roster::Roster;

/// A device hangs when a data shard takes this many times as long as usual there.
const TIMES: u64 = 3;
/// The first data shard after a build may take this many times what the run allows at least: 10 min
/// unless the run says otherwise.
pub(super) const FIRST_TIMES: u64 = 60;
/// It may also take this many times as long as data shards usually take elsewhere.
const FIRST_TIMES_OTHERS: u64 = 10;

/// The workers that have said that their devices are slow: by half of what makes a suspect.
#[derive(Debug, Default)]
pub(super) struct DeviceProgress {
    slow: BTreeSet<WorkerId>,
    /// How long a data shard usually takes each worker, milliseconds.
    usual_ms: BTreeMap<WorkerId, u64>,
    /// The devices of all members stand still, as this one does.
    standstill: Option<Standstill>,
}

/// No device of a run gets on: none of its workers could take the place of another.
#[derive(serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct Standstill {
    /// Since when: wall clock of the coordinator, milliseconds of Unix time.
    pub since_unix_ms: u64,
    /// Why one worker's device does not get on, in words.
    pub reason: String,
}

impl DeviceProgress {
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.slow.remove(&worker);
        self.usual_ms.remove(&worker);
    }

    /// How long this data shard may take the worker, milliseconds, in a run that allows `least`.
    fn allowed_ms(&mut self, worker: WorkerId, usual_ms: u64, least: u64) -> u64 {
        if usual_ms > 0 {
            self.usual_ms.insert(worker, usual_ms);
            return least.max(usual_ms.saturating_mul(TIMES));
        }
        let elsewhere = self.usual_ms.values().max().copied().unwrap_or_default();
        let first = least.saturating_mul(FIRST_TIMES);
        first.max(elsewhere.saturating_mul(FIRST_TIMES_OTHERS))
    }

    /// A member's device is slow, or is not. Returns whether any member's device gets on.
    fn note(&mut self, roster: Roster<'_>, worker: WorkerId, is_slow: bool) -> bool {
        if is_slow {
            self.slow.insert(worker);
        } else {
            self.slow.remove(&worker);
        }
        let gets_on = |id: WorkerId| !self.slow.contains(&id) && !roster.detector.is_suspected(id);
        let any_gets_on = roster.state.members().any(gets_on);
        if any_gets_on {
            self.standstill = None;
        }
        any_gets_on
    }
}

impl Core {
    /// A member says how its device gets on.
    pub(super) fn gets_on(&mut self, now: Time, worker: WorkerId, told: Option<ShardTime>) {
        #[cfg(feature = "planted")]
        if self.state.plant == Some(crate::plant::CorePlant::IgnoreHangs) {
            return;
        }
        let Some(least) = self.state.run().map(|run| run.hang_after_ms) else { return };
        let ShardTime { under_way_ms, usual_ms } = told.unwrap_or_default();
        let Self { health, state, links, .. } = self;
        let WorkerHealth { progress, detector, paces, .. } = health;
        let most = progress.allowed_ms(worker, usual_ms, least);
        let roster = Roster { now, state, links, detector, paces };
        let any_gets_on = progress.note(roster, worker, under_way_ms >= most / 2);
        if under_way_ms < most {
            if detector.goes_on(worker) {
                self.on_cleared(now);
            }
            return;
        }
        if detector.is_suspected(worker) {
            return;
        }
        let hang = DeviceHang { spent_ms: under_way_ms, usual_ms };
        let reason = LossReason::DeviceHangs(hang);
        match any_gets_on {
            true => self.suspect(now, worker, Suspicion { reason, certainty: Certainty::Hung }),
            false => self.stand_still(now, worker, hang),
        }
    }

    /// No member could go on better than this one: the run waits, and says so once.
    fn stand_still(&mut self, now: Time, worker: WorkerId, hang: DeviceHang) {
        if self.health.progress.standstill.is_some() {
            return;
        }
        let worker = self.state.called(worker);
        let reason = StandstillReason::DeviceHangs { worker, hang };
        let since_unix_ms = self.unix_ms(now).saturating_sub(hang.spent_ms);
        self.health.progress.standstill =
            Some(Standstill { since_unix_ms, reason: reason.to_string() });
        self.note(now, EventKind::Standstill { reason });
    }

    /// Why no device of the run gets on, while none does.
    pub(super) fn standstill(&self) -> Option<Standstill> {
        self.health.progress.standstill.clone().filter(|_| self.running())
    }
}
