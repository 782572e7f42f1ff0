//! Why a coordinator does not run.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use everstep_transport::identity::{IdentityError, TokenError};
use everstep_transport::quic::{BindError, ConnectError, EnrolError, HostPort, LinkError};

#[cfg(feature = "failpoints")]
use super::failpoint;
use super::history_file::HistoryFileError;
use super::membership_file::MembershipFileError;
use crate::http::HttpError;
use crate::line_file::LineFileError;
use crate::log::LogError;
use crate::node::NodeError;

/// Why a coordinator does not run.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// There is no cluster in the directory.
    #[error(
        "nothing to start from in {}: use --bootstrap to found a cluster, or --join to become one \
         of its coordinators",
        .0.display()
    )]
    NothingThere(PathBuf),
    /// The directory has a cluster already, or another node's files.
    #[error("there is a cluster in {} already. Start without --bootstrap and --join", .0.display())]
    AlreadyThere(PathBuf),
    /// Another coordinator is at work in the directory.
    #[error("another coordinator uses {}", .0.display())]
    InUse(PathBuf),
    /// The cluster has not admitted the coordinator of the directory yet.
    #[error("the coordinator in {} has not joined its cluster yet", .0.display())]
    NotJoined(PathBuf),
    /// No other node could call this address.
    #[error("cannot listen on {0}: name an address that the others can call")]
    Unspecified(SocketAddr),
    /// No other machine can call this address, and coordinators are on other machines.
    #[error("cannot listen on {listen}: the coordinator at {coordinator} cannot call it there")]
    Loopback {
        /// The address to listen on.
        listen: SocketAddr,
        /// A coordinator on another machine.
        coordinator: HostPort,
    },
    /// The process could not read or write a file.
    #[error("{}: {source}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// What the system says of it.
        source: std::io::Error,
    },
    /// The process could not read the certificate authority.
    #[error("{}: {source}", dir.display())]
    Authority {
        /// The directory of the authority.
        dir: PathBuf,
        /// The error of its files.
        source: IdentityError,
    },
    /// A file is not the one that this coordinator made.
    #[error("{}: it is damaged, or another cluster's: it is not what was made here", .0.display())]
    Changed(PathBuf),
    /// A file, or a key from another coordinator, holds no token.
    #[error("{}: {problem}", path.display())]
    Token {
        /// The path of the file.
        path: PathBuf,
        /// The error of the token.
        problem: TokenError,
    },
    /// The token to join with is not a token.
    #[error(transparent)]
    JoinToken(#[from] TokenError),
    /// No coordinator has admitted it.
    #[error("it was not admitted to the cluster: {0}")]
    Enrol(#[from] EnrolError),
    /// The coordinators have not listed it in time.
    #[error("the coordinators have not made it one of them in time: {0}")]
    Unanswered(#[from] JoinError),
    /// The process could not make or read credentials.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The process could not read or write the log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The process could not read or write the history file.
    #[error(transparent)]
    History(#[from] HistoryFileError),
    /// The process could not read or write the metrics lines.
    #[error(transparent)]
    Lines(#[from] LineFileError),
    /// The process could not read or write the membership file.
    #[error(transparent)]
    Membership(#[from] MembershipFileError),
    /// The coordinator cannot go on from its log.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The process cannot listen on the address.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The options of the HTTP API are impossible.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The process could not wait for SIGTERM and SIGINT.
    #[error("signals cannot be received: {0}")]
    Signals(std::io::Error),
    /// The actor is gone: it met a broken invariant. The process's log says which.
    #[error("the coordinator stopped at a broken invariant. Its log says which")]
    Broken,
    /// The process cannot set the failpoints.
    #[cfg(feature = "failpoints")]
    #[error(transparent)]
    Failpoints(#[from] failpoint::FailpointError),
}

/// Why no coordinator has made this process one of them, as of the last attempt. The errors in it
/// are of other hosts, and no causes here: nothing is wrong with this host's files.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No coordinator was named.
    #[error("none was named")]
    NoneNamed,
    /// The host of a named coordinator has no address.
    #[error("{place}: {error}")]
    NoAddress {
        /// The coordinator, as it was named.
        place: HostPort,
        /// The error of the resolution.
        error: io::Error,
    },
    /// This coordinator answers, and another one leads.
    #[error("{0} does not lead")]
    NotLeading(SocketAddr),
    /// This coordinator does not answer.
    #[error("{address}: {error}")]
    Unanswered {
        /// The address of the coordinator asked.
        address: SocketAddr,
        /// Why there is no answer.
        error: AnswerError,
    },
    /// A coordinator has not sent the cluster's keys.
    #[error("{0}")]
    Unheard(AnswerError),
}

/// Why a coordinator gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// There is no link.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The link has ended.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The coordinator has not answered in time.
    #[error("it does not answer")]
    Silent,
}
