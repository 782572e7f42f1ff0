//! Workers that go: lost ones, and those that leave in good order.

use everstep_transport::protocol::{Message, WorkerId};
use everstep_transport::time::Time;

use super::super::links::PeerPhase;
use super::super::{Core, LinkId};
use crate::state::{EntryOutcome, WorkerPhase};

impl Core {
    /// Forgets a worker that was no member. If the worker has become a member meanwhile, it is
    /// still suspected, and that is a reason to change.
    pub(in crate::core) fn lost(&mut self, now: Time, worker: WorkerId, verdict: &EntryOutcome) {
        if *verdict == EntryOutcome::Accepted || !self.state.is_present(worker) {
            self.forget(worker);
        }
        if self.change.is_steady() {
            self.begin_due_change(now);
        }
    }

    /// A worker is to leave, or has left.
    pub(in crate::core) fn drained(&mut self, now: Time, worker: WorkerId) {
        let known = self.state.workers().get(&worker);
        if known.is_some_and(|known| known.phase == WorkerPhase::Left) {
            self.let_go(worker);
        }
        if self.change.is_steady() {
            self.begin_due_change(now);
        }
    }

    /// The worker is lost. If it lives, the leader tells it so.
    pub(super) fn forget(&mut self, worker: WorkerId) {
        self.expect_nothing_of(worker);
        if let Some(link) = self.links.of_registered(worker) {
            self.evict(link, worker);
        }
    }

    /// The worker has left: the leader lets it go.
    pub(super) fn let_go(&mut self, worker: WorkerId) {
        self.expect_nothing_of(worker);
        if let Some(link) = self.links.of_registered(worker) {
            self.send_drained(link, worker);
        }
    }

    /// Tells a drained worker that it may go, no matter which side asked for the drain.
    pub(in crate::core) fn send_drained(&mut self, link: LinkId, worker: WorkerId) {
        self.links.enter(link, PeerPhase::Left(worker));
        self.outbox.send(link, Message::Drain { worker });
    }

    fn expect_nothing_of(&mut self, worker: WorkerId) {
        self.health.forget(worker);
        self.change.forget(worker);
    }
}
