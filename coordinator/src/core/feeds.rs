//! What workers sync in the background: members that are to own more, and workers that are to
//! become members.
//!
//! Input: the current record, the workers beside it, and the members that are to leave. Output: for
//! each joiner the shards that it lacks for the assignment that should be. All joiners are fed at
//! once. A worker that comes later waits for the next generation, unless this takes long. After a
//! joiner and a member have lost each other, they are told of the feed again, until they have
//! found each other. This module does not know how a worker syncs, and believes a worker that says
//! to be ready.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::{Generation, Record, RunSpec, Shard, WorkerId};
use everstep_transport::time::Time;

use super::pace::Paces;
use super::plan::{Target, candidates};
use crate::assign::Occasion;
use crate::state::Worker;

/// After this long, ready joiners no longer wait for the others, and workers that came later are
/// fed as well.
pub(super) const JOINERS_AWAITED_FOR: Duration = Duration::from_secs(10);
/// A joiner that is cut off is fed again after this long. If the link fails because a member is
/// missing, another generation begins before that.
const FEED_REPEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A joiner that lost a link counts as ready after this long without another report of a lost
/// link. A link may take 3 s to come up, and the next heartbeat tells if it does not.
const JOINER_READY_AFTER_LOST_LINK: Duration = Duration::from_secs(5);

/// The workers that the feeds are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FeedTargets {
    /// Workers that are there and no members.
    pub(super) newcomers: BTreeSet<WorkerId>,
    /// Members that are to leave: other workers sync their shards.
    pub(super) leaving: BTreeSet<WorkerId>,
}

#[derive(Debug, Default)]
pub(super) struct Feeds {
    generation: Generation,
    since: Time,
    feed_targets: FeedTargets,
    shard_syncs: BTreeMap<WorkerId, Vec<Shard>>,
    ready: BTreeSet<WorkerId>,
    /// Joiners that lack a link to a member, or did a while ago.
    cut: BTreeMap<WorkerId, LostLink>,
    /// There is nothing to sync, but the record is not yet as it should be.
    uneven: bool,
}

/// A joiner and a member have lost each other.
#[derive(Clone, Copy, Debug)]
struct LostLink {
    /// When a heartbeat last told of it.
    told: Time,
    /// When the joiner was fed again, or the loss was first told.
    fed: Time,
}

impl Feeds {
    /// The shard syncs towards the assignment to all workers that stay and all that join.
    pub(super) fn new(
        now: Time,
        run: &RunSpec,
        record: &Record,
        feed_targets: FeedTargets,
        known: &BTreeMap<WorkerId, Worker>,
        paces: &Paces,
    ) -> Self {
        let members = record.members.iter().map(|member| member.worker);
        let stay = members.filter(|worker| !feed_targets.leaving.contains(worker));
        let mut all: Vec<WorkerId> = stay.chain(feed_targets.newcomers.iter().copied()).collect();
        if all.is_empty() {
            all.push(record.step_leader()); // they all want to leave: the first has to wait
        }
        let (generation, since) = (record.number, now);
        let mut feeds = Self { generation, since, feed_targets, ..Self::default() };
        let all = candidates(known, paces, all.into_iter());
        let target = Target::new(run, record.shards(), Some(record), &all, Occasion::Planned);
        feeds.shard_syncs = shard_syncs(record, &target, &feeds.feed_targets.newcomers);
        feeds.uneven = feeds.shard_syncs.is_empty() && !target.is_met(record);
        feeds
    }

    /// Whether other feeds should replace these. Feeds of an earlier generation are over. Feeds of
    /// this one end if a joiner is lost, if another member is to leave, or if a worker has come
    /// that need not wait.
    pub(super) fn are_outdated(
        &self,
        now: Time,
        current: Generation,
        feed_targets: &FeedTargets,
    ) -> bool {
        let free = self.shard_syncs.is_empty() || now.since(self.since) >= JOINERS_AWAITED_FOR;
        self.generation != current
            || self.feed_targets.leaving != feed_targets.leaving
            || !self.feed_targets.newcomers.is_subset(&feed_targets.newcomers)
            || (free && self.feed_targets.newcomers != feed_targets.newcomers)
    }

    /// Continues with other shard syncs, and returns the joiners that have new ones. A joiner stays
    /// ready if its shard syncs are the same.
    pub(super) fn replace(&mut self, new: Self) -> Vec<WorkerId> {
        let old = std::mem::replace(self, new);
        let same = |worker: &WorkerId| {
            old.generation == self.generation
                && old.shard_syncs.get(worker) == self.shard_syncs.get(worker)
        };
        self.ready = old.ready.into_iter().filter(same).collect();
        if old.generation == self.generation {
            self.cut = old.cut;
            self.cut.retain(|worker, _| self.shard_syncs.contains_key(worker));
        }
        self.shard_syncs.keys().copied().filter(|worker| !same(worker)).collect()
    }

    /// The joiners, each with the shards that it is to sync.
    pub(super) fn shard_syncs(&self) -> &BTreeMap<WorkerId, Vec<Shard>> {
        &self.shard_syncs
    }

    /// A joiner of this generation says that it has synced everything. It may fall behind for a
    /// moment and still be as good as ready: its Status says what it holds when that counts.
    pub(super) fn synced(&mut self, now: Time, worker: WorkerId, generation: Generation) {
        let whole = self
            .cut
            .get(&worker)
            .is_none_or(|cut| now.since(cut.told) >= JOINER_READY_AFTER_LOST_LINK);
        if whole && generation == self.generation && self.shard_syncs.contains_key(&worker) {
            self.cut.remove(&worker);
            self.ready.insert(worker);
        }
    }

    /// A joiner and a member cannot reach each other: the joiner would be of no use as a member.
    pub(super) fn on_lost_link(&mut self, now: Time, joiner: WorkerId) {
        if self.shard_syncs.contains_key(&joiner) {
            self.ready.remove(&joiner);
            self.cut.entry(joiner).or_insert(LostLink { told: now, fed: now }).told = now;
        }
    }

    /// Drops what is known of a worker that is gone.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.ready.remove(&worker);
        self.cut.remove(&worker);
    }

    /// The joiners to feed again, since they were still cut off after the last time.
    pub(super) fn repeat(&mut self, now: Time) -> Vec<WorkerId> {
        let mut again = Vec::new();
        for (joiner, cut) in &mut self.cut {
            if cut.told > cut.fed && now.since(cut.fed) >= FEED_REPEAT_INTERVAL {
                cut.fed = now;
                again.push(*joiner);
            }
        }
        again
    }

    pub(super) fn ready(&self) -> &BTreeSet<WorkerId> {
        &self.ready
    }

    /// The joiners that are not ready, without those that lack a link: time alone does not bring
    /// them nearer.
    pub(super) fn unready(&self) -> BTreeSet<WorkerId> {
        let learn =
            |worker: &&WorkerId| !self.ready.contains(worker) && !self.cut.contains_key(worker);
        self.shard_syncs.keys().filter(learn).copied().collect()
    }

    /// Whether a change of generation would bring the record nearer to what it should be.
    pub(super) fn are_due(&self, now: Time) -> bool {
        let all = self.ready.len() == self.shard_syncs.len();
        let some = !self.ready.is_empty();
        self.uneven || (some && (all || now.since(self.since) >= JOINERS_AWAITED_FOR))
    }
}

/// The shards that each worker should own and does not. A newcomer has to sync parameters even if
/// it is to own nothing.
fn shard_syncs(
    record: &Record,
    target: &Target,
    newcomers: &BTreeSet<WorkerId>,
) -> BTreeMap<WorkerId, Vec<Shard>> {
    let newcomers = newcomers.iter().map(|newcomer| (*newcomer, Vec::new()));
    let mut shard_syncs: BTreeMap<WorkerId, Vec<Shard>> = newcomers.collect();
    for (shard, wanted) in target.owners() {
        let owners = record.owners_of(shard);
        let owns = |id: &WorkerId| owners.iter().any(|rank| record.member(*rank).worker == *id);
        for worker in wanted.iter().filter(|worker| !owns(worker)) {
            shard_syncs.entry(*worker).or_default().push(shard);
        }
    }
    shard_syncs
}

/// Whether a member that is to leave is the only owner of no shard.
pub(super) fn frees_somebody(record: &Record, leaving: &BTreeSet<WorkerId>) -> bool {
    let needed = record.owners.iter().filter(|run| run.owners.len() == 1);
    let needed: BTreeSet<WorkerId> =
        needed.map(|run| record.member(run.owners[0]).worker).collect();
    record.members.len() > 1 && leaving.iter().any(|worker| !needed.contains(worker))
}

/// How many parameter shards have copies on leaving workers alone, this worker among them.
pub(super) fn retained(record: &Record, leaving: &BTreeSet<WorkerId>, worker: WorkerId) -> u32 {
    let retained = record.owners.iter().filter(|run| {
        let owners = || run.owners.iter().map(|rank| record.member(*rank).worker);
        owners().any(|owner| owner == worker) && owners().all(|owner| leaving.contains(&owner))
    });
    retained.map(|run| run.count).sum()
}

#[cfg(test)]
mod tests;
