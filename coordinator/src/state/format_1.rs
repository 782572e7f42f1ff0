//! Format 1 of the log, as development builds without format numbers wrote it, for the log's file.
//!
//! In: entries and snapshots of format 1. Out: the same of the oldest format that this build
//! writes. Coordinators of format 1 did not state a format. All of them are taken to read that one,
//! since no other coordinators are left: the builds of format 1 speak no protocol of today.

// The types mirror those of that build. Their docs are at today's types.
#![allow(missing_docs)]

mod events;
mod record;
mod run;
mod workers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

pub(crate) use self::events::EventV1;
use self::events::{ChangeV1, EventKindV1, LossV1, PastRunV1, RunFiguresV1, RunOutcomeV1};
pub(crate) use self::record::MetricsLineV1;
use self::record::RecordV1;
use self::run::{OperatorCommandV1, RunSpecV1};
use self::workers::{RegistrationV1, WorkerV1};
use everstep_transport::identity::{AcceptedToken, AcceptedTokens, TokenId};
use everstep_transport::protocol::reason::LossReason;
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::{
    CoordinatorId, Generation, Lineage, NodeName, OperatorCommand, RequestId, RunId, RunSpec, Step,
    WorkerId,
};
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize, rancor};

use super::access::{Access, Revocations};
use super::awaited::{AwaitedOwner, AwaitedOwners};
use super::coordinators::{CoordinatorMap, Coordinators};
use super::directives::Directives;
use super::events::EventLog;
use super::fingerprint::RunFingerprint;
use super::generation::CurrentGeneration;
use super::lines::{Gap, LineHistory, Undone};
use super::probes::ProbeDigests;
use super::requests;
use super::runs::Runs;
use super::snapshot::{self, SnapshotError};
use super::workers::Workers;
use super::{Checkpoints, LOG_FORMATS, RunSoFar};

/// What snapshots of format 1 state in place of the number: a digest of message layouts.
const LAYOUT: u64 = 0x6a0d_789b_10cd_dee0;

/// Why bytes are no entry and no snapshot of format 1.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Format1Error {
    #[error("{0}")]
    Garbled(rancor::Error),
    #[error("{0}")]
    Snapshot(SnapshotError),
    #[error("a snapshot has layout {0:016x}, and not that of format 1")]
    OtherLayout(u64),
}

/// The entry of format 1 in these bytes, as bytes of today.
///
/// # Errors
/// [`Format1Error`], if the bytes are no such entry.
pub(crate) fn entry(bytes: &[u8]) -> Result<Vec<u8>, Format1Error> {
    let read = rkyv::from_bytes::<EntryV1, rancor::Error>(&aligned(bytes));
    let EntryV1 { unix_ms, command } = read.map_err(Format1Error::Garbled)?;
    let entry = super::CommandEntry { unix_ms, command: command.into() };
    Ok(entry.encode(*LOG_FORMATS.start()))
}

/// The snapshot of format 1 in these bytes, as bytes of today.
///
/// # Errors
/// [`Format1Error`], if the bytes are no such snapshot.
pub(crate) fn snapshot(bytes: &[u8]) -> Result<Vec<u8>, Format1Error> {
    let (layout, state) = snapshot::opened(bytes).map_err(Format1Error::Snapshot)?;
    if layout != LAYOUT {
        return Err(Format1Error::OtherLayout(layout));
    }
    let state = rkyv::from_bytes::<StateV1, rancor::Error>(&aligned(state));
    Ok(super::State::from(state.map_err(Format1Error::Garbled)?).encode())
}

/// The bytes at an address from which an archive can be read.
fn aligned(bytes: &[u8]) -> AlignedVec {
    let mut aligned = AlignedVec::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    aligned
}

#[derive(Archive, Serialize, Deserialize)]
struct EntryV1 {
    unix_ms: u64,
    command: CommandV1,
}

#[derive(Archive, Serialize, Deserialize)]
enum CommandV1 {
    Register { run: u64, name: NodeName, registration: RegistrationV1 },
    Lead { coordinator: CoordinatorId },
    Lose { worker: WorkerId, reason: String },
    Drain { worker: WorkerId },
    Generation(ChangeV1),
    LoseLines { lineage: Lineage, gap: Gap },
    Note { run: u64, kind: EventKindV1 },
    End { run: u64, outcome: RunOutcomeV1, figures: RunFiguresV1, steps: Step },
    Request { id: RequestId, command: OperatorCommandV1, steps: Step },
    Found { ephemeral: bool, founder: CoordinatorV1, tokens: Vec<AcceptedToken> },
    Coordinator { id: Option<CoordinatorId>, coordinator: CoordinatorV1 },
    ShutOut { coordinator: CoordinatorId },
    Recover { survivor: CoordinatorId },
    SpendToken { token: TokenId, node: NodeName },
    Died(LossV1),
    AwaitOwners { generation: Generation, owners: Vec<AwaitedOwner> },
}

impl From<CommandV1> for super::Command {
    fn from(command: CommandV1) -> Self {
        match command {
            CommandV1::Register { run, name, registration } => {
                Self::Register { run, name, registration: registration.into() }
            }
            CommandV1::Lead { coordinator } => Self::Lead { coordinator },
            CommandV1::Lose { worker, reason } => {
                Self::Lose { worker, reason: LossReason::Words(reason) }
            }
            CommandV1::Drain { worker } => Self::Drain { worker },
            CommandV1::Generation(it) => Self::Generation(it.into()),
            CommandV1::LoseLines { lineage, gap } => Self::LoseLines { lineage, gap },
            CommandV1::Note { run, kind } => Self::Note { run, kind: kind.into() },
            CommandV1::End { run, outcome, figures, steps } => {
                Self::End { run, outcome: outcome.into(), figures: figures.into(), steps }
            }
            CommandV1::Request { id, command, steps } => {
                let so_far = RunSoFar { steps, figures: None };
                Self::Request { id, command: command.into(), so_far }
            }
            CommandV1::Found { ephemeral, founder, tokens } => {
                Self::Found { ephemeral, founder: founder.into(), tokens }
            }
            CommandV1::Coordinator { id, coordinator } => {
                Self::Coordinator { id, coordinator: coordinator.into() }
            }
            CommandV1::ShutOut { coordinator } => Self::ShutOut { coordinator },
            CommandV1::Recover { survivor } => Self::Recover { survivor },
            CommandV1::SpendToken { token, node } => Self::SpendToken { token, node },
            CommandV1::Died(it) => Self::Died(it.into()),
            CommandV1::AwaitOwners { generation, owners } => {
                Self::AwaitOwners { generation, owners, awaited: None }
            }
        }
    }
}

#[derive(Archive, Serialize, Deserialize)]
struct CoordinatorV1 {
    name: NodeName,
    incarnation: u64,
    address: SocketAddr,
    api: Option<SocketAddr>,
}

impl From<CoordinatorV1> for super::CoordinatorInfo {
    fn from(known: CoordinatorV1) -> Self {
        let CoordinatorV1 { name, incarnation, address, api } = known;
        Self { name, incarnation, address, api, log_format: *LOG_FORMATS.start() }
    }
}

/// The coordinators, by id.
type CoordinatorsV1 = BTreeMap<CoordinatorId, CoordinatorV1>;

fn updated(coordinators: CoordinatorsV1) -> CoordinatorMap {
    coordinators.into_iter().map(|(id, known)| (id, known.into())).collect()
}

#[derive(Archive, Serialize, Deserialize)]
struct OutcomesV1 {
    clients: BTreeMap<u64, OutcomeV1>,
}

#[derive(Archive, Serialize, Deserialize)]
struct OutcomeV1 {
    number: u64,
    command: u64,
    refusal: Option<String>,
    run: Option<RunId>,
    index: u64,
}

impl From<OutcomesV1> for requests::RequestOutcomes {
    fn from(outcomes: OutcomesV1) -> Self {
        let updated = |kept: OutcomeV1| {
            let OutcomeV1 { number, command, refusal, run, index } = kept;
            requests::RequestOutcome {
                number,
                command,
                refusal: refusal.map(Rejection::Words),
                run,
                index,
            }
        };
        let clients = outcomes.clients.into_iter();
        Self { clients: clients.map(|(client, kept)| (client, updated(kept))).collect() }
    }
}

/// A run of format 1 goes back to its beginning only.
#[derive(Archive, Serialize, Deserialize)]
struct LineHistoryV1 {
    lineage: Lineage,
    back_to: Step,
    gaps: Vec<Gap>,
}

impl From<LineHistoryV1> for LineHistory {
    fn from(history: LineHistoryV1) -> Self {
        let LineHistoryV1 { lineage, back_to, gaps } = history;
        let undone = Undone { after: back_to, before: lineage.rollback };
        let undone = (lineage.rollback > Generation(0)).then_some(undone);
        Self { lineage, undone: undone.into_iter().collect(), gaps }
    }
}

#[derive(Archive, Serialize, Deserialize)]
struct StateV1 {
    applied: u64,
    ephemeral: bool,
    coordinators: CoordinatorsV1,
    leaving: CoordinatorsV1,
    shut_out: CoordinatorsV1,
    revision: u64,
    tokens: AcceptedTokens,
    revocations: Revocations,
    outcomes: OutcomesV1,
    past_runs: VecDeque<PastRunV1>,
    run_id: RunId,
    run: Option<RunSpecV1>,
    run_fingerprint: Option<RunFingerprint>,
    probes: ProbeDigests,
    workers: BTreeMap<WorkerId, WorkerV1>,
    gone: VecDeque<WorkerId>,
    nodes: BTreeMap<NodeName, WorkerId>,
    numbers: BTreeMap<NodeName, u32>,
    numbered: u32,
    generation: Generation,
    record: Option<RecordV1>,
    unreachable: BTreeSet<(WorkerId, WorkerId)>,
    waiting_since: Option<u64>,
    reported_dead: BTreeSet<WorkerId>,
    awaited: AwaitedOwners,
    goes_back: bool,
    lines: LineHistoryV1,
    outcome: RunOutcomeV1,
    events: Vec<EventV1>,
    noted: u64,
}

impl From<StateV1> for super::State {
    fn from(state: StateV1) -> Self {
        let submitted = state.run.as_ref().map(RunSpecV1::submit_digest);
        let run: Option<RunSpec> = state.run.map(Into::into);
        let mut outcomes = requests::RequestOutcomes::from(state.outcomes);
        // A request that is repeated after the upgrade is known as the one that began the run.
        // Other commands of format 1 count as others than today's, and are refused under their ids.
        if let (Some(before), Some(run)) = (submitted, &run) {
            let now = requests::command_digest(&OperatorCommand::Submit(Box::new(run.clone())));
            let same = outcomes.clients.values_mut().filter(|kept| kept.command == before);
            same.for_each(|kept| kept.command = now);
        }
        Self {
            applied: state.applied,
            coordinators: Coordinators {
                ephemeral: state.ephemeral,
                current: updated(state.coordinators),
                leaving: updated(state.leaving),
                shut_out: updated(state.shut_out),
                revision: state.revision,
                ..Coordinators::default()
            },
            access: Access { tokens: state.tokens, revocations: state.revocations },
            outcomes,
            runs: Runs {
                id: state.run_id,
                spec: run,
                fingerprint: state.run_fingerprint,
                probes: state.probes,
                origin: None,
                goes_back: state.goes_back.then_some(Step(0)),
                directives: Directives::default(),
                outcome: state.outcome.into(),
                past: state.past_runs.into_iter().map(Into::into).collect(),
            },
            checkpoints: Checkpoints::default(),
            lines: state.lines.into(),
            workers: Workers {
                by_id: state.workers.into_iter().map(|(id, worker)| (id, worker.into())).collect(),
                gone: state.gone,
                nodes: state.nodes,
                numbers: state.numbers,
                numbered: state.numbered,
            },
            generation: CurrentGeneration {
                number: state.generation,
                record: state.record.map(Into::into),
                unreachable: state.unreachable,
                waiting_since: state.waiting_since,
                reported_dead: state.reported_dead,
                departed: BTreeSet::new(),
                awaited: state.awaited,
            },
            events: EventLog {
                newest: state.events.into_iter().map(Into::into).collect(),
                count: state.noted,
                fresh: Vec::new(),
            },
            #[cfg(feature = "planted")]
            plant: None,
        }
    }
}
