//! The gatekeeper of the cluster. The actor decides: it knows the tokens and can ask the log.
//!
//! In: applicants, and nodes with a certificate that is due, from the endpoint's tasks. Out: the
//! actor's verdicts. A revoked node gets no certificate, by a token or by a renewal.

use actix::Message;
use everstep_transport::identity::{
    AdmissionDecision, Applicant, Gatekeeper, Identity, Refusal, UnixTime,
};
use tokio::sync::{mpsc, oneshot};

/// Most applicants that wait for the actor. The gate tells further ones to ask again.
const MAX_WAITING_APPLICANTS: usize = 64;

/// A node asks for a certificate, and waits for the answer.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct AdmissionRequest {
    pub(super) subject: Subject,
    pub(super) now: UnixTime,
    pub(super) answer: oneshot::Sender<Result<(), Refusal>>,
}

/// A node that asks for a certificate.
pub(super) enum Subject {
    /// It presents a token.
    Applicant(Applicant),
    /// It has a certificate, which is due.
    Node(Identity),
}

/// The endpoint's side of the gate.
pub(super) struct AdmissionGate(mpsc::Sender<AdmissionRequest>);

/// A gate, and the channel by which the actor hears of the nodes that ask.
pub(super) fn admission_gate() -> (AdmissionGate, mpsc::Receiver<AdmissionRequest>) {
    let (ask, asked) = mpsc::channel(MAX_WAITING_APPLICANTS);
    (AdmissionGate(ask), asked)
}

impl AdmissionGate {
    fn ask(&self, subject: Subject, now: UnixTime) -> AdmissionDecision {
        let (answer, answered) = oneshot::channel();
        // If there is no room, this drops the answer's sender.
        let _ = self.0.try_send(AdmissionRequest { subject, now, answer });
        Box::pin(async { answered.await.unwrap_or(Err(Refusal::Undecided)) })
    }
}

impl Gatekeeper for AdmissionGate {
    fn admit(&self, applicant: Applicant, now: UnixTime) -> AdmissionDecision {
        self.ask(Subject::Applicant(applicant), now)
    }

    fn renew(&self, node: Identity, now: UnixTime) -> AdmissionDecision {
        self.ask(Subject::Node(node), now)
    }
}
