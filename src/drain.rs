//! `everstep worker drain`: lets a worker leave its run in good order.
//!
//! In: a worker's id and the directory of its run, where the coordinator's address and an
//! operator's credentials are. Out: what became of the worker.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use everstep_transport::protocol::outcome::{Outcome, Update, WorkerState, WorkerView};
use everstep_transport::protocol::{Step, WorkerId};
use serde_json::{Value, json};

use crate::cli::DrainFlags;
use crate::cluster::{ClusterError, Operator, block_on};
use crate::failure::{Exit, Failure};
use crate::{logging, output};

/// How often the worker is looked at.
const POLL: Duration = Duration::from_millis(50);
/// How long a coordinator may be away while the worker leaves.
const PATIENCE: Duration = Duration::from_secs(20);
/// Newer than any line and any event: whoever has these asks for workers alone.
const NEWEST: u64 = u32::MAX as u64;

pub(crate) fn run(flags: &DrainFlags) -> Result<(), Failure> {
    logging::start("warn")?;
    let dir = flags.dir.clone().map_or_else(newest_run, Ok)?;
    let cluster = Place::read(&dir)?;
    let began = Instant::now();
    let view = block_on(drain(&cluster, flags))?;
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

/// Where the coordinator is, and what shows it that we may speak.
struct Place {
    dir: PathBuf,
    home: PathBuf,
    coordinator: SocketAddr,
}

impl Place {
    fn read(dir: &Path) -> Result<Self, Failure> {
        let path = dir.join("cluster.json");
        let text = fs::read_to_string(&path).map_err(|error| {
            Failure::new(Exit::Usage, "there is no run")
                .at(path.display())
                .because(error)
                .next("pass the directory of a run under way with --dir")
        })?;
        let cluster: Value = serde_json::from_str(&text).unwrap_or_default();
        let address = cluster["coordinators"][0]["address"].as_str();
        let coordinator = address.and_then(|address| address.parse().ok()).ok_or_else(|| {
            Failure::new(Exit::Usage, "the run's cluster.json names no coordinator")
                .at(path.display())
                .next("pass the directory of a run under way with --dir")
        })?;
        Ok(Self { dir: dir.to_path_buf(), home: dir.join("coordinator-1"), coordinator })
    }

    async fn connect(&self) -> Result<Operator, Failure> {
        let operator = Operator::connect(&self.home, self.coordinator).await;
        operator.map_err(|error| self.unreachable(&error))
    }

    /// A run that is over says so in its events.
    fn unreachable(&self, error: &ClusterError) -> Failure {
        let events = fs::read_to_string(self.dir.join("events.jsonl")).unwrap_or_default();
        let last = events.lines().next_back().unwrap_or_default();
        let last: Value = serde_json::from_str(last).unwrap_or_default();
        if matches!(last["event"].as_str(), Some("complete" | "failed")) {
            return over(&self.dir);
        }
        Failure::new(Exit::Failed, "the coordinator cannot be reached")
            .at(format!("{}, as in {}", self.coordinator, self.dir.join("cluster.json").display()))
            .because(error)
            .next("see whether the run is still under way")
    }
}

/// Asks the coordinator, and waits for the worker to be gone; returns how it stands at last.
async fn drain(place: &Place, flags: &DrainFlags) -> Result<WorkerView, Failure> {
    let worker = WorkerId(flags.worker);
    let mut operator = place.connect().await?;
    let ask = |error: ClusterError| place.unreachable(&error);
    let update = operator.watch(Step(NEWEST), NEWEST).await.map_err(ask)?;
    let member = member(place, worker, &update)?;
    match operator.drain(worker).await {
        Err(ClusterError::Failed { reason, .. }) => return Err(refused(worker, &reason)),
        answer => answer.map_err(ask)?,
    }
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
            // It may have been started again; then it knows what it agreed to.
            Err(_) => {
                if let Ok(renewed) = place.connect().await {
                    operator = renewed;
                }
            }
        }
    }
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
        None => Err(refused(worker, "the coordinator does not know it any more")),
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

/// The directory under `runs` whose run was begun last.
fn newest_run() -> Result<PathBuf, Failure> {
    let began =
        |dir: &PathBuf| fs::metadata(dir.join("run.json")).and_then(|it| it.modified()).ok();
    let dirs = fs::read_dir("runs").into_iter().flatten().flatten().map(|entry| entry.path());
    let newest = dirs.filter_map(|dir| Some((began(&dir)?, dir))).max();
    newest.map(|(_, dir)| dir).ok_or_else(|| {
        Failure::new(Exit::Usage, "there is no run")
            .at("runs")
            .next("pass the directory of a run with --dir")
    })
}
