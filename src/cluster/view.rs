//! `cluster.json`: the processes of the cluster, for scripts.
//!
//! In: the launcher's processes, and the coordinator's view of the workers. Out: the text of the
//! file. The launcher does not know the process of a worker that joined by hand, nor of one that
//! has ended. Values that change every moment, such as figures of GPUs, are not in the file: the
//! API has them.

use everstep_transport::protocol::outcome::WorkerView;
use serde_json::{Value, json};

use super::Progress;
use super::coordinators::{Coordinators, ListedCoordinator};
use super::naming::Naming;
use super::process::Process;
use super::workers::{EndedProcess, Workers};

/// The number of the format. Scripts and verbs pass over keys that they do not know.
const FORMAT: u64 = 1;

/// The text of the file.
pub(super) fn text(coordinators: &Coordinators, workers: &Workers, progress: &Progress) -> String {
    let known = progress.workers.iter().map(|view| registered(view, workers));
    let is_known =
        |process: &&Process| progress.workers.iter().any(|v| v.name == process.naming().name);
    let starting = workers.living().iter().filter(|p| !is_known(p)).map(starting);
    // Before the launcher has heard of a resumed run, it repeats what an earlier one has written.
    let earlier = workers.gone().iter().filter(|_| progress.event_sums.newest() == 0);
    let earlier = earlier.map(ended);
    let listed: Vec<Value> = known.chain(starting).chain(earlier).collect();
    let cluster = json!({
        "format": FORMAT,
        "coordinators": coordinators.listed().map(coordinator).collect::<Vec<_>>(),
        "workers": listed,
        "under_protected": progress.protection.open(),
        "unreachable": progress.unreachable,
        "waiting": progress.waiting,
        "owners_awaited": progress.owners_awaited,
        "model_awaited": progress.model_awaited,
        "unable": progress.unable,
    });
    format!("{cluster:#}\n")
}

/// The text of the file once the run has ended in this state. No listed process trains.
pub(super) fn of_ended(
    coordinators: &Coordinators,
    workers: &Workers,
    progress: &Progress,
    state: &str,
) -> String {
    let mut cluster: Value =
        serde_json::from_str(&text(coordinators, workers, progress)).expect("it was written so");
    cluster["state"] = json!(state);
    for coordinator in cluster["coordinators"].as_array_mut().into_iter().flatten() {
        coordinator["leader"] = json!(false);
    }
    for worker in cluster["workers"].as_array_mut().into_iter().flatten() {
        if worker["state"] != "lost" && worker["state"] != "left" {
            worker["state"] = json!("ended");
        }
    }
    format!("{cluster:#}\n")
}

fn coordinator(listed: ListedCoordinator<'_>) -> Value {
    let ListedCoordinator { process, id, leads } = listed;
    let (pid, address, api) = (process.pid(), process.address(), process.api());
    json!({ "id": id, "pid": pid, "address": address, "api": api, "leader": leads })
}

fn registered(view: &WorkerView, workers: &Workers) -> Value {
    let living = workers.living().iter().map(Process::naming).find(|ours| ours.name == view.name);
    let label = workers.namings().find(|naming| naming.name == view.name);
    let mut listed = json!(view);
    listed.as_object_mut().expect("a view has keys").remove("telemetry");
    listed["pid"] = json!(living.map(|naming| naming.pid));
    listed["label"] = json!(label.map(|naming| &naming.label));
    listed
}

fn ended(EndedProcess { naming, address, .. }: &EndedProcess) -> Value {
    let Naming { label, name, .. } = naming;
    json!({
        "id": null, "pid": null, "address": address, "rank": null,
        "state": "lost", "name": name, "zone": null, "label": label, "device": null,
    })
}

fn starting(process: &Process) -> Value {
    let Naming { label, pid, name, .. } = process.naming();
    json!({
        "id": null, "pid": pid, "address": process.address(), "rank": null,
        "state": "starting", "name": name, "zone": null, "label": label, "device": null,
    })
}
