//! What is checked of a run's checkpoints before a process starts in the run's directory.
//!
//! The coordinators there know the store by its place. A store that is not at its place would look
//! empty to the workers, and they would wait for it.

use std::fs;
use std::path::Path;

use everstep_checkpoint::store::Place;
use everstep_transport::protocol::{RunSpec, Step};

use crate::checkpoint::{self, store_failure};
use crate::failure::{Exit, Failure};

/// Checks that the store is there if it has ever had a checkpoint. With `step`, checks that the
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
    let Some(step) = step.filter(|step| *step > 0) else { return Ok(()) };
    checkpoint::must_be_whole(&*checkpoint::open(&place)?, Step(step))
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

    #[test]
    fn a_store_that_is_gone_is_no_empty_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let (dir, path) = (folder.path(), folder.path().join("elsewhere"));
        let (every, keep, keep_every, on_failure) = (5, 3, 0, OnFailure::Continue);
        let path = path.to_str().expect("UTF-8").to_string();
        let spec = CheckpointSpec { path, every, keep, keep_every, on_failure };
        let run = RunSpec { checkpoint: Some(spec), ..exemplars::run() };
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
}
