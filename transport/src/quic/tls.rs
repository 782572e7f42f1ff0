//! TLS 1.3 for links: which nodes may connect. No session is remembered for the next one.
//!
//! The configurations are built by hand because quinn's own allow early data. This module does not
//! check names: a certificate states an identity, not a host, and the endpoint compares identities.

use std::ops::RangeInclusive;
use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::version::TLS13;
use rustls::{
    CertificateError, CipherSuite, ClientConfig, DigitallySignedStruct, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};

use super::ENROL_PROTOCOL;
use super::presented::PresentedCredentials;
use crate::identity::public_key_digest;
use crate::protocol::version::alpn;

/// For links that other nodes open. With `enrols`, also for nodes without a certificate: their ALPN
/// tells them apart, and the endpoint lets them do nothing but enrol.
pub(super) fn server(
    presented: Arc<PresentedCredentials>,
    clock: Arc<dyn TimeProvider>,
    versions: &RangeInclusive<u16>,
    enrols: bool,
) -> Result<QuicServerConfig, Error> {
    let provider = provider();
    let authority = presented.credentials().authority().clone();
    let verifier = client_verifier(&provider, &authority, enrols)?;
    let mut config = ServerConfig::builder_with_details(provider, clock)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(presented);
    config.alpn_protocols = alpn(versions);
    if enrols {
        config.alpn_protocols.push(ENROL_PROTOCOL.into());
    }
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(config.try_into().expect("the provider has AES-128-GCM"))
}

/// For links to nodes with a certificate of the same authority.
pub(super) fn client(
    presented: Arc<PresentedCredentials>,
    clock: Arc<dyn TimeProvider>,
    versions: &RangeInclusive<u16>,
) -> Result<QuicClientConfig, Error> {
    let trust = Trust::Authority(roots(presented.credentials().authority())?);
    let config = client_builder(trust, clock)?.with_client_cert_resolver(presented);
    Ok(finish(config, alpn(versions)))
}

/// For enrolling at any node that the authority of this public key has certified.
pub(super) fn enrolling(pin: [u8; 32]) -> Result<QuicClientConfig, Error> {
    let builder = client_builder(Trust::Pin(pin), Arc::new(DefaultTimeProvider))?;
    Ok(finish(builder.with_no_client_auth(), vec![ENROL_PROTOCOL.into()]))
}

fn client_builder(
    trust: Trust,
    clock: Arc<dyn TimeProvider>,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>, Error> {
    let provider = provider();
    let verifier = Arc::new(NodeVerifier { trust, provider: provider.clone() });
    let builder =
        ClientConfig::builder_with_details(provider, clock).with_protocol_versions(&[&TLS13])?;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier))
}

fn finish(mut config: ClientConfig, protocols: Vec<Vec<u8>>) -> QuicClientConfig {
    config.alpn_protocols = protocols;
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    config.try_into().expect("the provider has AES-128-GCM")
}

/// AES-128-GCM comes first: it is the fastest by far with the instructions that every server CPU
/// has.
pub(super) fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    let first = CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != first);
    Arc::new(provider)
}

fn client_verifier(
    provider: &Arc<CryptoProvider>,
    authority: &CertificateDer<'_>,
    enrols: bool,
) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let roots = Arc::new(roots(authority)?);
    let builder = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
    let builder = if enrols { builder.allow_unauthenticated() } else { builder };
    builder.build().map_err(|error| Error::General(error.to_string()))
}

fn roots(authority: &CertificateDer<'_>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone().into_owned())?;
    Ok(roots)
}

/// Which nodes a connecting node believes.
#[derive(Debug)]
enum Trust {
    /// Nodes of an authority with a known certificate.
    Authority(RootCertStore),
    /// Nodes of an authority with a known SHA-256 of its public key. The server presents the
    /// authority's certificate along with its own.
    Pin([u8; 32]),
}

#[derive(Debug)]
struct NodeVerifier {
    trust: Trust,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let pinned;
        let trusted = match &self.trust {
            Trust::Authority(trusted) => trusted,
            Trust::Pin(pin) => {
                let matches = |certificate: &&CertificateDer<'_>| {
                    public_key_digest(certificate).is_ok_and(|digest| digest == *pin)
                };
                let authority = intermediates.iter().find(matches);
                pinned = roots(authority.ok_or(CertificateError::UnknownIssuer)?)?;
                &pinned
            }
        };
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            trusted,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
