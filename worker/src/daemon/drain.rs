//! SIGTERM, or a notice of the cloud: the worker leaves, as soon as nothing depends on it.
//!
//! After SIGTERM the worker waits for that without a limit, by default. It may have the last copy
//! of parameters, and their loss costs the run all its steps. A supervisor that ends processes
//! (Kubernetes, systemd) knows its own limit and keeps it. Only an operator can know better: with
//! `--grace`, or with a second SIGTERM. A cloud's notice has a limit of its own. The worker says
//! goodbye shortly before the machine is gone, since a goodbye proves its end to the others.

use std::future::pending;
use std::io;
use std::time::Duration;

use actix::Addr;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::actor::WorkerActor;
use super::event::CoreInput;
use super::preemption::Notice;
use crate::step::event::Input;

/// What may tell the worker to leave.
pub struct LeaveOrders {
    /// Each SIGTERM that arrives.
    pub terminations: Signal,
    /// The longest wait after SIGTERM. None means no limit.
    pub grace: Option<Duration>,
    /// The notice of the cloud that is in force.
    pub notices: watch::Receiver<Option<Notice>>,
}

/// Catches SIGTERM, which from now on no longer ends the process.
pub fn terminations() -> io::Result<Signal> {
    signal(SignalKind::terminate())
}

/// Tells the actor to drain at the first SIGTERM, and at a notice. Tells it that the time is over
/// at the second SIGTERM, at the end of the grace period if there is one, and when a notice runs
/// out.
pub async fn run(orders: LeaveOrders, own: Addr<WorkerActor>) {
    let LeaveOrders { mut terminations, grace, mut notices } = orders;
    let (mut is_terminated, mut grace_over, mut leave_at) = (false, None, None);
    loop {
        let over = [grace_over, leave_at].into_iter().flatten().min();
        tokio::select! {
            _ = terminations.recv() => {
                if is_terminated {
                    tracing::warn!("told to leave at once");
                    break;
                }
                tracing::info!("told to leave. A second SIGTERM ends this worker at once");
                is_terminated = true;
                grace_over = grace.map(|grace| Instant::now() + grace);
                own.do_send(CoreInput(Input::Drain));
            }
            notice = next(&mut notices) => {
                leave_at = notice.map(|notice| notice.leave_at);
                let preemption = notice.map(|notice| notice.preemption);
                own.do_send(CoreInput(Input::Preempted(preemption)));
            }
            () = reach(over) => {
                tracing::warn!("the time for leaving in good order is over");
                break;
            }
        }
    }
    own.do_send(CoreInput(Input::DrainOverdue));
}

/// The next notice, or that the last one is withdrawn.
async fn next(notices: &mut watch::Receiver<Option<Notice>>) -> Option<Notice> {
    match notices.changed().await {
        Ok(()) => *notices.borrow_and_update(),
        Err(_) => pending().await, // No service is asked.
    }
}

async fn reach(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}
