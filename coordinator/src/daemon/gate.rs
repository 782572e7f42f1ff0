//! Who decides whom the cluster admits: the actor, which knows the tokens and can ask the log.
//!
//! In: applicants, and nodes with a certificate that is due, from the endpoint's tasks. Out: the
//! actor's verdicts. A revoked node gets no certificate, by a token or by a renewal.

use actix::Message;
use everstep_transport::identity::{Applicant, Gatekeeper, Identity, Refusal, UnixTime, Verdict};
use tokio::sync::{mpsc, oneshot};

/// Most applicants that wait for the actor; who comes then is told to ask again.
const WAITING: usize = 64;

/// A node asks for a certificate, and waits for the answer.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Admission {
    pub(super) subject: Subject,
    pub(super) now: UnixTime,
    pub(super) answer: oneshot::Sender<Result<(), Refusal>>,
}

/// A node that asks for a certificate.
pub(super) enum Subject {
    /// It has a token.
    Applicant(Applicant),
    /// It has a certificate, which is due.
    Node(Identity),
}

/// The endpoint's side of it.
pub(super) struct Gate(mpsc::Sender<Admission>);

/// A gate, and where the actor hears of those who stand before it.
pub(super) fn gate() -> (Gate, mpsc::Receiver<Admission>) {
    let (ask, asked) = mpsc::channel(WAITING);
    (Gate(ask), asked)
}

impl Gate {
    fn ask(&self, subject: Subject, now: UnixTime) -> Verdict {
        let (answer, answered) = oneshot::channel();
        // Should there be no room, the answer's sender is dropped.
        let _ = self.0.try_send(Admission { subject, now, answer });
        Box::pin(async { answered.await.unwrap_or(Err(Refusal::Undecided)) })
    }
}

impl Gatekeeper for Gate {
    fn admit(&self, applicant: Applicant, now: UnixTime) -> Verdict {
        self.ask(Subject::Applicant(applicant), now)
    }

    fn renew(&self, node: Identity, now: UnixTime) -> Verdict {
        self.ask(Subject::Node(node), now)
    }
}
