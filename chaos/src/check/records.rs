//! I1: members of two different records of one number never exist.

use std::collections::BTreeMap;

use everstep_transport::protocol::{Generation, Record};

use super::{Found, Invariant};

#[derive(Debug, Default)]
pub(super) struct Records(BTreeMap<Generation, Record>);

impl Records {
    pub(super) fn entered(&mut self, record: &Record) -> Result<(), Found> {
        let first = self.0.entry(record.number).or_insert_with(|| record.clone());
        if first == record {
            return Ok(());
        }
        let seen = format!("two records of generation {}: {first:?} and {record:?}", record.number);
        Err((Invariant::I1, seen))
    }
}
