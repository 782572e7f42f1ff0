//! `everstep checkpoint now`: saves a checkpoint, and waits until it is listed or has failed.
//!
//! The events of the cluster tell which step is saved, and why one is not.

use std::time::{Duration, Instant};

use everstep_transport::protocol::checkpoint::CheckpointView;
use everstep_transport::protocol::outcome::{EventKind, Outcome, Update};
use everstep_transport::protocol::{OperatorCommand, RunId, Step};
use serde_json::json;

use crate::cli::AskFlags;
use crate::cluster::block_on;
use crate::failure::{Exit, Failure};
use crate::operator::{ClusterHandle, NEWEST, Operator, OperatorError};
use crate::output;

/// How often the program asks for the checkpoint.
const CHECKPOINT_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long the coordinators may be unreachable meanwhile.
const CHECKPOINT_UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) fn run(flags: &AskFlags) -> Result<(), Failure> {
    let cluster = ClusterHandle::find(&flags.cluster)?;
    let saved = block_on(async {
        let mut operator = cluster.operator()?;
        let saved = save(&cluster, &mut operator).await;
        operator.close().await;
        saved
    })?;
    if flags.json {
        return output::print(json!(saved));
    }
    let CheckpointView { step, bytes, path, .. } = &saved;
    let seconds = saved.seconds.map_or(String::new(), |seconds| format!(", {seconds:.2} s"));
    output::print(format_args!("step {step}: {:.1} MB{seconds}, {path}", *bytes as f64 / 1e6))
}

/// What the events tell of the checkpoint that was asked for.
#[derive(Default)]
struct RequestedCheckpoint {
    /// The newest event before the request.
    event: u64,
    /// The step that is saved.
    step: Option<Step>,
    /// Why it was not saved.
    failed: Option<String>,
}

impl RequestedCheckpoint {
    fn take(&mut self, update: &Update) {
        for event in &update.events {
            self.event = event.number;
            match &event.kind {
                EventKind::CheckpointRequested { step } if self.step.is_none() => {
                    self.step = Some(*step);
                }
                EventKind::CheckpointFailed { step, reason } if self.step == Some(*step) => {
                    self.failed = Some(reason.to_string());
                }
                _ => {}
            }
        }
    }
}

async fn save(cluster: &ClusterHandle, operator: &mut Operator) -> Result<CheckpointView, Failure> {
    let ask = |error: OperatorError| cluster.failure(error);
    let run = operator.runs().await.map_err(ask)?.last().map_or(RunId(0), |run| run.id);
    let event = newest_event(operator).await.map_err(ask)?;
    let mut requested = RequestedCheckpoint { event, ..RequestedCheckpoint::default() };
    operator.command(OperatorCommand::Checkpoint(run)).await.map_err(ask)?;
    let mut heard = Instant::now();
    loop {
        match look(operator, &mut requested).await {
            Ok(Some(saved)) => return Ok(saved),
            Ok(None) if requested.failed.is_some() => return Err(not_saved(&requested)),
            Ok(None) => heard = Instant::now(),
            Err(OperatorError::Refused(why)) => return Err(ask(OperatorError::Refused(why))),
            Err(error) if heard.elapsed() > CHECKPOINT_UNREACHABLE_TIMEOUT => {
                return Err(ask(error));
            }
            Err(_) => {}
        }
        tokio::time::sleep(CHECKPOINT_POLL_INTERVAL).await;
    }
}

/// The number of the newest event.
async fn newest_event(operator: &mut Operator) -> Result<u64, OperatorError> {
    let mut newest = 0;
    loop {
        let update = operator.watch(Step(NEWEST), newest).await?;
        match update.events.last() {
            Some(event) => newest = event.number,
            None => return Ok(newest),
        }
    }
}

/// Takes the news. Returns the checkpoint once it is listed.
async fn look(
    operator: &mut Operator,
    requested: &mut RequestedCheckpoint,
) -> Result<Option<CheckpointView>, OperatorError> {
    let update = operator.watch(Step(NEWEST), requested.event).await?;
    requested.take(&update);
    let is_over = update.outcome != Outcome::Running;
    if is_over && requested.failed.is_none() && requested.step.is_none() {
        return Err(OperatorError::Refused("the run ended before it saved a checkpoint".into()));
    }
    let Some(step) = requested.step else { return Ok(None) };
    let listed = operator.checkpoints().await?;
    let saved = listed.into_iter().find(|view| view.step == step && view.complete);
    if saved.is_none() && is_over && requested.failed.is_none() {
        return Err(OperatorError::Refused("the run ended before the checkpoint was saved".into()));
    }
    Ok(saved)
}

fn not_saved(requested: &RequestedCheckpoint) -> Failure {
    let step = requested.step.unwrap_or_default();
    Failure::new(Exit::Failed, format!("the checkpoint of step {step} was not saved"))
        .because(requested.failed.as_deref().unwrap_or_default())
        .next("mend what it names, and ask again")
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::Message;
    use everstep_transport::protocol::exemplars;
    use everstep_transport::protocol::outcome::Event;
    use everstep_transport::protocol::reason::UnsavedReason;

    use super::*;

    #[test]
    fn only_the_failure_of_the_step_that_was_asked_for_counts() {
        let mut updates = exemplars::all().into_iter().filter_map(|message| match message {
            Message::Update(update) => Some(update),
            _ => None,
        });
        let mut update = updates.next().expect("an example of every message");
        let reason = || UnsavedReason::NoPart;
        let failed = |step| EventKind::CheckpointFailed { step: Step(step), reason: reason() };
        let kinds = [failed(7), EventKind::CheckpointRequested { step: Step(7) }, failed(5)];
        let event = |(number, kind)| Event { number, unix_ms: 1, kind };
        update.events = (4..).zip(kinds).map(event).collect();
        let mut requested = RequestedCheckpoint::default();
        requested.take(&update);
        assert_eq!((requested.event, requested.step, &requested.failed), (6, Some(Step(7)), &None));
        update.events = vec![event((7, failed(7)))];
        requested.take(&update);
        assert_eq!(requested.failed.as_deref(), Some("no worker saved a part of it"));
    }
}
