//! The events of a cluster, in plain sentences: one for each event that a user should know.

use everstep_transport::protocol::outcome::{Event, EventKind};
use everstep_transport::protocol::{WorkerId, WriteFailure};

use crate::cluster::Progress;
use crate::output;

/// The sentence for an event. None for events that every run has.
pub(crate) fn sentence(event: &Event, progress: &Progress) -> Option<String> {
    let called = |worker: &WorkerId| progress.called(*worker);
    let sentence = match &event.kind {
        EventKind::Lost { worker, reason, .. } => format!("lost {}: {reason}", called(worker)),
        EventKind::Joined { worker } => format!("{} has joined", called(worker)),
        EventKind::Draining { worker } => format!("{} drains", called(worker)),
        EventKind::Left { worker } => format!("{} has left", called(worker)),
        EventKind::Refused { name, reason } => format!("refused {name}: {reason}"),
        EventKind::Unreachable { workers } => {
            let remedy = "mend the network between them, and the run then goes on by itself (with \
                          copies = 2 it goes on without one of them)";
            format!("{}: {remedy}", apart(*workers, progress))
        }
        EventKind::Rollback { from, to, reason } => {
            format!("went back from step {from} to step {to}: {reason}")
        }
        EventKind::Continued { step } => format!("goes on from the checkpoint of step {step}"),
        EventKind::Unwritten { failure: WriteFailure { worker, place, reason, .. } } => {
            let who = called(worker);
            format!("{who} cannot write the model to {place}: {reason}. It tries again")
        }
        EventKind::NoStore => {
            "no worker has a directory to write the model to: start one with --dir".into()
        }
        EventKind::Standstill { reason } => {
            format!("no device gets on, and no other worker could do better: {reason}")
        }
        // The first event is the first leader, in whatever term it was elected.
        EventKind::Leading { term, coordinator } if event.number > 1 => {
            format!("coordinator {coordinator} leads from now on, in term {term}")
        }
        EventKind::Checkpoint { .. }
        | EventKind::CheckpointFailed { .. }
        | EventKind::CheckpointsResumed { .. }
        | EventKind::CheckpointSkipped { .. }
        | EventKind::CheckpointsSkipped { .. }
        | EventKind::CheckpointDamaged { .. }
        | EventKind::Paused { .. }
        | EventKind::Resumed
        | EventKind::Recovered { .. }
        | EventKind::Unable { .. }
        | EventKind::LinesLost { .. }
        | EventKind::Preempted { .. }
        | EventKind::WaitingOver { .. } => event.kind.sentence(|worker| progress.called(worker)),
        EventKind::Waiting { .. } // The launcher says now and then what the run waits for.
        | EventKind::Submitted { .. }
        | EventKind::Registered { .. }
        | EventKind::Leading { .. }
        | EventKind::CheckpointRequested { .. }
        | EventKind::Generation { .. }
        | EventKind::Complete { .. }
        | EventKind::Failed { .. } => return None,
    };
    Some(output::plain(&sentence))
}

/// Two workers keep the run from going on.
pub(crate) fn apart((one, other): (WorkerId, WorkerId), progress: &Progress) -> String {
    let (one, other) = (progress.called(one), progress.called(other));
    format!(
        "{one} and {other} cannot reach each other, and neither can be left out without \
         losing optimizer state"
    )
}

/// The number of parameter shards that lack owners now. None if all have theirs.
pub(crate) fn lacking(progress: &Progress) -> Option<String> {
    let lapses = progress.protection.open();
    let shards: u32 = lapses.iter().map(|lapse| lapse.count).sum();
    (shards > 0).then(|| format!("under-protected: {shards} parameter shards"))
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::{CoordinatorId, Step, Term};

    use super::*;
    use everstep_transport::protocol::reason::RollbackReason;

    /// The sentence for the event with this number.
    fn said(number: u64, kind: EventKind) -> Option<String> {
        sentence(&Event { number, unix_ms: 0, kind }, &Progress::default())
    }

    #[test]
    fn a_rollback_is_said_with_both_steps() {
        let reason = RollbackReason::CheckpointDamaged(Step(40));
        let rollback = EventKind::Rollback { from: Step(57), to: Step(0), reason };
        let expected = "went back from step 57 to step 0: the checkpoint of step 40 is damaged";
        assert_eq!(said(9, rollback).as_deref(), Some(expected));
    }

    #[test]
    fn a_pair_that_stops_the_run_is_told_with_what_to_do() {
        let kind = EventKind::Unreachable { workers: (WorkerId(3), WorkerId(5)) };
        let words = "the worker with id 3 and the worker with id 5 cannot reach each other, and \
                     neither can be left out without losing optimizer state: mend the network \
                     between them, and the run then goes on by itself (with copies = 2 it goes on \
                     without one of them)";
        assert_eq!(said(9, kind).as_deref(), Some(words));
    }

    #[test]
    fn a_checkpoint_is_said_with_its_size_and_its_time() {
        let (step, bytes, seconds, state_hash) = (Step(500), 1_503_200_000, 2.34, [8; 32]);
        let kind = EventKind::Checkpoint { step, bytes, seconds, state_hash };
        let words = "checkpoint of step 500: 1503.2 MB in 2.3 s";
        assert_eq!(said(9, kind).as_deref(), Some(words));
    }

    #[test]
    fn what_every_run_has_is_not_said() {
        assert_eq!(said(9, EventKind::Complete { step: Step(3), model: None }), None);
        let left = said(9, EventKind::Left { worker: WorkerId(7) });
        assert_eq!(left.as_deref(), Some("the worker with id 7 has left"));
    }

    #[test]
    fn the_first_leader_is_not_said_to_lead_anew() {
        let leading = || EventKind::Leading { term: Term(2), coordinator: CoordinatorId(3) };
        assert_eq!(said(1, leading()), None);
        let expected = "coordinator 3 leads from now on, in term 2";
        assert_eq!(said(7, leading()).as_deref(), Some(expected));
    }
}
