//! Why a coordinator does not run.

use std::net::SocketAddr;
use std::path::PathBuf;

use everstep_transport::identity::{IdentityError, TokenError};
use everstep_transport::quic::{BindError, EnrolError, HostPort};

use super::book::BookError;
#[cfg(feature = "failpoints")]
use super::failpoint;
use super::journal::JournalError;
use crate::http::HttpError;
use crate::line_file::LineFileError;
use crate::log::LogError;
use crate::seat::SeatError;

/// Why a coordinator does not run.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// There is no cluster in the directory.
    #[error(
        "nothing to start from in {}; use --bootstrap to found a cluster, or --join to become one \
         of its coordinators",
        .0.display()
    )]
    NothingThere(PathBuf),
    /// There is a cluster already, or another node's files.
    #[error("there is a cluster in {} already; start without --bootstrap and --join", .0.display())]
    AlreadyThere(PathBuf),
    /// Another coordinator is at work in the directory.
    #[error("another coordinator uses {}", .0.display())]
    InUse(PathBuf),
    /// The coordinator of the directory has not been admitted yet.
    #[error("the coordinator in {} has not joined its cluster yet", .0.display())]
    NotJoined(PathBuf),
    /// The address is one that nobody else could call.
    #[error("cannot listen on {0}: the others must be able to call the address; name one")]
    Unspecified(SocketAddr),
    /// The address is one that no other machine can call, and coordinators are on other machines.
    #[error("cannot listen on {listen}: the coordinator at {coordinator} cannot call it there")]
    Loopback {
        /// The address.
        listen: SocketAddr,
        /// A coordinator on another machine.
        coordinator: HostPort,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The certificate authority could not be read.
    #[error("{}: {source}", dir.display())]
    Authority {
        /// Where it is.
        dir: PathBuf,
        /// Why.
        source: IdentityError,
    },
    /// A file is not the one that was made here.
    #[error("{}: it is damaged, or another cluster's: it is not what was made here", .0.display())]
    Changed(PathBuf),
    /// A file, or what was given for it, holds no token.
    #[error("{}: {problem}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: TokenError,
    },
    /// The token that was given to join with is none.
    #[error(transparent)]
    JoinToken(#[from] TokenError),
    /// No coordinator has let it in.
    #[error("it was not admitted to the cluster: {0}")]
    Enrol(#[from] EnrolError),
    /// The coordinators have not made it one of them in time.
    #[error("the coordinators have not made it one of them in time: {0}")]
    Unanswered(String),
    /// Credentials could not be made or read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The log could not be read or written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The journal could not be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The metrics lines could not be read or written.
    #[error(transparent)]
    Lines(#[from] LineFileError),
    /// The book of coordinators could not be read or written.
    #[error(transparent)]
    Book(#[from] BookError),
    /// What the log says cannot be gone on from.
    #[error(transparent)]
    Seat(#[from] SeatError),
    /// The address could not be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// There can be no HTTP API as it was asked for.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// SIGTERM and SIGINT could not be waited for.
    #[error("signals cannot be received: {0}")]
    Signals(std::io::Error),
    /// The actor is gone: it met a broken invariant, which its log tells.
    #[error("the coordinator stopped at a broken invariant; its log says which")]
    Broken,
    /// The failpoints cannot be set.
    #[cfg(feature = "failpoints")]
    #[error(transparent)]
    Failpoints(#[from] failpoint::FailpointError),
}
