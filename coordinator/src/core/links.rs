//! The links to peers, and how far each has come.
//!
//! A worker has at most one link; an operator may have several. This table does not know what a
//! phase permits.

use std::collections::BTreeMap;

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::{NodeName, WorkerId};

use super::LinkId;

/// How far the peer on a link has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A worker that has said nothing yet.
    Connected,
    /// A worker that speaks this vocabulary and waits for a run, or for somebody who leads; with
    /// the id that it says to have.
    Greeted(Option<WorkerId>),
    /// It was told the run and builds its model and data.
    Welcomed,
    /// The registration of this incarnation is proposed.
    Registering(u64),
    /// It is registered.
    Registered(WorkerId),
    /// It was a member, and was told that it is one no more. Of what it still says, one thing
    /// counts: that the history is broken of which it was a part.
    Evicted(WorkerId),
    /// It was refused, lost or dismissed: whatever it still says does not count.
    Released,
    /// An operator.
    Operator,
    /// A coordinator: there is nothing to say to each other yet.
    Coordinator,
}

/// One peer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) identity: Identity,
    pub(super) phase: Phase,
}

#[derive(Debug, Default)]
pub(super) struct Links {
    links: BTreeMap<LinkId, Link>,
    workers: BTreeMap<NodeName, LinkId>,
    registered: BTreeMap<WorkerId, LinkId>,
}

impl Links {
    pub(super) fn insert(&mut self, link: LinkId, identity: Identity) {
        let phase = match identity.role {
            Role::Worker => Phase::Connected,
            Role::Operator => Phase::Operator,
            Role::Coordinator => Phase::Coordinator,
        };
        if identity.role == Role::Worker {
            self.workers.insert(identity.name.clone(), link);
        }
        self.links.insert(link, Link { identity, phase });
    }

    /// Forgets a link, and tells how far its peer had come.
    pub(super) fn remove(&mut self, link: LinkId) -> Option<Phase> {
        let Link { identity, phase } = self.links.remove(&link)?;
        if self.workers.get(&identity.name) == Some(&link) {
            self.workers.remove(&identity.name);
        }
        if let Phase::Registered(worker) = phase {
            self.registered.remove(&worker);
        }
        Some(phase)
    }

    pub(super) fn find(&self, link: LinkId) -> Option<&Link> {
        self.links.get(&link)
    }

    /// Takes note that a peer has come to `phase`.
    pub(super) fn enter(&mut self, link: LinkId, phase: Phase) {
        let Some(known) = self.links.get_mut(&link) else { return };
        if let Phase::Registered(worker) = known.phase {
            self.registered.remove(&worker);
        }
        if let Phase::Registered(worker) = phase {
            self.registered.insert(worker, link);
        }
        known.phase = phase;
    }

    /// The link of the worker on this node.
    pub(super) fn of_worker(&self, name: &NodeName) -> Option<LinkId> {
        self.workers.get(name).copied()
    }

    /// The link on which a worker is registered.
    pub(super) fn of_registered(&self, worker: WorkerId) -> Option<LinkId> {
        self.registered.get(&worker).copied()
    }

    /// The registered workers that have a link, by id.
    pub(super) fn registered(&self) -> &BTreeMap<WorkerId, LinkId> {
        &self.registered
    }

    /// The workers' links, in the order of their coming.
    pub(super) fn workers(&self) -> impl Iterator<Item = (LinkId, Phase)> {
        let workers = self.links.iter().filter(|(_, link)| link.identity.role == Role::Worker);
        workers.map(|(&id, link)| (id, link.phase))
    }
}
