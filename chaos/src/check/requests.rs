//! I9, as operators see it: each request happens once, at one moment between question and answer,
//! at whichever coordinators and however often its operator repeats it.
//!
//! A token is a register: it is there or not. A creation puts it there in any case. A revocation is
//! refused if it is not there, so the answer also shows the register. A list shows all registers. A
//! question without an answer may have taken effect at any moment since, or not at all.

use std::collections::BTreeMap;

use super::linear::{Action, Operation, check};
use super::{Breach, Invariant};

/// What a client asks the cluster about its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRequest {
    /// Accept this token. Granted, whether it was there or not.
    Create(u64),
    /// Do not accept it any more. Refused if it is not there.
    Revoke(u64),
    /// List the tokens that are there.
    List,
}

/// What the cluster answers about a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenAnswer {
    /// The request was carried out.
    Granted,
    /// The request was not possible.
    Refused,
    /// These tokens are there, a bit for each.
    Listed(u64),
}

/// The number of tokens in a simulation.
pub const TOKENS: u64 = 3;

/// All questions of operators, and their answers.
#[derive(Debug, Default)]
pub(super) struct RequestHistory {
    /// A counter that gives every question and answer its moment.
    moment: u64,
    /// By operator: its open question, the question's moment, and its place in the history.
    waiting: BTreeMap<u64, (TokenRequest, u64, usize)>,
    history: Vec<Operation<u64, bool>>,
}

impl RequestHistory {
    /// An operator asks a question. It has had the answers to all earlier ones.
    pub(super) fn asked(&mut self, client: u64, call: TokenRequest) {
        self.moment += 1;
        self.waiting.insert(client, (call, self.moment, self.history.len()));
        let (TokenRequest::Create(key) | TokenRequest::Revoke(key)) = call else { return };
        let action = Action::Write(matches!(call, TokenRequest::Create(_)));
        self.history.push(Operation { key, action, called: self.moment, answered: None });
    }

    /// An operator has its answer.
    pub(super) fn answered(&mut self, client: u64, answer: TokenAnswer) -> Result<(), Breach> {
        self.moment += 1;
        let answered = Some(self.moment);
        let Some((call, called, place)) = self.waiting.remove(&client) else { return Ok(()) };
        match (call, answer) {
            (TokenRequest::Create(key) | TokenRequest::Revoke(key), _) => {
                let operation = &mut self.history[place];
                operation.answered = answered;
                operation.action = match (call, answer) {
                    (TokenRequest::Create(_), _) => Action::Write(true),
                    (_, TokenAnswer::Granted) => Action::Swap(true, false),
                    _ => Action::Read(false),
                };
                self.judge(key)
            }
            (TokenRequest::List, TokenAnswer::Listed(there)) => (0..TOKENS).try_for_each(|key| {
                let action = Action::Read(there >> key & 1 == 1);
                self.history.push(Operation { key, action, called, answered });
                self.judge(key)
            }),
            (TokenRequest::List, _) => Ok(()),
        }
    }

    fn judge(&self, key: u64) -> Result<(), Breach> {
        let of_token = |it: &&Operation<u64, bool>| it.key == key;
        let history: Vec<_> = self.history.iter().filter(of_token).cloned().collect();
        check(&false, &history).map_err(|wrong| (Invariant::I9, format!("token {wrong}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREATE: Result<TokenRequest, TokenAnswer> = Ok(TokenRequest::Create(1));
    const REVOKE: Result<TokenRequest, TokenAnswer> = Ok(TokenRequest::Revoke(1));
    const YES: Result<TokenRequest, TokenAnswer> = Err(TokenAnswer::Granted);
    const NO: Result<TokenRequest, TokenAnswer> = Err(TokenAnswer::Refused);

    /// Replays a history: each entry is an operator, and its question or its answer.
    fn history(words: &[(u64, Result<TokenRequest, TokenAnswer>)]) -> Result<(), Breach> {
        let mut asked = RequestHistory::default();
        words.iter().try_for_each(|(client, word)| match word {
            Ok(call) => {
                asked.asked(*client, *call);
                Ok(())
            }
            Err(answer) => asked.answered(*client, *answer),
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

    #[test]
    fn i9_a_list_has_what_was_there_when_it_was_asked_for() {
        let list = |there| [(2, Ok(TokenRequest::List)), (2, Err(TokenAnswer::Listed(there)))];
        let made = [(1, CREATE), (1, YES)];
        assert_eq!(history(&[&made[..], &list(2)].concat()), Ok(()));
        assert!(history(&[&made[..], &list(0)].concat()).is_err(), "it is stale");
        assert!(history(&[&made[..], &list(3)].concat()).is_err(), "nobody has made the other");
        let meanwhile = [list(0)[0], made[0], made[1], list(0)[1]];
        assert_eq!(history(&meanwhile), Ok(()));
    }
}
