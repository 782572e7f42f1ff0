//! The workers of the run: how they come in, and how they go.

use everstep_transport::protocol::message::Registration;
use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{ModelPlace, NodeName, WorkerId, WorkerLabel};
use rkyv::{Archive, Deserialize, Serialize};

use super::fingerprint::RunFingerprint;
use super::{EntryOutcome, State};

/// A registered worker.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Worker {
    /// The number that people call it by: see `State::number`.
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

impl State {
    /// The name by which people know a worker, as long as the state remembers it.
    pub fn label(&self, worker: WorkerId) -> Option<WorkerLabel> {
        Some(self.workers.get(&worker)?.label(worker))
    }

    /// Where the worker would write the model. `None` if it has no directory.
    pub(crate) fn place_of(&self, worker: WorkerId) -> Option<&ModelPlace> {
        self.workers.get(&worker)?.registration.model.as_ref()
    }

    /// The name of a worker for a sentence.
    pub fn called(&self, worker: WorkerId) -> String {
        let unknown = || format!("the worker with id {worker}");
        self.label(worker).map_or_else(unknown, |label| label.to_string())
    }

    pub(super) fn register(
        &mut self,
        unix_ms: u64,
        name: &NodeName,
        registration: &Registration,
    ) -> Result<EntryOutcome, Rejection> {
        if let Some(worker) = self.on_node(name)
            && self.workers[&worker].registration.incarnation == registration.incarnation
        {
            return Ok(EntryOutcome::Registered(worker));
        }
        if let Err(reason) = self.admit(name, registration) {
            let refused = EventKind::Refused { name: name.clone(), reason: reason.to_string() };
            self.note(unix_ms, refused);
            return Err(reason);
        }
        let worker = self.next_id();
        let number = self.number(name);
        let host = registration.host.clone();
        self.probes.note(WorkerLabel { number, worker, host }, registration);
        self.note(unix_ms, EventKind::Registered { worker, name: name.clone(), number });
        self.nodes.insert(name.clone(), worker);
        let (name, registration) = (name.clone(), registration.clone());
        let phase = WorkerPhase::Registered;
        self.workers.insert(worker, Worker { number, name, registration, phase });
        Ok(EntryOutcome::Registered(worker))
    }

    /// An index of the log occurs once: so no process is ever taken for a worker that is gone.
    fn next_id(&self) -> WorkerId {
        #[cfg(feature = "planted")]
        if self.plant == Some(crate::plant::CorePlant::ReuseId) {
            return WorkerId(self.workers.len() as u64 + 2);
        }
        WorkerId(self.applied)
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
        if let Some(known) = self.workers.remove(&worker)
            && !self.nodes.contains_key(&known.name)
        {
            self.numbers.remove(&known.name);
        }
    }

    /// The first worker fixes the fingerprint. Every other worker must have the same.
    fn admit(&mut self, name: &NodeName, registration: &Registration) -> Result<(), Rejection> {
        if self.run.is_none() {
            return Err(Rejection::NoRunToJoin);
        }
        if registration.model.as_ref().is_some_and(|place| !place.is_valid()) {
            return Err(Rejection::ModelPath);
        }
        if registration.host.as_ref().is_some_and(|host| !host.is_valid()) {
            return Err(Rejection::Host);
        }
        match &self.run_fingerprint {
            None => self.run_fingerprint = Some(RunFingerprint::first(name, registration)?),
            Some(run_fingerprint) => run_fingerprint.check(name, registration)?,
        }
        Ok(())
    }

    pub(super) fn lose(
        &mut self,
        unix_ms: u64,
        worker: WorkerId,
        why: &str,
    ) -> Result<EntryOutcome, Rejection> {
        let known = self.known(worker)?;
        if self.is_member(worker) {
            return Err(Rejection::Member(known.label(worker)));
        }
        self.vacate(worker);
        self.forget(worker);
        let (reason, detect_ms, pause_ms) = (why.to_string(), 0, 0);
        self.note(unix_ms, EventKind::Lost { worker, reason, detect_ms, pause_ms });
        Ok(EntryOutcome::Accepted)
    }

    /// A member leaves with a generation, any other worker at once.
    pub(super) fn drain(
        &mut self,
        unix_ms: u64,
        worker: WorkerId,
    ) -> Result<EntryOutcome, Rejection> {
        let member = self.is_member(worker);
        if self.known(worker)?.phase == WorkerPhase::Leaving {
            return Ok(EntryOutcome::Accepted);
        }
        self.note(unix_ms, EventKind::Draining { worker });
        if member {
            self.set_phase(worker, WorkerPhase::Leaving);
        } else {
            self.depart(worker, WorkerPhase::Left);
            self.note(unix_ms, EventKind::Left { worker });
        }
        Ok(EntryOutcome::Accepted)
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

    /// Forgets the oldest worker that was lost. A worker that has left, and did not hear of it,
    /// would come back.
    fn forget_one(&mut self) {
        let is_lost = |id: &WorkerId| self.workers[id].phase == WorkerPhase::Lost;
        let oldest = self.gone.iter().position(is_lost).unwrap_or(0);
        if let Some(worker) = self.gone.remove(oldest) {
            self.forget(worker);
        }
    }

    /// A worker is gone from its node, where there may be a newer one by now.
    pub(super) fn vacate(&mut self, worker: WorkerId) {
        if let Some(known) = self.workers.get(&worker)
            && self.nodes.get(&known.name) == Some(&worker)
        {
            self.nodes.remove(&known.name);
        }
    }

    pub(super) fn set_phase(&mut self, worker: WorkerId, phase: WorkerPhase) {
        if let Some(known) = self.workers.get_mut(&worker) {
            known.phase = phase;
        }
    }

    /// The worker, if it is there.
    fn known(&self, worker: WorkerId) -> Result<&Worker, Rejection> {
        match self.workers.get(&worker) {
            Some(known) if known.phase.is_present() => Ok(known),
            Some(gone) => Err(Rejection::Gone(gone.label(worker))),
            None => Err(Rejection::NoWorker(worker)),
        }
    }
}
