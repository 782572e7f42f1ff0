//! Why the cluster does not make a change: what the replicated state keeps, and operators get.
//!
//! The state holds no sentences. Whoever shows a rejection makes one of it: [`Rejection`] displays
//! itself, and [`Rejection::kind`] says which answer of HTTP it takes.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use rkyv::{Archive, Deserialize, Serialize};

use super::format::LogFormat;
use super::generation::RecordProblem;
use super::ids::{CoordinatorId, Generation, NodeName, RunId, Step, Term, WorkerId, WorkerLabel};
use super::message::Fingerprint;
use super::outcome::RunPause;

/// Why an entry of the log, or a request, changes nothing.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    // Of runs.
    #[error("the run is over")]
    RunIsOver,
    #[error("run {0} is not the current one")]
    NotTheRun(RunId),
    #[error("this cluster already trains {0}, another run. Cancel it or wait")]
    OtherRun(String),
    #[error("there is no run under way")]
    NoRun,
    #[error("the run has gone back since, with generation {0}")]
    GoneBack(Generation),
    #[error("the run has not begun: there is nothing to go back from")]
    NotBegun,
    #[error(
        "there is no checkpoint of step {0} to go back to. `everstep checkpoint ls` lists them"
    )]
    NoCheckpoint(Step),
    #[error("the checkpoint of step {0} is listed already")]
    CheckpointListed(Step),
    #[error("the checkpoint of step {0} is damaged. `everstep checkpoint ls` lists the others")]
    CheckpointDamaged(Step),
    #[error("generation {generation} did not make step {step} of the run's history")]
    OtherHistory { step: Step, generation: Generation },
    #[error("the run is {0} already. `everstep run resume` lets it go on")]
    Paused(RunPause),
    #[error("the run is not paused")]
    NotPaused,
    #[error("the run keeps no checkpoints: its configuration has no section [checkpoint]")]
    NoCheckpoints,
    #[error("there is nothing to save: the run is paused before its first step")]
    NothingToSave,

    // Of workers.
    #[error("there is no run to register for")]
    NoRunToJoin,
    #[error("the path of its model is too long, or cannot be shown")]
    ModelPath,
    #[error("the name of its host is too long, or cannot be shown")]
    Host,
    #[error(
        "{name} states {parameters} parameters in {shards} shards and {samples} samples, but there \
         must be 1 to {most} shards, none of them empty, and samples"
    )]
    Sizes { name: NodeName, parameters: u64, shards: u32, samples: u64, most: u32 },
    #[error("{name} differs from {first}, which registered first: {}", differences(.theirs, .ours))]
    OtherFingerprint {
        name: NodeName,
        /// The worker that registered first, with `ours`.
        first: NodeName,
        theirs: Box<Fingerprint>,
        ours: Box<Fingerprint>,
    },
    #[error("{0} is a member, and only a generation can do without it")]
    Member(WorkerLabel),
    #[error("{0} is gone")]
    Gone(WorkerLabel),
    #[error("no worker with id {0} is registered")]
    NoWorker(WorkerId),

    // Of generations.
    #[error("generation {number} was planned in term {planned}, not {term}")]
    OtherTerm { number: Generation, planned: Term, term: Term },
    #[error("generation {number} follows {predecessor}, not {current}")]
    OtherPredecessor { number: Generation, predecessor: Generation, current: Generation },
    #[error("generation {0} has no run")]
    GenerationWithoutRun(Generation),
    #[error("generation {number} is malformed: {problem}")]
    Malformed { number: Generation, problem: RecordProblem },
    #[error("generation {number} lists worker {worker}, which is gone")]
    ListsGone { number: Generation, worker: WorkerId },
    #[error("generation {0} goes on beyond the last step")]
    BeyondTheEnd(Generation),
    #[error("generation {number} tells of {told:?}, but is without {gone:?}")]
    UntoldLosses { number: Generation, told: Vec<WorkerId>, gone: Vec<WorkerId> },
    #[error("generation {number} goes back to step {step}")]
    Backwards { number: Generation, step: Step },
    #[error("generation {0} goes back, but for another cause")]
    OtherCause(Generation),
    #[error("generation {number} resumes at {step} by another commit")]
    OtherCommit { number: Generation, step: Step },
    #[error("worker {0} is no member")]
    NoMember(WorkerId),
    #[error("the members of generation {0} may not leave together: their state is not saved")]
    StillNeeded(Generation),
    #[error("the change after generation {0} is over")]
    ChangeIsOver(Generation),

    // Of metrics lines.
    #[error("these are lines of a history that is over")]
    OtherLineage,
    #[error("steps {from} to {to} are not all settled")]
    Unsettled { from: Step, to: Step },
    #[error("the line of step {0} is known to be lost")]
    KnownGap(Step),
    #[error("it does not belong to a run")]
    NotOfRun,

    // Of coordinators.
    #[error("the cluster is founded already")]
    Founded,
    #[error("the cluster is not founded yet")]
    NotFounded,
    #[error("coordinator {0} is none of them any more")]
    Removed(CoordinatorId),
    #[error("{0} was removed, and is shut out")]
    ShutOut(NodeName),
    #[error("there are {0} coordinators already")]
    TooManyCoordinators(usize),
    #[error(
        "the log has format {ours}, and the build of {name} reads formats up to {format} only: \
         start a later build there"
    )]
    LogFormat { name: NodeName, format: LogFormat, ours: LogFormat },
    #[error("there is no coordinator {0}")]
    NoCoordinator(CoordinatorId),
    #[error("coordinator {0} is the last. Stop it instead")]
    LastCoordinator(CoordinatorId),
    #[error("coordinator {0} was not removed, or is shut out already")]
    NotRemoved(CoordinatorId),
    #[error(
        "without coordinator {gone} nothing could be agreed on: {} of the {left} that would be \
         left are not heard (id {}). Bring them back, or remove those first",
        .silent.len(), list(.silent)
    )]
    NeededCoordinator { gone: CoordinatorId, left: usize, silent: Vec<CoordinatorId> },

    // Of transfers of leadership.
    #[error("another transfer is under way. Wait for it")]
    OtherTransfer,
    #[error("no other coordinator with a vote is heard")]
    NoHeir,
    #[error("coordinator {0} copies the log and has no vote yet")]
    NoVote(CoordinatorId),
    #[error("coordinator {0} is not heard")]
    NotHeard(CoordinatorId),
    #[error("this coordinator cannot hand over now. Ask again")]
    NotNow,
    #[error("coordinator {0} has come to lead instead")]
    OtherLeader(CoordinatorId),
    #[error("coordinator {0} did not come to lead in time. Ask again")]
    NotInTime(CoordinatorId),

    // Of tokens and revocations.
    #[error("there are {0} tokens already. Revoke some")]
    TooManyTokens(usize),
    #[error("a token admits at most {most} nodes, not {uses}")]
    TooManyUses { most: u32, uses: u32 },
    #[error("there is no such token")]
    NoToken,
    #[error("a coordinator is removed, not revoked: `everstep coordinator remove`")]
    RevokedCoordinator,
    #[error("{0} nodes are revoked already. Found a new cluster")]
    TooManyRevoked(usize),

    // Of requests.
    #[error("its client has asked for more since")]
    Superseded,
    #[error("its client has asked for something else")]
    OtherCommand,
}

/// Which answer a rejection takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionKind {
    /// What the request names does not exist.
    NotFound,
    /// The cluster's state does not allow it.
    Conflict,
    /// The request can never be carried out.
    Invalid,
}

impl Rejection {
    /// Which answer it takes.
    pub fn kind(&self) -> RejectionKind {
        match self {
            Self::NoWorker(_) | Self::NoCoordinator(_) | Self::NoToken => RejectionKind::NotFound,
            Self::NotTheRun(_) | Self::NoCheckpoint(_) => RejectionKind::NotFound,
            Self::TooManyUses { .. } | Self::RevokedCoordinator => RejectionKind::Invalid,
            Self::OtherCommand => RejectionKind::Invalid,
            _ => RejectionKind::Conflict,
        }
    }

    /// The names of nodes in it. An archive holds them as any text.
    pub(super) fn names(&self) -> Vec<&NodeName> {
        match self {
            Self::Sizes { name, .. } | Self::ShutOut(name) | Self::LogFormat { name, .. } => {
                vec![name]
            }
            Self::OtherFingerprint { name, first, .. } => vec![name, first],
            _ => Vec::new(),
        }
    }
}

/// Everything in which two fingerprints differ.
fn differences(theirs: &Fingerprint, ours: &Fingerprint) -> String {
    let rows = [
        ("model", short(&theirs.model), short(&ours.model)),
        ("data", short(&theirs.data), short(&ours.data)),
        ("parameters", theirs.parameters.to_string(), ours.parameters.to_string()),
        ("parameter shards", theirs.shards.to_string(), ours.shards.to_string()),
        ("samples", theirs.samples.to_string(), ours.samples.to_string()),
    ];
    let differences = rows.iter().filter(|(_, theirs, ours)| theirs != ours);
    let words = differences.map(|(what, theirs, ours)| format!("{what} {theirs}, not {ours}"));
    words.collect::<Vec<_>>().join("; ")
}

/// The first six bytes of a digest, in hexadecimal. Digests that differ only later look alike, but
/// no process can make such a pair.
fn short(digest: &[u8; 32]) -> String {
    digest[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn list(ids: &[CoordinatorId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
