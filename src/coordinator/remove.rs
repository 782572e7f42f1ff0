//! `everstep coordinator remove`: the others go on without one coordinator, for good.

use std::time::{Duration, Instant};

use everstep_transport::protocol::{CoordinatorId, OperatorCommand};
use serde_json::json;
use tokio::time::sleep;

use crate::cli::RemoveFlags;
use crate::failure::Failure;
use crate::operator::{ClusterHandle, Operator, OperatorError};
use crate::output;

/// The time between two questions.
const REMOVAL_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// After this time the program explains what it waits for.
const REMOVAL_EXPLAIN_AFTER: Duration = Duration::from_secs(3);

pub(super) fn run(flags: &RemoveFlags) -> Result<(), Failure> {
    let id = CoordinatorId(flags.coordinator);
    let cluster = ClusterHandle::find(&flags.ask.cluster)?;
    cluster.ask(async |operator| {
        operator.command(OperatorCommand::Remove(id)).await?;
        if flags.no_wait { Ok(()) } else { until_gone(operator, id).await }
    })?;
    let (state, words) = match flags.no_wait {
        true => ("leaving", "is to leave. Until it is gone from the status, the others need it"),
        false => ("removed", "is removed: the others go on without it, and its process ends"),
    };
    if flags.ask.json {
        return output::print(json!({ "id": id, "state": state }));
    }
    output::print(format_args!("coordinator {id} {words}"))
}

/// Waits until a majority of the others has durably recorded the removal.
async fn until_gone(operator: &mut Operator, id: CoordinatorId) -> Result<(), OperatorError> {
    let began = Instant::now();
    let mut told = false;
    loop {
        let status = operator.status().await?;
        if status.coordinators.iter().all(|coordinator| coordinator.view.id != id) {
            return Ok(());
        }
        if began.elapsed() > REMOVAL_EXPLAIN_AFTER && !told {
            output::say(format_args!(
                "waiting until the others do without coordinator {id}: those that learn the log \
                 are taken in first, and told what has happened. `everstep coordinator status` \
                 tells how they stand"
            ));
            told = true;
        }
        sleep(REMOVAL_POLL_INTERVAL).await;
    }
}
