//! Why a worker does not enter a record that the coordinators have planned.

use everstep_transport::protocol::{Generation, Shard, Step};

/// A record that this worker cannot enter. A later record would not help, since the coordinators'
/// log has this one: the worker ends, and says so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnterError {
    /// The record lists a worker that has not promised its number (invariant I15).
    #[error(
        "I15: generation {number} lists this worker, which has promised only generation \
         {promised}. {ADVICE}"
    )]
    Unpromised {
        /// The generation that the record is of.
        number: Generation,
        /// The worker's last promise before the record came.
        promised: Generation,
    },
    /// The record goes back behind what was settled, and is no rollback (invariant I17).
    #[error(
        "I17: generation {number} resumes at step {resume} without a rollback, and step {settled} \
         has settled. {ADVICE}"
    )]
    Backwards {
        /// The generation that the record is of.
        number: Generation,
        /// The record's resume step.
        resume: Step,
        /// The last settled step, as the worker knows it.
        settled: Step,
    },
    /// The record lists an owner that lacks the state (invariant I16).
    #[error(
        "I16: generation {number} lists this worker as an owner of parameter shard {shard}, and \
         it cannot bring what it holds to step {resume}. {ADVICE}"
    )]
    OutOfReach {
        /// The generation that the record is of.
        number: Generation,
        /// The first shard in question.
        shard: Shard,
        /// The record's resume step.
        resume: Step,
    },
}

/// What the user can do.
const ADVICE: &str = "This is a bug in Everstep: keep the logs of the coordinators and of this \
                      worker, report it, and submit the run again";
