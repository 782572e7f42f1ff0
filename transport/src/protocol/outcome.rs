//! What a coordinator tells whoever watches a run: events, the cluster, the result.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

mod told;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use rkyv::{Archive, Deserialize, Serialize};

use super::cluster::{CoordinatorId, RunId};
use super::device::{Device, Telemetry};
use super::generation::Cause;
use super::ids::{
    DataShard, Generation, HostName, NodeName, Rank, Shard, Step, Term, WorkerId, WorkerLabel, Zone,
};
use super::model::{ModelAwaited, ModelPlace, WriteFailure};
use super::step::MetricsLine;

/// One line of `events.jsonl`.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Event {
    /// Its number, from 1.
    pub number: u64,
    /// Wall clock of the coordinator.
    pub unix_ms: u64,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A run was submitted.
    Submitted {
        /// Its name.
        run: String,
    },
    /// A worker registered.
    Registered {
        /// Its id.
        worker: WorkerId,
        /// Its node.
        name: NodeName,
        /// What people call it: 1 for the first of the cluster. A process keeps its number.
        #[serde(rename = "worker_number")]
        number: u32,
    },
    /// A worker was refused.
    Refused {
        /// Its node.
        name: NodeName,
        /// Why.
        reason: String,
    },
    /// A coordinator leads from now on: every change is its to make.
    Leading {
        /// Its term.
        term: Term,
        /// Its id.
        coordinator: CoordinatorId,
    },
    /// A generation began.
    Generation {
        /// Its number.
        generation: Generation,
        /// Why.
        cause: Cause,
        /// Its members, in rank order.
        workers: Vec<WorkerId>,
        /// The last step that is part of its history.
        at_step: Step,
        /// A step was under way, and is done again.
        redone: bool,
        /// It starts no step: there are fewer members than the run needs.
        waiting: bool,
        /// Runs of parameter shards with fewer owners than the run asks for: the first, and how
        /// many.
        under_protected: Vec<(Shard, u32)>,
    },
    /// A worker became a member of a run that was under way.
    Joined {
        /// Its id.
        worker: WorkerId,
    },
    /// A worker was asked to leave.
    Draining {
        /// Its id.
        worker: WorkerId,
    },
    /// It has left.
    Left {
        /// Its id.
        worker: WorkerId,
    },
    /// A worker is gone.
    Lost {
        /// Its id.
        worker: WorkerId,
        /// How that was noticed.
        reason: String,
        /// From its last sign of life until its loss was noticed, milliseconds.
        detect_ms: u64,
        /// From that notice until this event, milliseconds: what the survivors had to say took so
        /// long.
        pause_ms: u64,
    },
    /// Two members cannot reach each other, and each holds parameter shards that no other member
    /// has: neither can be left out. Told once of each pair.
    Unreachable {
        /// The two.
        workers: (WorkerId, WorkerId),
    },
    /// Every owner of a parameter shard was lost: the run went back.
    Rollback {
        /// The last step that was committed.
        from: Step,
        /// The step of the checkpoint from which the run goes on; 0 is the initial state.
        to: Step,
        /// Which shards, and whose.
        reason: String,
    },
    /// An operator went on from one coordinator's directory, since most of them were lost for good.
    /// Entries that only the lost ones had are gone.
    Recovered {
        /// The coordinator that is left.
        coordinator: CoordinatorId,
    },
    /// A worker cannot compute the run: it waits for the next one, or tries again.
    Unable {
        /// Its node.
        name: NodeName,
        /// Why.
        reason: String,
        /// Where the reason lies.
        inability: Inability,
    },
    /// The model's file could not be written; the run waits until it is.
    Unwritten {
        /// Which worker tried, where, and why it failed.
        #[serde(flatten)]
        failure: WriteFailure,
    },
    /// No worker of the run has a directory to write the model to.
    NoStore,
    /// No process has the metrics lines of these steps any more: reports go on without them.
    LinesLost {
        /// The first of the steps.
        from: Step,
        /// The last of them.
        to: Step,
    },
    /// The run is complete.
    Complete {
        /// Its last step.
        step: Step,
        /// Where its model is durable.
        model: Option<ModelPlace>,
    },
    /// The run failed.
    Failed {
        /// Why.
        reason: String,
    },
    /// No device of the run gets on, so no other worker could take the place of one. Told once,
    /// until a device has gone on.
    Standstill {
        /// Which worker's device computes one data shard for how long.
        reason: String,
    },
}

/// Where the reason lies why a worker cannot compute a run.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Inability {
    /// In the run: it would recur on every worker.
    Run,
    /// In the worker's place, such as a lack of memory: the worker tries again, and another one may
    /// be able to compute the run meanwhile.
    Place,
}

/// What a worker is doing.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// Registered, and waits for its generation.
    Waiting,
    /// Is brought up to date, and takes no part yet.
    Learning,
    /// A member.
    Training,
    /// A member that is suspected to be gone.
    Suspected,
    /// Drains.
    Leaving,
    /// Has trained the last step and reported its result, or its run is over.
    Finished,
    /// Gone.
    Lost,
    /// Has drained.
    Left,
}

/// A worker as the coordinator sees it.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq)]
pub struct WorkerView {
    /// Its id.
    #[serde(rename = "id")]
    pub worker: WorkerId,
    /// What people call it: 1 for the first of the cluster. A process keeps its number.
    pub number: u32,
    /// Its node.
    pub name: NodeName,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its rank in the current generation.
    pub rank: Option<Rank>,
    /// How many data shards it computes in each step.
    pub data_shards: u32,
    /// What its machine may fail together with, if it stated that.
    pub zone: Option<Zone>,
    /// What it computes on.
    pub device: Device,
    /// How its GPU did a moment ago, if it is there and its GPU tells.
    pub telemetry: Option<Telemetry>,
    /// What it does.
    pub state: WorkerState,
    /// If it is to leave: of so many parameter shards no worker that stays has a copy yet.
    pub retained: u32,
    /// What its joining or leaving waits for, in words, where that takes long.
    pub waits_for: Option<String>,
    /// Its machine, if it has said so.
    pub host: Option<HostName>,
}

impl WorkerView {
    /// What people call it.
    pub fn label(&self) -> WorkerLabel {
        WorkerLabel { number: self.number, worker: self.worker, host: self.host.clone() }
    }
}

/// Validation of one data shard's part of the held-out samples.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct PartEvaluation {
    /// The part, numbered as the data shards.
    pub part: DataShard,
    /// How many samples it has.
    pub samples: u64,
    /// Their mean loss, nats.
    pub loss: f64,
    /// Their mean metric, if the model has one.
    pub metric: Option<f64>,
}

/// What a worker reports when it has finished.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct WorkerResult {
    /// Its id.
    pub worker: WorkerId,
    /// Data shards computed, over all steps.
    pub data_shards_computed: u64,
    /// Payload bytes sent to other members.
    pub bytes_sent: u64,
    /// Payload bytes received from other members.
    pub bytes_received: u64,
    /// Seconds in forward and backward passes.
    pub compute_seconds: f64,
    /// CPU seconds of its process since it became a member.
    pub cpu_seconds: f64,
    /// Seconds in which the device waited for the network.
    pub exposed_communication_seconds: f64,
    /// Bytes of master weights and optimizer state that it holds.
    pub optimizer_bytes: u64,
    /// Largest resident set of its process.
    pub peak_rss_bytes: u64,
    /// Messages and chunks refused because they were outside the plan.
    pub refused: u64,
    /// UDP payload the path to the peers carries, bytes: the smallest over its links.
    pub path_mtu: u64,
    /// Socket buffers as the kernel granted them, bytes: receive, send.
    pub socket_buffers: (u64, u64),
    /// QUIC packets lost on its links.
    pub lost_packets: u64,
    /// Steps that were computed again after a failure.
    pub steps_redone: u64,
    /// Floating-point operations that training on one sample takes at least, if its model says so.
    pub flops_per_sample: Option<u64>,
    /// Its validation parts.
    pub evaluations: Vec<PartEvaluation>,
    /// BLAKE3 of every parameter shard that it owns: step, master weights, moments.
    pub digests: Vec<(Shard, [u8; 32])>,
}

/// How a run stands.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It has not begun, or goes on.
    Running,
    /// It is complete.
    Complete(Vec<WorkerResult>),
    /// It failed.
    Failed {
        /// The worker at fault, where one is.
        name: Option<NodeName>,
        /// Why.
        reason: String,
    },
}

/// The coordinator's answer to a watcher: what is new since the numbers it named.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Update {
    /// The run that this tells of, once there is one. If it is not the one that the watcher named,
    /// there are no lines here: that one is over.
    pub run: Option<RunId>,
    /// The newest step that the watcher named: lines follow it. Where one is missing, it is lost.
    pub step: Step,
    /// The newest event that the watcher named: events follow it.
    pub event: u64,
    /// Lines of settled steps, in order.
    pub lines: Vec<MetricsLine>,
    /// Events, in order.
    pub events: Vec<Event>,
    /// Workers by id: in the first answer on a link all that are told of, later those that are new
    /// or have changed since the answer before.
    pub workers: Vec<WorkerView>,
    /// Workers of earlier answers on this link that are told of no longer.
    pub forgotten: Vec<WorkerId>,
    /// Nodes of workers that wait for a run, a thousand at most.
    pub idle: Vec<NodeName>,
    /// Why the run's bits are not those of any other such run, if they are not: the workers' first
    /// gradients differ.
    pub divergence: Option<String>,
    /// What the run waits for, where it waits.
    pub waiting: Option<Waiting>,
    /// Whose return the run waits for, since nobody else holds their parameter shards.
    pub owners_awaited: Option<OwnersAwaited>,
    /// What the model of a trained run waits for.
    pub model_awaited: Option<ModelAwaited>,
    /// Why workers cannot compute the run: where it has not begun all that cannot, and where it has
    /// those whose place is the reason.
    pub unable: Vec<(NodeName, String)>,
    /// Pairs of members that cannot reach each other, of which neither can be left out: no step
    /// commits before they can.
    pub unreachable: Vec<(WorkerId, WorkerId)>,
    /// How the run stands.
    pub outcome: Outcome,
}

/// A run that starts no step: too few workers take part.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// How many take part, or would.
    pub members: u32,
    /// How many it needs.
    pub wanted: u32,
    /// Since when: wall clock of the coordinator, milliseconds of Unix time.
    pub since_unix_ms: u64,
}

/// A run that starts no step: nobody shows some parameter shards, and owners of them may live.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct OwnersAwaited {
    /// How many parameter shards.
    pub shards: u32,
    /// The silent owners, by id.
    pub owners: Vec<WorkerId>,
    /// Since when: wall clock of the coordinator, milliseconds of Unix time.
    pub since_unix_ms: u64,
    /// The silent owners, as people call them.
    pub workers: Vec<WorkerLabel>,
}

impl fmt::Display for OwnersAwaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let called: Vec<String> = self.workers.iter().map(ToString::to_string).collect();
        let (is, has, it) = match called.len() {
            1 => ("is", "has", "it"),
            _ => ("are", "have", "they"),
        };
        let (called, shards) = (called.join(", "), self.shards);
        let plural = if shards == 1 { "" } else { "s" };
        write!(
            f,
            "{called} {is} silent, and no other worker holds {shards} parameter \
             shard{plural}; if {it} {has} ended for good, `everstep run rollback --step 0` gives \
             up what {it} held"
        )
    }
}

/// The state hash of a complete run: BLAKE3 over its last step (u64, little-endian) and the digest
/// of every parameter shard, in shard order.
///
/// It does not depend on who owned what, so it is the same for any number of workers. `None` where
/// the results are not those of one state: two owners of a shard disagree, or a shard is missing
/// between others.
pub fn state_hash(steps: u64, results: &[WorkerResult]) -> Option<[u8; 32]> {
    let mut digests = BTreeMap::new();
    for (shard, digest) in results.iter().flat_map(|result| &result.digests) {
        if digests.insert(shard, digest).is_some_and(|other| other != digest) {
            return None;
        }
    }
    let (Shard(last), _) = digests.last_key_value()?;
    let whole = *last as usize + 1 == digests.len();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&steps.to_le_bytes());
    for digest in digests.values() {
        hasher.update(digest.as_slice());
    }
    whole.then(|| *hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(digests: &[(u32, u8)]) -> WorkerResult {
        let digests = digests.iter().map(|(shard, byte)| (Shard(*shard), [*byte; 32])).collect();
        WorkerResult { digests, ..WorkerResult::default() }
    }

    #[test]
    fn the_state_hash_does_not_depend_on_who_owns_what() {
        let alone = state_hash(3, &[result(&[(0, 7), (1, 8), (2, 9)])]);
        assert!(alone.is_some());
        let shared = [result(&[(1, 8), (2, 9)]), result(&[(0, 7), (2, 9)])];
        assert_eq!(state_hash(3, &shared), alone);
        assert_ne!(state_hash(4, &shared), alone);
    }

    #[test]
    fn results_that_are_not_of_one_state_have_no_hash() {
        for results in [
            vec![],
            vec![result(&[])],
            vec![result(&[(0, 7)]), result(&[(0, 8)])],
            vec![result(&[(0, 7), (2, 9)])],
        ] {
            assert_eq!(state_hash(3, &results), None);
        }
    }
}
