//! Devices that hang while the heartbeats of their workers go on.
//!
//! A worker says how long its device has computed a data shard, and how long one usually takes
//! there. A device that takes [`TIMES`] as long, and at least what the run allows, counts as hung.
//! Its worker is suspected, and the others go on without it if they can. When all members are slow
//! at once, the cause is one that they share, such as the storage of their data. Then no other
//! worker could go on better, and none is suspected. Instead the run says, in an event and in its
//! status, that no device gets on. A run of one worker does the same. A suspect is acquitted when
//! its device goes on.

use std::collections::BTreeSet;
use std::time::Duration;

use everstep_transport::protocol::WorkerId;
use everstep_transport::protocol::message::ShardTime;
use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::time::Time;

use super::Core;
use super::silence::{Certainty, Doubt};

/// A device hangs when a data shard takes this many times as long as usual there.
const TIMES: u64 = 3;

/// The workers that have said that their devices are slow: by half of what makes a suspect.
#[derive(Debug, Default)]
pub(super) struct Progress {
    slow: BTreeSet<WorkerId>,
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

impl Progress {
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.slow.remove(&worker);
    }
}

impl Core {
    /// A member says how its device gets on.
    pub(super) fn gets_on(&mut self, now: Time, worker: WorkerId, told: Option<ShardTime>) {
        #[cfg(feature = "planted")]
        if self.plant == Some(crate::plant::Plant::IgnoreHangs) {
            return;
        }
        let Some(least) = self.state.run().map(|run| run.hang_after_ms) else { return };
        let ShardTime { under_way_ms, usual_ms } = told.unwrap_or_default();
        let most = least.max(usual_ms.saturating_mul(TIMES));
        if under_way_ms < most / 2 {
            self.progress.slow.remove(&worker);
        } else {
            self.progress.slow.insert(worker);
        }
        if self.somebody_gets_on() {
            self.progress.standstill = None;
        }
        if under_way_ms < most {
            if self.silence.goes_on(worker) {
                self.acquitted(now);
            }
            return;
        }
        if self.silence.is_suspected(worker) {
            return;
        }
        let [spent, usual] = [under_way_ms, usual_ms].map(Duration::from_millis);
        let reason = format!(
            "its device has computed one data shard for {spent:.1?}, which takes {usual:.1?} there \
             as a rule"
        );
        match self.somebody_gets_on() {
            true => self.suspect(now, worker, Doubt { reason, certainty: Certainty::Hung }),
            false => self.stand_still(now, worker, spent, &reason),
        }
    }

    /// No member could go on better than this one: the run waits, and says so once.
    fn stand_still(&mut self, now: Time, worker: WorkerId, spent: Duration, reason: &str) {
        if self.progress.standstill.is_some() {
            return;
        }
        let reason = format!("{}: {reason}", self.state.called(worker));
        let since_unix_ms = self.unix_ms(now).saturating_sub(spent.as_millis() as u64);
        self.progress.standstill = Some(Standstill { since_unix_ms, reason: reason.clone() });
        self.note(now, EventKind::Standstill { reason });
    }

    /// Why no device of the run gets on, while none does.
    pub(super) fn standstill(&self) -> Option<Standstill> {
        self.progress.standstill.clone().filter(|_| self.running())
    }

    fn somebody_gets_on(&self) -> bool {
        let members = self.state.record().into_iter().flat_map(|record| &record.members);
        let mut members = members.map(|member| member.worker);
        members.any(|id| !self.progress.slow.contains(&id) && !self.silence.is_suspected(id))
    }
}
