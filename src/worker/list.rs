//! `everstep worker ls`: the workers, and what the run waits for.

use everstep_transport::protocol::Step;
use everstep_transport::protocol::outcome::{IdleWorker, Update, WorkerState, WorkerView};
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
    let rows = update.workers.iter().map(row).chain(update.idle.iter().map(idle_row));
    let rows = std::iter::once(head.map(str::to_string)).chain(rows);
    let rows: Vec<_> = rows.collect();
    let reason = update.divergence.as_ref();
    let reason =
        reason.map_or(String::new(), |reason| format!("\nnot bitwise: {}", output::plain(reason)));
    let taken = update.workers.iter().filter_map(taken_back);
    let waits: String = taken.chain(update.workers.iter().filter_map(waits)).collect();
    let spare = spare(&update.workers).unwrap_or_default();
    let text = format!("{}{reason}{waits}{spare}\n{}", sentence(&update), table(&rows));
    output::print(text.trim_end())
}

fn sentence(update: &Update) -> String {
    let count = |state| update.workers.iter().filter(|worker| worker.state == state).count();
    if !update.idle.is_empty() {
        let count = update.idle.len();
        return format!("{} for a run", doing(count, "waits", "wait"));
    }
    if let Some(paused) = update.paused.as_ref() {
        let part = doing(count(WorkerState::Training), "takes part", "take part");
        return format!("{paused}: {part}");
    }
    match update.waiting {
        Some(waiting) => {
            format!("waiting: {} of at least {} workers take part", waiting.members, waiting.wanted)
        }
        None => format!(
            "{}, {} brought up to date, {} waiting",
            doing(count(WorkerState::Training), "trains", "train"),
            count(WorkerState::Learning),
            count(WorkerState::Waiting)
        ),
    }
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

/// A worker that waits for a run has a name and an address only.
fn idle_row(IdleWorker { name, address }: &IdleWorker) -> [String; 11] {
    let mut row = std::array::from_fn(|_| "-".to_string());
    (row[2], row[3]) = (name.to_string(), "idle".into());
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
    use everstep_transport::protocol::{NodeName, Rank, WorkerId, exemplars};

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
    fn a_worker_that_waits_for_a_run_has_a_row_with_its_address() {
        let name = NodeName::parse("worker-7").expect("a valid name");
        let row = idle_row(&IdleWorker { name, address: Some(([10, 0, 0, 7], 4_000).into()) });
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
