//! A node's identity, and how the node proves it.
//!
//! A cluster has one certificate [`Authority`]. A node's certificate carries its [`Identity`] as a
//! URI, `everstep://<role>/<name>`. The certificate, its private key and the authority's
//! certificate are the node's [`Credentials`]. A node without credentials holds a [`JoinToken`] and
//! exchanges it for credentials by [`Enrolment`]. A node with credentials exchanges them for new
//! ones before they expire.
//!
//! This module knows no sockets, no clock and no cluster. [`crate::quic`] carries these proofs and
//! tells the time. A [`Gatekeeper`] decides which nodes to admit. The coordinator decides whether
//! an identity may take part in a run.

mod applying;
mod authority;
mod credentials;
mod enrolment;
mod refusal;
mod token;
mod tokens;

use std::fmt;
use std::path::PathBuf;

use aws_lc_rs::digest;
use rcgen::PublicKeyData;
use rkyv::{Archive, Deserialize, Serialize};
use rustls::pki_types::CertificateDer;
pub use rustls::pki_types::UnixTime;
use x509_parser::prelude::{GeneralName, X509Certificate};

pub use applying::NodeKey;
pub(crate) use applying::{Application, renewed};
pub use authority::{Authority, NODE_LIFETIME, RENEWABLE_FOR};
pub use credentials::Credentials;
pub use enrolment::{AdmissionDecision, Applicant, Enrolment, Gatekeeper};
pub(crate) use enrolment::{Granted, MAX_ENROLMENT, answer};
pub use refusal::{EnrolmentError, Refusal};
pub use token::{
    AcceptedToken, JoinToken, TokenError, TokenId, TokenLimits, format_token_id, parse_token_id,
};
pub use tokens::AcceptedTokens;

use crate::protocol::NodeName;

/// A node's role, which decides what it may do.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    serde::Serialize,
    serde::Deserialize,
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
)]
#[rkyv(derive(PartialEq, Eq, PartialOrd, Ord))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// One of the three or five nodes that replicate the cluster's state.
    Coordinator,
    /// A node that drives a device.
    Worker,
    /// A user's program: it submits runs and watches them.
    Operator,
}

impl Role {
    const ALL: [Self; 3] = [Self::Coordinator, Self::Worker, Self::Operator];

    fn as_str(self) -> &'static str {
        match self {
            Self::Coordinator => "coordinator",
            Self::Worker => "worker",
            Self::Operator => "operator",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A node's identity: a role and a name, both stated by its certificate.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[rkyv(derive(PartialEq, Eq, PartialOrd, Ord))]
pub struct Identity {
    /// The role that the node has.
    pub role: Role,
    /// The node's name, unique within its role.
    pub name: NodeName,
}

const SCHEME: &str = "everstep://";

impl Identity {
    /// Reads the identity that a certificate states. This does not check whether to believe the
    /// certificate: TLS has done that.
    ///
    /// # Errors
    /// [`IdentityError::Malformed`] unless the certificate states exactly one identity.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, IdentityError> {
        let parsed = parse(certificate)?;
        let names = parsed.subject_alternative_name().ok().flatten();
        let uris = names.iter().flat_map(|names| &names.value.general_names);
        let mut uris = uris.filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
        let (Some(uri), None) = (uris.next(), uris.next()) else {
            return Err(IdentityError::Malformed("a certificate that states no identity".into()));
        };
        Self::parse(uri)
            .ok_or_else(|| IdentityError::Malformed(format!("a certificate for {uri:?}")))
    }

    /// Parses `everstep://<role>/<name>`.
    pub fn parse(uri: &str) -> Option<Self> {
        let (role, name) = uri.strip_prefix(SCHEME)?.split_once('/')?;
        let role = Role::ALL.into_iter().find(|known| known.as_str() == role)?;
        Some(Self { role, name: NodeName::parse(name)? })
    }

    /// The node of this role with this key. Its name is the role and the first 64 bits of the
    /// SHA-256 of the key's SubjectPublicKeyInfo. No other node can have it without the key.
    fn with_key(role: Role, key: &impl PublicKeyData) -> Self {
        let digest = sha256(&key.subject_public_key_info());
        let number = u64::from_be_bytes(digest[..8].try_into().expect("eight bytes"));
        let name = NodeName::parse(&format!("{role}-{number:016x}"));
        Self { role, name: name.expect("a role, a dash and hex are a name") }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.role, self.name)
    }
}

/// Credentials that cannot be made, read or kept.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The bytes do not have the expected form.
    #[error("malformed: {0}")]
    Malformed(String),
    /// Certificates could not be made or read.
    #[error("certificate: {0}")]
    Certificate(#[from] rcgen::Error),
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, IdentityError> {
    match x509_parser::parse_x509_certificate(certificate) {
        Ok((_, parsed)) => Ok(parsed),
        Err(error) => Err(IdentityError::Malformed(format!("not a certificate: {error}"))),
    }
}

/// SHA-256 of the public key (its SubjectPublicKeyInfo) in a certificate. A token pins this value.
pub(crate) fn public_key_digest(
    certificate: &CertificateDer<'_>,
) -> Result<[u8; 32], IdentityError> {
    Ok(sha256(parse(certificate)?.tbs_certificate.subject_pki.raw))
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    digest::digest(&digest::SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes")
}
