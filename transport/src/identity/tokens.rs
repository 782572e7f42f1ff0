//! The tokens that a cluster accepts, and the nodes that each has admitted.
//!
//! Pure, and without a clock. A coordinator that decides together with others first
//! [judges](AcceptedTokens::judge) an applicant by what it knows. Then it records the use where all
//! of them see it. Each of them [spends](AcceptedTokens::spend) the use when it applies the record,
//! as of the record's time. Equal records leave equal tokens.
//!
//! A use is a node, not a request: a node that asks again with its key spends nothing.

use std::collections::{BTreeMap, BTreeSet};

use rkyv::{Archive, Deserialize, Serialize};

use super::{AcceptedToken, Applicant, Refusal, TokenId, UnixTime};
use crate::protocol::NodeName;
use crate::protocol::question::TokenView;

/// The accepted tokens, each with its admitted nodes if their number is limited.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptedTokens {
    accepted: BTreeMap<TokenId, (AcceptedToken, BTreeSet<NodeName>)>,
}

impl AcceptedTokens {
    /// Accepts a token from now on. An already accepted token keeps its terms and its uses.
    pub fn accept(&mut self, token: AcceptedToken) {
        self.accepted.entry(token.id).or_insert((token, BTreeSet::new()));
    }

    /// Accepts a token no longer. Returns whether it was accepted. Nodes that it has admitted stay.
    pub fn revoke(&mut self, token: &TokenId) -> bool {
        self.accepted.remove(token).is_some()
    }

    /// Forgets the tokens that expired at `until` or earlier. They no longer admit nodes.
    pub fn forget_expired(&mut self, until: UnixTime) {
        let is_good = |token: &AcceptedToken| {
            token.limits.expires_unix_s.is_none_or(|expires| expires > until.as_secs())
        };
        self.accepted.retain(|_, (token, _)| is_good(token));
    }

    /// Whether the token is accepted, expired or not.
    pub fn know(&self, token: &TokenId) -> bool {
        self.accepted.contains_key(token)
    }

    /// Whether the token admits any number of nodes for ever: its uses need not be counted.
    pub fn is_unlimited(&self, token: &TokenId) -> bool {
        let limits = self.accepted.get(token).map(|(token, _)| &token.limits);
        limits.is_some_and(|limits| limits.uses.is_none() && limits.expires_unix_s.is_none())
    }

    /// Number of accepted tokens.
    pub fn count(&self) -> usize {
        self.accepted.len()
    }

    /// The accepted tokens, by id.
    pub fn views(&self) -> Vec<TokenView> {
        let views = self.accepted.iter().map(|(id, (token, admitted))| TokenView {
            id: *id,
            role: token.limits.role,
            uses_left: token.limits.uses.map(|uses| uses.saturating_sub(admitted.len() as u32)),
            expires_unix_s: token.limits.expires_unix_s,
        });
        views.collect()
    }

    /// Whether the applicant has the secret of a token that could admit it now. Without the secret,
    /// an applicant learns only whether the token exists.
    ///
    /// # Errors
    /// [`Refusal`], for the applicant to read.
    pub fn judge(&self, applicant: &Applicant, now: UnixTime) -> Result<(), Refusal> {
        let (token, _) = self.accepted.get(&applicant.token).ok_or(Refusal::UnknownToken)?;
        if !applicant.has_secret_of(token) {
            return Err(Refusal::WrongSecret);
        }
        let (admits, asked) = (token.limits.role, applicant.identity.role);
        if admits != asked {
            return Err(Refusal::WrongRole { admits, asked });
        }
        self.check(&applicant.token, &applicant.identity.name, now)
    }

    /// Admits a node that was judged, and spends one use of its token.
    ///
    /// # Errors
    /// [`Refusal::UnknownToken`], [`Refusal::Expired`] or [`Refusal::UsedUp`] if the token has
    /// changed so since the judgement.
    pub fn spend(
        &mut self,
        token: &TokenId,
        node: &NodeName,
        now: UnixTime,
    ) -> Result<(), Refusal> {
        self.check(token, node, now)?;
        let entry = self.accepted.get_mut(token);
        // Nodes of a token without a limit are not remembered: their number would grow without a
        // limit.
        if let Some((_, admitted)) = entry.filter(|(token, _)| token.limits.uses.is_some()) {
            admitted.insert(node.clone());
        }
        Ok(())
    }

    fn check(&self, token: &TokenId, node: &NodeName, now: UnixTime) -> Result<(), Refusal> {
        let (token, admitted) = self.accepted.get(token).ok_or(Refusal::UnknownToken)?;
        match (token.limits.expires_unix_s, token.limits.uses) {
            (Some(unix_s), _) if now.as_secs() >= unix_s => Err(Refusal::Expired { unix_s }),
            (_, Some(uses)) if admitted.len() >= uses as usize && !admitted.contains(node) => {
                Err(Refusal::UsedUp { uses })
            }
            _ => Ok(()),
        }
    }
}
