//! Which coordinator the worker obeys: its links to coordinators, and which of them is the
//! leader's.
//!
//! Input: links that come and go, the terms in which leaders speak, lists of coordinators. Output:
//! the link for reports to the leader, and the list of coordinators. This table knows no other
//! messages. Nor does it know time: a follower may be silent for as long as it follows, and a link
//! that is up is as good as any other.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::BTreeMap;

use everstep_transport::protocol::{CoordinatorView, NodeName, Term};

use crate::step::event::LinkId;

/// The links to coordinators.
#[derive(Debug, Default)]
pub(super) struct Leader {
    /// Links that are up, each with the node at its other end.
    links: BTreeMap<LinkId, NodeName>,
    /// The link on which the newest leader has let this worker in.
    link: Option<LinkId>,
    /// The highest term in which a leader has spoken.
    term: Term,
    /// The revision of the newest list of coordinators. 0 before the first list.
    revision: u64,
}

impl Leader {
    /// A link is up.
    pub(super) fn up(&mut self, link: LinkId, name: NodeName) {
        self.links.insert(link, name);
    }

    /// A link is gone.
    pub(super) fn lost(&mut self, link: LinkId) {
        self.links.remove(&link);
        self.link.take_if(|leader| *leader == link);
    }

    /// All links that are up.
    pub(super) fn links(&self) -> Vec<LinkId> {
        self.links.keys().copied().collect()
    }

    /// Whether a link is up.
    pub(super) fn is_up(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// The leader's link, if it is up and the leader has let this worker in.
    pub(super) fn link(&self) -> Option<LinkId> {
        self.link
    }

    /// Whether the worker has a leader, and this link is not the leader's.
    pub(super) fn leads_elsewhere(&self, link: LinkId) -> bool {
        self.link.is_some_and(|leader| leader != link)
    }

    /// A coordinator speaks as the leader of a term. False if this worker has heard of a later
    /// term: the sender does not know yet that it leads no more, and its message is void.
    pub(super) fn hear(&mut self, term: Term) -> bool {
        let holds = term >= self.term;
        self.term = self.term.max(term);
        holds
    }

    /// The leader of a term lets this worker in: the worker reports to it from now on. False as
    /// with [`Leader::hear`].
    pub(super) fn follow(&mut self, link: LinkId, term: Term) -> bool {
        let holds = self.hear(term);
        if holds {
            self.link = Some(link);
        }
        holds
    }

    /// Whether a coordinator has ever told this worker the list of coordinators.
    pub(super) fn has_met_any(&self) -> bool {
        self.revision > 0
    }

    /// The worker knows of no leader until a coordinator lets it in again.
    pub(super) fn forget(&mut self) {
        self.link = None;
    }

    /// A coordinator sends the list of coordinators. Returns the list if it is newer than the known
    /// one, since a follower may have an old list.
    pub(super) fn take_list(
        &mut self,
        revision: u64,
        members: Vec<CoordinatorView>,
    ) -> Option<Vec<CoordinatorView>> {
        let newer = revision > self.revision;
        self.revision = self.revision.max(revision);
        newer.then_some(members)
    }
}
