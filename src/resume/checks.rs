//! What is checked of a run's checkpoints before a process starts in the run's directory.
//!
//! The coordinators there know the store by its place. A store that is not at its place would look
//! empty to the workers, and they would wait for it. A copy of the directory is the same cluster to
//! the store, with the same claim: it would write over what the original saves.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use everstep_checkpoint::store::Place;
use everstep_transport::protocol::{RunSpec, Step};

use crate::checkpoint::{self, store_failure};
use crate::cluster::{Directory, resume_command};
use crate::failure::{Exit, Failure};

/// Checks that the store is there if it has ever had a checkpoint, and that it does not lie in the
/// directory that this one is a copy of. With `step`, checks that the
/// checkpoint of that step is whole: the later ones are deleted when the run goes back to it.
pub(super) fn check_checkpoints(
    dir: &Path,
    run: &RunSpec,
    step: Option<u64>,
) -> Result<(), Failure> {
    let Some(spec) = &run.checkpoint else { return Ok(()) };
    let place: Place = spec.path.parse().map_err(store_failure)?;
    if let Place::Directory(path) = &place
        && !path.is_dir()
        && has_listed(dir)
    {
        return Err(gone(dir, path));
    }
    if let Place::Directory(path) = &place
        && let Some(original) = original(dir, path)
    {
        return Err(copied(dir, &original));
    }
    let Some(step) = step.filter(|step| *step > 0) else { return Ok(()) };
    checkpoint::must_be_whole(&*checkpoint::open(&place)?, Step(step))
}

/// The run's directory with the store, if this one is a copy of it: both have one cluster's token.
fn original(dir: &Path, store: &Path) -> Option<PathBuf> {
    let home = Directory::around(store)?;
    let inode = |dir: &Path| fs::metadata(dir).ok().map(|it| (it.dev(), it.ino()));
    let token = |dir: &Path| fs::read(dir.join("join.token")).ok();
    let own = token(dir)?;
    (inode(&home) != inode(dir) && token(&home) == Some(own)).then_some(home)
}

fn copied(dir: &Path, original: &Path) -> Failure {
    let (home, own) = (original.display(), dir.join("checkpoints"));
    let mut next = format!("{} goes on in the original", resume_command(original));
    if own.is_dir() {
        next += &format!(". A new cluster goes on from the copied store: {}", resume_command(&own));
    }
    Failure::new(Exit::Usage, "the run does not go on in a copy of its directory")
        .at(dir.display())
        .because(format!("the copy would write into the store of {home}, as the same cluster"))
        .next(next)
}

/// Whether the run's events tell of a checkpoint.
fn has_listed(dir: &Path) -> bool {
    let events = fs::read_to_string(dir.join("events.jsonl")).unwrap_or_default();
    events.lines().any(|line| line.contains(r#""event":"checkpoint","#))
}

fn gone(dir: &Path, store: &Path) -> Failure {
    let moved = dir.join("checkpoints");
    let next = match moved.is_dir() {
        true => format!(
            "move the run's directory back to where it was, or go on with a new cluster: everstep \
             resume {}",
            moved.display()
        ),
        false => "mount its disk, or move it back. A copy of it elsewhere lets a new cluster go \
                  on: everstep resume COPY"
            .to_string(),
    };
    Failure::new(Exit::Failed, "the store of the run's checkpoints is not there")
        .at(store.display())
        .because("there is no such directory")
        .next(next)
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::checkpoint::{CheckpointSpec, OnFailure};
    use everstep_transport::protocol::exemplars;

    use super::*;

    /// A run with its store in this folder.
    fn run_with(store: &Path) -> RunSpec {
        let (every, keep, keep_every, on_failure) = (5, 3, 0, OnFailure::Continue);
        let path = store.to_str().expect("UTF-8").to_string();
        let spec = CheckpointSpec { path, every, keep, keep_every, on_failure };
        RunSpec { checkpoint: Some(spec), ..exemplars::run() }
    }

    #[test]
    fn a_store_that_is_gone_is_no_empty_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path();
        let run = run_with(&dir.join("elsewhere"));
        check_checkpoints(dir, &run, None).expect("no checkpoint was written yet");
        let event = r#"{"number":9,"event":"checkpoint","step":10}"#;
        fs::write(dir.join("events.jsonl"), format!("{event}\n")).expect("written");
        let gone = || check_checkpoints(dir, &run, None).expect_err("it is gone").to_string();
        assert!(gone().contains("mount its disk"), "{}", gone());
        fs::create_dir(dir.join("checkpoints")).expect("a folder");
        assert!(gone().contains("/checkpoints"), "{}", gone());
        fs::create_dir(dir.join("elsewhere")).expect("a folder");
        check_checkpoints(dir, &run, None).expect("it is there");
        let none = check_checkpoints(dir, &run, Some(10)).expect_err("it has no such checkpoint");
        assert!(none.to_string().contains("no checkpoint of step 10"), "{none}");
    }

    #[test]
    fn a_copy_of_a_run_does_not_go_on_in_the_store_of_the_original() {
        let folder = tempfile::tempdir().expect("a folder");
        let [home, copy] = ["home", "copy"].map(|name| folder.path().join(name));
        let store = home.join("checkpoints");
        let run = run_with(&store);
        for dir in [&home, &copy] {
            fs::create_dir_all(dir.join("checkpoints")).expect("a folder");
            fs::write(dir.join("run.json"), "{}").expect("written");
            fs::write(dir.join("join.token"), "a token").expect("written");
        }
        check_checkpoints(&home, &run, None).expect("it is the original");
        let told = check_checkpoints(&copy, &run, None).expect_err("it is a copy").to_string();
        for dir in [&home, &copy.join("checkpoints")] {
            assert!(told.contains(&format!("everstep resume {}", dir.display())), "{told}");
        }
        fs::write(copy.join("join.token"), "of a cluster that went on from the store").expect("ok");
        check_checkpoints(&copy, &run, None).expect("its claim is another one");
        fs::remove_file(copy.join("join.token")).expect("removed");
        check_checkpoints(&copy, &run, None).expect("nothing says that it is a copy");
    }
}
