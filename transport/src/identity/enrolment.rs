//! Enrolment: a join token is exchanged for a worker's credentials.
//!
//! The joiner has checked the server's certificate against the token's pin; it then sends one
//! [`Request`] and reads one [`Answer`]. Its proof is an HMAC, keyed by the SHA-256 of the token's
//! secret, over keying material exported from this very TLS session and the request: neither the
//! secret nor anything that could be replayed crosses the wire.
//!
//! A worker's name follows from its key, so a token's holder cannot take the name of another node.
//!
//! Pure: `quic::enrol` carries the bytes. Expiry and use counts of tokens are not known here; the
//! owner of the accepted tokens leaves out those that are spent.

use std::sync::Arc;

use rcgen::{CertificateParams, CertificateSigningRequestParams, KeyPair, PublicKeyData};
use rkyv::rancor::Error as Failure;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use super::token::TokenId;
use super::{
    AcceptedToken, Authority, Credentials, Identity, IdentityError, JoinToken, NODE_LIFETIME, Role,
    public_key_digest, sha256,
};
use crate::protocol::NodeName;

/// Most bytes of a request or an answer.
pub(crate) const MAX_ENROLMENT: usize = 16 << 10;

const PROOF_BYTES: usize = 32;

/// The issuing side: an authority and the tokens that it accepts.
#[derive(Debug)]
pub struct Enrolment {
    authority: Arc<Authority>,
    accepted: Vec<AcceptedToken>,
}

impl Enrolment {
    /// Workers that prove one of these tokens get a certificate of this authority.
    pub fn new(authority: Arc<Authority>, accepted: Vec<AcceptedToken>) -> Self {
        Self { authority, accepted }
    }

    /// Judges a request that arrived in the TLS session with this exported keying material.
    /// Returns the answer's bytes and who was admitted, if anyone was.
    pub(crate) fn answer(&self, session: &[u8; 32], bytes: &[u8]) -> (Vec<u8>, Option<Identity>) {
        let (answer, admitted) = match self.grant(session, bytes) {
            Ok((answer, identity)) => (answer, Some(identity)),
            Err(reason) => (Answer::Refused { reason }, None),
        };
        let bytes = rkyv::to_bytes::<Failure>(&answer).expect("an answer is plain data");
        (bytes.into_vec(), admitted)
    }

    fn grant(&self, session: &[u8; 32], bytes: &[u8]) -> Result<(Answer, Identity), String> {
        let (proof, bytes) =
            bytes.split_at_checked(PROOF_BYTES).ok_or("the request is too short")?;
        let request: Request = {
            let aligned = aligned(bytes);
            rkyv::from_bytes::<_, Failure>(&aligned).map_err(|_| "the request is garbled")?
        };
        let token = self.accepted.iter().find(|token| token.id == request.token);
        if !token.is_some_and(|token| token.verify(&statement(session, bytes), proof)) {
            return Err("the join token is not valid here; ask for a new one".into());
        }
        // Of the signing request only the key counts, which must have signed it.
        let invalid = |error| format!("the signing request is not valid: {error}");
        let signing_request = request.signing_request.into();
        let key = CertificateSigningRequestParams::from_der(&signing_request).map_err(invalid)?;
        let identity = worker_with(&key.public_key);
        let certificate = self.authority.certify(&identity, &key.public_key, NODE_LIFETIME);
        let certificate = certificate.map_err(|error| error.to_string())?;
        let authority = self.authority.certificate().to_vec();
        Ok((Answer::Granted { certificate: certificate.to_vec(), authority }, identity))
    }
}

/// The joining side: a token, and a key that never leaves this process.
pub(crate) struct Application<'a> {
    token: &'a JoinToken,
    key: KeyPair,
}

impl<'a> Application<'a> {
    pub(crate) fn new(token: &'a JoinToken) -> Result<Self, EnrolmentError> {
        Ok(Self { token, key: KeyPair::generate().map_err(IdentityError::from)? })
    }

    /// For a node that has a key, and with it a name.
    pub(crate) fn renewing(
        token: &'a JoinToken,
        held: &Credentials,
    ) -> Result<Self, EnrolmentError> {
        Ok(Self { token, key: KeyPair::try_from(&held.key()).map_err(IdentityError::from)? })
    }

    /// The request's bytes, for the TLS session with this exported keying material.
    pub(crate) fn request(&self, session: &[u8; 32]) -> Result<Vec<u8>, EnrolmentError> {
        let signing_request = CertificateParams::default()
            .serialize_request(&self.key)
            .map_err(IdentityError::from)?
            .der()
            .to_vec();
        let request = Request { token: self.token.id(), signing_request };
        let bytes = rkyv::to_bytes::<Failure>(&request).expect("a request is plain data");
        let proof = self.token.prove(&statement(session, &bytes));
        Ok([&proof[..], &bytes].concat())
    }

    /// Reads the answer.
    pub(crate) fn credentials(self, answer: &[u8]) -> Result<Credentials, EnrolmentError> {
        let answer: Answer = rkyv::from_bytes::<_, Failure>(&aligned(answer))
            .map_err(|_| EnrolmentError::Garbled("it is not an answer"))?;
        let (certificate, authority) = match answer {
            Answer::Granted { certificate, authority } => (certificate, authority),
            Answer::Refused { reason } => return Err(EnrolmentError::Refused { reason }),
        };
        let authority = CertificateDer::from(authority);
        if public_key_digest(&authority)? != self.token.authority() {
            return Err(EnrolmentError::Garbled("its authority is not the token's"));
        }
        let key = PrivatePkcs8KeyDer::from(self.key.serialize_der());
        let credentials = Credentials::new(authority, vec![certificate.into()], key)?;
        if *credentials.identity() != worker_with(&self.key) {
            return Err(EnrolmentError::Garbled("its certificate is for another node"));
        }
        Ok(credentials)
    }
}

/// Why a node has no credentials yet.
#[derive(Debug, thiserror::Error)]
pub enum EnrolmentError {
    /// The coordinator does not admit it.
    #[error("the coordinator refused this node: {reason}")]
    Refused {
        /// Why, in words for the user.
        reason: String,
    },
    /// The coordinator's answer makes no sense.
    #[error("the coordinator's answer cannot be used: {0}")]
    Garbled(&'static str),
    /// Keys or certificates could not be made or read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

#[derive(Archive, Serialize, Deserialize)]
struct Request {
    token: TokenId,
    signing_request: Vec<u8>,
}

#[derive(Archive, Serialize, Deserialize)]
enum Answer {
    Granted { certificate: Vec<u8>, authority: Vec<u8> },
    Refused { reason: String },
}

/// The worker that has this key: `worker-` and the first 64 bits of the SHA-256 of its
/// SubjectPublicKeyInfo.
fn worker_with(key: &impl PublicKeyData) -> Identity {
    let digest = sha256(&key.subject_public_key_info());
    let number = u64::from_be_bytes(digest[..8].try_into().expect("eight bytes"));
    let name = NodeName::parse(&format!("worker-{number:016x}")).expect("hex is a name");
    Identity { role: Role::Worker, name }
}

/// What a proof is over. The session's part has a fixed length, so the two cannot be confused.
fn statement(session: &[u8; 32], request: &[u8]) -> Vec<u8> {
    [session, request].concat()
}

fn aligned(bytes: &[u8]) -> AlignedVec {
    let mut aligned = AlignedVec::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    aligned
}
