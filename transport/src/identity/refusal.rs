//! Why a node gets no certificate: the issuer's refusals, and other errors.
//!
//! A [`Refusal`] crosses the wire as a value, never as text. This module writes the words for the
//! user, so a hostile issuer cannot choose them.

use rkyv::{Archive, Deserialize, Serialize};
use x509_parser::time::ASN1Time;

use super::{IdentityError, Role};

/// Why the issuer does not certify a node.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The issuer accepts no token of this id.
    #[error("the join token is not known to this cluster. Ask for a new one")]
    UnknownToken,
    /// The id is known, but the proof was not made with the token's secret.
    #[error("the secret of the join token is wrong: was the token copied whole?")]
    WrongSecret,
    /// The token is for nodes of another role.
    #[error("the join token is for a node with the role {admits}, not {asked}")]
    WrongRole {
        /// The role that the token is for.
        admits: Role,
        /// The role that the node asked for.
        asked: Role,
    },
    /// The token has expired.
    #[error("the join token expired on {}. Ask for a new one", date(*unix_s))]
    Expired {
        /// Since when, in seconds since 1970.
        unix_s: u64,
    },
    /// The token has admitted as many nodes as it may.
    #[error("the join token is used up, it was for {uses} node(s). Ask for a new one")]
    UsedUp {
        /// How many nodes it was for.
        uses: u32,
    },
    /// The coordinators have removed the node from the cluster.
    #[error("this node was removed from the cluster")]
    Removed,
    /// The coordinators have not decided in time, perhaps because none leads. Asking again helps.
    #[error("the coordinators have not decided in time. Try again")]
    Undecided,
    /// The asked node issues no certificates.
    #[error("the node that was asked issues no certificates")]
    NotHere,
    /// The request is malformed.
    #[error("the request was not understood")]
    Garbled,
}

/// Why a node gets no new credentials.
#[derive(Debug, thiserror::Error)]
pub enum EnrolmentError {
    /// The coordinator does not admit the node.
    #[error("the coordinator refused this node: {0}")]
    Refused(#[from] Refusal),
    /// The coordinator's answer makes no sense.
    #[error("the coordinator's answer cannot be used: {0}")]
    Garbled(&'static str),
    /// Keys or certificates could not be made or read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// Any number of seconds, as a date if the calendar has one.
fn date(unix_s: u64) -> String {
    let time = i64::try_from(unix_s).ok().and_then(|unix_s| ASN1Time::from_timestamp(unix_s).ok());
    time.map_or(format!("second {unix_s} since 1970"), |time| time.to_string())
}
