//! I15: every member of a record had promised its number to its proposer before the proposal.
//! Promises never fall. I7, as far as it is about promises: a worker that has promised a number
//! takes no part in an older generation any more.

use std::collections::{BTreeMap, BTreeSet};

use everstep_transport::protocol::{Generation, Record, Term, WorkerId};

use super::{Breach, Invariant};

#[derive(Debug, Default)]
pub(super) struct Promises {
    /// The newest promise of each worker.
    newest: BTreeMap<WorkerId, (Term, Generation)>,
    all: BTreeSet<(WorkerId, Term, Generation)>,
}

impl Promises {
    pub(super) fn promised(
        &mut self,
        worker: WorkerId,
        term: Term,
        number: Generation,
    ) -> Result<(), Breach> {
        let before = self.newest.insert(worker, (term, number)).unwrap_or_default();
        self.all.insert((worker, term, number));
        if term >= before.0 && number >= before.1 {
            return Ok(());
        }
        let seen = format!(
            "worker {worker} had promised generation {} to term {}, now {number} to {term}",
            before.1, before.0
        );
        Err((Invariant::I15, seen))
    }

    pub(super) fn proposed(&self, record: &Record) -> Result<(), Breach> {
        let (term, number) = (record.term, record.number);
        let missing = record.members.iter().map(|member| member.worker);
        let mut missing = missing.filter(|worker| !self.all.contains(&(*worker, term, number)));
        missing.next().map_or(Ok(()), |worker| {
            let seen = format!(
                "generation {number} of term {term} lists worker {worker}, which has not promised \
                 it"
            );
            Err((Invariant::I15, seen))
        })
    }

    /// A worker sends, takes or commits something of a generation.
    pub(super) fn acts(
        &self,
        worker: WorkerId,
        generation: Generation,
        what: std::fmt::Arguments<'_>,
    ) -> Result<(), Breach> {
        let (_, promised) = self.newest.get(&worker).copied().unwrap_or_default();
        if generation >= promised {
            return Ok(());
        }
        let seen = format!(
            "worker {worker} has promised generation {promised}, and {what} of generation \
             {generation}"
        );
        Err((Invariant::I7, seen))
    }
}

/// A record counts only if its proposer still led when the record came into the log.
pub(super) fn recorded(record: &Record, term: Term) -> Result<(), Breach> {
    if record.term == term {
        return Ok(());
    }
    let seen =
        format!("generation {} of term {} is recorded in term {term}", record.number, record.term);
    Err((Invariant::I15, seen))
}
