//! The links to other coordinators, and under which ids and where those are.
//!
//! A link proves a name; which id that is, the state says, and before there is one, whoever has
//! told this coordinator of the others. The newest list counts: its own log may be behind, and so
//! may what it has heard. Who is on it no more is spoken to as long as the log needs its word. Who
//! has several links is spoken to on the newest.

use std::collections::BTreeMap;

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::{CoordinatorId, CoordinatorView, NodeName};

use crate::core::LinkId;
use crate::raft::{Members, ReplicaId};

#[derive(Debug)]
pub(super) struct Peers {
    own: ReplicaId,
    links: BTreeMap<LinkId, NodeName>,
    /// The newest list's revision.
    revision: u64,
    /// Who they are, and who were on lists before: by id, which is never given twice.
    known: BTreeMap<CoordinatorId, Known>,
}

#[derive(Debug)]
struct Known {
    view: CoordinatorView,
    /// On the newest list.
    is_listed: bool,
}

pub(super) fn is_coordinator(identity: &Identity) -> bool {
    identity.role == Role::Coordinator
}

impl Peers {
    pub(super) fn new(own: ReplicaId, (revision, views): (u64, Vec<CoordinatorView>)) -> Self {
        let mut peers = Self { own, links: BTreeMap::new(), revision: 0, known: BTreeMap::new() };
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

    /// A link is gone; returns whose it was. There may be a newer one, but what was said on this
    /// one may not have been heard.
    pub(super) fn disconnected(&mut self, members: &Members, link: LinkId) -> Option<ReplicaId> {
        let name = self.links.remove(&link)?;
        self.named(members, &name)
    }

    pub(super) fn is_coordinator(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// Takes a list of who they are, from the log or from another of them. Of who is on an old one
    /// alone only the name counts, and only while the log is for that one.
    pub(super) fn learn(&mut self, revision: u64, views: Vec<CoordinatorView>, members: &Members) {
        let is_newest = revision >= self.revision;
        if is_newest {
            self.revision = revision;
            self.known.retain(|id, _| members.contain(ReplicaId(*id)));
            self.known.values_mut().for_each(|known| known.is_listed = false);
        }
        for view in views {
            let known = Known { is_listed: is_newest, view };
            if is_newest {
                self.known.insert(known.view.id, known);
            } else {
                self.known.entry(known.view.id).or_insert(known);
            }
        }
    }

    /// Who is at the other end of a link, by name.
    pub(super) fn name_of(&self, link: LinkId) -> Option<&NodeName> {
        self.links.get(&link)
    }

    /// All links to coordinators.
    pub(super) fn links(&self) -> Vec<LinkId> {
        self.links.keys().copied().collect()
    }

    /// Who is at the other end of a link.
    pub(super) fn id_of(&self, members: &Members, link: LinkId) -> Option<ReplicaId> {
        self.named(members, self.links.get(&link)?)
    }

    /// The link to a coordinator.
    pub(super) fn link_of(&self, members: &Members, id: ReplicaId) -> Option<LinkId> {
        let view = self.concerned(members).find(|view| view.id == id.0)?;
        // What is said to one of two with a name must not be heard by the other.
        let has_name = self.named(members, &view.name) == Some(id);
        let mut links = self.links.iter().rev().filter(|_| has_name);
        links.find(|(_, name)| **name == view.name).map(|(link, _)| *link)
    }

    pub(super) fn is_linked(&self, name: &NodeName) -> bool {
        self.links.values().any(|linked| linked == name)
    }

    /// To whom there is no link.
    pub(super) fn missing(&self, members: &Members) -> Vec<CoordinatorView> {
        let is_missing =
            |view: &&CoordinatorView| view.id != self.own.0 && !self.is_linked(&view.name);
        self.concerned(members).filter(is_missing).cloned().collect()
    }

    fn named(&self, members: &Members, name: &NodeName) -> Option<ReplicaId> {
        // A name may be given again to who joins in the place of another.
        let view = self.concerned(members).filter(|view| view.name == *name).last()?;
        Some(ReplicaId(view.id))
    }

    /// Who is one of them, or was and has a vote until the log does without it.
    fn concerned(&self, members: &Members) -> impl Iterator<Item = &CoordinatorView> {
        let concerns =
            |known: &&Known| known.is_listed || members.contain(ReplicaId(known.view.id));
        self.known.values().filter(concerns).map(|known| &known.view)
    }
}
