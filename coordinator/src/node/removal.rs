//! Coordinators that are to go: which of them may have been removed without knowing, and when the
//! leader proposes to shut one out.

use std::collections::BTreeMap;

use everstep_transport::time::Time;

use super::introduction::ANNOUNCE_INTERVAL;
use crate::core::LinkId;
use crate::raft::{Members, ReplicaId};

/// The first ticket of the node's own reads. The core's tickets are all below it.
const FIRST_REMOVAL_CHECK: u64 = 1 << 63;

/// The coordinators that are being removed.
pub(super) struct Removals {
    /// The members of the log, as this disk has them.
    settled: Members,
    /// Links to coordinators that may have been removed, by the ticket of the read that will tell.
    checks: BTreeMap<u64, LinkId>,
    /// The number of removal checks so far. It numbers their tickets.
    checks_before: u64,
    /// When this leader last proposed to shut out a coordinator that has left.
    proposed: Option<Time>,
}

impl Removals {
    pub(super) fn new(settled: Members) -> Self {
        Self { settled, checks: BTreeMap::new(), checks_before: 0, proposed: None }
    }

    /// Whether the read with this ticket is a removal check.
    pub(super) fn is_check(ticket: u64) -> bool {
        ticket >= FIRST_REMOVAL_CHECK
    }

    /// The disk has these members of the log.
    pub(super) fn settle(&mut self, members: Members) {
        self.settled = members;
    }

    /// Whether this disk has the log without a coordinator.
    pub(super) fn is_settled_without(&self, id: ReplicaId) -> bool {
        !self.settled.contain(id)
    }

    /// Begins a check of the coordinator on this link. Returns the ticket of the read that will
    /// tell, or None while another check of the link is under way.
    pub(super) fn check(&mut self, link: LinkId) -> Option<u64> {
        if self.checks.values().any(|other| *other == link) {
            return None;
        }
        let ticket = FIRST_REMOVAL_CHECK + self.checks_before;
        self.checks_before += 1;
        self.checks.insert(ticket, link);
        Some(ticket)
    }

    /// The check with this ticket is over. Returns its link.
    pub(super) fn finish(&mut self, ticket: u64) -> Option<LinkId> {
        self.checks.remove(&ticket)
    }

    /// This coordinator begins to lead: it proposes at once.
    pub(super) fn lead(&mut self) {
        self.proposed = None;
    }

    /// Whether the leader may propose to shut a coordinator out.
    pub(super) fn may_propose(&self, now: Time) -> bool {
        self.proposed.is_none_or(|last| now.since(last) >= ANNOUNCE_INTERVAL)
    }

    pub(super) fn propose(&mut self, now: Time) {
        self.proposed = Some(now);
    }
}
