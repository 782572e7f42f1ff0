//! Probes that the firewall of a worker refuses, while the packets of its links pass. The
//! coordinators judge the refusals by the checks of production ([`RefusalChecks`]).
//!
//! A coordinator probes in rounds, as an endpoint does. A kernel limits how often it refuses, so
//! the firewall refuses one probe in two, and none behind a road that is shut. A worker that stands
//! still acknowledges nothing meanwhile. Where no firewall refuses probes, [`link`](super::link)
//! alone says when a dead process is noticed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::quic::RefusalChecks;
use everstep_transport::time::Time;

use super::link::End;
use super::types::Event;
use super::{NodeId, World};
use crate::check::Violation;

/// How often a coordinator probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(25);
/// The round trip time of a link.
const ROUND_TRIP_TIME: Duration = Duration::from_millis(1);
/// A living worker may be taken for dead until its coordinator has heard it for this long from a
/// refusal on, without a round that came late. A packet that arrives earlier may come from the
/// buffer of a killed process.
const REFUSALS_BELIEVED_FOR: Duration = Duration::from_millis(250);

/// All probes of a cluster's coordinators.
#[derive(Debug, Default)]
pub struct Probes {
    /// The probes on each link with a worker that a firewall refuses, by the link's number.
    links: BTreeMap<u64, Probing>,
    /// Each coordinator's process and machine of which the process knows that its refusals were
    /// wrong: the coordinator's place, how many processes it had, and the machine.
    shown_wrong: BTreeSet<(usize, u64, NodeId)>,
}

/// A coordinator's probes on one link.
#[derive(Debug)]
struct Probing {
    checks: RefusalChecks,
    /// Since when every round has heard the worker in time, from a refusal on.
    heard_since: Option<Time>,
    /// When the newest probe was sent, and when its round is to end.
    sent: Time,
    due: Time,
    /// How many rounds heard the worker.
    received: u64,
    /// Whether another round will come.
    goes_on: bool,
}

impl Probing {
    fn new(now: Time, is_distrustful: bool) -> Self {
        let mut checks = RefusalChecks::default();
        if is_distrustful {
            checks.distrust();
        }
        Self { checks, heard_since: None, sent: now, due: now, received: 0, goes_on: false }
    }

    /// A round ends, and has heard the worker or not. Returns whether it shows that refusals are
    /// wrong.
    fn end_round(&mut self, now: Time, is_heard: bool) -> bool {
        self.received += u64::from(is_heard);
        self.heard_since.take_if(|_| !is_heard || now > self.due);
        let is_long = |since: Time| now.since(since) >= REFUSALS_BELIEVED_FOR;
        self.checks.is_open() && self.heard_since.is_some_and(is_long)
    }

    /// The next probe is sent, and perhaps refused.
    fn begin_round(&mut self, now: Time, is_refused: bool) {
        if is_refused {
            self.heard_since.get_or_insert(now);
            self.checks.refused(self.received);
        }
        (self.sent, self.due) = (now, now + self.checks.pause(PROBE_INTERVAL));
    }
}

impl World {
    /// A firewall refuses the coordinators' probes of a machine.
    pub(super) fn refuse_probes(&mut self, machine: NodeId, until: Time) {
        self.faults.refuse_probes(machine, until);
        let peer = self.workers.process(machine);
        for place in 0..self.coordinators.len() {
            self.begin_to_probe(NodeId::Coordinator(place), peer);
        }
    }

    /// The coordinator of a link between these nodes probes the worker, if a firewall refuses that.
    pub(super) fn begin_to_probe(&mut self, one: NodeId, other: NodeId) {
        let (owner, peer) = match (one, other) {
            (NodeId::Coordinator(_), NodeId::Worker(_)) => (one, other),
            (NodeId::Worker(_), NodeId::Coordinator(_)) => (other, one),
            _ => return,
        };
        let refuses = self.faults.refuses_probes(self.workers.machine(peer), self.now);
        let open = self.network.links.is_open(owner, peer);
        let Some(link) = self.network.links.number(owner, peer).filter(|_| refuses && open) else {
            return;
        };
        let (now, is_distrustful) = (self.now, self.has_shown_wrong(owner, peer));
        let probing = self.network.probes.links.entry(link);
        let probing = probing.or_insert_with(|| Probing::new(now, is_distrustful));
        if !std::mem::replace(&mut probing.goes_on, true) {
            self.queue.put(now, Event::Probe { owner, peer, link });
        }
    }

    /// A round of probes ends, and the next one begins.
    pub(super) fn on_probe(
        &mut self,
        owner: NodeId,
        peer: NodeId,
        link: u64,
    ) -> Result<(), Violation> {
        let open = self.network.links.is_open(owner, peer);
        if !open || self.network.links.number(owner, peer) != Some(link) {
            self.network.probes.links.remove(&link);
            return Ok(());
        }
        let is_heard = self.is_heard(owner, peer);
        let is_refused = self.random.below(2) == 0 && self.reach(owner, peer);
        let now = self.now;
        let refuses = self.faults.refuses_probes(self.workers.machine(peer), now);
        let forgets = self.scenario.prepare.forgets_wrong_refusals;
        let Some(probing) = self.network.probes.links.get_mut(&link) else { return Ok(()) };
        let elapsed = now.since(probing.sent);
        let is_wrong = probing.end_round(now, is_heard && !elapsed.is_zero());
        if probing.checks.judge(elapsed, probing.received, ROUND_TRIP_TIME) {
            self.network.probes.links.remove(&link);
            return self.lose_refused(owner, peer);
        }
        if forgets && !probing.checks.is_open() {
            probing.checks = RefusalChecks::default();
        }
        probing.goes_on = refuses;
        if refuses {
            probing.begin_round(now, is_refused);
            self.queue.put(probing.due, Event::Probe { owner, peer, link });
        }
        if is_wrong && let Some(seen) = self.witness_of_probes(owner, peer) {
            self.network.probes.shown_wrong.insert(seen);
        }
        Ok(())
    }

    /// A coordinator takes a worker for dead, since its probes are refused and nothing arrives on
    /// the link. That explains the loss of a living worker only until refusals of its machine have
    /// been wrong.
    fn lose_refused(&mut self, owner: NodeId, peer: NodeId) -> Result<(), Violation> {
        let is_new = !self.has_shown_wrong(owner, peer);
        if let (NodeId::Coordinator(place), NodeId::Worker(worker), true) = (owner, peer, is_new) {
            self.checkers.liveness.unlinked(self.now, place, worker);
        }
        self.lose(owner, peer, End::refused("no process listens at its port"))
    }

    /// Whether this coordinator's process has seen that refusals of the worker's machine are wrong.
    fn has_shown_wrong(&self, owner: NodeId, peer: NodeId) -> bool {
        let seen = self.witness_of_probes(owner, peer);
        seen.is_some_and(|seen| self.network.probes.shown_wrong.contains(&seen))
    }

    fn witness_of_probes(&self, owner: NodeId, peer: NodeId) -> Option<(usize, u64, NodeId)> {
        let NodeId::Coordinator(place) = owner else { return None };
        Some((place, self.coordinators[place].lives(), self.workers.machine(peer)))
    }
}
