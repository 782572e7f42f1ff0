//! The credentials that an endpoint presents. They can be replaced while it runs.
//!
//! Input: credentials, always of the same node. Output: the newest ones for each new handshake.
//! Existing links do not change: an endpoint presents its credentials once on a link.

use std::sync::{Arc, RwLock};

use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{Error, SignatureScheme};

use super::tls;
use crate::identity::Credentials;

/// The newest credentials, shared by all users that present them.
#[derive(Debug)]
pub(super) struct PresentedCredentials {
    newest: RwLock<(Arc<Credentials>, Arc<CertifiedKey>)>,
}

impl PresentedCredentials {
    pub(super) fn new(credentials: &Credentials) -> Result<Self, Error> {
        Ok(Self { newest: RwLock::new(certified(credentials)?) })
    }

    /// Presents these from now on. After an error the previous ones stay.
    pub(super) fn replace(&self, credentials: &Credentials) -> Result<(), Error> {
        let newest = certified(credentials)?;
        *self.newest.write().expect(NO_PANIC) = newest;
        Ok(())
    }

    pub(super) fn credentials(&self) -> Arc<Credentials> {
        self.newest.read().expect(NO_PANIC).0.clone()
    }

    fn key(&self) -> Arc<CertifiedKey> {
        self.newest.read().expect(NO_PANIC).1.clone()
    }
}

const NO_PANIC: &str = "cloning and replacing do not panic";

/// Fails if key and certificate do not belong together.
fn certified(credentials: &Credentials) -> Result<(Arc<Credentials>, Arc<CertifiedKey>), Error> {
    let key = credentials.key().into();
    let certified = CertifiedKey::from_der(credentials.chain(), key, &tls::provider())?;
    Ok((Arc::new(credentials.clone()), Arc::new(certified)))
}

impl ResolvesServerCert for PresentedCredentials {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key())
    }
}

impl ResolvesClientCert for PresentedCredentials {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _sigschemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        Some(self.key())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
