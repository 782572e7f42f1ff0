//! Enrolment: a join token is exchanged for a worker's credentials.
//!
//! The joiner has checked the server's certificate against the token's pin; it then sends one
//! [`Request`] and reads one [`Answer`]. Its proof is an HMAC, keyed by the SHA-256 of the token's
//! secret, over keying material exported from this very TLS session and the request: neither the
//! secret nor anything that could be replayed crosses the wire.
//!
//! Pure: `quic::enrol` carries the bytes. Expiry and use counts of tokens are not known here; the
//! owner of the accepted tokens leaves out those that are spent.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rkyv::rancor::Error as Failure;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use super::token::TokenId;
use super::{
    AcceptedToken, Authority, Credentials, Identity, IdentityError, JoinToken, NODE_LIFETIME, Role,
    public_key_digest,
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
        let name = NodeName::parse(&request.name)
            .ok_or("a name has 1 to 64 characters of a-z, 0-9 and -")?;
        let identity = Identity { role: Role::Worker, name };
        let certificate = self
            .authority
            .sign(&request.signing_request, &identity, NODE_LIFETIME)
            .map_err(|error| format!("the signing request is not valid: {error}"))?;
        let authority = self.authority.certificate().to_vec();
        Ok((Answer::Granted { certificate: certificate.to_vec(), authority }, identity))
    }
}

/// The joining side: a name, and a key that never leaves this process.
pub(crate) struct Application<'a> {
    token: &'a JoinToken,
    name: &'a NodeName,
    key: KeyPair,
}

impl<'a> Application<'a> {
    pub(crate) fn new(token: &'a JoinToken, name: &'a NodeName) -> Result<Self, EnrolmentError> {
        Ok(Self { token, name, key: KeyPair::generate().map_err(IdentityError::from)? })
    }

    /// The request's bytes, for the TLS session with this exported keying material.
    pub(crate) fn request(&self, session: &[u8; 32]) -> Result<Vec<u8>, EnrolmentError> {
        let signing_request = CertificateParams::default()
            .serialize_request(&self.key)
            .map_err(IdentityError::from)?
            .der()
            .to_vec();
        let name = self.name.to_string();
        let request = Request { token: self.token.id(), name, signing_request };
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
        let asked = Identity { role: Role::Worker, name: self.name.clone() };
        if *credentials.identity() != asked {
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
    name: String,
    signing_request: Vec<u8>,
}

#[derive(Archive, Serialize, Deserialize)]
enum Answer {
    Granted { certificate: Vec<u8>, authority: Vec<u8> },
    Refused { reason: String },
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
