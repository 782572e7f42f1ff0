//! What this coordinator owes to peers that are no workers: answers to requests and admissions, and
//! news for watchers.

use super::LinkId;
use super::admission::PendingAdmissions;
use super::operators::Requests;
use super::outbox::Outbox;
use super::view::Watchers;

/// What operators, joiners and watchers have asked for, and this coordinator still owes them.
#[derive(Debug, Default)]
pub(super) struct Clients {
    pub(super) requests: Requests,
    pub(super) admissions: PendingAdmissions,
    pub(super) watchers: Watchers,
}

impl Clients {
    /// Drops what is owed to a link that is gone.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.requests.forget(link);
        self.watchers.forget(link);
    }

    /// This coordinator leads no longer: it answers no request any more, and says so to nodes.
    pub(super) fn give_up(&mut self, outbox: &mut Outbox) {
        self.requests.forget_all();
        self.admissions.leave_undecided(outbox);
    }
}
