//! What the log says of metrics lines.

use everstep_transport::protocol::Lineage;
use everstep_transport::protocol::reason::RollbackReason;

use super::*;

/// I13: the log says which lines are of the run's history, and which are lost.
#[test]
fn a_rollback_and_a_run_begin_another_history_of_lines() {
    let mut state = State::default();
    for (entry, index) in two_members().iter().zip(1..) {
        state.apply(index, Term(1), entry);
    }
    let lineage = |run, rollback| Lineage { run: RunId(run), rollback: Generation(rollback) };
    assert_eq!(state.lines().lineage, lineage(1, 0));
    let back = altered(2, &[2, 3], |change| {
        (change.record.cause, change.record.term) = (Cause::Rollback, Term(1));
        change.rollback = Some((Step(2), RollbackReason::Asked));
    });
    assert_eq!(state.apply(5, Term(1), &back), EntryOutcome::Accepted);
    let undone = Undone { after: Step(0), before: Generation(2) };
    assert_eq!(state.lines().lineage, lineage(1, 2));
    assert_eq!(state.lines().undone, [undone]);
    assert!(
        !state.lines().admits(Step(1), Generation(1))
            && state.lines().admits(Step(1), Generation(2))
    );
}

#[test]
fn lines_are_lost_only_of_settled_steps_and_of_the_same_history() {
    let mut state = State::default();
    for (entry, index) in two_members().iter().zip(1..) {
        state.apply(index, Term(1), entry);
    }
    let resumed = altered(2, &[2, 3], |change| {
        (change.record.resume, change.record.commit) = (Step(6), committed(6));
    });
    assert_eq!(state.apply(5, Term(1), &resumed), EntryOutcome::Accepted);
    let mut lose = |index, run, (from, to)| {
        let lineage = Lineage { run: RunId(run), ..Lineage::default() };
        let gap = Gap { from: Step(from), to: Step(to) };
        state.apply(index, Term(1), &entry(Command::LoseLines { lineage, gap }))
            == EntryOutcome::Accepted
    };
    assert!(!lose(6, 1, (3, 7)) && !lose(7, 2, (3, 5)) && !lose(8, 1, (5, 3)));
    assert!(lose(9, 1, (3, 5)) && !lose(10, 1, (4, 5)) && lose(11, 1, (2, 2)));
    let gaps: Vec<_> = state.lines().gaps.iter().map(|gap| (gap.from.0, gap.to.0)).collect();
    assert_eq!(gaps, [(2, 2), (3, 5)]);
    let lost = EventKind::LinesLost { from: Step(2), to: Step(2) };
    assert!(matches!(state.new_events(), [HistoryEvent::Event(event)] if event.kind == lost));
}
