//! Files of metrics lines, on a real disk.

use everstep_transport::protocol::Generation;
use everstep_transport::protocol::scalar::{Scalar, ScalarName};
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
        lineage: Lineage { run: RunId(7), rollback: Generation(rollback) },
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
    let place = HEAD as u64 + 44 * RecordLayout::default().size() as u64;
    file.write_all_at(&[9; 4], place + 50).expect("damaged");
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
    for run in [3, 5, 7].map(RunId) {
        let lineage = Lineage { run, ..Lineage::default() };
        all.open(&LineHistory { lineage, ..LineHistory::default() }).expect("opened");
    }
    all.keep_only(&[5, 7].map(RunId)).expect("removed");
    let there = |run: u64| dir.path().join(format!("metrics/{run}.log")).exists();
    assert_eq!([3, 5, 7].map(there), [false, true, true]);
}

/// A record whose line has these scalars, in the order of their names.
fn logged(step: u64, scalars: &[(&str, f64)]) -> LineRecord {
    let scalar = |(name, value): &(&str, f64)| Scalar {
        name: ScalarName::parse(name).expect("a valid name"),
        value: *value,
    };
    let mut record = record(step, 1);
    record.line.scalars = scalars.iter().map(scalar).collect();
    record
}

#[test]
fn a_line_with_a_new_name_makes_room_and_all_lines_stay() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut first = files(&dir);
    first.open(&history(0, 0, &[])).expect("opened");
    first.append(&records(1..=3_000, 1)).expect("written");
    let size = || fs::metadata(dir.path().join("metrics/7.log")).expect("the file").len();
    let before = size();
    let later = [
        logged(3_001, &[("loss/a", 0.5)]),
        logged(3_002, &[("accuracy", 0.25), ("loss/a", f64::INFINITY)]),
        logged(3_003, &[]),
    ];
    first.append(&later).expect("written");
    let expected: Vec<MetricsLine> = records(2_999..=3_000, 1)
        .into_iter()
        .chain(later.clone())
        .map(|record| record.line)
        .collect();
    assert_eq!(first.page(Step(2_998), 9).expect("a page"), expected);
    let names = 2 * 8 * 3_003;
    let record = RecordLayout::default().size() as u64;
    assert_eq!(size(), before + 3 * record + names, "eight bytes a name and a line");
    drop(first);
    let mut second = files(&dir);
    let found = second.open(&history(0, 0, &[])).expect("opened");
    assert_eq!((found.reach, found.recent.last()), (Step(3_003), Some(&later[2])));
    assert_eq!(second.page(Step(2_998), 9).expect("a page"), expected);
    second.append(&[logged(3_004, &[("loss/a", 1.0)])]).expect("written");
    assert_eq!(steps(&second, 3_002, 9), [3_003, 3_004]);
    let entries = fs::read_dir(dir.path().join("metrics")).expect("a folder");
    assert_eq!(entries.count(), 1, "nothing is left beside the file");
}

#[test]
fn a_file_has_room_for_sixteen_names_and_lost_lines_stay_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut all = files(&dir);
    all.open(&history(0, 0, &[(2, 3)])).expect("opened");
    all.append(&records(1..=1, 1)).expect("written");
    all.skip(Step(3)).expect("skipped");
    let names: Vec<String> = (0..20).map(|number| format!("n{number:02}")).collect();
    let scalars: Vec<(&str, f64)> = names.iter().map(|name| (name.as_str(), 2.0)).collect();
    all.append(&[logged(4, &scalars)]).expect("written");
    assert_eq!(steps(&all, 0, 9), [1], "up to the lost line");
    let kept = all.page(Step(3), 9).expect("a page");
    assert_eq!(kept, [logged(4, &scalars[..16]).line]);
    let again = files(&dir).open(&history(0, 0, &[(2, 3)])).expect("opened");
    assert_eq!(again.reach, Step(4));
}

proptest! {
    #[test]
    fn a_record_that_differs_in_a_bit_is_none(
        step in 1u64..1 << 40,
        place in any::<prop::sample::Index>(),
        bit in 0..8u8,
        names in 0usize..3,
    ) {
        let scalars = [("a", 0.5), ("b", f64::MIN_POSITIVE)];
        let record = logged(step, &scalars[..names]);
        let layout = RecordLayout::default();
        let layout = layout.grown(std::slice::from_ref(&record)).unwrap_or(layout);
        let mut bytes = layout.encode(&record);
        prop_assert_eq!(layout.decode(&bytes, Step(step)), Some(record.clone()));
        prop_assert_eq!(layout.decode(&bytes, Step(step + 1)), None);
        let place = place.index(bytes.len());
        bytes[place] ^= 1u8 << bit;
        prop_assert_eq!(layout.decode(&bytes, Step(step)), None);
    }

    /// Whatever a damaged head has, it is a layout or none.
    #[test]
    fn any_head_is_read_or_refused(size in any::<u64>(), bytes in any::<[u8; 32]>()) {
        let mut table = [0; TABLE];
        table[..32].copy_from_slice(&bytes);
        for size in [size, size % 512] {
            if let Some(layout) = RecordLayout::of(size, &table) {
                prop_assert_eq!(layout.size() as u64, size);
            }
        }
    }
}
