//! What a run goes on from: the directory that its launcher has left, or a store of its
//! checkpoints.

use std::path::Path;

use everstep_checkpoint::store::Place;

use crate::checkpoint::{place_of_run, store_failure};
use crate::cluster::{self, Directory};
use crate::failure::{Exit, Failure};

/// A place from which a run can go on.
#[derive(Debug, PartialEq)]
pub(super) enum ResumeSource {
    /// The coordinators of this directory go on.
    Directory,
    /// A new cluster goes on from what this store has.
    Store(Place),
}

impl ResumeSource {
    /// What the user's path or URL names. A run's directory without coordinators names its store.
    pub(super) fn find(from: &Path) -> Result<Self, Failure> {
        if let Some(url) = from.to_str().filter(|text| text.contains("://")) {
            return url.parse().map(Self::Store).map_err(store_failure);
        }
        let none = |why: &str| {
            Failure::new(Exit::Usage, "there is no run that could go on")
                .at(from.display())
                .because(why)
                .next(
                    "name the directory of a run that `everstep train` has begun, or the store of \
                     its checkpoints",
                )
        };
        if !from.is_dir() {
            return Err(none("there is no such directory"));
        }
        if !Directory::holds_run(from) {
            let absolute = std::path::absolute(from).map_err(|error| none(&error.to_string()))?;
            return Ok(Self::Store(Place::Directory(absolute)));
        }
        if cluster::has_coordinators(from) {
            return Ok(Self::Directory);
        }
        let place = place_of_run(from)?;
        let why = "it has no coordinator's directory, such as coordinator-1, and its run has no \
                   checkpoints";
        place.map(Self::Store).ok_or_else(|| none(why))
    }
}

/// The store from which a run can go on elsewhere.
///
/// # Errors
/// If there is none, or if the coordinators of a run's directory can go on there.
pub(crate) fn store_of(from: &Path) -> Result<Place, Failure> {
    match ResumeSource::find(from)? {
        ResumeSource::Store(place) => Ok(place),
        ResumeSource::Directory => {
            let place = place_of_run(from)?;
            let store = place.map_or("the store of its checkpoints".into(), |it| it.to_string());
            Err(Failure::new(Exit::Usage, "the run's own coordinators can go on with it")
                .at(from.display())
                .because("its directory has a coordinator's, which knows the run")
                .next(format!(
                    "`everstep resume {}` goes on there. To let another cluster have the run, end \
                     it and name {store}",
                    from.display()
                )))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use everstep_transport::protocol::checkpoint::{CheckpointSpec, OnFailure};
    use everstep_transport::protocol::{RunSpec, exemplars};

    use super::*;

    #[test]
    fn a_run_goes_on_in_its_directory_or_from_a_store() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path();
        let find = |from: &Path| ResumeSource::find(from).map_err(|failure| failure.to_string());
        assert_eq!(find(dir), Ok(ResumeSource::Store(Place::Directory(dir.into()))));
        let path = "s3://bucket/a".to_string();
        assert_eq!(find(path.as_ref()), Ok(ResumeSource::Store(path.parse().expect("a place"))));
        assert!(find("ftp://host/a".as_ref()).expect_err("refused").contains("s3://BUCKET"));
        assert!(find(&dir.join("none")).expect_err("refused").contains("no such directory"));

        let write = |run: &RunSpec| {
            let text = serde_json::to_string(run).expect("plain data");
            fs::write(dir.join("run.json"), text).expect("written");
        };
        write(&exemplars::run());
        assert!(find(dir).expect_err("refused").contains("its run has no checkpoints"));
        let (every, keep, keep_every, on_failure) = (5, 3, 0, OnFailure::Continue);
        let spec = CheckpointSpec { path, every, keep, keep_every, on_failure };
        write(&RunSpec { checkpoint: Some(spec), ..exemplars::run() });
        assert_eq!(find(dir), Ok(ResumeSource::Store("s3://bucket/a".parse().expect("a place"))));
        fs::create_dir(dir.join("coordinator-2")).expect("a folder");
        assert_eq!(find(dir), Ok(ResumeSource::Directory));
    }
}
