//! A state that a bug has broken stops the process with the next entry.

use everstep_transport::protocol::format::LogFormat;
use everstep_transport::protocol::reason::FailReason;

use super::*;

/// Applies entries, then a bug, and then another entry.
fn broken(entries: &[CommandEntry], bug: impl FnOnce(&mut State), last: &CommandEntry) {
    let (mut state, _) = replay(entries);
    let before = state.milestones();
    state.apply(entries.len() as u64 + 1, Term(1), last);
    bug(&mut state);
    state.check_applied(&before, &last.command, &EntryOutcome::Accepted);
}

fn nothing() -> CommandEntry {
    entry(Command::Lead { coordinator: FOUNDER })
}

#[test]
fn entries_of_all_kinds_keep_what_holds() {
    broken(&two_members(), |_| {}, &nothing());
    broken(&two_members()[..3], |_| {}, &two_members()[3]);
}

#[test]
#[should_panic(expected = "I1: only a record makes a generation")]
fn i1_a_generation_from_nowhere_stops_the_process() {
    broken(&two_members(), |state| state.generation.number = Generation(2), &nothing());
}

#[test]
#[should_panic(expected = "I1: each worker of generation 1's record is a member")]
fn i1_a_member_that_is_not_enrolled_stops_the_process() {
    let bug = |state: &mut State| state.workers.set_phase(WorkerId(3), WorkerPhase::Registered);
    broken(&two_members()[..3], bug, &two_members()[3]);
}

#[test]
#[should_panic(expected = "I5: settled steps go back from 2 to 0")]
fn i5_settled_steps_that_go_back_stop_the_process() {
    let (run, outcome) = (RunId(1), Outcome::Failed { name: None, reason: FailReason::Cancelled });
    let figures = exemplars::figures();
    let end = entry(Command::End { run, outcome, figures, steps: Step(2) });
    let entries = [&two_members()[..], &[end]].concat();
    broken(&entries, |state| state.runs.past.clear(), &nothing());
}

#[test]
#[should_panic(expected = "I13: each event is told once")]
fn i13_an_event_that_is_not_told_stops_the_process() {
    broken(&two_members(), |state| state.events.fresh.clear(), &nothing());
}

#[test]
#[should_panic(expected = "I14: the state contradicts itself: a node's worker is not there")]
fn i14_a_contradiction_stops_the_process() {
    let bug = |state: &mut State| {
        state.workers.nodes.insert(name("c"), WorkerId(9));
    };
    broken(&two_members()[..3], bug, &two_members()[3]);
}

#[test]
#[should_panic(expected = "I23: the log's format goes back")]
fn i23_a_format_that_goes_back_stops_the_process() {
    let bug = |state: &mut State| state.coordinators.log_format = LogFormat(0);
    broken(&two_members(), bug, &nothing());
}
