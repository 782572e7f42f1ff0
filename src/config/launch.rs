//! The part of a script's run that the launcher states: what decides no bit of it.
//!
//! In: a configuration file with the sections `[checkpoint]` and `[redundancy]`, and flags. Out:
//! [`LaunchSettings`]. Everything else about the run is in the script: any other key is an error.

use std::path::Path;

use everstep_transport::protocol::{CheckpointSpec, RunSpec};

use super::error::{ConfigError, ValueSources};
use super::keys::Keys;
use super::value::{HangAfter, OptionalDuration};
use super::{checkpoint, text_of};
use crate::script::HANG_AFTER_MS;

/// What a launcher adds to the run that a script states.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LaunchSettings {
    /// The checkpoints. A path that nothing states is one in the run's own directory.
    pub(crate) checkpoint: Option<CheckpointSpec>,
    give_up_after_ms: Option<u64>,
    hang_after_ms: Option<u64>,
}

impl LaunchSettings {
    /// The run that a script states, with these settings, and so many workers at its begin.
    pub(crate) fn complete(&self, stated: &RunSpec, workers: u32) -> RunSpec {
        let Self { checkpoint, give_up_after_ms, hang_after_ms } = self.clone();
        let hang_after_ms = hang_after_ms.unwrap_or(HANG_AFTER_MS);
        let run = RunSpec { start_workers: workers, checkpoint, ..stated.clone() };
        RunSpec { give_up_after_ms, hang_after_ms, ..run }
    }
}

/// The part of a run that its script states: the same whichever launcher trains the run.
pub(crate) fn part_of_script(run: &RunSpec) -> RunSpec {
    LaunchSettings::default().complete(run, 1)
}

/// Reads the file that `--config` names, if any. `every` is the flag `--checkpoint-every`. The path
/// of the store is one of this machine.
pub(crate) fn read_launch(
    path: Option<&Path>,
    every: Option<u64>,
) -> Result<LaunchSettings, ConfigError> {
    let (mut settings, places) = read(path, every)?;
    if let Some(spec) = &mut settings.checkpoint {
        checkpoint::locate(spec, &places)?;
    }
    Ok(settings)
}

/// The same for a run on other machines: a relative path stays one.
pub(crate) fn read_launch_elsewhere(
    path: Option<&Path>,
    every: Option<u64>,
) -> Result<LaunchSettings, ConfigError> {
    read(path, every).map(|(settings, _)| settings)
}

fn read(
    path: Option<&Path>,
    every: Option<u64>,
) -> Result<(LaunchSettings, ValueSources), ConfigError> {
    let text = text_of(path)?;
    let mut keys = Keys::parse(path.map(|path| (path, text.as_str())))?;
    let give_up_after = keys.read::<OptionalDuration>("redundancy.give_up_after")?;
    let hang_after_ms = keys.read::<HangAfter>("redundancy.hang_after")?.map(|it| it.0);
    let checkpoint = checkpoint::checkpoints(&mut keys, every)?;
    keys.reject_unknown()?;
    let give_up_after_ms = give_up_after.and_then(|it| it.0);
    let settings = LaunchSettings { checkpoint, give_up_after_ms, hang_after_ms };
    Ok((settings, keys.into_places()))
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::exemplars;

    use super::*;

    fn read_text(text: &str, every: Option<u64>) -> Result<LaunchSettings, String> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        read_launch(Some(file.path()), every).map_err(|error| error.to_string())
    }

    #[test]
    fn a_launcher_states_checkpoints_and_nothing_of_the_script() {
        let settings = read_text("[checkpoint]\nevery = 5\nkeep = 2", None).expect("valid");
        let spec = settings.checkpoint.clone().expect("checkpoints");
        assert_eq!((spec.every, spec.keep, &*spec.path), (5, 2, "checkpoints"));
        let told = read_text("[run]\nsteps = 5", None).expect_err("the script states its steps");
        assert!(told.contains("unknown section [run]"), "{told}");
        let told = read_text("[checkpoint]\nevery = 1\nkeep = 0", None).expect_err("none is kept");
        assert!(told.contains("checkpoint.keep is 0"), "{told}");
        assert_eq!(read_launch(None, None), Ok(LaunchSettings::default()));
    }

    #[test]
    fn a_flag_wins_over_the_file_and_needs_none() {
        let every = |settings: LaunchSettings| settings.checkpoint.map(|spec| spec.every);
        assert_eq!(every(read_text("[checkpoint]\nevery = 5", Some(7)).expect("valid")), Some(7));
        assert_eq!(every(read_launch(None, Some(3)).expect("valid")), Some(3));
        assert_eq!(every(read_text("[checkpoint]\nevery = 5", Some(0)).expect("valid")), None);
    }

    #[test]
    fn the_part_of_the_script_is_what_it_stated() {
        let stated = part_of_script(&exemplars::run());
        let settings =
            read_text("[checkpoint]\nevery = 5\n[redundancy]\ngive_up_after = \"9s\"", None);
        let run = settings.expect("valid").complete(&stated, 4);
        assert_eq!((run.start_workers, run.give_up_after_ms), (4, Some(9_000)));
        assert!(run.checkpoint.is_some());
        assert_eq!(part_of_script(&run), stated);
    }
}
