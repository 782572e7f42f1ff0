//! `everstep coordinator remove`: the others go on without one, for good.

use everstep_transport::protocol::Wish;
use serde_json::json;

use crate::cli::RemoveFlags;
use crate::failure::Failure;
use crate::operator::Place;
use crate::output;

pub(super) fn run(flags: &RemoveFlags) -> Result<(), Failure> {
    let id = flags.coordinator;
    let place = Place::find(&flags.ask.cluster)?;
    place.ask(async |operator| operator.wish(Wish::Remove(id)).await)?;
    if flags.ask.json {
        return output::print(json!({ "id": id, "state": "removed" }));
    }
    output::print(format_args!(
        "coordinator {id} is removed: the others go on without it, and its process ends"
    ))
}
