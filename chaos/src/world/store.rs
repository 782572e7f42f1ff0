//! The store of checkpoints: one for all workers, slow, at times away, and durable.
//!
//! A worker's job takes effect at one moment, some time after the core gave it. A process that ends
//! before that moment may have made its part durable all the same, without a word. The store keeps
//! what it has over rollbacks, crashes and the end of all processes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use everstep_kernels::buffer::Buffer;
use everstep_transport::protocol::{
    CheckpointId, Generation, ManifestToWrite, ModelPlace, Record, RunSpec, SavedPart, Shard, Step,
    WorkerId, WrittenManifest,
};
use everstep_transport::time::Time;
use everstep_worker::step::event::{Input, PartToSave, ShardToSave, StoreJob, StoreReport};

use super::World;
use super::types::Event;
use crate::check::{Invariant, Observation, Violation};

/// A job takes at most this long while the store is there.
const LONGEST_JOB: Duration = Duration::from_millis(600);
/// Of so many jobs, one finds the store away.
const AWAY_ONE_IN: u64 = 24;
/// The store is away for at most this long.
const LONGEST_AWAY: Duration = Duration::from_secs(3);

/// The parts and manifests in the store.
pub(super) struct SimStore {
    /// By checkpoint, worker, and the generation in which the part was written.
    parts: BTreeMap<(CheckpointId, WorkerId, Generation), Vec<ShardToSave>>,
    manifests: BTreeMap<CheckpointId, Vec<(WorkerId, Generation)>>,
    /// Where the trained model goes.
    model_place: ModelPlace,
    /// The steps of the lines that went along with checkpoints, each with the generation that made
    /// it. Some of them are undone.
    lines: BTreeSet<(Step, Generation)>,
    /// Whether the log has given up lines.
    lacks_lines: bool,
    away_until: Time,
    /// When each worker's thread has done its jobs: it does them in order.
    busy_until: BTreeMap<usize, Time>,
}

impl SimStore {
    /// The empty store of a run.
    pub(super) fn of(run: &RunSpec) -> Self {
        let path = run.checkpoint.as_ref().map_or_else(String::new, |spec| spec.model_path());
        Self {
            parts: BTreeMap::new(),
            manifests: BTreeMap::new(),
            model_place: ModelPlace { host: String::new(), path },
            lines: BTreeSet::new(),
            lacks_lines: false,
            away_until: Time(0),
            busy_until: BTreeMap::new(),
        }
    }

    /// Does a job, and says what the worker's thread reports.
    fn perform(&mut self, job: StoreJob) -> Vec<StoreReport> {
        match job {
            StoreJob::Save(part) => vec![StoreReport::Saved(self.save(part))],
            StoreJob::Manifest(order) => {
                let lines = order.lines.iter().map(|line| (line.step, line.generation));
                self.lines.extend(lines);
                vec![self.complete(*order)]
            }
            StoreJob::Restore { generation, id, shards } => self.restore(generation, id, &shards),
            StoreJob::Model { generation } => {
                vec![StoreReport::Stored { generation, place: self.model_place.clone() }]
            }
        }
    }

    fn save(&mut self, part: PartToSave) -> SavedPart {
        let PartToSave { worker, generation, commit, shards } = part;
        let digests = shards.iter().map(|of| (of.shard, wide(of.digest))).collect();
        self.parts.insert((CheckpointId::of(&commit), worker, generation), shards);
        let (head_digest, shards) = ([0; 32], digests);
        let (bytes, head_bytes, write_ms) = (90, 10, 1);
        SavedPart { commit, generation, bytes, head_bytes, head_digest, shards, write_ms }
    }

    fn complete(&mut self, order: ManifestToWrite) -> StoreReport {
        let ManifestToWrite { parts, delete, sweep, .. } = order;
        for id in &delete {
            self.manifests.remove(id);
            self.parts.retain(|(of, ..), _| of != id);
        }
        let id = parts.first().map(|of| CheckpointId::of(&of.part.commit)).unwrap_or_default();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&id.step.0.to_le_bytes());
        let digests: BTreeMap<Shard, [u8; 32]> =
            parts.iter().flat_map(|of| of.part.shards.iter().copied()).collect();
        for digest in digests.values() {
            hasher.update(digest);
        }
        let files = parts.iter().map(|of| (of.worker, of.part.generation));
        self.manifests.insert(id, files.collect());
        let steps: BTreeSet<Step> = self.manifests.keys().map(|id| id.step).collect();
        self.parts.retain(|(of, ..), _| of.step > sweep || steps.contains(&of.step));
        let (bytes, state_hash) = (90 * parts.len() as u64, *hasher.finalize().as_bytes());
        StoreReport::Manifest(WrittenManifest { id, bytes, state_hash, deleted: delete })
    }

    fn restore(
        &self,
        generation: Generation,
        id: CheckpointId,
        shards: &[Shard],
    ) -> Vec<StoreReport> {
        let damaged = |reason: String| vec![StoreReport::Damaged { generation, id, reason }];
        let Some(files) = self.manifests.get(&id) else {
            return damaged("the manifest is gone".into());
        };
        let mut restored = Vec::new();
        for shard in shards {
            let parts = files.iter().filter_map(|(by, of)| self.parts.get(&(id, *by, *of)));
            let Some(of) = parts.flatten().find(|of| of.shard == *shard) else {
                return damaged(format!("parameter shard {shard} is gone"));
            };
            let slots = std::iter::once(&of.state.master).chain(&of.state.moments);
            let parts = slots.map(|slot| Buffer::detached(slot.clone())).collect();
            let (shard, digest) = (of.shard, of.digest);
            restored.push(StoreReport::Restored { generation, shard, digest, parts });
        }
        restored
    }

    /// The shards that a whole checkpoint has. None if a file of it is missing.
    fn shards_of(&self, id: CheckpointId) -> Option<BTreeSet<Shard>> {
        let files = self.manifests.get(&id)?;
        let parts: Option<Vec<_>> =
            files.iter().map(|(by, of)| self.parts.get(&(id, *by, *of))).collect();
        Some(parts?.into_iter().flatten().map(|of| of.shard).collect())
    }
}

impl SimStore {
    /// No process has some lines any more.
    pub(super) fn lose_lines(&mut self) {
        self.lacks_lines = true;
    }

    /// The first step of which a reader of this checkpoint would find no line.
    fn first_missing_line(&self, id: CheckpointId) -> Option<Step> {
        let is_there = |step: &Step| {
            self.lines.range((*step, Generation(0))..=(*step, id.generation)).next().is_some()
        };
        let steps = (1..=id.step.0).map(Step);
        steps.filter(|_| !self.lacks_lines).find(|step| !is_there(step))
    }
}

fn wide(digest: u64) -> [u8; 32] {
    let mut wide = [0; 32];
    wide[..8].copy_from_slice(&digest.to_le_bytes());
    wide
}

impl World {
    /// A worker's thread gets a job. The store may be away, and then the thread says so.
    pub(super) fn give_store(&mut self, place: usize, job: StoreJob) {
        if self.random.below(AWAY_ONE_IN) == 0 {
            let away = Duration::from_millis(self.random.below(LONGEST_AWAY.as_millis() as u64));
            self.store.away_until = self.store.away_until.max(self.now + away);
        }
        let is_away = self.store.away_until > self.now;
        if is_away {
            let failing = StoreReport::Failing(Some("the store is away".into()));
            self.queue.put(self.now, Event::Worker(place, Input::Store(failing)));
        }
        let takes = Duration::from_millis(self.random.below(LONGEST_JOB.as_millis() as u64));
        let builds = self.workers[place].builds;
        let busy_until = self.store.busy_until.entry(place).or_default();
        let at = self.now.max(self.store.away_until).max(*busy_until) + takes;
        *busy_until = at;
        self.queue.put(at, Event::Store { place, builds, was_away: is_away, job: Box::new(job) });
    }

    /// A job of a worker's thread takes effect.
    pub(super) fn on_store_job(
        &mut self,
        place: usize,
        (builds, was_away): (u64, bool),
        job: StoreJob,
    ) -> Result<(), Violation> {
        if self.workers[place].builds != builds || self.workers[place].ended() {
            // The process has ended, or begun anew: before or after its bytes were durable.
            if self.random.below(2) == 0 {
                self.store.perform(job);
            }
            return Ok(());
        }
        if was_away {
            self.step_worker(place, Input::Store(StoreReport::Failing(None)))?;
        }
        for report in self.store.perform(job) {
            if let StoreReport::Damaged { id, reason, .. } = &report {
                // The store keeps what it has: the log lists what was never whole, or is deleted.
                return Err(self.not_whole(*id, reason));
            }
            if let StoreReport::Stored { place, .. } = &report {
                self.observe(Observation::Durable(place))?;
            }
            self.step_worker(place, Input::Store(report))?;
        }
        Ok(())
    }

    /// The log lists a checkpoint: the store has every shard of it, and the line of each step up to
    /// it (I12).
    pub(super) fn witness_listing(&mut self, id: CheckpointId) -> Result<(), Violation> {
        self.checkers.liveness.tally.checkpoints += 1;
        let shards = self.checkers.invariants.current_record().map_or(0, Record::shards);
        let there = self.store.shards_of(id).unwrap_or_default();
        self.observe(Observation::Checkpoint(id, shards.saturating_sub(there.len() as u32)))?;
        let Some(missing) = self.store.first_missing_line(id) else { return Ok(()) };
        let CheckpointId { step, generation } = id;
        let seen = format!(
            "the checkpoint of step {step}, generation {generation}, is listed, and the store has \
             no line of step {missing}"
        );
        Err(Violation { invariant: Invariant::I12, at: self.now, seen })
    }

    fn not_whole(&self, id: CheckpointId, why: &str) -> Violation {
        let CheckpointId { step, generation } = id;
        let seen =
            format!("the checkpoint of step {step}, generation {generation}, is listed: {why}");
        Violation { invariant: Invariant::I12, at: self.now, seen }
    }
}
