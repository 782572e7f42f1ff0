//! What an operator may ask of the coordinators besides what is new, and what it is told.
//!
//! Who leads answers, once it knows that it does: what was agreed before the question is in the
//! answer. Lists are bounded by what the coordinators keep: a hundred runs, a thousand tokens.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use rkyv::{Archive, Deserialize, Serialize};
use serde::Serializer;

use super::cluster::{CoordinatorView, RunId};
use super::figures::RunFigures;
use super::ids::{Generation, NodeName, Step, Term};
use crate::identity::{Role, TokenId, format_token_id};

/// What is asked.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    /// How do the coordinators stand?
    Coordinators,
    /// Which tokens admit nodes?
    Tokens,
    /// Which runs are there, and were there?
    Runs,
    /// Which workers and operators are revoked?
    Revoked,
}

/// The answer.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Reply {
    /// The coordinators, by id.
    Coordinators {
        /// The term in which who answers leads.
        term: Term,
        /// The log index that it has applied.
        applied: u64,
        /// All there are.
        coordinators: Vec<CoordinatorStanding>,
    },
    /// The tokens, by id, those in the coordinators' own files among them.
    Tokens(Vec<TokenView>),
    /// The newest runs that are over, in the order of their ends, and last the one under way.
    Runs(Vec<RunView>),
    /// The revoked workers and operators, by role and name.
    Revoked(Vec<RevokedView>),
}

/// How a coordinator stands, as the one that answers knows it.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorStanding {
    /// Who it is, and where.
    #[serde(flatten)]
    pub view: CoordinatorView,
    /// It is one of those of whom most have to agree; otherwise it learns the log.
    #[serde(rename = "voter")]
    pub votes: bool,
    /// It leads.
    #[serde(rename = "leader")]
    pub leads: bool,
    /// It was removed, but the others may still need it.
    #[serde(rename = "leaving")]
    pub leaves: bool,
    /// Up to which index it is known to have the log: who leads knows that of all, any other one of
    /// itself.
    pub matched: Option<u64>,
    /// It is not heard, since then: wall clock of who answers, milliseconds of Unix time.
    pub silent_since_unix_ms: Option<u64>,
}

/// A token, without what it takes to make use of it.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct TokenView {
    /// Its id, the second part of its text.
    #[serde(serialize_with = "token_id")]
    pub id: TokenId,
    /// What whoever joins with it becomes.
    pub role: Role,
    /// How many nodes it admits yet; None: any number.
    pub uses_left: Option<u32>,
    /// From when on it admits nobody, in seconds since 1970; None: it never expires.
    pub expires_unix_s: Option<u64>,
}

/// A revoked worker or operator.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct RevokedView {
    /// Its role.
    pub role: Role,
    /// The name in its certificate.
    pub name: NodeName,
    /// When the coordinators agreed to that, milliseconds of Unix time.
    pub since_unix_ms: u64,
}

/// A run, under way or over.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct RunView {
    /// Its id.
    pub id: RunId,
    /// Its name.
    pub name: String,
    /// How it stands, in a word for scripts: "training", "complete".
    pub state: String,
    /// How it stands, in a sentence for people.
    pub status: String,
    /// Its newest settled step.
    pub step: Step,
    /// Its newest generation while it goes on; 0 before the first, and when the run is over.
    pub generation: Generation,
    /// The state hash, if it is complete.
    #[serde(serialize_with = "hex")]
    pub hash: Option<[u8; 32]>,
    /// Why its bits are not those of any other such run, if they are not.
    #[serde(rename = "bitwise_reason")]
    pub divergence: Option<String>,
    /// How it does, or did.
    #[serde(flatten)]
    pub figures: RunFigures,
}

fn token_id<S: Serializer>(id: &TokenId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format_token_id(id))
}

fn hex<S: Serializer>(hash: &Option<[u8; 32]>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = hash.map(|hash| blake3::Hash::from_bytes(hash).to_hex());
    match text {
        Some(text) => serializer.serialize_some(text.as_str()),
        None => serializer.serialize_none(),
    }
}
