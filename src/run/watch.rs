//! `everstep run watch`: follows the newest run to its end.
//!
//! It prints a line whenever the run's state or its trouble is new, and every two seconds while it
//! trains. It goes on asking while no coordinator answers: a cluster that cannot be asked trains
//! on.

use std::thread::sleep;
use std::time::{Duration, Instant};

use everstep_transport::protocol::figures::Trouble;
use everstep_transport::protocol::question::RunView;
use serde_json::json;

use super::ended::EndedRun;
use super::sentence;
use super::status::{now_unix_ms, pace, trouble};
use crate::cli::AskFlags;
use crate::failure::{Exit, Failure};
use crate::operator::ClusterHandle;
use crate::output;

/// How often the program asks the cluster.
const RUN_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often it prints a line of a run that trains.
const RUN_LINE_INTERVAL: Duration = Duration::from_secs(2);

pub(super) fn run(flags: &AskFlags) -> Result<(), Failure> {
    let mut watched = Watched::default();
    loop {
        if let Some(ended) = EndedRun::find(&flags.cluster)? {
            output::print(if flags.json { ended.json().to_string() } else { ended.words() })?;
            return outcome(ended.is_complete());
        }
        match ClusterHandle::find(&flags.cluster)?.ask(async |operator| operator.runs().await) {
            Ok(runs) => {
                if let Some(over) = watched.take(runs.last(), flags.json)? {
                    return outcome(over);
                }
            }
            Err(failure) if failure.exit == Exit::Capacity => output::say(failure),
            // The cluster of a single run has ended between two questions.
            Err(_) if EndedRun::find(&flags.cluster)?.is_some() => {}
            Err(failure) => return Err(failure),
        }
        sleep(RUN_POLL_INTERVAL);
    }
}

/// The last news that the user had.
#[derive(Default)]
struct Watched {
    state: Option<String>,
    trouble: Option<Trouble>,
    printed_at: Option<Instant>,
}

impl Watched {
    /// Prints the news. Returns whether the run is complete, once it is over.
    fn take(&mut self, run: Option<&RunView>, as_json: bool) -> Result<Option<bool>, Failure> {
        let state = run.map_or("waiting for a run", |run| &run.state).to_string();
        let trouble = run.and_then(|run| run.figures.trouble.clone());
        let is_due =
            self.printed_at.is_none_or(|at| at.elapsed() >= RUN_LINE_INTERVAL) && run.is_some();
        let is_new = self.state.as_ref() != Some(&state) || self.trouble != trouble;
        if is_new || is_due {
            let new_trouble = trouble != self.trouble;
            output::print(if as_json { json!(run).to_string() } else { line(run, new_trouble) })?;
            self.printed_at = Some(Instant::now());
        }
        (self.state, self.trouble) = (Some(state), trouble);
        let over = run.filter(|run| matches!(run.state.as_str(), "complete" | "failed"));
        Ok(over.map(|run| run.state == "complete"))
    }
}

fn line(run: Option<&RunView>, new_trouble: bool) -> String {
    let Some(run) = run else { return "waiting for a run".into() };
    let pace = pace(run).map_or(String::new(), |pace| format!("; {pace}"));
    let trouble = trouble(&run.figures, now_unix_ms()).filter(|_| new_trouble);
    let trouble = trouble.map_or(String::new(), |trouble| format!("\n  {trouble}"));
    format!("{}{pace}{trouble}", sentence(run))
}

fn outcome(complete: bool) -> Result<(), Failure> {
    match complete {
        true => Ok(()),
        false => Err(Failure::new(Exit::Failed, "the run is not complete")),
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::run::Units;
    use everstep_transport::protocol::{Generation, RunId, Step, exemplars};

    use super::*;

    fn view(state: &str) -> RunView {
        RunView {
            id: RunId(3),
            name: "small".into(),
            state: state.into(),
            status: format!("{state}: so"),
            step: Step(2),
            generation: Generation(1),
            hash: None,
            divergence: None,
            units: Units::default(),
            figures: exemplars::figures(),
        }
    }

    #[test]
    fn a_run_is_watched_to_its_end() {
        let mut watched = Watched::default();
        assert_eq!(watched.take(None, false), Ok(None));
        assert_eq!(watched.take(Some(&view("training")), false), Ok(None));
        assert_eq!(watched.take(Some(&view("complete")), true), Ok(Some(true)));
        assert_eq!(watched.take(Some(&view("failed")), false), Ok(Some(false)));
    }

    #[test]
    fn trouble_is_told_once() {
        let told = line(Some(&view("training")), true);
        assert!(told.contains("loss 2.500") && told.contains("worker 2 (id 7) was lost"), "{told}");
        assert!(!line(Some(&view("training")), false).contains("lost"), "it was told before");
    }
}
