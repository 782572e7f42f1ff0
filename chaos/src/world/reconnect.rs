//! How a node reaches a coordinator, the first time and again. Workers and operators have a link to
//! each of them. Of two coordinators the one with the lower number calls.

use std::time::Duration;

use super::link::End;
use super::network::RECONNECT_BACKOFF;
use super::types::Event;
use super::{NodeId, World};
use crate::check::Violation;

impl World {
    /// A node will try to reach a coordinator after `wait`, or soon.
    pub(super) fn reconnect(&mut self, node: NodeId, place: usize, wait: Option<Duration>) {
        let wait = wait.unwrap_or(RECONNECT_BACKOFF);
        self.network.wait_to_dial(node, place, wait);
        self.queue.put(self.now + wait, Event::Connect(node, place));
    }

    /// Closes an operator's link on which an answer without a number may still come. The operator
    /// must not take a late answer for the answer to another question.
    pub(super) fn give_up(&mut self, operator: NodeId, link: u64) {
        let Some(peer) = self.network.links.peer(operator, link) else { return };
        if let NodeId::Coordinator(place) = peer
            && self.network.links.number(operator, peer) == Some(link)
        {
            self.close_link(operator, peer, End::lost("no answer in time"));
            self.reconnect(operator, place, None);
        }
    }

    /// Dials a coordinator. If it does not answer, the node tries again later.
    pub(super) fn connect(&mut self, node: NodeId, place: usize) -> Result<(), Violation> {
        let coordinator = NodeId::Coordinator(place);
        if !self.is_alive(node) || self.network.links.is_open(node, coordinator) {
            return Ok(());
        }
        let answers = self.is_alive(coordinator)
            && !self.faults.is_paused(coordinator)
            && self.reach(node, coordinator);
        if !answers {
            let wait = self.network.longer_wait(node, place);
            self.reconnect(node, place, Some(wait));
            return Ok(());
        }
        self.network.answered(node, place);
        match node {
            NodeId::Worker(worker) => self.connect_worker(worker, place),
            NodeId::Coordinator(other) => self.connect_coordinators(other, place),
            NodeId::Client(client) => self.connect_client(client, place),
            _ => self.connect_operator(place),
        }
    }
}
