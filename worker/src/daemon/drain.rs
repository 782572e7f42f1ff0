//! SIGTERM: the worker is to leave, and has some time for it.

use std::io;
use std::time::Duration;

use actix::Addr;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use super::actor::WorkerActor;
use super::event::Event;
use crate::step::event::Input;

/// How long a process may take after SIGTERM before whoever sent it kills: the usual 30 s.
const GRACE: Duration = Duration::from_secs(30);

/// Takes SIGTERM from the process, which it ends no more.
pub fn terminations() -> io::Result<Signal> {
    signal(SignalKind::terminate())
}

/// Tells the actor to drain at the first SIGTERM, and that time is up when half of the grace period
/// is over or at the second one.
pub async fn attend(mut terminations: Signal, own: Addr<WorkerActor>) {
    terminations.recv().await;
    tracing::info!("told to leave");
    own.do_send(Event(Input::Drain));
    // Either way it is over.
    let _ = timeout(GRACE / 2, terminations.recv()).await;
    own.do_send(Event(Input::DrainOverdue));
}
