//! Why a worker is suspected, and how certain that is.

use everstep_transport::protocol::reason::LossReason;

use super::WORKER_SUSPECT_AFTER;

/// Why a worker is suspected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::core) struct Suspicion {
    pub(in crate::core) reason: LossReason,
    pub(in crate::core) certainty: Certainty,
}

impl Suspicion {
    /// The worker has sent no heartbeat for [`WORKER_SUSPECT_AFTER`].
    pub(in crate::core) fn of_silence() -> Self {
        let reason = LossReason::Silent(WORKER_SUSPECT_AFTER.as_millis() as u64);
        Self { reason, certainty: Certainty::Silent }
    }
}

/// How certain it is that nothing more comes from a suspect, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) enum Certainty {
    /// The worker is silent, or has lost a link. It may answer at any moment.
    Silent,
    /// The worker answers, but its device computes one data shard for far too long. Only progress
    /// clears it.
    Hung,
    /// The worker's host refuses packets for its process: the worker's answer is worth no wait. But
    /// any host can forge a refusal, so it proves nothing.
    Refused,
    /// The worker's process has ended, or has given up what it held.
    Dead,
}
