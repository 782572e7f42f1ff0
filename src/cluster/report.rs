//! The report of a run, as `--report` writes it. Later versions only add keys.

mod utilization;

use std::time::Duration;

use everstep_transport::protocol::figures::validation;
use everstep_transport::protocol::outcome::{WorkerResult, state_hash};
use everstep_transport::protocol::run::Units;
use everstep_transport::protocol::{Device, RunSpec, Shard, Step, WorkerId};
use serde::Serialize;

use super::{GenerationReport, Progress};

/// The report of a complete run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// BLAKE3 over the last step and, in order, each parameter shard's BLAKE3 of step, master
    /// weights and moments. Hexadecimal.
    pub state_hash: String,
    /// The number of steps that were committed.
    pub steps: u64,
    /// Steps that were computed again after a failure.
    pub steps_redone: u64,
    /// How many of the run's steps have no metrics line.
    pub steps_lost: u64,
    /// Committed steps that changed nothing, since their gradient was not finite.
    pub steps_skipped: u64,
    /// Samples of the plan that no committed partial sum contains.
    pub samples_lost: u64,
    /// Samples that committed partial sums contain more often than planned.
    pub samples_repeated: u64,
    /// The losses of training and of validation.
    pub loss: LossReport,
    /// The model's own metric over the held-out samples, if it has one.
    pub metric: Option<f64>,
    /// The units of the losses and of `tokens_per_second`.
    #[serde(flatten)]
    pub units: Units,
    /// Targets trained on, over the time from the first generation to the last commit.
    pub tokens_per_second: f64,
    /// The share of the GPUs' peak performance that the model's own operations took. Null if a
    /// worker computed on a device without a known peak, such as a CPU, or if the model's
    /// operations were not counted.
    pub model_flops_utilization: Option<f64>,
    /// All generations, including the first.
    pub generations: Vec<GenerationReport>,
    /// All returns to an earlier step.
    pub rollbacks: Vec<RollbackReport>,
    /// When parameter shards had fewer owners than the run asks for.
    pub under_protected: Vec<LapseReport>,
    /// Workers that the launcher started in place of others.
    pub respawned: u32,
    /// How often the launcher started the coordinator again.
    pub coordinator_restarts: u32,
    /// The workers that finished.
    pub workers: Vec<WorkerReport>,
    /// Whether the bits are those of any other run of the same specification.
    pub bitwise: bool,
    /// Why they are not, in words. Null if they are.
    pub bitwise_reason: Option<String>,
    /// Where the trained model is durable: a path, or the URL of an object. Null if the
    /// coordinators have not told of it.
    pub model: Option<String>,
    /// The machine of that path. Null for a URL.
    pub model_host: Option<String>,
    /// From the start of the cluster to the end of the run.
    pub wall_seconds: f64,
}

/// Mean losses of a target.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LossReport {
    /// The loss of the first step.
    pub first: f64,
    /// The loss of the last step.
    pub last: f64,
    /// The loss of the held-out samples, at the end.
    pub validation: Option<f64>,
    /// The loss of a bigram model on the held-out text.
    pub bigram: Option<f64>,
}

/// A time at which the run went back.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RollbackReport {
    /// The last step that was committed.
    pub from: Step,
    /// The step from which the run went on. 0 is the initial state.
    pub to: Step,
    /// The lost parameter shards, and their owners.
    pub reason: String,
    /// The time: wall clock of the coordinator, milliseconds of Unix time.
    pub unix_ms: u64,
}

/// A time in which some parameter shards had fewer owners than the run asks for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LapseReport {
    /// The first of the shards.
    pub first: Shard,
    /// The number of shards.
    pub count: u32,
    /// When it began: wall clock of the coordinator, milliseconds of Unix time.
    pub from_unix_ms: u64,
    /// How long it lasted, to the end of the run at most.
    pub seconds: f64,
}

/// A worker that finished.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerReport {
    /// The id of the worker's registration.
    pub id: WorkerId,
    /// The device on which it computed.
    pub device: Option<Device>,
    /// Data shards computed, over all steps.
    pub data_shards_computed: u64,
    /// Tensor bytes sent to other members.
    pub bytes_sent: u64,
    /// Tensor bytes received from other members.
    pub bytes_received: u64,
    /// Seconds in forward and backward passes.
    pub compute_seconds: f64,
    /// CPU seconds of its process while it was a member.
    pub cpu_seconds: f64,
    /// Seconds in which the device waited for other members.
    pub exposed_communication_seconds: f64,
    /// Bytes of master weights and optimizer state.
    pub optimizer_bytes: u64,
    /// Largest resident set of its process.
    pub peak_rss_bytes: u64,
    /// Messages and chunks that it refused.
    pub refused: u64,
    /// The smallest UDP payload over its links, bytes.
    pub path_mtu: u64,
    /// Socket buffers as the kernel granted them, bytes: that for packets that have arrived, then
    /// that for packets that have not left.
    pub socket_buffers: [u64; 2],
    /// QUIC packets lost on its links.
    pub lost_packets: u64,
}

impl Report {
    pub(super) fn new(run: &RunSpec, progress: &Progress, wall: Duration) -> Self {
        let results = progress.results.as_deref().unwrap_or_default();
        let (settled, generations) = (progress.line_sums.settled(), progress.generations());
        let hash = state_hash(run.steps, results);
        // The time of steps that a rollback took back counts too.
        let seconds: f64 = progress.line_sums.seconds().values().sum();
        let (validation, metric) = validation(results);
        Self {
            state_hash: hash.map(hex).unwrap_or_default(),
            steps: settled.steps,
            steps_redone: generations.iter().filter(|generation| generation.redone).count() as u64,
            steps_lost: steps_lost(run, progress),
            steps_skipped: settled.skipped,
            samples_lost: settled.samples_lost,
            samples_repeated: settled.samples_repeated,
            loss: LossReport {
                first: settled.first_loss.unwrap_or(f64::NAN),
                last: settled.last_loss.unwrap_or(f64::NAN),
                validation,
                bigram: None,
            },
            metric,
            units: run.model.units(),
            tokens_per_second: settled.tokens as f64 / seconds,
            model_flops_utilization: utilization::of_run(run, progress),
            generations: generations.to_vec(),
            rollbacks: progress.event_sums.rollbacks.clone(),
            under_protected: lapses(progress),
            respawned: progress.respawned,
            coordinator_restarts: progress.coordinator_restarts,
            workers: results.iter().map(|result| worker(result, progress)).collect(),
            bitwise: progress.divergence.is_none(),
            bitwise_reason: progress.divergence.clone(),
            model: progress.model().map(|place| place.path.clone()),
            model_host: progress
                .model()
                .map(|place| place.host.clone())
                .filter(|it| !it.is_empty()),
            wall_seconds: wall.as_secs_f64(),
        }
    }
}

/// How many of the trained steps have no line. All steps of a complete run were trained.
fn steps_lost(run: &RunSpec, progress: &Progress) -> u64 {
    let trained = progress.results.as_ref().map_or(progress.step().0, |_| run.steps);
    trained.saturating_sub(progress.line_sums.settled().steps)
}

fn lapses(progress: &Progress) -> Vec<LapseReport> {
    let end = progress.event_sums.newest_unix_ms;
    let lapses = progress.protection.lapses().into_iter().map(|lapse| LapseReport {
        first: lapse.first,
        count: lapse.count,
        from_unix_ms: lapse.from_unix_ms,
        seconds: lapse.until_unix_ms.unwrap_or(end).saturating_sub(lapse.from_unix_ms) as f64 / 1e3,
    });
    lapses.collect()
}

fn worker(result: &WorkerResult, progress: &Progress) -> WorkerReport {
    WorkerReport {
        id: result.worker,
        device: progress.devices.get(&result.worker).cloned(),
        data_shards_computed: result.data_shards_computed,
        bytes_sent: result.bytes_sent,
        bytes_received: result.bytes_received,
        compute_seconds: result.compute_seconds,
        cpu_seconds: result.cpu_seconds,
        exposed_communication_seconds: result.exposed_communication_seconds,
        optimizer_bytes: result.optimizer_bytes,
        peak_rss_bytes: result.peak_rss_bytes,
        refused: result.refused,
        path_mtu: result.path_mtu,
        socket_buffers: [result.receive_buffer, result.send_buffer],
        lost_packets: result.lost_packets,
    }
}

fn hex(bytes: [u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
