//! The replicated state machine: entries of the log in, the history of the cluster out.
//!
//! Input: entries, one after the other, each with its index. Output: the run, its workers, the
//! current generation, the events and the outcome. [`State::apply`] reads nothing but the log, so
//! equal applied indices mean equal states. It does not know which workers are connected, who
//! proposed an entry, or what time it is: an entry carries its own.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod entry;
mod fingerprint;
mod generation;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use everstep_transport::protocol::message::Registration;
use everstep_transport::protocol::outcome::{Event, EventKind, Outcome};
use everstep_transport::protocol::{Generation, NodeName, Record, RunSpec, Step, Term, WorkerId};

pub use self::entry::{ArchivedEntry, Change, Command, Entry, Loss};
use self::fingerprint::Foundation;

/// What became of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    Accepted,
    /// The worker is registered under this id.
    Registered(WorkerId),
    /// It changed nothing, and why.
    Refused(String),
}

/// A registered worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Worker {
    /// Its node.
    pub name: NodeName,
    /// What it stated.
    pub registration: Registration,
    /// Whether it is still there.
    pub standing: Standing,
}

/// Where a worker stands. One that is lost before it is a member is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is no member yet.
    Registered,
    /// It is a member.
    Member,
    /// It is a member that shall leave, as soon as nothing depends on it.
    Leaving,
    /// It was a member when it was lost.
    Lost,
    /// It has left.
    Left,
}

impl Standing {
    /// It is part of the current generation.
    pub fn is_member(self) -> bool {
        matches!(self, Self::Member | Self::Leaving)
    }

    /// It is part of the run, or may become so.
    pub fn is_present(self) -> bool {
        self.is_member() || self == Self::Registered
    }
}

/// So many workers that are gone are still told of: the newest. In a long run they are many, and
/// nothing depends on them: ids are never given twice, and who says to have one that is unknown is
/// answered as if it were lost.
const REMEMBERED: usize = 64;

/// Everything that the log says.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    applied: u64,
    run: Option<RunSpec>,
    foundation: Option<Foundation>,
    bitwise: bool,
    workers: BTreeMap<WorkerId, Worker>,
    /// Those of them that are gone, in the order in which they went.
    gone: VecDeque<WorkerId>,
    /// The newest registration of each node, unless that worker is gone.
    nodes: BTreeMap<NodeName, WorkerId>,
    record: Option<Record>,
    /// Pairs of members that were told of, since they cannot reach each other.
    unreachable: BTreeSet<(WorkerId, WorkerId)>,
    /// Since when the generations are such that start no step, milliseconds of Unix time.
    waiting_since: Option<u64>,
    outcome: Outcome,
    events: Vec<Event>,
    /// A planted bug, if there is one.
    #[cfg(feature = "planted")]
    pub(crate) plant: Option<crate::plant::Plant>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            applied: 0,
            run: None,
            foundation: None,
            bitwise: true,
            workers: BTreeMap::new(),
            gone: VecDeque::new(),
            nodes: BTreeMap::new(),
            record: None,
            unreachable: BTreeSet::new(),
            waiting_since: None,
            outcome: Outcome::Running,
            events: Vec::new(),
            #[cfg(feature = "planted")]
            plant: None,
        }
    }
}

impl State {
    /// Applies the entry at `index`, of this term of the log.
    ///
    /// # Panics
    /// If `index` is not above every index before: the log is broken, and so would be every id.
    pub fn apply(&mut self, index: u64, term: Term, entry: &Entry) -> Verdict {
        assert!(index > self.applied, "entry {index} applied after entry {}", self.applied);
        self.applied = index;
        let unix_ms = entry.unix_ms;
        let applied = match &entry.command {
            Command::Lead => {
                self.note(unix_ms, EventKind::Leading { term });
                Ok(Verdict::Accepted)
            }
            _ if self.outcome != Outcome::Running => Err("the run is over".into()),
            Command::Submit(run) => self.submit(unix_ms, run),
            Command::Register { name, registration } => self.register(unix_ms, name, registration),
            Command::Lose { worker, reason } => self.lose(unix_ms, *worker, reason),
            Command::Drain { worker } => self.drain(unix_ms, *worker),
            Command::Generation(change) => self.follow(unix_ms, term, change),
            Command::End(outcome) => {
                self.end(unix_ms, outcome.clone());
                Ok(Verdict::Accepted)
            }
        };
        applied.unwrap_or_else(Verdict::Refused)
    }

    /// The run, once one was submitted.
    pub fn run(&self) -> Option<&RunSpec> {
        self.run.as_ref()
    }

    /// The current generation's record, once there is one.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// The current generation's number; 0 before the first.
    pub fn generation(&self) -> Generation {
        self.record.as_ref().map_or(Generation(0), |record| record.number)
    }

    /// Whether the worker is a member of the current generation.
    pub fn is_member(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|known| known.standing.is_member())
    }

    /// Since when the generations start no step, milliseconds of Unix time; none if they do.
    pub fn waiting_since(&self) -> Option<u64> {
        self.waiting_since
    }

    /// The registered workers, by id, and the newest of those that are gone.
    pub fn workers(&self) -> &BTreeMap<WorkerId, Worker> {
        &self.workers
    }

    /// The registered workers that are there, by id.
    pub fn present(&self) -> impl Iterator<Item = (WorkerId, &Worker)> {
        self.workers
            .iter()
            .filter(|(_, known)| known.standing.is_present())
            .map(|(&id, known)| (id, known))
    }

    /// The newest worker of a node, if it is there.
    pub fn on_node(&self, name: &NodeName) -> Option<WorkerId> {
        self.nodes.get(name).copied()
    }

    /// How many parameter shards every worker of the run sees, once one has registered.
    pub fn shards(&self) -> Option<u32> {
        self.foundation.as_ref().map(Foundation::shards)
    }

    /// Whether all probe digests are equal, so that the run's bits are those of any other such run.
    pub fn bitwise(&self) -> bool {
        self.bitwise
    }

    /// How the run stands.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// What happened; the event at index `i` has number `i + 1`.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    fn submit(&mut self, unix_ms: u64, run: &RunSpec) -> Result<Verdict, String> {
        match &self.run {
            None => {
                self.note(unix_ms, EventKind::Submitted { run: run.name.clone() });
                self.run = Some(run.clone());
            }
            Some(current) if current == run => {}
            Some(current) => {
                let name = &current.name;
                return Err(format!("this cluster already trains {name}, another run"));
            }
        }
        Ok(Verdict::Accepted)
    }

    fn register(
        &mut self,
        unix_ms: u64,
        name: &NodeName,
        registration: &Registration,
    ) -> Result<Verdict, String> {
        if let Some(worker) = self.on_node(name)
            && self.workers[&worker].registration.incarnation == registration.incarnation
        {
            return Ok(Verdict::Registered(worker));
        }
        if let Err(reason) = self.admit(name, registration) {
            let refused = EventKind::Refused { name: name.clone(), reason: reason.clone() };
            self.note(unix_ms, refused);
            return Err(reason);
        }
        let worker = WorkerId(self.applied);
        self.note(unix_ms, EventKind::Registered { worker, name: name.clone() });
        self.nodes.insert(name.clone(), worker);
        let (name, registration) = (name.clone(), registration.clone());
        self.workers.insert(worker, Worker { name, registration, standing: Standing::Registered });
        Ok(Verdict::Registered(worker))
    }

    /// The first worker lays the foundation; everyone else must stand on the same.
    fn admit(&mut self, name: &NodeName, registration: &Registration) -> Result<(), String> {
        if self.run.is_none() {
            return Err("there is no run to register for".into());
        }
        match &self.foundation {
            None => self.foundation = Some(Foundation::lay(name, registration)?),
            Some(foundation) => {
                foundation.check(name, registration)?;
                self.bitwise &= foundation.same_probe(registration);
            }
        }
        Ok(())
    }

    fn lose(&mut self, unix_ms: u64, worker: WorkerId, why: &str) -> Result<Verdict, String> {
        self.known(worker)?;
        if self.is_member(worker) {
            return Err(format!(
                "worker {worker} is a member; only a generation can do without it"
            ));
        }
        self.vacate(worker);
        self.workers.remove(&worker);
        let (reason, detect_ms, pause_ms) = (why.to_string(), 0, 0);
        self.note(unix_ms, EventKind::Lost { worker, reason, detect_ms, pause_ms });
        Ok(Verdict::Accepted)
    }

    /// A member leaves with a generation, any other worker at once.
    fn drain(&mut self, unix_ms: u64, worker: WorkerId) -> Result<Verdict, String> {
        let member = self.is_member(worker);
        if self.known(worker)?.standing == Standing::Leaving {
            return Ok(Verdict::Accepted);
        }
        self.note(unix_ms, EventKind::Draining { worker });
        if member {
            self.stand(worker, Standing::Leaving);
        } else {
            self.depart(worker, Standing::Left);
            self.note(unix_ms, EventKind::Left { worker });
        }
        Ok(Verdict::Accepted)
    }

    /// A worker is gone, and told of until enough others are.
    fn depart(&mut self, worker: WorkerId, standing: Standing) {
        self.stand(worker, standing);
        self.vacate(worker);
        self.gone.push_back(worker);
        if self.gone.len() > REMEMBERED {
            self.forget_one();
        }
    }

    /// Forgets the oldest of those that were lost; for who has left, and did not hear of it, would
    /// come back.
    fn forget_one(&mut self) {
        let is_lost = |id: &WorkerId| self.workers[id].standing == Standing::Lost;
        let oldest = self.gone.iter().position(is_lost).unwrap_or(0);
        if let Some(worker) = self.gone.remove(oldest) {
            self.workers.remove(&worker);
        }
    }

    /// A worker is gone from its node, where there may be a newer one by now.
    fn vacate(&mut self, worker: WorkerId) {
        if let Some(known) = self.workers.get(&worker)
            && self.nodes.get(&known.name) == Some(&worker)
        {
            self.nodes.remove(&known.name);
        }
    }

    fn stand(&mut self, worker: WorkerId, standing: Standing) {
        if let Some(known) = self.workers.get_mut(&worker) {
            known.standing = standing;
        }
    }

    /// A worker that is there.
    fn known(&self, worker: WorkerId) -> Result<&Worker, String> {
        match self.workers.get(&worker) {
            Some(known) if known.standing.is_present() => Ok(known),
            Some(_) => Err(format!("worker {worker} is gone")),
            None => Err(format!("worker {worker} is not registered")),
        }
    }

    fn end(&mut self, unix_ms: u64, outcome: Outcome) {
        match &outcome {
            Outcome::Running => return,
            Outcome::Complete(_) => {
                let step = Step(self.run.as_ref().map_or(0, |run| run.steps));
                self.note(unix_ms, EventKind::Complete { step });
            }
            Outcome::Failed { reason, .. } => {
                self.note(unix_ms, EventKind::Failed { reason: reason.clone() });
            }
        }
        self.outcome = outcome;
    }

    fn note(&mut self, unix_ms: u64, kind: EventKind) {
        let number = self.events.len() as u64 + 1;
        self.events.push(Event { number, unix_ms, kind });
    }
}

#[cfg(test)]
mod tests;
