//! Nodes that a coordinator has judged fit to be admitted, until the log has counted that use of
//! their tokens.
//!
//! Every node gets an answer. Its entry answers it, or, where this coordinator leads no longer,
//! [`Undecided`] does, so that the node asks another coordinator. The log counts the same node
//! once, so asking again costs the node nothing. The state knows whether a token admits a node.
//! This module does not.
//!
//! [`Undecided`]: Refusal::Undecided

use std::collections::BTreeSet;

use everstep_transport::identity::{Refusal, TokenId};
use everstep_transport::protocol::NodeName;
use everstep_transport::time::Time;

use super::{Core, Effect};
use crate::state::{Command, Verdict};

/// The nodes with an entry on its way into the log.
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

    /// The log has spent a use of a token, or refused it.
    pub(super) fn spent(&mut self, token: TokenId, node: NodeName, verdict: Verdict) {
        let refusal = match verdict {
            Verdict::NotAdmitted(refusal) => Some(refusal),
            _ => None,
        };
        self.admissions.0.remove(&(token, node.clone()));
        self.answer_admission(token, node, refusal);
    }

    /// Answers all waiting nodes: this coordinator will not learn any more what becomes of their
    /// entries.
    pub(super) fn leave_undecided(&mut self) {
        for (token, node) in std::mem::take(&mut self.admissions.0) {
            self.answer_admission(token, node, Some(Refusal::Undecided));
        }
    }

    fn answer_admission(&mut self, token: TokenId, node: NodeName, refusal: Option<Refusal>) {
        self.effects.push_back(Effect::Admitted { token, node, refusal });
    }
}
