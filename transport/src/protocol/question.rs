//! What else an operator may ask of the coordinators besides Watch, and what they answer.
//!
//! The leader answers, once it has confirmed that it leads: the answer contains all that was agreed
//! before the question. Lists are bounded by what the coordinators keep: a hundred runs, a thousand
//! tokens, a thousand operators.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use rkyv::{Archive, Deserialize, Serialize};
use serde::Serializer;

use super::checkpoint::CheckpointView;
use super::cluster::CoordinatorView;
use super::figures::RunFigures;
use super::ids::{Generation, NodeName, RunId, Step, Term};
use super::run::Units;
use crate::identity::{Role, TokenId, format_token_id};

/// A question of an operator.
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
    /// Which checkpoints does the current run have?
    Checkpoints,
    /// Which operators does the leader know?
    Operators,
}

/// The answer to a question.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Reply {
    /// The coordinators, by id.
    Coordinators {
        /// The term in which the answering coordinator leads.
        term: Term,
        /// The log index that the answering coordinator has applied.
        applied: u64,
        /// All coordinators, by id.
        coordinators: Vec<CoordinatorStatus>,
    },
    /// The tokens, by id, including those in the coordinators' own files.
    Tokens(Vec<TokenView>),
    /// The newest runs that are over, in the order of their ends. The run under way comes last.
    Runs(Vec<RunView>),
    /// The revoked workers and operators, by role and name.
    Revoked(Vec<RevokedView>),
    /// The current run's checkpoints, ascending by step.
    Checkpoints(Vec<CheckpointView>),
    /// The operators that have had a link with the leader since its process began, by name.
    Operators(Vec<NodeName>),
}

/// How a coordinator stands, as far as the answering coordinator knows.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorStatus {
    /// Its id, name and addresses.
    #[serde(flatten)]
    pub view: CoordinatorView,
    /// It is a voter: most voters must agree. Otherwise it is a learner of the log.
    #[serde(rename = "voter")]
    pub votes: bool,
    /// It leads, as far as that is known.
    #[serde(rename = "leader")]
    pub leads: bool,
    /// The others have removed it, but may still need it.
    #[serde(rename = "leaving")]
    pub leaves: bool,
    /// Up to which index it is known to have the log. The leader knows that of all coordinators,
    /// any other coordinator only of itself.
    pub matched: Option<u64>,
    /// Since when the answering coordinator has not heard it: wall clock of the answering one,
    /// milliseconds of Unix time.
    pub silent_since_unix_ms: Option<u64>,
}

/// A token, without the secret that a node needs to use it.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct TokenView {
    /// Its id, the second part of its text.
    #[serde(serialize_with = "token_id")]
    pub id: TokenId,
    /// The role of a node that joins with it.
    pub role: Role,
    /// How many nodes it still admits. `None`: any number.
    pub uses_left: Option<u32>,
    /// When it expires, seconds of Unix time. From then on it admits no node. `None`: never.
    pub expires_unix_s: Option<u64>,
}

/// A revoked worker or operator.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct RevokedView {
    /// The role of the revoked node.
    pub role: Role,
    /// The name in its certificate.
    pub name: NodeName,
    /// When the coordinators agreed to the revocation, milliseconds of Unix time.
    pub since_unix_ms: u64,
}

/// A run, under way or over.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct RunView {
    /// The id that names the run.
    pub id: RunId,
    /// The name in the run's specification.
    pub name: String,
    /// Its state in a word for scripts: "training", "complete".
    pub state: String,
    /// Its state in a sentence for people.
    pub status: String,
    /// Its newest settled step.
    pub step: Step,
    /// Its newest generation while it goes on. 0 before the first, and when the run is over.
    pub generation: Generation,
    /// The state hash of a complete run.
    #[serde(serialize_with = "hex")]
    pub hash: Option<[u8; 32]>,
    /// Why its bits differ from those of other such runs, if they do.
    #[serde(rename = "bitwise_reason")]
    pub divergence: Option<String>,
    /// The units of its figures.
    #[serde(flatten)]
    pub units: Units,
    /// The run in figures.
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
