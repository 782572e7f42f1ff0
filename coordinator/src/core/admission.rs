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

use super::outbox::Outbox;
use super::{Core, ShellEffect};
use crate::state::{Command, EntryOutcome};

/// The nodes with an entry on its way into the log.
#[derive(Debug, Default)]
pub(super) struct PendingAdmissions(BTreeSet<(TokenId, NodeName)>);

impl PendingAdmissions {
    /// The log has spent a use of a token, or refused it.
    pub(super) fn spent(
        &mut self,
        outbox: &mut Outbox,
        token: TokenId,
        node: NodeName,
        verdict: EntryOutcome,
    ) {
        let refusal = match verdict {
            EntryOutcome::NotAdmitted(refusal) => Some(refusal),
            _ => None,
        };
        self.0.remove(&(token, node.clone()));
        outbox.push(ShellEffect::Admitted { token, node, refusal });
    }

    /// Answers all waiting nodes: this coordinator will not learn any more what becomes of their
    /// entries.
    pub(super) fn leave_undecided(&mut self, outbox: &mut Outbox) {
        for (token, node) in std::mem::take(&mut self.0) {
            outbox.push(undecided(token, node));
        }
    }
}

fn undecided(token: TokenId, node: NodeName) -> ShellEffect {
    ShellEffect::Admitted { token, node, refusal: Some(Refusal::Undecided) }
}

impl Core {
    pub(super) fn admit_node(&mut self, now: Time, token: TokenId, node: NodeName) {
        if self.leader().is_some() {
            self.clients.admissions.0.insert((token, node.clone()));
            self.propose(now, Command::SpendToken { token, node });
        } else {
            self.outbox.push(undecided(token, node));
        }
    }
}
