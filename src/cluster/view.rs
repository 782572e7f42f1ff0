//! `cluster.json`: who is there, as a script finds it.
//!
//! In: what the launcher knows of its processes, and what the coordinator says. Out: the text of
//! the file. A worker that joined by hand has no process that is known here, nor has one that has
//! ended.

use everstep_transport::protocol::outcome::{Waiting, WorkerView};
use serde_json::{Value, json};

use super::Progress;
use super::coordinator::Coordinator;
use super::naming::Naming;
use super::process::Process;
use super::protection::Lapse;
use super::workers::Workers;

/// The text of the file.
pub(super) fn text(coordinator: &Coordinator, workers: &Workers, progress: &Progress) -> String {
    let known = progress.workers.iter().map(|view| registered(view, workers));
    let is_known =
        |process: &&Process| progress.workers.iter().any(|v| v.name == process.naming().name);
    let starting = workers.living().iter().filter(|p| !is_known(p)).map(starting);
    let listed: Vec<Value> = known.chain(starting).collect();
    let lapses: Vec<Value> = progress.protection.open().iter().map(lapse).collect();
    let cluster = json!({
        "coordinators": [{
            "id": 1, "pid": coordinator.naming().pid, "address": coordinator.address(),
            "api": null, "leader": true,
        }],
        "workers": listed,
        "under_protected": lapses,
        "waiting": progress.waiting.as_ref().map(waiting),
    });
    format!("{cluster:#}\n")
}

fn registered(view: &WorkerView, workers: &Workers) -> Value {
    let living = workers.living().iter().map(Process::naming).find(|ours| ours.name == view.name);
    let label = workers.namings().find(|naming| naming.name == view.name);
    json!({
        "id": view.worker, "pid": living.map(|naming| naming.pid), "address": view.address,
        "rank": view.rank, "state": view.state, "name": view.name,
        "label": label.map(|naming| &naming.label),
    })
}

fn starting(process: &Process) -> Value {
    let Naming { label, pid, name, .. } = process.naming();
    json!({
        "id": null, "pid": pid, "address": process.address(), "rank": null,
        "state": "starting", "name": name, "label": label,
    })
}

fn lapse(lapse: &Lapse) -> Value {
    let Lapse { first, count, from_unix_ms, .. } = lapse;
    json!({ "first": first, "count": count, "since_unix_ms": from_unix_ms })
}

fn waiting(waiting: &Waiting) -> Value {
    let Waiting { members, wanted, since_unix_ms } = waiting;
    json!({ "members": members, "wanted": wanted, "since_unix_ms": since_unix_ms })
}
