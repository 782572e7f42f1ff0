//! The replicated state machine: entries of the log in, the history of the cluster out.
//!
//! Input: entries, one after the other, each with its index. Output: the run, its workers, the
//! current generation, the events and the outcome. [`State::apply`] reads nothing but the log, so
//! equal applied indices mean equal states. It does not know which workers are connected, who
//! proposed an entry, or what time it is: an entry carries its own.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod fingerprint;

use std::collections::BTreeMap;

use everstep_transport::protocol::message::Registration;
use everstep_transport::protocol::outcome::{Event, EventKind, Outcome};
use everstep_transport::protocol::{Generation, NodeName, Record, RunSpec, Step, WorkerId};

use self::fingerprint::Foundation;

/// What is agreed on, with the wall clock of its proposer.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The proposer's wall clock, milliseconds of Unix time.
    pub unix_ms: u64,
    /// What changes.
    pub command: Command,
}

/// What an entry changes.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Train this.
    Submit(RunSpec),
    /// A worker asks to take part.
    Register {
        /// Its node.
        name: NodeName,
        /// What it states.
        registration: Registration,
    },
    /// A worker is gone.
    Lose {
        /// Its id.
        worker: WorkerId,
        /// How that was noticed.
        reason: String,
    },
    /// A generation follows the current one.
    Generation(Record),
    /// The run is over.
    End(Outcome),
}

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
    /// It was a member when it was lost. Others are forgotten.
    pub lost: bool,
}

/// Everything that the log says.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    applied: u64,
    run: Option<RunSpec>,
    foundation: Option<Foundation>,
    bitwise: bool,
    workers: BTreeMap<WorkerId, Worker>,
    record: Option<Record>,
    outcome: Outcome,
    events: Vec<Event>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            applied: 0,
            run: None,
            foundation: None,
            bitwise: true,
            workers: BTreeMap::new(),
            record: None,
            outcome: Outcome::Running,
            events: Vec::new(),
        }
    }
}

impl State {
    /// Applies the entry at `index`.
    ///
    /// # Panics
    /// If `index` is not above every index before: the log is broken, and so would be every id.
    pub fn apply(&mut self, index: u64, entry: &Entry) -> Verdict {
        assert!(index > self.applied, "entry {index} applied after entry {}", self.applied);
        self.applied = index;
        let unix_ms = entry.unix_ms;
        let applied = match &entry.command {
            _ if self.outcome != Outcome::Running => Err("the run is over".into()),
            Command::Submit(run) => self.submit(unix_ms, run),
            Command::Register { name, registration } => self.register(unix_ms, name, registration),
            Command::Lose { worker, reason } => self.lose(unix_ms, *worker, reason),
            Command::Generation(record) => self.follow(unix_ms, record),
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

    /// The registered workers, by id.
    pub fn workers(&self) -> &BTreeMap<WorkerId, Worker> {
        &self.workers
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
        let twin = self.workers.iter().find(|(_, known)| {
            known.name == *name && known.registration.incarnation == registration.incarnation
        });
        if let Some((&worker, _)) = twin {
            return Ok(Verdict::Registered(worker));
        }
        if let Err(reason) = self.admit(name, registration) {
            let refused = EventKind::Refused { name: name.clone(), reason: reason.clone() };
            self.note(unix_ms, refused);
            return Err(reason);
        }
        let worker = WorkerId(self.applied);
        self.note(unix_ms, EventKind::Registered { worker, name: name.clone() });
        let (name, registration) = (name.clone(), registration.clone());
        self.workers.insert(worker, Worker { name, registration, lost: false });
        Ok(Verdict::Registered(worker))
    }

    /// The first worker lays the foundation; everyone else must stand on the same.
    fn admit(&mut self, name: &NodeName, registration: &Registration) -> Result<(), String> {
        if self.run.is_none() {
            return Err("there is no run to register for".into());
        }
        if self.record.is_some() {
            return Err("the run has started; workers cannot join it yet".into());
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

    /// A worker that is no member is forgotten. Until shards survive their owners, the loss of a
    /// member ends the run.
    fn lose(&mut self, unix_ms: u64, worker: WorkerId, why: &str) -> Result<Verdict, String> {
        let known = self.workers.get_mut(&worker);
        let known = known.ok_or_else(|| format!("worker {worker} is not registered"))?;
        known.lost = true;
        let name = known.name.clone();
        self.note(unix_ms, EventKind::Lost { worker, reason: why.to_string() });
        if self.record.as_ref().is_some_and(|record| record.rank(worker).is_some()) {
            let reason = format!("{name} (worker {worker}) was lost: {why}");
            self.end(unix_ms, Outcome::Failed { name: Some(name), reason });
        } else {
            self.workers.remove(&worker);
        }
        Ok(Verdict::Accepted)
    }

    fn follow(&mut self, unix_ms: u64, record: &Record) -> Result<Verdict, String> {
        let (number, current) = (record.number, self.generation());
        if record.predecessor != current || number != current.next() {
            let predecessor = record.predecessor;
            return Err(format!("generation {number} follows {predecessor}, not {current}"));
        }
        let (Some(run), Some(shards)) = (&self.run, self.shards()) else {
            return Err(format!("generation {number} has no run"));
        };
        record.validate(run.batch.data_shards, shards).map_err(|error| error.to_string())?;
        let workers: Vec<_> = record.members.iter().map(|member| member.worker).collect();
        if let Some(gone) = workers.iter().find(|worker| !self.workers.contains_key(worker)) {
            return Err(format!("generation {number} lists worker {gone}, which is gone"));
        }
        let (generation, cause, at_step) = (number, record.cause, record.resume);
        self.note(unix_ms, EventKind::Generation { generation, cause, workers, at_step });
        self.record = Some(record.clone());
        Ok(Verdict::Accepted)
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
