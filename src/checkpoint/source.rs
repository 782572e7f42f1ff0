//! Where the checkpoints are that an operator means.
//!
//! In: flags. Out: a store, or a cluster of daemons that knows where its run's store is. A run's
//! directory names the store in its `run.json`.

use std::fs;
use std::path::{Path, PathBuf};

use everstep_checkpoint::store::{self, Environment, Place, Store};
use everstep_transport::protocol::RunSpec;
use everstep_transport::protocol::checkpoint::CheckpointView;

use super::store_failure;
use crate::cli::{ClusterFlags, StoreFlags};
use crate::failure::{Exit, Failure};
use crate::operator::ClusterHandle;

pub(super) enum CheckpointSource {
    /// In a store at this place. A run's directory has the events of its run.
    Store {
        place: Place,
        /// The run's directory, if the user named that.
        run: Option<PathBuf>,
    },
    /// In the store of a cluster's run.
    Cluster(ClusterHandle),
}

impl CheckpointSource {
    /// The place that the flags name.
    pub(super) fn find(flags: &StoreFlags) -> Result<Self, Failure> {
        let StoreFlags { dir, coordinators, .. } = flags;
        let cluster = ClusterFlags { dir: dir.clone(), coordinators: coordinators.clone() };
        if !coordinators.is_empty() {
            return ClusterHandle::find(&cluster).map(Self::Cluster);
        }
        let dir = ClusterHandle::dir(&cluster)?;
        let url = dir.to_str().filter(|text| text.contains("://"));
        if let Some(url) = url {
            let place = url.parse().map_err(store_failure)?;
            return Ok(Self::Store { place, run: None });
        }
        if dir.join("run.json").is_file() {
            let place = of_run(&dir)?;
            return Ok(Self::Store { place, run: Some(dir) });
        }
        if dir.join("operator").is_dir() {
            return ClusterHandle::find(&cluster).map(Self::Cluster);
        }
        if !dir.is_dir() {
            return Err(Failure::new(Exit::Usage, "there is no store")
                .at(dir.display())
                .because("there is no such directory")
                .next("pass the directory of a run, or a store, with --dir"));
        }
        Ok(Self::Store { place: Place::Directory(dir), run: None })
    }

    /// Opens the store. Asks the cluster for its place if need be.
    pub(super) fn open(&self) -> Result<Box<dyn Store>, Failure> {
        match self {
            Self::Store { place, .. } => open(place),
            Self::Cluster(cluster) => open_listed(&of_views(cluster, &views(cluster)?)?),
        }
    }
}

/// Opens the store in which a cluster lists checkpoints.
fn open_listed(place: &Place) -> Result<Box<dyn Store>, Failure> {
    match place {
        Place::Directory(path) if is_absent(place) => {
            Err(Failure::new(Exit::Usage, "the checkpoints cannot be read here")
                .at(path.display())
                .because("this machine has no such directory, and the workers' machines have it")
                .next("run this on a machine that sees it, with the store's path as --dir"))
        }
        place => open(place),
    }
}

impl CheckpointSource {
    /// The run's directory. Empty if the user named none.
    pub(super) fn run_dir(&self) -> &Path {
        match self {
            Self::Store { run: Some(dir), .. } => dir,
            Self::Store { run: None, .. } | Self::Cluster(_) => Path::new(""),
        }
    }

    /// The cluster, if the store of its run is a directory that is not on this machine.
    pub(super) fn elsewhere(&self) -> Result<Option<&ClusterHandle>, Failure> {
        let Self::Cluster(cluster) = self else { return Ok(None) };
        let place = of_views(cluster, &views(cluster)?)?;
        Ok(is_absent(&place).then_some(cluster))
    }
}

/// Whether this machine lacks the directory of a store.
fn is_absent(place: &Place) -> bool {
    matches!(place, Place::Directory(path) if !path.is_dir())
}

/// The checkpoints that a cluster lists.
pub(super) fn views(cluster: &ClusterHandle) -> Result<Vec<CheckpointView>, Failure> {
    cluster.ask(async |operator| operator.checkpoints().await)
}

/// Opens the store at a place, which must be there.
pub(crate) fn open(place: &Place) -> Result<Box<dyn Store>, Failure> {
    if let Place::Directory(path) = place
        && is_absent(place)
    {
        return Err(Failure::new(Exit::Usage, "there are no checkpoints yet")
            .at(path.display())
            .because("there is no such directory")
            .next("wait for the first checkpoint of the run"));
    }
    store::open(place, &Environment::of_process()).map_err(store_failure)
}

/// The store of a run in its directory.
fn of_run(dir: &Path) -> Result<Place, Failure> {
    place_of_run(dir)?.ok_or_else(|| {
        Failure::new(Exit::Usage, "the run has no checkpoints")
            .at(dir.join("run.json").display())
            .because("its configuration has no section [checkpoint]")
            .next("write `every = 100` below [checkpoint] into the configuration of the next run")
    })
}

/// The store of a run in its directory. None if the run has no checkpoints.
pub(crate) fn place_of_run(dir: &Path) -> Result<Option<Place>, Failure> {
    let path = dir.join("run.json");
    let unreadable = |why: String| {
        Failure::new(Exit::Usage, "the run cannot be read").at(path.display()).because(why)
    };
    let text = fs::read_to_string(&path).map_err(|error| unreadable(error.to_string()))?;
    let run = RunSpec::from_file(text.as_bytes());
    let run = run.map_err(|error| unreadable(error.to_string()))?;
    let place = run.checkpoint.map(|checkpoint| checkpoint.path.parse().map_err(store_failure));
    place.transpose()
}

/// The store in which a cluster's checkpoints are: the folder around any of them.
fn of_views(cluster: &ClusterHandle, views: &[CheckpointView]) -> Result<Place, Failure> {
    let around = views.first().and_then(|view| view.path.rsplit_once('/'));
    let (store, _) = around.ok_or_else(|| {
        Failure::new(Exit::Usage, "the cluster has no checkpoints")
            .at(cluster.dir.display())
            .because("its run has written none yet, or asks for none")
            .next("name the store itself with --dir")
    })?;
    store.parse().map_err(store_failure)
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::checkpoint::{CheckpointSpec, OnFailure};
    use everstep_transport::protocol::exemplars;

    use super::*;

    fn find(dir: &Path) -> Result<Place, String> {
        let flags = StoreFlags { dir: Some(dir.into()), ..StoreFlags::default() };
        match CheckpointSource::find(&flags) {
            Ok(CheckpointSource::Store { place, .. }) => Ok(place),
            Ok(CheckpointSource::Cluster(cluster)) => Err(cluster.dir.display().to_string()),
            Err(failure) => Err(failure.to_string()),
        }
    }

    #[test]
    fn a_run_a_store_and_a_url_name_a_store() {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path();
        assert_eq!(find(dir), Ok(Place::Directory(dir.into())));
        let bucket = find(Path::new("s3://bucket/a")).expect("a store");
        assert_eq!(bucket.to_string(), "s3://bucket/a");
        assert!(find(Path::new("ftp://host/a")).expect_err("refused").contains("s3://BUCKET"));
        assert!(find(&dir.join("none")).expect_err("refused").contains("no such directory"));

        let (path, on_failure) = ("/srv/store".to_string(), OnFailure::Continue);
        let spec = CheckpointSpec { path, every: 5, keep: 3, keep_every: 0, on_failure };
        let mut run = RunSpec { checkpoint: Some(spec), ..exemplars::run() };
        let write = |run: &RunSpec| {
            let text = serde_json::to_string(run).expect("plain data");
            fs::write(dir.join("run.json"), text).expect("written");
        };
        write(&run);
        assert_eq!(find(dir), Ok(Place::Directory("/srv/store".into())));
        run.checkpoint = None;
        write(&run);
        assert!(find(dir).expect_err("refused").contains("the run has no checkpoints"));
    }

    #[test]
    fn a_coordinator_s_directory_means_its_cluster() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("operator")).expect("a folder");
        let told = find(folder.path()).expect_err("a cluster without addresses");
        assert!(told.contains("it is not known where the coordinators are"), "{told}");
    }
}
