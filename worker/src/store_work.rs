//! What a worker does in its run's store: one try of one job.
//!
//! Input: a [`StoreJob`] and the store. Output: [`StoreReport`]s, or an error of the store, after
//! which the job is to be tried again. The store's thread tries again until the store does the job.
//! This module knows no thread and no clock, so the simulator tries jobs by the same code.

mod claim;
mod manifest;
mod model;
mod part;
mod restore;
mod verify;

use everstep_checkpoint::claims::Claim;
use everstep_checkpoint::part::PartSummary;
use everstep_checkpoint::part::reader::CheckpointReader;
use everstep_checkpoint::store::{Store, StoreError};
use everstep_transport::identity::Credentials;
use everstep_transport::protocol::{
    CheckpointId, Generation, ManifestToWrite, SavedPart, Shard, Verification, WrittenManifest,
};

use self::claim::ClusterClaim;
use self::restore::{Damage, Unread};
pub use self::verify::CheckpointReading;
use crate::device::checkpoint_facts::CheckpointFacts;
use crate::device::model_path::remove_if_passing;
#[cfg(feature = "planted")]
use crate::plant::Plant;
use crate::step::event::{PartToSave, StoreJob, StoreReport};

/// What a try comes to, if the store does not fail.
#[derive(Debug)]
pub enum Attempt<T> {
    /// It worked, with this result.
    Done(T),
    /// It must not be done, for this reason. It is not tried again.
    Refused(String),
    /// The cluster must not write into this store, for this reason. It is not tried again.
    MayNot(String),
}

impl<T> Attempt<T> {
    fn map<U>(self, change: impl FnOnce(T) -> U) -> Attempt<U> {
        match self {
            Self::Done(done) => Attempt::Done(change(done)),
            Self::Refused(reason) => Attempt::Refused(reason),
            Self::MayNot(reason) => Attempt::MayNot(reason),
        }
    }
}

/// What tells a cluster from any other one that uses the same store.
#[derive(Clone, Debug)]
pub struct ClusterIdentity {
    /// A digest of the certificate of its authority: it outlives all of its processes.
    pub nonce: String,
    /// The cluster in words.
    pub words: String,
}

impl ClusterIdentity {
    /// The cluster of a process with these credentials.
    pub fn of(credentials: &Credentials) -> Self {
        let nonce = blake3::hash(credentials.authority()).to_hex().to_string();
        let (name, uname) = (&credentials.identity().name, rustix::system::uname());
        let words = format!("that of {name} on {}", uname.nodename().to_string_lossy());
        Self { nonce, words }
    }
}

/// A test may kill the worker here: see `failpoint::STORE_POINTS`.
fn pass_point(_point: &str) {
    #[cfg(feature = "failpoints")]
    crate::daemon::failpoint::at_store(_point);
}

/// A worker at work in its run's store.
pub struct StoreWork {
    facts: CheckpointFacts,
    claim: ClusterClaim,
    /// Whether this worker has put the model into the store, and removed a file that was only for
    /// that. The core may order the same copy again.
    has_stored: bool,
    #[cfg(feature = "planted")]
    plant: Option<Plant>,
}

impl StoreWork {
    /// The work of a worker of this cluster, which has learned nothing of the store yet.
    pub fn new(facts: CheckpointFacts, cluster: &ClusterIdentity) -> Self {
        let ClusterIdentity { nonce, words } = cluster.clone();
        let claim = Claim { run: facts.run_digest.clone(), nonce, cluster: words };
        Self {
            facts,
            claim: ClusterClaim::new(claim),
            has_stored: false,
            #[cfg(feature = "planted")]
            plant: None,
        }
    }

    /// Plants a bug for the simulator to find.
    #[cfg(feature = "planted")]
    pub fn plant(&mut self, plant: Plant) {
        self.plant = Some(plant);
        self.claim.is_ignored = plant == Plant::IgnoreClaim;
    }

    /// The path or URL of the store.
    pub fn path(&self) -> &str {
        self.facts.run.checkpoint.as_ref().map_or("", |spec| spec.path.as_str())
    }

    /// Tries a job. Returns its last report. `give` takes the shards that a checkpoint has, and
    /// returns false once nothing listens any more. The next try of the job reads those that are
    /// left.
    ///
    /// # Errors
    /// Those of the store. The same try may succeed later.
    pub fn attempt(
        &mut self,
        store: &dyn Store,
        job: &mut StoreJob,
        give: &mut dyn FnMut(StoreReport) -> bool,
    ) -> Result<Attempt<Option<StoreReport>>, StoreError> {
        match job {
            StoreJob::Save(part) => {
                Ok(self.save(store, part)?.map(|saved| Some(StoreReport::Saved(saved))))
            }
            StoreJob::Manifest(order) => {
                let written = self.manifest(store, order)?;
                Ok(written.map(|written| Some(StoreReport::Manifest(written))))
            }
            StoreJob::Restore { generation, id, shards } => {
                self.restore(store, *generation, *id, shards, give).map(Attempt::Done)
            }
            StoreJob::Verify { id } => {
                let state = self.verify(store, &mut CheckpointReading::of(*id), &mut |_, _| true);
                let report = state.map(|state| StoreReport::Verification { id: *id, state });
                Ok(Attempt::Done(report))
            }
            StoreJob::Model { generation } => self.model(store, *generation),
        }
    }

    fn save(
        &mut self,
        store: &dyn Store,
        part: &PartToSave,
    ) -> Result<Attempt<SavedPart>, StoreError> {
        let written = part::write_part(store, &self.facts, &mut self.claim, part)?;
        Ok(written.map(|summary| saved(part, summary)))
    }

    fn manifest(
        &mut self,
        store: &dyn Store,
        order: &ManifestToWrite,
    ) -> Result<Attempt<WrittenManifest>, StoreError> {
        let written = manifest::carry_out(order, store, &self.facts, &mut self.claim)?;
        #[cfg(feature = "planted")]
        let written = match written {
            Attempt::Refused(_) if self.plant == Some(Plant::BelieveOrder) => {
                Attempt::Done(manifest::believed(order))
            }
            written => written,
        };
        Ok(written)
    }

    /// Reads shards of a checkpoint, and takes those that it has given off the list.
    fn restore(
        &mut self,
        store: &dyn Store,
        generation: Generation,
        id: CheckpointId,
        shards: &mut Vec<Shard>,
        give: &mut dyn FnMut(StoreReport) -> bool,
    ) -> Result<Option<StoreReport>, StoreError> {
        let damaged = |Damage(reason)| Some(StoreReport::Damaged { generation, id, reason });
        restore::find(store, id)?;
        self.claim.ask_to_read(store)?;
        let manifest = restore::read_manifest(store, &self.facts, id);
        let manifest = match restore::settle(manifest)? {
            Ok(manifest) => manifest,
            Err(damage) => return Ok(damaged(damage)),
        };
        let mut reader = CheckpointReader::new(store, &manifest);
        let (mut given, mut found) = (0, Ok(None));
        for shard in shards.iter() {
            let read = restore::read_shard(store, &mut reader, generation, id, *shard);
            #[cfg(feature = "planted")]
            let read = match self.plant {
                Some(Plant::AcceptTorn) => {
                    read.or_else(|unread| restore::zeros(unread, &manifest, generation, *shard))
                }
                _ => read,
            };
            match restore::settle(read) {
                Ok(Ok(restored)) => {
                    pass_point("shard.read");
                    given += 1;
                    if !give(restored) {
                        break;
                    }
                }
                Ok(Err(damage)) => {
                    found = Ok(damaged(damage));
                    break;
                }
                Err(error) => {
                    found = Err(error);
                    break;
                }
            }
        }
        shards.drain(..given);
        found
    }

    /// Reads a checkpoint on, to see whether it is damaged. `goes_on` is asked before each shard,
    /// with the bytes that are read and those of all shards. Returns the verdict, or `None` if
    /// something is left to read. A store that fails is a verdict, too.
    pub fn verify(
        &self,
        store: &dyn Store,
        reading: &mut CheckpointReading,
        goes_on: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Option<Verification> {
        match reading.read(store, &self.facts, goes_on) {
            Ok(false) => None,
            Ok(true) => Some(Verification::Whole),
            Err(Unread::Damaged(Damage(reason))) => Some(Verification::Damaged(reason)),
            Err(Unread::Store(error)) => Some(Verification::Unread(error.to_string())),
        }
    }

    /// Puts the trained model into the store.
    fn model(
        &mut self,
        store: &dyn Store,
        generation: Generation,
    ) -> Result<Attempt<Option<StoreReport>>, StoreError> {
        let Some(spec) = &self.facts.run.checkpoint else { return Ok(Attempt::Done(None)) };
        let place = model::place_in(spec);
        let Some(path) = &self.facts.model else {
            return Err(StoreError::refuse(store.place(), "this worker has no file to copy"));
        };
        self.claim.insist(store)?;
        pass_point("model.due");
        if !(self.has_stored && model::is_removed(path)) {
            model::put(store, path)?;
        }
        pass_point("model.placed");
        remove_if_passing(path);
        self.has_stored = true;
        tracing::info!(%place, "the model is in the store");
        Ok(Attempt::Done(Some(StoreReport::Stored { generation, place })))
    }

    /// Looks whether this run may claim the store, or has. Claims nothing.
    ///
    /// # Errors
    /// Those of the store. A store of another run is refused.
    pub fn look(&self, store: &dyn Store) -> Result<(), StoreError> {
        self.claim.look(store)
    }

    /// Checks that the cluster may write, and claims the store if it has no claim yet.
    ///
    /// # Errors
    /// Those of the store. A store that another cluster has claimed since is refused.
    pub fn insist(&mut self, store: &dyn Store) -> Result<(), StoreError> {
        self.claim.insist(store)
    }
}

/// A part that is durable. The caller knows how long that took.
fn saved(part: &PartToSave, summary: PartSummary) -> SavedPart {
    let shards = summary.shards.iter().map(|(shard, digest)| (*shard, digest.0));
    SavedPart {
        commit: part.commit.clone(),
        generation: part.generation,
        bytes: summary.bytes,
        head_bytes: summary.head_bytes,
        head_digest: summary.head_blake3.0,
        shards: shards.collect(),
        write_ms: 0,
    }
}

impl StoreJob {
    /// Whether a later job takes the place of this one, if the store has failed it so far.
    pub fn is_replaced_by(&self, later: &Self) -> bool {
        match self {
            Self::Save(_) => matches!(later, Self::Save(_) | Self::Restore { .. }),
            // Another member can write the manifest, but the model comes after it.
            Self::Manifest(_) => !matches!(later, Self::Model { .. } | Self::Verify { .. }),
            Self::Verify { .. } => true,
            // A restore mostly means that the last step is undone. Otherwise the core repeats its
            // job for the model.
            Self::Restore { .. } | Self::Model { .. } => matches!(later, Self::Restore { .. }),
        }
    }

    /// What a worker says of a job that ends without a result, for this reason.
    pub fn given_up(&self, reason: String) -> Option<StoreReport> {
        match self {
            Self::Save(part) => {
                let id = CheckpointId::of(&part.commit);
                Some(StoreReport::Unsaved { id, reason })
            }
            Self::Manifest(order) => {
                let id = CheckpointId::of(&order.parts.first()?.part.commit);
                Some(StoreReport::NoManifest { id, reason })
            }
            Self::Restore { .. } | Self::Verify { .. } | Self::Model { .. } => None,
        }
    }
}
