//! I21: no rollback happens while a process that owns a needed copy may live, unless the run allows
//! a leader to give it up, or an operator asks for it. I6 follows from it, but for members that the
//! cluster itself lets go: all of them may leave together only if a checkpoint has what they hold.

use std::collections::BTreeSet;

use everstep_transport::protocol::{CheckpointId, Record, Shard, Step, WorkerId};

use super::{Breach, Invariant};

/// The run goes back behind `before`, to `resume`, or begins again at its checkpoint of the newest
/// settled step, and undoes nothing. `lost` are its members that are gone in truth, or that the
/// run allows a leader to give up.
pub(super) fn rolled_back(
    before: &Record,
    lost: &BTreeSet<WorkerId>,
    resume: Step,
    settled: Step,
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

/// All members of this generation have left together, while the log lists these checkpoints.
pub(super) fn left_together(
    record: &Record,
    listed: &BTreeSet<CheckpointId>,
) -> Result<(), Breach> {
    let (number, step) = (record.number, record.resume);
    // The seed has the state before the first step.
    let is_saved = step == Step(0) || listed.iter().any(|id| id.step == step);
    if record.waiting && is_saved {
        return Ok(());
    }
    let seen =
        format!("all members of generation {number} leave, and no checkpoint has step {step}");
    Err((Invariant::I6, seen))
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::{Generation, Message, exemplars};

    use super::*;

    #[test]
    fn i6_members_that_leave_together_without_a_checkpoint_are_found() {
        let mut records = exemplars::all().into_iter().filter_map(|message| match message {
            Message::Announce(record) => Some(record),
            _ => None,
        });
        let mut record = records.next().expect("every message has an exemplar");
        (record.waiting, record.resume) = (true, Step(7));
        let listed = |step| {
            let generation = Generation(1);
            BTreeSet::from([CheckpointId { step: Step(step), generation }])
        };
        assert_eq!(left_together(&record, &listed(7)), Ok(()));
        for other in [6, 8] {
            let found = left_together(&record, &listed(other));
            assert!(found.is_err_and(|found| found.0 == Invariant::I6), "{other}");
        }
        record.resume = Step(0);
        assert_eq!(left_together(&record, &BTreeSet::new()), Ok(()), "nothing is trained yet");
        (record.waiting, record.resume) = (false, Step(7));
        assert!(left_together(&record, &listed(7)).is_err(), "steps may follow");
    }
}
