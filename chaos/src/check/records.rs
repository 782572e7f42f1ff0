//! I1: one record for each generation's number, and no worker enters another one.

use std::collections::BTreeMap;
use std::fmt;

use everstep_transport::protocol::{Generation, Record, WorkerId};

use super::{Breach, Invariant};

/// The history of a run: its records, as the log has them.
#[derive(Debug, Default)]
pub(super) struct Records {
    records: BTreeMap<Generation, Record>,
    /// Generations in which the run was rolled back.
    rollbacks: Vec<Generation>,
}

impl Records {
    /// The log has a new record.
    pub(super) fn recorded(&mut self, record: &Record, rollback: bool) -> Result<(), Breach> {
        let first = self.records.entry(record.number).or_insert_with(|| record.clone());
        if !equal_with_nan(first, record) {
            return Err(conflicting_records(first, record));
        }
        if rollback && self.rollbacks.last() != Some(&record.number) {
            self.rollbacks.push(record.number);
        }
        Ok(())
    }

    /// Checks the record that a worker enters with.
    pub(super) fn entered(&self, record: &Record) -> Result<(), Breach> {
        match self.records.get(&record.number) {
            Some(first) if equal_with_nan(first, record) => Ok(()),
            Some(first) => Err(conflicting_records(first, record)),
            None => {
                let number = record.number;
                Err((Invariant::I1, format!("generation {number}, which the log does not have")))
            }
        }
    }

    /// The record of a generation.
    pub(super) fn record_of(&self, generation: Generation) -> Option<&Record> {
        self.records.get(&generation)
    }

    /// The current generation's record.
    pub(super) fn current(&self) -> Option<&Record> {
        self.records.last_key_value().map(|(_, record)| record)
    }

    /// Whether the worker is a member of the generation.
    pub(super) fn lists(&self, generation: Generation, worker: WorkerId) -> bool {
        self.record_of(generation).is_some_and(|record| record.rank(worker).is_some())
    }

    /// The number of the history that a generation belongs to. Each rollback begins another one.
    pub(super) fn lineage(&self, generation: Generation) -> usize {
        self.rollbacks.iter().filter(|rollback| **rollback <= generation).count()
    }
}

/// Whether both are equal. A norm or a loss in them may be NaN. NaN equals NaN here: this compares
/// the Debug text.
pub(super) fn equal_with_nan<T: PartialEq + fmt::Debug>(one: &T, other: &T) -> bool {
    one == other || format!("{one:?}") == format!("{other:?}")
}

fn conflicting_records(first: &Record, other: &Record) -> Breach {
    let number = first.number;
    (Invariant::I1, format!("two records of generation {number}: {first:?} and {other:?}"))
}
