//! A cluster that goes on with a run of which all processes have ended, however they did.
//!
//! In: a directory that another launcher has left. The coordinators start again there, and they
//! know all that was agreed. The workers are new. The processes of the earlier launcher have ended
//! with it: the leader hears so of each of its workers, since silence alone is no death. Out: a
//! cluster like one that was just started.
//!
//! The coordinators decide from which step the run goes on. This module knows no checkpoint.

use std::fs;
use std::time::Instant;

use everstep_transport::protocol::{RunSpec, Step};

use super::conclusion::REPORT;
use super::coordinators::Coordinators;
use super::earlier::Earlier;
use super::error::ClusterError;
use super::workers::Workers;
use super::{
    Cluster, ClusterOptions, Daemons, Directory, EVENTS, LINES, Progress, Report, leaving,
};

/// Goes on with `run` in its `directory`, as [`super::train`] trains a new one. The number of
/// coordinators is that of the directory. The first call of `watch` has the history so far. With
/// `from`, the run goes back to the checkpoint of that step.
///
/// # Errors
/// [`ClusterError`], in words for the user.
pub fn resume(
    run: &RunSpec,
    directory: Directory,
    options: &ClusterOptions,
    from: Option<Step>,
    watch: impl FnMut(&Progress),
) -> Result<Report, ClusterError> {
    leaving::drive(run, Cluster::reopen(run, directory, options, from), watch)
}

impl Cluster {
    /// Starts the coordinators of the directory again, and new workers. Returns when all of them
    /// listen, and this launcher watches the run.
    ///
    /// # Errors
    /// [`ClusterError::NoRun`] if too few coordinators have left their directories.
    /// [`ClusterError::Refused`] if there is no checkpoint of the step `from`.
    pub async fn reopen(
        run: &RunSpec,
        directory: Directory,
        options: &ClusterOptions,
        from: Option<Step>,
    ) -> Result<Self, ClusterError> {
        let began = Instant::now();
        let daemons = Daemons::of(options)?;
        let earlier = Earlier::read(directory.path());
        let coordinators = Coordinators::reopen(&directory, daemons.clone(), options.wait).await?;
        let workers = Workers::new(coordinators.addresses(), daemons, options);
        let workers = workers.after(earlier.into_workers());
        let mut cluster = Self::of(directory, coordinators, workers, (options.wait, began))?;
        cluster.progress.keeps_history = options.keeps_history;
        for name in [LINES, EVENTS] {
            cluster.files.rebuild(&cluster.directory, name);
        }
        cluster.start_workers(options.workers).await?;
        let begun = cluster.go_on_with(run, from).await;
        cluster.begun(begun)
    }

    /// Hears all of the run's history, and watches the run from then on. Until then the files of
    /// the run stay as they are. If the earlier launcher ended before the coordinators had a run,
    /// they get it now.
    async fn go_on_with(&mut self, run: &RunSpec, from: Option<Step>) -> Result<(), ClusterError> {
        let known = self.coordinators.follow_run(&self.directory).await?;
        if let Some(known) = &known {
            if let Some(step) = from {
                self.coordinators.roll_back(&self.directory, known, step).await?;
            }
            self.poll().await?;
        }
        let _ = fs::remove_file(self.directory.path().join(REPORT)); // it may have no report
        let run = self.attach(run)?;
        if known.is_none() {
            self.coordinators.submit(&self.directory, &run).await?;
        }
        self.write_files();
        Ok(())
    }
}
