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
mod checkpoint_progress;
mod checkpoints;
mod coordinators;
mod directives;
mod entry;
mod events;
mod fingerprint;
mod format;
mod generation;
mod invariants;
mod lines;
pub(crate) mod probes;
mod requests;
mod runs;
mod snapshot;
mod workers;

use everstep_transport::identity::Refusal;
use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{CoordinatorId, RunId, Term, WorkerId};
use rkyv::{Archive, Deserialize, Serialize};

use self::access::Access;
pub use self::awaited::{OwnerWait, OwnerWaits};
pub use self::checkpoint_progress::{AskedCheckpoint, CheckpointStanding};
pub(crate) use self::checkpoints::is_same;
pub use self::checkpoints::{Checkpoints, NoWholeCheckpoint};
use self::coordinators::Coordinators;
pub use self::coordinators::FOUNDER;
pub use self::entry::{
    ArchivedCommandEntry, Change, Command, CommandEntry, CoordinatorInfo, Loss, RunSoFar,
};
use self::events::EventLog;
pub use self::format::{EntryError, LOG_FORMATS};
use self::generation::CurrentGeneration;
pub use self::lines::{Gap, LineHistory, Undone};
pub(crate) use self::probes::MAX_NAMED;
pub use self::probes::{Divergence, ProbeDigests, ProbeKind};
use self::requests::RequestOutcomes;
pub(crate) use self::requests::command_digest;
pub use self::runs::PastRun;
use self::runs::Runs;
pub use self::snapshot::SnapshotError;
use self::workers::Workers;
pub use self::workers::{Worker, WorkerPhase};

/// What became of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryOutcome {
    /// The state has made the change of the entry.
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
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct State {
    /// The index of the newest applied entry.
    applied: u64,
    coordinators: Coordinators,
    access: Access,
    /// The outcomes of operators' requests.
    outcomes: RequestOutcomes,
    runs: Runs,
    checkpoints: Checkpoints,
    lines: LineHistory,
    workers: Workers,
    generation: CurrentGeneration,
    events: EventLog,
    /// A planted bug, if there is one.
    #[cfg(feature = "planted")]
    #[rkyv(with = rkyv::with::Skip)]
    pub(crate) plant: Option<crate::plant::CorePlant>,
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
        self.events.begin_entry();
        let unix_ms = entry.unix_ms;
        let applied = match &entry.command {
            Command::Lead { coordinator } => {
                self.events.note(unix_ms, EventKind::Leading { term, coordinator: *coordinator });
                Ok(EntryOutcome::Accepted)
            }
            Command::Request { id, command, so_far } => self.once(unix_ms, *id, command, so_far),
            Command::Found { ephemeral, founder, tokens } => {
                self.found(*ephemeral, founder, tokens)
            }
            Command::Coordinator { id, coordinator } => {
                self.coordinators.settle_in(index, *id, coordinator)
            }
            Command::ShutOut { coordinator } => self.coordinators.shut_out(*coordinator),
            Command::Recover { survivor } => self.recover(unix_ms, *survivor),
            Command::SpendToken { token, node } => Ok(self.access.spend(unix_ms, token, node)),
            Command::LoseLines { lineage, gap } => self.lose_lines(unix_ms, *lineage, *gap),
            command => self.runs.must_run().and_then(|()| self.train(unix_ms, term, command)),
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
                self.runs.must_be(*run)?;
                self.register(unix_ms, name, registration)
            }
            Command::Lose { worker, reason } => self.lose(unix_ms, *worker, reason),
            Command::Drain { worker } => self.drain(unix_ms, *worker, None),
            Command::Preempt { worker, notice } => self.drain(unix_ms, *worker, Some(*notice)),
            Command::Generation(change) => self.follow(unix_ms, term, change),
            Command::Died(loss) => self.report_death(unix_ms, loss),
            Command::LeaveAll { generation } => self.leave_all(unix_ms, *generation),
            Command::AwaitOwners { generation, owners, awaited } => {
                self.await_owners(unix_ms, *generation, owners, awaited.as_ref())
            }
            Command::ListCheckpoint { run, checkpoint, deleted, skipped } => {
                self.runs.must_be(*run)?;
                self.list_checkpoint(unix_ms, checkpoint, deleted, *skipped)
            }
            Command::FailCheckpoint { run, id, reason } => {
                self.runs.must_be(*run)?;
                self.fail_checkpoint(unix_ms, *id, reason)
            }
            Command::SkipCheckpoint { run, id, earlier } => {
                self.runs.must_be(*run)?;
                self.skip_checkpoint(unix_ms, *id, *earlier)
            }
            Command::DamageCheckpoint { run, id, reason } => {
                self.runs.must_be(*run)?;
                self.damage_checkpoint(unix_ms, *id, reason)
            }
            Command::Note { run, kind } => {
                self.runs.must_be(*run)?;
                self.events.note(unix_ms, kind.clone());
                Ok(EntryOutcome::Accepted)
            }
            Command::End { run, outcome, figures, steps } => {
                self.runs.must_be(*run)?;
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
}

#[cfg(test)]
pub(crate) mod tests;
