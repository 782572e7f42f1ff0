//! Enrolment, the issuing side: certificates for nodes that prove a join token or an identity.
//!
//! A joiner has checked the server's certificate against the token's pin. It then sends one
//! [`Request`] and reads one [`Answer`]. Its proof is a signature by the token's key over the
//! request and keying material exported from this very TLS session. Neither the secret nor anything
//! that could be replayed crosses the wire. A new node's name follows from its key, so the holder
//! of a token cannot take the name of another node.
//!
//! A node whose certificate has expired without a link shows it along with its request. The
//! gatekeeper may then admit the node by its key alone, whatever has become of the token.
//!
//! A *renewal* needs no request at all. The node proved its certificate when its link came up, and
//! the new one is for the same node and the same key. The link is proof enough even if that
//! certificate has expired since. A thief of a node's key can therefore remain that node until the
//! cluster removes it. Expiry ends what a key is worth without a link.
//!
//! Pure: `quic` carries the bytes, and a [`Gatekeeper`] decides.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use rcgen::{CertificateSigningRequestParams, PublicKey, SubjectPublicKeyInfo};
use rkyv::rancor::Error as Failure;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};
use rustls::pki_types::CertificateDer;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use super::token::{Proof, TokenId};
use super::{
    AcceptedToken, AcceptedTokens, Authority, Identity, NODE_LIFETIME, Refusal, Role, UnixTime,
    parse,
};

/// Most bytes of a request or an answer.
pub(crate) const MAX_ENROLMENT: usize = 16 << 10;

/// The issuing side: an authority, and the gatekeeper that decides which nodes it certifies.
pub struct Enrolment {
    authority: Arc<Authority>,
    gatekeeper: Box<dyn Gatekeeper>,
}

/// Decides which nodes get a certificate, at once or after others have agreed. The issuer does not
/// wait for a verdict that takes too long: it tells the node to ask again.
pub trait Gatekeeper: Send + Sync {
    /// Whether this node may join. If so, this spends a use of its token.
    fn admit(&self, applicant: Applicant, now: UnixTime) -> AdmissionDecision;

    /// Whether this node, which has proved its identity, may stay.
    fn renew(&self, node: Identity, now: UnixTime) -> AdmissionDecision;
}

/// A decision that comes later.
pub type AdmissionDecision = Pin<Box<dyn Future<Output = Result<(), Refusal>> + Send>>;

/// A node that wants to join, with its proof.
#[derive(Clone, Debug)]
pub struct Applicant {
    /// The node's future identity: the role that it asks for, and the name that follows from its
    /// key.
    pub identity: Identity,
    /// The token that the node claims to have. [`AcceptedTokens::judge`] checks the claim.
    pub token: TokenId,
    statement: Vec<u8>,
    proof: Proof,
    /// The certificate that the node shows. Nothing is known of it until the issuer has checked it.
    held: Option<CertificateDer<'static>>,
    /// Whether the issuer has certified this key under this name, not too long ago.
    is_certified: bool,
}

/// A certificate that the authority has granted.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) identity: Identity,
    certificate: CertificateDer<'static>,
    authority: CertificateDer<'static>,
}

impl Enrolment {
    /// The authority's [secret](Authority::secret_for) for this purpose.
    pub(crate) fn secret_for(&self, purpose: &str) -> [u8; 32] {
        self.authority.secret_for(purpose)
    }

    /// Certifies nodes that prove one of these tokens, on its terms. Uses are counted in this
    /// process only.
    pub fn new(authority: Arc<Authority>, accepted: Vec<AcceptedToken>) -> Self {
        let mut tokens = AcceptedTokens::default();
        accepted.into_iter().for_each(|token| tokens.accept(token));
        Self::decided_by(authority, Mutex::new(tokens))
    }

    /// Certifies the nodes that the gatekeeper admits.
    pub fn decided_by(authority: Arc<Authority>, gatekeeper: impl Gatekeeper + 'static) -> Self {
        Self { authority, gatekeeper: Box::new(gatekeeper) }
    }

    /// Judges a request that arrived in the TLS session with this exported keying material.
    pub(crate) async fn admit(
        &self,
        session: &[u8; 32],
        request: &[u8],
        now: UnixTime,
    ) -> Result<Granted, Refusal> {
        let (mut applicant, key) = Applicant::read(session, request).ok_or(Refusal::Garbled)?;
        let identity = applicant.identity.clone();
        let is_ours = |held| self.authority.has_certified(&identity, &key, held, now);
        applicant.is_certified = applicant.held.as_ref().is_some_and(is_ours);
        self.gatekeeper.admit(applicant, now).await?;
        self.grant(now, identity, &key)
    }

    /// Judges whether the node that has proved this certificate gets a newer one.
    pub(crate) async fn renew(
        &self,
        certificate: &CertificateDer<'_>,
        now: UnixTime,
    ) -> Result<Granted, Refusal> {
        let identity = Identity::of(certificate).map_err(|_| Refusal::Garbled)?;
        let key = parse(certificate).map_err(|_| Refusal::Garbled)?;
        let key = SubjectPublicKeyInfo::from_der(key.tbs_certificate.subject_pki.raw);
        let key = key.map_err(|_| Refusal::Garbled)?;
        self.gatekeeper.renew(identity.clone(), now).await?;
        self.grant(now, identity, &key)
    }

    fn grant(
        &self,
        now: UnixTime,
        identity: Identity,
        key: &impl rcgen::PublicKeyData,
    ) -> Result<Granted, Refusal> {
        let certificate = self.authority.certify(now, &identity, key, NODE_LIFETIME);
        let certificate = certificate.map_err(|_| Refusal::Garbled)?;
        Ok(Granted { identity, certificate, authority: self.authority.certificate().clone() })
    }
}

/// Decides by the tokens alone, at once. An existing node stays a node.
impl Gatekeeper for Mutex<AcceptedTokens> {
    fn admit(&self, applicant: Applicant, now: UnixTime) -> AdmissionDecision {
        let mut tokens = self.lock().expect("judging and spending do not panic");
        let judged = tokens.judge(&applicant, now);
        let spent =
            judged.and_then(|()| tokens.spend(&applicant.token, &applicant.identity.name, now));
        Box::pin(std::future::ready(spent))
    }

    fn renew(&self, _node: Identity, _now: UnixTime) -> AdmissionDecision {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Applicant {
    /// Of the signing request only the key counts, and this key must have signed it.
    fn read(session: &[u8; 32], bytes: &[u8]) -> Option<(Self, PublicKey)> {
        let (proof, request) = bytes.split_first_chunk()?;
        let statement = statement(session, request);
        let request = rkyv::from_bytes::<Request, Failure>(&aligned(request)).ok()?;
        let (held, _) = X509CertificationRequest::from_der(&request.signing_request).ok()?;
        let held = (!held.is_empty()).then(|| CertificateDer::from(held.to_vec()));
        let signing_request = request.signing_request.into();
        let key = CertificateSigningRequestParams::from_der(&signing_request).ok()?.public_key;
        let (identity, token) = (Identity::with_key(request.role, &key), request.token);
        let is_certified = false;
        Some((Self { identity, token, statement, proof: *proof, held, is_certified }, key))
    }

    /// Whether the node has shown a certificate of the issuer, for its key and its name, that is
    /// valid or ended less than [`RENEWABLE_FOR`](super::RENEWABLE_FOR) ago. Another host can
    /// repeat all of the request, and gains a certificate that is of no use without the key.
    pub fn is_certified(&self) -> bool {
        self.is_certified
    }

    pub(super) fn has_secret_of(&self, token: &AcceptedToken) -> bool {
        token.verify(&self.statement, &self.proof)
    }
}

/// The bytes that carry the decision to a node.
pub(crate) fn answer(decision: &Result<Granted, Refusal>) -> Vec<u8> {
    let answer = match decision {
        Ok(Granted { certificate, authority, .. }) => {
            Answer::Granted { certificate: certificate.to_vec(), authority: authority.to_vec() }
        }
        Err(refusal) => Answer::Refused(refusal.clone()),
    };
    rkyv::to_bytes::<Failure>(&answer).expect("an answer is plain data").into_vec()
}

/// A joiner's request. Its proof goes in front of it.
#[derive(Archive, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) token: TokenId,
    pub(super) role: Role,
    /// A PKCS #10 request, DER. The node's newest certificate follows it, if there is one.
    pub(super) signing_request: Vec<u8>,
}

#[derive(Archive, Serialize, Deserialize)]
pub(super) enum Answer {
    Granted { certificate: Vec<u8>, authority: Vec<u8> },
    Refused(Refusal),
}

/// The bytes that a proof signs. The session's part has a fixed length, so the two cannot be
/// confused.
pub(super) fn statement(session: &[u8; 32], request: &[u8]) -> Vec<u8> {
    [session, request].concat()
}

pub(super) fn aligned(bytes: &[u8]) -> AlignedVec {
    let mut aligned = AlignedVec::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    aligned
}

#[cfg(test)]
mod tests;
