//! A cluster that trains the run of a script, and the end of any cluster.
//!
//! In: a script of which each process is a worker. Each process states the run that it trains, and
//! all must state the same. Out: a trained run, as [`super::train`] trains one that is known
//! before.

use std::time::{Duration, Instant};

use everstep_transport::protocol::RunSpec;

use super::{Cluster, ClusterError, ClusterOptions, Directory, Progress, Report, leaving};

/// How long dismissed workers may take to end.
const DISMISSED_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Trains the run that a script states, as [`super::train`] trains one that is known. The script is
/// that of `options`, and each worker is a process of it. Calls `begin` with the stated run, once:
/// it returns the run to train.
///
/// # Errors
/// [`ClusterError`], in words for the user: also if a script fails after its run is complete.
pub fn launch(
    directory: Directory,
    options: &ClusterOptions,
    begin: impl FnOnce(&RunSpec) -> RunSpec,
    watch: impl FnMut(&Progress),
) -> Result<Report, ClusterError> {
    let begin = async {
        let mut cluster = Cluster::start(directory, options).await?;
        let stated = cluster.workers.statement().cloned();
        let run = stated.ok_or_else(|| ClusterError::failed(None, "no script has stated a run"))?;
        let run = begin(&run);
        let begun = cluster.submit(&run).await;
        Ok((cluster.begun(begun)?, run))
    };
    leaving::drive_stated(begin, watch)
}

impl Cluster {
    /// Ends the cluster of a complete run. Its workers have been dismissed.
    pub async fn finish(self) {
        self.end().await;
    }

    /// As [`Cluster::finish`]. A script goes on after its run for as long as it likes. Returns the
    /// failure of one that then fails.
    pub(super) async fn end(mut self) -> Option<ClusterError> {
        let deadline = Instant::now() + DISMISSED_EXIT_TIMEOUT;
        let is_script = self.workers.daemons().script.is_some();
        while !self.workers.are_gone() && (is_script || Instant::now() < deadline) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let failure = self.workers.late_failure().filter(|_| is_script);
        self.coordinators.dismiss().await;
        failure
    }
}
