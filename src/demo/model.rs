//! The content of the demo's view, gathered from a cluster under way.
//!
//! In: the launcher's processes and the coordinator's answers. Out: a [`ViewContent`], plain data.
//! This module does not know how it looks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_transport::protocol::outcome::{WorkerState, WorkerView};
use everstep_transport::protocol::{NodeName, Rank, RunSpec, WorkerId};

use crate::cluster::{Cluster, GenerationReport, Naming, Progress};
use crate::progress::{apart, lacking, paused};

/// The content of the view.
#[derive(Clone, Debug, Default)]
pub(super) struct ViewContent {
    /// The name of the run, as the header shows it.
    pub(super) run: String,
    /// The number of steps of the whole run.
    pub(super) steps: u64,
    /// Steps that are settled.
    pub(super) step: u64,
    /// The loss of each settled step, nats.
    pub(super) losses: Vec<f64>,
    /// Targets a second over the last steps.
    pub(super) tokens_per_second: Option<f64>,
    /// The time since the demo began.
    pub(super) elapsed: Duration,
    /// The workers, each with a line of its own.
    pub(super) rows: Vec<WorkerRow>,
    /// The row that the keys act on.
    pub(super) chosen: usize,
    /// The user's names of the workers.
    pub(super) names: BTreeMap<WorkerId, String>,
    /// The generations so far.
    pub(super) generations: Vec<GenerationReport>,
    /// Present problems, one sentence each.
    pub(super) warnings: Vec<String>,
    /// Past events, one sentence each.
    pub(super) story: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct WorkerRow {
    /// The user's name for it.
    pub(super) label: String,
    /// The name of its node.
    pub(super) name: NodeName,
    /// Its process id, if this program started it.
    pub(super) pid: Option<u32>,
    /// Its id, once it has registered.
    pub(super) worker: Option<WorkerId>,
    /// Its rank, if it is a member.
    pub(super) rank: Option<Rank>,
    /// How many data shards it computes in each step.
    pub(super) data_shards: u32,
    /// Its state for the user.
    pub(super) state: RowState,
}

/// The state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowState {
    /// Its process has just begun.
    Starting,
    /// The user has stopped its process.
    Paused,
    /// The state that the coordinator knows.
    Seen(WorkerState),
}

/// Steps over which the throughput is averaged.
const RECENT: usize = 20;

impl ViewContent {
    /// The model of a cluster. The user has stopped the processes in `paused`, and the keys act on
    /// `chosen`.
    pub(super) fn of(
        run: &RunSpec,
        cluster: &Cluster,
        paused: &BTreeSet<u32>,
        chosen: Option<&NodeName>,
    ) -> Self {
        let progress = cluster.progress();
        let rows = rows(&cluster.processes().collect::<Vec<_>>(), &progress.workers, paused);
        let chosen = rows.iter().position(|row| Some(&row.name) == chosen);
        Self {
            run: run.name.clone(),
            steps: run.steps,
            step: progress.step().0,
            losses: progress.lines.iter().map(|line| line.loss).collect(),
            tokens_per_second: tokens_per_second(progress),
            chosen: chosen.unwrap_or_default(),
            rows,
            generations: progress.generations().to_vec(),
            names: progress.names.clone(),
            warnings: warnings(progress),
            ..Self::default()
        }
    }

    /// The row that the keys act on.
    pub(super) fn row(&self) -> Option<&WorkerRow> {
        self.rows.get(self.chosen)
    }
}

/// A row for each process, then one for each worker that was started by hand.
fn rows(processes: &[&Naming], views: &[WorkerView], paused: &BTreeSet<u32>) -> Vec<WorkerRow> {
    let ours = processes.iter().map(|naming| {
        // An evicted process registers again, under a newer id.
        let view = views.iter().rev().find(|view| view.name == naming.name);
        let state = match view {
            _ if paused.contains(&naming.pid) => RowState::Paused,
            None => RowState::Starting,
            Some(view) => RowState::Seen(view.state),
        };
        WorkerRow {
            label: naming.label.clone(),
            name: naming.name.clone(),
            pid: Some(naming.pid),
            worker: view.map(|view| view.worker),
            rank: view.and_then(|view| view.rank),
            data_shards: view.map_or(0, |view| view.data_shards),
            state,
        }
    });
    let lives = |view: &&WorkerView| !matches!(view.state, WorkerState::Lost | WorkerState::Left);
    let stranger = |view: &&WorkerView| !processes.iter().any(|naming| naming.name == view.name);
    let strangers = views.iter().filter(lives).filter(stranger).map(|view| WorkerRow {
        label: format!("worker {}", view.number),
        name: view.name.clone(),
        pid: None,
        worker: Some(view.worker),
        rank: view.rank,
        data_shards: view.data_shards,
        state: RowState::Seen(view.state),
    });
    ours.chain(strangers).collect()
}

fn tokens_per_second(progress: &Progress) -> Option<f64> {
    let recent = &progress.lines[progress.lines.len().saturating_sub(RECENT)..];
    let seconds: f64 = recent.iter().map(|line| line.seconds).sum();
    let tokens: u64 = recent.iter().map(|line| line.tokens).sum();
    (seconds > 0.0).then(|| tokens as f64 / seconds)
}

fn warnings(progress: &Progress) -> Vec<String> {
    let waiting = progress.waiting.as_ref().map(|waiting| {
        let (members, wanted) = (waiting.members, waiting.wanted);
        format!("waiting: {members} of at least {wanted} workers take part")
    });
    let rests = paused(progress);
    let owners = progress.owners_awaited.as_ref().map(|awaited| format!("waiting: {awaited}"));
    let model = progress.model_awaited.as_ref().map(|awaited| format!("waiting: {awaited}"));
    let pairs = progress.unreachable.iter().map(|pair| apart(*pair, progress));
    let waits = waiting.into_iter().chain(rests).chain(owners);
    waits.chain(model).chain(pairs).chain(lacking(progress)).collect()
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::Device;

    use super::*;

    fn name(name: &str) -> NodeName {
        NodeName::parse(name).expect("a name")
    }

    fn view(worker: u64, node: &str, state: WorkerState) -> WorkerView {
        WorkerView {
            worker: WorkerId(worker),
            number: worker as u32,
            name: name(node),
            address: "127.0.0.1:1".parse().expect("an address"),
            rank: None,
            data_shards: 0,
            zone: None,
            device: Device::default(),
            telemetry: None,
            state,
            retained: 0,
            waits_for: None,
            host: None,
            preemption: None,
        }
    }

    #[test]
    fn every_process_has_a_lane_and_so_has_every_living_worker_that_came_by_hand() {
        let naming = |label: &str, pid, node| Naming {
            label: label.into(),
            pid,
            name: name(node),
            id: None,
        };
        let [evicted, stopped, new] =
            [naming("worker-1", 11, "a"), naming("worker-2", 12, "b"), naming("worker-3", 13, "c")];
        let views = [
            view(1, "a", WorkerState::Lost),
            view(2, "b", WorkerState::Training),
            view(3, "gone", WorkerState::Lost),
            view(4, "a", WorkerState::Learning),
            view(5, "by-hand", WorkerState::Training),
        ];
        let rows = rows(&[&evicted, &stopped, &new], &views, &BTreeSet::from([12]));
        let shown: Vec<_> =
            rows.iter().map(|row| (row.label.as_str(), row.worker, row.state)).collect();
        assert_eq!(
            shown,
            [
                ("worker-1", Some(WorkerId(4)), RowState::Seen(WorkerState::Learning)),
                ("worker-2", Some(WorkerId(2)), RowState::Paused),
                ("worker-3", None, RowState::Starting),
                ("worker 5", Some(WorkerId(5)), RowState::Seen(WorkerState::Training)),
            ]
        );
    }
}
