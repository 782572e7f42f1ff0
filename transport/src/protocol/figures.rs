//! How a run does, or did, in figures: what a coordinator tells of it, and keeps after its end.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use rkyv::{Archive, Deserialize, Serialize};
use serde::Serializer;
use serde::ser::SerializeMap;

use super::model::ModelPlace;
use super::outcome::WorkerResult;

/// A run in figures. What is not known yet, or was never measured, is `None`.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, Default, PartialEq)]
pub struct RunFigures {
    /// How many steps the run has.
    pub steps: u64,
    /// Members of its newest generation; 0 before the first.
    pub world_size: u32,
    /// When it was submitted: wall clock of a coordinator, milliseconds of Unix time.
    pub submitted_unix_ms: Option<u64>,
    /// When it ended, likewise.
    pub ended_unix_ms: Option<u64>,
    /// Mean training loss of the first step, nats a target.
    pub first_loss: Option<f64>,
    /// The same of the newest settled step.
    pub loss: Option<f64>,
    /// Mean loss over the held-out samples at the end, nats a target.
    pub validation_loss: Option<f64>,
    /// The model's own metric over the held-out samples, at the end.
    pub metric: Option<f64>,
    /// Targets trained on per second: over the newest 20 steps; of a run that ended, over all.
    pub tokens_per_second: Option<f64>,
    /// How long the steps that are left take at the pace of the newest 20, seconds.
    pub eta_seconds: Option<f64>,
    /// How many generations there were.
    pub generations: u32,
    /// How many of them did a step again.
    pub steps_redone: u32,
    /// How many workers were lost.
    pub workers_lost: u32,
    /// How often the run went back to an earlier step.
    pub rollbacks: u32,
    /// How long training stood still at a change of generation, at most, milliseconds: known at the
    /// end.
    pub longest_stall_ms: Option<f64>,
    /// Where the model of a complete run is: for scripts its path as `model`, its machine as
    /// `model_host`.
    #[serde(flatten, serialize_with = "place")]
    pub model: Option<ModelPlace>,
    /// The newest loss, rollback, refusal or failure.
    pub trouble: Option<Trouble>,
}

/// Something that an operator wants to hear of.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// When: wall clock of a coordinator, milliseconds of Unix time.
    pub unix_ms: u64,
    /// What, in a sentence.
    pub words: String,
}

fn place<S: Serializer>(model: &Option<ModelPlace>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut keys = serializer.serialize_map(Some(2))?;
    keys.serialize_entry("model", &model.as_ref().map(|place| &place.path))?;
    keys.serialize_entry("model_host", &model.as_ref().map(|place| &place.host))?;
    keys.end()
}

/// Mean loss and metric over all held-out samples that were evaluated, added in the parts' order.
pub fn validation(results: &[WorkerResult]) -> (Option<f64>, Option<f64>) {
    let mut parts: Vec<_> = results.iter().flat_map(|result| &result.evaluations).collect();
    parts.sort_by_key(|part| part.part);
    let samples: u64 = parts.iter().map(|part| part.samples).sum();
    if samples == 0 {
        return (None, None);
    }
    let mean = |value: &dyn Fn(usize) -> Option<f64>| {
        let weighted = |index: usize| Some(value(index)? * parts[index].samples as f64);
        let sum: Option<f64> = (0..parts.len()).map(weighted).sum();
        sum.map(|sum| sum / samples as f64)
    };
    (mean(&|index| Some(parts[index].loss)), mean(&|index| parts[index].metric))
}
