//! Signals that end a launcher before its run is over.

use tokio::signal::unix::{SignalKind, signal};

use super::ClusterError;

/// Waits for SIGINT or SIGTERM, or for the end of the terminal (SIGHUP).
pub(super) async fn interrupted() -> ClusterError {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    let hung_up = async {
        // A process that `nohup` started outlives its terminal.
        match (!ignores_hangup()).then(|| signal(SignalKind::hangup())) {
            Some(Ok(mut hangup)) => hangup.recv().await,
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => ClusterError::Interrupted,
        _ = terminate.recv() => ClusterError::Terminated,
        _ = hung_up => ClusterError::Terminated,
    }
}

/// Whether this process was started so that SIGHUP does nothing. If that is unknown, the signal
/// stays as it is.
fn ignores_hangup() -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return true };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask & 1 != 0) // SIGHUP is signal 1, the lowest bit
}
