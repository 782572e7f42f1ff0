//! A change of generation that takes long: the workers that it waits for, what the log tells
//! meanwhile, and when owners are given up.
//!
//! The wait outlives its leader. The log has how long leaders have listened for each owner in vain
//! (`state/awaited.rs`), and the members that have ended. The next leader goes on from both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::WorkerId;
use everstep_transport::time::Time;

use super::super::Core;
use super::super::plan::{GiveUp, Wait};
use super::super::silence::{Certainty, Doubt};
use super::{Pausing, Phase};
use crate::state::{AwaitedOwner, Command};

/// The log tells of a wait for owners that takes this long.
const TELL: Duration = Duration::from_secs(1);
/// How often the leader logs how long the wait has taken: the next leader knows no more.
const TELL_AGAIN: Duration = Duration::from_secs(5);
/// A change that takes this long tells of deaths before its end. That is longer than it takes to go
/// on without a member that does not answer.
const TELL_DEATHS: Duration = Duration::from_secs(3);
/// A leader must hear nothing of an owner for at least this long, whatever the log says of earlier
/// leaders. By then the living workers have dialled the new leader.
const SETTLED: Duration = Duration::from_secs(10);

/// What the leader knows of a wait, besides its reason.
#[derive(Debug, Default)]
pub(super) struct Awaiting {
    /// Since when the plan waits for owners that may live.
    owners_since: Option<Time>,
    /// How long earlier leaders had listened for each owner in vain.
    logged: Option<BTreeMap<WorkerId, Duration>>,
    /// How long another worker had answered before now, and since when one answers again.
    hears: (Duration, Option<Time>),
    /// The owners in the newest proposal, and its time.
    told: Option<(Vec<WorkerId>, Time)>,
    /// Members for which the leader has proposed the entry that they ended.
    mourned: BTreeSet<WorkerId>,
}

impl Core {
    /// The plan waits for this.
    pub(super) fn wait_for(&mut self, now: Time, wait: Wait) {
        let Phase::Pausing(Pausing { awaiting, wait: known, .. }) = &mut self.phase else { return };
        let (owners, hears) = match wait {
            Wait::Owners { hears, .. } => (true, hears),
            Wait::Workers(_) => (false, false),
        };
        let logged = self.state.awaited();
        awaiting.logged.get_or_insert_with(|| {
            let waited = |worker| (worker, Duration::from_millis(logged.waited_ms(worker)));
            logged.workers().map(waited).collect()
        });
        awaiting.owners_since = owners.then(|| awaiting.owners_since.unwrap_or(now));
        awaiting.hear(now, hears);
        *known = Some(wait);
    }

    /// Brings into the log what other processes should know of a change that takes long.
    pub(super) fn tell_of_wait(&mut self, now: Time) {
        self.tell_owners(now);
        self.tell_deaths(now);
    }

    fn tell_owners(&mut self, now: Time) {
        let Phase::Pausing(pausing) = &self.phase else { return };
        let owners: Vec<WorkerId> = match &pausing.wait {
            Some(Wait::Owners { owners, .. }) => owners.iter().copied().collect(),
            Some(Wait::Workers(_)) => Vec::new(),
            None => return,
        };
        let awaiting = &pausing.awaiting;
        let begins = awaiting.owners_since.is_some_and(|since| now.since(since) < TELL);
        let is_told = match &awaiting.told {
            Some((told, at)) => *told == owners && now.since(*at) < TELL_AGAIN,
            None => owners.is_empty() && self.state.awaited().since().is_none(),
        };
        if begins || is_told {
            return;
        }
        let waited = owners.iter().map(|owner| {
            let waited_ms = self.waited(now, awaiting, *owner).as_millis() as u64;
            AwaitedOwner { worker: *owner, waited_ms }
        });
        let (generation, waited) = (self.state.generation(), waited.collect());
        let Phase::Pausing(pausing) = &mut self.phase else { return };
        pausing.awaiting.told = Some((owners, now));
        self.propose(now, Command::AwaitOwners { generation, owners: waited });
    }

    /// The next generation tells of the lost members. If the change takes long, the log tells
    /// earlier of the members that have surely ended.
    fn tell_deaths(&mut self, now: Time) {
        let members = self.state.record().into_iter().flat_map(|record| &record.members);
        let dead = members
            .map(|member| member.worker)
            .filter(|worker| self.silence.is_dead(*worker) && !self.state.is_mourned(*worker));
        let dead: Vec<WorkerId> = dead.collect();
        let Phase::Pausing(pausing) = &mut self.phase else { return };
        if pausing.wait.is_none() && now.since(pausing.since) < TELL_DEATHS {
            return;
        }
        let mourned = &mut pausing.awaiting.mourned;
        let dead: Vec<WorkerId> = dead.into_iter().filter(|id| mourned.insert(*id)).collect();
        for worker in dead {
            let loss = self.silence.loss(now, worker, "its process has ended");
            self.propose(now, Command::Died(loss));
        }
    }

    /// Suspects the members that have ended according to the log.
    pub(in crate::core) fn miss_mourned(&mut self, now: Time) {
        let present = self.state.present().map(|(worker, _)| worker);
        let mourned: Vec<WorkerId> =
            present.filter(|worker| self.state.is_mourned(*worker)).collect();
        for worker in mourned {
            let reason = "an earlier leader found that it has ended".into();
            self.suspect(now, worker, Doubt { reason, certainty: Certainty::Dead });
        }
    }

    /// What the run allows the leader to give up, or an operator asks it to.
    pub(super) fn give_up(&self, now: Time, pausing: &Pausing) -> Option<GiveUp> {
        if self.state.is_to_go_back() {
            return Some(GiveUp::Everything);
        }
        let after = Duration::from_millis(self.state.run()?.give_up_after_ms?);
        let Some(Wait::Owners { owners, hears: true, .. }) = &pausing.wait else { return None };
        let is_over = |owner: &WorkerId| {
            let own = self.own_wait(now, &pausing.awaiting, *owner);
            let waited = self.waited(now, &pausing.awaiting, *owner);
            own >= after.min(SETTLED) && waited >= after
        };
        Some(GiveUp::Silent(owners.iter().copied().filter(is_over).collect()))
    }

    /// How long this leader has listened for an owner in vain, while another worker answered.
    fn own_wait(&self, now: Time, awaiting: &Awaiting, owner: WorkerId) -> Duration {
        self.silence.unheard(now, owner).min(awaiting.heard(now))
    }

    /// The same, plus the time of earlier leaders if this leader never heard the owner.
    fn waited(&self, now: Time, awaiting: &Awaiting, owner: WorkerId) -> Duration {
        let own = self.own_wait(now, awaiting, owner);
        let before = awaiting.logged.as_ref().and_then(|logged| logged.get(&owner).copied());
        own + before.filter(|_| !self.silence.has_heard(owner)).unwrap_or_default()
    }
}

impl Awaiting {
    /// Another worker answers from now on, or none does. The time listened so far counts on.
    fn hear(&mut self, now: Time, hears: bool) {
        let (heard, since) = self.hears;
        self.hears = match (since, hears) {
            (None, true) => (heard, Some(now)),
            (Some(since), false) => (heard + now.since(since), None),
            _ => return,
        };
    }

    /// How long another worker has answered, in all.
    fn heard(&self, now: Time) -> Duration {
        let (heard, since) = self.hears;
        heard + since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

// What views show of it.
impl Core {
    /// How many workers take part in a change that has too few, and since when.
    pub(in crate::core) fn short_of_workers(&self) -> Option<(u32, Time)> {
        match self.waits()? {
            (Wait::Workers(count), pausing) => Some((*count, pausing.since)),
            (Wait::Owners { .. }, _) => None,
        }
    }

    /// How many parameter shards a change waits for, for which owners, and since when.
    pub(in crate::core) fn waits_for_owners(&self) -> Option<(u32, &BTreeSet<WorkerId>, Time)> {
        match self.waits()? {
            (Wait::Owners { shards, owners, .. }, pausing) => {
                Some((*shards, owners, pausing.awaiting.owners_since?))
            }
            (Wait::Workers(_), _) => None,
        }
    }

    fn waits(&self) -> Option<(&Wait, &Pausing)> {
        match &self.phase {
            Phase::Pausing(pausing) => Some((pausing.wait.as_ref()?, pausing)),
            Phase::Steady | Phase::Holding(_) | Phase::Proposed(_) => None,
        }
    }
}
