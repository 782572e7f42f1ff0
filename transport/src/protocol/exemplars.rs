//! One example of every message, for tests of the codec and of every receiver.

mod runs;
mod steps;

use std::net::{Ipv4Addr, SocketAddr};

use self::runs::stated_run;
pub use self::runs::{figures, resumed_run, run, trouble};
use self::steps::{commit, evaluation, line, line_with_scalars, vote};
use super::checkpoint::{
    CheckpointId, CheckpointView, ListedCheckpoint, ManifestToWrite, SavedPart, Verification,
    WorkerPart, WrittenManifest,
};
use super::chunk::{Chunk, ChunkKind, Encoding};
use super::cluster::{
    ClusterKeys, CoordinatorView, HistoryEntry, HistoryEvent, Lineage, OperatorCommand, RequestId,
    Secret,
};
use super::device::{Accelerator, Device, DeviceKind, DeviceName, Telemetry};
use super::format::LogFormat;
use super::generation::{Cause, Member, Ownership, Record};
use super::ids::{
    CoordinatorId, DataShard, Generation, HostName, MachineId, NodeName, Rank, RunId, Shard, Step,
    Term, WorkerId, Zone,
};
use super::message::{Fingerprint, Heartbeat, Message, Registration, ShardTime};
use super::model::{ModelAwaited, ModelPlace, WriteFailure};
use super::outcome::{
    Event, EventKind, Inability, Outcome, PausedBy, RunPause, UnregisteredWorker, Update,
    WaitNotice, Waiting, WorkerResult, WorkerState, WorkerView,
};
use super::preemption::{Cloud, PreemptionNotice};
use super::question::{CoordinatorStatus, Question, Reply, RevokedView, RunView, TokenView};
use super::reason::{
    FailReason, LinkEnd, LossReason, NamedWorker, PauseReason, ProcessExit, UnableCause,
    UnableReason, UnsavedPart, UnsavedReason,
};
use super::rejection::Rejection;
use super::run::Precision;
use super::step::Status;
use crate::identity::{AcceptedToken, JoinToken, Role, TokenLimits};

const COORDINATOR: CoordinatorId = CoordinatorId(1);
const GENERATION: Generation = Generation(3);
const RUN: RunId = RunId(4);
const STEP: Step = Step(5);
const TERM: Term = Term(2);
const WORKER: WorkerId = WorkerId(7);

/// A notice of a cloud.
pub fn notice() -> PreemptionNotice {
    PreemptionNotice { cloud: Cloud::Aws, seconds_left: 117 }
}

fn address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 40_001).into()
}

fn name() -> NodeName {
    NodeName::parse("worker-7").expect("a valid name")
}

fn record() -> Record {
    Record {
        number: GENERATION,
        predecessor: Generation(2),
        term: TERM,
        cause: Cause::Start,
        members: vec![Member {
            worker: WORKER,
            name: name(),
            address: address(),
            data_shards: vec![DataShard(0)],
        }],
        owners: vec![Ownership { first: Shard(0), count: 2, owners: vec![Rank(0)] }],
        resume: STEP,
        commit: Some(commit()),
        waiting: false,
    }
}

/// A GPU as a worker's device.
pub fn device() -> Device {
    let gpu = Accelerator {
        kind: DeviceKind::parse("cuda").expect("a valid kind"),
        number: 1,
        capability: DeviceName::of("9.0"),
        uuid: [7; 16],
        peak_flops: Some(989_000_000_000_000),
    };
    let (name, precision) = (DeviceName::of("NVIDIA H200"), Precision::Bf16);
    Device { name, precision, accelerator: Some(gpu) }
}

/// That GPU's telemetry, with another value in each field.
pub fn telemetry() -> Telemetry {
    Telemetry {
        utilization_percent: Some(97),
        memory_utilization_percent: Some(41),
        memory_used_bytes: Some(3 << 30),
        memory_total_bytes: Some(140 << 30),
        power_milliwatts: Some(612_500),
        temperature_celsius: Some(54),
    }
}

fn place() -> ModelPlace {
    ModelPlace { host: "node-7".into(), path: "/runs/model.safetensors".into() }
}

fn checkpoint() -> CheckpointId {
    CheckpointId { step: STEP, generation: GENERATION }
}

fn saved_part() -> SavedPart {
    SavedPart {
        commit: commit(),
        generation: Generation(4),
        bytes: 900,
        head_bytes: 100,
        head_digest: [6; 32],
        shards: vec![(Shard(0), [7; 32])],
        write_ms: 8,
    }
}

/// A checkpoint that the log lists.
pub fn listed_checkpoint() -> ListedCheckpoint {
    let (commit, state_hash) = (commit(), [8; 32]);
    ListedCheckpoint { commit, bytes: 900, write_ms: 8, state_hash, damage: None }
}

fn from_worker() -> Vec<Message> {
    let fingerprint =
        Fingerprint { model: [1; 32], data: [2; 32], parameters: 9, shards: 2, samples: 99 };
    let status = Status {
        term: TERM,
        number: GENERATION,
        commit: Some(commit()),
        prepared: vec![(Shard(1), GENERATION)],
        versions: vec![(Shard(1), STEP, GENERATION)],
        under_way: Some(STEP),
        unreachable: vec![WORKER],
    };
    let heartbeat = Heartbeat {
        worker: WORKER,
        generation: GENERATION,
        promised: GENERATION,
        step: STEP,
        lines: vec![line()],
        unreachable: vec![WORKER],
        held: true,
        ready: true,
        behind: 1 << 20,
        unread: 1 << 21,
        computing: Some(ShardTime { under_way_ms: 6, usual_ms: 7 }),
        shard_us: 8,
        telemetry: Some(telemetry()),
        unwritten: Some("no space left".into()),
        store_error: Some("no route".into()),
    };
    let result = WorkerResult {
        worker: WORKER,
        flops_per_sample: Some(8),
        evaluations: vec![evaluation()],
        digests: vec![(Shard(0), [3; 32])],
        ..WorkerResult::default()
    };
    let registered = vec![
        Message::Hello { worker: Some(WORKER) },
        Message::Register(Registration {
            incarnation: 4,
            address: address(),
            fingerprint,
            probe: 5,
            zone: Zone::parse("rack-1"),
            device: device(),
            model: Some(place()),
            host: HostName::of("node-7"),
            machine: Some(MachineId(12)),
        }),
        Message::Heartbeat(heartbeat),
        Message::Status(status),
        Message::FetchRecord,
        Message::Leave,
        Message::Finished(result),
        Message::Failed { at_fault: Some(WORKER), fatal: true, reason: "no data".into() },
        Message::Unable { inability: Inability::Run, reason: "no such file".into() },
        Message::Written(place()),
        Message::Stored(ModelPlace { host: String::new(), ..place() }),
        Message::Predecessors { ended: vec![4, 5] },
        Message::Preempted(notice()),
    ];
    [registered, of_checkpoints()].concat()
}

/// What workers say of checkpoints.
fn of_checkpoints() -> Vec<Message> {
    vec![
        Message::Saved(saved_part()),
        Message::Unsaved { id: checkpoint(), reason: UnsavedPart::Failed("no space left".into()) },
        Message::WrittenManifest(WrittenManifest {
            id: checkpoint(),
            bytes: 900,
            state_hash: [8; 32],
            deleted: vec![checkpoint()],
        }),
        Message::Damaged { id: checkpoint(), reason: "a bit flipped".into() },
        Message::Verification {
            id: checkpoint(),
            state: Verification::Reading { bytes: 1, total: 2 },
        },
    ]
}

fn from_coordinator() -> Vec<Message> {
    let (term, generation) = (TERM, GENERATION);
    vec![
        Message::Welcome { run: stated_run(), term },
        Message::Registered { worker: WORKER, term },
        Message::Refused { reason: "another model".into() },
        Message::Evicted { worker: WORKER },
        Message::Announce(record()),
        Message::HeartbeatAnswer { generation, written: STEP, lacks_lines: true, retained: 3 },
        Message::Pause { term, number: generation },
        Message::Feed {
            term,
            generation,
            joiner: WORKER,
            name: name(),
            address: address(),
            shards: vec![Shard(1)],
        },
        Message::Hold { term, generation },
        Message::Write { term, generation },
        Message::WriteManifest(ManifestToWrite {
            term,
            generation,
            parts: vec![WorkerPart { worker: WORKER, part: saved_part() }],
            bitwise: true,
            delete: vec![checkpoint()],
            sweep: STEP,
            lines: vec![line()],
            events: vec![event()],
        }),
        Message::Drain { worker: WORKER },
        Message::Dismiss,
        Message::Released { term },
        Message::Verify { term, id: checkpoint() },
    ]
}

fn of_coordinators() -> Vec<Message> {
    let (id, api) = (COORDINATOR, Some(address()));
    let view = CoordinatorView { id, name: name(), address: address(), api };
    let lineage = Lineage { run: RUN, rollback: GENERATION };
    let entry = HistoryEntry {
        index: 9,
        events: vec![HistoryEvent::Run(RUN), HistoryEvent::Event(event())],
    };
    vec![
        Message::Coordinators { revision: 8, term: TERM, leader: Some(id), members: vec![view] },
        Message::FetchKeys,
        Message::Keys(ClusterKeys {
            authority: Secret(vec![1]),
            workers: Secret(vec![2]),
            coordinators: Secret(vec![3]),
        }),
        Message::Raft(vec![1, 2, 3]),
        Message::Removed,
        Message::Join {
            id: Some(id),
            incarnation: 4,
            address: address(),
            api,
            log_format: LogFormat(2),
        },
        Message::Joined { id },
        Message::Hears { workers: 3 },
        Message::StateDigest { index: 64, digest: [7; 32] },
        Message::FetchHistory { from: 9 },
        Message::History { entries: vec![entry] },
        Message::FetchLines { lineage, after: STEP },
        Message::Lines { lineage, reach: STEP, lines: vec![line_with_scalars()] },
    ]
}

fn failed() -> Outcome {
    let (cause, address) = (UnableCause::Words("no data".into()), Some(Ipv4Addr::LOCALHOST.into()));
    let reason = UnableReason { cause, address };
    let reason = FailReason::Unable { name: name(), others: 1, reason };
    Outcome::Failed { name: Some(name()), reason }
}

fn event() -> Event {
    let reason = LossReason::LinkClosed(LinkEnd::Closed("closed".into()));
    let kind = EventKind::Lost { worker: WORKER, reason, detect_ms: 3, pause_ms: 2 };
    Event { number: 1, unix_ms: 2, kind }
}

/// A pause by a failed checkpoint.
pub fn pause() -> RunPause {
    let (worker, words) = (NamedWorker::Id(WORKER), "no space left".into());
    let reason = UnsavedReason::Worker { worker, words };
    let reason = PauseReason::Unsaved { step: Step(5), reason };
    RunPause { by: PausedBy::FailedCheckpoint, reason, since_unix_ms: 8, in_force: true }
}

/// A token as an issuer keeps it.
pub fn token() -> AcceptedToken {
    let zeros = "A".repeat(43); // 32 bytes
    let token = format!("es1.AAAAAAAAAAAA.{zeros}.{zeros}").parse::<JoinToken>();
    token.expect("a token of zeros").accepted(TokenLimits::unlimited(Role::Worker))
}

fn between_workers() -> Vec<Message> {
    vec![
        Message::Prepared(vote()),
        Message::Commit(commit()),
        Message::Go { generation: GENERATION, step: STEP },
        Message::FetchParameters { generation: GENERATION, shards: vec![Shard(1)] },
        Message::FetchState { generation: GENERATION, shards: vec![Shard(1)] },
        Message::FetchMasters { generation: GENERATION },
        Message::State { generation: GENERATION, shard: Shard(1), version: STEP, digest: 6 },
    ]
}

fn of_operators() -> Vec<Message> {
    let view = WorkerView {
        worker: WORKER,
        number: 2,
        name: name(),
        address: address(),
        rank: Some(Rank(0)),
        data_shards: 3,
        zone: Zone::parse("rack-1"),
        device: device(),
        telemetry: Some(telemetry()),
        state: WorkerState::Training,
        retained: 3,
        waits_for: Some("3 parameter shards".into()),
        host: HostName::of("node-7"),
        preemption: Some(notice()),
    };
    let label = view.label();
    let id = RequestId { client: 5, number: 6 };
    vec![
        Message::Watch { run: Some(RUN), step: STEP, event: 1 },
        Message::Update(Update {
            run: Some(RUN),
            step: STEP,
            event: 1,
            lines: vec![line()],
            events: vec![event()],
            workers: vec![view],
            idle: vec![UnregisteredWorker { name: name(), address: Some(address()) }],
            building: vec![UnregisteredWorker { name: name(), address: None }],
            forgotten: vec![WorkerId(6)],
            divergence: Some("one computes on cpu".into()),
            waiting: Some(Waiting { members: 1, wanted: 2, since_unix_ms: 3 }),
            owners_awaited: Some(WaitNotice {
                shards: 3,
                owners: vec![WorkerId(4)],
                since_unix_ms: 5,
                workers: vec![label],
                reasons: vec![LossReason::Silent(2_200)],
                checkpoint: STEP,
            }),
            model_awaited: Some(ModelAwaited {
                failed: Some(WriteFailure {
                    worker: WORKER,
                    number: 2,
                    place: place(),
                    reason: "no space left".into(),
                }),
                since_unix_ms: 6,
            }),
            unable: vec![(name(), "no such file".into())],
            unreachable: vec![(WorkerId(6), WORKER)],
            outcome: failed(),
            paused: Some(pause()),
        }),
        Message::Exited { name: name(), how: ProcessExit::Signal(15) },
        Message::Request { id, command: OperatorCommand::CreateToken(token()) },
        Message::Request { id, command: continuation() },
        Message::Answer { id, refusal: Some(Rejection::NoToken), run: Some(RUN) },
        Message::Transfer { id, to: Some(CoordinatorId(9)) },
    ]
}

fn continuation() -> OperatorCommand {
    let (origin, run) = resumed_run();
    OperatorCommand::Continue { run: Box::new(run), origin: Box::new(origin) }
}

fn questions_and_replies() -> Vec<Message> {
    let view =
        CoordinatorView { id: COORDINATOR, name: name(), address: address(), api: Some(address()) };
    let coordinator = CoordinatorStatus {
        view,
        votes: true,
        leaves: false,
        leads: false,
        matched: Some(8),
        silent_since_unix_ms: Some(3),
    };
    let run = RunView {
        id: RUN,
        name: "one".into(),
        state: "failed".into(),
        status: "failed: no disk".into(),
        step: STEP,
        generation: GENERATION,
        hash: Some([5; 32]),
        divergence: Some("one computes on cpu".into()),
        units: stated_run().model.units(),
        figures: figures(),
    };
    let revoked = RevokedView { role: Role::Operator, name: name(), since_unix_ms: 7 };
    let accepted = token();
    let TokenLimits { role, uses, expires_unix_s } = accepted.limits().clone();
    let token = TokenView {
        id: accepted.id(),
        role,
        uses_left: uses.or(Some(2)),
        expires_unix_s: expires_unix_s.or(Some(6)),
    };
    vec![
        Message::Ask(Question::Coordinators),
        Message::Ask(Question::Tokens),
        Message::Ask(Question::Runs),
        Message::Ask(Question::Revoked),
        Message::Ask(Question::Checkpoints),
        Message::Ask(Question::Operators),
        Message::AskVerification { step: STEP },
        Message::Reply(Reply::Coordinators {
            term: TERM,
            applied: 9,
            coordinators: vec![coordinator],
        }),
        Message::Reply(Reply::Tokens(vec![token])),
        Message::Reply(Reply::Runs(vec![run])),
        Message::Reply(Reply::Revoked(vec![revoked])),
        Message::Reply(Reply::Operators(vec![name()])),
        Message::Reply(Reply::Checkpoints(vec![CheckpointView {
            step: STEP,
            bytes: 900,
            seconds: Some(0.5),
            state_hash: Some("08".repeat(32)),
            complete: true,
            path: "/store/step-000005".into(),
            damage: None,
        }])),
    ]
}

/// A chunk's header, with another value in each field.
pub fn chunk() -> Chunk {
    Chunk {
        kind: ChunkKind::Reduced,
        generation: GENERATION,
        step: STEP,
        shard: Shard(3),
        level: 4,
        index: 5,
        count: 6,
        encoding: Encoding::F32,
        digest: 7,
    }
}

/// One message of each kind.
pub fn all() -> Vec<Message> {
    let workers = [from_worker(), from_coordinator(), between_workers()].concat();
    [workers, of_coordinators(), of_operators(), questions_and_replies()].concat()
}
