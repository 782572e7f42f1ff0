//! A node's credentials: the authority's certificate, its own certificate, its key.
//!
//! Input: certificates and a key, made by an authority or read from files. Output: the same for
//! TLS, and when they should be renewed. This module does not check signatures or expiry: TLS does,
//! at every handshake.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use pem::Pem;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};

use super::authority::CLOCK_SKEW;
use super::{Identity, IdentityError, parse};

const AUTHORITY_FILE: &str = "authority.pem";
const CHAIN_FILE: &str = "node.pem";
const KEY_FILE: &str = "node.key";

/// A node's proof of its identity.
#[derive(Debug)]
pub struct Credentials {
    authority: CertificateDer<'static>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivatePkcs8KeyDer<'static>,
    identity: Identity,
    /// When its certificate was issued and when it expires, seconds since 1970.
    life: (u64, u64),
}

impl Credentials {
    /// Puts together the authority's certificate, the node's (its own first), and its key.
    ///
    /// # Errors
    /// [`IdentityError::Malformed`] if the node's certificate states no identity.
    pub(super) fn new(
        authority: CertificateDer<'static>,
        chain: Vec<CertificateDer<'static>>,
        key: PrivatePkcs8KeyDer<'static>,
    ) -> Result<Self, IdentityError> {
        let leaf =
            chain.first().ok_or_else(|| IdentityError::Malformed("no certificate".into()))?;
        let identity = Identity::of(leaf)?;
        let life = life_of(leaf)?;
        Ok(Self { authority, chain, key, identity, life })
    }

    /// The identity that these credentials prove.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The certificate of the authority that the node trusts.
    pub fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    /// The certificates that the node presents: its own, then the authority's. From the second one,
    /// a peer with only a token learns which authority to trust.
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.chain.iter().chain([&self.authority]).cloned().collect()
    }

    /// The node's private key.
    pub fn key(&self) -> PrivatePkcs8KeyDer<'static> {
        self.key.clone_key()
    }

    /// When the node's certificate expires.
    pub fn expires(&self) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(self.life.1))
    }

    /// Whether a third of the certificate's life or less is left. It is then time to renew it, with
    /// enough time for more tries.
    pub fn are_due(&self, now: UnixTime) -> bool {
        let (issued, expires) = self.life;
        expires.saturating_sub(now.as_secs()) <= expires.saturating_sub(issued) / 3
    }

    /// Writes `authority.pem`, `node.pem` and, with mode 0600, `node.key`.
    ///
    /// # Errors
    /// [`IdentityError::File`].
    pub fn save(&self, dir: &Path) -> Result<(), IdentityError> {
        write_certificates(&dir.join(AUTHORITY_FILE), std::slice::from_ref(&self.authority))?;
        write_certificates(&dir.join(CHAIN_FILE), &self.chain)?;
        write_key(&dir.join(KEY_FILE), self.key.secret_pkcs8_der())
    }

    /// Reads the files of [`Credentials::save`].
    ///
    /// # Errors
    /// [`IdentityError::File`], [`IdentityError::Malformed`].
    pub fn load(dir: &Path) -> Result<Self, IdentityError> {
        let authority = read_certificate(&dir.join(AUTHORITY_FILE))?;
        let chain = read_certificates(&dir.join(CHAIN_FILE))?;
        Self::new(authority, chain, read_key(&dir.join(KEY_FILE))?)
    }
}

impl Clone for Credentials {
    fn clone(&self) -> Self {
        let Self { authority, chain, key, identity, life } = self;
        Self {
            authority: authority.clone(),
            chain: chain.clone(),
            key: key.clone_key(), // the libraries want the copy of a key to be explicit
            identity: identity.clone(),
            life: *life,
        }
    }
}

/// When a certificate was issued and when it expires, seconds since 1970.
fn life_of(certificate: &CertificateDer<'_>) -> Result<(u64, u64), IdentityError> {
    let parsed = parse(certificate)?;
    let validity = parsed.validity();
    let [begins, ends] =
        [&validity.not_before, &validity.not_after].map(|time| time.timestamp().max(0) as u64);
    Ok((begins + CLOCK_SKEW.as_secs(), ends))
}

pub(super) fn read_certificate(path: &Path) -> Result<CertificateDer<'static>, IdentityError> {
    let first = read_certificates(path)?.into_iter().next();
    first.ok_or_else(|| malformed(path, "holds no certificate"))
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let text = fs::read(path).map_err(|source| file(path, source))?;
    let certificates = CertificateDer::pem_slice_iter(&text).collect::<Result<_, _>>();
    certificates.map_err(|error| malformed(path, error))
}

pub(super) fn read_key(path: &Path) -> Result<PrivatePkcs8KeyDer<'static>, IdentityError> {
    let text = fs::read(path).map_err(|source| file(path, source))?;
    PrivatePkcs8KeyDer::from_pem_slice(&text).map_err(|error| malformed(path, error))
}

pub(super) fn write_certificates(
    path: &Path,
    certificates: &[CertificateDer<'_>],
) -> Result<(), IdentityError> {
    let pems: Vec<_> =
        certificates.iter().map(|der| Pem::new("CERTIFICATE", der.to_vec())).collect();
    replace(path, pem::encode_many(&pems).as_bytes(), 0o644).map_err(|source| file(path, source))
}

pub(super) fn write_key(path: &Path, der: &[u8]) -> Result<(), IdentityError> {
    let text = pem::encode(&Pem::new("PRIVATE KEY", der));
    replace(path, text.as_bytes(), 0o600).map_err(|source| file(path, source))
}

/// Writes another file first and renames it, so that the file is never half written and never has
/// another mode.
fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let unfinished = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)
}

fn file(path: &Path, source: io::Error) -> IdentityError {
    IdentityError::File { path: path.to_path_buf(), source }
}

fn malformed(path: &Path, problem: impl std::fmt::Display) -> IdentityError {
    IdentityError::Malformed(format!("{}: {problem}", path.display()))
}
