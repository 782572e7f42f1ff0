//! `everstep worker drain`: lets a worker leave its run in good order.
//!
//! In: a worker's number, id or name, and the place of its cluster. Out: the worker's last state.

use std::path::Path;
use std::time::{Duration, Instant};

use everstep_transport::protocol::outcome::{Outcome, Update, WorkerState, WorkerView};
use everstep_transport::protocol::{OperatorCommand, Step};
use serde_json::json;

use crate::cli::DrainFlags;
use crate::cluster::block_on;
use crate::failure::{Exit, Failure};
use crate::operator::{ClusterHandle, NEWEST, OperatorError};
use crate::worker::{meant, unknown};
use crate::{logging, output};

/// How often the program asks for the worker's state.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the coordinators may be unreachable while the worker leaves.
const DRAIN_UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn run(flags: &DrainFlags) -> Result<(), Failure> {
    logging::start("warn")?;
    let cluster = ClusterHandle::find(&flags.cluster)?;
    let began = Instant::now();
    let view = block_on(drain(&cluster, flags))?;
    let (seconds, state) = (began.elapsed().as_secs_f64(), view.state);
    if flags.json {
        return output::print(json!({
            "worker": view.worker, "number": view.number, "host": view.host, "name": view.name,
            "state": state, "seconds": seconds,
        }));
    }
    let who = view.label();
    output::print(match state {
        WorkerState::Left => format!("{who} has left, after {seconds:.2} s"),
        WorkerState::Finished => format!("{who} did not need to leave: the run is complete"),
        _ => format!("{who} is leaving"),
    })
}

/// Asks the leader to let the worker leave, and waits until it is gone. Returns its last state.
async fn drain(cluster: &ClusterHandle, flags: &DrainFlags) -> Result<WorkerView, Failure> {
    let mut operator = cluster.operator()?;
    let ask = |error: OperatorError| cluster.failure(error);
    let update = operator.watch(Step(NEWEST), NEWEST).await.map_err(ask)?;
    let member = member(cluster, &flags.worker, &update)?;
    match operator.command(OperatorCommand::Drain(member.worker)).await {
        Err(OperatorError::Refused(reason)) => return Err(refused(cluster, &member, &reason)),
        answer => answer.map_err(ask)?,
    };
    if flags.no_wait {
        return Ok(WorkerView { state: WorkerState::Leaving, ..member });
    }
    let mut heard = Instant::now();
    loop {
        tokio::time::sleep(DRAIN_POLL_INTERVAL).await;
        match operator.watch(Step(NEWEST), NEWEST).await {
            Ok(update) => {
                heard = Instant::now();
                if let Some(view) = result(cluster, &member, &update)? {
                    return Ok(view);
                }
            }
            Err(error) if heard.elapsed() > DRAIN_UNREACHABLE_TIMEOUT => return Err(ask(error)),
            Err(_) => {}
        }
    }
}

/// The worker, if it can leave.
fn member(cluster: &ClusterHandle, word: &str, update: &Update) -> Result<WorkerView, Failure> {
    if update.outcome != Outcome::Running {
        return Err(over(&cluster.dir));
    }
    let Some(view) = meant(word, &cluster.dir, &update.workers) else {
        return Err(unknown(word, &cluster.dir, &update.workers));
    };
    match view.state {
        WorkerState::Lost | WorkerState::Left => Err(refused(cluster, view, "it is gone already")),
        _ => Ok(view.clone()),
    }
}

/// The worker's state, if it is the last one.
fn result(
    cluster: &ClusterHandle,
    member: &WorkerView,
    update: &Update,
) -> Result<Option<WorkerView>, Failure> {
    let refused = |reason| Err(refused(cluster, member, reason));
    let view = update.workers.iter().find(|view| view.worker == member.worker);
    let over = update.outcome != Outcome::Running;
    match view.map(|view| view.state) {
        None => refused("the coordinators do not know it any more"),
        Some(WorkerState::Lost) => refused("it was lost before it had left"),
        Some(WorkerState::Left) => Ok(view.cloned()),
        Some(_) if over => {
            Ok(view.map(|view| WorkerView { state: WorkerState::Finished, ..view.clone() }))
        }
        Some(_) => Ok(None),
    }
}

fn refused(cluster: &ClusterHandle, worker: &WorkerView, reason: &str) -> Failure {
    Failure::new(Exit::Failed, format!("{} cannot leave", worker.label())).because(reason).next(
        format!(
            "`everstep worker ls --dir {}` tells which workers take part",
            cluster.dir.display()
        ),
    )
}

fn over(dir: &Path) -> Failure {
    Failure::new(Exit::Failed, "the run is over: no worker needs to leave it").at(dir.display())
}
