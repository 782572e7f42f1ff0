//! What is said about the cluster itself: its coordinators, what operators wish, what happened.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use std::fmt;
use std::net::SocketAddr;

use rkyv::{Archive, Deserialize, Serialize};

use super::ids::{Generation, NodeName, Step, WorkerId};
use super::outcome::Event;
use super::run::RunSpec;
use crate::identity::{AcceptedToken, Identity, TokenId};

/// A coordinator: 1 is the founder, every other has the log index of its registration. Never
/// reused.
pub type CoordinatorId = u64;

/// A run: the log index of the entry that submitted it. Never reused.
pub type RunId = u64;

/// Where a coordinator is.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorView {
    /// Its id.
    pub id: CoordinatorId,
    /// The name in its certificate.
    pub name: NodeName,
    /// Where it listens for links.
    pub address: SocketAddr,
    /// Where its HTTP API is, if it has one.
    pub api: Option<SocketAddr>,
}

/// Names one request of one client: said again, it is carried out once.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub struct RequestId {
    /// Drawn once by the client.
    pub client: u64,
    /// The client's requests, in order: one begins when the one before is answered.
    pub number: u64,
}

/// What an operator wishes to have changed.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Wish {
    /// Train this.
    Submit(RunSpec),
    /// End this run, if it is the one that is trained.
    Cancel(RunId),
    /// Let this worker go.
    Drain(WorkerId),
    /// Admit nodes with this token from now on.
    CreateToken(AcceptedToken),
    /// Admit nobody with this token any more.
    RevokeToken(TokenId),
    /// Close the links of this worker or operator, and never let it in again under its name.
    Revoke(Identity),
    /// Do without this coordinator.
    Remove(CoordinatorId),
    /// Let the run go back to this step, and train again from there.
    Rollback {
        /// The run.
        run: RunId,
        /// A step of which a checkpoint exists: 0, the initial state.
        step: Step,
        /// The newest generation that the operator knew of: a run that has gone back since does not
        /// go back again. 0: whichever it is.
        generation: Generation,
    },
}

/// What one entry of the log brought to the history of the cluster.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Frame {
    /// The entry's index.
    pub index: u64,
    /// What happened, in order.
    pub news: Vec<News>,
}

/// What happened.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum News {
    /// A run began, with this id.
    Run(RunId),
    /// An event.
    Event(Event),
}

/// Which history metrics lines are of: a rollback begins another one of the same run. Lines of the
/// history before it count no more.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord,
)]
pub struct Lineage {
    /// The run; 0 before the first.
    pub run: RunId,
    /// The generation that the newest rollback began with; 0 if the run has never gone back.
    pub rollback: Generation,
}

/// What makes a node a coordinator: whoever has it can certify nodes. Only coordinators are told,
/// over their links, and keep it in files that nobody else can read.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// The authority's private key, PKCS#8.
    pub authority: Secret,
    /// The token that admits workers, as text.
    pub workers: Secret,
    /// The token that admits coordinators, as text.
    pub coordinators: Secret,
}

/// Bytes that no log shows.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq)]
pub struct Secret(pub Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
