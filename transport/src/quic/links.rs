//! Who is connected: a node's links, by the peer's identity.

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;

use super::Link;
use crate::identity::Identity;

/// A table of links, one for each peer; shared by the tasks that serve them.
#[derive(Default)]
pub struct Links {
    by_peer: DashMap<Identity, Link>,
}

impl Links {
    /// Enters a link. An older one to the same peer is closed: that node has restarted, or connects
    /// twice.
    pub fn insert(&self, link: Link) {
        if let Some(older) = self.by_peer.insert(link.identity().clone(), link) {
            older.close("replaced by a newer link of the same node");
        }
    }

    /// The link to a peer.
    pub fn to(&self, peer: &Identity) -> Option<Link> {
        self.by_peer.get(peer).map(|link| link.clone())
    }

    /// Takes a link out, unless a newer one has replaced it. Says whether it was there.
    pub fn remove(&self, link: &Link) -> bool {
        match self.by_peer.entry(link.identity().clone()) {
            Entry::Occupied(entry) if entry.get().is(link) => {
                entry.remove();
                true
            }
            _ => false,
        }
    }

    /// Every link, in the order of identities.
    pub fn all(&self) -> Vec<Link> {
        let mut links: Vec<_> = self.by_peer.iter().map(|link| link.clone()).collect();
        links.sort_by(|a, b| a.identity().cmp(b.identity()));
        links
    }
}
