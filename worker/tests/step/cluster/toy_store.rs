//! A toy store: every part is durable sooner or later, and a checkpoint is listed when its parts
//! have every shard and its step is settled.

use std::collections::{BTreeMap, VecDeque};

use everstep_kernels::buffer::Buffer;
use everstep_transport::protocol::{
    CheckpointId, Commit, ModelPlace, SavedPart, Shard, Step, WorkerId,
};
use everstep_worker::step::event::{PartToSave, ShardToSave, StoreJob, StoreReport};

/// Where the trained model goes.
pub const MODEL_PATH: &str = "/store/model.safetensors";

#[derive(Default)]
pub struct ToyStore {
    states: BTreeMap<(CheckpointId, Shard), ShardToSave>,
    /// The shards of each checkpoint whose parts were reported, with its commit.
    reported: BTreeMap<CheckpointId, (Commit, BTreeMap<Shard, WorkerId>)>,
    /// The checkpoints that a run may go back to.
    pub listed: BTreeMap<Step, Commit>,
    /// Reports that have not arrived, in order.
    coming: VecDeque<(WorkerId, StoreReport)>,
    /// The store fails each copy of the model.
    pub fails_models: bool,
    /// Copies that are to be tried again.
    failing: Vec<(WorkerId, StoreJob)>,
}

impl ToyStore {
    pub fn take(&mut self, worker: WorkerId, job: StoreJob) {
        self.failing.retain(|(of, earlier)| *of != worker || !earlier.is_replaced_by(&job));
        match job {
            StoreJob::Model { .. } if self.fails_models => self.failing.push((worker, job)),
            StoreJob::Save(PartToSave { commit, generation, shards, .. }) => {
                let id = CheckpointId::of(&commit);
                let digests = shards.iter().map(|of| (of.shard, [0; 32])).collect();
                self.states.extend(shards.into_iter().map(|of| ((id, of.shard), of)));
                let (bytes, head_bytes, head_digest, write_ms) = (9, 1, [0; 32], 1);
                let shards = digests;
                let part = SavedPart {
                    commit,
                    generation,
                    bytes,
                    head_bytes,
                    head_digest,
                    shards,
                    write_ms,
                };
                self.coming.push_back((worker, StoreReport::Saved(part)));
            }
            StoreJob::Restore { generation, id, shards } => {
                for shard in shards {
                    let of = &self.states[&(id, shard)];
                    let slots = std::iter::once(&of.state.master).chain(&of.state.moments);
                    let parts = slots.map(|slot| Buffer::detached(slot.clone())).collect();
                    let digest = of.digest;
                    let restored = StoreReport::Restored { generation, shard, digest, parts };
                    self.coming.push_back((worker, restored));
                }
            }
            StoreJob::Manifest(_) | StoreJob::Verify { .. } => {}
            StoreJob::Model { generation } => {
                let place = ModelPlace { host: String::new(), path: MODEL_PATH.into() };
                self.coming.push_back((worker, StoreReport::Stored { generation, place }));
            }
        }
    }

    /// The store takes the models, those that it has failed too.
    pub fn mend(&mut self) {
        self.fails_models = false;
        std::mem::take(&mut self.failing).into_iter().for_each(|(of, job)| self.take(of, job));
    }

    /// The next report, and the worker that it is for.
    pub fn next(&mut self) -> Option<(WorkerId, StoreReport)> {
        self.coming.pop_front()
    }

    /// A member says that its part is durable.
    pub fn saved(&mut self, worker: WorkerId, part: SavedPart) {
        let id = CheckpointId::of(&part.commit);
        let (_, shards) = self.reported.entry(id).or_insert((part.commit, BTreeMap::new()));
        shards.extend(part.shards.iter().map(|(shard, _)| (*shard, worker)));
    }

    /// Lists what can be listed: steps up to `settled`. A rollback forgets later ones.
    pub fn list(&mut self, settled: Step) {
        for (id, (commit, shards)) in &self.reported {
            if id.step <= settled && shards.len() == 3 {
                self.listed.insert(id.step, commit.clone());
            }
        }
    }

    /// The run goes back to a step.
    pub fn go_back(&mut self, to: Step) {
        self.listed.retain(|step, _| *step <= to);
        self.reported.retain(|id, _| id.step <= to);
    }
}
