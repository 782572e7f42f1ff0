//! Whether one story can tell what clients saw of registers, with each operation at one moment
//! between its call and its answer (linearizability, Herlihy and Wing 1990).
//!
//! Input: a history of writes and reads, each with its times. Output: the first register without
//! such a story. Each register can be judged alone, since the property is local. This module does
//! not know what a register is. For a set, each element is a register: there or not.
//!
//! The search (Wing and Gong 1993) tells the story from its beginning. The next operation may be
//! any one that was called before the first answer of the rest. If the next operation may be a read
//! that saw the present value, the search tells it at once, since it forbids no later one. Only
//! between writes is there a choice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};

/// An operation of a client on a register, with its times on a clock that all clients share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation<K, V> {
    /// The register that the operation reads or writes.
    pub key: K,
    /// A read with its result, or a write with its value.
    pub action: Action<V>,
    /// When it was called.
    pub called: u64,
    /// When it was answered. None: the client does not know whether it was done, or ever will be.
    pub answered: Option<u64>,
}

/// An operation on a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action<V> {
    /// The register holds this value from then on.
    Write(V),
    /// The register held the first value then, and holds the second from then on. Without an answer
    /// the first value is not known, and the operation is a [`Action::Write`].
    Swap(V, V),
    /// The register held this value then. A read without an answer has seen nothing. The caller
    /// leaves it out.
    Read(V),
}

/// A register with a history that no single story explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction<K, V> {
    /// The register that the operation reads or writes.
    pub key: K,
    /// All its operations, by the times of their calls.
    pub history: Vec<Operation<K, V>>,
}

impl<K: Debug, V: Debug> fmt::Display for Contradiction<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} cannot be told as one story:", self.key)?;
        self.history
            .iter()
            .try_for_each(|it| write!(f, "\n  {} to {:?}: {:?}", it.called, it.answered, it.action))
    }
}

/// Judges a history of registers that held `initial` in the beginning.
///
/// # Errors
/// [`Contradiction`] for the first register without one story.
pub fn check<K: Clone + Ord, V: Clone + Ord>(
    initial: &V,
    history: &[Operation<K, V>],
) -> Result<(), Contradiction<K, V>> {
    let mut registers: BTreeMap<&K, Vec<&Operation<K, V>>> = BTreeMap::new();
    for operation in history {
        registers.entry(&operation.key).or_default().push(operation);
    }
    for (key, mut operations) in registers {
        operations.sort_by_key(|operation| operation.called);
        if !Linearization::new(&operations).can_be_told(initial) {
            let history = operations.into_iter().cloned().collect();
            return Err(Contradiction { key: key.clone(), history });
        }
    }
    Ok(())
}

/// The history of one register.
struct Linearization<'h, K, V> {
    operations: &'h [&'h Operation<K, V>],
    /// Sets of told operations, each with the register's value then, that led nowhere.
    dead_ends: BTreeSet<(Vec<bool>, V)>,
}

impl<'h, K, V: Clone + Ord> Linearization<'h, K, V> {
    fn new(operations: &'h [&'h Operation<K, V>]) -> Self {
        Self { operations, dead_ends: BTreeSet::new() }
    }

    /// Searches depth first, with a stack of its own: a history may be long.
    fn can_be_told(&mut self, initial: &V) -> bool {
        let mut open = vec![(vec![false; self.operations.len()], initial.clone())];
        while let Some((mut told, holds)) = open.pop() {
            self.tell_reads(&mut told, &holds);
            let is_missing = |at: usize| !told[at] && self.operations[at].answered.is_some();
            if !(0..told.len()).any(is_missing) {
                return true;
            }
            if !self.dead_ends.insert((told.clone(), holds.clone())) {
                continue;
            }
            for at in self.next(&told) {
                let value = match &self.operations[at].action {
                    Action::Write(value) => Some(value),
                    Action::Swap(held, value) if *held == holds => Some(value),
                    Action::Swap(..) | Action::Read(_) => None,
                };
                if let Some(value) = value {
                    let mut told = told.clone();
                    told[at] = true;
                    open.push((told, value.clone()));
                }
            }
        }
        false
    }

    /// Tells every read that may come next and has seen this value, until none is left.
    fn tell_reads(&self, told: &mut [bool], holds: &V) {
        loop {
            let fits = |at: &usize| match &self.operations[*at].action {
                Action::Read(value) => value == holds,
                Action::Write(_) | Action::Swap(..) => false,
            };
            let reads: Vec<usize> = self.next(told).filter(fits).collect();
            if reads.is_empty() {
                return;
            }
            reads.into_iter().for_each(|at| told[at] = true);
        }
    }

    /// The operations that may come next: they were called before the first answer of the rest.
    fn next<'t>(&'t self, told: &'t [bool]) -> impl Iterator<Item = usize> + use<'t, K, V> {
        let rest = || (0..told.len()).filter(|at| !told[*at]);
        let first = rest().filter_map(|at| self.operations[at].answered).min();
        let first = first.unwrap_or(u64::MAX);
        rest().take_while(move |at| self.operations[*at].called <= first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(value: u32, called: u64, answered: u64) -> Operation<u8, u32> {
        Operation { key: 0, action: Action::Write(value), called, answered: Some(answered) }
    }

    fn read(value: u32, called: u64, answered: u64) -> Operation<u8, u32> {
        Operation { action: Action::Read(value), ..write(0, called, answered) }
    }

    fn lost(operation: Operation<u8, u32>) -> Operation<u8, u32> {
        Operation { answered: None, ..operation }
    }

    fn holds(history: &[Operation<u8, u32>]) -> bool {
        check(&0, history).is_ok()
    }

    #[test]
    fn what_one_after_the_other_saw_is_a_story() {
        assert!(holds(&[]));
        assert!(holds(&[read(0, 0, 1), write(1, 2, 3), read(1, 4, 5), write(2, 6, 7)]));
    }

    #[test]
    fn one_of_two_may_take_what_is_there() {
        let take = |at| Operation { action: Action::Swap(1, 0), ..write(0, at, at + 9) };
        assert!(holds(&[write(1, 0, 1), take(2)]));
        assert!(!holds(&[write(1, 0, 1), take(2), take(3)]));
        assert!(holds(&[write(1, 0, 1), take(2), take(3), lost(write(1, 4, 5))]));
    }

    #[test]
    fn what_is_under_way_may_be_seen_or_not() {
        for (first, second) in [(0, 0), (0, 1), (1, 1)] {
            assert!(holds(&[write(1, 0, 10), read(first, 1, 2), read(second, 3, 4)]));
        }
        assert!(holds(&[write(1, 0, 9), write(2, 0, 9), read(2, 1, 2), read(1, 3, 4)]));
    }

    #[test]
    fn a_read_that_misses_what_was_acknowledged_before_it_is_stale() {
        assert!(!holds(&[write(1, 0, 1), read(0, 2, 3)]));
        assert!(!holds(&[write(1, 0, 1), write(2, 2, 3), read(1, 4, 5)]));
    }

    #[test]
    fn what_was_seen_once_is_not_unseen_again() {
        assert!(!holds(&[write(1, 0, 10), read(1, 1, 2), read(0, 3, 4)]));
        let seen = [read(2, 1, 2), read(1, 3, 4), read(2, 5, 6)];
        assert!(!holds(&[&[write(1, 0, 9), write(2, 0, 9)][..], &seen].concat()));
    }

    #[test]
    fn what_nobody_wrote_is_seen_by_nobody() {
        assert!(!holds(&[write(1, 0, 1), read(7, 2, 3)]));
        assert!(!holds(&[read(1, 0, 1), write(1, 2, 3)]), "before it was written");
    }

    #[test]
    fn what_was_not_answered_may_have_been_done_at_any_time_or_never() {
        let unknown = lost(write(1, 0, 0));
        assert!(holds(&[unknown.clone(), read(0, 5, 6)]));
        assert!(holds(&[unknown.clone(), read(0, 5, 6), read(1, 7, 8)]));
        assert!(!holds(&[unknown.clone(), read(1, 5, 6), read(0, 7, 8)]));
        assert!(!holds(&[read(1, 0, 1), Operation { called: 2, ..unknown }]));
    }

    #[test]
    fn registers_are_judged_one_by_one_and_the_wrong_one_is_named() {
        let other = |operation| Operation { key: 1, ..operation };
        let mut history = vec![write(1, 0, 1), other(read(0, 2, 3)), read(1, 4, 5)];
        assert_eq!(check(&0, &history), Ok(()));
        history.extend([other(write(5, 6, 7)), other(read(0, 8, 9))]);
        let wrong = check(&0, &history).expect_err("register 1 lost its value");
        assert_eq!((wrong.key, wrong.history.len()), (1, 3));
        assert!(wrong.to_string().ends_with("\n  8 to Some(9): Read(0)"), "{wrong}");
    }

    /// Twelve writes in an unknown order. The search does not repeat a failed attempt.
    #[test]
    fn many_writes_at_once_are_judged_in_no_time() {
        let mut history: Vec<_> = (1..=12).map(|value| write(value, 0, 100)).collect();
        history.extend((1..=12).map(|value| read(value, u64::from(value), u64::from(value))));
        assert!(holds(&history));
        history.push(read(3, 200, 201));
        history.push(read(4, 202, 203));
        assert!(!holds(&history));
    }
}
