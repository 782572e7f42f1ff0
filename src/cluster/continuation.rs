//! A new cluster that goes on with a run from the store of its checkpoints.
//!
//! In: the run, and a way to read its store. Out: a cluster like one that was just started. Its
//! files begin with the lines of the steps that the store has. The coordinators begin behind those
//! steps. This module opens no store.

use std::io;

use everstep_transport::identity::Credentials;
use everstep_transport::protocol::{MetricsLine, RunOrigin, RunSpec};
use everstep_worker::store_work::ClusterIdentity;

use super::error::ClusterError;
use super::recent::ROOM;
use super::{Cluster, ClusterOptions, Directory, Progress, Report, leaving};
use crate::failure::Failure;

/// What the store of a run's checkpoints tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContinuedHistory {
    /// The checkpoints, and the generations that the store names.
    pub origin: RunOrigin,
    /// The lines of the steps up to the checkpoint from which the run goes on, as far as the store
    /// has them, in order.
    pub lines: Vec<MetricsLine>,
}

/// Goes on with `run` on a new local cluster, as [`super::train`] trains a new one. `read` claims
/// the store for the cluster, and reads what it has from then on: before, an earlier cluster may
/// still write there, and delete.
///
/// # Errors
/// [`ClusterError`], in words for the user.
pub fn resume_stored(
    run: &RunSpec,
    read: impl FnOnce(&ClusterIdentity) -> Result<ContinuedHistory, Failure> + Send + 'static,
    directory: Directory,
    options: &ClusterOptions,
    watch: impl FnMut(&Progress),
) -> Result<Report, ClusterError> {
    let begin = async {
        let mut cluster = Cluster::start(directory, options).await?;
        let history = cluster.read_store(read).await?;
        let begun = cluster.resume_stored(run, history).await;
        cluster.begun(begun)
    };
    leaving::drive(run, begin, watch)
}

impl Cluster {
    /// Reads a store on a thread of its own, since stores block.
    async fn read_store(
        &self,
        read: impl FnOnce(&ClusterIdentity) -> Result<ContinuedHistory, Failure> + Send + 'static,
    ) -> Result<ContinuedHistory, ClusterError> {
        let credentials = Credentials::load(&self.coordinators.credentials());
        let credentials =
            credentials.map_err(|error| ClusterError::Coordinator(error.to_string()))?;
        let identity = ClusterIdentity::of(&credentials);
        let read = tokio::task::spawn_blocking(move || read(&identity)).await;
        let read = read.map_err(|error| ClusterError::Runtime(io::Error::other(error)))?;
        read.map_err(|failure| ClusterError::Store(Box::new(failure)))
    }

    /// Submits a run that goes on from a checkpoint in its store. It begins when its workers have
    /// registered.
    ///
    /// # Errors
    /// [`ClusterError::Refused`] with the coordinators' words if they refuse.
    pub async fn resume_stored(
        &mut self,
        run: &RunSpec,
        history: ContinuedHistory,
    ) -> Result<(), ClusterError> {
        let run = self.attach(run)?;
        for line in history.lines {
            self.progress.settle(line);
            if self.progress.lines.len() == 2 * ROOM {
                self.write_files();
                self.progress.trim();
            }
        }
        self.write_files();
        self.progress.begin_here();
        self.coordinators.resume_stored(&self.directory, &run, &history.origin).await
    }
}
