//! Control messages: everything that nodes say to each other apart from tensors.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

mod heartbeat;
mod name;

use std::net::SocketAddr;

use rkyv::{Archive, Deserialize, Serialize};

pub use self::heartbeat::{Heartbeat, ShardTime};
use super::checkpoint::{CheckpointId, ManifestToWrite, SavedPart, Verification, WrittenManifest};
use super::cluster::{
    ClusterKeys, CoordinatorView, HistoryEntry, Lineage, OperatorCommand, RequestId,
};
use super::device::Device;
use super::format::LogFormat;
use super::generation::Record;
use super::ids::{
    CoordinatorId, Generation, HostName, MachineId, NodeName, RunId, Shard, Step, Term, WorkerId,
    Zone,
};
use super::model::ModelPlace;
use super::outcome::{Inability, Update, WorkerResult};
use super::preemption::PreemptionNotice;
use super::question::{Question, Reply};
use super::reason::{ProcessExit, UnsavedPart};
use super::rejection::Rejection;
use super::run::RunSpec;
use super::step::{Commit, MetricsLine, Prepared, Status};

/// What a worker states when it registers for a run.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Registration {
    /// Drawn once per incarnation of the worker. A worker that registers again gets the same id.
    pub incarnation: u64,
    /// The address where the worker listens for other workers.
    pub address: SocketAddr,
    /// The model and data that the worker would train.
    pub fingerprint: Fingerprint,
    /// Digest of a small computation: equal digests promise equal bits.
    pub probe: u64,
    /// The zone of machines that may fail together with the worker's. `None` if nothing states it.
    pub zone: Option<Zone>,
    /// The CPU or GPU that the worker computes on.
    pub device: Device,
    /// The file to which the worker would write the model. `None` without a directory for it.
    pub model: Option<ModelPlace>,
    /// The name of the worker's machine, if it has one.
    pub host: Option<HostName>,
    /// The machine that the worker runs on, if the system tells. Another worker of the same machine
    /// at the same address proves that this one has ended. Only the coordinators learn this id.
    pub machine: Option<MachineId>,
}

/// What all workers of a run must agree on. The first worker to register fixes it.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Digest of the model: names, shapes and initial values of its tensors.
    pub model: [u8; 32],
    /// Digest of the data set.
    pub data: [u8; 32],
    /// Number of parameters of the model.
    pub parameters: u64,
    /// Number of parameter shards.
    pub shards: u32,
    /// Number of training samples.
    pub samples: u64,
}

/// Every control message.
///
/// Grouped by sender and receiver. A core ignores and counts a message that its sender may not
/// send.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Message {
    // Worker to coordinator.
    /// The first word of a worker on a new link. The worker waits for a run or goes on with one.
    Hello {
        /// The id that the worker already holds, after it lost a link.
        worker: Option<WorkerId>,
    },
    /// The worker has built the run's model and data.
    Register(Registration),
    /// The worker is alive.
    Heartbeat(Heartbeat),
    /// The worker has promised the number of a Pause. This is its evidence.
    Status(Status),
    /// The worker asks for the current record.
    FetchRecord,
    /// The worker has to drain, and asks for permission to leave.
    Leave,
    /// The worker has trained the last step.
    Finished(WorkerResult),
    /// The worker cannot go on.
    Failed {
        /// The member at fault, if it is not the sender.
        at_fault: Option<WorkerId>,
        /// The history itself is broken: no worker may go on with it.
        fatal: bool,
        /// The reason in words for the user.
        reason: String,
    },
    /// A worker cannot compute the run: it cannot build the model or the data, or cannot read a
    /// sample. Or the leader says that to a worker which would compute another run than the first
    /// registered one. The worker stays, for the next run or to try again.
    Unable {
        /// Whether the reason lies in the run or in the worker's place.
        inability: Inability,
        /// The reason in words for the user.
        reason: String,
    },
    /// The model's file is complete and durable at this place on the sender's machine.
    Written(ModelPlace),
    /// The sender's part of a checkpoint is durable. The sender repeats this to each new leader,
    /// until it has saved a later part.
    Saved(SavedPart),
    /// The sender does not write its part of a checkpoint, or not its manifest.
    Unsaved {
        /// The checkpoint that the message is about.
        id: CheckpointId,
        /// Whether the checkpoint is skipped, or why it fails.
        reason: UnsavedPart,
    },
    /// The manifest of a checkpoint is durable, as WriteManifest asked.
    WrittenManifest(WrittenManifest),
    /// The sender cannot restore a checkpoint: its bytes are not those that were written.
    Damaged {
        /// The checkpoint that the message is about.
        id: CheckpointId,
        /// The file, the shard, and what is wrong.
        reason: String,
    },

    // Coordinator to worker.
    /// The answer to Hello: the run, with the coordinator's term.
    Welcome {
        /// The run that the worker shall build.
        run: RunSpec,
        /// The term in which the sender leads.
        term: Term,
    },
    /// The answer to Register.
    Registered {
        /// The id under which the worker is registered.
        worker: WorkerId,
        /// The term in which the sender leads.
        term: Term,
    },
    /// The sender may not take part.
    Refused {
        /// The reason in words for the user.
        reason: String,
    },
    /// The sender is no longer part of the run under this id. Everything that it holds is void.
    Evicted {
        /// The id that is no longer valid.
        worker: WorkerId,
    },
    /// The log has a new generation.
    Announce(Record),
    /// The answer to a Heartbeat.
    HeartbeatAnswer {
        /// The current generation of the run.
        generation: Generation,
        /// The newest step with a written line: the leader has this line, and all before it, on its
        /// disk.
        written: Step,
        /// The leader lacks lines that the step leader may not have. Every member must send its
        /// lines of settled steps after `written`.
        lacks_lines: bool,
        /// The receiver has to leave, but holds the last copies of this many parameter shards among
        /// the workers that stay. It must not go before other workers have copied them.
        retained: u32,
    },
    /// The receiver must promise a number, and answer with what it holds.
    Pause {
        /// The term in which the sender leads.
        term: Term,
        /// The number to promise.
        number: Generation,
    },
    /// The receiver must send a joiner what it needs: commits if the joiner is no member, and the
    /// reduced gradients of shards that it shall own. All members and the joiner get this message.
    /// A later one of the same generation replaces it.
    Feed {
        /// The term in which the sender leads.
        term: Term,
        /// The generation in which the order is valid.
        generation: Generation,
        /// The joiner: a member, or a worker that is to become one.
        joiner: WorkerId,
        /// The name in the joiner's certificate.
        name: NodeName,
        /// The address where the joiner listens.
        address: SocketAddr,
        /// The shards that the joiner will own and does not own yet, ascending.
        shards: Vec<Shard>,
    },
    /// The next commit must carry `hold`. If the last one does, the hold lasts as long again.
    Hold {
        /// The term in which the sender leads.
        term: Term,
        /// The generation in which the order is valid.
        generation: Generation,
    },
    /// The receiver writes the model's file, once the last step is trained.
    Write {
        /// The term in which the sender leads.
        term: Term,
        /// The generation in which the order is valid.
        generation: Generation,
    },
    /// The receiver writes the manifest of a checkpoint whose parts are durable and whose step is
    /// settled.
    WriteManifest(ManifestToWrite),
    /// The worker has drained, and must exit.
    Drain {
        /// The worker that has drained.
        worker: WorkerId,
    },
    /// The run is over, and the cluster existed for it. The receiver must exit.
    Dismiss,
    /// The run is over. All that the receiver holds is void, and it waits for the next run.
    Released {
        /// The leader's term. In a later term the next run may have begun.
        term: Term,
    },

    // Coordinator to every peer.
    /// The list of coordinators, and their leader. A coordinator sends it after a peer's first
    /// word, and whenever it changes. A coordinator that does not lead answers requests with it.
    Coordinators {
        /// Grows with every change of the list: the index of the log's entry that made it.
        revision: u64,
        /// The newest term that the sender knows of.
        term: Term,
        /// The leader of that term, if the sender knows it.
        leader: Option<CoordinatorId>,
        /// All coordinators, by id.
        members: Vec<CoordinatorView>,
    },

    // Coordinator to coordinator.
    /// The sender asks for the cluster's keys: it is admitted, and is to become a coordinator.
    FetchKeys,
    /// The answer to FetchKeys.
    Keys(ClusterKeys),
    /// What replicas of the log say to each other. Only the replica reads it.
    Raft(Vec<u8>),
    /// The sender asks to be a coordinator, or has a new address.
    Join {
        /// The sender's id, if it has one: its address has changed, or the others removed it.
        id: Option<CoordinatorId>,
        /// Drawn once for the sender's directory. The same value gets the same id.
        incarnation: u64,
        /// The address where the sender listens for links.
        address: SocketAddr,
        /// The address of the sender's HTTP API, if it has one.
        api: Option<SocketAddr>,
        /// The newest format of the log that the sender's build reads and writes.
        log_format: LogFormat,
    },
    /// The answer to Join.
    Joined {
        /// The id that the joiner has from now on.
        id: CoordinatorId,
    },
    /// The answer to Join of a removed coordinator, once the log does without it: it may go.
    Removed,
    /// The sender asks for the history from this entry on.
    FetchHistory {
        /// The index of the first entry that the sender wants.
        from: u64,
    },
    /// The answer to FetchHistory: the next part, in order. It is empty at the end of the history.
    History {
        /// What each entry brought to the history.
        entries: Vec<HistoryEntry>,
    },
    /// The sender asks for the metrics lines of the steps after this one.
    FetchLines {
        /// The history of which the sender wants lines.
        lineage: Lineage,
        /// The newest step of which the sender has the line.
        after: Step,
    },
    /// Metrics lines: the answer to FetchLines, what the leader sends to every other coordinator
    /// when it takes new lines, and, without lines, what a coordinator sends to every other one
    /// when it has all lines of a run.
    Lines {
        /// The history to which the lines belong.
        lineage: Lineage,
        /// The newest step up to which the sender's file is durable.
        reach: Step,
        /// Lines of consecutive steps, in order. Empty if the sender has none of the requested
        /// lines.
        lines: Vec<MetricsLine>,
    },

    // Worker to worker.
    /// A member's vote, for the step leader.
    Prepared(Prepared),
    /// The step leader's commit.
    Commit(Commit),
    /// Go on with this step, after a hold that led to nothing.
    Go {
        /// The generation of the hold.
        generation: Generation,
        /// The step to go on with.
        step: Step,
    },

    /// The sender asks for the parameters with which the generation resumes, to compute with them.
    FetchParameters {
        /// The generation in which the sender asks.
        generation: Generation,
        /// Shards of which the receiver is primary, ascending.
        shards: Vec<Shard>,
    },
    /// The sender asks for master weights and moments of shards that it will own.
    FetchState {
        /// The generation in which the sender asks.
        generation: Generation,
        /// Shards that the receiver owns, ascending.
        shards: Vec<Shard>,
    },
    /// The sender asks for the master weights of which the receiver is primary, once the last step
    /// is trained. It writes the model's file.
    FetchMasters {
        /// The generation in which the sender asks.
        generation: Generation,
    },
    /// Heads the master weights and moments of one shard on a bulk stream.
    State {
        /// The generation in which the sender is.
        generation: Generation,
        /// The shard that follows.
        shard: Shard,
        /// The version of what follows.
        version: Step,
        /// The state's digest, as in votes.
        digest: u64,
    },

    // Operator to coordinator, and back.
    /// The operator asks for all that is new after this step and this event. The leader answers
    /// once it has confirmed that it leads, and knows all that was agreed by then.
    Watch {
        /// The run of which the sender has lines. It gets none of another run. `None`: it has no
        /// lines, or means the run that there is, whichever that is.
        run: Option<RunId>,
        /// The newest step of which the sender has the line.
        step: Step,
        /// The newest event that the sender has.
        event: u64,
    },
    /// The answer to Watch.
    Update(Update),
    /// A worker's process has ended.
    Exited {
        /// The name of the worker's node.
        name: NodeName,
        /// How it ended: its exit code, or its signal.
        how: ProcessExit,
    },
    /// Make this change, once. A coordinator that does not lead, and is not about to, keeps no
    /// request. It names the leader as soon as it knows it, and the sender asks that leader.
    Request {
        /// A repeated request with the same id gets the same answer.
        id: RequestId,
        /// The change that the operator wants.
        command: OperatorCommand,
    },
    /// The answer to a Request that the leader has refused or agreed to.
    Answer {
        /// The request that this answers.
        id: RequestId,
        /// Why the leader has refused it. `None` if the leader agreed.
        refusal: Option<Rejection>,
        /// The run that the request started, if it submitted one.
        run: Option<RunId>,
    },
    /// Let another coordinator lead. The answer comes like that to a Request, once another one
    /// leads. The log does not hold it, so a repetition is a new request.
    Transfer {
        /// Names it in the answer.
        id: RequestId,
        /// The next leader. `None`: the coordinator that has most of the log.
        to: Option<CoordinatorId>,
    },
    /// The operator asks how something stands. The answer comes like that to Watch.
    Ask(Question),
    /// The answer to Ask.
    Reply(Reply),

    // Coordinator to coordinator.
    /// Workers have links with the sender, which follows the receiver. A leader that hears no
    /// worker lets the sender lead.
    Hears {
        /// Number of workers that have links with the sender.
        workers: u32,
    },

    // Worker to coordinator.
    /// The model is complete and durable in the run's store, at this place. The sender repeats this
    /// to each new leader.
    Stored(ModelPlace),
    /// The processes of the workers with these incarnations have ended: the sender has the lock of
    /// a file that each of them held. The sender repeats this to each new leader.
    Predecessors {
        /// The incarnations that those workers stated when they registered.
        ended: Vec<u64>,
    },

    // Operator to coordinator, coordinator to worker, and back.
    /// The operator asks whether the checkpoint of a step is damaged. The leader has a worker read
    /// it, and says at once how that stands. So the operator asks again until it has a verdict.
    AskVerification {
        /// The step of the checkpoint.
        step: Step,
    },
    /// The receiver reads a checkpoint whole. The leader repeats this until it has the verdict.
    Verify {
        /// The term in which the sender leads.
        term: Term,
        /// The checkpoint to read.
        id: CheckpointId,
    },
    /// How the reading of a checkpoint stands: the answer to AskVerification, and what a worker
    /// says after Verify, several times while it reads.
    Verification {
        /// The checkpoint. Its generation is 0 if none is listed.
        id: CheckpointId,
        /// What is known of it.
        state: Verification,
    },

    // Worker to coordinator.
    /// As Leave: a cloud takes the sender's machine back.
    Preempted(PreemptionNotice),

    // Coordinator to coordinator.
    /// The digest of the sender's state after an entry of the log. A coordinator ends if a majority
    /// agrees on another state than it has.
    StateDigest {
        /// The index of the entry.
        index: u64,
        /// The BLAKE3 digest of the state's bytes.
        digest: [u8; 32],
    },
}

impl Message {
    /// The generation of a message between workers. `None` for a message that workers may not send
    /// to each other.
    pub fn between_workers(&self) -> Option<Generation> {
        match self {
            Self::Prepared(vote) => Some(vote.generation),
            Self::Commit(commit) => Some(commit.generation),
            Self::Go { generation, .. }
            | Self::FetchParameters { generation, .. }
            | Self::FetchState { generation, .. }
            | Self::FetchMasters { generation }
            | Self::State { generation, .. } => Some(*generation),
            _ => None,
        }
    }
}
