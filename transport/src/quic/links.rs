//! Who is connected: a node's links, by the peer's name.

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;

use super::Link;
use crate::protocol::NodeName;

/// A table of links, one for each name; shared by the tasks that serve them.
#[derive(Default)]
pub struct Links {
    by_name: DashMap<NodeName, Link>,
}

impl Links {
    /// Enters a link. An older one to the same name is closed: its node has restarted, or connects
    /// twice.
    pub fn insert(&self, link: Link) {
        if let Some(older) = self.by_name.insert(link.identity().name.clone(), link) {
            older.close("replaced by a newer link of the same node");
        }
    }

    /// The link to a name.
    pub fn to(&self, name: &NodeName) -> Option<Link> {
        self.by_name.get(name).map(|link| link.clone())
    }

    /// Takes a link out, unless a newer one has replaced it. Says whether it was there.
    pub fn remove(&self, link: &Link) -> bool {
        match self.by_name.entry(link.identity().name.clone()) {
            Entry::Occupied(entry) if entry.get().is(link) => {
                entry.remove();
                true
            }
            _ => false,
        }
    }

    /// Every link, in the order of names.
    pub fn all(&self) -> Vec<Link> {
        let mut links: Vec<_> = self.by_name.iter().map(|link| link.clone()).collect();
        links.sort_by(|a, b| a.identity().cmp(b.identity()));
        links
    }
}
