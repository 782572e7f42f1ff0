//! Control messages: all that nodes say to each other apart from tensors.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use std::net::SocketAddr;

use rkyv::{Archive, Deserialize, Serialize};

use super::cluster::{
    CoordinatorId, CoordinatorView, Frame, Keys, Lineage, RequestId, RunId, Wish,
};
use super::device::{Device, Telemetry};
use super::generation::Record;
use super::ids::{Generation, HostName, MachineId, NodeName, Shard, Step, Term, WorkerId, Zone};
use super::model::ModelPlace;
use super::outcome::{Inability, Update, WorkerResult};
use super::question::{Question, Reply};
use super::run::RunSpec;
use super::step::{Commit, MetricsLine, Prepared, Status};

/// What a worker states when it registers for a run.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Registration {
    /// Drawn once per incarnation of the worker: registered again, it gets the same id.
    pub incarnation: u64,
    /// Where it listens for other workers.
    pub address: SocketAddr,
    /// What it would compute.
    pub fingerprint: Fingerprint,
    /// Digest of a small computation: equal digests promise equal bits.
    pub probe: u64,
    /// What its machine may fail together with, if it was told.
    pub zone: Option<Zone>,
    /// What it computes on.
    pub device: Device,
    /// The file that it would write the model to, if it was given a directory.
    pub model: Option<ModelPlace>,
    /// Its machine, if that has a name.
    pub host: Option<HostName>,
    /// The machine that it runs on, if the system tells: another worker of the same machine at the
    /// same address proves that this one has ended. Only the coordinators learn it.
    pub machine: Option<MachineId>,
}

/// What all workers of a run must agree on. The first to register fixes it.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Digest of the model: names, shapes and initial values of its tensors.
    pub model: [u8; 32],
    /// Digest of the data.
    pub data: [u8; 32],
    /// How many parameters.
    pub parameters: u64,
    /// How many parameter shards.
    pub shards: u32,
    /// How many training samples.
    pub samples: u64,
}

/// A worker's sign of life.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Heartbeat {
    /// The worker.
    pub worker: WorkerId,
    /// Its generation.
    pub generation: Generation,
    /// The number it has promised, if that is higher.
    pub promised: Generation,
    /// Its last commit.
    pub step: Step,
    /// Lines of settled steps that the answer before did not call written: the step leader's, and
    /// those of every member that was asked for them.
    pub lines: Vec<MetricsLine>,
    /// Peers whose connection was lost since it entered its generation, or that it could not reach.
    pub unreachable: Vec<WorkerId>,
    /// Its last commit holds, and all that follows from it is done: it waits.
    pub held: bool,
    /// It was fed in this generation, and its copies of all that it learns are those of its last
    /// commit.
    pub ready: bool,
    /// Bytes that it lacks of the shards that it learns, gradients of committed steps too; 0 where
    /// it learns nothing.
    pub behind: u64,
    /// The data shard that its device computes, if it has all that it needs for one.
    pub computing: Option<ShardTime>,
    /// How its GPU did a moment ago, if it computes on one that tells. The log never has it.
    pub telemetry: Option<Telemetry>,
    /// Why the model's file could not be written, while this worker waits to try again.
    pub unwritten: Option<String>,
}

/// How long a device has computed a data shard, and how long it takes for one as a rule.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardTime {
    /// So long it has computed the present one, milliseconds.
    pub under_way_ms: u64,
    /// So long it usually takes, milliseconds.
    pub usual_ms: u64,
}

/// Everything that is said.
///
/// Grouped by who says it to whom; a core ignores and counts what its sender may not say.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Message {
    // Worker to coordinator.
    /// The first word of a worker on a new link: it speaks this vocabulary, and waits for a run or
    /// goes on with one.
    Hello {
        /// [`super::codec::schema`] of the sender.
        schema: u64,
        /// The id that it holds already, after a link that was lost.
        worker: Option<WorkerId>,
    },
    /// It has built the run's model and data.
    Register(Registration),
    /// It lives.
    Heartbeat(Heartbeat),
    /// It has promised the number of a Pause; its evidence.
    Status(Status),
    /// It asks for the current record.
    FetchRecord,
    /// It was told to drain, and asks to be let go.
    Leave,
    /// It has trained the last step.
    Finished(WorkerResult),
    /// It cannot go on.
    Failed {
        /// The member at fault, where it is another one.
        at_fault: Option<WorkerId>,
        /// The history itself is broken: nobody may go on with it.
        fatal: bool,
        /// Why.
        reason: String,
    },
    /// The run cannot be computed here: its model or data cannot be built, or a sample cannot be
    /// read. The worker stays, for the next run or to try again.
    Unable {
        /// Where the reason lies.
        inability: Inability,
        /// Why.
        reason: String,
    },
    /// The model's file is complete and durable at this place of the sender.
    Written(ModelPlace),

    // Coordinator to worker.
    /// The answer to Hello: the run, with the coordinator's term.
    Welcome {
        /// The run.
        run: RunSpec,
        /// The leader's term.
        term: Term,
    },
    /// The answer to Register.
    Registered {
        /// The worker's id.
        worker: WorkerId,
        /// The leader's term.
        term: Term,
    },
    /// The sender may not take part.
    Refused {
        /// Why, in words for the user.
        reason: String,
    },
    /// The sender is no longer part of the run under this id: whatever it holds is void.
    Evicted {
        /// The id.
        worker: WorkerId,
    },
    /// A generation was recorded.
    Announce(Record),
    /// The answer to a Heartbeat.
    HeartbeatAnswer {
        /// The current generation.
        generation: Generation,
        /// The newest step whose line is written: the leader has it, and all before it, on its
        /// disk.
        written: Step,
        /// The leader lacks lines that the step leader may not have: every member is to tell those
        /// that it has of settled steps after `written`.
        lacks_lines: bool,
        /// The receiver is to leave, and holds the last copies of so many parameter shards among
        /// the workers that stay: it must not go before they are copied.
        retained: u32,
    },
    /// Promise a number, and say what you hold.
    Pause {
        /// The leader's term.
        term: Term,
        /// The number to promise.
        number: Generation,
    },
    /// Send a learner what it needs: commits if it is no member, and the reduced gradients of
    /// shards that it shall own. Told to all members, and to the learner. A later one of the same
    /// generation replaces it.
    Feed {
        /// The leader's term.
        term: Term,
        /// The generation it holds for.
        generation: Generation,
        /// The learner: a member, or a worker that is to become one.
        learner: WorkerId,
        /// The name in its certificate.
        name: NodeName,
        /// Where it listens.
        address: SocketAddr,
        /// The shards it will own and does not own yet, ascending.
        shards: Vec<Shard>,
    },
    /// Let the next commit carry `hold`; where the last one does, hold for as long again.
    Hold {
        /// The leader's term.
        term: Term,
        /// The generation it holds for.
        generation: Generation,
    },
    /// The receiver writes the model's file, once the last step is trained.
    Write {
        /// The leader's term.
        term: Term,
        /// The generation it holds for.
        generation: Generation,
    },
    /// The worker has drained: exit.
    Drain {
        /// Which.
        worker: WorkerId,
    },
    /// The run is over, and the cluster was there for it: exit.
    Dismiss,
    /// The run is over: whatever the receiver holds is void, and it waits for the next run.
    Released {
        /// The leader's term: in a later one the next run may have begun.
        term: Term,
    },

    // Coordinator to every peer.
    /// Who the coordinators are, and who leads: said after a peer's first word, and whenever it
    /// changes. Whoever asks a coordinator that does not lead is told this instead of an answer.
    Coordinators {
        /// Grows with every change of the list: the index of the log's entry that made it.
        revision: u64,
        /// The newest term that the sender knows of.
        term: Term,
        /// Who leads in it, if that is known.
        leader: Option<CoordinatorId>,
        /// All there are, by id.
        members: Vec<CoordinatorView>,
    },

    // Coordinator to coordinator.
    /// The cluster's keys, please: the sender is admitted, and is to be one of the coordinators.
    FetchKeys,
    /// The answer to FetchKeys.
    Keys(Keys),
    /// What replicas of the log say to each other; the replica reads it.
    Raft(Vec<u8>),
    /// The sender wishes to be one of the coordinators, or is found elsewhere than before.
    Join {
        /// The sender's id, if it was told one: it is found elsewhere, or was removed.
        id: Option<CoordinatorId>,
        /// Drawn once for its directory: with the same it gets the same id.
        incarnation: u64,
        /// Where it listens for links.
        address: SocketAddr,
        /// Where its HTTP API is, if it has one.
        api: Option<SocketAddr>,
    },
    /// The answer to Join.
    Joined {
        /// The sender's id.
        id: CoordinatorId,
    },
    /// The answer to Join of one that was removed, once the log does without it: it may go.
    Removed,
    /// The history from this entry on, please.
    FetchHistory {
        /// The index of the first entry that is wanted.
        from: u64,
    },
    /// The answer to FetchHistory: the next of it, in order; empty at its end.
    History {
        /// What the entries brought.
        frames: Vec<Frame>,
    },
    /// The metrics lines of the steps after this one, please.
    FetchLines {
        /// Of which history.
        lineage: Lineage,
        /// The newest step whose line the sender has.
        after: Step,
    },
    /// Metrics lines: the answer to FetchLines, and what the leader tells every other coordinator
    /// when it takes them.
    Lines {
        /// Of which history.
        lineage: Lineage,
        /// The newest step whose line the sender has.
        reach: Step,
        /// Lines of consecutive steps, in order; none if the sender has none that were asked for.
        lines: Vec<MetricsLine>,
    },

    // Worker to worker.
    /// A vote, to the step leader.
    Prepared(Prepared),
    /// The step leader's commit.
    Commit(Commit),
    /// After a hold that led to nothing: go on with this step.
    Go {
        /// The generation.
        generation: Generation,
        /// The step.
        step: Step,
    },

    /// The parameters that the generation resumes with, please: the sender computes with them.
    FetchParameters {
        /// The generation.
        generation: Generation,
        /// Shards of which the receiver is primary, ascending.
        shards: Vec<Shard>,
    },
    /// Master weights and moments, please: the sender will own them.
    FetchState {
        /// The generation.
        generation: Generation,
        /// Shards that the receiver owns, ascending.
        shards: Vec<Shard>,
    },
    /// The master weights of which the receiver is primary, please, once the last step is trained:
    /// the sender writes the model's file.
    FetchMasters {
        /// The generation.
        generation: Generation,
    },
    /// Heads the master weights and moments of one shard on a bulk stream.
    State {
        /// The generation.
        generation: Generation,
        /// The shard.
        shard: Shard,
        /// The version of what follows.
        version: Step,
        /// Its digest, as in votes.
        digest: u64,
    },

    // Operator to coordinator, and back.
    /// What is new after this step and this event? Who leads answers, once it knows that it does
    /// and all that was agreed by then.
    Watch {
        /// The run whose lines the sender has: of another one it is told none. None: it has no
        /// lines, or means whatever run there is.
        run: Option<RunId>,
        /// The newest step whose line the sender has.
        step: Step,
        /// The newest event that the sender has.
        event: u64,
    },
    /// The answer to Watch.
    Update(Update),
    /// A worker's process has ended.
    Exited {
        /// Its node.
        name: NodeName,
        /// How, in words: "was killed by signal 9".
        how: String,
    },
    /// Have this changed, once. One that does not lead, nor is about to, keeps none: it tells who
    /// leads, as soon as it knows, and the sender asks that one.
    Request {
        /// Said again with the same, it is answered as before.
        id: RequestId,
        /// What.
        wish: Wish,
    },
    /// The answer to a Request that was refused, in words, or agreed to.
    Answer {
        /// Which request.
        id: RequestId,
        /// Why not, if it was refused.
        refusal: Option<String>,
        /// Which run it has led to, if a run was submitted.
        run: Option<RunId>,
    },
    /// Let another coordinator lead. Answered as a Request is, once another one does; it does not
    /// go through the log, so to say it again is to ask anew.
    Transfer {
        /// Names it in the answer.
        id: RequestId,
        /// Who; None: whoever has most of the log.
        to: Option<CoordinatorId>,
    },
    /// How does this stand? Answered as Watch is.
    Ask(Question),
    /// The answer to Ask.
    Told(Reply),

    // Coordinator to coordinator.
    /// Workers have links with the sender, which follows the receiver: a leader that hears none
    /// lets the sender lead.
    Hears {
        /// How many.
        workers: u32,
    },
}

impl Message {
    /// The generation of what workers say to each other; none of what they may not say.
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

    /// The message's name, for logs and counters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::Register(_) => "register",
            Self::Heartbeat(_) => "heartbeat",
            Self::Status(_) => "status",
            Self::FetchRecord => "fetch_record",
            Self::Leave => "leave",
            Self::Finished(_) => "finished",
            Self::Failed { .. } => "failed",
            Self::Unable { .. } => "unable",
            Self::Written(_) => "written",
            Self::Welcome { .. } => "welcome",
            Self::Registered { .. } => "registered",
            Self::Refused { .. } => "refused",
            Self::Evicted { .. } => "evicted",
            Self::Announce(_) => "announce",
            Self::HeartbeatAnswer { .. } => "heartbeat_answer",
            Self::Pause { .. } => "pause",
            Self::Feed { .. } => "feed",
            Self::Hold { .. } => "hold",
            Self::Write { .. } => "write",
            Self::Drain { .. } => "drain",
            Self::Dismiss => "dismiss",
            Self::Released { .. } => "released",
            Self::Coordinators { .. } => "coordinators",
            Self::FetchKeys => "fetch_keys",
            Self::Keys(_) => "keys",
            Self::Raft(_) => "raft",
            Self::Join { .. } => "join",
            Self::Joined { .. } => "joined",
            Self::Removed => "removed",
            Self::FetchHistory { .. } => "fetch_history",
            Self::History { .. } => "history",
            Self::FetchLines { .. } => "fetch_lines",
            Self::Lines { .. } => "lines",
            Self::Prepared(_) => "prepared",
            Self::Commit(_) => "commit",
            Self::Go { .. } => "go",
            Self::FetchParameters { .. } => "fetch_parameters",
            Self::FetchState { .. } => "fetch_state",
            Self::FetchMasters { .. } => "fetch_masters",
            Self::State { .. } => "state",
            Self::Watch { .. } => "watch",
            Self::Update(_) => "update",
            Self::Exited { .. } => "exited",
            Self::Request { .. } => "request",
            Self::Answer { .. } => "answer",
            Self::Transfer { .. } => "transfer",
            Self::Ask(Question::Coordinators) => "ask_coordinators",
            Self::Ask(Question::Tokens) => "ask_tokens",
            Self::Ask(Question::Runs) => "ask_runs",
            Self::Ask(Question::Revoked) => "ask_revoked",
            Self::Told(Reply::Coordinators { .. }) => "told_coordinators",
            Self::Told(Reply::Tokens(_)) => "told_tokens",
            Self::Told(Reply::Runs(_)) => "told_runs",
            Self::Told(Reply::Revoked(_)) => "told_revoked",
            Self::Hears { .. } => "hears",
        }
    }
}
