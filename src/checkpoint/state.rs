//! The whole state of a checkpoint, for a program that goes on with it by itself.
//!
//! In: a store, and a step. Out: master weights and moments as flat vectors. All of it is in memory
//! at once, unlike in the verbs, which read shard by shard.

use everstep_checkpoint::choose;
use everstep_checkpoint::manifest::Manifest;
use everstep_checkpoint::part::reader::{CheckpointReader, ReadError};
use everstep_checkpoint::store::{Place, Store};
use everstep_transport::protocol::{Shard, Step};

use super::{choose_failure, open, store_failure};
use crate::failure::{Exit, Failure};

/// The state after a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredState {
    /// How many steps have applied an update: a step may have been skipped.
    pub updates: u64,
    /// The hash of the state, hexadecimal.
    pub state_hash: String,
    /// The names of the vectors: `master`, and those of the optimizer's moments.
    pub names: Vec<String>,
    /// The vectors, each of all parameters in the order of the flat vector.
    pub vectors: Vec<Vec<f32>>,
}

/// Reads the checkpoint of a step from the store at a place. Each shard's digest is verified.
///
/// # Errors
/// In words for the user, if there is no such checkpoint, or it is damaged.
pub fn read_state(place: &str, step: u64) -> Result<StoredState, Failure> {
    let place: Place = place.parse().map_err(store_failure)?;
    let store = open(&place)?;
    let manifest = choose::exactly(&*store, Step(step), None).map_err(choose_failure)?;
    read(&*store, &manifest).map_err(|error| match error {
        ReadError::Store(error) => store_failure(error),
        error => Failure::new(Exit::Failed, "the checkpoint cannot be read")
            .at(store.place())
            .because(error)
            .next("`everstep checkpoint verify` names all damage in the store"),
    })
}

fn read(store: &dyn Store, manifest: &Manifest) -> Result<StoredState, ReadError> {
    let names: Vec<_> = manifest.slots.names().map(str::to_string).collect();
    let empty = || Vec::with_capacity(manifest.parameters as usize);
    let mut vectors: Vec<Vec<f32>> = names.iter().map(|_| empty()).collect();
    let mut reader = CheckpointReader::new(store, manifest);
    for shard in (0..manifest.shards.len() as u32).map(Shard) {
        let state = reader.read(shard)?;
        let parts = std::iter::once(&state.master).chain(&state.moments);
        for (vector, part) in vectors.iter_mut().zip(parts) {
            vector.extend_from_slice(part);
        }
    }
    let updates = manifest.commit.map_or(0, |commit| commit.updates);
    let state_hash = manifest.state_hash.to_string();
    Ok(StoredState { updates, state_hash, names, vectors })
}
