use everstep_transport::protocol::RunId;
use everstep_transport::protocol::outcome::EventKind;
use proptest::prelude::*;
use std::error::Error;

use super::*;

const CLUSTER: [u8; 32] = [7; 32];

/// A history file in a directory of its own.
struct Room {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Room {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("history.log");
        HistoryFile::create(&path, CLUSTER).expect("a history file");
        Self { _dir: dir, path }
    }

    fn open(&self) -> (HistoryFile, Vec<u64>) {
        let history_file = HistoryFile::open(&self.path, CLUSTER, 0).expect("a sound history file");
        let found = all(&history_file);
        (history_file, found)
    }

    fn words(&self, log_begins: u64) -> String {
        let opened = HistoryFile::open(&self.path, CLUSTER, log_begins);
        opened.map(drop).expect_err("no history file").to_string()
    }
}

fn entry(index: u64) -> HistoryEntry {
    HistoryEntry { index, events: vec![HistoryEvent::Run(RunId(index))] }
}

fn all(history_file: &HistoryFile) -> Vec<u64> {
    let mut found = Vec::new();
    history_file.visit(|entry| found.push(entry.index)).expect("sound");
    found
}

fn indices(entries: &[HistoryEntry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.index).collect()
}

fn take(history_file: &mut HistoryFile, indices: impl IntoIterator<Item = u64>) {
    indices.into_iter().for_each(|index| history_file.take(entry(index)).expect("written"));
}

#[test]
fn what_is_there_is_left_out_when_the_log_is_gone_through_again() {
    let room = Room::new();
    let (mut history_file, none) = room.open();
    assert!(none.is_empty());
    take(&mut history_file, [2, 5]);
    // The first `HistoryFile` still holds the file, as a killed process did.
    let (mut next, found) = room.open();
    assert_eq!(found, [2, 5]);
    take(&mut next, [2, 5, 9]);
    assert_eq!(room.open().1, [2, 5, 9]);
}

#[test]
fn a_file_that_is_cut_anywhere_keeps_every_whole_frame() {
    let room = Room::new();
    let (mut history_file, _) = room.open();
    let mut ends = vec![history_file.length];
    for index in 1..=4 {
        take(&mut history_file, [index]);
        ends.push(history_file.length);
    }
    let whole = std::fs::read(&room.path).expect("a file");
    for length in HEAD..=whole.len() {
        std::fs::write(&room.path, &whole[..length]).expect("written");
        let (mut history_file, found) = room.open();
        let kept = ends.iter().filter(|end| **end <= length as u64).count() as u64 - 1;
        assert_eq!(found.len() as u64, kept, "cut at {length}");
        take(&mut history_file, [kept + 1]);
        assert_eq!(room.open().1.len() as u64, kept + 1, "the torn tail is gone");
    }
}

/// The log repeats what it has. A gap in the rest shows.
#[test]
fn every_flipped_bit_is_an_error_or_takes_only_what_the_log_has() {
    let room = Room::new();
    let (mut history_file, _) = room.open();
    take(&mut history_file, [1, 3]);
    history_file.seal(4).expect("written");
    let sealed = history_file.length as usize;
    take(&mut history_file, [6]);
    let whole = std::fs::read(&room.path).expect("a file");
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&room.path, &flipped).expect("written");
        match HistoryFile::open(&room.path, CLUSTER, 4) {
            Ok(history_file) => assert!(bit / 8 >= sealed && all(&history_file) == [1, 3]),
            Err(_) => assert!(bit / 8 < sealed, "bit {bit}"),
        }
    }
}

#[test]
fn who_lacks_a_part_is_told_it_page_by_page() {
    let (whole, lacking) = (Room::new(), Room::new());
    let (mut teller, mut asker) = (whole.open().0, lacking.open().0);
    take(&mut asker, 1..=9);
    take(&mut teller, 1..=3_000);
    asker.lack(2_000).expect("written");
    take(&mut asker, 2_001..=2_500);
    let mut pages = 0;
    while let Some(from) = asker.wanted() {
        let page = teller.page(from, 3_007).expect("sound");
        asker.fill(page).expect("written");
        pages += 1;
    }
    assert!(pages > 2, "{pages}");
    take(&mut asker, (2_501..=3_000).chain([3_008]));
    let expected: Vec<u64> = (1..=3_000).chain([3_008]).collect();
    assert!(all(&asker) == expected);
    drop(asker);
    assert!(lacking.open().1 == expected);
}

#[test]
fn who_lacks_a_part_remembers_it_and_tells_no_more_than_it_has() {
    let room = Room::new();
    let (mut history_file, _) = room.open();
    take(&mut history_file, [2]);
    history_file.lack(50).expect("written");
    take(&mut history_file, [60]);
    history_file.seal(61).expect("written");
    assert_eq!(history_file.page(1, 70).expect("sound").last().map(|entry| entry.index), Some(2));
    assert!(history_file.page(3, 70).expect("sound").is_empty());
    assert_eq!(indices(&history_file.page(0, 70).expect("sound")), [2, 2]);
    let history_file = HistoryFile::open(&room.path, CLUSTER, 61).expect("it knows what it lacks");
    assert_eq!((history_file.wanted(), all(&history_file)), (Some(3), vec![2, 60]));
}

/// An entry with two events, the first of them with this number.
fn with_events(index: u64, number: u64) -> HistoryEntry {
    let event = |number| Event { number, unix_ms: number, kind: EventKind::Resumed };
    let events = [number, number + 1].map(|number| HistoryEvent::Event(event(number)));
    HistoryEntry { index, events: events.to_vec() }
}

fn numbers(history_file: &HistoryFile, after: u64, to: u64, most: usize) -> Vec<u64> {
    let events = history_file.events(EventRange { after, to }, most).expect("sound");
    events.iter().map(|event| event.number).collect()
}

#[test]
fn i13_events_are_read_by_their_numbers_wherever_they_stand_in_the_file() {
    let (whole, lacking) = (Room::new(), Room::new());
    let (mut teller, mut asker) = (whole.open().0, lacking.open().0);
    for index in 1..=3_000 {
        teller.take(with_events(index, 2 * index - 1)).expect("written");
    }
    asker.lack(1_500).expect("written");
    let mut next = 1_501;
    // New events come between the pages of the older ones.
    while let Some(from) = asker.wanted() {
        asker.take(with_events(next, 2 * next - 1)).expect("written");
        asker.fill(teller.page(from, 3_000).expect("sound")).expect("written");
        next += 1;
    }
    let newest = 2 * (next - 1);
    for file in [&asker, &lacking.open().0] {
        for after in (0..newest).step_by(97) {
            let expected: Vec<u64> = (after + 1..=newest).take(200).collect();
            assert_eq!(numbers(file, after, newest, 200), expected, "after {after}");
        }
        assert_eq!(
            numbers(file, 1_000, 1_003, 200),
            [1_001, 1_002, 1_003],
            "none behind the range"
        );
        assert_eq!(numbers(file, newest, newest, 200), [] as [u64; 0]);
    }
}

#[test]
fn i10_a_file_of_very_many_events_is_opened_and_read_in_flat_memory() {
    let room = Room::new();
    let mut history_file = room.open().0;
    for index in 1..=40_000 {
        history_file.take(with_events(index, 2 * index - 1)).expect("written");
    }
    let length = history_file.length;
    let (again, mut count) = (HistoryFile::open(&room.path, CLUSTER, 0).expect("sound"), 0);
    again.visit(|_| count += 1).expect("sound");
    assert_eq!(count, 40_000);
    assert_eq!(numbers(&again, 70_000, 80_000, 3), [70_001, 70_002, 70_003]);
    let stretches = again.index.since_entry(0).len() as u64;
    assert!(stretches <= 2 * length / PAGE_BYTES, "{stretches} stretches of {length} bytes");
}

#[test]
fn what_is_wrong_is_said_in_words() {
    let room = Room::new();
    take(&mut room.open().0, [1, 2]);
    let words = room.words(3);
    assert!(words.ends_with("damaged: it ends after entry 2, and the log begins at 3"), "{words}");
    let mut other = head(CLUSTER);
    other[8..16].copy_from_slice(&9_u64.to_le_bytes());
    std::fs::write(&room.path, other).expect("written");
    let words = room.words(0);
    assert!(words.contains("it has format 9, and this build of Everstep reads"), "{words}");
    std::fs::write(&room.path, head([8; 32])).expect("written");
    assert!(room.words(0).ends_with("history.log: it is of another cluster"));
    std::fs::write(&room.path, [7; HEAD]).expect("written");
    assert!(
        room.words(0).ends_with("history.log: the file is damaged: it does not begin as it should")
    );
    std::fs::remove_file(&room.path).expect("removed");
    assert!(room.words(0).contains("No such file"));
    let error = HistoryFile::open(&room.path, CLUSTER, 0).map(drop).expect_err("removed");
    let cause = error.source().and_then(|problem| problem.source());
    assert!(cause.is_some_and(|cause| cause.is::<io::Error>()), "the disk is known to be at fault");
}

proptest! {
    #[test]
    fn bytes_that_are_no_journal_never_panic(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        let room = Room::new();
        std::fs::write(&room.path, [&head(CLUSTER)[..], &tail].concat()).expect("written");
        let history_file = HistoryFile::open(&room.path, CLUSTER, 0).expect("nothing is missed");
        prop_assert!(all(&history_file).is_empty());
    }
}
