//! `everstep worker ls`: the workers, and what the run waits for.

use everstep_transport::protocol::outcome::{
    Outcome, UnregisteredWorker, Update, WorkerState, WorkerView,
};
use everstep_transport::protocol::{NodeName, Step};
use serde_json::json;

use crate::cli::AskFlags;
use crate::failure::Failure;
use crate::logging;
use crate::operator::{ClusterHandle, NEWEST};
use crate::output::{self, table};

pub(crate) fn run(flags: &AskFlags) -> Result<(), Failure> {
    logging::start("warn")?;
    let cluster = ClusterHandle::find(&flags.cluster)?;
    let update = cluster.ask(async |operator| operator.watch(Step(NEWEST), NEWEST).await)?;
    if flags.json {
        return output::print(json!({
            "workers": update.workers,
            "idle": update.idle.iter().map(|idle| &idle.name).collect::<Vec<_>>(),
            "idle_workers": update.idle,
            "building_workers": update.building,
            "waiting": update.waiting,
            "bitwise": update.divergence.is_none(),
            "bitwise_reason": update.divergence,
        }));
    }
    let head = [
        "number",
        "id",
        "name",
        "state",
        "rank",
        "data shards",
        "zone",
        "host",
        "address",
        "device",
        "telemetry",
    ];
    let unregistered = |workers: &[UnregisteredWorker], state| -> Vec<_> {
        workers.iter().map(|worker| unregistered_row(worker, state)).collect()
    };
    let building = unregistered(&update.building, "building");
    let idle = unregistered(&update.idle, "idle");
    let rows = update.workers.iter().map(row).chain(building).chain(idle);
    let rows = std::iter::once(head.map(str::to_string)).chain(rows);
    let rows: Vec<_> = rows.collect();
    let reason = update.divergence.as_ref();
    let reason =
        reason.map_or(String::new(), |reason| format!("\nnot bitwise: {}", output::plain(reason)));
    let taken = update.workers.iter().filter_map(taken_back);
    let waits = taken.chain(update.workers.iter().filter_map(waits));
    let unable = update.unable.iter().map(|(name, reason)| cannot_compute(name, reason));
    let waits: String = waits.chain(unable).collect();
    let spare = spare(&update.workers).unwrap_or_default();
    let text = format!("{}{reason}{waits}{spare}\n{}", sentence(&update), table(&rows));
    output::print(text.trim_end())
}

fn sentence(update: &Update) -> String {
    let idle = update.idle.len();
    match (update.run, &update.outcome) {
        _ if idle == 0 => of_the_run(update),
        (Some(_), Outcome::Running) => {
            let unable = doing(idle, "cannot compute it yet", "cannot compute it yet");
            format!("{}; {unable}", of_the_run(update))
        }
        _ => format!("{} for a run", doing(idle, "waits", "wait")),
    }
}

/// What the workers of the run do.
fn of_the_run(update: &Update) -> String {
    let count = |state| update.workers.iter().filter(|worker| worker.state == state).count();
    if let Some(paused) = update.paused.as_ref() {
        let part = doing(count(WorkerState::Training), "takes part", "take part");
        return format!("{paused}: {part}");
    }
    match update.waiting {
        Some(waiting) => {
            format!("waiting: {} of at least {} workers take part", waiting.members, waiting.wanted)
        }
        None => {
            let building = match update.building.len() {
                0 => String::new(),
                building => format!(", {building} building the model"),
            };
            format!(
                "{}, {} brought up to date, {} waiting{building}",
                doing(count(WorkerState::Training), "trains", "train"),
                count(WorkerState::Learning),
                count(WorkerState::Waiting)
            )
        }
    }
}

/// The reason why a worker cannot compute the run.
fn cannot_compute(name: &NodeName, reason: &str) -> String {
    format!("\n{}", output::plain(&format!("{name} cannot compute the run: {reason}")))
}

/// The reason why a worker's join or leave waits. None if it does not wait.
fn waits(worker: &WorkerView) -> Option<String> {
    let reason = worker.waits_for.as_ref()?;
    let what = if worker.state == WorkerState::Leaving { "leave" } else { "take part" };
    let words = format!("{} waits to {what}: {reason}", worker.label());
    Some(format!("\n{}", output::plain(&words)))
}

/// That a cloud takes the worker's machine back. None if it does not, or if the worker is gone.
fn taken_back(worker: &WorkerView) -> Option<String> {
    let notice = worker.preemption.filter(|_| worker.state == WorkerState::Leaving)?;
    Some(format!("\n{}", output::plain(&format!("{} leaves: {notice}", worker.label()))))
}

/// Members that compute nothing, since there are more of them than data shards.
fn spare(workers: &[WorkerView]) -> Option<String> {
    let idle = |view: &&WorkerView| view.rank.is_some() && view.data_shards == 0;
    let idle: Vec<_> = workers.iter().filter(idle).map(|view| view.label().to_string()).collect();
    let verb = if idle.len() == 1 { "computes" } else { "compute" };
    (!idle.is_empty()).then(|| {
        format!(
            "\nnote: {} {verb} nothing: the run has fewer data shards (batch.data_shards) than \
             workers",
            idle.join(", ")
        )
    })
}

/// So many workers do something, in words.
fn doing(count: usize, one: &str, many: &str) -> String {
    if count == 1 { format!("1 worker {one}") } else { format!("{count} workers {many}") }
}

/// A worker that has not registered has a name and an address only.
fn unregistered_row(worker: &UnregisteredWorker, state: &str) -> [String; 11] {
    let UnregisteredWorker { name, address } = worker;
    let mut row = std::array::from_fn(|_| "-".to_string());
    (row[2], row[3]) = (name.to_string(), state.into());
    row[8] = address.map_or(row[8].clone(), |address| address.to_string());
    row
}

fn row(worker: &WorkerView) -> [String; 11] {
    let WorkerView {
        worker,
        number,
        name,
        address,
        rank,
        data_shards,
        zone,
        device,
        telemetry,
        state,
        host,
        ..
    } = worker;
    let state = json!(state).as_str().unwrap_or_default().to_string();
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    [
        number.to_string(),
        worker.to_string(),
        name.to_string(),
        state,
        or_none(rank.map(|rank| rank.to_string())),
        data_shards.to_string(),
        or_none(zone.as_ref().map(|zone| zone.as_str().to_string())),
        or_none(host.as_ref().map(ToString::to_string)),
        address.to_string(),
        device.to_string(),
        telemetry.unwrap_or_default().to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::message::Message;
    use everstep_transport::protocol::{Rank, RunId, WorkerId, exemplars};

    use super::*;

    fn view(number: u32, data_shards: u32) -> WorkerView {
        let views = exemplars::all().into_iter().find_map(|message| match message {
            Message::Update(update) => update.workers.into_iter().next(),
            _ => None,
        });
        let (worker, rank) = (WorkerId(number.into()), Some(Rank(number - 1)));
        WorkerView { worker, number, rank, data_shards, host: None, ..views.expect("a view") }
    }

    #[test]
    fn a_worker_that_cannot_compute_the_run_is_counted_apart() {
        let name = NodeName::parse("worker-7").expect("a valid name");
        let unable = vec![(name.clone(), "there is no /nope".to_string())];
        let idle = vec![UnregisteredWorker { name, address: None }];
        let workers = vec![WorkerView { state: WorkerState::Training, ..view(1, 1) }];
        let update = Update { run: Some(RunId(4)), workers, idle, unable, ..Update::default() };
        let words = "1 worker trains, 0 brought up to date, 0 waiting; 1 worker cannot compute it \
                     yet";
        assert_eq!(sentence(&update), words);
        let words = "\nworker-7 cannot compute the run: there is no /nope";
        let (name, reason) = &update.unable[0];
        assert_eq!(cannot_compute(name, reason), words);
        let over = Update { outcome: Outcome::Complete(Vec::new()), ..update };
        assert_eq!(sentence(&over), "1 worker waits for a run");
        let begins = Update { run: Some(RunId(4)), building: over.idle, ..Update::default() };
        let words = "0 workers train, 0 brought up to date, 0 waiting, 1 building the model";
        assert_eq!(sentence(&begins), words);
    }

    #[test]
    fn a_worker_that_waits_for_a_run_has_a_row_with_its_address() {
        let name = NodeName::parse("worker-7").expect("a valid name");
        let worker = UnregisteredWorker { name, address: Some(([10, 0, 0, 7], 4_000).into()) };
        let row = unregistered_row(&worker, "idle");
        assert_eq!(row.join(" "), "- - worker-7 idle - - - - 10.0.0.7:4000 - -");
        assert_eq!(doing(1, "trains", "train"), "1 worker trains");
        assert_eq!(doing(2, "trains", "train"), "2 workers train");
    }

    #[test]
    fn workers_without_a_data_shard_are_named() {
        assert_eq!(spare(&[view(1, 1), view(2, 1)]), None);
        let waits = WorkerView { rank: None, ..view(3, 0) };
        assert_eq!(spare(&[view(1, 1), waits]), None, "it takes no part yet");
        let told = spare(&[view(1, 1), view(2, 0), view(3, 0)]).expect("two are idle");
        assert!(told.contains("worker 2 (id 2), worker 3 (id 3) compute nothing"), "{told}");
    }
}
