//! The thread that reads and writes checkpoints.
//!
//! Input: [`StoreJob`]s in order. Output: [`StoreReport`]s. A store that fails is tried again,
//! after pauses that grow, and a report says so once. The thread has the lowest priority of the
//! worker's threads: training never waits for it. It knows no members and no votes.

mod claim;
mod manifest;
mod model;
mod part;
mod persistent_store;
mod restore;

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use everstep_checkpoint::claims::Claim;
use everstep_checkpoint::part::reader::CheckpointReader;
use everstep_checkpoint::store::StoreError;
use everstep_transport::protocol::{CheckpointId, Generation, ManifestToWrite, SavedPart, Shard};

use self::claim::ClusterClaim;
use self::persistent_store::{Abandoned, Attempt, PersistentStore, Reports};
use crate::device::checkpoint_facts::CheckpointFacts;
use crate::step::event::{PartToSave, StoreJob, StoreReport};

/// A test may kill the worker here: see `failpoint::STORE_POINTS`.
fn pass_point(_point: &str) {
    #[cfg(feature = "failpoints")]
    super::failpoint::at_store(_point);
}

/// Less than the device's, so that saving gives way to training.
const NICE: i32 = 10;

/// Takes reports. Returns false once nothing listens any more.
pub type TakeReport = Box<dyn FnMut(StoreReport) -> bool + Send>;

/// Starts the thread of a worker of this cluster. It ends when the sender is dropped.
pub fn start(
    facts: CheckpointFacts,
    cluster: &ClusterIdentity,
    take: TakeReport,
) -> Sender<StoreJob> {
    let (jobs, received) = channel();
    let builder = thread::Builder::new().name("store".into());
    let ClusterIdentity { nonce, words } = cluster.clone();
    let claim = Claim { run: facts.run_digest.clone(), nonce, cluster: words };
    let run = move || {
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
        StoreThread::new(facts, claim, received, take).run();
    };
    builder.spawn(run).expect("the system gives a process a thread");
    jobs
}

/// What tells a cluster from any other one that uses the same store.
#[derive(Clone, Debug)]
pub struct ClusterIdentity {
    /// A digest of the certificate of its authority: it outlives all of its processes.
    pub nonce: String,
    /// The cluster in words.
    pub words: String,
}

struct StoreThread {
    facts: CheckpointFacts,
    claim: ClusterClaim,
    store: PersistentStore,
    reports: Reports,
}

impl StoreThread {
    fn new(
        facts: CheckpointFacts,
        claim: Claim,
        jobs: Receiver<StoreJob>,
        take: TakeReport,
    ) -> Self {
        let path = facts.run.checkpoint.as_ref().map_or("", |spec| spec.path.as_str());
        let store = PersistentStore::new(path, jobs);
        let claim = ClusterClaim::new(claim);
        Self { facts, claim, store, reports: Reports::new(take) }
    }

    fn run(mut self) {
        self.store.open_early(&mut self.reports);
        while let Some(job) = self.store.next() {
            let done = match job {
                StoreJob::Save(part) => self.save(&part),
                StoreJob::Manifest(order) => self.manifest(&order),
                StoreJob::Restore { generation, id, shards } => {
                    self.restore((generation, id), &shards)
                }
                StoreJob::Model { generation } => self.model(generation),
            };
            if done.is_none() {
                return;
            }
        }
    }

    fn unsaved(&mut self, id: CheckpointId, reason: String) -> Option<()> {
        self.reports.give(StoreReport::Unsaved { id, reason })
    }

    fn save(&mut self, part: &PartToSave) -> Option<()> {
        let (id, began) = (CheckpointId::of(&part.commit), Instant::now());
        if let Some(reason) = part::changed_in_memory(part) {
            return self.unsaved(id, reason);
        }
        let Self { facts, claim, store, reports } = self;
        let replaces = |job: &StoreJob| matches!(job, StoreJob::Save(_) | StoreJob::Restore { .. });
        let written = store
            .persist(reports, replaces, |store, _| part::write_part(store, facts, claim, part));
        match written {
            Ok(summary) => {
                let write_ms = began.elapsed().as_millis() as u64;
                let (path, step) = (summary.name, id.step.0);
                tracing::debug!(step, %path, bytes = summary.bytes, write_ms, "part saved");
                let shards = summary.shards.iter().map(|(shard, digest)| (*shard, digest.0));
                reports.give(StoreReport::Saved(SavedPart {
                    commit: part.commit.clone(),
                    generation: part.generation,
                    bytes: summary.bytes,
                    head_bytes: summary.head_bytes,
                    head_digest: summary.head_blake3.0,
                    shards: shards.collect(),
                    write_ms,
                }))
            }
            Err(Abandoned::Replaced(reason) | Abandoned::Refused(reason)) => {
                self.unsaved(id, reason)
            }
            Err(Abandoned::Ended) => None,
        }
    }

    fn manifest(&mut self, order: &ManifestToWrite) -> Option<()> {
        let id = CheckpointId::of(&order.parts.first()?.part.commit);
        let Self { facts, claim, store, reports } = self;
        // Another member can write the manifest, but the model comes after it.
        let replaces = |job: &StoreJob| !matches!(job, StoreJob::Model { .. });
        let written = store
            .persist(reports, replaces, |store, _| manifest::carry_out(order, store, facts, claim));
        match written {
            Ok(written) => reports.give(StoreReport::Manifest(written)),
            Err(Abandoned::Replaced(reason) | Abandoned::Refused(reason)) => {
                self.unsaved(id, reason)
            }
            Err(Abandoned::Ended) => None,
        }
    }

    fn restore(
        &mut self,
        (generation, id): (Generation, CheckpointId),
        shards: &[Shard],
    ) -> Option<()> {
        let Self { facts, claim, store, reports } = self;
        let replaces = |job: &StoreJob| matches!(job, StoreJob::Restore { .. });
        let read = store.persist(reports, replaces, |store, _| {
            restore::find(store, id)?;
            claim.ask_to_read(store)?;
            restore::settle(restore::read_manifest(store, facts, id)).map(Attempt::Done)
        });
        let damaged = |reason| StoreReport::Damaged { generation, id, reason };
        let manifest = match read {
            Ok(Ok(manifest)) => manifest,
            Ok(Err(reason)) => return reports.give(damaged(reason)),
            Err(Abandoned::Replaced(_) | Abandoned::Refused(_)) => return Some(()),
            Err(Abandoned::Ended) => return None,
        };
        let mut left: VecDeque<Shard> = shards.iter().copied().collect();
        let mut is_listened_to = true;
        let read = store.persist(reports, replaces, |store, reports| {
            let mut reader = CheckpointReader::new(store, &manifest);
            while let Some(shard) = left.front().filter(|_| is_listened_to) {
                match restore::settle(restore::read_shard(
                    store,
                    &mut reader,
                    (generation, id),
                    *shard,
                ))? {
                    Ok(restored) => is_listened_to = reports.give(restored).is_some(),
                    Err(reason) => return Ok(Attempt::Done(Err(reason))),
                }
                left.pop_front();
            }
            Ok(Attempt::Done(Ok(())))
        });
        match read {
            Ok(Ok(())) => is_listened_to.then_some(()),
            Ok(Err(reason)) => reports.give(damaged(reason)),
            Err(Abandoned::Replaced(_) | Abandoned::Refused(_)) => Some(()),
            Err(Abandoned::Ended) => None,
        }
    }

    /// Puts the trained model into the store.
    fn model(&mut self, generation: Generation) -> Option<()> {
        let Self { facts, claim, store, reports } = self;
        let place = model::place_in(facts.run.checkpoint.as_ref()?);
        // A restore means that the last step is undone.
        let replaces = |job: &StoreJob| matches!(job, StoreJob::Restore { .. });
        let stored = store.persist(reports, replaces, |store, _| {
            let Some(path) = &facts.model else {
                return Err(StoreError::refuse(store.place(), "this worker has no file to copy"));
            };
            claim.insist(store)?;
            pass_point("model.due");
            model::put(store, path)?;
            pass_point("model.placed");
            Ok(Attempt::Done(()))
        });
        match stored {
            Ok(()) => {
                facts.model.iter().for_each(|path| model::remove_passing(path));
                tracing::info!(%place, "the model is in the store");
                reports.give(StoreReport::Stored { generation, place })
            }
            Err(Abandoned::Replaced(_) | Abandoned::Refused(_)) => Some(()),
            Err(Abandoned::Ended) => None,
        }
    }
}

#[cfg(test)]
mod tests;
