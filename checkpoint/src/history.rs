//! The metrics lines and the events of a run, in the store beside its checkpoints.
//!
//! Each checkpoint brings along what came since the one before: an object of lines and one of
//! events, in the form of `metrics.jsonl` and `events.jsonl`. They are written before the manifest,
//! so a complete checkpoint has the lines of all steps up to its own. They stay when the checkpoint
//! goes.
//!
//! The lines of undone steps stay in the store. The members of a later generation have trained such
//! a step again. So the line that counts is that of the latest generation which the checkpoint's
//! own has followed.

use std::collections::BTreeMap;

use everstep_transport::protocol::outcome::Event;
use everstep_transport::protocol::{CheckpointId, MetricsLine, Step};
use serde::Serialize;

use crate::names::ObjectName;
use crate::store::{ErrorKind, MAX_SMALL_BYTES, Store, StoreError, StoredObject};

/// Writes what came since the checkpoint before this one. What is there already is of the same
/// steps, and stays.
///
/// # Errors
/// Those of the store.
pub fn write(
    store: &dyn Store,
    id: CheckpointId,
    lines: &[MetricsLine],
    events: &[Event],
) -> Result<(), StoreError> {
    put(store, &ObjectName::Lines(id), lines)?;
    put(store, &ObjectName::Events(id), events)
}

fn put<T: Serialize>(store: &dyn Store, name: &ObjectName, lines: &[T]) -> Result<(), StoreError> {
    let line = |line| serde_json::to_string(line).expect("a line is plain data") + "\n";
    let text: String = lines.iter().map(line).collect();
    if text.is_empty() || text.len() as u64 > MAX_SMALL_BYTES {
        return Ok(());
    }
    store.put_new(name, text.as_bytes()).map(drop)
}

/// The lines of the steps up to a checkpoint, as far as the store has them, by step. `read` hears
/// of the bytes of each object.
///
/// # Errors
/// If the store does not answer. A line that cannot be read is left out.
pub fn lines(
    store: &dyn Store,
    listing: &[StoredObject],
    checkpoint: CheckpointId,
    read: &mut dyn FnMut(u64),
) -> Result<Vec<MetricsLine>, StoreError> {
    let mut counted = BTreeMap::new();
    for object in listing {
        let ObjectName::Lines(id) = &object.name else { continue };
        if id.generation > checkpoint.generation {
            continue;
        }
        match store.read_whole(&object.name, MAX_SMALL_BYTES) {
            Ok(bytes) => count(&mut counted, checkpoint, &bytes),
            Err(error) if matches!(error.kind, ErrorKind::Missing | ErrorKind::Damaged) => {}
            Err(error) => return Err(error),
        }
        read(object.bytes);
    }
    Ok(counted.into_values().collect())
}

/// Takes the lines that count for a checkpoint.
fn count(counted: &mut BTreeMap<Step, MetricsLine>, checkpoint: CheckpointId, bytes: &[u8]) {
    let lines = bytes.split(|byte| *byte == b'\n');
    for line in lines.filter_map(|line| serde_json::from_slice::<MetricsLine>(line).ok()) {
        let is_there = Step(1) <= line.step && line.step <= checkpoint.step;
        let is_latest =
            counted.get(&line.step).is_none_or(|known| known.generation <= line.generation);
        if is_there && is_latest && line.generation <= checkpoint.generation {
            counted.insert(line.step, line);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use everstep_transport::protocol::Generation;

    use super::*;
    use crate::store::directory::DirectoryStore;

    fn id(step: u64, generation: u64) -> CheckpointId {
        CheckpointId { step: Step(step), generation: Generation(generation) }
    }

    fn lines_of(steps: RangeInclusive<u64>, generation: u64) -> Vec<MetricsLine> {
        let generation = Generation(generation);
        let loss = f64::NAN;
        let line = |step| MetricsLine { step: Step(step), generation, ..MetricsLine::default() };
        let mut lines: Vec<_> = steps.map(line).collect();
        lines[0].loss = loss;
        lines
    }

    /// The steps and generations of what the store tells of a checkpoint.
    fn told(store: &dyn Store, checkpoint: CheckpointId) -> Vec<(u64, u64)> {
        let listing = store.list().expect("listed");
        let lines = lines(store, &listing, checkpoint, &mut |_| {}).expect("read");
        lines.iter().map(|line| (line.step.0, line.generation.0)).collect()
    }

    #[test]
    fn i13_each_step_has_the_line_of_the_checkpoint_s_own_history() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = DirectoryStore::open(folder.path()).expect("a store");
        let write = |step, generation, lines: &[MetricsLine]| {
            write(&store, id(step, generation), lines, &[]).expect("written");
        };
        write(2, 1, &lines_of(1..=2, 1));
        write(4, 1, &lines_of(3..=4, 1));
        // The run went back to step 2 with generation 3, and the manifest of step 4 came late.
        write(4, 3, &lines_of(3..=4, 3));
        write(6, 4, &lines_of(5..=6, 4));
        assert_eq!(told(&store, id(4, 1)), [(1, 1), (2, 1), (3, 1), (4, 1)]);
        let all = [(1, 1), (2, 1), (3, 3), (4, 3), (5, 4), (6, 4)];
        assert_eq!(told(&store, id(6, 4)), all);
        assert_eq!(told(&store, id(2, 1)), all[..2]);
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = DirectoryStore::open(folder.path()).expect("a store");
        write(&store, id(2, 1), &lines_of(1..=2, 1), &[]).expect("written");
        let path = folder.path().join("history/000002-g0001.metrics.jsonl");
        let text = std::fs::read_to_string(&path).expect("text");
        std::fs::write(&path, &text[..text.len() - 9]).expect("written");
        assert_eq!(told(&store, id(2, 1)), [(1, 1)]);
        write(&store, id(4, 1), &[], &[]).expect("nothing to write");
        assert_eq!(store.list().expect("listed").len(), 1);
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let line =
            MetricsLine { loss: 0.1 + 0.2, learning_rate: 1e-3 / 3.0, ..MetricsLine::default() };
        let text = serde_json::to_string(&line).expect("plain data");
        assert_eq!(serde_json::from_str::<MetricsLine>(&text).expect("a line"), line);
    }
}
