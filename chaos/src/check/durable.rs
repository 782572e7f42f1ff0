//! I22: a run is complete only when its model is durable, and its end names the place.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use everstep_transport::protocol::ModelPlace;
use everstep_transport::protocol::outcome::{Event, EventKind};

use super::{Found, Invariant};

/// The places at which the whole model is durable.
#[derive(Debug, Default)]
pub(super) struct Durable(Vec<ModelPlace>);

impl Durable {
    /// A worker's store has every shard.
    pub(super) fn written(&mut self, place: &ModelPlace) {
        if !self.0.contains(place) {
            self.0.push(place.clone());
        }
    }

    /// A watcher has heard of an event.
    pub(super) fn told(&self, event: &Event) -> Result<(), Found> {
        match &event.kind {
            EventKind::Complete { model: None, .. } => {
                Err((Invariant::I22, "the run is complete, and names no model".into()))
            }
            EventKind::Complete { model: Some(place), .. } if !self.0.contains(place) => {
                let seen = format!("the run is complete, and its model is not durable at {place}");
                Err((Invariant::I22, seen))
            }
            _ => Ok(()),
        }
    }
}
