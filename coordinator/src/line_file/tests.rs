//! Files of metrics lines, on a real disk.

use everstep_transport::protocol::Generation;
use proptest::prelude::*;

use super::*;
use crate::state::{Gap, Undone};

fn record(step: u64, generation: u64) -> LineRecord {
    let (step, generation) = (Step(step), Generation(generation));
    let line = MetricsLine { step, generation, loss: 1.0 / step.0 as f64, ..Default::default() };
    LineRecord { line, ..LineRecord::default() }
}

fn records(steps: std::ops::RangeInclusive<u64>, generation: u64) -> Vec<LineRecord> {
    steps.map(|step| record(step, generation)).collect()
}

fn history(rollback: u64, back_to: u64, gaps: &[(u64, u64)]) -> LineHistory {
    let gap = |(from, to): &(u64, u64)| Gap { from: Step(*from), to: Step(*to) };
    let undone = Undone { after: Step(back_to), before: Generation(rollback) };
    let undone = (rollback > 0).then_some(undone);
    LineHistory {
        lineage: Lineage { run: 7, rollback: Generation(rollback) },
        undone: undone.into_iter().collect(),
        gaps: gaps.iter().map(gap).collect(),
    }
}

fn files(dir: &tempfile::TempDir) -> LineFiles {
    LineFiles::new(dir.path().join("metrics"), [3; 32])
}

fn steps(files: &LineFiles, after: u64, most: usize) -> Vec<u64> {
    let page = files.page(Step(after), most).expect("a page");
    page.iter().map(|line| line.step.0).collect()
}

#[test]
fn pages_are_read_from_any_step_before_and_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut first = files(&dir);
    assert_eq!(first.open(&history(0, 0, &[])).expect("opened"), LinesFound::default());
    first.append(&records(1..=5_000, 1)).expect("written");
    assert_eq!(steps(&first, 4_997, 200), [4_998, 4_999, 5_000]);
    drop(first);
    let mut second = files(&dir);
    let found = second.open(&history(0, 0, &[])).expect("opened");
    assert_eq!((found.reach, found.first_loss, found.recent.len()), (Step(5_000), Some(1.0), 20));
    assert_eq!(steps(&second, 2_000, 3), [2_001, 2_002, 2_003]);
    assert!(steps(&second, 9_999, 3).is_empty());
    second.append(&records(5_001..=5_002, 1)).expect("written");
    assert_eq!(steps(&second, 5_000, 9), [5_001, 5_002]);
}

#[test]
fn a_torn_end_is_cut_away() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut first = files(&dir);
    first.open(&history(0, 0, &[])).expect("opened");
    first.append(&records(1..=50, 1)).expect("written");
    let path = dir.path().join("metrics/7.log");
    let length = fs::metadata(&path).expect("the file").len();
    let file = OpenOptions::new().write(true).open(&path).expect("the file");
    file.set_len(length - 5).expect("cut");
    file.write_all_at(&[9; 4], place(Step(44)) + 50).expect("damaged");
    let found = files(&dir).open(&history(0, 0, &[])).expect("opened");
    assert_eq!(found.reach, Step(44), "up to the damaged record");
}

/// I13: opening a file cuts undone lines once, whether or not the process lived to see the
/// rollback.
#[test]
fn i13_a_rollback_cuts_the_lines_of_the_history_before_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut first = files(&dir);
    first.open(&history(0, 0, &[])).expect("opened");
    first.append(&records(1..=50, 1)).expect("written");
    assert_eq!(first.open(&history(4, 30, &[])).expect("opened").reach, Step(30));
    first.append(&records(31..=33, 4)).expect("written");
    drop(first);
    let mut again = files(&dir);
    // A restarted coordinator goes through its log again. Entries before the rollback cut no lines.
    assert_eq!(again.open(&history(0, 0, &[])).expect("opened").reach, Step(33));
    assert_eq!(again.open(&history(4, 30, &[])).expect("opened").reach, Step(33));
    assert_eq!(again.open(&history(9, 0, &[])).expect("opened").reach, Step(0));
}

#[test]
fn lost_lines_are_skipped_and_no_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut first = files(&dir);
    let lost = history(0, 0, &[(4, 2_000)]);
    first.open(&lost).expect("opened");
    first.append(&records(1..=3, 1)).expect("written");
    first.skip(Step(2_000)).expect("skipped");
    first.append(&records(2_001..=2_002, 2)).expect("written");
    assert_eq!(steps(&first, 0, 200), [1, 2, 3]);
    assert_eq!(steps(&first, 2_000, 200), [2_001, 2_002]);
    assert_eq!(files(&dir).open(&lost).expect("opened").reach, Step(2_002));
    let known = files(&dir).open(&history(0, 0, &[])).expect("opened");
    assert_eq!(known.reach, Step(3), "zeros that are no gap are damage");
}

#[test]
fn a_file_of_another_cluster_is_set_aside() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut first = files(&dir);
    first.open(&history(0, 0, &[])).expect("opened");
    first.append(&records(1..=3, 1)).expect("written");
    let mut other = LineFiles::new(dir.path().join("metrics"), [4; 32]);
    assert_eq!(other.open(&history(0, 0, &[])).expect("opened").reach, Step(0));
    assert!(dir.path().join("metrics/7.log.unusable").exists());
}

#[test]
fn files_of_forgotten_runs_are_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut all = files(&dir);
    for run in [3, 5, 7] {
        let lineage = Lineage { run, ..Lineage::default() };
        all.open(&LineHistory { lineage, ..LineHistory::default() }).expect("opened");
    }
    all.keep_only(&[5, 7]).expect("removed");
    let there = |run: u64| dir.path().join(format!("metrics/{run}.log")).exists();
    assert_eq!([3, 5, 7].map(there), [false, true, true]);
}

proptest! {
    #[test]
    fn a_record_that_differs_in_a_bit_is_none(
        step in 1u64..1 << 40,
        place in 0..RECORD,
        bit in 0..8u8,
    ) {
        let mut bytes = encode(&record(step, 3));
        prop_assert_eq!(decode(&bytes, Step(step)), Some(record(step, 3)));
        prop_assert_eq!(decode(&bytes, Step(step + 1)), None);
        bytes[place] ^= 1u8 << bit;
        prop_assert_eq!(decode(&bytes, Step(step)), None);
    }
}
