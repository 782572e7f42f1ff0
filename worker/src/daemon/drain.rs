//! SIGTERM: the worker leaves, as soon as nothing depends on it.
//!
//! By default the worker waits for that without a limit. It may have the last copy of parameters,
//! and their loss costs the run all its steps. A supervisor that ends processes (Kubernetes,
//! systemd, a cloud that takes its machine back) knows its own limit and keeps it. Only an operator
//! can know better: with `--grace`, or with a second SIGTERM.

use std::io;
use std::time::Duration;

use actix::Addr;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::actor::WorkerActor;
use super::event::CoreInput;
use crate::step::event::Input;

/// Catches SIGTERM, which from now on no longer ends the process.
pub fn terminations() -> io::Result<Signal> {
    signal(SignalKind::terminate())
}

/// Tells the actor to drain at the first SIGTERM. Tells it that the time is over at the second
/// SIGTERM, or at the end of the grace period if there is one.
pub async fn run(mut terminations: Signal, grace: Option<Duration>, own: Addr<WorkerActor>) {
    terminations.recv().await;
    tracing::info!("told to leave; a second SIGTERM ends this worker at once");
    own.do_send(CoreInput(Input::Drain));
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
    own.do_send(CoreInput(Input::DrainOverdue));
}
