//! The first generation of a run.

use std::collections::BTreeMap;

use everstep_transport::protocol::generation::{Cause, Member};
use everstep_transport::protocol::{Generation, Record, RunSpec, Step, Term, WorkerId};

use crate::assign::{Candidate, Demand, assign};
use crate::state::Worker;

/// The one replica reigns for ever.
const TERM: Term = Term(1);

/// All who are present, ranked in the order of their registrations.
pub(super) fn first_generation(
    run: &RunSpec,
    shards: u32,
    present: &BTreeMap<WorkerId, &Worker>,
) -> Record {
    let candidates: Vec<_> =
        present.keys().map(|&worker| Candidate { worker, zone: None }).collect();
    let demand = Demand { data_shards: run.batch.data_shards, shards, copies: run.copies };
    let assignment = assign(demand, &candidates, None);
    let members = present.iter().zip(assignment.data_shards);
    let members = members.map(|((&worker, known), data_shards)| Member {
        worker,
        name: known.name.clone(),
        address: known.registration.address,
        data_shards,
    });
    Record {
        number: Generation(1),
        predecessor: Generation(0),
        term: TERM,
        cause: Cause::Start,
        members: members.collect(),
        owners: assignment.owners,
        resume: Step(0),
        commit: None,
        waiting: false,
    }
}
