//! A test of a worker's directory before the worker joins. A trained model must not be lost at the
//! end of a run because its folder is missing or belongs to another user.
//!
//! A full disk is no reason to refuse: there may be space by the end of the run.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use crate::failure::{Exit, Failure};

/// Creates the directory, for this user alone, and checks that a file can be created in it.
pub(super) fn prepare(dir: &Path) -> Result<(), Failure> {
    try_to(dir).map_err(|error| {
        Failure::new(Exit::Usage, "the worker's directory cannot be used")
            .at(dir.display())
            .because(error)
            .next("name a directory that this user may write with --dir, for the trained model")
    })
}

fn try_to(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let probe = dir.join(format!(".everstep-{}.partial", std::process::id()));
    match File::create(&probe) {
        Ok(_) => fs::remove_file(&probe),
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_that_is_missing_is_created_and_left_empty() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("of/a/worker");
        prepare(&dir).expect("created");
        let mode = fs::metadata(&dir).expect("a directory").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        prepare(&dir).expect("a directory that is there will do");
        assert_eq!(fs::read_dir(&dir).expect("a directory").count(), 0);
    }

    #[test]
    fn a_directory_that_cannot_be_is_named_with_what_to_do() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let refused = prepare(&file.path().join("model")).expect_err("below a file");
        let told = refused.to_string();
        assert_eq!(refused.exit, Exit::Usage);
        assert!(told.contains("model") && told.contains("--dir"), "{told}");
    }
}
