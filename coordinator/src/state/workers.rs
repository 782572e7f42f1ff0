//! The workers of the run: how they come in, and how they go.

use std::collections::{BTreeMap, VecDeque};

use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::message::Registration;
use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::reason::{LossReason, NamedWorker};
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{ModelPlace, NodeName, PreemptionNotice, WorkerId, WorkerLabel};
use rkyv::{Archive, Deserialize, Serialize};

use super::{EntryOutcome, State};

/// A worker since its registration.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Worker {
    /// The number that people call it by. A worker that comes back under its name keeps it.
    pub number: u32,
    /// The name of its node.
    pub name: NodeName,
    /// What it stated at registration.
    pub registration: Registration,
    /// Whether it is still there.
    pub phase: WorkerPhase,
}

/// How far a worker has come. A worker that is lost before it is a member is forgotten.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerPhase {
    /// The worker is no member yet.
    Registered,
    /// The worker is a member.
    Member,
    /// The worker is a member that is to leave, as soon as nothing depends on it.
    Leaving,
    /// The worker was a member when it was lost.
    Lost,
    /// The worker has left.
    Left,
}

impl WorkerPhase {
    /// Whether the worker is part of the current generation.
    pub fn is_member(self) -> bool {
        matches!(self, Self::Member | Self::Leaving)
    }

    /// Whether the worker is part of the run, or may become so.
    pub fn is_present(self) -> bool {
        self.is_member() || self == Self::Registered
    }
}

/// How many of the newest departed workers the state still tells of. In a long run there are many,
/// and nothing depends on them. Ids are never reused, and a worker that claims an unknown id is
/// answered as if it were lost.
pub(super) const REMEMBERED: usize = 64;

impl Worker {
    /// The name by which people know this worker, which has the id `worker`.
    pub fn label(&self, worker: WorkerId) -> WorkerLabel {
        WorkerLabel { number: self.number, worker, host: self.registration.host.clone() }
    }
}

/// The workers of the run, and their nodes.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub(super) struct Workers {
    /// The registered workers, and the newest of those that are gone.
    pub(super) by_id: BTreeMap<WorkerId, Worker>,
    /// The workers that are gone, in the order in which they went.
    pub(super) gone: VecDeque<WorkerId>,
    /// The newest registration of each node, unless that worker is gone.
    pub(super) nodes: BTreeMap<NodeName, WorkerId>,
    /// What people call the workers of each node.
    pub(super) numbers: BTreeMap<NodeName, u32>,
    /// The newest number that was given.
    pub(super) numbered: u32,
}

impl Workers {
    /// A run begins without workers. Nodes that had one keep their numbers.
    pub(super) fn begin_run(&mut self) {
        self.by_id.clear();
        self.gone.clear();
        self.numbers.retain(|name, _| self.nodes.contains_key(name));
        self.nodes.clear();
    }

    fn phase(&self, worker: WorkerId) -> Option<WorkerPhase> {
        self.by_id.get(&worker).map(|known| known.phase)
    }

    pub(super) fn is_member(&self, worker: WorkerId) -> bool {
        self.phase(worker).is_some_and(WorkerPhase::is_member)
    }

    pub(super) fn is_present(&self, worker: WorkerId) -> bool {
        self.phase(worker).is_some_and(WorkerPhase::is_present)
    }

    fn on_node(&self, name: &NodeName) -> Option<WorkerId> {
        self.nodes.get(name).copied()
    }

    /// The worker, if it is there.
    fn known(&self, worker: WorkerId) -> Result<&Worker, Rejection> {
        match self.by_id.get(&worker) {
            Some(known) if known.phase.is_present() => Ok(known),
            Some(gone) => Err(Rejection::Gone(gone.label(worker))),
            None => Err(Rejection::NoWorker(worker)),
        }
    }

    fn insert(&mut self, id: WorkerId, worker: Worker) {
        self.nodes.insert(worker.name.clone(), id);
        self.by_id.insert(id, worker);
    }

    /// The number of this node's workers for people: 1, 2, 3 in the order of the first
    /// registrations. A node keeps its number, also into the next run, until the state remembers
    /// none of its workers.
    fn number(&mut self, name: &NodeName) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        self.numbered += 1;
        self.numbers.insert(name.clone(), self.numbered);
        self.numbered
    }

    /// Drops all that the state knows of a worker.
    fn forget(&mut self, worker: WorkerId) {
        if let Some(known) = self.by_id.remove(&worker)
            && !self.nodes.contains_key(&known.name)
        {
            self.numbers.remove(&known.name);
        }
    }

    /// A worker is gone. The state still tells of it until enough others are gone.
    pub(super) fn depart(&mut self, worker: WorkerId, phase: WorkerPhase) {
        self.set_phase(worker, phase);
        self.vacate(worker);
        self.gone.push_back(worker);
        if self.gone.len() > REMEMBERED {
            self.forget_one();
        }
    }

    /// Forgets the oldest worker that was lost. A worker that has left is kept for longer: if it
    /// did not hear that it has left, it asks, and would register anew if the state had forgotten
    /// it.
    fn forget_one(&mut self) {
        let is_lost = |id: &WorkerId| self.by_id[id].phase == WorkerPhase::Lost;
        let oldest = self.gone.iter().position(is_lost).unwrap_or(0);
        if let Some(worker) = self.gone.remove(oldest) {
            self.forget(worker);
        }
    }

    /// A worker is gone from its node, where there may be a newer one by now.
    fn vacate(&mut self, worker: WorkerId) {
        if let Some(known) = self.by_id.get(&worker)
            && self.nodes.get(&known.name) == Some(&worker)
        {
            self.nodes.remove(&known.name);
        }
    }

    pub(super) fn set_phase(&mut self, worker: WorkerId, phase: WorkerPhase) {
        if let Some(known) = self.by_id.get_mut(&worker) {
            known.phase = phase;
        }
    }
}

impl State {
    /// The registered workers and the newest of those that are gone, by id.
    pub fn workers(&self) -> &BTreeMap<WorkerId, Worker> {
        &self.workers.by_id
    }

    /// The registered workers that are there, by id.
    pub fn present(&self) -> impl Iterator<Item = (WorkerId, &Worker)> {
        let present = self.workers().iter().filter(|(_, known)| known.phase.is_present());
        present.map(|(&id, known)| (id, known))
    }

    /// Whether the worker is a member of the current generation.
    pub fn is_member(&self, worker: WorkerId) -> bool {
        self.workers.is_member(worker)
    }

    /// Whether the worker is part of the run, or may become so.
    pub fn is_present(&self, worker: WorkerId) -> bool {
        self.workers.is_present(worker)
    }

    /// Whether the worker has left in good order, as long as the state remembers it.
    pub fn has_left(&self, worker: WorkerId) -> bool {
        self.workers.phase(worker) == Some(WorkerPhase::Left)
    }

    /// The newest worker of a node, if it is there.
    pub fn on_node(&self, name: &NodeName) -> Option<WorkerId> {
        self.workers.on_node(name)
    }

    /// Whether a worker of this node has registered for the run and has not left. Of lost workers
    /// the state remembers the newest.
    pub fn has_worker_of(&self, node: &Identity) -> bool {
        let mut workers = self.workers().values();
        let is_of = |known: &Worker| known.name == node.name && known.phase != WorkerPhase::Left;
        node.role == Role::Worker && workers.any(is_of)
    }

    /// The name by which people know a worker, as long as the state remembers it.
    pub fn label(&self, worker: WorkerId) -> Option<WorkerLabel> {
        Some(self.workers().get(&worker)?.label(worker))
    }

    /// Where the worker would write the model. `None` if it has no directory.
    pub(crate) fn place_of(&self, worker: WorkerId) -> Option<&ModelPlace> {
        self.workers().get(&worker)?.registration.model.as_ref()
    }

    /// The name of a worker for a sentence.
    pub fn called(&self, worker: WorkerId) -> NamedWorker {
        NamedWorker::of(worker, self.label(worker))
    }

    pub(super) fn register(
        &mut self,
        unix_ms: u64,
        name: &NodeName,
        registration: &Registration,
    ) -> Result<EntryOutcome, Rejection> {
        if let Some(worker) = self.on_node(name)
            && self.workers()[&worker].registration.incarnation == registration.incarnation
        {
            return Ok(EntryOutcome::Registered(worker));
        }
        // Members stay present until other ones follow, so the run has not begun, and nothing was
        // computed from what workers stated that are gone.
        let first = self.present().next().is_none();
        if let Err(reason) = self.runs.admit(first, name, registration) {
            let refused = EventKind::Refused { name: name.clone(), reason: reason.clone() };
            self.events.note(unix_ms, refused);
            return Err(reason);
        }
        let worker = self.next_id();
        let number = self.workers.number(name);
        let (name, registration) = (name.clone(), registration.clone());
        let phase = WorkerPhase::Registered;
        let registered = Worker { number, name: name.clone(), registration, phase };
        self.runs.probes.note(registered.label(worker), &registered.registration);
        self.events.note(unix_ms, EventKind::Registered { worker, name, number });
        self.workers.insert(worker, registered);
        Ok(EntryOutcome::Registered(worker))
    }

    /// The index of the registration's entry. No other entry has it, so no process is ever taken
    /// for a worker that is gone.
    fn next_id(&self) -> WorkerId {
        #[cfg(feature = "planted")]
        if self.plant == Some(crate::plant::CorePlant::ReuseId) {
            return WorkerId(self.workers().len() as u64 + 2);
        }
        WorkerId(self.applied)
    }

    /// Loses a worker that is no member. Members are lost by the entry of the next generation.
    pub(super) fn lose(
        &mut self,
        unix_ms: u64,
        worker: WorkerId,
        reason: &LossReason,
    ) -> Result<EntryOutcome, Rejection> {
        let known = self.workers.known(worker)?;
        if known.phase.is_member() {
            return Err(Rejection::Member(known.label(worker)));
        }
        self.workers.vacate(worker);
        self.workers.forget(worker);
        let (reason, detect_ms, pause_ms) = (reason.clone(), 0, 0);
        self.events.note(unix_ms, EventKind::Lost { worker, reason, detect_ms, pause_ms });
        Ok(EntryOutcome::Accepted)
    }

    /// A member leaves with a generation, any other worker at once. The event of a cloud's notice
    /// is noted only if the worker was not leaving yet.
    pub(super) fn drain(
        &mut self,
        unix_ms: u64,
        worker: WorkerId,
        notice: Option<PreemptionNotice>,
    ) -> Result<EntryOutcome, Rejection> {
        let phase = self.workers.known(worker)?.phase;
        if phase == WorkerPhase::Leaving {
            return Ok(EntryOutcome::Accepted);
        }
        if let Some(notice) = notice {
            self.events.note(unix_ms, EventKind::Preempted { worker, notice });
        }
        self.events.note(unix_ms, EventKind::Draining { worker });
        if phase.is_member() {
            self.workers.set_phase(worker, WorkerPhase::Leaving);
        } else {
            self.workers.depart(worker, WorkerPhase::Left);
            self.events.note(unix_ms, EventKind::Left { worker });
        }
        Ok(EntryOutcome::Accepted)
    }
}
