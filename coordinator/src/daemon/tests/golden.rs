//! Golden files: a coordinator's files of each format, as a build of that format wrote them, the
//! entries and snapshots of each format of the log, and the messages between replicas of the newest
//! protocol version. Today's build reads them. It writes the newest format of each byte by byte as
//! its golden file has it. Each number rises alone.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use everstep_transport::protocol::figures::RunFigures;
use everstep_transport::protocol::format::LogFormat;
use everstep_transport::protocol::message::Registration;
use everstep_transport::protocol::outcome::{EventKind, Inability, Outcome};
use everstep_transport::protocol::reason::{
    DeviceHang, FailReason, LossReason, NamedWorker, RollbackReason, StandstillReason, UnableCause,
    UnableReason, UnsavedReason,
};
use everstep_transport::protocol::version::PROTOCOL_VERSIONS;
use everstep_transport::protocol::{
    CoordinatorId, CoordinatorView, Generation, HistoryEntry, HistoryEvent, Lineage, Message,
    NodeName, OperatorCommand, RequestId, RunId, Step, Term, WorkerId, exemplars,
};

use crate::daemon::history_file::HistoryFile;
use crate::daemon::membership_file::{Membership, MembershipFile};
use crate::format::{self, FileFormat};
use crate::line_file::LineFiles;
use crate::lines::LineRecord;
use crate::log::Log;
use crate::log::replica::DiskOwner;
use crate::raft::{
    self, DurableState, EntryKind, HardState, LogPosition, Members, ReplicaId, Snapshot,
};
use crate::state::tests::checkpoints::rich_and_over;
use crate::state::{
    Change, Command, CommandEntry, CoordinatorInfo, Gap, LOG_FORMATS, LineHistory, Loss, OwnerWait,
    RunSoFar, State,
};

/// Writes the golden files of the newest formats anew instead of comparing with them.
const WRITE: &str = "EVERSTEP_WRITE_GOLDEN";
const CLUSTER: [u8; 32] = [7; 32];
const OWNER: DiskOwner = DiskOwner { cluster: CLUSTER, replica: ReplicaId(1) };

/// The kinds of files of a coordinator, each with a number of its own.
const FILES: [(&str, FileFormat); 4] = [
    (LOG, format::LOG_FILE_FORMAT),
    ("coordinators", format::MEMBERSHIP_FILE_FORMAT),
    ("history.log", format::HISTORY_FILE_FORMAT),
    ("metrics/1.log", format::LINES_FILE_FORMAT),
];
const LOG: &str = "log.redb";

/// The golden file of this kind and number.
fn golden(file: &str, format: u64) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/format-{format}/{file}"))
}

/// The golden file of the log's entries and snapshots of a format.
fn golden_log(LogFormat(format): LogFormat) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/log-format-{format}.txt"))
}

fn name() -> NodeName {
    NodeName::parse("node-7").expect("a valid name")
}

fn address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 40_001).into()
}

/// One entry of each kind.
fn entries() -> Vec<CommandEntry> {
    let mut entries = first_entries();
    let damaged = exemplars::listed_checkpoint().id();
    let hang = DeviceHang { spent_ms: 9_000, usual_ms: 80 };
    let worker = NamedWorker::Id(WorkerId(7));
    let outcome = Outcome::Failed { name: None, reason: FailReason::Cancelled };
    let standstill =
        EventKind::Standstill { reason: StandstillReason::DeviceHangs { worker, hang } };
    let later = [
        Command::Lose { worker: WorkerId(7), reason: LossReason::DeviceHangs(hang) },
        Command::Note { run: RunId(1), kind: standstill },
        Command::End { run: RunId(1), outcome, figures: RunFigures::default(), steps: Step(5) },
        Command::ListCheckpoint {
            run: RunId(1),
            checkpoint: exemplars::listed_checkpoint(),
            deleted: vec![damaged],
            skipped: 3,
        },
        Command::DamageCheckpoint { run: RunId(1), id: damaged, reason: "a bit flipped".into() },
        Command::FailCheckpoint { run: RunId(1), id: damaged, reason: UnsavedReason::NoPart },
        Command::SkipCheckpoint { run: RunId(1), id: damaged, earlier: Step(1) },
        Command::LeaveAll { generation: Generation(4) },
        Command::Preempt { worker: WorkerId(7), notice: exemplars::notice() },
    ];
    entries.extend(later.map(|command| CommandEntry { unix_ms: 1_700_000_000_100, command }));
    entries
}

/// A worker's registration.
fn registration() -> Registration {
    let registration = exemplars::all().into_iter().find_map(|message| match message {
        Message::Register(registration) => Some(registration),
        _ => None,
    });
    registration.expect("an example of a registration")
}

/// The entries of kinds that the log has had from its beginning.
fn first_entries() -> Vec<CommandEntry> {
    let coordinator = CoordinatorInfo {
        name: name(),
        incarnation: 4,
        address: address(),
        api: Some(address()),
        log_format: *LOG_FORMATS.start(),
    };
    let record = exemplars::all().into_iter().find_map(|message| match message {
        Message::Announce(record) => Some(record),
        _ => None,
    });
    let loss = Loss {
        worker: WorkerId(7),
        reason: LossReason::Failed("gone".into()),
        detect_ms: 60,
        pause_ms: 5,
    };
    let change = Change {
        record: record.expect("an example of a record"),
        lost: vec![loss.clone()],
        left: vec![WorkerId(8)],
        redone: true,
        unreachable: vec![(WorkerId(2), WorkerId(3))],
        rollback: Some((Step(9), RollbackReason::Asked)),
    };
    let address = Some(address().ip());
    let reason = UnableReason { cause: UnableCause::Words("no data".into()), address };
    let unable = EventKind::Unable { name: name(), reason, inability: Inability::Run };
    let reason = FailReason::Cancelled;
    let outcome = Outcome::Failed { name: Some(name()), reason };
    let id = RequestId { client: 1, number: 2 };
    let owners = vec![OwnerWait { worker: WorkerId(7), waited_ms: 3 }];
    let commands = [
        Command::Register { run: RunId(1), name: name(), registration: registration() },
        Command::Lead { coordinator: CoordinatorId(1) },
        Command::Lose { worker: WorkerId(7), reason: LossReason::Failed("gone".into()) },
        Command::Drain { worker: WorkerId(7) },
        Command::Generation(change),
        Command::LoseLines {
            lineage: Lineage { run: RunId(1), rollback: Generation(2) },
            gap: Gap { from: Step(3), to: Step(4) },
        },
        Command::Note { run: RunId(1), kind: unable },
        Command::End { run: RunId(1), outcome, figures: RunFigures::default(), steps: Step(5) },
        Command::Request {
            id,
            command: OperatorCommand::Submit(exemplars::run().into()),
            so_far: RunSoFar { steps: Step(5), figures: None },
        },
        Command::Found {
            ephemeral: false,
            founder: coordinator.clone(),
            tokens: vec![exemplars::token()],
        },
        Command::Coordinator { id: Some(CoordinatorId(1)), coordinator },
        Command::ShutOut { coordinator: CoordinatorId(3) },
        Command::Recover { survivor: CoordinatorId(1) },
        Command::SpendToken { token: [6; 9], node: name() },
        Command::Died(loss),
        Command::AwaitOwners { generation: Generation(3), owners, awaited: None },
    ];
    let entry = |(unix_ms, command)| CommandEntry { unix_ms, command };
    (1_700_000_000_000..).zip(commands).map(entry).collect()
}

/// A log with a snapshot of a rich state, and these entries behind it.
fn kept() -> DurableState {
    let state = rich_and_over();
    let position = LogPosition { index: state.index(), term: Term(1) };
    let members = Members { voters: vec![ReplicaId(1)], ..Members::default() };
    let entry = |(index, entry): (u64, CommandEntry)| raft::RaftEntry {
        position: LogPosition { index, term: Term(2) },
        kind: EntryKind::Command,
        bytes: entry.encode(*LOG_FORMATS.start()),
    };
    let all = entries();
    let commit = position.index + all.len() as u64;
    let entries = (position.index + 1..).zip(all).map(entry).collect();
    DurableState {
        hard_state: HardState { term: Term(2), vote: Some(ReplicaId(1)), commit },
        snapshot: Snapshot { position, members, bytes: state.encode() },
        base: position,
        entries,
    }
}

fn membership() -> Membership {
    let view = CoordinatorView {
        id: CoordinatorId(1),
        name: name(),
        address: address(),
        api: Some(address()),
    };
    Membership {
        name: name(),
        incarnation: 4,
        id: Some(CoordinatorId(1)),
        founds: Some(false),
        seals: [[7; 32]; 3],
        revision: 2,
        members: vec![view],
    }
}

fn history_entries() -> Vec<HistoryEntry> {
    let events = rich_and_over().events().to_vec();
    let alone = |event| vec![HistoryEvent::Run(RunId(1)), HistoryEvent::Event(event)];
    (1..).zip(events).map(|(index, event)| HistoryEntry { index, events: alone(event) }).collect()
}

fn history() -> LineHistory {
    let lineage = Lineage { run: RunId(1), rollback: Generation(0) };
    LineHistory { lineage, ..LineHistory::default() }
}

fn lines() -> Vec<LineRecord> {
    let heartbeat = exemplars::all().into_iter().find_map(|message| match message {
        Message::Heartbeat(heartbeat) => heartbeat.lines.first().cloned(),
        _ => None,
    });
    let line = heartbeat.expect("an example of a line");
    let record = |step| LineRecord {
        line: everstep_transport::protocol::MetricsLine { step: Step(step), ..line.clone() },
        ..LineRecord::default()
    };
    (1..=3).map(record).collect()
}

/// Writes a coordinator's files into a folder, each of the newest format of its kind.
fn write(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder");
    Log::create(&folder.join(LOG), OWNER, &kept()).expect("a log");
    MembershipFile::create(&folder.join("coordinators"), membership()).expect("a list");
    let path = folder.join("history.log");
    HistoryFile::create(&path, CLUSTER).expect("a history");
    let mut history_file = HistoryFile::open(&path, CLUSTER, 0).expect("the history");
    for entry in history_entries() {
        history_file.take(entry).expect("written");
    }
    let mut files = LineFiles::new(folder.join("metrics"), CLUSTER);
    files.open(&history()).expect("a file of lines");
    files.append(&lines()).expect("written");
}

/// Reads a coordinator's file. Files of all readable formats have the same content.
fn read(folder: &Path, file: &str) {
    let path = folder.join(file);
    match file {
        LOG => read_log(&path),
        "coordinators" => {
            let file = MembershipFile::load(&path).expect("the list");
            assert_eq!(*file.membership(), membership());
        }
        "history.log" => {
            let file = HistoryFile::open(&path, CLUSTER, 0).expect("the history");
            let mut found = Vec::new();
            file.visit(|entry| found.push(entry.clone())).expect("the history");
            assert_eq!(found, history_entries());
        }
        _ => read_lines(&folder.join("metrics")),
    }
}

fn read_log(path: &Path) {
    let (_, found) = Log::open(path, OWNER).expect("the log");
    assert_eq!(found, kept(), "the log");
    let state = State::decode(&found.snapshot.bytes, *LOG_FORMATS.end()).expect("a snapshot");
    assert_eq!(state.encode(), rich_and_over().encode(), "the snapshot");
    let decoded =
        found.entries.iter().map(|it| CommandEntry::decode(&it.bytes, *LOG_FORMATS.end()));
    assert_eq!(decoded.collect::<Result<Vec<_>, _>>().expect("entries"), entries());
}

fn read_lines(folder: &Path) {
    let mut files = LineFiles::new(folder.into(), CLUSTER);
    assert_eq!(files.open(&history()).expect("the lines").reach, Step(3));
    let expected: Vec<_> = lines().into_iter().map(|record| record.line).collect();
    assert_eq!(files.page(Step(0), 9).expect("the lines"), expected);
    let entries = fs::read_dir(folder).expect("a folder");
    assert_eq!(entries.count(), 1, "no file was set aside");
}

/// Copies the golden file of this kind and number into a folder.
fn copy(file: &str, format: u64, to: &Path) {
    fs::create_dir_all(to.join("metrics")).expect("a folder");
    fs::copy(golden(file, format), to.join(file)).expect("a copy");
}

#[test]
fn i23_a_file_of_any_readable_earlier_format_is_of_the_newest_format_from_then_on() {
    let mut earlier = Vec::new();
    for (file, kind) in FILES {
        for format in kind.oldest..kind.newest {
            let dir = tempfile::tempdir().expect("a directory");
            copy(file, format, dir.path());
            read(dir.path(), file);
            let head = fs::read(dir.path().join(file)).expect("the file");
            assert_eq!(head[8..16], kind.newest.to_le_bytes(), "{file}");
            read(dir.path(), file);
            earlier.push((file, format));
        }
    }
    assert_eq!(earlier, [("metrics/1.log", 1)], "the migrations that this build has");
}

#[test]
fn i23_files_of_the_newest_formats_have_the_bytes_of_their_golden_files() {
    let dir = tempfile::tempdir().expect("a directory");
    write(dir.path());
    for (file, FileFormat { newest, .. }) in FILES {
        let golden = golden(file, newest);
        if std::env::var_os(WRITE).is_some() {
            fs::create_dir_all(golden.parent().expect("a folder")).expect("a folder");
            fs::copy(dir.path().join(file), &golden).expect("a copy");
        }
        // The database has its own bytes. Its content is the log's format.
        assert!(
            file == LOG || fs::read(dir.path().join(file)).ok() == fs::read(&golden).ok(),
            "the bytes of {file} have changed: give its format the next number, and read the old \
             one. If no release has written format {newest}, run this test once with {WRITE}=1"
        );
    }
    let dir = tempfile::tempdir().expect("a directory");
    for (file, FileFormat { newest, .. }) in FILES {
        copy(file, newest, dir.path());
        read(dir.path(), file);
    }
}

/// The bytes of a line in a golden file.
fn bytes_of(hex: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&hex[at..at + 2], 16).expect("two digits");
    (0..hex.len()).step_by(2).map(digit).collect()
}

/// Lines of a golden file: names with bytes.
fn text_of(lines: &[(impl AsRef<str>, Vec<u8>)]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    lines.iter().map(|(name, bytes)| format!("{} {}\n", name.as_ref(), hex(bytes))).collect()
}

/// What a log of this format holds: a line for each entry, and one for a snapshot.
fn log_bytes(format: LogFormat) -> Vec<(&'static str, Vec<u8>)> {
    let entry = |entry: &CommandEntry| ("entry", entry.encode(format));
    let entries: Vec<_> = entries().iter().map(entry).collect();
    [entries, vec![("snapshot", rich_and_over().encode())]].concat()
}

/// Entries and snapshots state the format of the log, which may rise while the file's stays.
#[test]
fn i23_entries_and_snapshots_of_each_log_format_have_the_bytes_of_its_golden_file() {
    let newest = *LOG_FORMATS.end();
    let text = text_of(&log_bytes(newest));
    if std::env::var_os(WRITE).is_some() {
        fs::write(golden_log(newest), &text).expect("written");
    }
    let found = fs::read_to_string(golden_log(newest)).expect("each format has its golden file");
    assert!(
        text == found,
        "the bytes of entries or snapshots have changed: raise the end of LOG_FORMATS, and read \
         the format before. If no release has written format {newest}, run this test once with \
         {WRITE}=1"
    );
    for format in LOG_FORMATS.start().0..=newest.0 {
        let golden = fs::read_to_string(golden_log(LogFormat(format))).expect("its golden file");
        for line in golden.lines() {
            let (name, hex) = line.split_once(' ').expect("a name and bytes");
            let bytes = bytes_of(hex);
            match name {
                "entry" => drop(CommandEntry::decode(&bytes, newest).expect("an entry")),
                _ => drop(State::decode(&bytes, newest).expect("a snapshot")),
            }
        }
    }
}

/// Replicas of other builds read these messages inside a message of the protocol.
#[test]
fn i23_messages_between_replicas_have_the_bytes_of_the_golden_file_of_the_protocol_version() {
    let newest = PROTOCOL_VERSIONS.end();
    let path = format!("tests/golden/raft-protocol-{newest}.txt");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let messages = raft::Message::examples();
    let lines = messages.iter().map(|(name, message)| (name, message.encode().to_vec()));
    let text = text_of(&lines.collect::<Vec<_>>());
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &text).expect("written");
    }
    let golden = fs::read_to_string(&path).expect("each version has its golden file");
    assert!(
        text == golden,
        "the bytes of messages between replicas have changed: raise the end of PROTOCOL_VERSIONS. \
         If no release has spoken version {newest}, run this test once with {WRITE}=1"
    );
    for (line, (name, message)) in golden.lines().zip(messages) {
        let hex = line.strip_prefix(&format!("{name} ")).expect("the name of the message");
        assert_eq!(raft::Message::decode(&bytes_of(hex)).expect("a message"), message);
    }
}
