//! Each checker finds what breaks its invariant, and nothing else.

use everstep_transport::protocol::exemplars;
use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::reason::RollbackReason;
use everstep_transport::protocol::run::Precision;
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{
    Cause, CheckpointSpec, Chunk, ChunkKind, CoordinatorId, DataShard, HistoryEntry, HistoryEvent,
    LossScale, Message, MetricsLine, ModelPlace, NodeName, OnFailure, Ownership, Rank, RunId, Term,
};

use super::*;

mod rollbacks;

const SAMPLES: u64 = 64;
const FIRST: WorkerId = WorkerId(7);
const SECOND: WorkerId = WorkerId(8);

/// Two members, one step of four data shards.
fn checks(reference: Option<RunHistory>) -> InvariantChecks {
    let mut checks = fresh(reference);
    let record = record(1);
    promise(&mut checks, &record);
    see(&mut checks, Observation::Proposed(&record)).expect("both have promised");
    see(&mut checks, Observation::Recorded(&record, record.term, None)).expect("a first record");
    enter(&mut checks, &record).expect("it is the one of the log");
    checks
}

fn fresh(reference: Option<RunHistory>) -> InvariantChecks {
    let run = RunSpec { steps: 1, ..exemplars::run() };
    InvariantChecks::new(&run, SAMPLES, reference.map(Arc::new))
}

fn promise(checks: &mut InvariantChecks, record: &Record) {
    for worker in [FIRST, SECOND] {
        let promised = Observation::Promised(worker, record.term, record.number);
        see(checks, promised).expect("it is higher than any before");
    }
}

fn enter(checks: &mut InvariantChecks, record: &Record) -> Result<(), Invariant> {
    for worker in [FIRST, SECOND] {
        see(checks, Observation::Entered(worker, record, record.resume))?;
    }
    Ok(())
}

fn see(checks: &mut InvariantChecks, seen: Observation<'_>) -> Result<(), Invariant> {
    checks.observe(Time(5), seen).map_err(|violation| violation.invariant)
}

/// Two members. Both own all shards. The first one computes all data shards.
fn record(number: u64) -> Record {
    let found = exemplars::all().into_iter().find_map(|message| match message {
        Message::Announce(record) => Some(record),
        _ => None,
    });
    let mut record = found.expect("every message has an exemplar");
    (record.number, record.predecessor) = (Generation(number), Generation(number - 1));
    (record.resume, record.commit) = (Step(0), None);
    record.members.truncate(1);
    record.members.push(record.members[0].clone());
    (record.members[0].worker, record.members[1].worker) = (FIRST, SECOND);
    record.members[0].data_shards = (0..4).map(DataShard).collect();
    record.members[1].data_shards.clear();
    record.owners = vec![Ownership { first: Shard(0), count: 1, owners: vec![Rank(0), Rank(1)] }];
    record
}

/// The record after the first. It goes on with step 1.
fn second() -> Record {
    Record { resume: Step(1), commit: Some(commit(1)), ..record(2) }
}

fn commit(step: u64) -> Commit {
    let line = MetricsLine {
        step: Step(step),
        loss: 2.0,
        grad_norm: 0.5,
        loss_scale: 1,
        ..Default::default()
    };
    Commit {
        generation: Generation(1),
        step: Step(step),
        norm: 0.5,
        loss: 2.0,
        decision: Decision::Apply,
        gradient_factor: 1.0,
        updates: step,
        loss_scale: LossScale::default(),
        hold: false,
        line,
    }
}

/// All data shards of step 1 as the sampler has them, after `change`.
fn compute(
    checks: &mut InvariantChecks,
    change: impl Fn(&mut Contribution),
) -> Result<(), Invariant> {
    let sampler = Sampler::new(exemplars::run().seed, SAMPLES, exemplars::run().batch);
    for data_shard in (0..4).map(DataShard) {
        let samples = sampler.shard_samples(Step(1), data_shard).collect();
        let (loss, weight, samples_lost, samples_repeated) = (2.0, 1.0, 0, 0);
        let mut part = Contribution {
            data_shard,
            loss,
            weight,
            samples,
            samples_lost,
            samples_repeated,
            evaluation: None,
            scalars: Vec::new(),
        };
        change(&mut part);
        see(checks, Observation::Computed(FIRST, (Generation(1), Step(1)), &part))?;
    }
    Ok(())
}

fn copy(digest: u64, parameters: &[f32]) -> ShardCopy<'_> {
    let parameters = Some(parameters);
    ShardCopy { version: Step(1), shard: Shard(0), digest: Some(digest), parameters }
}

fn complete(checks: &mut InvariantChecks) -> Result<(), Invariant> {
    see(checks, Observation::Began(FIRST, Step(1), LossScale::default()))?;
    compute(checks, |_| {})?;
    see(checks, Observation::Committed(FIRST, &commit(1)))?;
    see(checks, Observation::Committed(SECOND, &commit(1)))?;
    see(checks, Observation::Updated(FIRST, copy(9, &[1.0]), true))?;
    see(checks, Observation::Updated(SECOND, copy(9, &[1.0]), true))?;
    see(checks, Observation::Loaded(SECOND, copy(9, &[1.0])))?;
    see(checks, Observation::Settled(FIRST, (Generation(1), Step(1))))?;
    see(checks, Observation::Written(&commit(1).line))
}

#[test]
fn a_run_without_faults_has_a_chronicle_and_agrees_with_it() {
    let mut first = checks(None);
    complete(&mut first).expect("no invariant is broken");
    let run_history = first.conclude(Time(9)).expect("it is whole");
    let mut again = checks(Some(run_history.clone()));
    complete(&mut again).expect("it is the same history");
    assert_eq!(again.conclude(Time(9)), Ok(run_history));
}

#[test]
fn i1_two_records_of_one_number() {
    let other = Record { waiting: true, ..record(1) };
    let seen = see(&mut checks(None), Observation::Entered(SECOND, &other, Step(0)));
    assert_eq!(seen, Err(Invariant::I1));
    let seen = see(&mut checks(None), Observation::Recorded(&other, other.term, None));
    assert_eq!(seen, Err(Invariant::I1));
    let unknown = record(2);
    let seen = see(&mut checks(None), Observation::Entered(SECOND, &unknown, Step(0)));
    assert_eq!(seen, Err(Invariant::I1), "the log does not have it");
}

#[test]
fn i2_members_or_runs_that_commit_differently() {
    let mut first = checks(None);
    complete(&mut first).expect("no invariant is broken");
    let mut again = checks(first.conclude(Time(9)).ok());
    let other = Commit { decision: Decision::Skip, ..commit(1) };
    compute(&mut again, |_| {}).expect("as planned");
    assert_eq!(see(&mut again, Observation::Committed(FIRST, &other)), Err(Invariant::I2));
    let other = Commit { loss: 2.5, ..commit(1) };
    let mut alone = checks(None);
    compute(&mut alone, |_| {}).expect("as planned");
    assert_eq!(see(&mut alone, Observation::Committed(FIRST, &commit(1))), Ok(()));
    assert_eq!(see(&mut alone, Observation::Committed(SECOND, &other)), Err(Invariant::I2));
}

#[test]
fn i2_a_loss_scale_that_does_not_follow_from_the_decisions_before() {
    let begun = |checks: &mut InvariantChecks, exponent, good| {
        see(checks, Observation::Began(FIRST, Step(1), LossScale { exponent, good }))
    };
    assert_eq!(begun(&mut checks(None), 16, 0), Err(Invariant::I2), "it computes in f32");
    let mut scales = Scales::new(Precision::F16);
    let scale = |exponent, good| LossScale { exponent, good };
    let skip = |step, loss_scale| {
        let decision = Decision::Skip;
        Commit { decision, loss_scale, ..commit(step) }
    };
    assert!(scales.began(FIRST, Step(1), scale(16, 0)).is_ok());
    assert!(scales.began(SECOND, Step(1), scale(15, 0)).is_err());
    assert!(scales.committed(FIRST, &skip(1, scale(15, 0))).is_ok());
    assert!(scales.committed(SECOND, &skip(1, scale(16, 0))).is_err());
    assert!(scales.began(SECOND, Step(2), scale(15, 0)).is_ok());
    assert!(scales.began(SECOND, Step(2), scale(16, 0)).is_err(), "it has forgotten");
    let line = |loss_scale| MetricsLine { loss_scale, ..commit(2).line };
    assert!(scales.written(&line(32_768)).is_ok());
    assert!(scales.written(&line(65_536)).is_err());
}

#[test]
fn i3_copies_that_differ() {
    let mut checks = checks(None);
    compute(&mut checks, |_| {}).expect("as planned");
    for worker in [FIRST, SECOND] {
        let committed = Observation::Committed(worker, &commit(1));
        assert_eq!(see(&mut checks, committed), Ok(()));
    }
    assert_eq!(see(&mut checks, Observation::Updated(FIRST, copy(9, &[]), true)), Ok(()));
    let seen = see(&mut checks, Observation::Updated(SECOND, copy(8, &[]), true));
    assert_eq!(seen, Err(Invariant::I3));
}

#[test]
fn i4_samples_that_are_lost_or_used_twice() {
    type Change = fn(&mut Contribution);
    let changes: [Change; 3] = [
        |part| part.samples[0] = SAMPLES,
        |part| part.samples.truncate(1),
        |part| part.samples.push(part.samples[0]),
    ];
    for change in changes {
        let mut checks = checks(None);
        compute(&mut checks, change).expect("it may yet be aborted");
        let seen = see(&mut checks, Observation::Committed(FIRST, &commit(1)));
        assert_eq!(seen, Err(Invariant::I4));
    }
    let twice = |part: &mut Contribution| part.data_shard = DataShard(0);
    assert_eq!(compute(&mut checks(None), twice), Err(Invariant::I4));
}

#[test]
fn i5_commits_that_leave_one_out_and_settled_steps_that_are_not() {
    let mut checks = checks(None);
    compute(&mut checks, |_| {}).expect("as planned");
    let skipped = see(&mut checks, Observation::Committed(FIRST, &commit(2)));
    assert_eq!(skipped, Err(Invariant::I5));
    assert_eq!(see(&mut checks, Observation::Committed(FIRST, &commit(1))), Ok(()));
    let early = see(&mut checks, Observation::Settled(FIRST, (Generation(1), Step(1))));
    assert_eq!(early, Err(Invariant::I5), "the second does not know of the commit");
    assert_eq!(see(&mut checks, Observation::Committed(SECOND, &commit(1))), Ok(()));
    assert_eq!(see(&mut checks, Observation::Settled(FIRST, (Generation(1), Step(1)))), Ok(()));
    let back = see(&mut checks, Observation::Settled(FIRST, (Generation(1), Step(0))));
    assert_eq!(back, Err(Invariant::I5));
}

#[test]
fn i3_a_version_that_nobody_has_committed() {
    let mut checks = checks(None);
    let early = see(&mut checks, Observation::Updated(FIRST, copy(9, &[]), true));
    assert_eq!(early, Err(Invariant::I3));
}

#[test]
fn i5_a_settled_step_that_is_committed_anew() {
    let mut checks = checks(None);
    complete(&mut checks).expect("no invariant is broken");
    let next = second();
    promise(&mut checks, &next);
    see(&mut checks, Observation::Recorded(&next, next.term, None)).expect("it goes on");
    let seen = see(&mut checks, Observation::Entered(FIRST, &next, Step(0)));
    assert_eq!(seen, Err(Invariant::I5), "it lags behind the record");
    let again = Commit { generation: Generation(2), ..commit(1) };
    let seen = see(&mut checks, Observation::Committed(FIRST, &again));
    assert_eq!(seen, Err(Invariant::I5));
}

#[test]
fn who_does_not_know_that_its_generation_is_over_may_commit_in_it() {
    let mut checks = checks(None);
    see(&mut checks, Observation::Recorded(&record(2), record(2).term, None)).expect("no loss");
    let late = see(&mut checks, Observation::Committed(FIRST, &commit(1)));
    assert_eq!(late, Ok(()), "nobody has computed for it, and nobody will know");
}

/// A step leader that was paused counts the votes of a generation that a rollback has ended.
#[test]
fn i5_votes_count_in_the_history_that_they_were_given_in() {
    for is_late in [false, true] {
        let mut checks = checks(None);
        compute(&mut checks, |_| {}).expect("as planned");
        let voters = if is_late { vec![FIRST, SECOND] } else { vec![FIRST] };
        for voter in voters {
            see(&mut checks, Observation::Committed(voter, &commit(1))).expect("as planned");
        }
        let (back, lost) = (record(2), BTreeSet::from([FIRST, SECOND]));
        promise(&mut checks, &back);
        see(&mut checks, Observation::Recorded(&back, back.term, Some(&lost)))
            .expect("both are lost");
        let entered = see(&mut checks, Observation::Entered(SECOND, &back, Step(0)));
        entered.expect("from the beginning");
        let settled = see(&mut checks, Observation::Settled(FIRST, (Generation(1), Step(1))));
        assert_eq!(settled, if is_late { Ok(()) } else { Err(Invariant::I5) });
    }
}

#[test]
fn i7_chunks_of_a_generation_or_a_step_that_is_over() {
    let chunk = |kind, generation, step| {
        let mut chunk = Chunk::message(Generation(generation), Step(step), 8);
        chunk.kind = kind;
        chunk
    };
    let (owner, joiner) = (true, false);
    let cases = [
        (chunk(ChunkKind::Partial, 3, 5), owner, Ok(())),
        (chunk(ChunkKind::Parameters, 3, 4), joiner, Ok(())),
        (chunk(ChunkKind::Message, 3, 2), joiner, Ok(())),
        (chunk(ChunkKind::Reduced, 3, 4), joiner, Ok(())),
        (chunk(ChunkKind::State, 3, 2), joiner, Ok(())),
        (chunk(ChunkKind::Partial, 2, 5), owner, Err(Invariant::I7)),
        (chunk(ChunkKind::State, 2, 5), joiner, Err(Invariant::I7)),
        (chunk(ChunkKind::Reduced, 3, 4), owner, Err(Invariant::I7)),
        (chunk(ChunkKind::Parameters, 3, 3), joiner, Err(Invariant::I7)),
    ];
    for (chunk, owns, expected) in cases {
        let receiver = ReceiverState { floor: Generation(3), committed: Some(Step(4)), owns };
        let admitted = Observation::Admitted(FIRST, &chunk, receiver);
        assert_eq!(see(&mut checks(None), admitted), expected, "{chunk:?}");
    }
}

#[test]
fn i7_what_is_said_or_committed_after_a_promise() {
    let mut checks = checks(None);
    let said = |generation| Observation::Said(FIRST, Generation(generation));
    assert_eq!(see(&mut checks, said(1)), Ok(()));
    promise(&mut checks, &record(2));
    assert_eq!(see(&mut checks, said(1)), Err(Invariant::I7));
    assert_eq!(see(&mut checks, said(2)), Ok(()));
    compute(&mut checks, |_| {}).expect("computing goes on");
    let committed = Observation::Committed(FIRST, &commit(1));
    assert_eq!(see(&mut checks, committed), Err(Invariant::I7));
}

#[test]
fn i10_queues_that_grow() {
    let mut checks = checks(None);
    for kind in [QueueKind::Control, QueueKind::Device, QueueKind::Pair, QueueKind::Joiner] {
        assert_eq!(see(&mut checks, Observation::Queued(kind, 5)), Ok(()));
        let grown = see(&mut checks, Observation::Queued(kind, 10_000));
        assert_eq!(grown, Err(Invariant::I10), "{kind}");
    }
}

#[test]
fn i19_a_commit_on_top_of_corrupted_memory() {
    let mut checks = checks(None);
    complete_with(&mut checks, 8).expect("its memory is known to be corrupted");
    let next = see(&mut checks, Observation::Committed(FIRST, &commit(2)));
    assert_eq!(next, Err(Invariant::I19));
}

#[test]
fn a_commit_beside_corrupted_memory_that_owns_nothing() {
    let mut checks = checks(None);
    complete_with(&mut checks, 9).expect("the owners' copies are equal");
    let joiner = WorkerId(9);
    see(&mut checks, Observation::Corrupted(joiner)).expect("it is a fault");
    let syncing = Observation::Updated(joiner, copy(8, &[]), false);
    see(&mut checks, syncing).expect("its memory is known to be corrupted");
    let next = see(&mut checks, Observation::Committed(FIRST, &commit(2)));
    assert_eq!(next, Err(Invariant::I4), "nobody has computed for it; else it may be");
}

/// The first step. A corrupted copy of it has another digest.
fn complete_with(checks: &mut InvariantChecks, digest: u64) -> Result<(), Invariant> {
    compute(checks, |_| {})?;
    for worker in [FIRST, SECOND] {
        see(checks, Observation::Committed(worker, &commit(1)))?;
    }
    see(checks, Observation::Corrupted(SECOND))?;
    see(checks, Observation::Updated(FIRST, copy(9, &[]), true))?;
    see(checks, Observation::Updated(SECOND, copy(digest, &[]), true))
}

#[test]
fn i13_lines_that_are_not_those_of_the_settled_steps() {
    let line = commit(1).line;
    assert_eq!(see(&mut checks(None), Observation::Written(&line)), Err(Invariant::I13));
    let mut checks = checks(None);
    complete(&mut checks).expect("no invariant is broken");
    assert_eq!(see(&mut checks, Observation::Written(&line)), Err(Invariant::I13), "again");
    let next = MetricsLine { step: Step(3), ..line };
    assert_eq!(see(&mut checks, Observation::Written(&next)), Err(Invariant::I13), "a gap");
}

#[test]
fn i13_a_run_that_ends_without_its_last_line() {
    let concluded = checks(None).conclude(Time(9));
    assert_eq!(concluded.map_err(|violation| violation.invariant), Err(Invariant::I13));
}

#[test]
fn i13_events_that_are_missing_or_told_twice() {
    for numbers in [&[2][..], &[1, 1], &[1, 3]] {
        let mut checks = checks(None);
        let told = numbers.iter().map(|number| {
            let kind = EventKind::Submitted { run: "toy".into() };
            let event = Event { number: *number, unix_ms: 0, kind };
            see(&mut checks, Observation::Told(&event))
        });
        let told: Vec<_> = told.collect();
        assert_eq!(told.last(), Some(&Err(Invariant::I13)), "{numbers:?}");
    }
}

#[test]
fn i15_members_that_have_not_promised_and_promises_that_fall() {
    let mut checks = checks(None);
    let next = second();
    let proposed = Observation::Proposed(&next);
    assert_eq!(see(&mut checks, proposed), Err(Invariant::I15), "nobody has promised");
    let promised = |worker, term| Observation::Promised(worker, Term(term), Generation(2));
    let (term, other) = (next.term.0, next.term.0 + 1);
    assert_eq!(see(&mut checks, promised(FIRST, term)), Ok(()));
    assert_eq!(see(&mut checks, promised(SECOND, other)), Ok(()));
    assert_eq!(see(&mut checks, proposed), Err(Invariant::I15), "not to this proposer");
    let fallen = Observation::Promised(SECOND, Term(other), Generation(1));
    assert_eq!(see(&mut checks, fallen), Err(Invariant::I15));
    assert_eq!(see(&mut checks, promised(SECOND, term)), Err(Invariant::I15));
}

#[test]
fn i15_a_record_of_a_leader_that_was_replaced() {
    let next = record(2);
    let late = Observation::Recorded(&next, Term(next.term.0 + 1), None);
    assert_eq!(see(&mut checks(None), late), Err(Invariant::I15));
}

#[test]
fn i6_a_copy_that_is_given_up_although_it_is_needed() {
    let mut alone = second();
    alone.owners[0].owners.truncate(1);
    let mut checks = checks(None);
    promise(&mut checks, &alone);
    let owned = [(Shard(0), Step(1), 9)];
    see(&mut checks, Observation::Holds(FIRST, &owned, Step(1))).expect("as it should be");
    assert_eq!(see(&mut checks, Observation::Proposed(&alone)), Ok(()), "nobody else holds it");
    see(&mut checks, Observation::Holds(SECOND, &owned, Step(1))).expect("as it should be");
    assert_eq!(see(&mut checks, Observation::Proposed(&alone)), Err(Invariant::I6));
}

#[test]
fn i6_a_restored_copy_counts_from_the_first_step_on() {
    let mut held = HeldVersions::default();
    for worker in [FIRST, SECOND] {
        held.restored(worker, Shard(0), Step(1));
    }
    let restored = Record { cause: Cause::Rollback, ..second() };
    let mut alone = Record { number: Generation(3), predecessor: Generation(2), ..second() };
    alone.owners[0].owners.truncate(1);
    assert_eq!(held.proposed(&alone, Some(&restored), 2), Ok(()), "the other may not know it");
    let later = Record { resume: Step(2), commit: Some(commit(2)), ..alone.clone() };
    let found = held.proposed(&later, Some(&restored), 2);
    assert_eq!(found.map_err(|(invariant, _)| invariant), Err(Invariant::I6), "a step was made");
}

#[test]
fn i16_owners_that_do_not_hold_what_they_own() {
    let holds = |checks: &mut InvariantChecks, worker, version| {
        let owned = [(Shard(0), Step(version), 9)];
        see(checks, Observation::Holds(worker, &owned, Step(version)))
    };
    let next = second();
    for (second, expected) in [(0, Ok(())), (1, Ok(())), (2, Err(Invariant::I16))] {
        let mut checks = checks(None);
        promise(&mut checks, &next);
        holds(&mut checks, FIRST, 1).expect("it is what it should be");
        let missing = see(&mut checks, Observation::Proposed(&next));
        assert_eq!(missing, Err(Invariant::I16), "the second holds nothing");
        holds(&mut checks, SECOND, second).expect("it is what it should be");
        assert_eq!(see(&mut checks, Observation::Proposed(&next)), expected);
        see(&mut checks, Observation::Gone(SECOND)).expect("that may happen");
        assert_eq!(see(&mut checks, Observation::Proposed(&next)), Err(Invariant::I16));
    }
    let mut checks = checks(None);
    promise(&mut checks, &next);
    for worker in [FIRST, SECOND] {
        let none = Observation::Proposed(&next);
        assert_eq!(see(&mut checks, none), Err(Invariant::I16), "to be done is not held");
        holds(&mut checks, worker, 0).expect("it is what it should be");
        see(&mut checks, Observation::Given(worker, Shard(0), Step(1))).expect("as it should be");
    }
    assert_eq!(see(&mut checks, Observation::Proposed(&next)), Ok(()), "it will be done");
    let entered = Observation::Holds(FIRST, &[(Shard(0), Step(1), 9)], Step(2));
    assert_eq!(see(&mut checks, entered), Err(Invariant::I16));
}

#[test]
fn i17_records_that_go_back_or_resume_with_what_their_predecessor_did_not_make() {
    let recorded = |record: &Record| {
        let mut checks = checks(None);
        complete(&mut checks).expect("no invariant is broken");
        see(&mut checks, Observation::Recorded(record, record.term, None))
    };
    assert_eq!(recorded(&second()), Ok(()));
    assert_eq!(recorded(&record(2)), Err(Invariant::I17), "step 1 is settled");
    let ahead = Record { resume: Step(2), commit: Some(commit(2)), ..record(2) };
    assert_eq!(recorded(&ahead), Err(Invariant::I17), "nobody has committed step 2");
    let relabelled = Commit { generation: Generation(9), ..commit(1) };
    let relabelled = Record { commit: Some(relabelled), ..second() };
    assert_eq!(recorded(&relabelled), Err(Invariant::I17));
    let without = Record { commit: None, ..second() };
    assert_eq!(recorded(&without), Err(Invariant::I17));
    let ahead = second();
    let first = see(&mut fresh(None), Observation::Recorded(&ahead, ahead.term, None));
    assert_eq!(first, Err(Invariant::I17), "a first record resumes at the beginning");
}

#[test]
fn i17_commits_that_are_shown_and_that_nobody_has_made() {
    let mut checks = checks(None);
    let early = see(&mut checks, Observation::Shown(FIRST, &commit(1)));
    assert_eq!(early, Err(Invariant::I17));
    complete(&mut checks).expect("no invariant is broken");
    assert_eq!(see(&mut checks, Observation::Shown(FIRST, &commit(1))), Ok(()));
    let relabelled = Commit { generation: Generation(2), ..commit(1) };
    let seen = see(&mut checks, Observation::Shown(FIRST, &relabelled));
    assert_eq!(seen, Err(Invariant::I17));
}

#[test]
fn i17_a_cluster_that_goes_on_from_checkpoints_has_made_their_commits() {
    let mut checks = fresh(None);
    let (mut origin, _) = exemplars::resumed_run();
    for listed in &mut origin.checkpoints {
        listed.commit = commit(listed.commit.step.0);
    }
    checks.begin_from(&origin);
    for listed in &origin.checkpoints {
        assert_eq!(see(&mut checks, Observation::Shown(FIRST, &listed.commit)), Ok(()));
        let other = Commit { generation: Generation(9), ..listed.commit.clone() };
        assert_eq!(see(&mut checks, Observation::Shown(FIRST, &other)), Err(Invariant::I17));
    }
}

#[test]
fn i18_refusals_where_nobody_meddles() {
    let mut checks = checks(None);
    let refusal = Observation::Refused(format_args!("a piece"));
    assert_eq!(see(&mut checks, refusal), Err(Invariant::I18));
    checks.expect_refusals();
    assert_eq!(see(&mut checks, refusal), Ok(()));
}

#[test]
fn i18_a_partial_that_is_taken_twice_in_a_generation() {
    let mut checks = checks(None);
    let mut chunk = Chunk::message(Generation(3), Step(5), 8);
    chunk.kind = ChunkKind::Partial;
    let mut take = |chunk: &Chunk| {
        let receiver = ReceiverState { owns: true, ..ReceiverState::default() };
        see(&mut checks, Observation::Admitted(FIRST, chunk, receiver))
    };
    assert_eq!(take(&chunk), Ok(()));
    assert_eq!(take(&Chunk { index: 1, ..chunk }), Ok(()));
    assert_eq!(take(&Chunk { generation: Generation(4), ..chunk }), Ok(()), "it is done again");
    assert_eq!(take(&Chunk { generation: Generation(4), ..chunk }), Err(Invariant::I18));
}

#[test]
fn i19_computing_too_early_or_with_other_parameters() {
    let mut checks = checks(None);
    assert_eq!(
        see(&mut checks, Observation::Began(FIRST, Step(2), LossScale::default())),
        Err(Invariant::I19)
    );
    let unknown = see(&mut checks, Observation::Loaded(SECOND, copy(9, &[1.0])));
    assert_eq!(unknown, Err(Invariant::I19));
    compute(&mut checks, |_| {}).expect("as planned");
    assert_eq!(see(&mut checks, Observation::Committed(FIRST, &commit(1))), Ok(()));
    assert_eq!(see(&mut checks, Observation::Updated(FIRST, copy(9, &[1.0]), true)), Ok(()));
    assert_eq!(see(&mut checks, Observation::Loaded(SECOND, copy(9, &[1.0]))), Ok(()));
    let other = see(&mut checks, Observation::Loaded(SECOND, copy(9, &[2.0])));
    assert_eq!(other, Err(Invariant::I19));
}

#[test]
fn i19_primaries_that_hand_out_different_parameters() {
    let mut checks = checks(None);
    assert_eq!(see(&mut checks, Observation::Shared(FIRST, copy(9, &[1.0]))), Ok(()));
    assert_eq!(see(&mut checks, Observation::Shared(SECOND, copy(9, &[1.0]))), Ok(()));
    let other = see(&mut checks, Observation::Shared(SECOND, copy(9, &[2.0])));
    assert_eq!(other, Err(Invariant::I19));
}

#[test]
fn i19_parameters_that_were_made_where_memory_is_corrupted_are_known() {
    let mut checks = checks(None);
    see(&mut checks, Observation::Corrupted(SECOND)).expect("it is a fault");
    for (worker, made) in [(FIRST, 1.0), (SECOND, 2.0)] {
        assert_eq!(see(&mut checks, Observation::Shared(worker, copy(9, &[made]))), Ok(()));
        assert_eq!(see(&mut checks, Observation::Loaded(FIRST, copy(9, &[made]))), Ok(()));
    }
    let other = see(&mut checks, Observation::Loaded(FIRST, copy(9, &[3.0])));
    assert_eq!(other, Err(Invariant::I19), "nobody has made that");
}

#[test]
fn i20_a_pause_that_leads_to_nothing() {
    let mut checks = checks(None);
    let mut at = |time: Duration, seen: Observation<'_>| {
        checks.observe(Time(0) + time, seen).map_err(|violation| violation.invariant)
    };
    let second = Duration::from_secs(1);
    at(second, Observation::Paused(Generation(2))).expect("it may be asked for");
    at(second * 9, Observation::Passes(false)).expect("it cannot be served");
    at(second * 9 + PAUSE_SERVED_WITHIN, Observation::Passes(true)).expect("there is time");
    let late = at(second * 10 + PAUSE_SERVED_WITHIN, Observation::Passes(true));
    assert_eq!(late, Err(Invariant::I20));
    let next = record(2);
    at(second * 40, Observation::Recorded(&next, next.term, None)).expect("at last");
    at(second * 90, Observation::Passes(true)).expect("nothing is asked for");
}

#[test]
fn i1_two_leaders_of_one_term() {
    let mut checks = fresh(None);
    assert_eq!(see(&mut checks, Observation::Leads((0, 1), Term(2))), Ok(()));
    assert_eq!(see(&mut checks, Observation::Leads((1, 1), Term(3))), Ok(()));
    for other in [(1, 1), (0, 2)] {
        let again = see(&mut checks, Observation::Leads(other, Term(2)));
        assert_eq!(again, Err(Invariant::I1), "{other:?}");
    }
}

#[test]
fn i9_an_entry_that_was_applied_and_is_another_one_now() {
    let mut checks = fresh(None);
    assert!(checks.is_new(5));
    for _ in 0..2 {
        assert_eq!(see(&mut checks, Observation::Applied(5, Term(2), b"a")), Ok(()));
    }
    assert!(!checks.is_new(5));
    for other in [Observation::Applied(5, Term(2), b"b"), Observation::Applied(5, Term(3), b"a")] {
        assert_eq!(see(&mut checks, other), Err(Invariant::I9));
    }
}

#[test]
fn i14_states_and_histories_that_differ_at_one_index() {
    let mut checks = fresh(None);
    let entry = |run| HistoryEntry { index: 5, events: vec![HistoryEvent::Run(RunId(run))] };
    assert_eq!(see(&mut checks, Observation::Stands(5, b"state")), Ok(()));
    assert_eq!(see(&mut checks, Observation::Stands(5, b"other")), Err(Invariant::I14));
    for _ in 0..2 {
        assert_eq!(see(&mut checks, Observation::Brought(&entry(1))), Ok(()));
    }
    assert_eq!(see(&mut checks, Observation::Brought(&entry(2))), Err(Invariant::I14));
}

#[test]
fn i8_a_worker_that_is_told_that_it_is_lost_while_the_log_has_it() {
    let mut checks = fresh(None);
    let (worker, name) = (WorkerId(7), NodeName::parse("worker-7").expect("a valid name"));
    let brought = |checks: &mut InvariantChecks, index, kind| {
        let event = Event { number: index, unix_ms: 0, kind };
        see(
            checks,
            Observation::Brought(&HistoryEntry { index, events: vec![HistoryEvent::Event(event)] }),
        )
    };
    assert_eq!(brought(&mut checks, 4, EventKind::Registered { worker, name, number: 1 }), Ok(()));
    assert_eq!(see(&mut checks, Observation::Evicted(worker)), Err(Invariant::I8));
    assert_eq!(brought(&mut checks, 5, EventKind::Left { worker }), Ok(()));
    assert_eq!(see(&mut checks, Observation::Evicted(worker)), Ok(()));
}

#[test]
fn i8_a_coordinator_that_ends_as_removed_while_the_log_lists_it() {
    let mut checks = fresh(None);
    let [one, two] = [1, 3].map(CoordinatorId);
    assert_eq!(see(&mut checks, Observation::Listed(4, &[one, two])), Ok(()));
    assert_eq!(see(&mut checks, Observation::Dismissed(two)), Err(Invariant::I8));
    assert_eq!(see(&mut checks, Observation::Listed(9, &[one])), Ok(()));
    assert_eq!(see(&mut checks, Observation::Listed(4, &[one, two])), Ok(()), "somebody is behind");
    assert_eq!(see(&mut checks, Observation::Dismissed(two)), Ok(()));
    assert!(checks.was_dismissed(two) && checks.is_listed(one) && !checks.is_listed(two));
}

#[test]
fn a_pause_that_nobody_has_heard_is_void_when_another_leads() {
    for heard in [false, true] {
        let mut checks = fresh(None);
        assert_eq!(see(&mut checks, Observation::Paused(Generation(1))), Ok(()));
        if heard {
            let promised = Observation::Promised(WorkerId(1), Term(1), Generation(1));
            assert_eq!(see(&mut checks, promised), Ok(()));
        }
        assert_eq!(see(&mut checks, Observation::Leads((1, 1), Term(2))), Ok(()));
        let late = Time(0) + PAUSE_SERVED_WITHIN + Duration::from_millis(10);
        assert_eq!(checks.observe(late, Observation::Passes(true)).is_err(), heard);
    }
}

/// Seed 242 of three coordinators: the only copies of some shards may live on. Each of three
/// leaders has to listen for them anew.
#[test]
fn i20_silence_counts_anew_for_a_leader_that_follows() {
    let mut checks = fresh(None);
    let at = |seconds| Time(0) + Duration::from_secs(seconds);
    checks.observe(at(0), Observation::Paused(Generation(1))).expect("a Pause");
    let promised = Observation::Promised(WorkerId(1), Term(1), Generation(1));
    checks.observe(at(1), promised).expect("it is heard");
    for (life, seconds) in [(2, 30), (3, 60), (4, 90)] {
        let (leads, term) = ((life as usize, life), Term(life));
        checks.observe(at(seconds), Observation::Leads(leads, term)).expect("a leader");
        checks.observe(at(seconds + 30), Observation::Passes(true)).expect("there is time");
    }
    assert!(checks.observe(at(130), Observation::Passes(true)).is_err());
}

#[test]
fn a_violation_says_what_when_and_which() {
    let seen = Observation::Refused(format_args!("a piece"));
    let violation = checks(None).observe(Time(1_234_567), seen).expect_err("nobody meddles");
    assert_eq!(violation.to_string(), "I18 did not hold after 1.235 ms: a piece");
}

#[test]
fn i22_a_run_that_is_complete_before_its_model_is_durable_or_names_none() {
    let place = |host: &str| ModelPlace { host: host.into(), path: "/runs/model".into() };
    let complete =
        |model| Event { number: 1, unix_ms: 0, kind: EventKind::Complete { step: Step(1), model } };
    for (durable, named, holds) in [
        (vec!["a"], Some("a"), true),
        (vec!["a", "b"], Some("a"), true),
        (vec!["b"], Some("a"), false),
        (vec![], Some("a"), false),
        (vec!["a"], None, false),
    ] {
        let mut checks = checks(None);
        for host in durable {
            see(&mut checks, Observation::Durable(&place(host))).expect("a file");
        }
        let told = see(&mut checks, Observation::Told(&complete(named.map(place))));
        assert_eq!(told, if holds { Ok(()) } else { Err(Invariant::I22) }, "{named:?}");
    }
}

#[test]
fn i22_a_run_with_a_store_that_is_complete_with_a_workers_file_alone() {
    let place = |host: &str, path: &str| ModelPlace { host: host.into(), path: path.into() };
    let (file, stored) = (place("a", "/runs/model"), place("", "s3://store/model.safetensors"));
    for (durable, named, holds) in [
        (vec![&file, &stored], &stored, true),
        (vec![&file, &stored], &file, false),
        (vec![&file], &file, false),
        (vec![&file], &stored, false),
    ] {
        let (path, on_failure) = ("s3://store/".into(), OnFailure::Continue);
        let spec = CheckpointSpec { path, every: 5, keep: 1, keep_every: 0, on_failure };
        let run = RunSpec { checkpoint: Some(spec), ..exemplars::run() };
        let mut checks = InvariantChecks::new(&run, SAMPLES, None);
        for place in durable {
            see(&mut checks, Observation::Durable(place)).expect("a file");
        }
        let kind = EventKind::Complete { step: Step(1), model: Some(named.clone()) };
        let told = see(&mut checks, Observation::Told(&Event { number: 1, unix_ms: 0, kind }));
        assert_eq!(told, if holds { Ok(()) } else { Err(Invariant::I22) }, "{named}");
    }
}
