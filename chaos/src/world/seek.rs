//! How a worker or the operator reaches the coordinator, the first time and again.

use std::time::Duration;

use super::types::Happening;
use super::{Node, World};
use crate::check::Violation;

/// At first it tries again this soon; each time it waits twice as long, up to [`RARELY`].
const SOON: Duration = Duration::from_millis(50);
const RARELY: Duration = Duration::from_secs(1);

impl World {
    /// A node without a coordinator will try to reach one after `wait`, or soon.
    pub(super) fn seek_coordinator(&mut self, node: Node, wait: Option<Duration>) {
        let wait = wait.unwrap_or(SOON);
        self.seeking.insert(node, wait);
        self.queue.put(self.now + wait, Happening::Connect(node));
    }

    /// Reaches the coordinator, or tries again.
    pub(super) fn connect(&mut self, node: Node) -> Result<(), Violation> {
        if !self.is_alive(node) || self.links.is_open(node, Node::Coordinator) {
            return Ok(());
        }
        let answers = self.is_alive(Node::Coordinator)
            && !self.paused.contains_key(&Node::Coordinator)
            && self.reach(node, Node::Coordinator);
        if !answers {
            let wait = self.seeking.get(&node).map_or(SOON, |wait| (*wait * 2).min(RARELY));
            self.seek_coordinator(node, Some(wait));
            return Ok(());
        }
        self.seeking.remove(&node);
        match node {
            Node::Worker(place) => self.connect_worker(place),
            _ => self.connect_operator(),
        }
    }
}
