//! `everstep coordinator transfer-leader`: another coordinator leads.

use everstep_transport::protocol::CoordinatorId;
use serde_json::json;

use crate::cli::TransferFlags;
use crate::failure::Failure;
use crate::operator::{ClusterHandle, CoordinatorsStatus, Operator, OperatorError};
use crate::output;

pub(super) fn run(flags: &TransferFlags) -> Result<(), Failure> {
    let to = flags.to.map(CoordinatorId);
    let leader = ClusterHandle::find(&flags.ask.cluster)?.ask(async |operator| match to {
        Some(to) => operator.transfer(to).await.map(|()| to),
        None => to_any_other(operator).await,
    })?;
    if flags.ask.json {
        return output::print(json!({ "leader": leader }));
    }
    output::print(format_args!("coordinator {leader} leads"))
}

/// Asks the leader to hand over to the coordinator with most of the log. Returns the new leader. In
/// an election another coordinator may win, which serves the operator as well.
async fn to_any_other(operator: &mut Operator) -> Result<CoordinatorId, OperatorError> {
    let before = operator.status().await?;
    let to = successor(&before)?;
    let Err(error) = operator.transfer(to).await else { return Ok(to) };
    let after = operator.status().await?;
    leader(&after).filter(|now| Some(*now) != leader(&before)).ok_or(error)
}

fn leader(status: &CoordinatorsStatus) -> Option<CoordinatorId> {
    let mut coordinators = status.coordinators.iter();
    coordinators.find(|coordinator| coordinator.leads).map(|coordinator| coordinator.view.id)
}

/// The coordinator with most of the log, of those that may lead and do not.
fn successor(status: &CoordinatorsStatus) -> Result<CoordinatorId, OperatorError> {
    let others = status.coordinators.iter().filter(|coordinator| {
        coordinator.votes && !coordinator.leads && coordinator.silent_since_unix_ms.is_none()
    });
    let furthest = others.max_by_key(|coordinator| coordinator.matched);
    let none = || OperatorError::Refused("no other coordinator is there that could lead".into());
    furthest.map(|coordinator| coordinator.view.id).ok_or_else(none)
}
