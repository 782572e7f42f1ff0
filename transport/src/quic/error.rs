//! What can go wrong on the way to a link and on a link.
//!
//! The words of the QUIC library end here. Above this module, an error states which side closed,
//! the reason, and whether it pays to try again.

use std::net::SocketAddr;

use quinn::{ConnectionError, VarInt, WriteError};

use super::allow_list::NOT_LISTED;
use crate::identity::{Identity, IdentityError, Refusal};
use crate::protocol::reason::LinkEnd;

/// The closer has no more use for this link, and lives on.
pub(super) const CLOSED: VarInt = VarInt::from_u32(0);
/// The peer sent bytes that no honest node sends.
pub(super) const REFUSED: VarInt = VarInt::from_u32(1);
/// The closer does not let the peer in.
pub(super) const NOT_ADMITTED: VarInt = VarInt::from_u32(2);
/// A stream that its sender gave up.
pub(super) const ABANDONED: VarInt = VarInt::from_u32(3);
/// The closer leaves: its process ends, and all its links with it.
pub(super) const GOODBYE: VarInt = VarInt::from_u32(4);

/// Why a link, or one stream of it, carries nothing more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The peer is gone: its process has said goodbye. Connecting again helps if the process was
    /// started again.
    #[error("the peer is gone: {}", .words.as_deref().unwrap_or(SAID_ALL))]
    Gone {
        /// The peer's words: untrusted text, made printable. `None` for a peer that has ended the
        /// link after its last message.
        words: Option<String>,
    },
    /// The peer's host refuses packets for the peer's port, and nothing arrives on the link any
    /// more. The process is probably dead, but a firewall refuses packets for a living one, too.
    #[error("the peer cannot be reached: {how}")]
    Unreachable {
        /// How this side noticed it.
        how: &'static str,
    },
    /// The peer has no more use for this link. Its process lives.
    #[error("the peer closed the link: {reason}")]
    Closed {
        /// The peer's reason: untrusted text, made printable.
        reason: String,
    },
    /// This side heard nothing from the peer for the idle time-out. The peer may well live, and
    /// connecting again may succeed.
    #[error("the link was lost: nothing was heard from the peer")]
    Silent,
    /// The peer heard nothing from this side for the idle time-out, and has forgotten the link. The
    /// peer lives, or another process is in its place by now.
    #[error("the link was lost: the peer has forgotten the link")]
    Forgotten,
    /// The peer sent bytes that no honest node sends. This side closed the link for that.
    #[error("the peer was refused: it sent {what}")]
    Refused {
        /// A description of what the peer sent.
        what: String,
    },
    /// This side closed the link.
    #[error("the link was closed here: {reason}")]
    Ended {
        /// The reason given to the peer.
        reason: String,
    },
    /// This side closed the link, since a message for the peer could not be sent.
    #[error("the link was closed here: {0}")]
    Unsent(Box<LinkError>),
    /// The other end gave up this one stream. The link lives.
    #[error("the peer gave up this stream")]
    Abandoned,
    /// Too many messages or bytes wait for the peer, because it does not read. Drop the peer.
    #[error("too many messages wait for the peer")]
    Full,
    /// A message exceeds the limit for messages. The link lives. The sender is at fault.
    #[error("a {name} message of {bytes} bytes is too large to be sent")]
    TooLarge {
        /// The message's name, as in logs.
        name: &'static str,
        /// The message's encoded size.
        bytes: usize,
    },
    /// The QUIC library reports an error of its own.
    #[error("the link broke: {what}")]
    Broken {
        /// The error of the QUIC library.
        what: String,
    },
}

/// How a peer ended that has ended its lane, and so has said goodbye without words.
const SAID_ALL: &str = "it has said all it had to say";

impl LinkError {
    /// The end of the link as the coordinators remember it. An error that leaves the link open
    /// counts as the end that it makes this side bring about.
    pub fn end(self) -> LinkEnd {
        match self {
            Self::Gone { words: Some(words) } => LinkEnd::Goodbye(words),
            Self::Gone { words: None } => LinkEnd::SaidAll,
            Self::Unreachable { .. } => LinkEnd::Refused,
            Self::Closed { reason } => LinkEnd::Closed(reason),
            Self::Silent => LinkEnd::Silent,
            Self::Forgotten => LinkEnd::Forgotten,
            Self::Refused { what } => LinkEnd::Hostile(what),
            Self::Unsent(error) => error.end(),
            Self::Full => LinkEnd::Unread,
            Self::TooLarge { name, bytes } => {
                LinkEnd::TooLarge { name: name.into(), bytes: bytes as u64 }
            }
            Self::Ended { reason } if reason == NOT_LISTED => LinkEnd::NotListed,
            Self::Ended { .. } | Self::Abandoned => LinkEnd::ClosedHere,
            Self::Broken { what } => LinkEnd::Broken(what),
        }
    }

    /// Whether the peer's process is known to be dead: it has said so. A living peer behind a bad
    /// network can cause every other error, above all silence and refusals.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }

    /// Whether the peer reports that this node is not in its allow list.
    pub fn is_expulsion(&self) -> bool {
        matches!(self, Self::Closed { reason } if reason == NOT_LISTED)
    }
}

impl From<ConnectionError> for LinkError {
    fn from(error: ConnectionError) -> Self {
        match error {
            ConnectionError::ApplicationClosed(close) if close.error_code == GOODBYE => {
                Self::Gone { words: Some(printable(&close.reason)) }
            }
            ConnectionError::ApplicationClosed(close) => {
                Self::Closed { reason: printable(&close.reason) }
            }
            ConnectionError::TimedOut => Self::Silent,
            ConnectionError::Reset => Self::Forgotten,
            ConnectionError::LocallyClosed => {
                Self::Ended { reason: "this endpoint was closed".into() }
            }
            ConnectionError::ConnectionClosed(_)
            | ConnectionError::TransportError(_)
            | ConnectionError::VersionMismatch
            | ConnectionError::CidsExhausted => Self::Broken { what: error.to_string() },
        }
    }
}

/// Why a dial led to no link.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No node answers. Another try may help.
    #[error("no node answers at {address}: is the address right, and is the node running?")]
    NoAnswer {
        /// The address that this node dialled.
        address: SocketAddr,
    },
    /// The peer has too many handshakes in progress. Another try will help.
    #[error("{address} is busy")]
    Busy {
        /// The address that this node dialled.
        address: SocketAddr,
    },
    /// The peer speaks another version of the protocol, or does not enrol nodes.
    #[error(
        "{address} does not speak {protocol}: another version of Everstep runs there, or a node \
         that does not offer this"
    )]
    OtherVersion {
        /// The address that this node dialled.
        address: SocketAddr,
        /// The protocol that this node asked for.
        protocol: String,
    },
    /// On one of the sides, a certificate is not of this cluster's authority.
    #[error(
        "{address} belongs to another cluster: its certificate authority is not the one that this \
         node was told to trust"
    )]
    Foreign {
        /// The address that this node dialled.
        address: SocketAddr,
    },
    /// A certificate has expired or is not valid yet. Renew it, or set the clock.
    #[error("the certificate of this node or of {address} has expired, or a clock is wrong")]
    Expired {
        /// The address that this node dialled.
        address: SocketAddr,
    },
    /// The peer proved another identity than the expected one.
    #[error("{address} is {met}, not {expected}")]
    Stranger {
        /// The address that this node dialled.
        address: SocketAddr,
        /// The expected peer, in words.
        expected: String,
        /// The identity that the peer proved.
        met: Identity,
    },
    /// The peer is a node of the cluster, but this node has no links with it.
    #[error("{address} is {met}, which is not in the allow list here")]
    NotListed {
        /// The address that this node dialled.
        address: SocketAddr,
        /// The identity that the peer proved.
        met: Identity,
    },
    /// The peer does not let this node in.
    #[error("{address} does not admit this node: {reason}")]
    NotAdmitted {
        /// The address that this node dialled.
        address: SocketAddr,
        /// The peer's reason: untrusted text, made printable.
        reason: String,
    },
    /// Another error on the way to the link.
    #[error("no connection to {address}: {reason}")]
    Failed {
        /// The address that this node dialled.
        address: SocketAddr,
        /// The error in words.
        reason: String,
    },
}

impl ConnectError {
    /// Whether the peer reports that this node is not in its allow list.
    pub fn is_expulsion(&self) -> bool {
        matches!(self, Self::NotAdmitted { reason, .. } if reason == NOT_LISTED)
    }

    /// Explains to the user why a handshake for `protocol` failed.
    pub(super) fn handshake(address: SocketAddr, protocol: &str, error: ConnectionError) -> Self {
        let code = match &error {
            // After a reset or a goodbye, the process that began to answer is dead or ends. Another
            // process may be in its place by now.
            ConnectionError::TimedOut | ConnectionError::Reset => {
                return Self::NoAnswer { address };
            }
            ConnectionError::ApplicationClosed(close) if close.error_code == GOODBYE => {
                return Self::NoAnswer { address };
            }
            ConnectionError::ApplicationClosed(close) => {
                return Self::NotAdmitted { address, reason: printable(&close.reason) };
            }
            ConnectionError::TransportError(error) => u64::from(error.code),
            ConnectionError::ConnectionClosed(close) => u64::from(close.error_code),
            _ => return Self::Failed { address, reason: error.to_string() },
        };
        match code {
            CONNECTION_REFUSED | APPLICATION_ERROR => Self::Busy { address },
            ALERT_NO_APPLICATION_PROTOCOL => {
                Self::OtherVersion { address, protocol: protocol.into() }
            }
            ALERT_UNKNOWN_CA | ALERT_DECRYPT_ERROR => Self::Foreign { address },
            ALERT_CERTIFICATE_EXPIRED => Self::Expired { address },
            ALERT_CERTIFICATE_REQUIRED => {
                Self::NotAdmitted { address, reason: NO_CERTIFICATE.into() }
            }
            _ => Self::Failed { address, reason: error.to_string() },
        }
    }
}

/// Why a peer that dialled this endpoint got no link.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("too many handshakes are in progress")]
    TooMany,
    #[error("the handshake took too long")]
    TooLong,
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("enrolment failed: {0}")]
    Enrolment(Box<dyn std::error::Error + Send + Sync>),
    #[error("an enrolment was refused: {0}")]
    Refused(Refusal),
    #[error(transparent)]
    Identity(#[from] PeerIdentityError),
    #[error("{0} is not in the roster")]
    NotListed(Identity),
}

/// Why a peer's certificate names no node.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerIdentityError {
    #[error("the peer has no certificate")]
    NoCertificate,
    #[error(transparent)]
    Garbled(#[from] IdentityError),
}

/// The reason sent to a node that comes without a certificate and not to enrol.
pub(super) const NO_CERTIFICATE: &str = "a certificate of this cluster is required";

// QUIC's code for a server that takes no more connections, and TLS alerts as QUIC carries them:
// 0x100 plus the alert (RFC 9000, section 20; RFC 8446, section 6).
const CONNECTION_REFUSED: u64 = 0x02;
/// The code of a server that gives up before the end of a handshake that took too long there.
const APPLICATION_ERROR: u64 = 0x0c;
const ALERT_CERTIFICATE_EXPIRED: u64 = 0x100 + 45;
const ALERT_UNKNOWN_CA: u64 = 0x100 + 48;
const ALERT_DECRYPT_ERROR: u64 = 0x100 + 51;
const ALERT_CERTIFICATE_REQUIRED: u64 = 0x100 + 116;
const ALERT_NO_APPLICATION_PROTOCOL: u64 = 0x100 + 120;

/// A peer's reason, fit for a log: bounded, and without control characters.
fn printable(reason: &[u8]) -> String {
    let text = String::from_utf8_lossy(reason);
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}
