//! Who decides whom the cluster admits: the actor, which knows the tokens and can ask the log.
//!
//! In: applicants, from the endpoint's tasks. Out: the actor's verdicts. Nodes that the cluster has
//! admitted may stay.

use actix::Message;
use everstep_transport::identity::{Applicant, Gatekeeper, Identity, Refusal, UnixTime, Verdict};
use tokio::sync::{mpsc, oneshot};

/// Most applicants that wait for the actor; who comes then is told to ask again.
const WAITING: usize = 64;

/// A node asks to be admitted, and waits for the answer.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Admission {
    pub(super) applicant: Applicant,
    pub(super) now: UnixTime,
    pub(super) answer: oneshot::Sender<Result<(), Refusal>>,
}

/// The endpoint's side of it.
pub(super) struct Gate(mpsc::Sender<Admission>);

/// A gate, and where the actor hears of those who stand before it.
pub(super) fn gate() -> (Gate, mpsc::Receiver<Admission>) {
    let (ask, asked) = mpsc::channel(WAITING);
    (Gate(ask), asked)
}

impl Gatekeeper for Gate {
    fn admit(&self, applicant: Applicant, now: UnixTime) -> Verdict {
        let (answer, answered) = oneshot::channel();
        // Should there be no room, the answer's sender is dropped.
        let _ = self.0.try_send(Admission { applicant, now, answer });
        Box::pin(async { answered.await.unwrap_or(Err(Refusal::Undecided)) })
    }

    fn renew(&self, _node: Identity, _now: UnixTime) -> Verdict {
        Box::pin(std::future::ready(Ok(())))
    }
}
