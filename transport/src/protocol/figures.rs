//! How a run does, or did, in figures. A coordinator reports them, and keeps them after its end.

// The derive does not carry the docs of variants' fields over to the archived type.
#![allow(missing_docs)]

use rkyv::{Archive, Deserialize, Serialize};
use serde::Serializer;
use serde::ser::SerializeMap;

use super::ids::WorkerLabel;
use super::model::ModelPlace;
use super::outcome::{EventKind, PartEvaluation, WorkerResult};
use super::reason::NamedWorker;

/// A run in figures. A figure that is not known yet, or was never measured, is `None`.
#[derive(Archive, Serialize, Deserialize, serde::Serialize, Clone, Debug, Default, PartialEq)]
pub struct RunFigures {
    /// Number of steps of the run.
    pub steps: u64,
    /// Members of its newest generation. 0 before the first.
    pub world_size: u32,
    /// When the operator submitted it: wall clock of a coordinator, milliseconds of Unix time.
    pub submitted_unix_ms: Option<u64>,
    /// When it ended: wall clock of a coordinator, milliseconds of Unix time.
    pub ended_unix_ms: Option<u64>,
    /// Mean training loss of the first step, nats a target.
    pub first_loss: Option<f64>,
    /// Mean training loss of the newest settled step, nats a target.
    pub loss: Option<f64>,
    /// Mean loss over the held-out samples at the end, nats a target.
    pub validation_loss: Option<f64>,
    /// The model's own metric over the held-out samples, at the end.
    pub metric: Option<f64>,
    /// Targets trained on per second, over the newest 20 steps. For a run that ended, over all
    /// steps.
    pub tokens_per_second: Option<f64>,
    /// How long the remaining steps take at the pace of the newest 20, seconds.
    pub eta_seconds: Option<f64>,
    /// Number of generations so far.
    pub generations: u32,
    /// How many of them did a step again.
    pub steps_redone: u32,
    /// Number of workers that were lost.
    pub workers_lost: u32,
    /// How often the run went back to an earlier step.
    pub rollbacks: u32,
    /// The longest time for which training stood still at a change of generation, milliseconds.
    /// Known at the end of the run.
    pub longest_stall_ms: Option<f64>,
    /// The place of the model of a complete run. For scripts, `model` is its path or URL, and
    /// `model_host` its machine, `null` for a URL.
    #[serde(flatten, serialize_with = "place")]
    pub model: Option<ModelPlace>,
    /// The newest loss, rollback, refusal or failure.
    pub trouble: Option<Trouble>,
}

/// An event that an operator wants to know about. JSON has its time and its sentence.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Trouble {
    /// When: wall clock of a coordinator, milliseconds of Unix time.
    pub unix_ms: u64,
    /// The event that was the trouble.
    pub kind: EventKind,
    /// The known ones of the workers that a sentence about it names. The state may forget them.
    pub labels: Vec<WorkerLabel>,
}

impl Trouble {
    /// What happened, in a sentence.
    pub fn words(&self) -> String {
        let label = |worker| self.labels.iter().find(|label| label.worker == worker).cloned();
        self.kind.sentence(|worker| NamedWorker::of(worker, label(worker)))
    }
}

impl serde::Serialize for Trouble {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut keys = serializer.serialize_map(Some(2))?;
        keys.serialize_entry("unix_ms", &self.unix_ms)?;
        keys.serialize_entry("words", &self.words())?;
        keys.end()
    }
}

fn place<S: Serializer>(model: &Option<ModelPlace>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut keys = serializer.serialize_map(Some(2))?;
    keys.serialize_entry("model", &model.as_ref().map(|place| &place.path))?;
    let host = model.as_ref().map(|place| &place.host).filter(|host| !host.is_empty());
    keys.serialize_entry("model_host", &host)?;
    keys.end()
}

/// Mean loss and metric over all held-out samples that were evaluated at the end of a run.
pub fn validation(results: &[WorkerResult]) -> (Option<f64>, Option<f64>) {
    mean_of_parts(results.iter().flat_map(|result| &result.evaluations))
}

/// Mean loss and metric over the held-out samples of these parts, added in the parts' order.
pub fn mean_of_parts<'a>(
    parts: impl Iterator<Item = &'a PartEvaluation>,
) -> (Option<f64>, Option<f64>) {
    let mut parts: Vec<_> = parts.collect();
    parts.sort_by_key(|part| part.part);
    let samples = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(part.samples));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::reason::LossReason;
    use crate::protocol::{HostName, WorkerId};

    #[test]
    fn trouble_is_a_value_that_json_and_people_read_as_a_sentence() {
        let (worker, reason) = (WorkerId(9), LossReason::Revoked);
        let kind = EventKind::Lost { worker, reason, detect_ms: 1, pause_ms: 2 };
        let host = HostName::of("b");
        let trouble = |labels| Trouble { unix_ms: 7, kind: kind.clone(), labels };
        let words = "worker 2 (id 9, on b) was lost: an operator revoked it";
        let known = trouble(vec![WorkerLabel { number: 2, worker, host }]);
        assert_eq!(known.words(), words);
        let json = serde_json::to_value(&known).expect("a value");
        assert_eq!(json, serde_json::json!({ "unix_ms": 7, "words": words }));
        let words = "the worker with id 9 was lost: an operator revoked it";
        assert_eq!(trouble(Vec::new()).words(), words);
    }
}
