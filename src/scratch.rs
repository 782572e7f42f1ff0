//! A folder for what nobody needs afterwards.

use tempfile::TempDir;

use crate::failure::{Exit, Failure};

/// A new folder with a name that cannot be foreseen, for this user alone; gone when it is dropped.
pub(crate) fn folder() -> Result<TempDir, Failure> {
    tempfile::Builder::new().prefix("everstep-").tempdir().map_err(|error| {
        Failure::new(Exit::Failed, "there is no place for temporary files")
            .at(std::env::temp_dir().display())
            .because(error)
            .next("set TMPDIR to a directory with room")
    })
}
