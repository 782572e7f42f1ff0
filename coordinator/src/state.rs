//! The replicated state machine: entries of the log in, the history of the cluster out.
//!
//! Input: entries, one after the other, each with its index, or a snapshot of what they led to.
//! Output: the run, its workers, the current generation, the outcome, the coordinators, the tokens,
//! and what each entry brings to the history. [`State::apply`] reads nothing but the log, so equal
//! applied indices mean equal states. It does not know which workers are connected, which
//! coordinator proposed an entry, or what time it is: an entry carries its own time. Of lists that
//! grow with the run it keeps the newest events only. The shell keeps the whole history.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

mod access;
mod awaited;
mod checkpoints;
mod coordinators;
mod entry;
mod fingerprint;
mod format;
pub(crate) mod format_1;
mod generation;
mod invariants;
mod lines;
mod probes;
mod requests;
mod runs;
mod snapshot;
mod workers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use everstep_transport::identity::{Refusal, Tokens};
use everstep_transport::protocol::format::LogFormat;
use everstep_transport::protocol::outcome::{Event, EventKind, Outcome};
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{
    CoordinatorId, Generation, HistoryEvent, NodeName, Record, RunId, RunSpec, Step, Term, WorkerId,
};
use rkyv::{Archive, Deserialize, Serialize};

use self::access::Revocations;
pub use self::awaited::{AwaitedOwner, AwaitedOwners};
pub use self::checkpoints::Checkpoints;
use self::coordinators::Coordinators;
pub use self::coordinators::FOUNDER;
pub use self::entry::{ArchivedCommandEntry, Change, Command, CommandEntry, CoordinatorInfo, Loss};
use self::fingerprint::RunFingerprint;
pub use self::format::{EntryError, LOG_FORMATS};
pub use self::lines::{Gap, LineHistory, Undone};
use self::probes::Probes;
use self::requests::RequestOutcomes;
pub(crate) use self::requests::command_digest;
pub use self::runs::PastRun;
pub use self::snapshot::SnapshotError;
pub use self::workers::{Worker, WorkerPhase};

/// How many events the state keeps: the newest.
const EVENTS: usize = 1_000;

/// What became of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryOutcome {
    /// The entry holds.
    Accepted,
    /// The worker is registered under this id.
    Registered(WorkerId),
    /// The coordinator has this id.
    Coordinator(CoordinatorId),
    /// The run that was submitted has this id.
    Run(RunId),
    /// The token does not admit the node, for this reason.
    NotAdmitted(Refusal),
    /// The entry changed nothing, for this reason.
    Refused(Rejection),
}

/// Everything that the log says.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct State {
    applied: u64,
    /// The newest format of the log that all coordinators read.
    log_format: LogFormat,
    ephemeral: bool,
    coordinators: Coordinators,
    /// The coordinators that were removed or replaced. Their word may be needed until the log goes
    /// on without them, and a majority knows that.
    leaving: Coordinators,
    /// The newest of the coordinators that were shut out.
    shut_out: Coordinators,
    /// The index of the newest entry that changed the coordinators or their addresses.
    revision: u64,
    tokens: Tokens,
    revocations: Revocations,
    /// The outcomes of operators' requests.
    outcomes: RequestOutcomes,
    past_runs: VecDeque<PastRun>,
    run_id: RunId,
    run: Option<RunSpec>,
    run_fingerprint: Option<RunFingerprint>,
    probes: Probes,
    workers: BTreeMap<WorkerId, Worker>,
    /// The workers that are gone, in the order in which they went.
    gone: VecDeque<WorkerId>,
    /// The newest registration of each node, unless that worker is gone.
    nodes: BTreeMap<NodeName, WorkerId>,
    /// What people call the workers of each node.
    numbers: BTreeMap<NodeName, u32>,
    /// The newest number that was given.
    numbered: u32,
    /// The newest generation there was, of whatever run.
    generation: Generation,
    record: Option<Record>,
    /// Pairs of members that cannot reach each other, and that an event has told of.
    unreachable: BTreeSet<(WorkerId, WorkerId)>,
    /// Since when the generations start no step, milliseconds of Unix time.
    waiting_since: Option<u64>,
    /// Members with a loss that an event has already told of.
    reported_dead: BTreeSet<WorkerId>,
    /// The owners that a change of generation waits for.
    awaited: AwaitedOwners,
    /// The step to which an operator wants the run to go back.
    goes_back: Option<Step>,
    checkpoints: Checkpoints,
    lines: LineHistory,
    outcome: Outcome,
    /// The newest events, at most [`EVENTS`].
    events: Vec<Event>,
    /// How many events there were in all.
    noted: u64,
    /// What the newest entry brought to the history.
    #[rkyv(with = rkyv::with::Skip)]
    new_events: Vec<HistoryEvent>,
    /// A planted bug, if there is one.
    #[cfg(feature = "planted")]
    #[rkyv(with = rkyv::with::Skip)]
    pub(crate) plant: Option<crate::plant::CorePlant>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            applied: 0,
            log_format: *LOG_FORMATS.start(),
            ephemeral: true,
            coordinators: Coordinators::default(),
            leaving: Coordinators::default(),
            shut_out: Coordinators::default(),
            revision: 0,
            tokens: Tokens::default(),
            revocations: Revocations::default(),
            outcomes: RequestOutcomes::default(),
            past_runs: VecDeque::new(),
            run_id: 0,
            run: None,
            run_fingerprint: None,
            probes: Probes::default(),
            workers: BTreeMap::new(),
            gone: VecDeque::new(),
            nodes: BTreeMap::new(),
            numbers: BTreeMap::new(),
            numbered: 0,
            generation: Generation(0),
            record: None,
            unreachable: BTreeSet::new(),
            waiting_since: None,
            reported_dead: BTreeSet::new(),
            awaited: AwaitedOwners::default(),
            goes_back: None,
            checkpoints: Checkpoints::default(),
            lines: LineHistory::default(),
            outcome: Outcome::Running,
            events: Vec::new(),
            noted: 0,
            new_events: Vec::new(),
            #[cfg(feature = "planted")]
            plant: None,
        }
    }
}

impl State {
    /// Applies the entry at `index`, of this term of the log.
    ///
    /// # Panics
    /// If `index` is not above every earlier index: the log is broken, and so would be every id.
    pub fn apply(&mut self, index: u64, term: Term, entry: &CommandEntry) -> EntryOutcome {
        assert!(index > self.applied, "entry {index} applied after entry {}", self.applied);
        let before = self.milestones();
        self.applied = index;
        self.new_events.clear();
        let unix_ms = entry.unix_ms;
        let applied = match &entry.command {
            Command::Lead { coordinator } => {
                self.note(unix_ms, EventKind::Leading { term, coordinator: *coordinator });
                Ok(EntryOutcome::Accepted)
            }
            Command::Request { id, command, steps } => self.once(unix_ms, *id, command, *steps),
            Command::Found { ephemeral, founder, tokens } => {
                self.found(*ephemeral, founder, tokens)
            }
            Command::Coordinator { id, coordinator } => self.settle_in(*id, coordinator),
            Command::ShutOut { coordinator } => self.shut_out(*coordinator),
            Command::Recover { survivor } => self.recover(unix_ms, *survivor),
            Command::SpendToken { token, node } => Ok(self.spend(unix_ms, token, node)),
            Command::LoseLines { lineage, gap } => self.lose_lines(unix_ms, *lineage, *gap),
            command => self.must_run().and_then(|()| self.train(unix_ms, term, command)),
        };
        let outcome = applied.unwrap_or_else(EntryOutcome::Refused);
        self.check_applied(&before, &entry.command, &outcome);
        outcome
    }

    /// Applies a command that counts only while a run goes on, or may begin.
    fn train(
        &mut self,
        unix_ms: u64,
        term: Term,
        command: &Command,
    ) -> Result<EntryOutcome, Rejection> {
        match command {
            Command::Register { run, name, registration } => {
                self.must_be(*run)?;
                self.register(unix_ms, name, registration)
            }
            Command::Lose { worker, reason } => self.lose(unix_ms, *worker, reason),
            Command::Drain { worker } => self.drain(unix_ms, *worker),
            Command::Generation(change) => self.follow(unix_ms, term, change),
            Command::Died(loss) => self.report_death(unix_ms, loss),
            Command::AwaitOwners { generation, owners } => {
                self.await_owners(unix_ms, *generation, owners)
            }
            Command::ListCheckpoint { run, checkpoint, deleted } => {
                self.must_be(*run)?;
                self.list_checkpoint(unix_ms, checkpoint, deleted)
            }
            Command::DamageCheckpoint { run, id, reason } => {
                self.must_be(*run)?;
                self.damage_checkpoint(unix_ms, *id, reason)
            }
            Command::Note { run, kind } => {
                self.must_be(*run)?;
                self.note(unix_ms, kind.clone());
                Ok(EntryOutcome::Accepted)
            }
            Command::End { run, outcome, figures, steps } => {
                self.must_be(*run)?;
                self.end(unix_ms, outcome.clone(), figures.clone(), *steps);
                Ok(EntryOutcome::Accepted)
            }
            _ => Err(Rejection::NotOfRun),
        }
    }

    /// This state, with a planted bug or none.
    #[cfg(feature = "planted")]
    pub(crate) fn with_plant(self, plant: Option<crate::plant::CorePlant>) -> Self {
        Self { plant, ..self }
    }

    /// The index of the newest applied entry. 0 before the first.
    pub fn index(&self) -> u64 {
        self.applied
    }

    /// What the newest entry brought to the history, in order.
    pub fn new_events(&self) -> &[HistoryEvent] {
        &self.new_events
    }

    /// The run, once an operator has submitted one.
    pub fn run(&self) -> Option<&RunSpec> {
        self.run.as_ref()
    }

    /// Whether there is a run that has not ended.
    pub fn is_training(&self) -> bool {
        self.run.is_some() && self.outcome == Outcome::Running
    }

    /// The current generation's record, once there is one.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// The members of the current generation, by rank.
    pub(crate) fn members(&self) -> impl Iterator<Item = WorkerId> {
        self.record.iter().flat_map(|record| &record.members).map(|member| member.worker)
    }

    /// The number of the newest generation there was, of this run or an earlier one. 0 if there was
    /// none.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether the worker is a member of the current generation.
    pub fn is_member(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|known| known.phase.is_member())
    }

    /// Whether the worker is part of the run, or may become so.
    pub fn is_present(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(|known| known.phase.is_present())
    }

    /// Since when the generations start no step, milliseconds of Unix time. `None` if they do.
    pub fn waiting_since(&self) -> Option<u64> {
        self.waiting_since
    }

    /// The owners that a change of generation waits for, if it does.
    pub fn awaited(&self) -> &AwaitedOwners {
        &self.awaited
    }

    /// Whether an event has told of the loss of this member, though every generation still lists
    /// it.
    pub fn is_reported_dead(&self, worker: WorkerId) -> bool {
        self.reported_dead.contains(&worker)
    }

    /// The registered workers and the newest of those that are gone, by id.
    pub fn workers(&self) -> &BTreeMap<WorkerId, Worker> {
        &self.workers
    }

    /// The registered workers that are there, by id.
    pub fn present(&self) -> impl Iterator<Item = (WorkerId, &Worker)> {
        self.workers
            .iter()
            .filter(|(_, known)| known.phase.is_present())
            .map(|(&id, known)| (id, known))
    }

    /// The newest worker of a node, if it is there.
    pub fn on_node(&self, name: &NodeName) -> Option<WorkerId> {
        self.nodes.get(name).copied()
    }

    /// How many parameter shards every worker of the run sees, once one has registered.
    pub fn shards(&self) -> Option<u32> {
        self.run_fingerprint.as_ref().map(RunFingerprint::shards)
    }

    /// Why the run's bits are not those of any other such run, if they are not: the probe digests
    /// of its workers differ.
    pub fn divergence(&self) -> Option<String> {
        self.probes.divergence()
    }

    /// How the run stands.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// The newest thousand events.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    fn note(&mut self, unix_ms: u64, kind: EventKind) {
        self.noted += 1;
        let event = Event { number: self.noted, unix_ms, kind };
        self.new_events.push(HistoryEvent::Event(event.clone()));
        self.events.push(event);
        if self.events.len() > EVENTS {
            self.events.remove(0);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
