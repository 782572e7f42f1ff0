//! I26: a paused run takes no step while its pause is in force, nor does any generation that waits.
//! And a checkpoint that was asked for is listed, or an event says why not.

use std::collections::BTreeSet;

use everstep_transport::protocol::outcome::{Event, EventKind};
use everstep_transport::protocol::{Commit, Record, Step};

use super::{Breach, Invariant};

/// What events have told of pauses, and of checkpoints that were asked for.
#[derive(Debug, Default)]
pub(super) struct Rests {
    /// The last step of the run. Its members only finish after it.
    steps: Step,
    is_paused: bool,
    /// A generation that starts no step has begun since the pause was asked for.
    is_in_force: bool,
    /// The steps of checkpoints that were asked for, and are neither listed nor failed.
    asked: BTreeSet<Step>,
    listed: BTreeSet<Step>,
}

impl Rests {
    /// A run of so many steps.
    pub(super) fn new(steps: u64) -> Self {
        Self { steps: Step(steps), ..Self::default() }
    }

    /// A member has committed a step of the generation with this record.
    pub(super) fn committed(record: &Record, commit: &Commit) -> Result<(), Breach> {
        if !record.waiting {
            return Ok(());
        }
        let (step, generation) = (commit.step, record.number);
        let seen = format!("step {step} is committed in generation {generation}, which waits");
        Err((Invariant::I26, seen))
    }

    /// A watcher has heard of an event.
    pub(super) fn told(&mut self, event: &Event) -> Result<(), Breach> {
        match &event.kind {
            EventKind::Paused { .. } => (self.is_paused, self.is_in_force) = (true, false),
            EventKind::Resumed => (self.is_paused, self.is_in_force) = (false, false),
            EventKind::Generation { generation, waiting, at_step, .. } if self.is_paused => {
                if self.is_in_force && !waiting && *at_step < self.steps {
                    let seen =
                        format!("generation {generation} takes steps, and the run is paused");
                    return Err((Invariant::I26, seen));
                }
                self.is_in_force |= *waiting;
            }
            EventKind::CheckpointRequested { step } if !self.listed.contains(step) => {
                self.asked.insert(*step);
            }
            EventKind::Checkpoint { step, .. } | EventKind::Continued { step } => {
                self.listed.insert(*step);
                self.asked.remove(step);
            }
            EventKind::CheckpointFailed { step, .. } => _ = self.asked.remove(step),
            EventKind::CheckpointDamaged { step, .. } => _ = self.listed.remove(step),
            // A cluster that goes on from another one's store has older checkpoints than the one of
            // which an event tells, and may go back to them.
            EventKind::Rollback { to, .. } => {
                self.listed.split_off(&to.next());
                self.listed.insert(*to);
            }
            EventKind::Complete { .. } => {
                if let Some(step) = self.asked.first() {
                    let seen = format!("nothing tells of the checkpoint of step {step}");
                    return Err((Invariant::I26, seen));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::outcome::PausedBy;
    use everstep_transport::protocol::reason::{PauseReason, RollbackReason, UnsavedReason};
    use everstep_transport::protocol::{Cause, Generation, Message, exemplars};

    use super::*;

    /// What a watcher finds that hears of these, in order.
    fn found(kinds: &[EventKind]) -> Option<Invariant> {
        let mut rests = Rests::new(9);
        let event =
            |(number, kind): (u64, &EventKind)| Event { number, unix_ms: 1, kind: kind.clone() };
        let mut events = (1..).zip(kinds).map(event);
        events.find_map(|event| rests.told(&event).err()).map(|(invariant, _)| invariant)
    }

    fn generation(number: u64, waiting: bool, at_step: u64) -> EventKind {
        EventKind::Generation {
            generation: Generation(number),
            cause: Cause::Pause,
            workers: vec![],
            at_step: Step(at_step),
            redone: false,
            waiting,
            under_protected: vec![],
        }
    }

    fn paused() -> EventKind {
        EventKind::Paused { by: PausedBy::Operator, reason: PauseReason::Asked }
    }

    #[test]
    fn i26_a_step_in_a_generation_that_waits_is_found() {
        let mut records = exemplars::all().into_iter().filter_map(|message| match message {
            Message::Announce(record) => Some(record),
            _ => None,
        });
        let mut record = records.next().expect("every message has an exemplar");
        let commit = record.commit.clone().expect("it has a commit");
        assert_eq!(Rests::committed(&record, &commit), Ok(()));
        record.waiting = true;
        assert!(Rests::committed(&record, &commit).is_err_and(|found| found.0 == Invariant::I26));
    }

    #[test]
    fn i26_a_generation_that_takes_steps_in_a_pause_is_found() {
        let begun = [generation(1, false, 0), paused(), generation(2, false, 3)];
        assert_eq!(found(&begun), None, "the pause is not in force");
        let rests = [paused(), generation(2, true, 3), generation(3, true, 3)];
        assert_eq!(found(&rests), None);
        let resumed = [&rests[..], &[EventKind::Resumed, generation(4, false, 3)]].concat();
        assert_eq!(found(&resumed), None);
        let ended = [&rests[..], &[generation(4, false, 3)]].concat();
        assert_eq!(found(&ended), Some(Invariant::I26));
        let trained = [&rests[..], &[generation(4, false, 9)]].concat();
        assert_eq!(found(&trained), None, "no step follows the last");
    }

    #[test]
    fn i26_a_checkpoint_of_which_nothing_tells_is_found() {
        let asked = || EventKind::CheckpointRequested { step: Step(4) };
        let reason = || UnsavedReason::NoPart;
        let failed = || EventKind::CheckpointFailed { step: Step(4), reason: reason() };
        let listed = || {
            let state_hash = [8; 32];
            EventKind::Checkpoint { step: Step(4), bytes: 1, seconds: 1.0, state_hash }
        };
        let over = || EventKind::Complete { step: Step(9), model: None };
        let continued = || EventKind::Continued { step: Step(4) };
        let fates = [[asked(), failed()], [asked(), listed()], [listed(), asked()]];
        let back =
            || EventKind::Rollback { from: Step(7), to: Step(4), reason: RollbackReason::Asked };
        for told in fates.into_iter().chain([[continued(), asked()], [back(), asked()]]) {
            assert_eq!(found(&[&told[..], &[over()]].concat()), None, "{told:?}");
        }
        assert_eq!(found(&[asked(), over()]), Some(Invariant::I26));
    }
}
