//! `everstep run pause`: lets the run rest after the step under way.

use std::time::{Duration, Instant};

use everstep_transport::protocol::{OperatorCommand, RunId};
use serde_json::json;

use super::sentence;
use crate::cli::AskFlags;
use crate::failure::Failure;
use crate::operator::ClusterHandle;
use crate::output;

/// How often the program asks whether the pause is in force.
const PAUSE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The program waits this long for the end of the step under way, which may be a long one.
const PAUSE_WAIT: Duration = Duration::from_secs(30);

pub(super) fn run(flags: &AskFlags) -> Result<(), Failure> {
    let paused = ClusterHandle::find(&flags.cluster)?.ask(async |operator| {
        // The command names the run of this answer, so no other one that began meanwhile pauses.
        let run = operator.runs().await?.last().map_or(RunId(0), |run| run.id);
        operator.command(OperatorCommand::Pause(run)).await?;
        let began = Instant::now();
        loop {
            let shown = operator.runs().await?.pop();
            let is_under_way = shown.as_ref().is_some_and(|run| run.state != "paused")
                && shown.as_ref().is_some_and(|shown| shown.id == run)
                && shown.as_ref().is_some_and(|run| run.figures.ended_unix_ms.is_none());
            if !is_under_way || began.elapsed() >= PAUSE_WAIT {
                return Ok(shown);
            }
            tokio::time::sleep(PAUSE_POLL_INTERVAL).await;
        }
    })?;
    if flags.json {
        return output::print(json!(paused));
    }
    output::print(paused.as_ref().map_or("it pauses".into(), sentence))
}
