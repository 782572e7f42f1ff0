use proptest::prelude::*;

use super::*;

/// A journal in a directory of its own.
struct Room {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Room {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("metrics.log");
        Journal::create(&path).expect("a journal");
        Self { _dir: dir, path }
    }

    fn open(&self) -> (Journal, Vec<u64>) {
        let (journal, lines) = Journal::open(&self.path).expect("a sound journal");
        (journal, steps(&lines))
    }
}

fn steps(lines: &[MetricsLine]) -> Vec<u64> {
    lines.iter().map(|line| line.step.0).collect()
}

fn lines(steps: std::ops::RangeInclusive<u64>) -> Vec<MetricsLine> {
    steps.map(|step| MetricsLine { step: Step(step), loss: 0.5, ..Default::default() }).collect()
}

#[test]
fn lines_are_there_when_a_coordinator_starts_again() {
    let room = Room::new();
    let (mut journal, none) = room.open();
    assert!(none.is_empty());
    journal.record(lines(1..=2)).expect("written");
    journal.record(lines(3..=3)).expect("written");
    // It still holds the file, as a process that was killed did.
    let (mut next, found) = room.open();
    assert_eq!(found, [1, 2, 3]);
    next.record(lines(4..=4)).expect("written");
    assert_eq!(room.open().1, [1, 2, 3, 4]);
}

#[test]
fn what_a_rollback_forgot_stays_forgotten() {
    let room = Room::new();
    let (mut journal, _) = room.open();
    journal.record(lines(1..=5)).expect("written");
    journal.forget(Step(2)).expect("written");
    journal.record(lines(3..=3)).expect("written");
    assert_eq!(room.open().1, [1, 2, 3]);
}

#[test]
fn a_file_that_is_cut_anywhere_keeps_every_whole_frame() {
    let room = Room::new();
    let (mut journal, _) = room.open();
    let mut ends = vec![journal.length];
    for step in 1..=4 {
        journal.record(lines(step..=step)).expect("written");
        ends.push(journal.length);
    }
    let whole = std::fs::read(&room.path).expect("a file");
    for length in HEAD..=whole.len() {
        std::fs::write(&room.path, &whole[..length]).expect("written");
        let (mut journal, found) = room.open();
        let kept = ends.iter().filter(|end| **end <= length as u64).count() as u64 - 1;
        assert_eq!(found.len() as u64, kept, "cut at {length}");
        journal.record(lines(kept + 1..=kept + 1)).expect("written");
        assert_eq!(room.open().1.len() as u64, kept + 1, "the torn tail is gone");
    }
}

#[test]
fn every_flipped_bit_is_an_error() {
    let room = Room::new();
    let (mut journal, _) = room.open();
    journal.record(lines(1..=2)).expect("written");
    journal.record(lines(3..=3)).expect("written");
    let whole = std::fs::read(&room.path).expect("a file");
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&room.path, &flipped).expect("written");
        assert!(Journal::open(&room.path).is_err(), "bit {bit}");
    }
}

#[test]
fn what_is_wrong_is_said_in_words() {
    let room = Room::new();
    let words = || Journal::open(&room.path).map(drop).expect_err("no journal").to_string();
    std::fs::write(&room.path, [head(), [7; HEAD]].concat()).expect("written");
    assert!(
        words().ends_with("metrics.log: the file is damaged: byte 16 begins what was not written")
    );
    let mut other = head();
    other[9] ^= 1;
    std::fs::write(&room.path, other).expect("written");
    assert!(words().ends_with("it was written by another version of Everstep"));
    std::fs::remove_file(&room.path).expect("removed");
    assert!(words().contains("No such file"));
}

proptest! {
    #[test]
    fn bytes_that_are_no_journal_never_panic(tail in prop::collection::vec(any::<u8>(), 0..200)) {
        let room = Room::new();
        std::fs::write(&room.path, [&head()[..], &tail].concat()).expect("written");
        if let Ok((_, lines)) = Journal::open(&room.path) {
            prop_assert!(lines.is_empty());
        }
    }
}
