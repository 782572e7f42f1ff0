use std::sync::mpsc::Receiver;

use proptest::prelude::*;

use super::*;
use crate::state::Command;

/// A log in a directory of its own.
struct Room {
    dir: tempfile::TempDir,
}

impl Room {
    fn new() -> Self {
        let room = Self { dir: tempfile::tempdir().expect("a directory") };
        Log::create(&room.path()).expect("a log");
        room
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("log.redb")
    }

    fn open(&self) -> (Log, Vec<Agreed>) {
        Log::open(&self.path()).expect("a sound log")
    }
}

type Reports = Receiver<Result<Vec<Agreed>, LogError>>;

fn writer(log: Log) -> (Writer, Reports) {
    let (tell, told) = mpsc::channel();
    (log.write(move |report| tell.send(report).expect("heard")), told)
}

fn entry(unix_ms: u64) -> Entry {
    Entry { unix_ms, command: Command::Lead }
}

/// What has become durable of so many proposals.
fn agreed(reports: &Reports, count: usize) -> Vec<Agreed> {
    let mut agreed = Vec::new();
    while agreed.len() < count {
        agreed.extend(reports.recv().expect("a report").expect("durable"));
    }
    agreed
}

#[test]
fn entries_come_back_in_the_order_of_their_proposals_and_are_there_at_the_next_start() {
    let room = Room::new();
    let (log, none) = room.open();
    assert!(none.is_empty());
    assert_eq!(log.term(), Term(1));
    let (writer, reports) = writer(log);
    (1..=100).for_each(|number| writer.propose(entry(number)));
    let agreed = agreed(&reports, 100);
    for (agreed, number) in agreed.iter().zip(1..) {
        assert_eq!(agreed, &Agreed { index: number, term: Term(1), entry: entry(number) });
    }
    drop(writer);
    let (log, found) = room.open();
    assert_eq!(found, agreed);
    assert_eq!(log.term(), Term(2));
}

#[test]
fn what_was_proposed_is_written_before_the_log_closes() {
    let room = Room::new();
    let (writer, reports) = writer(room.open().0);
    (1..=10).for_each(|number| writer.propose(entry(number)));
    drop(writer);
    assert_eq!(agreed(&reports, 10), room.open().1);
}

#[test]
fn entries_that_come_while_the_disk_is_busy_go_together() {
    let room = Room::new();
    let (hold, held) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let writer = room.open().0.write(move |report: Result<Vec<_>, _>| {
        let _ = held.recv(); // the thread is busy
        tell.send(report.expect("durable").len()).expect("heard");
    });
    writer.propose(entry(1));
    let mut batches = Vec::new();
    hold.send(()).expect("it listens");
    batches.push(told.recv().expect("a batch"));
    (2..=51).for_each(|number| writer.propose(entry(number)));
    drop(hold);
    while batches.iter().sum::<usize>() < 51 {
        batches.push(told.recv().expect("a batch"));
    }
    assert!(batches.len() <= 4, "{batches:?}");
}

#[test]
fn two_coordinators_do_not_share_a_log() {
    let room = Room::new();
    let _open = room.open();
    let error = Log::open(&room.path()).map(drop).expect_err("it is in use").to_string();
    assert!(
        error.contains("log.redb: another process has it open: does a coordinator run"),
        "{error}"
    );
}

#[test]
fn what_is_wrong_is_said_in_words() {
    let room = Room::new();
    let words = || Log::open(&room.path()).map(drop).expect_err("no log").to_string();
    assert!(matches!(Log::create(&room.path()), Err(LogError::File { .. })), "there is one");
    std::fs::write(room.path(), "").expect("written");
    assert!(words().ends_with("log.redb: the file is damaged: it has no header"), "{}", words());
    std::fs::write(room.path(), "no database").expect("written");
    assert!(words().contains("log.redb: "), "{}", words());
    std::fs::remove_file(room.path()).expect("removed");
    assert!(words().contains("No such file"), "{}", words());
    Store::create(open(&room.path(), OpenOptions::new().create_new(true)).expect("a file"), 7)
        .expect("a log of another build");
    assert!(words().contains("another version of Everstep (0000000000000007, this is "));
}

#[test]
fn an_entry_that_cannot_be_decoded_is_an_error() {
    let room = Room::new();
    let file = || open(&room.path(), &mut OpenOptions::new()).expect("a file");
    let (mut store, _) = Store::open(file(), schema()).expect("a log");
    store.append(&[encode(&entry(1)), b"no entry".to_vec()]).expect("written");
    drop(store);
    let error = Log::open(&room.path()).map(drop).expect_err("it is garbled");
    assert!(matches!(error, LogError::Garbled { index: 2, .. }), "{error}");
}

proptest! {
    #[test]
    fn bytes_that_are_no_entry_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let row = Row { index: 1, term: Term(1), bytes };
        let _ = decode(Path::new("log.redb"), row);
    }
}
