//! How a node reaches a coordinator, the first time and again. Workers and operators have a link to
//! each of them. Of two coordinators the one with the lower number calls.

use std::time::Duration;

use super::link::End;
use super::types::Happening;
use super::{Node, World};
use crate::check::Violation;

/// The wait before the second try. Each wait is twice as long as the one before, up to [`RARELY`].
const SOON: Duration = Duration::from_millis(50);
const RARELY: Duration = Duration::from_secs(1);

impl World {
    /// A node will try to reach a coordinator after `wait`, or soon.
    pub(super) fn seek(&mut self, node: Node, place: usize, wait: Option<Duration>) {
        let wait = wait.unwrap_or(SOON);
        self.seeking.insert((node, place), wait);
        self.queue.put(self.now + wait, Happening::Connect(node, place));
    }

    /// Closes an operator's link on which an answer without a number may still come. The operator
    /// must not take a late answer for the answer to another question.
    pub(super) fn give_up(&mut self, operator: Node, link: u64) {
        let Some(peer) = self.links.peer(operator, link) else { return };
        if let Node::Coordinator(place) = peer
            && self.links.number(operator, peer) == Some(link)
        {
            self.close_link(operator, peer, End::lost("no answer in time"));
            self.seek(operator, place, None);
        }
    }

    /// Dials a coordinator. If it does not answer, the node tries again later.
    pub(super) fn connect(&mut self, node: Node, place: usize) -> Result<(), Violation> {
        let coordinator = Node::Coordinator(place);
        if !self.is_alive(node) || self.links.is_open(node, coordinator) {
            return Ok(());
        }
        let answers = self.is_alive(coordinator)
            && !self.paused.contains_key(&coordinator)
            && self.reach(node, coordinator);
        if !answers {
            let wait =
                self.seeking.get(&(node, place)).map_or(SOON, |wait| (*wait * 2).min(RARELY));
            self.seek(node, place, Some(wait));
            return Ok(());
        }
        self.seeking.remove(&(node, place));
        match node {
            Node::Worker(worker) => self.connect_worker(worker, place),
            Node::Coordinator(other) => self.connect_coordinators(other, place),
            Node::Client(client) => self.connect_client(client, place),
            _ => self.connect_operator(place),
        }
    }
}
