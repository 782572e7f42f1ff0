//! The actor's links to peers: which exist, which coordinators have none, and which nodes get none.
//!
//! In: links that come and go, and messages to send. Out: bytes on links, and for the process a
//! list of coordinators to dial. This module does not know what a message means.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::{CoordinatorView, NodeName};
use everstep_transport::quic::{Encoded, Endpoint, Link, LinkError};
use tokio::sync::watch;

use crate::core::LinkId;

/// The links of the actor, and what the process has logged of them.
pub(super) struct PeerLinks {
    endpoint: Arc<Endpoint>,
    links: BTreeMap<LinkId, Link>,
    /// Coordinators that had a link and have none. The process has logged that already.
    silent: BTreeSet<NodeName>,
    /// The removed coordinators that get no link.
    shut_out: Vec<NodeName>,
    /// The newest entry that revoked a node, as far as the endpoint knows.
    revoked: u64,
    /// Coordinators that the process has to dial.
    missing: watch::Sender<Vec<CoordinatorView>>,
}

impl PeerLinks {
    pub(super) fn new(
        endpoint: Arc<Endpoint>,
        missing: watch::Sender<Vec<CoordinatorView>>,
    ) -> Self {
        let (links, silent, shut_out) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        Self { endpoint, links, silent, shut_out, revoked: 0, missing }
    }

    pub(super) fn insert(&mut self, id: LinkId, link: Link) {
        self.links.insert(id, link);
    }

    /// Drops a link that is gone. Returns its peer.
    pub(super) fn remove(&mut self, id: LinkId) -> Option<Identity> {
        self.links.remove(&id).map(|link| link.identity().clone())
    }

    /// The roles of all peers that have a link.
    pub(super) fn roles(&self) -> Vec<Role> {
        self.links.values().map(|link| link.identity().role).collect()
    }

    pub(super) fn is_coordinator(&self, id: LinkId) -> bool {
        self.links.get(&id).is_some_and(|link| link.identity().role == Role::Coordinator)
    }

    /// The link to one of the other coordinators: each has its turn.
    pub(super) fn coordinator_of_turn(&self, turn: usize) -> Option<LinkId> {
        let others = self.links.keys().copied().filter(|id| self.is_coordinator(*id));
        let others: Vec<LinkId> = others.collect();
        others.get(turn % others.len().max(1)).copied()
    }

    /// Whether another coordinator has just lost its last link, and the process has not logged
    /// that.
    pub(super) fn has_fallen_silent(&mut self, identity: &Identity) -> bool {
        let is_linked = self.links.values().any(|link| link.identity() == identity);
        let is_one = identity.role == Role::Coordinator && !self.shut_out.contains(&identity.name);
        is_one && !is_linked && self.silent.insert(identity.name.clone())
    }

    /// Whether a coordinator that had fallen silent is back.
    pub(super) fn is_back(&mut self, identity: &Identity) -> bool {
        identity.role == Role::Coordinator && self.silent.remove(&identity.name)
    }

    /// Sets the coordinators that the process has to dial.
    pub(super) fn dial(&self, to_dial: Vec<CoordinatorView>) {
        self.missing.send_if_modified(|missing| {
            let changed = *missing != to_dial;
            *missing = to_dial;
            changed
        });
    }

    /// Says whether no work depends on noticing a death at once.
    pub(super) fn rest(&self, rests: bool) {
        self.endpoint.rest(rests);
    }

    /// Whether the endpoint has older words on the nodes that get no link.
    pub(super) fn is_allow_list_old(&self, shut_out: &[NodeName], revoked: u64) -> bool {
        (shut_out, revoked) != (&self.shut_out, self.revoked)
    }

    /// Closes the links of these nodes, and admits none of them any more: removed coordinators, by
    /// name, and nodes revoked up to an entry.
    pub(super) fn admit_only_others(
        &mut self,
        shut_out: Vec<NodeName>,
        revoked: u64,
        nodes: BTreeSet<Identity>,
    ) {
        (self.shut_out, self.revoked) = (shut_out.clone(), revoked);
        let is_out = move |node: &Identity| {
            node.role == Role::Coordinator && shut_out.contains(&node.name) || nodes.contains(node)
        };
        self.endpoint.admit_only(move |node| !is_out(node));
    }

    /// Cuts off a peer that does not read. If the link is gone, its reader reports that.
    pub(super) fn send(&self, to: LinkId, message: &Encoded) {
        let Some(link) = self.links.get(&to) else { return };
        match link.send_encoded(message) {
            Ok(()) => {}
            Err(error @ (LinkError::Full | LinkError::TooLarge { .. })) => {
                tracing::warn!(peer = %link.identity(), %error, "a message was not sent");
                link.close_unsent(error);
            }
            Err(error) => tracing::debug!(peer = %link.identity(), %error, "the link is gone"),
        }
    }

    pub(super) fn close(&self, to: LinkId, reason: &str) {
        if let Some(link) = self.links.get(&to) {
            link.close(reason);
        }
    }
}
