//! I9, as operators see it: whatever they ask for at any coordinator, and however often they say
//! it, happens once, at one moment between question and answer; and who asks what there is, is told
//! no less than anyone was told before.
//!
//! Intuition: every answer must fit into one order of all questions in which nobody who was
//! answered comes after somebody who asked later (linearizability). What was asked and not answered
//! may come anywhere after it was asked, or nowhere.
//!
//! A token is there or not, and no token has to do with another, so each has an order of its own:
//! it is searched for, with every dead end remembered (Wing and Gong; Lowe). The history only
//! grows, so of reads it is enough to compare each with the greatest that was answered before it
//! was asked.

use std::collections::{BTreeMap, BTreeSet};

use super::{Found, Invariant};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// This token is to be accepted: granted, whether it was there or not.
    Create(u64),
    /// It is not to be accepted any more: refused if it is not there.
    Revoke(u64),
    /// How long the history is.
    Read,
}

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It was done.
    Granted,
    /// It could not be.
    Refused,
    /// So many events there are.
    Saw(u64),
}

/// One question about a token, between two moments.
#[derive(Clone, Copy, Debug)]
struct Operation {
    create: bool,
    asked: u64,
    /// When it was answered, and whether it was granted.
    answered: Option<(u64, bool)>,
}

/// All that operators asked for and were told.
#[derive(Debug, Default)]
pub(super) struct Linear {
    /// Moments, counted.
    moment: u64,
    /// What each operator waits for: the call, and its place among those of its token, or how long
    /// the history was known to be when it asked.
    waiting: BTreeMap<u64, (Call, u64)>,
    tokens: BTreeMap<u64, Vec<Operation>>,
    /// The longest history that anyone was told.
    seen: u64,
}

impl Linear {
    /// An operator asks for something; it has been answered whatever it has asked for before.
    pub(super) fn asked(&mut self, client: u64, call: Call) {
        self.moment += 1;
        let place = match call {
            Call::Create(token) | Call::Revoke(token) => {
                let create = matches!(call, Call::Create(_));
                let operation = Operation { create, asked: self.moment, answered: None };
                let operations = self.tokens.entry(token).or_default();
                operations.push(operation);
                operations.len() as u64 - 1
            }
            Call::Read => self.seen,
        };
        self.waiting.insert(client, (call, place));
    }

    /// It is answered.
    pub(super) fn answered(&mut self, client: u64, reply: Reply) -> Result<(), Found> {
        self.moment += 1;
        let Some((call, place)) = self.waiting.remove(&client) else { return Ok(()) };
        let (Call::Create(token) | Call::Revoke(token)) = call else {
            return self.read(place, reply);
        };
        let operations = self.tokens.entry(token).or_default();
        operations[place as usize].answered = Some((self.moment, reply == Reply::Granted));
        if are_in_order(operations) {
            return Ok(());
        }
        let seen =
            format!("no order explains what was answered about token {token}: {operations:?}");
        Err((Invariant::I9, seen))
    }

    fn read(&mut self, known: u64, reply: Reply) -> Result<(), Found> {
        let Reply::Saw(length) = reply else { return Ok(()) };
        if length < known {
            let seen = format!("a read saw {length} events, and {known} were seen before it began");
            return Err((Invariant::I9, seen));
        }
        self.seen = self.seen.max(length);
        Ok(())
    }
}

/// Whether one order explains all answers about a token, which is not there at first.
fn are_in_order(operations: &[Operation]) -> bool {
    let mut dead_ends = BTreeSet::new();
    // Which of them have happened, and whether the token is there.
    let mut ways = vec![(0_u128, false)];
    while let Some((done, there)) = ways.pop() {
        if !dead_ends.insert((done, there)) {
            continue;
        }
        let open = || operations.iter().enumerate().filter(|(place, _)| done >> place & 1 == 0);
        let first_answer = open().filter_map(|(_, it)| it.answered.map(|(at, _)| at)).min();
        let Some(first_answer) = first_answer else { return true };
        for (place, it) in open().filter(|(_, it)| it.asked < first_answer) {
            let granted = it.create || there;
            if it.answered.is_none_or(|(_, answer)| answer == granted) {
                ways.push((done | 1 << place, it.create));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: u64 = 7;

    /// Client, then what it asks for, or is answered.
    fn history(words: &[(u64, Result<Call, Reply>)]) -> Result<(), Found> {
        let mut linear = Linear::default();
        words.iter().try_for_each(|(client, word)| match word {
            Ok(call) => {
                linear.asked(*client, *call);
                Ok(())
            }
            Err(reply) => linear.answered(*client, *reply),
        })
    }

    const CREATE: Result<Call, Reply> = Ok(Call::Create(TOKEN));
    const REVOKE: Result<Call, Reply> = Ok(Call::Revoke(TOKEN));
    const READ: Result<Call, Reply> = Ok(Call::Read);
    const YES: Result<Call, Reply> = Err(Reply::Granted);
    const NO: Result<Call, Reply> = Err(Reply::Refused);

    #[test]
    fn i9_what_happens_at_one_moment_between_question_and_answer_is_in_order() {
        let one_by_one = [(1, CREATE), (1, YES), (2, REVOKE), (2, YES), (1, REVOKE), (1, NO)];
        assert_eq!(history(&one_by_one), Ok(()));
        let at_once = [(1, CREATE), (2, REVOKE), (2, YES), (1, YES), (2, REVOKE), (2, NO)];
        assert_eq!(history(&at_once), Ok(()));
        let never_answered = [(1, CREATE), (2, REVOKE), (2, NO), (2, REVOKE), (2, YES)];
        assert_eq!(history(&never_answered), Ok(()), "it may have happened late");
    }

    #[test]
    fn i9_what_is_forgotten_or_happens_twice_is_not_in_order() {
        let forgotten = [(1, CREATE), (1, YES), (2, REVOKE), (2, NO)];
        assert!(history(&forgotten).is_err());
        let twice = [(1, CREATE), (1, YES), (1, REVOKE), (1, YES), (2, REVOKE), (2, YES)];
        assert!(history(&twice).is_err());
    }

    #[test]
    fn i9_a_read_sees_what_was_seen_before_it_began() {
        let saw = |length| Err(Reply::Saw(length));
        let while_it_grows = [(1, READ), (2, READ), (2, saw(5)), (1, saw(4)), (1, READ)];
        assert_eq!(history(&while_it_grows), Ok(()));
        let stale = [(1, READ), (1, saw(5)), (2, READ), (2, saw(4))];
        assert!(history(&stale).is_err());
    }
}
