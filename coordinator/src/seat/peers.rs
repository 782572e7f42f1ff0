//! The links to other coordinators, and under which ids and where those are.
//!
//! A link proves a name; which id that is, the state says, and before there is one, whoever has
//! told this coordinator of the others. Who was removed is heard as well: the log may count on it
//! until that is agreed on. Who has several links is spoken to on the newest.

use std::collections::BTreeMap;

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::{CoordinatorView, NodeName};

use crate::core::LinkId;
use crate::raft::ReplicaId;
use crate::state::State;

#[derive(Debug)]
pub(super) struct Peers {
    own: ReplicaId,
    links: BTreeMap<LinkId, NodeName>,
    /// The newest list that others have told, and its revision.
    heard: (u64, Vec<CoordinatorView>),
}

pub(super) fn is_coordinator(identity: &Identity) -> bool {
    identity.role == Role::Coordinator
}

impl Peers {
    pub(super) fn new(own: ReplicaId, heard: (u64, Vec<CoordinatorView>)) -> Self {
        Self { own, links: BTreeMap::new(), heard }
    }

    pub(super) fn own(&self) -> ReplicaId {
        self.own
    }

    pub(super) fn connected(&mut self, link: LinkId, identity: &Identity) {
        if is_coordinator(identity) {
            self.links.insert(link, identity.name.clone());
        }
    }

    /// A link is gone; returns to whom there is none left.
    pub(super) fn disconnected(&mut self, state: &State, link: LinkId) -> Option<ReplicaId> {
        let name = self.links.remove(&link)?;
        if self.links.values().any(|other| *other == name) {
            return None;
        }
        let view = self.known(state).into_iter().find(|view| view.name == name)?;
        Some(ReplicaId(view.id))
    }

    pub(super) fn is_coordinator(&self, link: LinkId) -> bool {
        self.links.contains_key(&link)
    }

    /// Somebody says who they are: an old list counts for nothing.
    pub(super) fn heard_of(&mut self, revision: u64, members: Vec<CoordinatorView>) {
        if revision > self.heard.0 {
            self.heard = (revision, members);
        }
    }

    /// All links to coordinators.
    pub(super) fn links(&self) -> Vec<LinkId> {
        self.links.keys().copied().collect()
    }

    /// Who is at the other end of a link.
    pub(super) fn id_of(&self, state: &State, link: LinkId) -> Option<ReplicaId> {
        let name = self.links.get(&link)?;
        let view = self.known(state).into_iter().find(|view| view.name == *name)?;
        Some(ReplicaId(view.id))
    }

    /// The link to a coordinator.
    pub(super) fn link_of(&self, state: &State, id: ReplicaId) -> Option<LinkId> {
        let view = self.known(state).into_iter().find(|view| view.id == id.0)?;
        let mut links = self.links.iter().rev();
        links.find(|(_, name)| **name == view.name).map(|(link, _)| *link)
    }

    /// To whom there is no link.
    pub(super) fn missing(&self, state: &State) -> Vec<CoordinatorView> {
        let mut all = self.book(state);
        all.retain(|view| {
            let linked = self.links.values().any(|name| *name == view.name);
            view.id != self.own.0 && !linked
        });
        all
    }

    /// Who they are or were, under each name the newest.
    fn known(&self, state: &State) -> Vec<CoordinatorView> {
        let mut known = self.book(state);
        for view in state.coordinators().into_iter().chain(state.removed()) {
            if !known.iter().any(|newer| newer.name == view.name || newer.id == view.id) {
                known.push(view);
            }
        }
        known
    }

    /// Who they are, by the newest list: its own log may be behind, and so may what it has heard.
    fn book(&self, state: &State) -> Vec<CoordinatorView> {
        let (revision, heard) = &self.heard;
        if *revision > state.revision() { heard.clone() } else { state.coordinators() }
    }
}
