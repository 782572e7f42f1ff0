//! Paths of the configuration, as workers in other directories find them.

use std::io;
use std::path::Path;

/// Why a path cannot be used, as the end of a sentence about it: "which ...".
#[derive(Debug, thiserror::Error)]
pub(crate) enum PathError {
    /// Nothing is there that can be read.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// It is empty, or the process has no working directory.
    #[error("has no absolute form: {0}")]
    NoAbsoluteForm(io::Error),
    /// A specification holds text.
    #[error("is not UTF-8 in its absolute form")]
    NotText,
}

/// A path that cannot be used, as the end of a sentence about its key.
#[derive(Debug, thiserror::Error)]
#[error("is \"{path}\", which {error}")]
pub(crate) struct UnusablePath {
    path: String,
    error: PathError,
}

/// The absolute form of a path, whether or not something is there.
pub(super) fn absolute(path: &Path) -> Result<String, PathError> {
    let absolute = std::path::absolute(path).map_err(PathError::NoAbsoluteForm)?;
    absolute.to_str().map(str::to_string).ok_or(PathError::NotText)
}

/// The absolute form of a data path. A path that begins with `@` names a list of paths.
pub(crate) fn locate(path: &str) -> Result<String, UnusablePath> {
    let (list, path) = path.strip_prefix('@').map_or(("", path), |path| ("@", path));
    let found = absolute(Path::new(path)).and_then(|absolute| {
        std::fs::metadata(&absolute).map_err(PathError::Unreadable)?;
        Ok(format!("{list}{absolute}"))
    });
    found.map_err(|error| UnusablePath { path: path.into(), error })
}
