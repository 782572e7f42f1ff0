//! The thread that reads and writes checkpoints.
//!
//! Input: [`StoreJob`]s in order. Output: [`StoreReport`]s. A store that fails is tried again,
//! after pauses that grow, and a report says so once. The thread has the lowest priority of the
//! worker's threads: training never waits for it. It knows no members and no votes.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use everstep_checkpoint::digest::Digest;
use everstep_checkpoint::history;
use everstep_checkpoint::manifest::{CommitRecord, Facts, MAX_MANIFEST_BYTES, Manifest};
use everstep_checkpoint::names::{ObjectName, PartName};
use everstep_checkpoint::part::PartSummary;
use everstep_checkpoint::part::reader::{CheckpointReader, ReadError};
use everstep_checkpoint::part::writer::{PartPlan, PartWriter};
use everstep_checkpoint::store::probe::probe;
use everstep_checkpoint::store::{self, Created, Environment, Place, Store, StoreError};
use everstep_kernels::buffer::Buffer;
use everstep_transport::protocol::{
    CheckpointId, Commit, Decision, Generation, ManifestToWrite, SavedPart, Shard, WorkerPart,
    WrittenManifest,
};

use crate::device::checkpoint_facts::CheckpointFacts;
use crate::step::event::{PartToSave, StoreJob, StoreReport};

/// Less than the device's, so that saving gives way to training.
const NICE: i32 = 10;
/// The pause after the first error of the store. Each further pause is twice as long.
const STORE_BACKOFF: Duration = Duration::from_secs(1);
/// The longest pause after an error.
const STORE_BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Takes reports. Returns false once nothing listens any more.
pub type TakeReport = Box<dyn FnMut(StoreReport) -> bool + Send>;

/// Starts the thread. It ends when the sender is dropped.
pub fn start(facts: CheckpointFacts, take: TakeReport) -> Sender<StoreJob> {
    let (jobs, received) = channel();
    let builder = thread::Builder::new().name("store".into());
    let run = move || {
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
        StoreThread::new(facts, received, take).run();
    };
    builder.spawn(run).expect("the system gives a process a thread");
    jobs
}

/// Why a job ends without a result.
#[derive(Debug)]
enum Abandoned {
    /// A later job takes its place. This was the store's last error.
    Replaced(String),
    /// The worker needs no store any more.
    Ended,
}

/// Why a shard or a manifest was not read.
enum Unread {
    /// The bytes are not those that were written.
    Damaged(String),
    /// The store did not answer.
    Store(StoreError),
}

impl From<StoreError> for Unread {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

struct StoreThread {
    facts: CheckpointFacts,
    jobs: Receiver<StoreJob>,
    /// Jobs that have come while another one was under way, in order.
    passed: VecDeque<StoreJob>,
    take: TakeReport,
    /// Opened and probed. None before, and after an error of opening.
    store: Option<Box<dyn Store>>,
    /// Whether a report has said that the store fails.
    is_failing: bool,
}

impl StoreThread {
    fn new(facts: CheckpointFacts, jobs: Receiver<StoreJob>, take: TakeReport) -> Self {
        let (passed, store, is_failing) = (VecDeque::new(), None, false);
        Self { facts, jobs, passed, take, store, is_failing }
    }

    fn run(mut self) {
        while let Some(job) = self.passed.pop_front().or_else(|| self.jobs.recv().ok()) {
            let done = match job {
                StoreJob::Save(part) => self.save(&part),
                StoreJob::Manifest(order) => self.manifest(&order),
                StoreJob::Restore { generation, id, shards } => {
                    self.restore((generation, id), &shards)
                }
            };
            if done.is_none() {
                return;
            }
        }
    }

    /// Hands a report over. None once the worker needs no store any more.
    fn report(&mut self, report: StoreReport) -> Option<()> {
        (self.take)(report).then_some(())
    }

    fn unsaved(&mut self, id: CheckpointId, reason: String) -> Option<()> {
        self.report(StoreReport::Unsaved { id, reason })
    }

    // Saving.

    fn save(&mut self, part: &PartToSave) -> Option<()> {
        let (id, began) = (CheckpointId::of(&part.commit), Instant::now());
        if let Some(reason) = changed_in_memory(part) {
            return self.unsaved(id, reason);
        }
        let replaces = |job: &StoreJob| matches!(job, StoreJob::Save(_) | StoreJob::Restore { .. });
        match self.persist(replaces, |store, facts| write_part(store, facts, part)) {
            Ok(summary) => {
                let write_ms = began.elapsed().as_millis() as u64;
                let (path, step) = (summary.name, id.step.0);
                tracing::debug!(step, %path, bytes = summary.bytes, write_ms, "part saved");
                let shards = summary.shards.iter().map(|(shard, digest)| (*shard, digest.0));
                self.report(StoreReport::Saved(SavedPart {
                    commit: part.commit.clone(),
                    bytes: summary.bytes,
                    head_bytes: summary.head_bytes,
                    head_digest: summary.head_blake3.0,
                    shards: shards.collect(),
                    write_ms,
                }))
            }
            Err(Abandoned::Replaced(reason)) => self.unsaved(id, reason),
            Err(Abandoned::Ended) => None,
        }
    }

    fn manifest(&mut self, order: &ManifestToWrite) -> Option<()> {
        let ManifestToWrite { parts, bitwise, delete, .. } = order;
        let commit = &parts.first()?.part.commit;
        let id = CheckpointId::of(commit);
        let manifest = match assemble(&self.facts, commit, parts, *bitwise) {
            Ok(manifest) => manifest,
            Err(reason) => return self.unsaved(id, reason),
        };
        let replaces = |_: &StoreJob| true; // another member can write the manifest
        let written = self.persist(replaces, |store, _| {
            delete.iter().try_for_each(|id| remove(store, *id))?;
            history::write(store, id, &order.lines, &order.events)?;
            store.put_new(&manifest.name(), &manifest.to_bytes()).and_then(
                |created| match created {
                    Created::Mine => Ok(true),
                    Created::Theirs => is_same(store, &manifest),
                },
            )
        });
        match written {
            Ok(true) => self.report(StoreReport::Manifest(WrittenManifest {
                id,
                bytes: manifest.bytes(),
                state_hash: manifest.state_hash.0,
                deleted: delete.clone(),
            })),
            Ok(false) => {
                let step = id.step;
                let reason = format!("another state of step {step} is in the store already");
                self.unsaved(id, reason)
            }
            Err(Abandoned::Replaced(reason)) => self.unsaved(id, reason),
            Err(Abandoned::Ended) => None,
        }
    }

    // Restoring.

    fn restore(
        &mut self,
        (generation, id): (Generation, CheckpointId),
        shards: &[Shard],
    ) -> Option<()> {
        let replaces = |job: &StoreJob| matches!(job, StoreJob::Restore { .. });
        let read = self.persist(replaces, |store, facts| settle(read_manifest(store, facts, id)));
        let manifest = match read {
            Ok(Ok(manifest)) => manifest,
            Ok(Err(reason)) => return self.report(StoreReport::Damaged { generation, id, reason }),
            Err(Abandoned::Replaced(_)) => return Some(()),
            Err(Abandoned::Ended) => return None,
        };
        let mut left: VecDeque<Shard> = shards.iter().copied().collect();
        while !left.is_empty() {
            let (mut given, mut is_listened_to) = (0, true);
            let Self { take, .. } = self;
            // `persist` needs all of the thread, so the reports are handed over by a queue.
            let mut take = std::mem::replace(take, Box::new(|_| false));
            let read = self.persist(replaces, |store, _| {
                let mut reader = CheckpointReader::new(store, &manifest);
                settle(left.iter().skip(given).try_for_each(|shard| {
                    let restored = read_shard(&mut reader, (generation, id), *shard)?;
                    given += 1;
                    is_listened_to &= take(restored);
                    Ok(())
                }))
            });
            self.take = take;
            left.drain(..given);
            match read {
                _ if !is_listened_to => return None,
                Ok(Ok(())) => {}
                Ok(Err(reason)) => {
                    return self.report(StoreReport::Damaged { generation, id, reason });
                }
                Err(Abandoned::Replaced(_)) => return Some(()),
                Err(Abandoned::Ended) => return None,
            }
        }
        Some(())
    }

    // Retries.

    /// Tries until the store does it, a job that replaces this one has come, or the worker ends.
    fn persist<T>(
        &mut self,
        replaces: impl Fn(&StoreJob) -> bool,
        mut attempt: impl FnMut(&dyn Store, &CheckpointFacts) -> Result<T, StoreError>,
    ) -> Result<T, Abandoned> {
        let mut pause = STORE_BACKOFF;
        loop {
            let tried = self
                .open()
                .and_then(|()| attempt(self.store.as_deref().expect("it was opened"), &self.facts));
            let error = match tried {
                Ok(done) => {
                    self.tell(None);
                    return Ok(done);
                }
                Err(error) => error,
            };
            let reason = error.to_string();
            self.tell(Some(reason.clone()));
            let until = Instant::now() + pause;
            pause = (2 * pause).min(STORE_BACKOFF_MAX);
            loop {
                if self.passed.iter().any(&replaces) {
                    return Err(Abandoned::Replaced(reason));
                }
                match self.jobs.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(job) => self.passed.push_back(job),
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return Err(Abandoned::Ended),
                }
            }
        }
    }

    /// Says whether the store fails, if that is news.
    fn tell(&mut self, error: Option<String>) {
        match (&error, self.is_failing) {
            (Some(reason), false) => {
                tracing::warn!(reason, "the store of checkpoints fails: it is tried again");
            }
            (None, true) => tracing::info!("the store of checkpoints works again"),
            (None, false) => return,
            (Some(_), true) => {}
        }
        self.is_failing = error.is_some();
        (self.take)(StoreReport::Failing(error));
    }

    /// Opens the store, and asks whether it keeps what checkpoints need.
    fn open(&mut self) -> Result<(), StoreError> {
        if self.store.is_some() {
            return Ok(());
        }
        let path = self.facts.run.checkpoint.as_ref().map_or("", |spec| spec.path.as_str());
        let place = path.parse::<Place>();
        let place = place.map_err(|error| StoreError::refuse(path, error.to_string()))?;
        let store = store::open(&place, &Environment::of_process())?;
        probe(&*store)?;
        self.store = Some(store);
        Ok(())
    }
}

/// Why a part is not saved: one of its states is not the one that the device made.
fn changed_in_memory(part: &PartToSave) -> Option<String> {
    let step = part.commit.step;
    let changed = part.shards.iter().find(|of| of.state.digest(step.0) != of.digest)?;
    Some(format!(
        "parameter shard {} changed in memory since step {step}: this machine's memory cannot be \
         trusted",
        changed.shard
    ))
}

fn write_part(
    store: &dyn Store,
    facts: &CheckpointFacts,
    part: &PartToSave,
) -> Result<PartSummary, StoreError> {
    let plan = PartPlan {
        step: part.commit.step,
        name: PartName { generation: part.commit.generation, worker: part.worker },
        run: facts.run_digest.clone(),
        parameters: facts.layout.count(),
        slots: facts.slots.clone(),
        shards: part.shards.iter().map(|of| of.shard).collect(),
    };
    let mut writer = PartWriter::begin(store, plan)?;
    for of in &part.shards {
        let slots = std::iter::once(&of.state.master).chain(&of.state.moments);
        let slots: Vec<&[f32]> = slots.map(Vec::as_slice).collect();
        writer.write(of.shard, &slots)?;
    }
    writer.finish()
}

/// The manifest of these parts. An error in words if they are no whole checkpoint.
fn assemble(
    facts: &CheckpointFacts,
    commit: &Commit,
    parts: &[WorkerPart],
    bitwise: bool,
) -> Result<Manifest, String> {
    let summary = |of: &WorkerPart| PartSummary {
        name: PartName { generation: of.part.commit.generation, worker: of.worker },
        bytes: of.part.bytes,
        head_bytes: of.part.head_bytes,
        head_blake3: Digest(of.part.head_digest),
        shards: of.part.shards.iter().map(|(shard, digest)| (*shard, Digest(*digest))).collect(),
    };
    let summaries: Vec<PartSummary> = parts.iter().map(summary).collect();
    let known = Facts {
        run: &facts.run_digest,
        spec: &facts.run,
        fingerprint: &facts.fingerprint,
        layout: &facts.layout,
        slots: &facts.slots,
        step: commit.step,
        generation: commit.generation,
        commit: Some(CommitRecord {
            norm: commit.norm,
            loss: commit.loss,
            applied: commit.decision == Decision::Apply,
            updates: commit.updates,
            loss_scale_exponent: commit.loss_scale.exponent,
            loss_scale_good: commit.loss_scale.good,
        }),
        bitwise,
    };
    Manifest::assemble(&known, &summaries).map_err(|error| error.to_string())
}

/// Whether the manifest in the store is of the same state.
fn is_same(store: &dyn Store, manifest: &Manifest) -> Result<bool, StoreError> {
    let bytes = store.read_whole(&manifest.name(), MAX_MANIFEST_BYTES)?;
    let same =
        |there: Manifest| there.run == manifest.run && there.state_hash == manifest.state_hash;
    Ok(Manifest::parse(&bytes).is_ok_and(same))
}

/// Deletes a checkpoint: its manifest first. What another generation has written at the same step
/// stays. A manifest that was cut or changed is of no generation, and would be in the way of the
/// next one.
fn remove(store: &dyn Store, id: CheckpointId) -> Result<(), StoreError> {
    let name = ObjectName::Manifest(id.step);
    match store.read_whole(&name, MAX_MANIFEST_BYTES) {
        Ok(bytes) => {
            let is_its = match Manifest::parse(&bytes) {
                Ok(there) => there.generation == id.generation,
                Err(error) => error.is_damage(),
            };
            if is_its {
                store.delete(&name)?;
            }
        }
        Err(error) if error.is_missing() => {}
        Err(error) => return Err(error),
    }
    for object in store.list()? {
        match &object.name {
            ObjectName::Part(step, part)
                if *step == id.step && part.generation == id.generation =>
            {
                store.delete(&object.name)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Damage as a result, and errors of the store as errors.
fn settle<T>(read: Result<T, Unread>) -> Result<Result<T, String>, StoreError> {
    match read {
        Ok(read) => Ok(Ok(read)),
        Err(Unread::Damaged(reason)) => Ok(Err(reason)),
        Err(Unread::Store(error)) => Err(error),
    }
}

fn read_manifest(
    store: &dyn Store,
    facts: &CheckpointFacts,
    id: CheckpointId,
) -> Result<Manifest, Unread> {
    let name = ObjectName::Manifest(id.step);
    let damaged = |why: String| Unread::Damaged(format!("{name}: {why}"));
    let bytes = match store.read_whole(&name, MAX_MANIFEST_BYTES) {
        Err(error) if error.is_missing() => return Err(damaged("it is gone".into())),
        read => read?,
    };
    let manifest = Manifest::parse(&bytes).map_err(|error| damaged(error.to_string()))?;
    if manifest.run != facts.run_digest {
        return Err(damaged(format!("it is the manifest of another run, {}", manifest.run)));
    }
    if (manifest.step, manifest.generation) != (id.step, id.generation) {
        let (step, generation) = (manifest.step, manifest.generation);
        return Err(damaged(format!("it is of step {step}, committed by generation {generation}")));
    }
    manifest.check_layout(&facts.layout).map_err(|error| damaged(error.to_string()))?;
    Ok(manifest)
}

fn read_shard(
    reader: &mut CheckpointReader<'_>,
    (generation, id): (Generation, CheckpointId),
    shard: Shard,
) -> Result<StoreReport, Unread> {
    let state = reader.read(shard).map_err(|error| match error {
        ReadError::Damaged(damage) => Unread::Damaged(damage.to_string()),
        ReadError::Store(error) => Unread::Store(error),
    })?;
    let digest = state.digest(id.step.0);
    let slots = std::iter::once(state.master).chain(state.moments);
    let parts = slots.map(Buffer::detached).collect();
    Ok(StoreReport::Restored { generation, shard, digest, parts })
}

#[cfg(test)]
mod tests;
