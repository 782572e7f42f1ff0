//! What became of checkpoints that were not written, or that cannot be restored, in sentences. The
//! launcher and the coordinators say the same of them.

use super::EventKind;

impl EventKind {
    /// The sentence about a checkpoint that is not written, is damaged, or is written again after
    /// others were not. `None` for any other event.
    pub(super) fn checkpoint_trouble(&self) -> Option<String> {
        Some(match self {
            Self::CheckpointFailed { step, reason } => {
                format!("the checkpoint of step {step} was not written: {reason}")
            }
            Self::CheckpointsResumed { from, to, count } => {
                format!("checkpoints are written again: {count} were not, of steps {from} to {to}")
            }
            Self::CheckpointSkipped { step, earlier } => format!(
                "the checkpoint of step {step} was skipped: that of step {earlier} is still being \
                 written"
            ),
            Self::CheckpointsSkipped { from, to, count } => format!(
                "{count} checkpoints of steps {from} to {to} were skipped, since earlier ones were \
                 still being written"
            ),
            Self::CheckpointDamaged { step, reason, is_last: false } => {
                format!("the checkpoint of step {step} is damaged: {reason}")
            }
            Self::CheckpointDamaged { step, reason, is_last: true } => format!(
                "the checkpoint of step {step} is damaged: {reason}. No other one is whole, and a \
                 run that has to go back waits for `everstep run rollback --step 0`"
            ),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Step;
    use crate::protocol::reason::UnsavedReason;

    #[test]
    fn what_is_wrong_with_checkpoints_is_said_with_their_steps() {
        let (from, to, count, step) = (Step(10), Step(30), 3, Step(20));
        let said = |kind: EventKind| kind.checkpoint_trouble().expect("a sentence");
        let reason = UnsavedReason::NoPart;
        let words = "the checkpoint of step 20 was not written: no worker saved a part of it";
        assert_eq!(said(EventKind::CheckpointFailed { step, reason }), words);
        let words = "checkpoints are written again: 3 were not, of steps 10 to 30";
        assert_eq!(said(EventKind::CheckpointsResumed { from, to, count }), words);
        let words = "the checkpoint of step 20 was skipped: that of step 10 is still being written";
        assert_eq!(said(EventKind::CheckpointSkipped { step, earlier: from }), words);
        let words = "3 checkpoints of steps 10 to 30 were skipped, since earlier ones were still \
                     being written";
        assert_eq!(said(EventKind::CheckpointsSkipped { from, to, count }), words);
        let damaged = |is_last| {
            said(EventKind::CheckpointDamaged { step, reason: "a bit flipped".into(), is_last })
        };
        assert_eq!(damaged(false), "the checkpoint of step 20 is damaged: a bit flipped");
        assert!(damaged(true).ends_with("waits for `everstep run rollback --step 0`"));
        assert_eq!(EventKind::Resumed.checkpoint_trouble(), None);
    }
}
