//! I22: a run is complete only when its model is durable, and its end names the place: in the run's
//! store, if it has one.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_transport::protocol::outcome::{Event, EventKind};
use everstep_transport::protocol::{CheckpointSpec, ModelPlace, RunSpec};

use super::{Breach, Invariant};

/// The places at which the whole model is durable.
#[derive(Debug)]
pub(super) struct Durable {
    places: Vec<ModelPlace>,
    /// Where the run's store has it. None for a run without checkpoints.
    in_store: Option<String>,
}

impl Durable {
    /// Nothing of this run is durable yet.
    pub(super) fn of(run: &RunSpec) -> Self {
        let in_store = run.checkpoint.as_ref().map(CheckpointSpec::model_path);
        Self { places: Vec::new(), in_store }
    }

    /// A worker's directory, or the run's store, has every shard.
    pub(super) fn written(&mut self, place: &ModelPlace) {
        if !self.places.contains(place) {
            self.places.push(place.clone());
        }
    }

    /// Another cluster writes into the store: the model stays with a worker.
    pub(super) fn outdone(&mut self) {
        self.in_store = None;
    }

    /// A watcher has heard of an event.
    pub(super) fn told(&self, event: &Event) -> Result<(), Breach> {
        let EventKind::Complete { model, .. } = &event.kind else { return Ok(()) };
        let found = |seen: String| Err((Invariant::I22, seen));
        let Some(place) = model else {
            return found("the run is complete, and names no model".into());
        };
        let is_elsewhere = |path: &String| *path != place.path;
        if !self.places.contains(place) {
            return found(format!("the run is complete, and its model is not durable at {place}"));
        }
        if let Some(path) = self.in_store.as_ref().filter(|path| is_elsewhere(path)) {
            return found(format!("the run is complete, and names {place}, not {path}"));
        }
        Ok(())
    }
}
