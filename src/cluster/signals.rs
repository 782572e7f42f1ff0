//! Signals that end a launcher before its run is over.

use std::io;
use std::pin::pin;

use tokio::signal::unix::{self, SignalKind};

use super::ClusterError;

/// A signal that asks the launcher to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// The user pressed Ctrl-C.
    Interrupt,
    /// SIGTERM, or the end of the terminal.
    Terminate,
}

impl From<Signal> for ClusterError {
    fn from(signal: Signal) -> Self {
        match signal {
            Signal::Interrupt => Self::Interrupted,
            Signal::Terminate => Self::Terminated,
        }
    }
}

/// SIGINT, SIGTERM and SIGHUP from now on.
pub(super) struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    /// None if the process outlives its terminal, as one that `nohup` started does.
    hangup: Option<unix::Signal>,
}

impl Signals {
    /// Takes the signals, whose default would end the process.
    pub(super) fn listen() -> io::Result<Self> {
        let hangup = (!ignores_hangup()).then(|| unix::signal(SignalKind::hangup()));
        Ok(Self {
            interrupt: unix::signal(SignalKind::interrupt())?,
            terminate: unix::signal(SignalKind::terminate())?,
            hangup: hangup.transpose()?,
        })
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) -> Signal {
        let Self { interrupt, terminate, hangup } = self;
        let hung_up = async {
            match hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = interrupt.recv() => Signal::Interrupt,
            _ = terminate.recv() => Signal::Terminate,
            _ = hung_up => Signal::Terminate,
        }
    }

    /// Does the work to its end, although a signal may come meanwhile. If one has come before
    /// (`is_repeated`), or a second one comes, the work is given up, and the error says so.
    pub(super) async fn during<T>(
        &mut self,
        work: impl Future<Output = T>,
        is_repeated: bool,
    ) -> Result<(T, Option<Signal>), ClusterError> {
        let mut work = pin!(work);
        let mut first = None;
        loop {
            tokio::select! {
                done = &mut work => return Ok((done, first)),
                signal = self.next() => match first.replace(signal) {
                    None if !is_repeated => {}
                    _ => return Err(signal.into()),
                },
            }
        }
    }
}

/// Waits for SIGINT or SIGTERM, or for the end of the terminal (SIGHUP).
pub(super) async fn interrupted() -> ClusterError {
    match Signals::listen() {
        Ok(mut signals) => signals.next().await.into(),
        Err(_) => std::future::pending().await,
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
