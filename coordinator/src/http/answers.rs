//! Answers as JSON, with the keys of `cluster.json`, `events.jsonl` and `metrics.jsonl`. Pure.

use std::time::Duration;

use everstep_transport::protocol::question::CoordinatorStatus;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Overview, OwnAddress};
use crate::core::ClusterView;
use crate::run_status::run_status;

/// Most numbered items in one answer.
pub(super) const PAGE: usize = 200;

/// Some numbered items, from a given number on.
pub(super) struct ItemPage<T> {
    items: Vec<T>,
    /// The number of the last item, for the next question.
    after: u64,
    /// Whether there are more already.
    more: bool,
}

impl<T: Clone> ItemPage<T> {
    /// Takes the first of these items, which follow the item with the number `after`.
    pub(super) fn of(rest: &[T], after: u64, number: impl Fn(&T) -> u64) -> Self {
        let items = &rest[..rest.len().min(PAGE)];
        let after = items.last().map_or(after, number);
        Self { items: items.to_vec(), after, more: rest.len() > PAGE }
    }
}

/// A page, under the name of its items.
pub(super) fn page<T: Serialize>(name: &str, page: &ItemPage<T>) -> Value {
    json!({ name: page.items, "after": page.after, "more": page.more })
}

/// The state of everything.
pub(super) fn status(overview: &Overview) -> Value {
    let view = &overview.cluster;
    let (state, words) = run_status(view);
    let unable = view.unable.iter().map(|(name, why)| (name, why.reason.to_string()));
    json!({
        "status": words,
        "state": state,
        "leader": view.leads.is_some(),
        "term": view.leads,
        "run": view.run.as_ref().map(|run| &run.name),
        "step": view.step(),
        "steps": view.run.as_ref().map(|run| run.steps),
        "loss": view.line.as_ref().map(|line| line.loss),
        "generation": view.generation,
        "world_size": view.world_size,
        "bitwise": view.divergence.is_none(),
        "bitwise_reason": view.divergence,
        "waiting": view.waiting,
        "paused": view.paused,
        "owners_awaited": view.owners_awaited,
        "model_awaited": view.model_awaited,
        "store_error": view.store_error,
        "checkpoint": view.checkpoint,
        "restores": view.restores,
        "standstill": view.standstill,
        "outage": view.outage.map(|(silent, span)| outage(view, silent, span)),
        "unable": unable.collect::<Vec<_>>(),
        "unreachable": view.unreachable,
        "under_protected": overview.under_protected,
    })
}

fn outage(view: &ClusterView, silent: usize, span: Duration) -> Value {
    let since = view.now_unix_ms.saturating_sub(span.as_millis() as u64); // of this century
    json!({ "silent": silent, "since_unix_ms": since })
}

/// The coordinators, as far as this one knows them.
pub(super) fn coordinators(overview: &Overview, place: &OwnAddress) -> Value {
    let coordinators = overview.coordinators.iter().map(|status| {
        let CoordinatorStatus { view, matched, silent_since_unix_ms, .. } = status;
        let is_this = view.address == place.links;
        json!({
            "id": view.id,
            "name": view.name,
            "pid": is_this.then(std::process::id),
            "address": view.address,
            "api": view.api.map(|api| format!("http://{api}")),
            "leader": status.leads,
            "term": overview.cluster.leads.filter(|_| is_this),
            "voter": status.votes,
            "leaving": status.leaves,
            "matched": matched,
            "silent_since_unix_ms": silent_since_unix_ms,
        })
    });
    json!({ "applied": overview.applied, "coordinators": coordinators.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::{ModelAwaited, WorkerId};

    use super::*;
    use crate::core::{CheckpointStoreError, Standstill};
    use crate::http::tests::overview;

    #[test]
    fn a_page_says_what_to_ask_for_next() {
        let all: Vec<u64> = (1..=450).collect();
        let page = |after: usize| ItemPage::of(&all[after..], after as u64, |number| *number);
        let (first, last, beyond) = (page(0), page(400), page(450));
        assert_eq!((first.items.len(), first.after, first.more), (200, 200, true));
        assert_eq!((last.items.len(), last.after, last.more), (50, 450, false));
        assert_eq!((beyond.items.len(), beyond.after, beyond.more), (0, 450, false));
        let text = super::page("numbers", &page(448)).to_string();
        assert_eq!(text, r#"{"after":450,"more":false,"numbers":[449,450]}"#);
    }

    #[test]
    fn the_status_has_the_keys_of_the_files() {
        let status = status(&overview());
        assert_eq!(status["status"], "training: step 812 of 1,000 with 2 workers");
        assert_eq!(status["world_size"], 2);
        let lapse = json!([{ "first": 4, "count": 2, "since_unix_ms": 77 }]);
        assert_eq!(status["under_protected"], lapse);
        assert_eq!(status["waiting"], Value::Null);
        assert_eq!((&status["bitwise"], &status["bitwise_reason"]), (&true.into(), &Value::Null));
    }

    #[test]
    fn the_status_says_in_figures_what_a_run_waits_for() {
        let mut overview = overview();
        let view = &mut overview.cluster;
        view.now_unix_ms = 9_000;
        view.outage = Some((2, Duration::from_secs(4)));
        view.standstill = Some(Standstill { since_unix_ms: 7_000, reason: "slow".into() });
        view.model_awaited = Some(ModelAwaited { failed: None, since_unix_ms: 8_000 });
        let told = status(&overview);
        assert_eq!(told["outage"], json!({ "silent": 2, "since_unix_ms": 5_000 }));
        assert_eq!(told["standstill"], json!({ "since_unix_ms": 7_000, "reason": "slow" }));
        assert_eq!(told["model_awaited"]["since_unix_ms"], 8_000);
        assert_eq!((&told["owners_awaited"], &told["waiting"]), (&Value::Null, &Value::Null));
        let text = crate::http::metrics::text(&overview);
        for line in [
            "everstep_waiting 1",
            "everstep_waiting_seconds{what=\"owners\"} 0",
            "everstep_waiting_seconds{what=\"store\"} 1",
            "everstep_waiting_seconds{what=\"devices\"} 2",
            "everstep_waiting_seconds{what=\"network\"} 4",
        ] {
            assert!(text.lines().any(|there| there == line), "{line} is not in:\n{text}");
        }
    }

    #[test]
    fn the_status_says_which_worker_cannot_use_the_store() {
        let mut overview = overview();
        let told = status(&overview);
        assert_eq!((&told["store_error"], &told["checkpoint"]), (&Value::Null, &json!(800)));
        overview.cluster.now_unix_ms = 9_000;
        overview.cluster.store_error = Some(CheckpointStoreError {
            worker: WorkerId(5),
            called: "worker 1 (id 5)".into(),
            reason: "no route".into(),
            since_unix_ms: 2_000,
            waits: true,
        });
        let told = status(&overview);
        let expected =
            json!({ "worker": 5, "reason": "no route", "since_unix_ms": 2_000, "waits": true });
        assert_eq!(told["store_error"], expected);
        assert_eq!(told["state"], "waiting");
        let text = crate::http::metrics::text(&overview);
        assert!(text.contains("everstep_waiting_seconds{what=\"store\"} 7\n"), "{text}");
        overview.cluster.run.as_mut().expect("a run").checkpoint = None;
        let text = crate::http::metrics::text(&overview);
        assert!(!text.contains("everstep_checkpoint_step"), "an alert on its age would fire");
    }

    #[test]
    fn a_worker_is_told_with_its_device_and_how_that_does() {
        let workers = json!(overview().cluster.workers);
        let gpu = json!({
            "kind": "cuda", "number": 1, "capability": "9.0", "uuid": "07".repeat(16),
            "peak_flops": 989_000_000_000_000_u64,
        });
        let device = json!({ "name": "NVIDIA H200", "precision": "bf16", "gpu": gpu });
        assert_eq!(workers[0]["device"], device);
        assert_eq!(workers[0]["telemetry"]["power_milliwatts"], 612_500);
        let cpu = json!({ "name": "cpu", "precision": "f32", "gpu": null });
        assert_eq!((&workers[1]["device"], &workers[1]["telemetry"]), (&cpu, &Value::Null));
    }
}
