//! `everstep worker drain`: lets a worker leave its run in good order.
//!
//! In: a worker's id, and where its cluster is. Out: what became of the worker.

use std::path::Path;
use std::time::{Duration, Instant};

use everstep_transport::protocol::outcome::{Outcome, Update, WorkerState, WorkerView};
use everstep_transport::protocol::{Step, Wish, WorkerId};
use serde_json::{Value, json};

use crate::cli::DrainFlags;
use crate::cluster::block_on;
use crate::failure::{Exit, Failure};
use crate::operator::{NEWEST, OperatorError, Place};
use crate::{logging, output};

/// How often the worker is looked at.
const POLL: Duration = Duration::from_millis(50);
/// How long the coordinators may be away while the worker leaves.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn run(flags: &DrainFlags) -> Result<(), Failure> {
    logging::start("warn")?;
    let place = Place::find(&flags.cluster)?;
    let began = Instant::now();
    let view = block_on(drain(&place, flags))?;
    let (seconds, state) = (began.elapsed().as_secs_f64(), view.state);
    if flags.json {
        return output::print(json!({
            "worker": view.worker, "name": view.name, "state": state, "seconds": seconds,
        }));
    }
    let who = format!("worker {} ({})", view.worker, view.name);
    output::print(match state {
        WorkerState::Left => format!("{who} has left, after {seconds:.2} s"),
        WorkerState::Finished => format!("{who} did not need to leave: the run is complete"),
        _ => format!("{who} is leaving"),
    })
}

/// Asks that the worker may leave, and waits for it to be gone; returns how it stands at last.
async fn drain(place: &Place, flags: &DrainFlags) -> Result<WorkerView, Failure> {
    let mut operator = place.operator()?;
    let ask = |error: OperatorError| place.failure(error);
    let update = operator.watch(Step(NEWEST), NEWEST).await.map_err(ask)?;
    let worker = meant(&flags.worker, &place.dir, &update)?;
    let member = member(place, worker, &update)?;
    match operator.wish(Wish::Drain(worker)).await {
        Err(OperatorError::Refused(reason)) => return Err(refused(worker, &reason)),
        answer => answer.map_err(ask)?,
    };
    if flags.no_wait {
        return Ok(WorkerView { state: WorkerState::Leaving, ..member });
    }
    let mut heard = Instant::now();
    loop {
        tokio::time::sleep(POLL).await;
        match operator.watch(Step(NEWEST), NEWEST).await {
            Ok(update) => {
                heard = Instant::now();
                if let Some(view) = result(worker, &update)? {
                    return Ok(view);
                }
            }
            Err(error) if heard.elapsed() > PATIENCE => return Err(ask(error)),
            Err(_) => {}
        }
    }
}

/// The worker that a user means by an id, by a name, or by a label in the run's `cluster.json`. Of
/// a node that has registered more than once it is the newest.
fn meant(word: &str, dir: &Path, update: &Update) -> Result<WorkerId, Failure> {
    if let Ok(id) = word.parse() {
        return Ok(WorkerId(id));
    }
    let named = update.workers.iter().rfind(|view| view.name.as_str() == word);
    let known = named.map(|view| view.worker).or_else(|| labelled(word, dir));
    known.ok_or_else(|| {
        let names: Vec<_> = update.workers.iter().map(|view| view.name.to_string()).collect();
        Failure::new(Exit::Usage, format!("there is no worker \"{word}\"")).at(dir.display()).next(
            format!("pass the id or the name of a worker that takes part: {}", names.join(", ")),
        )
    })
}

/// The newest worker with this label, where the launcher has started one so.
fn labelled(label: &str, dir: &Path) -> Option<WorkerId> {
    let text = std::fs::read_to_string(dir.join("cluster.json")).ok()?;
    let cluster: Value = serde_json::from_str(&text).ok()?;
    let ours = cluster["workers"].as_array()?.iter().rfind(|worker| worker["label"] == label)?;
    Some(WorkerId(ours["id"].as_u64()?))
}

/// The worker, if it is one that can leave.
fn member(place: &Place, worker: WorkerId, update: &Update) -> Result<WorkerView, Failure> {
    if update.outcome != Outcome::Running {
        return Err(over(&place.dir));
    }
    let Some(view) = update.workers.iter().find(|view| view.worker == worker) else {
        let there: Vec<_> = update.workers.iter().filter(|view| view.rank.is_some()).collect();
        let ids: Vec<_> = there.iter().map(|view| view.worker.to_string()).collect();
        return Err(Failure::new(Exit::Usage, format!("there is no worker {worker}"))
            .at(place.dir.display())
            .next(format!("pass the id of one that takes part: {}", ids.join(", "))));
    };
    match view.state {
        WorkerState::Lost | WorkerState::Left => Err(refused(worker, "it is gone already")),
        _ => Ok(view.clone()),
    }
}

/// How the worker stands, if that is its last state.
fn result(worker: WorkerId, update: &Update) -> Result<Option<WorkerView>, Failure> {
    let view = update.workers.iter().find(|view| view.worker == worker);
    let over = update.outcome != Outcome::Running;
    match view.map(|view| view.state) {
        None => Err(refused(worker, "the coordinators do not know it any more")),
        Some(WorkerState::Lost) => Err(refused(worker, "it was lost before it had left")),
        Some(WorkerState::Left) => Ok(view.cloned()),
        Some(_) if over => {
            Ok(view.map(|view| WorkerView { state: WorkerState::Finished, ..view.clone() }))
        }
        Some(_) => Ok(None),
    }
}

fn refused(worker: WorkerId, reason: &str) -> Failure {
    Failure::new(Exit::Failed, format!("worker {worker} cannot leave"))
        .because(reason)
        .next("look at the run's cluster.json for who takes part")
}

fn over(dir: &Path) -> Failure {
    Failure::new(Exit::Failed, "the run is over: nobody needs to leave it").at(dir.display())
}
