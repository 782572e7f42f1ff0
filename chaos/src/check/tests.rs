//! Each checker finds what breaks its invariant, and nothing else.

use everstep_transport::protocol::exemplars;
use everstep_transport::protocol::{ChunkKind, DataShard, Message};

use super::*;

const SAMPLES: u64 = 64;
const FIRST: WorkerId = WorkerId(7);
const SECOND: WorkerId = WorkerId(8);

/// Two members, one step of four data shards.
fn checks(reference: Option<Chronicle>) -> Checks {
    let run = RunSpec { steps: 1, ..exemplars::run() };
    let mut checks = Checks::new(&run, SAMPLES, reference.map(Arc::new));
    see(&mut checks, Observation::Entered(FIRST, &record())).expect("a first record");
    checks
}

fn see(checks: &mut Checks, seen: Observation<'_>) -> Result<(), Invariant> {
    checks.observe(Time(5), seen).map_err(|violation| violation.invariant)
}

fn record() -> Record {
    let found = exemplars::all().into_iter().find_map(|message| match message {
        Message::Announce(record) => Some(record),
        _ => None,
    });
    let mut record = found.expect("every message has an exemplar");
    record.resume = Step(0);
    record.members.push(record.members[0].clone());
    (record.members[0].worker, record.members[1].worker) = (FIRST, SECOND);
    record
}

fn commit(step: u64) -> Commit {
    let line = MetricsLine { step: Step(step), loss: 2.0, grad_norm: 0.5, ..Default::default() };
    Commit {
        generation: Generation(3),
        step: Step(step),
        norm: 0.5,
        loss: 2.0,
        decision: Decision::Apply,
        updates: step,
        hold: false,
        line,
    }
}

/// All data shards of step 1 as the sampler has them, but for what `change` changes.
fn compute(checks: &mut Checks, change: impl Fn(&mut Contribution)) -> Result<(), Invariant> {
    let sampler = Sampler::new(exemplars::run().seed, SAMPLES, exemplars::run().batch);
    for data_shard in (0..4).map(DataShard) {
        let samples = sampler.shard_samples(Step(1), data_shard).collect();
        let mut part = Contribution { data_shard, loss: 2.0, samples };
        change(&mut part);
        see(checks, Observation::Computed(Step(1), &part))?;
    }
    Ok(())
}

fn copy(digest: u64, parameters: &[f32]) -> Copy<'_> {
    let parameters = Some(parameters);
    Copy { version: Step(1), shard: Shard(0), digest: Some(digest), parameters }
}

fn complete(checks: &mut Checks) -> Result<(), Invariant> {
    see(checks, Observation::Began(FIRST, Step(1)))?;
    compute(checks, |_| {})?;
    see(checks, Observation::Committed(FIRST, &commit(1)))?;
    see(checks, Observation::Committed(SECOND, &commit(1)))?;
    see(checks, Observation::Updated(FIRST, copy(9, &[1.0])))?;
    see(checks, Observation::Updated(SECOND, copy(9, &[1.0])))?;
    see(checks, Observation::Loaded(SECOND, copy(9, &[1.0])))?;
    see(checks, Observation::Settled(FIRST, Step(1)))?;
    see(checks, Observation::Written(&commit(1).line))
}

#[test]
fn a_run_without_faults_has_a_chronicle_and_agrees_with_it() {
    let mut first = checks(None);
    complete(&mut first).expect("no invariant is broken");
    let chronicle = first.conclude(Time(9)).expect("it is whole");
    let mut again = checks(Some(chronicle.clone()));
    complete(&mut again).expect("it is the same history");
    assert_eq!(again.conclude(Time(9)), Ok(chronicle));
}

#[test]
fn i1_two_records_of_one_number() {
    let other = Record { resume: Step(1), ..record() };
    let seen = see(&mut checks(None), Observation::Entered(SECOND, &other));
    assert_eq!(seen, Err(Invariant::I1));
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
fn i3_copies_that_differ() {
    let mut checks = checks(None);
    compute(&mut checks, |_| {}).expect("as planned");
    for worker in [FIRST, SECOND] {
        let committed = Observation::Committed(worker, &commit(1));
        assert_eq!(see(&mut checks, committed), Ok(()));
    }
    assert_eq!(see(&mut checks, Observation::Updated(FIRST, copy(9, &[]))), Ok(()));
    let seen = see(&mut checks, Observation::Updated(SECOND, copy(8, &[])));
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
    let early = see(&mut checks, Observation::Settled(FIRST, Step(1)));
    assert_eq!(early, Err(Invariant::I5), "the second does not know of the commit");
    assert_eq!(see(&mut checks, Observation::Committed(SECOND, &commit(1))), Ok(()));
    assert_eq!(see(&mut checks, Observation::Settled(FIRST, Step(1))), Ok(()));
    let back = see(&mut checks, Observation::Settled(FIRST, Step(0)));
    assert_eq!(back, Err(Invariant::I5));
}

#[test]
fn i3_a_version_that_nobody_has_committed() {
    let mut checks = checks(None);
    let early = see(&mut checks, Observation::Updated(FIRST, copy(9, &[])));
    assert_eq!(early, Err(Invariant::I3));
}

#[test]
fn i7_chunks_of_a_generation_or_a_step_that_is_over() {
    let chunk = |kind, generation, step| {
        let mut chunk = Chunk::message(Generation(generation), Step(step), 8);
        chunk.kind = kind;
        chunk
    };
    let cases = [
        (chunk(ChunkKind::Partial, 3, 5), Ok(())),
        (chunk(ChunkKind::Parameters, 3, 4), Ok(())),
        (chunk(ChunkKind::Message, 3, 2), Ok(())),
        (chunk(ChunkKind::Partial, 2, 5), Err(Invariant::I7)),
        (chunk(ChunkKind::Reduced, 3, 4), Err(Invariant::I7)),
        (chunk(ChunkKind::Parameters, 3, 3), Err(Invariant::I7)),
    ];
    for (chunk, expected) in cases {
        let admitted = Observation::Admitted(&chunk, (Generation(3), Step(4)));
        assert_eq!(see(&mut checks(None), admitted), expected, "{chunk:?}");
    }
}

#[test]
fn i10_queues_that_grow() {
    let mut checks = checks(None);
    for kind in ["control lane", "device", "pair of workers"] {
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

/// The first step, of which a corrupted copy has another digest.
fn complete_with(checks: &mut Checks, digest: u64) -> Result<(), Invariant> {
    compute(checks, |_| {})?;
    for worker in [FIRST, SECOND] {
        see(checks, Observation::Committed(worker, &commit(1)))?;
    }
    see(checks, Observation::Corrupted(SECOND))?;
    see(checks, Observation::Updated(FIRST, copy(9, &[])))?;
    see(checks, Observation::Updated(SECOND, copy(digest, &[])))
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
fn i18_refusals_where_nobody_meddles() {
    let mut checks = checks(None);
    let refusal = Observation::Refused(format_args!("a piece"));
    assert_eq!(see(&mut checks, refusal), Err(Invariant::I18));
    checks.expect_refusals();
    assert_eq!(see(&mut checks, refusal), Ok(()));
}

#[test]
fn i19_computing_too_early_or_with_other_parameters() {
    let mut checks = checks(None);
    assert_eq!(see(&mut checks, Observation::Began(FIRST, Step(2))), Err(Invariant::I19));
    let unknown = see(&mut checks, Observation::Loaded(SECOND, copy(9, &[1.0])));
    assert_eq!(unknown, Err(Invariant::I19));
    compute(&mut checks, |_| {}).expect("as planned");
    assert_eq!(see(&mut checks, Observation::Committed(FIRST, &commit(1))), Ok(()));
    assert_eq!(see(&mut checks, Observation::Updated(FIRST, copy(9, &[1.0]))), Ok(()));
    assert_eq!(see(&mut checks, Observation::Loaded(SECOND, copy(9, &[1.0]))), Ok(()));
    let other = see(&mut checks, Observation::Loaded(SECOND, copy(9, &[2.0])));
    assert_eq!(other, Err(Invariant::I19));
}

#[test]
fn a_violation_says_what_when_and_which() {
    let seen = Observation::Refused(format_args!("a piece"));
    let violation = checks(None).observe(Time(1_234_567), seen).expect_err("nobody meddles");
    assert_eq!(violation.to_string(), "I18 did not hold after 1.235 ms: a piece");
}
