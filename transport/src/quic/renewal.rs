//! Renewal of certificates over links: a node asks the coordinator that it is linked to.
//!
//! [`crate::identity`] knows what a node asks and what the coordinator grants. This module knows
//! when to ask, and how the question travels. The question is a frame of the control lane that
//! announces a bidirectional stream. The answer comes back on that stream. The link knows the
//! asker, so the question needs no content.
//!
//! A link lives on after the certificates of its ends have expired. Its session proves the
//! identities of the ends as well as before, and closing it would cause a needless change of
//! generation. To end a node's links, the owner of the endpoint takes it from the allow list, which
//! closes them at once.

use std::sync::Arc;

use quinn::{ReadToEndError, RecvStream, SendStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::control::Outgoing;
use super::endpoint::certificate_of;
use super::endpoint_state::EndpointState;
use super::enrol::{EnrolError, decide};
use super::wire::Wire;
use crate::identity::{Credentials, EnrolmentError, MAX_ENROLMENT, Refusal, renewed};

/// Asks over one link, without keeping the link alive.
pub(super) struct RenewalClient {
    pub(super) wire: Wire,
    pub(super) queue: mpsc::Sender<Outgoing>,
}

impl RenewalClient {
    pub(super) async fn ask(&self, held: &Credentials) -> Result<Credentials, EnrolError> {
        let (tell, opened) = oneshot::channel();
        let failed = || EnrolError::Link(self.wire.failure());
        self.queue.send(Outgoing::Renewal(tell)).await.map_err(|_| failed())?;
        let mut answer: RecvStream = opened.await.map_err(|_| failed())?;
        let answer = answer.read_to_end(MAX_ENROLMENT).await.map_err(|error| match error {
            ReadToEndError::Read(error) => EnrolError::Link(self.wire.read_failure(error)),
            ReadToEndError::TooLong => EnrolmentError::Garbled("it is too long").into(),
        })?;
        Ok(renewed(held, &answer)?)
    }
}

/// Checks now and then whether the endpoint's credentials are due, as long as the link lives.
pub(super) async fn run(shared: Arc<EndpointState>, renewal_client: RenewalClient) {
    loop {
        tokio::select! {
            _ = renewal_client.wire.connection.closed() => return,
            () = sleep(shared.settings.renewal_check) => {}
        }
        let _alone = shared.renewing.lock().await;
        let held = shared.presented.credentials();
        if !held.are_due(shared.now()) {
            continue;
        }
        match timeout(shared.settings.handshake_timeout, renewal_client.ask(&held)).await {
            Ok(Ok(newer)) => match shared.presented.replace(&newer) {
                Ok(()) => tracing::info!("the node's certificate is renewed"),
                Err(error) => tracing::warn!(%error, "the new certificate is of no use"),
            },
            Ok(Err(error)) => tracing::warn!(%error, "no new certificate"),
            Err(_) => tracing::warn!("no answer to the wish for a new certificate"),
        }
    }
}

/// Answers the peer's request.
pub(super) async fn serve(shared: Arc<EndpointState>, wire: Wire, mut answer: SendStream) {
    let decision = async {
        let enrolment = shared.enrolment.as_ref().ok_or(Refusal::NotHere)?;
        let certificate = certificate_of(&wire.connection).map_err(|_| Refusal::Garbled)?;
        enrolment.renew(&certificate, shared.now()).await
    };
    match decide(&shared, decision, &mut answer).await {
        Ok(Ok(node)) => tracing::info!(%node, "renewed a certificate"),
        Ok(Err(refusal)) => {
            let peer = wire.connection.remote_address();
            tracing::warn!(%peer, %refusal, "did not renew a certificate");
        }
        Err(_) => {} // the link has ended, and with it the question
    }
}
