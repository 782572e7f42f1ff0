//! I9, as operators see it: whatever they ask for at any coordinator, and however often they say
//! it, happens once, at one moment between question and answer.
//!
//! A token is there or not: a register. It is made whether it was there or not; to revoke it is
//! refused where it is not there, so the answer also tells what was there. What was asked and never
//! answered may have happened at any moment since, or not.

use std::collections::BTreeMap;

use super::linear::{Action, Operation, check};
use super::{Found, Invariant};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// This token is to be accepted: granted, whether it was there or not.
    Create(u64),
    /// It is not to be accepted any more: refused if it is not there.
    Revoke(u64),
}

/// All that operators asked for and were told.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// Moments, counted.
    moment: u64,
    /// Where in the history that is which each operator waits for.
    waiting: BTreeMap<u64, (Call, usize)>,
    history: Vec<Operation<u64, bool>>,
}

impl Asked {
    /// An operator asks for something; it has been answered whatever it has asked for before.
    pub(super) fn asked(&mut self, client: u64, call: Call) {
        self.moment += 1;
        let (Call::Create(key) | Call::Revoke(key)) = call;
        let action = Action::Write(matches!(call, Call::Create(_)));
        self.waiting.insert(client, (call, self.history.len()));
        self.history.push(Operation { key, action, called: self.moment, answered: None });
    }

    /// It is answered.
    pub(super) fn answered(&mut self, client: u64, granted: bool) -> Result<(), Found> {
        self.moment += 1;
        let Some((call, place)) = self.waiting.remove(&client) else { return Ok(()) };
        let operation = &mut self.history[place];
        operation.answered = Some(self.moment);
        operation.action = match call {
            Call::Create(_) => Action::Write(true),
            Call::Revoke(_) if granted => Action::Swap(true, false),
            Call::Revoke(_) => Action::Read(false),
        };
        let key = operation.key;
        let of_token = |it: &&Operation<u64, bool>| it.key == key;
        let history: Vec<_> = self.history.iter().filter(of_token).cloned().collect();
        check(&false, &history).map_err(|wrong| (Invariant::I9, format!("token {wrong}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREATE: Result<Call, bool> = Ok(Call::Create(7));
    const REVOKE: Result<Call, bool> = Ok(Call::Revoke(7));
    const YES: Result<Call, bool> = Err(true);
    const NO: Result<Call, bool> = Err(false);

    /// An operator, then what it asks for, or is answered.
    fn history(words: &[(u64, Result<Call, bool>)]) -> Result<(), Found> {
        let mut asked = Asked::default();
        words.iter().try_for_each(|(client, word)| match word {
            Ok(call) => {
                asked.asked(*client, *call);
                Ok(())
            }
            Err(granted) => asked.answered(*client, *granted),
        })
    }

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
}
