//! The links to the other coordinators, with their ids and addresses.
//!
//! A link proves a name. The state says which id has that name. Before this coordinator has a
//! state, another coordinator's list says it. The newest list counts, since this coordinator's log
//! may be behind, and so may a list that it has heard. A coordinator that the newest list lacks
//! keeps its link as long as the log needs its vote. Messages to a coordinator with several links
//! go on the newest.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::{CoordinatorId, CoordinatorView, NodeName};
use everstep_transport::time::Time;

use crate::core::LinkId;
use crate::raft::{Members, ReplicaId};

/// A replica that the leader has not heard for this long is silent. Many heartbeats fit into it.
const REPLICA_SILENT_AFTER: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Peers {
    own: ReplicaId,
    links: BTreeMap<LinkId, NodeName>,
    /// The revision of the newest list.
    revision: u64,
    /// The coordinators of the newest list and of lists before it, by id. No id is given twice.
    known: BTreeMap<CoordinatorId, KnownCoordinator>,
    last_heard: LastHeard,
}

/// When this coordinator last heard each replica.
#[derive(Debug, Default)]
struct LastHeard {
    /// When this coordinator began to listen. No silence began earlier.
    since: Time,
    last: BTreeMap<ReplicaId, Time>,
}

#[derive(Debug)]
struct KnownCoordinator {
    view: CoordinatorView,
    /// On the newest list.
    is_listed: bool,
}

pub(super) fn is_coordinator(identity: &Identity) -> bool {
    identity.role == Role::Coordinator
}

impl Peers {
    pub(super) fn new(own: ReplicaId, revision: u64, views: Vec<CoordinatorView>) -> Self {
        let mut peers = Self {
            own,
            links: BTreeMap::new(),
            revision: 0,
            known: BTreeMap::new(),
            last_heard: LastHeard::default(),
        };
        peers.learn(revision, views, &Members::default());
        peers
    }

    pub(super) fn own(&self) -> ReplicaId {
        self.own
    }

    pub(super) fn connected(&mut self, link: LinkId, identity: &Identity) {
        if is_coordinator(identity) {
            self.links.insert(link, identity.name.clone());
        }
    }

    /// Removes a link and returns the coordinator at its other end. A newer link to it may exist,
    /// but messages on the old link may be lost.
    pub(super) fn disconnected(&mut self, members: &Members, link: LinkId) -> Option<ReplicaId> {
        let name = self.links.remove(&link)?;
        self.named(members, &name)
    }

    pub(super) fn is_coordinator(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// Takes a list of coordinators, from the log or from another coordinator. A coordinator that
    /// only an old list has counts by its name alone, and only while it is a member of the log.
    pub(super) fn learn(&mut self, revision: u64, views: Vec<CoordinatorView>, members: &Members) {
        let is_newest = revision >= self.revision;
        if is_newest {
            self.revision = revision;
            self.known.retain(|id, _| members.contain(ReplicaId::from(*id)));
            self.known.values_mut().for_each(|known| known.is_listed = false);
        }
        for view in views {
            let known = KnownCoordinator { is_listed: is_newest, view };
            if is_newest {
                self.known.insert(known.view.id, known);
            } else {
                self.known.entry(known.view.id).or_insert(known);
            }
        }
    }

    /// A new leader begins to listen to all replicas.
    pub(super) fn listen(&mut self, now: Time) {
        self.last_heard.since = now;
    }

    pub(super) fn hear(&mut self, now: Time, from: ReplicaId) {
        self.last_heard.last.insert(from, now);
    }

    /// Since when this leader has not heard a replica. None if it hears it.
    pub(super) fn silent_since(&self, now: Time, members: &Members, id: ReplicaId) -> Option<Time> {
        let LastHeard { since, last } = &self.last_heard;
        let last = last.get(&id).copied().unwrap_or_default().max(*since);
        let silent = self.link_of(members, id).is_none() || now.since(last) > REPLICA_SILENT_AFTER;
        (id != self.own && silent).then_some(last)
    }

    /// The name at the other end of a link.
    pub(super) fn name_of(&self, link: LinkId) -> Option<&NodeName> {
        self.links.get(&link)
    }

    /// All links to coordinators.
    pub(super) fn links(&self) -> Vec<LinkId> {
        self.links.keys().copied().collect()
    }

    /// The id of the coordinator at the other end of a link, if this coordinator knows it.
    pub(super) fn id_of(&self, members: &Members, link: LinkId) -> Option<ReplicaId> {
        self.named(members, self.links.get(&link)?)
    }

    /// The link to a coordinator.
    pub(super) fn link_of(&self, members: &Members, id: ReplicaId) -> Option<LinkId> {
        let view = self.concerned(members).find(|view| ReplicaId::from(view.id) == id)?;
        // Two coordinators may have one name. A message for the one must not reach the other.
        let has_name = self.named(members, &view.name) == Some(id);
        let mut links = self.links.iter().rev().filter(|_| has_name);
        links.find(|(_, name)| **name == view.name).map(|(link, _)| *link)
    }

    pub(super) fn is_linked(&self, name: &NodeName) -> bool {
        self.links.values().any(|linked| linked == name)
    }

    /// The coordinators to which there is no link.
    pub(super) fn missing(&self, members: &Members) -> Vec<CoordinatorView> {
        let is_missing = |view: &&CoordinatorView| {
            ReplicaId::from(view.id) != self.own && !self.is_linked(&view.name)
        };
        self.concerned(members).filter(is_missing).cloned().collect()
    }

    fn named(&self, members: &Members, name: &NodeName) -> Option<ReplicaId> {
        // A coordinator that joins in the place of another one may get its name.
        let view = self.concerned(members).filter(|view| view.name == *name).last()?;
        Some(ReplicaId::from(view.id))
    }

    /// The coordinators of the newest list, and former ones that still have a vote in the log.
    fn concerned(&self, members: &Members) -> impl Iterator<Item = &CoordinatorView> {
        let concerns = |known: &&KnownCoordinator| {
            known.is_listed || members.contain(ReplicaId::from(known.view.id))
        };
        self.known.values().filter(concerns).map(|known| &known.view)
    }
}
