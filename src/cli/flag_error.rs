//! Why the value of a flag is refused, as clap tells it after the flag and the value.

/// A value that its flag does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// A time without a unit, or with an unknown one.
    #[error("it must have a unit: 500ms, 20s, 3m or 2h")]
    Unit,
    /// A time that does not begin with a number.
    #[error("\"{0}\" is no number")]
    Number(String),
    /// A time that is too short or too long.
    #[error("it must be a tenth of a second to a hundred days")]
    Span,
    /// Not the form of `--chaos`.
    #[error("it must be like mtbf=20s")]
    Chances,
    /// Not a number of workers.
    #[error("it must be 1 or more, or auto")]
    Workers,
    /// Not the name of a zone.
    #[error("a zone has 1 to 64 printable characters, and no space at either end")]
    Zone,
    /// Not the URL of a metadata service.
    #[error("it must be http://HOST or http://HOST:PORT, without a path")]
    MetadataUrl,
}
