//! A run from its submission to its end, or until its launcher is told to end.
//!
//! The processes of a local cluster end with their launcher. So a run with checkpoints is not just
//! cut off: at the first signal all workers are asked to leave. Then the run rests after the step
//! under way, a checkpoint saves it, and the workers leave together. The launcher waits for that
//! for [`LEAVE_TOGETHER_TIMEOUT`] at most, and ends at once at a second signal. The coordinators
//! decide when the workers may go. This module does not know why they do not.

use std::time::{Duration, Instant};

use everstep_transport::protocol::outcome::{WorkerState, WorkerView};
use everstep_transport::protocol::{RunSpec, WorkerId};

use super::conclusion::Ending;
use super::signals::{Signal, Signals};
use super::{Cluster, ClusterError, Progress, Report};

/// How long a launcher that was told to end waits for the last checkpoint.
const LEAVE_TOGETHER_TIMEOUT: Duration = Duration::from_secs(20);

/// Drives a launcher's work on one run: first its beginning, then the run to its end.
///
/// # Errors
/// Those of the work. A signal is one, too.
pub(super) fn drive(
    run: &RunSpec,
    begin: impl Future<Output = Result<Cluster, ClusterError>>,
    watch: impl FnMut(&Progress),
) -> Result<Report, ClusterError> {
    let begin = async { Ok((begin.await?, run.clone())) };
    drive_stated(begin, watch)
}

/// As [`drive`], for a run that is known once it has begun.
///
/// # Errors
/// As there.
pub(super) fn drive_stated(
    begin: impl Future<Output = Result<(Cluster, RunSpec), ClusterError>>,
    watch: impl FnMut(&Progress),
) -> Result<Report, ClusterError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(ClusterError::Runtime)?.block_on(async {
        let mut signals = Signals::listen().map_err(ClusterError::Runtime)?;
        let (cluster, run) = tokio::select! {
            begun = begin => begun?,
            signal = signals.next() => return Err(signal.into()),
        };
        cluster.see_through(&run, watch, signals).await
    })
}

impl Cluster {
    /// The cluster, if its run has begun. Otherwise the failure is put on record.
    pub(super) fn begun(mut self, begun: Result<(), ClusterError>) -> Result<Self, ClusterError> {
        match begun {
            Ok(()) => Ok(self),
            Err(error) => {
                self.conclude(&Ending::Failed(error.to_string()));
                Err(error)
            }
        }
    }

    /// Goes on until the run is complete, or until all workers have left after a signal. Calls
    /// `watch` whenever there are news.
    async fn see_through(
        mut self,
        run: &RunSpec,
        mut watch: impl FnMut(&Progress),
        mut signals: Signals,
    ) -> Result<Report, ClusterError> {
        // A run that goes on has a history.
        if self.progress.event_sums.newest() > 0 {
            watch(self.progress());
        }
        let mut leaving: Option<(Signal, Instant)> = None;
        loop {
            let (advanced, signal) = signals.during(self.advance(), leaving.is_some()).await?;
            let is_complete = advanced?;
            watch(self.progress());
            if is_complete {
                let report = self.report(run);
                return self.end().await.map_or(Ok(report), Err);
            }
            match (leaving, signal) {
                (Some((signal, until)), _) if self.have_left() || Instant::now() >= until => {
                    return Err(signal.into());
                }
                (None, Some(signal)) if self.can_save() => {
                    leaving = Some((signal, Instant::now() + LEAVE_TOGETHER_TIMEOUT));
                    self.progress.is_leaving = true;
                    watch(self.progress());
                    signals.during(self.ask_all_to_leave(), true).await?;
                }
                (None, Some(signal)) => return Err(signal.into()),
                _ => {}
            }
        }
    }

    /// Whether there is a run under way that keeps checkpoints.
    fn can_save(&self) -> bool {
        let saves = self.submitted.as_ref().is_some_and(|run| run.checkpoint.is_some());
        saves && self.progress.registered().is_none()
    }

    /// Asks all workers to leave, also those that others have started. One that is gone meanwhile
    /// needs no request, and the time-out bounds what else goes wrong.
    async fn ask_all_to_leave(&mut self) {
        self.workers.stop_respawning();
        let there = self.progress.workers.iter().filter(|view| is_there(view));
        let there: Vec<WorkerId> = there.map(|view| view.worker).collect();
        let ask = async {
            for worker in there {
                if let Err(error) = self.drain(worker).await {
                    tracing::debug!(%worker, %error, "a worker was not asked to leave");
                }
            }
        };
        let _ = tokio::time::timeout(LEAVE_TOGETHER_TIMEOUT, ask).await;
    }

    /// Whether no worker is there any more, as the coordinators say.
    fn have_left(&self) -> bool {
        !self.progress.workers.iter().any(is_there)
    }
}

fn is_there(view: &WorkerView) -> bool {
    !matches!(view.state, WorkerState::Lost | WorkerState::Left)
}
