//! A folder for temporary files.

use tempfile::TempDir;

use crate::failure::{Exit, Failure};

/// A new folder with an unpredictable name, for this user alone. It is removed when it is dropped.
pub(crate) fn folder() -> Result<TempDir, Failure> {
    tempfile::Builder::new().prefix("everstep-").tempdir().map_err(|error| {
        Failure::new(Exit::Failed, "there is no place for temporary files")
            .at(std::env::temp_dir().display())
            .because(error)
            .next("set TMPDIR to a directory with room")
    })
}
