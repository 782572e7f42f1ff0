//! A change of generation that takes long: the workers that it waits for, what the log tells
//! meanwhile, and when owners are given up.
//!
//! The wait outlives its leader. The log has how long leaders have listened for each owner in vain
//! (`state/awaited.rs`), and the members that have ended. The next leader goes on from both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::WorkerId;
use everstep_transport::protocol::reason::{LossReason, ProcessExit};
use everstep_transport::time::Time;

use super::super::failure_detector::{Certainty, Suspicion};
use super::super::plan::Wait;
use super::super::roster::Roster;
use super::super::{Core, Parts};
use super::pausing::Pausing;
use super::{ChangePhase, GenerationChange};
use crate::state::{Command, OwnerWait, OwnerWaits};

/// The log tells of a wait for owners that takes this long.
const OWNER_WAIT_LOGGED_AFTER: Duration = Duration::from_secs(1);
/// How often the leader logs how long the wait has taken: the next leader knows no more.
const OWNER_WAIT_LOG_INTERVAL: Duration = Duration::from_secs(5);
/// A change that takes this long tells of deaths before its end. That is longer than it takes to go
/// on without a member that does not answer.
const DEATHS_LOGGED_AFTER: Duration = Duration::from_secs(3);
/// A leader must hear nothing of an owner for at least this long, whatever the log says of earlier
/// leaders. By then the living workers have dialled the new leader.
const OWNER_GIVEN_UP_NOT_BEFORE: Duration = Duration::from_secs(10);

/// What the leader knows of a wait, besides its reason.
#[derive(Debug, Default)]
pub(super) struct Awaiting {
    /// Since when the plan waits for owners that may live.
    owners_since: Option<Time>,
    /// How long earlier leaders had listened for each owner in vain.
    logged: Option<BTreeMap<WorkerId, Duration>>,
    /// How long another worker had answered before the present answers.
    heard_before: Duration,
    /// Since when another worker answers. None if none does.
    heard_since: Option<Time>,
    /// The owners in the newest proposal, and its time.
    told: Option<(Vec<WorkerId>, Time)>,
    /// Members for which the leader has proposed the entry that they ended.
    reported_dead: BTreeSet<WorkerId>,
}

impl Awaiting {
    /// The plan waits for this. `logged` is the wait of earlier leaders.
    pub(super) fn on_wait(&mut self, now: Time, wait: &Wait, logged: &OwnerWaits) {
        let (owners, hears) = match wait {
            Wait::Owners { hears, .. } => (true, *hears),
            Wait::Workers(_) | Wait::Checkpoint => (false, false),
        };
        self.logged.get_or_insert_with(|| {
            let waited = |worker| (worker, Duration::from_millis(logged.waited_ms(worker)));
            logged.workers().map(waited).collect()
        });
        self.owners_since = owners.then(|| self.owners_since.unwrap_or(now));
        self.hear(now, hears);
    }

    /// Another worker answers from now on, or none does. The time listened so far counts on.
    fn hear(&mut self, now: Time, hears: bool) {
        match (self.heard_since, hears) {
            (None, true) => self.heard_since = Some(now),
            (Some(since), false) => {
                self.heard_before += now.since(since);
                self.heard_since = None;
            }
            _ => {}
        }
    }

    /// How long another worker has answered, in all.
    fn heard(&self, now: Time) -> Duration {
        self.heard_before + self.heard_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// How long this leader has waited for an owner in vain, while another worker answered.
    fn own_wait(&self, roster: Roster<'_>, owner: WorkerId) -> Duration {
        roster.detector.in_vain(roster.now, owner).min(self.heard(roster.now))
    }

    /// The same, plus the time of earlier leaders if this leader never heard the owner, or hears
    /// that its device hangs.
    fn waited(&self, roster: Roster<'_>, owner: WorkerId) -> Duration {
        let own = self.own_wait(roster, owner);
        let before = self.logged.as_ref().and_then(|logged| logged.get(&owner).copied());
        let detector = roster.detector;
        let goes_on = !detector.has_heard(owner) || detector.is_hung(owner);
        own + before.filter(|_| goes_on).unwrap_or_default()
    }

    /// Whether leaders have listened for an owner for as long as the run waits.
    pub(super) fn is_over(&self, roster: Roster<'_>, owner: WorkerId, after: Duration) -> bool {
        self.own_wait(roster, owner) >= after.min(OWNER_GIVEN_UP_NOT_BEFORE)
            && self.waited(roster, owner) >= after
    }

    /// Whether the log should tell now of a wait for these owners.
    fn is_to_be_logged(&self, roster: Roster<'_>, owners: &[WorkerId]) -> bool {
        let now = roster.now;
        let begins =
            self.owners_since.is_some_and(|since| now.since(since) < OWNER_WAIT_LOGGED_AFTER);
        let is_told = match &self.told {
            Some((told, at)) => told == owners && now.since(*at) < OWNER_WAIT_LOG_INTERVAL,
            None => owners.is_empty() && roster.state.awaited().since().is_none(),
        };
        !begins && !is_told
    }
}

impl Pausing {
    /// The wait for owners that the log should tell of now. Each is reported once.
    fn wait_to_log(&mut self, roster: Roster<'_>) -> Option<Vec<OwnerWait>> {
        let owners: Vec<WorkerId> = match self.wait.as_ref()? {
            Wait::Owners { owners, .. } => owners.iter().copied().collect(),
            Wait::Workers(_) | Wait::Checkpoint => Vec::new(),
        };
        if !self.awaiting.is_to_be_logged(roster, &owners) {
            return None;
        }
        let waited = owners.iter().map(|owner| {
            let waited_ms = self.awaiting.waited(roster, *owner).as_millis() as u64;
            OwnerWait { worker: *owner, waited_ms }
        });
        let waited = waited.collect();
        self.awaiting.told = Some((owners, roster.now));
        Some(waited)
    }

    /// The members that have surely ended, if the change takes long. Each is reported once.
    fn deaths_to_log(&mut self, roster: Roster<'_>) -> Vec<WorkerId> {
        if self.wait.is_none() && roster.now.since(self.since) < DEATHS_LOGGED_AFTER {
            return Vec::new();
        }
        let mut dead = roster.unreported_dead();
        dead.retain(|worker| self.awaiting.reported_dead.insert(*worker));
        dead
    }
}

impl Core {
    /// Brings into the log what other processes should know of a change that takes long. The next
    /// generation tells of the lost members. If the change takes long, the log tells earlier of the
    /// members that have surely ended.
    pub(super) fn log_wait(&mut self, now: Time) {
        let awaited = self.owners_awaited();
        let Parts { change, roster, outbox } = self.parts(now);
        let ChangePhase::Pausing(pausing) = &mut change.phase else { return };
        if let Some(owners) = pausing.wait_to_log(roster) {
            let generation = roster.state.generation();
            outbox.propose(now, Command::AwaitOwners { generation, owners, awaited });
        }
        for worker in pausing.deaths_to_log(roster) {
            let otherwise = LossReason::ProcessEnded(ProcessExit::Unknown);
            let loss = roster.detector.loss(now, worker, otherwise);
            outbox.propose(now, Command::Died(loss));
        }
    }

    /// Suspects the members that have ended, or have left together, according to the log.
    pub(in crate::core) fn suspect_reported_dead(&mut self, now: Time) {
        for worker in self.roster(now).reported_dead() {
            let has_left = self.state.has_departed(worker);
            let reason = if has_left { LossReason::Left } else { LossReason::FoundDead };
            self.suspect(now, worker, Suspicion { reason, certainty: Certainty::Dead });
        }
    }
}

// What views show of it.
impl GenerationChange {
    /// How many workers take part in a change that has too few, and since when.
    pub(in crate::core) fn short_of_workers(&self) -> Option<(u32, Time)> {
        match self.waits()? {
            (Wait::Workers(count), pausing) => Some((*count, pausing.since)),
            (Wait::Owners { .. } | Wait::Checkpoint, _) => None,
        }
    }

    /// Since when a change waits for an operator, since each of the run's checkpoints is damaged.
    pub(in crate::core) fn lacks_checkpoint(&self) -> Option<Time> {
        match self.waits()? {
            (Wait::Checkpoint, pausing) => Some(pausing.since),
            (Wait::Owners { .. } | Wait::Workers(_), _) => None,
        }
    }

    /// How many parameter shards a change waits for, for which owners, and since when.
    pub(in crate::core) fn waits_for_owners(&self) -> Option<(u32, &BTreeSet<WorkerId>, Time)> {
        match self.waits()? {
            (Wait::Owners { shards, owners, .. }, pausing) => {
                Some((*shards, owners, pausing.awaiting.owners_since?))
            }
            (Wait::Workers(_) | Wait::Checkpoint, _) => None,
        }
    }

    fn waits(&self) -> Option<(&Wait, &Pausing)> {
        match &self.phase {
            ChangePhase::Pausing(pausing) => Some((pausing.wait.as_ref()?, pausing)),
            ChangePhase::Steady | ChangePhase::Holding(_) | ChangePhase::Proposed(_) => None,
        }
    }
}
