//! Why an operator has no answer.

/// Why an operator has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OperatorError {
    /// No leader has answered in time.
    #[error("{0}")]
    Unanswered(String),
    /// The coordinators refuse the request, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The operator's credentials cannot be used.
    #[error("{0}")]
    Unusable(String),
}
