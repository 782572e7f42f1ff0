//! Enrolment, the asking side: makes requests, and turns answers into credentials.
//!
//! Input: a token and perhaps a key, or the credentials that a node has, and an issuer's answer.
//! Output: the bytes to send, and new credentials. Before this side sends anything, the issuer has
//! proved that it is of the token's or the node's own cluster. This module still checks that the
//! answer is what the node asked for.

use std::path::Path;

use rcgen::{CertificateParams, KeyPair};
use rkyv::rancor::Error as Failure;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use super::credentials::{read_key, write_key};
use super::enrolment::{Answer, Request, aligned, statement};
use super::{
    Credentials, EnrolmentError, Identity, IdentityError, JoinToken, Role, public_key_digest,
};

/// The key of a node that has no certificate yet. Another enrolment with the same key is for the
/// same node, and spends no other use of its token.
pub struct NodeKey(PrivatePkcs8KeyDer<'static>);

impl NodeKey {
    /// A new random key.
    ///
    /// # Errors
    /// [`IdentityError::Certificate`] if no key can be made.
    pub fn create() -> Result<Self, IdentityError> {
        Ok(Self(KeyPair::generate()?.serialize_der().into()))
    }

    /// The key in this file. If the file is missing or holds no key, it gets a new one, with mode
    /// 0600.
    ///
    /// # Errors
    /// [`IdentityError`]: the file cannot be written.
    pub fn read_or_make(path: &Path) -> Result<Self, IdentityError> {
        if let Ok(key) = read_key(path)
            && KeyPair::try_from(&key).is_ok()
        {
            return Ok(Self(key));
        }
        let made = Self::create()?;
        write_key(path, made.0.secret_pkcs8_der())?;
        Ok(made)
    }
}

/// A node that has a token, and a key that never leaves this machine.
pub(crate) struct Application<'a> {
    token: &'a JoinToken,
    role: Role,
    key: KeyPair,
    /// The node's newest certificate, if it has had one.
    held: Option<CertificateDer<'static>>,
}

impl<'a> Application<'a> {
    pub(crate) fn new(
        token: &'a JoinToken,
        role: Role,
        NodeKey(key): &NodeKey,
    ) -> Result<Self, EnrolmentError> {
        let key = KeyPair::try_from(key).map_err(IdentityError::from)?;
        Ok(Self { token, role, key, held: None })
    }

    /// For a node that has a key, and with it a name. It shows its certificate, which may have
    /// expired.
    pub(crate) fn again(token: &'a JoinToken, held: &Credentials) -> Result<Self, EnrolmentError> {
        let key = KeyPair::try_from(&held.key()).map_err(IdentityError::from)?;
        let (role, held) = (held.identity().role, held.chain().into_iter().next());
        Ok(Self { token, role, key, held })
    }

    /// The request's bytes, for the TLS session with this exported keying material.
    pub(crate) fn request(&self, session: &[u8; 32]) -> Result<Vec<u8>, EnrolmentError> {
        let mut signing_request = CertificateParams::default()
            .serialize_request(&self.key)
            .map_err(IdentityError::from)?
            .der()
            .to_vec();
        signing_request.extend_from_slice(self.held.as_deref().unwrap_or_default());
        let request = Request { token: self.token.id(), role: self.role, signing_request };
        let bytes = rkyv::to_bytes::<Failure>(&request).expect("a request is plain data");
        let proof = self.token.prove(&statement(session, &bytes));
        Ok([&proof[..], &bytes].concat())
    }

    /// Reads the issuer's answer.
    pub(crate) fn credentials(self, answer: &[u8]) -> Result<Credentials, EnrolmentError> {
        let (certificate, authority) = granted(answer)?;
        if public_key_digest(&authority)? != self.token.authority() {
            return Err(EnrolmentError::Garbled("its authority is not the token's"));
        }
        let key = PrivatePkcs8KeyDer::from(self.key.serialize_der());
        let credentials = Credentials::new(authority, vec![certificate], key)?;
        if *credentials.identity() != Identity::with_key(self.role, &self.key) {
            return Err(EnrolmentError::Garbled("its certificate is for another node"));
        }
        Ok(credentials)
    }
}

/// The node's credentials after this answer to its request for a renewal.
pub(crate) fn renewed(held: &Credentials, answer: &[u8]) -> Result<Credentials, EnrolmentError> {
    let (certificate, authority) = granted(answer)?;
    if authority != *held.authority() {
        return Err(EnrolmentError::Garbled("its authority is not this node's"));
    }
    let same_key = public_key_digest(&certificate)? == public_key_digest(&held.chain()[0])?;
    let renewed = Credentials::new(authority, vec![certificate], held.key())?;
    if renewed.identity() != held.identity() || !same_key {
        return Err(EnrolmentError::Garbled("its certificate is for another node"));
    }
    if renewed.expires() <= held.expires() {
        return Err(EnrolmentError::Garbled("its certificate is no newer"));
    }
    Ok(renewed)
}

/// The node's certificate and its authority's, if the answer has them.
fn granted(
    answer: &[u8],
) -> Result<(CertificateDer<'static>, CertificateDer<'static>), EnrolmentError> {
    match rkyv::from_bytes::<Answer, Failure>(&aligned(answer)) {
        Ok(Answer::Granted { certificate, authority }) => {
            Ok((certificate.into(), authority.into()))
        }
        Ok(Answer::Refused(refusal)) => Err(refusal.into()),
        Err(_) => Err(EnrolmentError::Garbled("it is not an answer")),
    }
}
