//! Compares everything that replicas do with what they promise.

use std::collections::BTreeMap;
use std::fmt;

use everstep_coordinator::raft::{CommittedEntry, LogPosition, RaftEntry, ReplicaId, WriteBatch};
use everstep_transport::protocol::Term;

use super::machine::{Machine, value};

/// A promise that the judge checks at every event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// No term has two leaders.
    OneLeader,
    /// Entries of one place are one entry, and follow the same one.
    LogMatching,
    /// All replicas apply the same entries, each once and in order. Equal indices have equal
    /// states.
    Agreement,
    /// Every acknowledged entry is there.
    DurableState,
    /// A read sees all entries that were acknowledged before it began.
    Linearizable,
    /// When faults have stopped, a leader exists within a second, and all agree soon after.
    Alive,
}

#[derive(Debug)]
pub struct Broken {
    pub promise: Promise,
    pub words: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.promise, self.words)
    }
}

pub type Verdict = Result<(), Broken>;

pub fn broken(promise: Promise, words: String) -> Verdict {
    Err(Broken { promise, words })
}

#[derive(Default)]
pub struct Judge {
    leaders: BTreeMap<Term, ReplicaId>,
    /// Entries by place, with the place before.
    written: BTreeMap<LogPosition, (RaftEntry, LogPosition)>,
    /// The first application at each index, with the state of the machine after it.
    agreed: BTreeMap<u64, (CommittedEntry, Machine)>,
    /// Proposals by their places, until they are acknowledged.
    proposed: BTreeMap<LogPosition, u64>,
    acknowledged: BTreeMap<u64, u64>,
    /// The index that was acknowledged when each read began.
    reads: BTreeMap<u64, u64>,
    pub answered: usize,
}

impl Judge {
    pub fn leads(&mut self, id: ReplicaId, term: Term) -> Verdict {
        match *self.leaders.entry(term).or_insert(id) {
            first if first == id => Ok(()),
            first => broken(Promise::OneLeader, format!("{first} and {id} lead in term {term}")),
        }
    }

    pub fn writes(&mut self, batch: &WriteBatch, before: LogPosition) -> Verdict {
        let mut before = before;
        for entry in &batch.entries {
            let position = entry.position;
            let known = self.written.entry(position).or_insert_with(|| (entry.clone(), before));
            if *known != (entry.clone(), before) {
                return broken(Promise::LogMatching, format!("two entries at {position:?}"));
            }
            before = position;
        }
        Ok(())
    }

    pub fn proposed(&mut self, position: LogPosition, number: u64) {
        self.proposed.insert(position, number);
    }

    /// A replica applies an entry. `leads` means that it proposed the entry, and now acknowledges
    /// it.
    pub fn applies(
        &mut self,
        machine: &mut Machine,
        agreed: &CommittedEntry,
        leads: bool,
    ) -> Verdict {
        let LogPosition { index, .. } = agreed.position;
        if index <= machine.applied {
            return broken(Promise::Agreement, format!("{index} applied again, or late"));
        }
        machine.apply(agreed);
        let first = self.agreed.entry(index).or_insert_with(|| (agreed.clone(), *machine));
        if *first != (agreed.clone(), *machine) {
            return broken(Promise::Agreement, format!("two histories meet at {index}"));
        }
        if leads && self.proposed.get(&agreed.position) == Some(&value(&agreed.bytes)) {
            self.acknowledged.insert(index, value(&agreed.bytes));
        }
        Ok(())
    }

    pub fn installs(&mut self, before: &Machine, after: &Machine) -> Verdict {
        let known = self.agreed.get(&after.applied).map(|(_, machine)| *machine);
        if *after != Machine::default() && known != Some(*after) {
            return broken(Promise::Agreement, format!("a snapshot of no history: {after:?}"));
        }
        if after.applied < before.applied {
            return broken(Promise::Agreement, "a snapshot of the past".into());
        }
        Ok(())
    }

    pub fn begins_to_read(&mut self, ticket: u64) {
        let last = self.acknowledged.keys().next_back();
        self.reads.insert(ticket, last.copied().unwrap_or(0));
    }

    pub fn reads(&mut self, ticket: u64, machine: &Machine) -> Verdict {
        let Some(before) = self.reads.remove(&ticket) else {
            return broken(Promise::Linearizable, format!("ticket {ticket} answered twice"));
        };
        self.answered += 1;
        if machine.applied < before {
            return broken(Promise::Linearizable, format!("a read lacks {before}"));
        }
        Ok(())
    }

    pub fn loses(&mut self, ticket: u64) {
        self.reads.remove(&ticket);
    }

    pub fn acknowledged(&self) -> usize {
        self.acknowledged.len()
    }

    pub fn is_acknowledged(&self, number: u64) -> bool {
        self.acknowledged.values().next_back() == Some(&number)
    }

    /// Whether a machine has every acknowledged entry.
    pub fn holds_all(&self, machine: &Machine) -> Verdict {
        let last = self.acknowledged.keys().next_back().copied().unwrap_or(0);
        let known = self.agreed.range(..=machine.applied).next_back();
        let same = known.is_none_or(|(_, (_, known))| known == machine);
        let has = |(index, number): (&u64, &u64)| {
            self.agreed.get(index).is_some_and(|(agreed, _)| value(&agreed.bytes) == *number)
        };
        match same && machine.applied >= last && self.acknowledged.iter().all(has) {
            true => Ok(()),
            false => {
                broken(Promise::DurableState, format!("not all up to {last} is in {machine:?}"))
            }
        }
    }
}
