//! Join tokens: all that a new node needs to become one of a cluster.
//!
//! `es1.<id>.<secret>.<pin>`, each part base64url: the id names the token to its issuer, the secret
//! is proved but never sent, the pin is the SHA-256 of the authority's public key and tells the
//! joiner whom to trust. The issuer keeps an [`AcceptedToken`], not the secret.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::{hmac, rand};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;

use super::{Authority, sha256};

const VERSION: &str = "es1";

pub(super) type TokenId = [u8; 9];

/// A secret that admits new workers to one cluster. Its `Display` form is the token itself.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    id: TokenId,
    secret: [u8; 32],
    authority: [u8; 32],
}

/// What the issuer keeps of a token: enough to check a proof, not enough to print the token.
#[derive(Clone)]
pub struct AcceptedToken {
    pub(super) id: TokenId,
    key: [u8; 32],
}

/// Text that is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It does not begin as tokens do.
    #[error("this is not a join token: one begins with \"{VERSION}.\"")]
    Foreign,
    /// It has more or fewer parts.
    #[error("the join token has {0} parts instead of 4: was it copied whole?")]
    Parts(usize),
    /// A part of it is not what it should be.
    #[error("the {0} of the join token is garbled: was it copied whole?")]
    Garbled(&'static str),
}

impl JoinToken {
    /// A new token for the authority's cluster.
    pub fn create(authority: &Authority) -> Self {
        Self { id: random(), secret: random(), authority: authority.digest() }
    }

    /// What the issuer keeps.
    pub fn accepted(&self) -> AcceptedToken {
        AcceptedToken { id: self.id, key: sha256(&self.secret) }
    }

    pub(super) fn id(&self) -> TokenId {
        self.id
    }

    /// SHA-256 of the public key of the authority that the joiner is to trust.
    pub(crate) fn authority(&self) -> [u8; 32] {
        self.authority
    }

    /// Proves the secret to one who holds the accepted token, for this statement only.
    pub(super) fn prove(&self, statement: &[u8]) -> [u8; 32] {
        let tag = hmac::sign(&mac(&sha256(&self.secret)), statement);
        tag.as_ref().try_into().expect("an HMAC-SHA256 has 32 bytes")
    }
}

impl AcceptedToken {
    pub(super) fn verify(&self, statement: &[u8], proof: &[u8]) -> bool {
        hmac::verify(&mac(&self.key), statement, proof).is_ok()
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let parts: Vec<_> = text.trim().split('.').collect();
        match parts[..] {
            [VERSION, id, secret, authority] => Ok(Self {
                id: bytes("id", id)?,
                secret: bytes("secret", secret)?,
                authority: bytes("pin", authority)?,
            }),
            [VERSION, ..] => Err(TokenError::Parts(parts.len())),
            _ => Err(TokenError::Foreign),
        }
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [id, secret, pin] =
            [&self.id[..], &self.secret, &self.authority].map(|part| BASE64.encode(part));
        write!(f, "{VERSION}.{id}.{secret}.{pin}")
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken({})", BASE64.encode(self.id)) // never the secret: this goes to logs
    }
}

impl fmt::Debug for AcceptedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AcceptedToken({})", BASE64.encode(self.id))
    }
}

fn mac(key: &[u8; 32]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, key)
}

fn bytes<const N: usize>(part: &'static str, text: &str) -> Result<[u8; N], TokenError> {
    let decoded = BASE64.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
    decoded.ok_or(TokenError::Garbled(part))
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::fill(&mut bytes).expect("the system has random numbers");
    bytes
}
