//! A new cluster that goes on with a run from the store of its checkpoints.
//!
//! In: the run, and what its store tells. Out: a cluster like one that was just started. Its files
//! begin with the lines of the steps that the store has. The coordinators begin behind those steps.
//! This module opens no store.

use everstep_transport::protocol::{MetricsLine, RunOrigin, RunSpec};

use super::error::ClusterError;
use super::{Cluster, ClusterOptions, Directory, Progress, Report, leaving};

/// What the store of a run's checkpoints tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredHistory {
    /// The checkpoints, and the generations that the store names.
    pub origin: RunOrigin,
    /// The lines of the steps up to the checkpoint from which the run goes on, as far as the store
    /// has them, in order.
    pub lines: Vec<MetricsLine>,
}

/// Goes on with `run` on a new local cluster, as [`super::train`] trains a new one.
///
/// # Errors
/// [`ClusterError`], in words for the user.
pub fn resume_stored(
    run: &RunSpec,
    history: StoredHistory,
    directory: Directory,
    options: &ClusterOptions,
    watch: impl FnMut(&Progress),
) -> Result<Report, ClusterError> {
    let begin = async {
        let mut cluster = Cluster::start(directory, options).await?;
        cluster.resume_stored(run, history).await?;
        Ok(cluster)
    };
    leaving::drive(run, begin, watch)
}

impl Cluster {
    /// Submits a run that goes on from a checkpoint in its store. It begins when its workers have
    /// registered.
    ///
    /// # Errors
    /// [`ClusterError::Refused`] with the coordinators' words if they refuse.
    pub async fn resume_stored(
        &mut self,
        run: &RunSpec,
        history: StoredHistory,
    ) -> Result<(), ClusterError> {
        let run = self.attach(run)?;
        self.progress.lines = history.lines;
        self.coordinators.resume_stored(&self.directory, &run, &history.origin).await
    }
}
