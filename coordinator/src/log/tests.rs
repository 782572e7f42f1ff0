use everstep_transport::protocol::Term;

use super::*;
use crate::raft::{EntryKind, HardState, LogPosition, RaftEntry, ReplicaId};

const OWNER: DiskOwner = DiskOwner { cluster: [7; 32], replica: ReplicaId(1) };

/// A founder's log in a directory of its own.
struct Room {
    dir: tempfile::TempDir,
}

impl Room {
    fn new() -> Self {
        let room = Self { dir: tempfile::tempdir().expect("a directory") };
        Log::create(&room.path(), OWNER, &DurableState::founded_by(ReplicaId(1))).expect("a log");
        room
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("log.redb")
    }

    fn open(&self) -> (Log, DurableState) {
        Log::open(&self.path(), OWNER).expect("a sound log")
    }

    fn history(&self) -> SyncFile {
        let path = self.dir.path().join("history.log");
        let file = File::create(&path).expect("a file");
        SyncFile { path, file }
    }

    fn words(&self) -> String {
        Log::open(&self.path(), OWNER).map(drop).expect_err("no log").to_string()
    }

    fn writer(&self) -> (LogWriter, Receiver<Vec<u64>>) {
        let (tell, told) = mpsc::channel();
        let report = move |report: Result<Vec<WriteBatch>, LogError>| {
            let numbers = report.expect("durable").iter().map(|batch| batch.number).collect();
            tell.send(numbers).expect("heard");
        };
        (self.open().0.write(self.history(), report), told)
    }
}

/// The nth batch: one entry, behind the founder's snapshot.
fn batch(number: u64) -> WriteBatch {
    let position = LogPosition { index: 1 + number, term: Term(1) };
    WriteBatch {
        number,
        hard_state: HardState { term: Term(1), vote: None, commit: 1 },
        snapshot: None,
        base: LogPosition { index: 1, term: Term(1) },
        entries: vec![RaftEntry { position, kind: EntryKind::Command, bytes: vec![number as u8] }],
    }
}

#[test]
fn batches_are_durable_in_order_and_there_at_the_next_start() {
    let room = Room::new();
    assert_eq!(room.open().1, DurableState::founded_by(ReplicaId(1)));
    let (writer, reports) = room.writer();
    (1..=100).for_each(|number| writer.persist(batch(number)));
    drop(writer);
    assert_eq!(reports.iter().flatten().collect::<Vec<_>>(), (1..=100).collect::<Vec<_>>());
    let kept = room.open().1;
    let bytes: Vec<u8> = kept.entries.iter().flat_map(|entry| entry.bytes.clone()).collect();
    assert_eq!(bytes, (1..=100).collect::<Vec<u8>>());
}

#[test]
fn batches_that_come_while_the_disk_is_busy_go_together() {
    let room = Room::new();
    let (hold, held) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let writer = room.open().0.write(room.history(), move |report: Result<Vec<_>, _>| {
        let _ = held.recv(); // the thread is busy
        tell.send(report.expect("durable").len()).expect("heard");
    });
    writer.persist(batch(1));
    let mut sizes = Vec::new();
    hold.send(()).expect("it listens");
    sizes.push(told.recv().expect("a report"));
    (2..=51).for_each(|number| writer.persist(batch(number)));
    drop(hold);
    while sizes.iter().sum::<usize>() < 51 {
        sizes.push(told.recv().expect("a report"));
    }
    assert!(sizes.len() <= 4, "{sizes:?}");
}

#[test]
fn a_history_that_cannot_be_made_durable_is_told_by_its_own_name() {
    let room = Room::new();
    // A file that every system has, and that refuses a sync.
    let file = File::open("/dev/null").expect("a file");
    let history = SyncFile { path: "history.log".into(), file };
    let (tell, told) = mpsc::channel();
    let writer = room.open().0.write(history, move |report: Result<Vec<_>, LogError>| {
        tell.send(report.map(|batches| batches.len())).expect("heard");
    });
    let DurableState { snapshot, .. } = DurableState::founded_by(ReplicaId(1));
    writer.persist(WriteBatch { snapshot: Some(snapshot), ..batch(1) });
    let error = told.recv().expect("a report").expect_err("it is not durable").to_string();
    assert!(error.starts_with("history.log: "), "{error}");
    drop(writer);
    assert_eq!(room.open().1, DurableState::founded_by(ReplicaId(1)), "nothing came after it");
}

#[test]
fn two_coordinators_do_not_share_a_log() {
    let room = Room::new();
    let _open = room.open();
    let words = room.words();
    assert!(
        words.contains("log.redb: another process has it open: does a coordinator run"),
        "{words}"
    );
}

#[test]
fn what_is_wrong_is_said_in_words() {
    let room = Room::new();
    for (owner, wanted) in [
        (DiskOwner { cluster: [8; 32], ..OWNER }, "it is of another cluster"),
        (DiskOwner { replica: ReplicaId(9), ..OWNER }, "it is replica 1's, and this is replica 9"),
    ] {
        let error = Log::open(&room.path(), owner).map(drop).expect_err("another's").to_string();
        assert!(error.ends_with(wanted), "{error}");
    }
    std::fs::write(room.path(), "").expect("written");
    assert!(room.words().ends_with("log.redb: the file is damaged: it has no header"));
    std::fs::write(room.path(), "no database").expect("written");
    assert!(room.words().contains("log.redb: "), "{}", room.words());
    std::fs::remove_file(room.path()).expect("removed");
    assert!(room.words().contains("No such file"), "{}", room.words());
}
