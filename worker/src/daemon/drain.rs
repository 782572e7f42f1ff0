//! SIGTERM: the worker is to leave, as soon as nothing depends on it.
//!
//! By itself it waits for that as long as it takes. It may have the last copy of parameters whose
//! loss costs the run all its steps, and whatever ends processes (Kubernetes, systemd, a cloud that
//! takes its machine back) knows its own limit and keeps it. Only an operator can know better: by
//! `--grace`, or by a second SIGTERM.

use std::io;
use std::time::Duration;

use actix::Addr;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::actor::WorkerActor;
use super::event::Event;
use crate::step::event::Input;

/// Takes SIGTERM from the process, which it ends no more.
pub fn terminations() -> io::Result<Signal> {
    signal(SignalKind::terminate())
}

/// Tells the actor to drain at the first SIGTERM, and that time is up when the grace period is
/// over, if there is one, or at the second SIGTERM.
pub async fn attend(mut terminations: Signal, grace: Option<Duration>, own: Addr<WorkerActor>) {
    terminations.recv().await;
    tracing::info!("told to leave; a second SIGTERM ends this worker at once");
    own.do_send(Event(Input::Drain));
    let over = async {
        match grace {
            Some(grace) => tokio::time::sleep(grace).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = terminations.recv() => tracing::warn!("told to leave at once"),
        () = over => tracing::warn!("the time for leaving in good order is over"),
    }
    own.do_send(Event(Input::DrainOverdue));
}
