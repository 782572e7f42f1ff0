//! `everstep coordinator transfer-leader`: another coordinator leads.

use everstep_transport::protocol::CoordinatorId;
use serde_json::json;

use crate::cli::TransferFlags;
use crate::failure::Failure;
use crate::operator::{OperatorError, Place, Standing};
use crate::output;

pub(super) fn run(flags: &TransferFlags) -> Result<(), Failure> {
    let leader = Place::find(&flags.ask.cluster)?.ask(async |operator| {
        let to = match flags.to {
            Some(to) => to,
            None => successor(&operator.standing().await?)?,
        };
        operator.transfer(to).await.map(|()| to)
    })?;
    if flags.ask.json {
        return output::print(json!({ "leader": leader }));
    }
    output::print(format_args!("coordinator {leader} leads"))
}

/// The one that has most of the log, of those that may lead and do not.
fn successor(standing: &Standing) -> Result<CoordinatorId, OperatorError> {
    let others = standing.coordinators.iter().filter(|coordinator| {
        coordinator.votes && !coordinator.leads && coordinator.silent_since_unix_ms.is_none()
    });
    let furthest = others.max_by_key(|coordinator| coordinator.matched);
    let none = || OperatorError::Refused("no other coordinator is there that could lead".into());
    furthest.map(|coordinator| coordinator.view.id).ok_or_else(none)
}
