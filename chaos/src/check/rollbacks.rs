//! I21: no rollback happens while a process that owns a needed copy may live, unless the run allows
//! a leader to give it up, or an operator asks for it. I6 follows from it.

use std::collections::BTreeSet;

use everstep_transport::protocol::{Record, Shard, Step, WorkerId};

use super::{Breach, Invariant};

/// The run goes back behind `before`, to `resume`, or begins again at its checkpoint of the newest
/// settled step, and undoes nothing. `lost` are its members that are gone in truth, or that the
/// run allows a leader to give up.
pub(super) fn rolled_back(
    before: &Record,
    lost: &BTreeSet<WorkerId>,
    (resume, settled): (Step, Step),
) -> Result<(), Breach> {
    if resume > Step(0) && resume >= settled {
        return Ok(());
    }
    let gone = |shard: Shard| {
        let mut owners = before.owners_of(shard).iter().map(|rank| before.member(*rank).worker);
        owners.all(|worker| lost.contains(&worker))
    };
    if (0..before.shards()).map(Shard).any(gone) {
        return Ok(());
    }
    let seen = format!(
        "generation {} is rolled back, but an owner of every shard lives: only {lost:?} are lost",
        before.number
    );
    Err((Invariant::I21, seen))
}
