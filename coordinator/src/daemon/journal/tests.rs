use everstep_transport::protocol::News;
use proptest::prelude::*;
use std::error::Error;

use super::*;

const CLUSTER: [u8; 32] = [7; 32];

/// A journal in a directory of its own.
struct Room {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Room {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("history.log");
        Journal::create(&path, CLUSTER).expect("a journal");
        Self { _dir: dir, path }
    }

    fn open(&self) -> (Journal, Vec<u64>) {
        let (journal, frames) = Journal::open(&self.path, CLUSTER, 0).expect("a sound journal");
        (journal, indices(&frames))
    }

    fn words(&self, log_begins: u64) -> String {
        let opened = Journal::open(&self.path, CLUSTER, log_begins);
        opened.map(drop).expect_err("no journal").to_string()
    }
}

fn frame(index: u64) -> Frame {
    Frame { index, news: vec![News::Run(index)] }
}

fn indices(frames: &[Frame]) -> Vec<u64> {
    frames.iter().map(|frame| frame.index).collect()
}

fn take(journal: &mut Journal, indices: impl IntoIterator<Item = u64>) {
    indices.into_iter().for_each(|index| journal.take(frame(index)).expect("written"));
}

#[test]
fn what_is_there_is_left_out_when_the_log_is_gone_through_again() {
    let room = Room::new();
    let (mut journal, none) = room.open();
    assert!(none.is_empty());
    take(&mut journal, [2, 5]);
    // The first journal still holds the file, as a killed process did.
    let (mut next, found) = room.open();
    assert_eq!(found, [2, 5]);
    take(&mut next, [2, 5, 9]);
    assert_eq!(room.open().1, [2, 5, 9]);
}

#[test]
fn a_file_that_is_cut_anywhere_keeps_every_whole_frame() {
    let room = Room::new();
    let (mut journal, _) = room.open();
    let mut ends = vec![journal.length];
    for index in 1..=4 {
        take(&mut journal, [index]);
        ends.push(journal.length);
    }
    let whole = std::fs::read(&room.path).expect("a file");
    for length in HEAD..=whole.len() {
        std::fs::write(&room.path, &whole[..length]).expect("written");
        let (mut journal, found) = room.open();
        let kept = ends.iter().filter(|end| **end <= length as u64).count() as u64 - 1;
        assert_eq!(found.len() as u64, kept, "cut at {length}");
        take(&mut journal, [kept + 1]);
        assert_eq!(room.open().1.len() as u64, kept + 1, "the torn tail is gone");
    }
}

/// The log repeats what it has. A gap in the rest shows.
#[test]
fn every_flipped_bit_is_an_error_or_takes_only_what_the_log_has() {
    let room = Room::new();
    let (mut journal, _) = room.open();
    take(&mut journal, [1, 3]);
    journal.seal(4).expect("written");
    let sealed = journal.length as usize;
    take(&mut journal, [6]);
    let whole = std::fs::read(&room.path).expect("a file");
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&room.path, &flipped).expect("written");
        match Journal::open(&room.path, CLUSTER, 4) {
            Ok((_, frames)) => assert!(bit / 8 >= sealed && indices(&frames) == [1, 3]),
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
    assert!(indices(&asker.all().expect("sound")) == expected);
    drop(asker);
    assert!(lacking.open().1 == expected);
}

#[test]
fn who_lacks_a_part_remembers_it_and_tells_no_more_than_it_has() {
    let room = Room::new();
    let (mut journal, _) = room.open();
    take(&mut journal, [2]);
    journal.lack(50).expect("written");
    take(&mut journal, [60]);
    journal.seal(61).expect("written");
    assert_eq!(journal.page(1, 70).expect("sound").last().map(|frame| frame.index), Some(2));
    assert!(journal.page(3, 70).expect("sound").is_empty());
    assert_eq!(indices(&journal.page(0, 70).expect("sound")), [2, 2]);
    let (journal, frames) = Journal::open(&room.path, CLUSTER, 61).expect("it knows what it lacks");
    assert_eq!((journal.wanted(), indices(&frames)), (Some(3), vec![2, 60]));
}

#[test]
fn what_is_wrong_is_said_in_words() {
    let room = Room::new();
    take(&mut room.open().0, [1, 2]);
    let words = room.words(3);
    assert!(words.ends_with("damaged: it ends after entry 2, and the log begins at 3"), "{words}");
    let mut other = head(CLUSTER);
    other[9] ^= 1;
    std::fs::write(&room.path, other).expect("written");
    assert!(room.words(0).ends_with("it was written by another version of Everstep"));
    std::fs::write(&room.path, head([8; 32])).expect("written");
    assert!(room.words(0).ends_with("history.log: it is of another cluster"));
    std::fs::write(&room.path, [7; HEAD]).expect("written");
    assert!(
        room.words(0).ends_with("history.log: the file is damaged: it does not begin as it should")
    );
    std::fs::remove_file(&room.path).expect("removed");
    assert!(room.words(0).contains("No such file"));
    let error = Journal::open(&room.path, CLUSTER, 0).map(drop).expect_err("removed");
    let cause = error.source().and_then(|problem| problem.source());
    assert!(cause.is_some_and(|cause| cause.is::<io::Error>()), "the disk is known to be at fault");
}

proptest! {
    #[test]
    fn bytes_that_are_no_journal_never_panic(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        let room = Room::new();
        std::fs::write(&room.path, [&head(CLUSTER)[..], &tail].concat()).expect("written");
        let (_, frames) = Journal::open(&room.path, CLUSTER, 0).expect("nothing is missed");
        prop_assert!(frames.is_empty());
    }
}
