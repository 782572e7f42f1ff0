//! What happens to a cluster, in plain sentences: one for each event that a user should hear of.

use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::{Term, WorkerId};

use crate::cluster::Progress;

/// The sentence for an event; none for what every run has.
pub(crate) fn sentence(event: &EventKind) -> Option<String> {
    Some(match event {
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
        EventKind::Leading { term } if *term > Term(1) => {
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
    use everstep_transport::protocol::Step;

    use super::*;

    #[test]
    fn a_rollback_is_said_with_both_steps() {
        let reason = "shard 3 has no owner left".to_string();
        let rollback = EventKind::Rollback { from: Step(57), to: Step(0), reason };
        let said = "went back from step 57 to step 0: shard 3 has no owner left";
        assert_eq!(sentence(&rollback).as_deref(), Some(said));
    }

    #[test]
    fn a_pair_that_stops_the_run_is_told_with_what_to_do() {
        let kind = EventKind::Unreachable { workers: (WorkerId(3), WorkerId(5)) };
        let said = "workers 3 and 5 cannot reach each other, and neither can be left out without \
                    losing optimizer state: mend the network between them; the run then goes on by \
                    itself (with copies = 2 it goes on without one of them)";
        assert_eq!(sentence(&kind).as_deref(), Some(said));
    }

    #[test]
    fn what_every_run_has_is_not_said() {
        assert_eq!(sentence(&EventKind::Complete { step: Step(3) }), None);
        assert_eq!(sentence(&EventKind::Leading { term: Term(1) }), None);
        let left = sentence(&EventKind::Left { worker: WorkerId(7) });
        assert_eq!(left.as_deref(), Some("worker 7 has left"));
    }
}
