//! The tokens that admit nodes, and the revoked nodes.
//!
//! An expired token is kept for an hour, so that a late joiner reads why it is refused. A revoked
//! name is kept for longer than any certificate with that name can last. All of this goes by the
//! time of entries.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_transport::identity::{
    AcceptedToken, AcceptedTokens, Identity, NODE_LIFETIME, RENEWABLE_FOR, Refusal, Role, TokenId,
    UnixTime,
};
use everstep_transport::protocol::NodeName;
use everstep_transport::protocol::question::RevokedView;
use everstep_transport::protocol::rejection::Rejection;
use rkyv::{Archive, Deserialize, Serialize};

use super::{EntryOutcome, State};

/// The most tokens that are accepted at a time.
pub(super) const MAX_TOKENS: usize = 1_000;
/// The most nodes that one token admits: the state keeps the name of each.
const MAX_USES: u32 = 1_000;
/// The most nodes that are revoked at a time.
pub(super) const MAX_REVOKED: usize = 10_000;
/// How long the state remembers an expired token.
const EXPIRED_TOKEN_KEPT_FOR: Duration = Duration::from_secs(3600);
/// How long a worker stays revoked: longer than its last certificate is of any use.
const WORKER_REVOKED_FOR: Duration = Duration::from_secs(30 * 24 * 3600);
const _: () =
    assert!(NODE_LIFETIME.as_secs() + RENEWABLE_FOR.as_secs() < WORKER_REVOKED_FOR.as_secs());
/// How long an operator stays revoked: its certificate lasts a year.
const OPERATOR_REVOKED_FOR: Duration = Duration::from_secs(2 * 365 * 24 * 3600);

/// Which nodes are admitted.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub(super) struct Access {
    pub(super) tokens: AcceptedTokens,
    pub(super) revocations: Revocations,
}

#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub(super) struct Revocations {
    /// Since when each node is revoked, milliseconds of Unix time.
    since: BTreeMap<Identity, u64>,
    /// The index of the newest entry that revoked a node.
    revision: u64,
}

impl Revocations {
    fn forget_old(&mut self, unix_ms: u64) {
        let lasts = |node: &Identity| match node.role {
            Role::Operator => OPERATOR_REVOKED_FOR,
            Role::Worker | Role::Coordinator => WORKER_REVOKED_FOR,
        };
        self.since
            .retain(|node, since| unix_ms.saturating_sub(*since) < lasts(node).as_millis() as u64);
    }
}

impl Access {
    /// The cluster is founded with these tokens.
    pub(super) fn accept(&mut self, tokens: &[AcceptedToken]) {
        tokens.iter().for_each(|token| self.tokens.accept(token.clone()));
    }

    pub(super) fn create_token(
        &mut self,
        unix_ms: u64,
        token: &AcceptedToken,
    ) -> Result<EntryOutcome, Rejection> {
        self.tokens
            .forget_expired(at(unix_ms.saturating_sub(EXPIRED_TOKEN_KEPT_FOR.as_millis() as u64)));
        if self.tokens.count() >= MAX_TOKENS {
            self.tokens.forget_expired(at(unix_ms));
        }
        if self.tokens.count() >= MAX_TOKENS {
            return Err(Rejection::TooManyTokens(MAX_TOKENS));
        }
        if let Some(uses) = token.limits().uses.filter(|uses| *uses > MAX_USES) {
            return Err(Rejection::TooManyUses { most: MAX_USES, uses });
        }
        self.tokens.accept(token.clone());
        Ok(EntryOutcome::Accepted)
    }

    pub(super) fn revoke_token(&mut self, token: &TokenId) -> Result<EntryOutcome, Rejection> {
        match self.tokens.revoke(token) {
            true => Ok(EntryOutcome::Accepted),
            false => Err(Rejection::NoToken),
        }
    }

    /// A node that is revoked twice stays revoked since the first time. `index` is that of the
    /// entry.
    pub(super) fn revoke(
        &mut self,
        index: u64,
        unix_ms: u64,
        node: &Identity,
    ) -> Result<EntryOutcome, Rejection> {
        if node.role == Role::Coordinator {
            return Err(Rejection::RevokedCoordinator);
        }
        self.revocations.forget_old(unix_ms);
        if self.revocations.since.len() >= MAX_REVOKED {
            return Err(Rejection::TooManyRevoked(MAX_REVOKED));
        }
        self.revocations.since.entry(node.clone()).or_insert(unix_ms);
        self.revocations.revision = index;
        Ok(EntryOutcome::Accepted)
    }

    pub(super) fn spend(&mut self, unix_ms: u64, token: &TokenId, name: &NodeName) -> EntryOutcome {
        let is_it = |node: &Identity| node.name == *name;
        if self.revocations.since.keys().any(is_it) {
            return EntryOutcome::NotAdmitted(Refusal::Removed);
        }
        match self.tokens.spend(token, name, at(unix_ms)) {
            Ok(()) => EntryOutcome::Accepted,
            Err(refusal) => EntryOutcome::NotAdmitted(refusal),
        }
    }
}

impl State {
    /// The tokens that admit nodes.
    pub fn tokens(&self) -> &AcceptedTokens {
        &self.access.tokens
    }

    /// Whether a node of this identity is never let in.
    pub fn is_revoked(&self, node: &Identity) -> bool {
        self.access.revocations.since.contains_key(node)
    }

    /// The revoked nodes, by role and name.
    pub fn revoked(&self) -> impl Iterator<Item = &Identity> {
        self.access.revocations.since.keys()
    }

    /// The revoked nodes, as an operator is told of them.
    pub fn revoked_views(&self) -> Vec<RevokedView> {
        let views = self.access.revocations.since.iter().map(|(Identity { role, name }, since)| {
            RevokedView { role: *role, name: name.clone(), since_unix_ms: *since }
        });
        views.collect()
    }

    /// Grows with every revocation: the index of the entry that made it.
    pub fn revocations_revision(&self) -> u64 {
        self.access.revocations.revision
    }
}

fn at(unix_ms: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_millis(unix_ms))
}
