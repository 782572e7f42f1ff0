//! The links to peers, and how far each peer has come.
//!
//! A worker has at most one link. An operator may have several. This table does not know what a
//! phase permits.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::{NodeName, WorkerId};

use super::LinkId;

/// The leader remembers at most so many names of operators. A user asks only whether a name is
/// mistyped, so more names are not needed.
const MAX_OPERATORS: usize = 1_000;

/// How far the peer on a link has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerPhase {
    /// A worker that has said nothing yet.
    Connected,
    /// A worker that has said Hello, with the id that it states. It waits for a run, or for a
    /// leader.
    Greeted(Option<WorkerId>),
    /// A worker that knows the run, and builds its model and data.
    Welcomed,
    /// A worker with a proposed registration, of this incarnation.
    Registering(u64),
    /// A worker that cannot compute the run, and waits for the next one.
    Unable,
    /// A worker with this id.
    Registered(WorkerId),
    /// A former member that knows that it is none any more. Only one of its messages still counts:
    /// that the history is broken of which it was a part.
    Evicted(WorkerId),
    /// A worker that has left, and may go. Only its words about its part of a checkpoint count.
    Left(WorkerId),
    /// A peer that was refused, lost or dismissed: its messages no longer count.
    Released,
    Operator,
    Coordinator,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) identity: Identity,
    /// The address from which the peer's packets come, if it is of another process.
    pub(super) address: Option<SocketAddr>,
    pub(super) phase: PeerPhase,
    /// Whether the peer has said something, and learns of the coordinators.
    introduced: bool,
}

#[derive(Debug, Default)]
pub(super) struct Links {
    links: BTreeMap<LinkId, Link>,
    workers: BTreeMap<NodeName, LinkId>,
    registered: BTreeMap<WorkerId, LinkId>,
    /// The operators that have or had a link.
    operators: BTreeSet<NodeName>,
    ignored: u64,
}

impl Links {
    /// A peer has said what it may not say, or not then.
    pub(super) fn ignore(&mut self) {
        self.ignored += 1;
    }

    /// How many messages were ignored.
    pub(super) fn ignored(&self) -> u64 {
        self.ignored
    }

    pub(super) fn insert(&mut self, link: LinkId, identity: Identity, address: Option<SocketAddr>) {
        let phase = match identity.role {
            Role::Worker => PeerPhase::Connected,
            Role::Operator => PeerPhase::Operator,
            Role::Coordinator => PeerPhase::Coordinator,
        };
        if identity.role == Role::Worker {
            self.workers.insert(identity.name.clone(), link);
        }
        if identity.role == Role::Operator && self.operators.len() < MAX_OPERATORS {
            self.operators.insert(identity.name.clone());
        }
        self.links.insert(link, Link { identity, address, phase, introduced: false });
    }

    /// The operators that have or had a link, by name.
    pub(super) fn operators(&self) -> impl Iterator<Item = &NodeName> {
        self.operators.iter()
    }

    /// Forgets a link, and returns how far its peer had come.
    pub(super) fn remove(&mut self, link: LinkId) -> Option<PeerPhase> {
        let Link { identity, phase, .. } = self.links.remove(&link)?;
        if self.workers.get(&identity.name) == Some(&link) {
            self.workers.remove(&identity.name);
        }
        if let PeerPhase::Registered(worker) = phase {
            self.registered.remove(&worker);
        }
        Some(phase)
    }

    pub(super) fn find(&self, link: LinkId) -> Option<&Link> {
        self.links.get(&link)
    }

    /// Takes note that a peer has come to `phase`.
    pub(super) fn enter(&mut self, link: LinkId, phase: PeerPhase) {
        let Some(known) = self.links.get_mut(&link) else { return };
        if let PeerPhase::Registered(worker) = known.phase {
            self.registered.remove(&worker);
        }
        if let PeerPhase::Registered(worker) = phase {
            self.registered.insert(worker, link);
        }
        known.phase = phase;
    }

    /// Takes note that a peer has said something. Returns whether this is the first time.
    pub(super) fn introduce(&mut self, link: LinkId) -> bool {
        let known = self.links.get_mut(&link).filter(|known| !known.introduced);
        known.map(|known| known.introduced = true).is_some()
    }

    /// The links of the peers that have said something.
    pub(super) fn introduced(&self) -> Vec<LinkId> {
        self.links.iter().filter(|(_, link)| link.introduced).map(|(&id, _)| id).collect()
    }

    /// The links of the node of this role and name.
    pub(super) fn named(&self, role: Role, name: &NodeName) -> Vec<LinkId> {
        let is = |link: &Link| link.identity.role == role && link.identity.name == *name;
        self.links.iter().filter(|(_, link)| is(link)).map(|(&id, _)| id).collect()
    }

    /// The links of the nodes of this role.
    pub(super) fn of_role(&self, role: Role) -> Vec<LinkId> {
        let links = self.links.iter().filter(|(_, link)| link.identity.role == role);
        links.map(|(&id, _)| id).collect()
    }

    /// This coordinator leads no longer: every worker is back at its Hello, under the id that it
    /// has now. A released worker stays released.
    pub(super) fn demote(&mut self) {
        self.registered.clear();
        for link in self.links.values_mut() {
            match link.phase {
                PeerPhase::Registered(worker)
                | PeerPhase::Evicted(worker)
                | PeerPhase::Left(worker) => link.phase = PeerPhase::Greeted(Some(worker)),
                PeerPhase::Welcomed | PeerPhase::Registering(_) | PeerPhase::Unable => {
                    link.phase = PeerPhase::Greeted(None);
                }
                _ => {}
            }
        }
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
    pub(super) fn workers(&self) -> impl Iterator<Item = (LinkId, PeerPhase)> {
        let workers = self.links.iter().filter(|(_, link)| link.identity.role == Role::Worker);
        workers.map(|(&id, link)| (id, link.phase))
    }
}
