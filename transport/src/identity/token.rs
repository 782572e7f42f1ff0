//! Join tokens: all that a new node needs to become one of a cluster.
//!
//! `es1.<id>.<secret>.<pin>`, each part base64url. The id names the token to its issuer. The joiner
//! proves the secret but never sends it. The pin is the SHA-256 of the public key of the authority
//! that the joiner has to trust. Only the issuer knows what a token is good for, its
//! [`TokenLimits`].
//!
//! The secret is the seed of an Ed25519 key pair (RFC 8032). The joiner signs with it. The issuer
//! keeps an [`AcceptedToken`] with the public key. A thief may steal that from the issuer's memory,
//! its disk or the replicated log. With it the thief can check proofs but make none, and has
//! nothing to guess: the seed is 256 random bits. (A mere hash of the secret would not do: with
//! HMAC, the value that checks a proof also makes proofs.) An attacker that can *change* what an
//! issuer keeps can admit itself. A holder of the token can join until it is used up or expires.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::rand;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use rkyv::{Archive, Deserialize, Serialize};

use super::{Authority, Credentials, IdentityError, Role, public_key_digest};

const VERSION: &str = "es1";

/// The id that names a token to its issuer. It is no secret.
pub type TokenId = [u8; 9];

/// A signature by the token's key.
pub(super) type Proof = [u8; 64];

/// A secret that admits new nodes to one cluster. Its `Display` form is the token itself.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    id: TokenId,
    secret: [u8; 32],
    authority: [u8; 32],
}

/// The issuer's part of a token: enough to check a proof, not enough to make one.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq)]
pub struct AcceptedToken {
    pub(super) id: TokenId,
    /// The public key of the pair with the secret as its seed.
    verifier: [u8; 32],
    pub(super) limits: TokenLimits,
}

/// The limits of a token.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct TokenLimits {
    /// The role of a node that joins with it.
    pub role: Role,
    /// How many nodes it admits. `None`: any number.
    pub uses: Option<u32>,
    /// When it expires, in seconds since 1970. From then on it admits no node. `None`: never.
    pub expires_unix_s: Option<u64>,
}

/// Why a text is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The text does not begin as tokens do.
    #[error("this is not a join token: one begins with \"{VERSION}.\"")]
    Foreign,
    /// The text has more or fewer parts than a token.
    #[error("the join token has {0} parts instead of 4: was it copied whole?")]
    Parts(usize),
    /// A part of the text is not valid.
    #[error("the {0} of the join token is garbled: was it copied whole?")]
    Garbled(&'static str),
}

impl JoinToken {
    /// A new token for the authority's cluster.
    pub fn create(authority: &Authority) -> Self {
        Self { id: random(), secret: random(), authority: authority.digest() }
    }

    /// The token that a holder of the authority's key makes of these words, the same each time. No
    /// other node can make it. One such token tells nothing about another.
    pub fn derived(authority: &Authority, words: &[u8]) -> Self {
        let key = authority.secret_for("everstep 2026 join token of words");
        let mut bytes = blake3::Hasher::new_keyed(&key).update(words).finalize_xof();
        let (mut id, mut secret) = ([0; 9], [0; 32]);
        bytes.fill(&mut id);
        bytes.fill(&mut secret);
        Self { id, secret, authority: authority.digest() }
    }

    /// A new token for the cluster of a node that has these credentials.
    ///
    /// # Errors
    /// [`IdentityError::Malformed`] if they hold no authority's certificate.
    pub fn for_cluster_of(credentials: &Credentials) -> Result<Self, IdentityError> {
        let authority = public_key_digest(credentials.authority())?;
        Ok(Self { id: random(), secret: random(), authority })
    }

    /// The issuer's part of the token, with its terms.
    pub fn accepted(&self, limits: TokenLimits) -> AcceptedToken {
        let verifier = self.key().public_key().as_ref().try_into();
        AcceptedToken { id: self.id, verifier: verifier.expect("Ed25519 has 32 bytes"), limits }
    }

    /// The id that names it to its issuer.
    pub fn id(&self) -> TokenId {
        self.id
    }

    /// SHA-256 of the public key of the authority that the joiner shall trust.
    pub(crate) fn authority(&self) -> [u8; 32] {
        self.authority
    }

    /// Proves the secret to a holder of the accepted token, for this statement only.
    pub(super) fn prove(&self, statement: &[u8]) -> Proof {
        self.key().sign(statement).as_ref().try_into().expect("an Ed25519 signature has 64 bytes")
    }

    fn key(&self) -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&self.secret).expect("any 32 bytes are a seed")
    }
}

impl AcceptedToken {
    /// The id that names the token.
    pub fn id(&self) -> TokenId {
        self.id
    }

    /// The limits of the token.
    pub fn limits(&self) -> &TokenLimits {
        &self.limits
    }

    pub(super) fn verify(&self, statement: &[u8], proof: &Proof) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.verifier).verify(statement, proof).is_ok()
    }
}

impl TokenLimits {
    /// The limits of a token for any number of nodes of this role, for ever.
    pub fn unlimited(role: Role) -> Self {
        Self { role, uses: None, expires_unix_s: None }
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
        write!(f, "AcceptedToken({}, {:?})", BASE64.encode(self.id), self.limits)
    }
}

/// A token's id, as the token's text shows it.
pub fn format_token_id(id: &TokenId) -> String {
    BASE64.encode(id)
}

/// The id from such a text.
///
/// # Errors
/// [`TokenError::Garbled`] if the text is not an id.
pub fn parse_token_id(text: &str) -> Result<TokenId, TokenError> {
    bytes("id", text)
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
