//! Which workers take part in the next generation.
//!
//! Members that answered stay, in their order. Workers that have synced what they were fed follow,
//! by their ids. A history that begins anew needs no syncing. Of two members that cannot reach
//! each other, one is left out. A member that wants to leave goes as soon as nothing depends on it.
//! No worker is left out that alone holds a shard.

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::WorkerId;
use everstep_transport::protocol::reason::{LossReason, NamedWorker};

use super::PlanInputs;
use super::shard_holders::ShardHolders;
use crate::core::partition::Pair;
#[cfg(feature = "planted")]
use crate::plant::CorePlant;

pub(super) struct PlannedMembers {
    /// The members, by rank.
    pub(super) members: Vec<WorkerId>,
    /// Members of the generation before that are free to leave.
    pub(super) left: Vec<WorkerId>,
    /// The members that are left out, each with a member that it cannot reach.
    left_out: BTreeMap<WorkerId, WorkerId>,
    /// Pairs of members that cannot reach each other.
    pub(super) unreachable: Vec<Pair>,
}

impl PlannedMembers {
    pub(super) fn choose(
        inputs: &PlanInputs,
        answered: &BTreeSet<WorkerId>,
        shard_holders: &ShardHolders,
    ) -> Self {
        let mut members: Vec<WorkerId> = survivors(inputs, answered).collect();
        let left_out = left_out(inputs, &members, shard_holders);
        members.retain(|worker| !left_out.contains_key(worker));
        let anew = members.is_empty() || matches!(shard_holders, ShardHolders::Everyone);
        let before: BTreeSet<WorkerId> = inputs.previous().collect();
        let others: Vec<WorkerId> = answered.difference(&before).copied().collect();
        members.extend(others.iter().filter(|id| anew || inputs.ready.contains(id)));
        let rescued = rescued(shard_holders, &members, others.iter().copied());
        members.extend(rescued);
        let mut planned = Self { members, left: Vec::new(), left_out, unreachable: Vec::new() };
        planned.let_go(inputs, shard_holders);
        let broken = inputs.broken.iter().copied();
        let both = |(a, b): &Pair| planned.members.contains(a) && planned.members.contains(b);
        planned.unreachable = broken.filter(both).collect();
        planned
    }

    /// The members of the generation before that are none any more.
    pub(super) fn departed(&self, inputs: &PlanInputs) -> impl Iterator<Item = WorkerId> {
        let members: BTreeSet<WorkerId> = self.members.iter().copied().collect();
        inputs.previous().filter(move |worker| !members.contains(worker))
    }

    /// Why a member that is not suspected of anything was left out.
    pub(super) fn reason_to_leave_out(&self, inputs: &PlanInputs, worker: WorkerId) -> LossReason {
        let Some(&other) = self.left_out.get(&worker) else { return LossReason::NoAnswer };
        let label = inputs.workers.get(&other).map(|known| known.label(other));
        LossReason::Unreachable(NamedWorker::of(other, label))
    }

    /// Members that want to leave do so, one after the other, while the rest holds everything. If
    /// all workers are to leave, none goes before the others.
    fn let_go(&mut self, inputs: &PlanInputs, shard_holders: &ShardHolders) {
        if inputs.asked.closing {
            return;
        }
        let leaving: Vec<WorkerId> =
            self.members.iter().copied().filter(|id| inputs.is_leaving(*id)).collect();
        for worker in leaving {
            let may_go = shard_holders.can_spare(worker, &self.members);
            #[cfg(feature = "planted")]
            let may_go = may_go || inputs.plant == Some(CorePlant::LastCopiesLeave);
            if may_go {
                self.members.retain(|id| *id != worker);
                self.left.push(worker);
            }
        }
    }
}

/// The members of the current generation that have answered, by rank.
fn survivors(inputs: &PlanInputs, answered: &BTreeSet<WorkerId>) -> impl Iterator<Item = WorkerId> {
    inputs.previous().filter(|worker| {
        #[cfg(feature = "planted")]
        if inputs.plant == Some(CorePlant::ListUnpromised) {
            return !inputs.detector.is_suspected(*worker);
        }
        answered.contains(worker)
    })
}

/// The members to leave out, one of each pair that stays broken, and why. Of the members that take
/// no last copy of a shard with them, the one with the most broken links goes first, and of equals
/// the newest. A pair of which neither can go stays.
fn left_out(
    inputs: &PlanInputs,
    members: &[WorkerId],
    shard_holders: &ShardHolders,
) -> BTreeMap<WorkerId, WorkerId> {
    let mut rest = members.to_vec();
    let mut left_out = BTreeMap::new();
    loop {
        let broken = inputs.broken.iter().filter(|(a, b)| rest.contains(a) && rest.contains(b));
        let mut peers = BTreeMap::<WorkerId, Vec<WorkerId>>::new();
        for &(a, b) in broken {
            peers.entry(a).or_default().push(b);
            peers.entry(b).or_default().push(a);
        }
        let free = peers.iter().filter(|(worker, _)| shard_holders.can_spare(**worker, &rest));
        let worst = free.max_by_key(|(worker, peers)| (peers.len(), **worker));
        let Some((&worst, peers)) = worst else { return left_out };
        left_out.insert(worst, peers[0]);
        rest.retain(|worker| *worker != worst);
    }
}

/// The workers of the reserve that are needed, since each alone holds a shard.
fn rescued(
    shard_holders: &ShardHolders,
    members: &[WorkerId],
    reserve: impl Iterator<Item = WorkerId>,
) -> Vec<WorkerId> {
    let mut missing = shard_holders.missing(members);
    let mut rescued = Vec::new();
    for worker in reserve {
        let before = missing.len();
        missing.retain(|shard| !shard_holders.holds(worker, *shard));
        if missing.len() < before {
            rescued.push(worker);
        }
    }
    rescued
}
