//! Nodes that were judged to be admitted, until the log has counted that use of their tokens.
//!
//! Each is answered: by its entry, or, where this coordinator leads no longer, by [`Undecided`], so
//! that the node asks another one. The same node is counted once, so that costs it nothing. Whether
//! a token admits a node, the state knows, and this module does not.
//!
//! [`Undecided`]: Refusal::Undecided

use std::collections::BTreeSet;

use everstep_transport::identity::{Refusal, TokenId};
use everstep_transport::protocol::NodeName;
use everstep_transport::time::Time;

use super::{Core, Effect};
use crate::state::{Command, Verdict};

/// Those whose entry is on its way.
#[derive(Debug, Default)]
pub(super) struct Admissions(BTreeSet<(TokenId, NodeName)>);

impl Core {
    pub(super) fn admit_node(&mut self, now: Time, token: TokenId, node: NodeName) {
        if self.leader().is_some() {
            self.admissions.0.insert((token, node.clone()));
            self.propose(now, Command::SpendToken { token, node });
        } else {
            self.answer_admission(token, node, Some(Refusal::Undecided));
        }
    }

    /// A use of a token was spent, or not.
    pub(super) fn spent(&mut self, token: TokenId, node: NodeName, verdict: Verdict) {
        let refusal = match verdict {
            Verdict::NotAdmitted(refusal) => Some(refusal),
            _ => None,
        };
        self.admissions.0.remove(&(token, node.clone()));
        self.answer_admission(token, node, refusal);
    }

    /// What becomes of their entries is not told here any more.
    pub(super) fn leave_undecided(&mut self) {
        for (token, node) in std::mem::take(&mut self.admissions.0) {
            self.answer_admission(token, node, Some(Refusal::Undecided));
        }
    }

    fn answer_admission(&mut self, token: TokenId, node: NodeName, refusal: Option<Refusal>) {
        self.effects.push_back(Effect::Admitted { token, node, refusal });
    }
}
