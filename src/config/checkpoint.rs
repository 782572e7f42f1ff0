//! The section `[checkpoint]`: where a run's checkpoints go, and how many there are.
//!
//! In: the keys of the section. Out: what the run's specification says about checkpoints. A path
//! that nothing states is [`DEFAULT_FOLDER`], a relative one: the launcher places it in the run's
//! own directory. A stated path is made absolute before, since workers may run in other
//! directories. This module opens no store.

use everstep_checkpoint::store::Place;
use everstep_transport::protocol::checkpoint::{CheckpointSpec, OnFailure};

use super::error::{ConfigError, ValueSources};
use super::keys::Keys;
use super::path::absolute;

/// The folder with the checkpoints, in the run's own directory, if no path is stated.
pub(crate) const DEFAULT_FOLDER: &str = "checkpoints";

/// The checkpoints that the file asks for, or the flag `--checkpoint-every`, if it is `given`. None
/// without either, and for `every = 0`.
pub(super) fn checkpoints(
    keys: &mut Keys<'_>,
    given: Option<u64>,
) -> Result<Option<CheckpointSpec>, ConfigError> {
    let path: Option<String> = keys.read("checkpoint.path")?;
    let every = keys.read_or_flag("checkpoint.every", "--checkpoint-every", given)?;
    let keep: Option<u64> = keys.read("checkpoint.keep")?;
    let keep_every: Option<u64> = keys.read("checkpoint.keep_every")?;
    let on_failure: Option<OnFailure> = keys.read("checkpoint.on_failure")?;
    if keep == Some(0) {
        return Err(keys.places().refusal("checkpoint.keep", "is 0, but must be 1 or more"));
    }
    if let Some(path) = &path {
        place(path, keys.places())?;
    }
    let is_asked = path.is_some() || keep.or(keep_every).is_some() || on_failure.is_some();
    let every = match every {
        Some(every) => every,
        None if is_asked => {
            let problem = "is not set: it is the number of steps from one checkpoint to the next, \
                           or 0 for none";
            return Err(keys.places().refusal("checkpoint.every", problem));
        }
        None => 0,
    };
    Ok((every > 0).then(|| CheckpointSpec {
        path: path.unwrap_or_else(|| DEFAULT_FOLDER.into()),
        every,
        keep: keep.unwrap_or(CheckpointSpec::KEEP),
        keep_every: keep_every.unwrap_or(0),
        on_failure: on_failure.unwrap_or_default(),
    }))
}

/// Makes a directory's path absolute, if the user stated the path. A URL stays as it is.
pub(super) fn locate(
    checkpoint: &mut CheckpointSpec,
    places: &ValueSources,
) -> Result<(), ConfigError> {
    let is_stated = places.lines.contains_key("checkpoint.path");
    let Place::Directory(path) = place(&checkpoint.path, places)? else { return Ok(()) };
    if !is_stated {
        return Ok(());
    }
    checkpoint.path = absolute(&path).map_err(|error| {
        let problem = format!("is \"{}\", which {error}", path.display());
        places.refusal("checkpoint.path", &problem)
    })?;
    Ok(())
}

/// Why workers on other machines would not find the store: its path is relative. None if they
/// would.
pub(crate) fn is_elsewhere(checkpoint: &CheckpointSpec) -> Option<String> {
    let path = &checkpoint.path;
    (!path.contains("://") && !path.starts_with('/')).then(|| match path.as_str() {
        DEFAULT_FOLDER => "it states no checkpoint.path, and only the workers' machines know a \
                           place that all of them see"
            .into(),
        _ => format!(
            "checkpoint.path is \"{path}\", a relative path: every worker looks for it in its own \
             working directory, on its own machine"
        ),
    })
}

/// What the path names. The error repeats no URL, since that may contain a password.
fn place(path: &str, places: &ValueSources) -> Result<Place, ConfigError> {
    path.parse().map_err(|error: everstep_checkpoint::store::StoreError| {
        let shown = if error.place.is_empty() { "\"\"" } else { error.place.as_str() };
        places.refusal("checkpoint.path", &format!("is {shown}: {}", error.why))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_and_urls_name_the_same_store_everywhere() {
        let words = |path: &str| {
            let (keep, keep_every, on_failure) = (3, 0, OnFailure::Continue);
            let path = path.to_string();
            is_elsewhere(&CheckpointSpec { path, every: 5, keep, keep_every, on_failure })
        };
        assert_eq!((words("/srv/a"), words("s3://bucket/a")), (None, None));
        assert!(words(DEFAULT_FOLDER).expect("refused").contains("states no checkpoint.path"));
        assert!(words("a/b").expect("refused").contains("\"a/b\", a relative path"));
    }
}
