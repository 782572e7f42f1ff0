//! The cluster's certificate authority: it signs the identities of its nodes.
//!
//! Input: identities, public keys, the time. Output: certificates. The authority keeps no list of
//! what it has signed. A [`super::Gatekeeper`] decides which nodes deserve a certificate.

use std::path::Path;
use std::time::Duration;

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};

use super::credentials::{read_certificate, read_key, write_certificates, write_key};
use super::{Credentials, Identity, IdentityError, parse, public_key_digest};

/// How long a node's certificate is valid. It is short so that a stolen one is worth little. A
/// running node renews its own when a third of that is left.
pub const NODE_LIFETIME: Duration = Duration::from_secs(26 * 3600);
/// How long after its end a certificate still tells whose key it was. A node that was out of reach
/// for longer needs a token. Coordinators remember a revoked worker for longer than that.
pub const RENEWABLE_FOR: Duration = Duration::from_secs(28 * 24 * 3600);
/// How long an authority is valid: longer than any cluster lives.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Certificates are valid from a little before their creation, since clocks differ.
pub(super) const CLOCK_SKEW: Duration = Duration::from_secs(600);

const CERTIFICATE_FILE: &str = "authority.pem";
const KEY_FILE: &str = "authority.key";

/// A private certificate authority.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    /// A new authority with a key of its own.
    ///
    /// # Errors
    /// [`IdentityError::Certificate`] if no key can be made.
    pub fn create() -> Result<Self, IdentityError> {
        let key = KeyPair::generate()?;
        let mut params = valid_for(AUTHORITY_LIFETIME, UnixTime::now());
        // A name of its own shows that a certificate of another authority is foreign. With equal
        // names, it would merely have a bad signature.
        let digest = super::sha256(key.public_key_raw());
        let name = u64::from_be_bytes(digest[..8].try_into().expect("eight bytes"));
        params.distinguished_name.push(DnType::CommonName, format!("everstep {name:016x}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    /// A secret for this purpose alone. Only holders of the authority's key can compute it, and it
    /// does not reveal that key.
    pub(crate) fn secret_for(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, &self.issuer.key().serialize_der())
    }

    /// Credentials for a node, with a key that is made here, valid from now on.
    ///
    /// # Errors
    /// [`IdentityError::Certificate`] if no key can be made.
    pub fn issue(
        &self,
        identity: &Identity,
        lifetime: Duration,
    ) -> Result<Credentials, IdentityError> {
        self.issue_at(UnixTime::now(), identity, lifetime)
    }

    /// As [`Authority::issue`], at another time than now.
    ///
    /// # Errors
    /// As [`Authority::issue`].
    pub fn issue_at(
        &self,
        now: UnixTime,
        identity: &Identity,
        lifetime: Duration,
    ) -> Result<Credentials, IdentityError> {
        let key = KeyPair::generate()?;
        let certificate = self.certify(now, identity, &key, lifetime)?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        Credentials::new(self.certificate.clone(), vec![certificate], key)
    }

    /// A certificate from this time on: the holder of this key is this node.
    ///
    /// # Errors
    /// [`IdentityError::Certificate`] if it cannot be signed.
    pub(super) fn certify(
        &self,
        now: UnixTime,
        identity: &Identity,
        key: &impl PublicKeyData,
        lifetime: Duration,
    ) -> Result<CertificateDer<'static>, IdentityError> {
        let mut params = valid_for(lifetime, now);
        params.distinguished_name.push(DnType::CommonName, identity.name.as_str());
        let uri = Ia5String::try_from(identity.to_string())?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Every node both listens and connects.
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        Ok(params.signed_by(key, &self.issuer)?.der().clone())
    }

    /// Whether this authority has certified that the holder of the key is this node, with a
    /// certificate that is valid or ended less than [`RENEWABLE_FOR`] ago.
    pub(super) fn has_certified(
        &self,
        identity: &Identity,
        key: &impl PublicKeyData,
        certificate: &CertificateDer<'_>,
        now: UnixTime,
    ) -> bool {
        let (Ok(own), Ok(parsed)) = (parse(&self.certificate), parse(certificate)) else {
            return false;
        };
        let ended_unix_s = parsed.validity().not_after.timestamp().max(0) as u64;
        now.as_secs() < ended_unix_s.saturating_add(RENEWABLE_FOR.as_secs())
            && parsed.public_key().raw == key.subject_public_key_info()
            && Identity::of(certificate).is_ok_and(|stated| stated == *identity)
            && parsed.verify_signature(Some(own.public_key())).is_ok()
    }

    /// The authority's own certificate, which every node trusts.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// SHA-256 of the authority's public key.
    pub(super) fn digest(&self) -> [u8; 32] {
        public_key_digest(&self.certificate).expect("an authority holds its own certificate")
    }

    /// Writes `authority.pem` and, with mode 0600, `authority.key`.
    ///
    /// # Errors
    /// [`IdentityError::File`].
    pub fn save(&self, dir: &Path) -> Result<(), IdentityError> {
        write_certificates(&dir.join(CERTIFICATE_FILE), std::slice::from_ref(&self.certificate))?;
        write_key(&dir.join(KEY_FILE), self.issuer.key().serialized_der())
    }

    /// Reads the files of [`Authority::save`].
    ///
    /// # Errors
    /// [`IdentityError::File`]. [`IdentityError::Malformed`] if the files do not belong together.
    pub fn load(dir: &Path) -> Result<Self, IdentityError> {
        let certificate = read_certificate(&dir.join(CERTIFICATE_FILE))?;
        let key = read_key(&dir.join(KEY_FILE))?;
        let place = format!("{KEY_FILE} in {}", dir.display());
        Self::assemble(certificate, &key, &place)
    }

    /// Its private key, PKCS#8: only for another node that shall certify as well.
    pub fn key(&self) -> &[u8] {
        self.issuer.key().serialized_der()
    }

    /// The authority of this certificate, with the key from another node's [`Authority::key`].
    ///
    /// # Errors
    /// [`IdentityError`] if the key is not the certificate's.
    pub fn with_key(
        certificate: CertificateDer<'static>,
        key: &[u8],
    ) -> Result<Self, IdentityError> {
        Self::assemble(certificate, &PrivatePkcs8KeyDer::from(key.to_vec()), "a key that was sent")
    }

    fn assemble(
        certificate: CertificateDer<'static>,
        key: &PrivatePkcs8KeyDer<'_>,
        place: &str,
    ) -> Result<Self, IdentityError> {
        let key = KeyPair::try_from(key)?;
        if parse(&certificate)?.public_key().subject_public_key.data != key.public_key_raw() {
            let problem = format!("{place} is not of {CERTIFICATE_FILE}");
            return Err(IdentityError::Malformed(problem));
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key)?;
        Ok(Self { issuer, certificate })
    }
}

fn valid_for(lifetime: Duration, now: UnixTime) -> CertificateParams {
    let now = Duration::from_secs(now.as_secs());
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.not_before = epoch + now.saturating_sub(CLOCK_SKEW);
    params.not_after = epoch + now + lifetime;
    params
}
