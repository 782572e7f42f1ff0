//! From one set of members to another, while the log goes on.
//!
//! A joiner is a learner until it has the log. A voter without the log would be missing at every
//! agreement. Then the voters change at once, through a joint configuration in which a majority of
//! the old and one of the new agree. Only one change is in the log at a time. The goal is the
//! leader's own and is lost with its lead, but every leader leaves a joint configuration that it
//! finds.

use ::raft::StateRole;
use ::raft::eraftpb::{ConfChangeTransition, ConfChangeType, ConfChangeV2};

use super::batch::{HardState, RaftEntry};
use super::members::{Members, NO_REPLICA, ReplicaId};
use super::writes::WaitingEffects;
use super::{RaftEffect, Replica};

/// A learner that lacks at most this many entries has the log. The rest comes while it becomes a
/// voter.
const NEARLY: u64 = 64;

impl Replica {
    /// Proposes the next step of a change, if one is due.
    pub(super) fn pursue_change(&mut self) {
        if !self.is_elected() {
            self.goal = None;
        }
        if !self.leads() || self.node.raft.has_pending_conf() {
            return;
        }
        if self.goal.is_none() && !self.members().is_joint() {
            return;
        }
        let members = self.members().clone();
        let Some(change) = self.next_change(&members) else { return };
        // Raft refuses it while leadership is being handed over. The leader asks again later.
        let _ = self.node.propose_conf_change(Vec::new(), change);
    }

    fn next_change(&mut self, members: &Members) -> Option<ConfChangeV2> {
        if members.is_joint() {
            #[cfg(feature = "planted")]
            if self.plant == Some(super::plant::RaftPlant::StayJoint) {
                return None;
            }
            return Some(ConfChangeV2::default());
        }
        let goal = self.goal.as_ref()?;
        let only = |change, id: &ReplicaId| Some(changes([(change, *id)], false));
        if let Some(id) = goal.iter().find(|id| !members.contain(**id)) {
            return only(ConfChangeType::AddLearnerNode, id);
        }
        if let Some(id) = members.learners.iter().find(|id| !goal.contains(id)) {
            return only(ConfChangeType::RemoveNode, id);
        }
        if *goal == members.voters {
            self.goal = None;
            return None;
        }
        let (ready, behind): (Vec<ReplicaId>, Vec<ReplicaId>) =
            members.learners.iter().partition(|id| self.has_the_log(**id));
        // The leader does not wait for a silent replica. It may be dead, and the others change
        // without it.
        if behind.iter().any(|id| self.hears(*id)) {
            return None;
        }
        let to_come: Vec<_> = goal.iter().copied().filter(|id| !behind.contains(id)).collect();
        if to_come == members.voters || !self.hears_majority_of(&to_come) {
            return None;
        }
        let join = ready.into_iter().map(|id| (ConfChangeType::AddNode, id));
        let leave = members.voters.iter().filter(|id| !goal.contains(id));
        let leave = leave.map(|id| (ConfChangeType::RemoveNode, *id));
        Some(changes(join.chain(leave), true))
    }

    /// Whether the leader hears a majority of the voters to come. Leaving a joint configuration
    /// takes one. A cluster that enters it without one can agree on nothing until one of them comes
    /// back. A replica that died since the newest count of votes, some heartbeats ago, still passes
    /// for alive.
    fn hears_majority_of(&self, to_come: &[ReplicaId]) -> bool {
        2 * to_come.iter().filter(|id| self.hears(**id)).count() > to_come.len()
    }

    fn hears(&self, id: ReplicaId) -> bool {
        let progress = self.node.raft.prs().get(id.0);
        id == self.id || progress.is_some_and(|progress| progress.recent_active)
    }

    fn has_the_log(&self, id: ReplicaId) -> bool {
        let raft = &self.node.raft;
        let progress = raft.prs().get(id.0);
        progress.is_some_and(|it| it.matched > 0 && it.matched + NEARLY >= raft.raft_log.committed)
    }

    /// A change of members is agreed on. A change that Raft finds impossible changes nothing, here
    /// as on every other replica.
    pub(super) fn apply_change(&mut self, entry: &RaftEntry) {
        let Some(change) = parse_change(&entry.bytes) else { return };
        let Ok(state) = self.node.apply_conf_change(&change) else { return };
        let members = Members::from_raft(&state);
        self.history.insert(entry.position.index, members.clone());
        self.step_down_if_removed();
        // The coordinator that gets this effect may let a removed replica go once others know the
        // change, too. By then the agreement has to be on this disk. Otherwise this replica,
        // started again, would ask for the removed one's vote.
        let hard_state = HardState::from_raft(&self.node.raft.hard_state());
        if self.node.store().kept().hard_state.commit < entry.position.index {
            self.write(hard_state, None, Vec::new());
        }
        self.writes.wait(WaitingEffects {
            batch: self.writes.given(),
            ready: None,
            term: hard_state.term.0,
            installed: None,
            effects: vec![RaftEffect::Members(members)],
        });
        self.release();
    }

    /// Raft goes on leading when it is no member any more, and then trips over itself.
    fn step_down_if_removed(&mut self) {
        let raft = &mut self.node.raft;
        if raft.state != StateRole::Leader || raft.promotable() {
            return;
        }
        let matched = |id: &ReplicaId| raft.prs().get(id.0).map(|it| (it.matched, id.0));
        let voters = Members::from_raft(&raft.prs().conf().to_conf_state()).voters;
        if let Some((_, heir)) = voters.iter().filter_map(matched).max() {
            raft.send_timeout_now(heir);
        }
        raft.become_follower(raft.term, NO_REPLICA.0);
    }
}

fn changes(
    list: impl IntoIterator<Item = (ConfChangeType, ReplicaId)>,
    joint: bool,
) -> ConfChangeV2 {
    let single = |(kind, id): (_, ReplicaId)| {
        let mut single = ::raft::eraftpb::ConfChangeSingle::default();
        single.set_change_type(kind);
        single.node_id = id.0;
        single
    };
    // Raft would leave a joint configuration by itself, but not if the leader changes meanwhile.
    let transition = match joint {
        true => ConfChangeTransition::Explicit,
        false => ConfChangeTransition::Auto,
    };
    let changes = list.into_iter().map(single).collect();
    ConfChangeV2 { changes, transition, ..ConfChangeV2::default() }
}

/// Decodes a change of members from Raft's bytes.
pub(super) fn parse_change(bytes: &[u8]) -> Option<ConfChangeV2> {
    ::raft::parse_conf_change_v2(bytes).ok()
}

#[cfg(test)]
mod tests;
