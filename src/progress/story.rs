//! What happens to a cluster, in plain sentences: one for each event that a user should hear of.

use everstep_transport::protocol::WorkerId;
use everstep_transport::protocol::outcome::{Event, EventKind};

use crate::cluster::Progress;

/// The sentence for an event; none for what every run has.
pub(crate) fn sentence(event: &Event) -> Option<String> {
    Some(match &event.kind {
        EventKind::Lost { worker, reason, .. } => format!("lost worker {worker}: {reason}"),
        EventKind::Joined { worker } => format!("worker {worker} has joined"),
        EventKind::Draining { worker } => format!("worker {worker} drains"),
        EventKind::Left { worker } => format!("worker {worker} has left"),
        EventKind::Refused { name, reason } => format!("refused {name}: {reason}"),
        EventKind::Unreachable { workers } => {
            let remedy = "mend the network between them; the run then goes on by itself (with \
                          copies = 2 it goes on without one of them)";
            format!("{}: {remedy}", apart(*workers))
        }
        EventKind::Rollback { from, to, reason } => {
            format!("went back from step {from} to step {to}: {reason}")
        }
        // The first event is that somebody leads, in whatever term the first votes were enough.
        EventKind::Leading { term } if event.number > 1 => {
            format!("a coordinator leads anew, in term {term}")
        }
        EventKind::Submitted { .. }
        | EventKind::Registered { .. }
        | EventKind::Leading { .. }
        | EventKind::Generation { .. }
        | EventKind::Complete { .. }
        | EventKind::Failed { .. } => return None,
    })
}

/// Two workers keep the run from going on.
pub(crate) fn apart((one, other): (WorkerId, WorkerId)) -> String {
    format!(
        "workers {one} and {other} cannot reach each other, and neither can be left out without \
         losing optimizer state"
    )
}

/// Which parameter shards lack owners now, if any do.
pub(crate) fn lacking(progress: &Progress) -> Option<String> {
    let lapses = progress.protection.open();
    let shards: u32 = lapses.iter().map(|lapse| lapse.count).sum();
    (shards > 0).then(|| format!("under-protected: {shards} parameter shards"))
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::{Step, Term};

    use super::*;

    /// What is said of the event with this number.
    fn said(number: u64, kind: EventKind) -> Option<String> {
        sentence(&Event { number, unix_ms: 0, kind })
    }

    #[test]
    fn a_rollback_is_said_with_both_steps() {
        let reason = "shard 3 has no owner left".to_string();
        let rollback = EventKind::Rollback { from: Step(57), to: Step(0), reason };
        let expected = "went back from step 57 to step 0: shard 3 has no owner left";
        assert_eq!(said(9, rollback).as_deref(), Some(expected));
    }

    #[test]
    fn a_pair_that_stops_the_run_is_told_with_what_to_do() {
        let kind = EventKind::Unreachable { workers: (WorkerId(3), WorkerId(5)) };
        let words = "workers 3 and 5 cannot reach each other, and neither can be left out without \
                    losing optimizer state: mend the network between them; the run then goes on by \
                    itself (with copies = 2 it goes on without one of them)";
        assert_eq!(said(9, kind).as_deref(), Some(words));
    }

    #[test]
    fn what_every_run_has_is_not_said() {
        assert_eq!(said(9, EventKind::Complete { step: Step(3) }), None);
        let left = said(9, EventKind::Left { worker: WorkerId(7) });
        assert_eq!(left.as_deref(), Some("worker 7 has left"));
    }

    #[test]
    fn the_first_leader_is_not_said_to_lead_anew() {
        let leading = |term| EventKind::Leading { term: Term(term) };
        assert_eq!(said(1, leading(2)), None);
        assert_eq!(said(7, leading(2)).as_deref(), Some("a coordinator leads anew, in term 2"));
    }
}
