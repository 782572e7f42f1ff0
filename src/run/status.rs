//! `everstep run status`: the state of the newest run, and what it waits for, or how it ended.

use std::time::{SystemTime, UNIX_EPOCH};

use everstep_transport::protocol::figures::RunFigures;
use everstep_transport::protocol::question::RunView;
use serde_json::json;

use super::ended::EndedRun;
use super::sentence;
use crate::cli::AskFlags;
use crate::failure::Failure;
use crate::operator::ClusterHandle;
use crate::output;
use crate::progress::{clock, shown_loss};

pub(super) fn run(flags: &AskFlags) -> Result<(), Failure> {
    if let Some(ended) = EndedRun::find(&flags.cluster)? {
        return match flags.json {
            true => output::print(ended.json()),
            false => output::print(ended.words()),
        };
    }
    let runs = ClusterHandle::find(&flags.cluster)?.ask(async |operator| operator.runs().await)?;
    let newest = runs.last();
    if flags.json {
        return output::print(json!(newest));
    }
    let nothing = || "waiting for a run. `everstep run submit FILE` gives the cluster one".into();
    output::print(newest.map_or_else(nothing, |run| words(run, now_unix_ms())))
}

/// The state of a run, in a few lines for people.
fn words(run: &RunView, now_unix_ms: u64) -> String {
    let mut lines = vec![sentence(run)];
    let reason = run.divergence.as_ref();
    lines.extend(reason.map(|reason| format!("not bitwise: {}", output::plain(reason))));
    lines.extend(pace(run).map(|pace| format!("  {pace}")));
    lines.extend(changes(&run.figures).map(|changes| format!("  {changes}")));
    lines.extend(trouble(&run.figures, now_unix_ms).map(|trouble| format!("  {trouble}")));
    if let Some(hash) = run.hash {
        lines.push(format!("  state hash {}", hash.map(|byte| format!("{byte:02x}")).concat()));
    }
    lines.join("\n")
}

/// Loss, throughput and remaining time. None before the first step.
pub(super) fn pace(run: &RunView) -> Option<String> {
    let RunView { units, figures, .. } = run;
    let loss = units.loss(shown_loss(figures.loss?));
    let first = figures.first_loss.map(|first| format!(" (at first {})", shown_loss(first)));
    let first = first.unwrap_or_default();
    let held_out = figures.validation_loss;
    let held_out =
        held_out.map_or(String::new(), |loss| format!(", validation {}", shown_loss(loss)));
    let rate = figures.tokens_per_second;
    let rate = rate.map_or(String::new(), |rate| format!(", {}", units.throughput(rate)));
    let eta = figures.eta_seconds.filter(|_| figures.ended_unix_ms.is_none());
    let eta = eta.map_or(String::new(), |seconds| format!(", ETA {}", clock(seconds)));
    Some(format!("loss {loss}{first}{held_out}{rate}{eta}"))
}

fn changes(figures: &RunFigures) -> Option<String> {
    let RunFigures { generations, workers_lost, steps_redone, rollbacks, .. } = figures;
    if *generations <= 1 && *workers_lost == 0 {
        return None;
    }
    let stall = figures.longest_stall_ms;
    let stall = stall.map_or(String::new(), |stall| format!(", longest stall {stall:.0} ms"));
    Some(format!(
        "generations {generations}, workers lost {workers_lost}, steps redone {steps_redone}, \
         rollbacks {rollbacks}{stall}"
    ))
}

/// The newest trouble, and how long ago it was.
pub(super) fn trouble(figures: &RunFigures, now_unix_ms: u64) -> Option<String> {
    let trouble = figures.trouble.as_ref()?;
    let ago = now_unix_ms.saturating_sub(trouble.unix_ms) as f64 / 1e3;
    Some(format!("last trouble, {} ago: {}", clock(ago), output::plain(&trouble.words())))
}

pub(super) fn now_unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |span| span.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::figures::Trouble;
    use everstep_transport::protocol::run::{LossUnit, TargetUnit, Units};
    use everstep_transport::protocol::{Generation, RunId, Step, exemplars};

    use super::*;

    fn view(figures: RunFigures) -> RunView {
        RunView {
            id: RunId(733),
            name: "small".into(),
            state: "training".into(),
            status: "training: step 253 of 3,000 with 2 workers".into(),
            step: Step(253),
            generation: Generation(1),
            hash: None,
            divergence: None,
            units: Units::default(),
            figures,
        }
    }

    #[test]
    fn a_run_under_way_is_told_with_its_pace_and_its_last_trouble() {
        let trouble = Trouble { unix_ms: 60_000, ..exemplars::trouble() };
        let figures = RunFigures {
            first_loss: Some(5.5),
            loss: Some(2.25),
            tokens_per_second: Some(51_234.4),
            eta_seconds: Some(190.0),
            generations: 2,
            workers_lost: 1,
            steps_redone: 1,
            trouble: Some(trouble),
            ..RunFigures::default()
        };
        let told = words(&view(figures), 72_000);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(
            lines,
            [
                "run 733 \"small\": training: step 253 of 3,000 with 2 workers",
                "  loss 2.250 nats (at first 5.500), 51234 tokens/s, ETA 3 min 10 s",
                "  generations 2, workers lost 1, steps redone 1, rollbacks 0",
                "  last trouble, 12 s ago: worker 2 (id 7) was lost: an operator revoked it",
            ]
        );
    }

    #[test]
    fn the_figures_of_a_model_of_samples_are_in_its_own_units() {
        let units = Units { unit: TargetUnit::Sample, loss_unit: LossUnit::None };
        let pace = pace(&RunView { units, ..view(exemplars::figures()) }).expect("it has begun");
        assert!(pace.contains(" samples/s"), "{pace}");
        assert!(!pace.contains("nats") && !pace.contains("tokens"), "{pace}");
    }

    #[test]
    fn a_run_that_has_not_begun_has_no_pace_and_one_that_is_over_has_no_eta() {
        assert_eq!(words(&view(RunFigures::default()), 0).lines().count(), 1);
        let told = words(&RunView { hash: Some([7; 32]), ..view(exemplars::figures()) }, 0);
        assert!(!told.contains("ETA") && told.contains("validation 2.750"), "{told}");
        assert!(told.ends_with(&"07".repeat(32)), "{told}");
    }
}
