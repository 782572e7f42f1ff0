//! Which checkpoints the log lists, keeps, and lets a run go back to.

use everstep_transport::protocol::outcome::WaitNotice;
use everstep_transport::protocol::reason::{FailReason, RollbackReason};
use everstep_transport::protocol::{CheckpointId, CheckpointSpec, ListedCheckpoint, OnFailure};

use super::*;

/// A run of ten steps that keeps the newest two checkpoints, and those of every eighth step.
fn saving() -> RunSpec {
    let path = "/store".into();
    let on_failure = OnFailure::Continue;
    let spec = CheckpointSpec { path, every: 2, keep: 2, keep_every: 8, on_failure };
    RunSpec { steps: 10, checkpoint: Some(spec), ..exemplars::run() }
}

/// Two members are in generation 1.
fn members() -> Vec<CommandEntry> {
    let [_, rest @ ..] = two_members();
    [vec![submit(1, saving())], rest.to_vec()].concat()
}

fn checkpoint(step: u64, generation: u64) -> ListedCheckpoint {
    let generation = Generation(generation);
    let commit = Commit { generation, ..committed(step).expect("a commit") };
    ListedCheckpoint { commit, bytes: 900, write_ms: 1_500, state_hash: [7; 32], damage: None }
}

fn list(step: u64, generation: u64) -> CommandEntry {
    list_after(step, generation, 0)
}

/// As [`list`], where so many were skipped before.
fn list_after(step: u64, generation: u64, skipped: u64) -> CommandEntry {
    let (run, checkpoint, deleted) = (RunId(1), checkpoint(step, generation), vec![]);
    entry(Command::ListCheckpoint { run, checkpoint, deleted, skipped })
}

fn damage(step: u64, generation: u64) -> CommandEntry {
    let reason = "a bit flipped".into();
    entry(Command::DamageCheckpoint { run: RunId(1), id: id(step, generation), reason })
}

fn id(step: u64, generation: u64) -> CheckpointId {
    CheckpointId { step: Step(step), generation: Generation(generation) }
}

/// A generation of both members that goes back to the checkpoint of a step of generation 1.
fn back(number: u64, step: u64) -> CommandEntry {
    altered(number, &[2, 3], |change| {
        change.record.cause = Cause::Rollback;
        change.record.resume = Step(step);
        change.record.commit = committed(step).filter(|_| step > 0);
        change.rollback = Some((Step(9), RollbackReason::Asked));
    })
}

fn onwards(number: u64, step: u64, made: u64) -> CommandEntry {
    altered(number, &[2, 3], |change| {
        change.record.resume = Step(step);
        change.record.commit = Some(checkpoint(step, made).commit);
    })
}

fn after(entries: &[CommandEntry]) -> State {
    let (state, outcomes) = replay(&[members(), entries.to_vec()].concat());
    let refused = outcomes.iter().find(|it| matches!(it, EntryOutcome::Refused(_)));
    assert_eq!(refused, None);
    state
}

/// Why the last entry is refused.
fn refused(entries: &[CommandEntry]) -> String {
    refusal(&[members(), entries.to_vec()].concat())
}

fn listed(state: &State) -> Vec<u64> {
    state.checkpoints().listed().map(|listed| listed.commit.step.0).collect()
}

fn doomed(state: &State) -> Vec<u64> {
    state.checkpoints().to_delete().map(|id| id.step.0).collect()
}

/// As [`rich`], with checkpoints that are listed, damaged and dropped.
pub(crate) fn rich_with_checkpoints() -> State {
    let back = back(2, 4);
    after(&[list(2, 1), list(4, 1), list(6, 1), damage(6, 1), back, found(false)])
}

/// As [`rich_with_checkpoints`], with a worker that was refused, owners that the run waited for,
/// and the end of the run.
pub(crate) fn rich_and_over() -> State {
    let other = register_for(1, "other", 1, |fingerprint| fingerprint.parameters = 901);
    let owners = vec![OwnerWait { worker: WorkerId(3), waited_ms: 5 }];
    let awaited = WaitNotice {
        shards: 1,
        owners: vec![WorkerId(3)],
        since_unix_ms: 4,
        workers: vec![],
        reasons: vec![LossReason::Silent(2_200)],
        checkpoint: Step(4),
    };
    let (generation, awaited) = (Generation(2), Some(awaited));
    let failed = Outcome::Failed { name: Some(name("a")), reason: FailReason::Cancelled };
    let entries = [
        members(),
        vec![list(2, 1), list(4, 1), list(6, 1), damage(6, 1), back(2, 4), found(false), other],
        vec![entry(Command::AwaitOwners { generation, owners, awaited }), end(1, failed)],
    ];
    let state = replay(&entries.concat()).0;
    let past = state.past_runs().back().expect("the run is over");
    assert!(past.figures.trouble.is_some() && state.awaited().since().is_some());
    let is_refusal = |event: &Event| matches!(event.kind, EventKind::Refused { .. });
    assert!(state.events().iter().any(is_refusal));
    state
}

/// Invariant I12.
#[test]
fn a_checkpoint_that_is_not_of_the_runs_history_is_not_listed() {
    let (checkpoint, deleted, skipped) = (checkpoint(2, 1), vec![], 0);
    let of_run_2 = Command::ListCheckpoint { run: RunId(2), checkpoint, deleted, skipped };
    assert_eq!(refused(&[entry(of_run_2)]), "run 2 is not the current one");
    for step in [0, 11] {
        let words = format!("steps {step} to {step} are not all settled");
        assert_eq!(refused(&[list(step, 1)]), words);
    }
    let other = |generation, step| {
        format!("generation {generation} did not make step {step} of the run's history")
    };
    assert_eq!(refused(&[list(2, 2)]), other(2, 2));
    // Generation 2 resumes at step 4 of generation 1: generation 1 has made no later step.
    assert_eq!(refused(&[onwards(2, 4, 1), list(6, 1)]), other(1, 6));
    assert_eq!(refused(&[onwards(2, 4, 1), list(4, 2)]), other(2, 4));
    assert_eq!(refused(&[list(2, 1), list(2, 1)]), "the checkpoint of step 2 is listed already");
    assert_eq!(listed(&after(&[onwards(2, 4, 1), list(4, 1), list(2, 1), list(6, 2)])), [4, 6]);
}

#[test]
fn a_run_without_checkpoints_lists_none() {
    let entries = [&two_members()[..], &[list(2, 1)]].concat();
    assert_eq!(refusal(&entries), "it does not belong to a run");
}

#[test]
fn a_listing_is_an_event_and_drops_what_the_run_does_not_keep() {
    let state = after(&[list(2, 1), list(4, 1), list(6, 1)]);
    assert_eq!((listed(&state), doomed(&state)), (vec![4, 6], vec![2]));
    let [HistoryEvent::Event(event)] = state.new_events() else { panic!("one event") };
    let (seconds, state_hash) = (1.5, [7; 32]);
    let (step, bytes) = (Step(6), 900);
    assert_eq!(event.kind, EventKind::Checkpoint { step, bytes, seconds, state_hash });
    let (run, checkpoint, deleted, skipped) = (RunId(1), checkpoint(8, 1), vec![id(2, 1)], 0);
    let told = entry(Command::ListCheckpoint { run, checkpoint, deleted, skipped });
    let state = after(&[list(2, 1), list(4, 1), list(6, 1), told, list(10, 1)]);
    assert_eq!((listed(&state), doomed(&state)), (vec![8, 10], vec![4, 6]));
}

#[test]
fn every_eighth_stays() {
    let state = after(&[list(8, 1), onwards(2, 8, 1), list(9, 2), list(10, 2), list(4, 1)]);
    assert_eq!((listed(&state), doomed(&state)), (vec![8, 9, 10], vec![4]));
}

#[test]
fn a_damaged_checkpoint_is_told_of_once_and_does_not_count_as_kept() {
    let state = after(&[list(2, 1), list(4, 1), damage(4, 1)]);
    let newest = state.checkpoints().newest_up_to(Step(9)).expect("an older one");
    assert_eq!(newest.commit.step, Step(2));
    let [HistoryEvent::Event(event)] = state.new_events() else { panic!("one event") };
    let reason = "a bit flipped".into();
    assert_eq!(event.kind, EventKind::CheckpointDamaged { step: Step(4), reason, is_last: false });
    let again = refused(&[list(4, 1), damage(4, 1), damage(4, 1)]);
    assert!(again.starts_with("the checkpoint of step 4 is damaged"), "{again}");
    for wrong in [damage(4, 2), damage(2, 1)] {
        assert!(refused(&[list(4, 1), wrong]).starts_with("there is no checkpoint of step"));
    }
    let state = after(&[list(2, 1), list(4, 1), damage(4, 1), list(6, 1), list(8, 1)]);
    assert_eq!((listed(&state), doomed(&state)), (vec![4, 6, 8], vec![2]));
}

/// Invariants I5 and I17.
#[test]
fn a_run_goes_back_to_listed_checkpoints_alone() {
    let state = after(&[list(2, 1), list(4, 1), back(2, 2)]);
    assert_eq!((listed(&state), doomed(&state), state.settled()), (vec![2], vec![4], Step(2)));
    assert!(state.lines().admits(Step(2), Generation(1)));
    assert!(!state.lines().admits(Step(3), Generation(1)));
    assert!(refused(&[list(2, 1), back(2, 4)]).starts_with("there is no checkpoint of step 4"));
    let damaged = refused(&[list(4, 1), damage(4, 1), back(2, 4)]);
    assert!(damaged.starts_with("the checkpoint of step 4 is damaged"), "{damaged}");
    let by_another = altered(2, &[2, 3], |change| {
        change.record.cause = Cause::Rollback;
        let updates = 99;
        let commit = Commit { updates, ..checkpoint(4, 1).commit };
        (change.record.resume, change.record.commit) = (Step(4), Some(commit));
        change.rollback = Some((Step(9), RollbackReason::Asked));
    });
    assert_eq!(refused(&[list(4, 1), by_another]), "generation 2 resumes at 4 by another commit");
    let silently = altered(2, &[2, 3], |change| change.record.cause = Cause::Rollback);
    assert_eq!(refused(&[silently]), "generation 2 goes back, but for another cause");
}

/// Found by a simulation: the only whole checkpoint was listed between the plan and the entry of a
/// generation that went back to a damaged one.
#[test]
fn a_run_that_lost_its_shards_goes_back_no_further_than_it_must() {
    let lost = |step| {
        let mut entry = back(2, step);
        let Command::Generation(change) = &mut entry.command else { unreachable!("it is one") };
        change.rollback = Some((Step(9), RollbackReason::CheckpointDamaged(Step(6))));
        entry
    };
    let back_to_2 = "generation 2 goes back to step 2";
    assert_eq!(refused(&[list(2, 1), list(4, 1), lost(2)]), back_to_2);
    after(&[list(2, 1), list(4, 1), lost(4)]);
    after(&[list(2, 1), list(4, 1), damage(4, 1), lost(2)]);
    after(&[list(2, 1), list(4, 1), back(2, 2)]);
}

#[test]
fn a_generation_resumes_no_earlier_than_a_listed_checkpoint() {
    assert_eq!(refused(&[list(4, 1), onwards(2, 3, 1)]), "generation 2 goes back to step 3");
    after(&[list(4, 1), onwards(2, 4, 1)]);
}

#[test]
fn the_checkpoints_of_undone_steps_come_again_by_another_generation() {
    let state = after(&[list(2, 1), list(4, 1), back(2, 2), list(4, 2)]);
    let there: Vec<_> = state.checkpoints().listed().map(ListedCheckpoint::id).collect();
    assert_eq!(there, [id(2, 1), id(4, 2)]);
    assert_eq!(doomed(&state), [4]);
    let late = refused(&[list(2, 1), back(2, 2), list(4, 1)]);
    assert_eq!(late, "generation 1 did not make step 4 of the run's history");
}

#[test]
fn an_operator_goes_back_to_a_listed_step() {
    let ask = |step| {
        let (run, step, generation) = (RunId(1), Step(step), Generation(0));
        request(1, OperatorCommand::Rollback { run, step, generation })
    };
    let listed = [list(2, 1), list(4, 1), damage(4, 1)];
    let asked = |step| after(&[&listed[..], &[ask(step)]].concat()).goes_back_to();
    assert_eq!((asked(0), asked(2)), (Some(Step(0)), Some(Step(2))));
    let no = |step| refused(&[&listed[..], &[ask(step)]].concat());
    assert!(no(3).starts_with("there is no checkpoint of step 3"));
    assert!(no(4).starts_with("the checkpoint of step 4 is damaged"));
    // The step that an operator asked for stays, whatever the run keeps.
    let pinned = after(&[list(2, 1), ask(2), list(4, 1), list(6, 1), list(8, 1)]);
    assert_eq!(self::listed(&pinned), [2, 6, 8]);
    let gone_back = after(&[list(2, 1), ask(2), back(2, 2)]);
    assert_eq!(gone_back.goes_back_to(), None);
}

#[test]
fn another_run_begins_without_checkpoints() {
    let failed = Outcome::Failed { name: None, reason: FailReason::Cancelled };
    let entries = [found(false), list(2, 1), list(4, 1), list(6, 1), end(1, failed)];
    let other = RunSpec { name: "other".into(), ..saving() };
    let state = after(&[&entries[..], &[submit(2, other)]].concat());
    assert_eq!((listed(&state), doomed(&state)), (vec![], vec![]));
}

/// I14.
#[test]
fn a_snapshot_has_the_checkpoints() {
    let state = rich_with_checkpoints();
    assert_eq!((listed(&state), doomed(&state)), (vec![4], vec![2, 6]));
    let decoded = State::decode(&state.encode(), *LOG_FORMATS.end()).expect("it was just made");
    assert_eq!(decoded.checkpoints(), state.checkpoints());
    let mut broken = state;
    broken.checkpoints.go_back(Step(0));
    let both = broken.checkpoints.to_delete().next().expect("one");
    let commit = checkpoint(both.step.0, both.generation.0).commit;
    let retention = saving().checkpoint.expect("it saves").retention();
    let twice = ListedCheckpoint { commit, ..checkpoint(2, 1) };
    broken.checkpoints.list(twice, retention, None);
    let error = State::decode(&broken.encode(), *LOG_FORMATS.end()).expect_err("a contradiction");
    assert!(error.to_string().contains("a listed checkpoint is to be deleted"), "{error}");
}

/// I13: a coordinator that was away for two rollbacks has lines that the first one undid.
#[test]
fn lines_that_any_rollback_has_undone_are_not_admitted() {
    let state = after(&[
        list(2, 1),
        back(2, 2),
        onwards(3, 8, 2),
        list(8, 2),
        altered(4, &[2, 3], |change| {
            change.record.cause = Cause::Rollback;
            change.record.resume = Step(8);
            change.record.commit = Some(checkpoint(8, 2).commit);
            change.rollback = Some((Step(9), RollbackReason::Asked));
        }),
    ]);
    let lines = state.lines();
    let admits = |step, generation| lines.admits(Step(step), Generation(generation));
    assert!(admits(2, 1) && admits(3, 2) && admits(8, 2) && admits(9, 4));
    assert!(!admits(3, 1) && !admits(9, 2));
    let back_again = after(&[list(2, 1), list(4, 1), back(2, 4), back(3, 2)]);
    let undone = Undone { after: Step(2), before: Generation(3) };
    assert_eq!(back_again.lines().undone, [undone]);
}
