//! What is learned in the background: by members that are to own more, and by workers that are to
//! become members.
//!
//! Input: the current record, who is there besides, and who is to leave. Output: for each learner
//! the shards that it lacks for the assignment that should be. All of them are fed at once; a
//! worker that comes later waits for the next generation, unless this takes long. A learner and a
//! member that have lost each other are told of the feed again, until they have found each other.
//! It does not know how anything is learned, and believes who says to be ready.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::{Generation, Record, RunSpec, Shard, WorkerId};
use everstep_transport::time::Time;

use super::plan::{Target, candidates};
use crate::assign::Occasion;
use crate::state::Worker;

/// After this long, those who are ready no longer wait for those who are not, and who came later is
/// fed as well.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// A learner that is cut off is fed again so much later; it may be a member that is missing, and
/// then there is another generation before.
const REPEAT: Duration = Duration::from_secs(1);
/// Who was cut off is not ready before nobody has complained for so long: a link may take 3 s to
/// come up, and that it does not is told by the next heartbeat.
const CALM: Duration = Duration::from_secs(5);

/// Whom the feeds are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Learners {
    /// Workers that are there and no members.
    pub(super) joiners: BTreeSet<WorkerId>,
    /// Members that are to leave: others learn what these have.
    pub(super) leaving: BTreeSet<WorkerId>,
}

#[derive(Debug, Default)]
pub(super) struct Feeds {
    generation: Generation,
    since: Time,
    learners: Learners,
    lessons: BTreeMap<WorkerId, Vec<Shard>>,
    ready: BTreeSet<WorkerId>,
    /// Learners that lack a link to a member, or did a while ago.
    cut: BTreeMap<WorkerId, Cut>,
    /// There is nothing to learn, but the record is not yet as it should be.
    uneven: bool,
}

/// A learner and a member have lost each other.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// When that was last told.
    told: Time,
    /// When the learner was fed again, or this was first told.
    fed: Time,
}

impl Feeds {
    /// What is to be learned towards the assignment to all who stay and all who join.
    pub(super) fn new(
        now: Time,
        run: &RunSpec,
        record: &Record,
        learners: Learners,
        known: &BTreeMap<WorkerId, Worker>,
    ) -> Self {
        let members = record.members.iter().map(|member| member.worker);
        let stay = members.filter(|worker| !learners.leaving.contains(worker));
        let mut all: Vec<WorkerId> = stay.chain(learners.joiners.iter().copied()).collect();
        if all.is_empty() {
            all.push(record.step_leader()); // they all want to leave: the first has to wait
        }
        let (generation, since) = (record.number, now);
        let mut feeds = Self { generation, since, learners, ..Self::default() };
        let all = candidates(known, all.into_iter());
        let target = Target::new(run, record.shards(), Some(record), &all, Occasion::Planned);
        feeds.lessons = lessons(record, &target, &feeds.learners.joiners);
        feeds.uneven = feeds.lessons.is_empty() && !target.is_met(record);
        feeds
    }

    /// The feeds of another generation are over; these need not go on as they are either if a
    /// learner is lost, or somebody else is to leave, or a worker has come and need not wait.
    pub(super) fn are_outdated(&self, now: Time, current: Generation, learners: &Learners) -> bool {
        let free = self.lessons.is_empty() || now.since(self.since) >= PATIENCE;
        self.generation != current
            || self.learners.leaving != learners.leaving
            || !self.learners.joiners.is_subset(&learners.joiners)
            || (free && self.learners.joiners != learners.joiners)
    }

    /// Goes on with other lessons; returns whose are new. Who has learned the same stays ready.
    pub(super) fn replace(&mut self, new: Self) -> Vec<WorkerId> {
        let old = std::mem::replace(self, new);
        let same = |worker: &WorkerId| {
            old.generation == self.generation && old.lessons.get(worker) == self.lessons.get(worker)
        };
        self.ready = old.ready.into_iter().filter(same).collect();
        if old.generation == self.generation {
            self.cut = old.cut;
            self.cut.retain(|worker, _| self.lessons.contains_key(worker));
        }
        self.lessons.keys().copied().filter(|worker| !same(worker)).collect()
    }

    /// Who is fed, and with what.
    pub(super) fn lessons(&self) -> &BTreeMap<WorkerId, Vec<Shard>> {
        &self.lessons
    }

    /// A learner of this generation says that it has learned everything. It may fall behind for a
    /// moment and still be as good as ready: what it holds, it says when it counts.
    pub(super) fn learned(&mut self, now: Time, worker: WorkerId, generation: Generation) {
        let whole = self.cut.get(&worker).is_none_or(|cut| now.since(cut.told) >= CALM);
        if whole && generation == self.generation && self.lessons.contains_key(&worker) {
            self.cut.remove(&worker);
            self.ready.insert(worker);
        }
    }

    /// A learner and a member cannot reach each other: so it is of no use as another member.
    pub(super) fn cut_off(&mut self, now: Time, learner: WorkerId) {
        if self.lessons.contains_key(&learner) {
            self.ready.remove(&learner);
            self.cut.entry(learner).or_insert(Cut { told: now, fed: now }).told = now;
        }
    }

    /// A worker is gone.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.ready.remove(&worker);
        self.cut.remove(&worker);
    }

    /// Who is to be fed again, since it was still cut off after it was fed.
    pub(super) fn repeat(&mut self, now: Time) -> Vec<WorkerId> {
        let mut again = Vec::new();
        for (learner, cut) in &mut self.cut {
            if cut.told > cut.fed && now.since(cut.fed) >= REPEAT {
                cut.fed = now;
                again.push(*learner);
            }
        }
        again
    }

    pub(super) fn ready(&self) -> &BTreeSet<WorkerId> {
        &self.ready
    }

    /// The workers that learn and are not ready, but for those that lack a link: time does not
    /// bring these nearer.
    pub(super) fn unready(&self) -> BTreeSet<WorkerId> {
        let learn =
            |worker: &&WorkerId| !self.ready.contains(worker) && !self.cut.contains_key(worker);
        self.lessons.keys().filter(learn).copied().collect()
    }

    /// Whether a change of generation would bring the record nearer to what it should be.
    pub(super) fn are_due(&self, now: Time) -> bool {
        let all = self.ready.len() == self.lessons.len();
        let some = !self.ready.is_empty();
        self.uneven || (some && (all || now.since(self.since) >= PATIENCE))
    }
}

/// The shards that each worker should own and does not; a joiner has to learn parameters even if it
/// is to own nothing.
fn lessons(
    record: &Record,
    target: &Target,
    joiners: &BTreeSet<WorkerId>,
) -> BTreeMap<WorkerId, Vec<Shard>> {
    let joiners = joiners.iter().map(|joiner| (*joiner, Vec::new()));
    let mut lessons: BTreeMap<WorkerId, Vec<Shard>> = joiners.collect();
    for (shard, wanted) in target.owners() {
        let owners = record.owners_of(shard);
        let owns = |id: &WorkerId| owners.iter().any(|rank| record.member(*rank).worker == *id);
        for worker in wanted.iter().filter(|worker| !owns(worker)) {
            lessons.entry(*worker).or_default().push(shard);
        }
    }
    lessons
}

/// Whether some member that is to leave is the only owner of nothing.
pub(super) fn frees_somebody(record: &Record, leaving: &BTreeSet<WorkerId>) -> bool {
    let needed = record.owners.iter().filter(|run| run.owners.len() == 1);
    let needed: BTreeSet<WorkerId> =
        needed.map(|run| record.member(run.owners[0]).worker).collect();
    record.members.len() > 1 && leaving.iter().any(|worker| !needed.contains(worker))
}

/// Of how many parameter shards only workers that are to leave have copies, this one among them.
pub(super) fn retained(record: &Record, leaving: &BTreeSet<WorkerId>, worker: WorkerId) -> u32 {
    let retained = record.owners.iter().filter(|run| {
        let owners = || run.owners.iter().map(|rank| record.member(*rank).worker);
        owners().any(|owner| owner == worker) && owners().all(|owner| leaving.contains(&owner))
    });
    retained.map(|run| run.count).sum()
}

#[cfg(test)]
mod tests;
