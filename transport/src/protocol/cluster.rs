//! Words about the cluster itself: its coordinators, the commands of operators, what happened.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use std::fmt;
use std::net::SocketAddr;

use rkyv::{Archive, Deserialize, Serialize};

use super::checkpoint::RunOrigin;
use super::ids::{CoordinatorId, Generation, NodeName, RunId, Step, WorkerId};
use super::outcome::Event;
use super::run::RunSpec;
use crate::identity::{AcceptedToken, Identity, TokenId};

/// A coordinator's name and addresses.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorView {
    /// The coordinator's id, never used again.
    pub id: CoordinatorId,
    /// The name in its certificate.
    pub name: NodeName,
    /// The address where it listens for links.
    pub address: SocketAddr,
    /// The address of its HTTP API, if it has one.
    pub api: Option<SocketAddr>,
}

/// Names one request of one client. The leader carries out a repeated request only once.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub struct RequestId {
    /// Drawn once by the client.
    pub client: u64,
    /// The number of the request: a client begins one after the answer to the previous one.
    pub number: u64,
}

/// A change that an operator asks the cluster for.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum OperatorCommand {
    /// Train the run of this specification.
    Submit(Box<RunSpec>),
    /// End this run, if it is the one that is trained.
    Cancel(RunId),
    /// Let this worker leave.
    Drain(WorkerId),
    /// Admit nodes with this token from now on.
    CreateToken(AcceptedToken),
    /// Admit no node with this token any more.
    RevokeToken(TokenId),
    /// Close the links of this worker or operator, and never admit it again under its name.
    Revoke(Identity),
    /// Remove this coordinator from the voters.
    Remove(CoordinatorId),
    /// Let the run go back to this step, and train again from there.
    Rollback {
        /// The run that goes back.
        run: RunId,
        /// A step of which a checkpoint exists. 0 is the initial state.
        step: Step,
        /// The newest generation that the operator knew. A run that has gone back since then does
        /// not go back again. 0: whichever generation it is.
        generation: Generation,
    },
    /// Let this run pause after the step under way, and save a checkpoint if it has a store.
    Pause(RunId),
    /// Let this paused run go on.
    Resume(RunId),
    /// Save a checkpoint of this run now.
    Checkpoint(RunId),
    /// Go on with a run that another cluster has begun, from a checkpoint in its store.
    Continue {
        /// The run's specification. Its checkpoints go to the same store.
        run: Box<RunSpec>,
        /// What the store has.
        origin: Box<RunOrigin>,
    },
}

/// What one entry of the log brought to the history of the cluster.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct HistoryEntry {
    /// The index of the entry in the log.
    pub index: u64,
    /// What happened in the run or cluster, in order.
    pub events: Vec<HistoryEvent>,
}

/// One part of the history.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum HistoryEvent {
    /// A run began, with this id.
    Run(RunId),
    /// An event of `events.jsonl`.
    Event(Event),
}

/// The history to which metrics lines belong. A rollback begins another history of the same run.
/// Lines of the previous history count no more.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord,
)]
pub struct Lineage {
    /// The run. 0 before the first.
    pub run: RunId,
    /// The generation that began with the newest rollback. 0 if the run has never gone back.
    pub rollback: Generation,
}

/// What makes a node a coordinator: with these keys a node can certify others. Only coordinators
/// get them, over their links. They keep them in files that no other user can read.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct ClusterKeys {
    /// The authority's private key, PKCS#8.
    pub authority: Secret,
    /// The token that admits workers, as text.
    pub workers: Secret,
    /// The token that admits coordinators, as text.
    pub coordinators: Secret,
}

/// Bytes that `Debug` output does not show, so no log has them.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq)]
pub struct Secret(pub Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
