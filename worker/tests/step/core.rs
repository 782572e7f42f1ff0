//! The worker's core with a device that answers at once: its messages to the coordinator.

use std::collections::VecDeque;
use std::sync::Arc;

use everstep_kernels::buffer::{Buffer, Pool, Shared};
use everstep_kernels::optimizer::ShardState;
use everstep_kernels::reduce::TreeNode;
use everstep_kernels::threads::Threads;
use everstep_transport::protocol::reason::UnsavedPart;
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{
    Cause, CheckpointId, CheckpointSpec, Commit, DataShard, Generation, Message, NodeName,
    OnFailure, Record, RunSpec, SavedPart, Shard, Step, Term, Verification, WorkerId, exemplars,
};
use everstep_transport::time::Time;
use everstep_worker::data::Sampler;
use everstep_worker::step::core::{Core, WorkerIdentity};
use everstep_worker::step::event::{
    Built, Effect, Exit, Input, Job, LinkId, Report, ShardOrigin, ShardToSave, StoreJob,
    StoreReport,
};

use crate::support::{GENERATION, record_of, registration};

const SAMPLES: u64 = 100;
const WORKER: WorkerId = WorkerId(7);
const LINK: LinkId = LinkId(1);

/// A lone worker with a model of one parameter shard, and its messages.
struct Lone {
    core: Core,
    sampler: Sampler,
    now: Time,
    told: VecDeque<Message>,
    /// The generations that name the parts that it has its store write.
    parts: Vec<Generation>,
    /// The shards of the newest of these parts.
    saved: Vec<Shard>,
    /// What the device hands out as it follows into the next generation.
    late: Option<Report>,
    /// How many checkpoints its store was asked to verify.
    verifies: usize,
    exit: Option<Exit>,
}

impl Lone {
    /// A worker in training, as far as it gets by itself.
    fn training(steps: u64) -> Self {
        Self::training_as(RunSpec { steps, copies: 1, ..exemplars::run() })
    }

    /// A worker that has trained all of three steps, and has its store write the last one.
    fn saving() -> Self {
        let (path, on_failure) = ("/store".into(), OnFailure::Continue);
        let spec = CheckpointSpec { path, every: 10, keep: 1, keep_every: 0, on_failure };
        let run = RunSpec { steps: 3, copies: 1, checkpoint: Some(spec), ..exemplars::run() };
        let lone = Self::training_as(run);
        assert_eq!((lone.committed(), &lone.parts), (Step(3), &vec![GENERATION]));
        lone
    }

    fn training_as(run: RunSpec) -> Self {
        let mut record = record_of(&[&[0, 1, 2, 3]], &[&[0]]);
        record.members[0].worker = WORKER;
        let name = record.members[0].name.clone();
        let mut lone = Self::registered(name, run);
        lone.hear(Message::Pause { term: Term(1), number: GENERATION });
        lone.hear(Message::Announce(record));
        lone
    }

    /// A worker that waits for a generation.
    fn registered(name: NodeName, run: RunSpec) -> Self {
        let mut lone = Self::new(name, &run);
        lone.register(run);
        lone
    }

    fn register(&mut self, run: RunSpec) {
        let registration = registration((1_024, 1, SAMPLES), None);
        let centre = NodeName::parse("coordinator-1").expect("a valid name");
        self.give(Input::CoordinatorUp { link: LINK, name: centre });
        self.hear(Message::Welcome { run, term: Term(1) });
        self.give(Input::Built(Built {
            registration,
            tokens_per_step: 1,
            trained: 1_024,
            state_parts: 3,
            rates: None,
            threads: Threads::default(),
        }));
        self.hear(Message::Registered { worker: WORKER, term: Term(1) });
    }

    fn new(name: NodeName, run: &RunSpec) -> Self {
        let identity = WorkerIdentity { name, unix_ms_at_zero: 0 };
        let core = Core::new(identity, Pool::new(1 << 20));
        let sampler = Sampler::new(run.seed, SAMPLES, run.batch);
        let (told, parts, exit) = (VecDeque::new(), Vec::new(), None);
        let (saved, late) = (Vec::new(), None);
        Self { core, sampler, now: Time(1), told, parts, saved, late, verifies: 0, exit }
    }

    fn hear(&mut self, message: Message) {
        self.give(Input::Coordinator { link: LINK, message });
    }

    fn give(&mut self, input: Input) {
        self.core.handle(self.now, input);
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::SendToCoordinator { message, .. } => self.told.push_back(message),
                Effect::Device(job) => self.compute(job),
                Effect::Store(StoreJob::Save(part)) => {
                    self.parts.push(part.generation);
                    self.saved = part.shards.iter().map(|of| of.shard).collect();
                }
                Effect::Store(StoreJob::Verify { .. }) => self.verifies += 1,
                Effect::Exit(exit) => self.exit = Some(exit),
                _ => {}
            }
        }
    }

    fn compute(&mut self, job: Job) {
        let updated = |version| Report::Updated {
            version,
            shard: Shard(0),
            digest: version.0,
            parameters: None,
        };
        let late = match job {
            Job::Enter { .. } => self.late.take(),
            _ => None,
        };
        let reports = match job {
            Job::Enter { generation, origin: ShardOrigin::Checkpoint, .. } => {
                vec![Report::Entered { generation, owned: Vec::new() }]
            }
            Job::Enter { generation, .. } => {
                let version = self.committed();
                vec![Report::Entered { generation, owned: vec![(Shard(0), version, version.0)] }]
            }
            Job::Update { step, .. } => vec![updated(step)],
            Job::Gradient { step, .. } => self.gradient(step),
            Job::Save { commit, shards } => vec![saving(commit, &shards)],
            _ => Vec::new(),
        };
        for report in late.into_iter().chain(reports) {
            self.core.handle(self.now, Input::Device(report));
        }
    }

    fn gradient(&self, step: Step) -> Vec<Report> {
        let sum = Shared::new(Buffer::detached(vec![0.5; 1_024]));
        let node = TreeNode { level: 2, index: 0 };
        let partial = Report::Partial { step, shard: Shard(0), node, sum };
        let computed = (0..4).map(DataShard).map(|data_shard| {
            let samples = self.sampler.shard_samples(step, data_shard).collect();
            let contribution = Contribution {
                data_shard,
                loss: 1.0,
                weight: 1.0,
                samples,
                samples_lost: 0,
                samples_repeated: 0,
                evaluation: None,
                scalars: Vec::new(),
            };
            Report::Computed { step, contribution, seconds: 0.0, load_seconds: 0.0 }
        });
        std::iter::once(partial).chain(computed).collect()
    }

    fn committed(&self) -> Step {
        self.core.member().map_or(Step(0), |member| member.committed())
    }

    /// Answers every heartbeat as a coordinator does. Returns the steps of the lines that it got.
    fn answer(&mut self) -> Vec<u64> {
        let mut written = Vec::new();
        while let Some(message) = self.told.pop_front() {
            let Message::Heartbeat(heartbeat) = message else { continue };
            let next = |written: &[u64]| written.last().map_or(1, |last| last + 1);
            for line in heartbeat.lines {
                if line.step.0 == next(&written) {
                    written.push(line.step.0);
                }
            }
            let step = Step(written.last().copied().unwrap_or(0));
            let answer = Message::HeartbeatAnswer {
                generation: GENERATION,
                written: step,
                lacks_lines: false,
                retained: 0,
            };
            self.hear(answer);
        }
        written
    }

    /// The next generation asks for a checkpoint of the last step.
    fn is_asked(&mut self, number: Generation) {
        let commit = self.core.member().and_then(|member| member.commit().cloned());
        self.enter(number, Cause::Checkpoint, commit.expect("a commit"));
    }

    /// The next generation begins with the state of this commit.
    fn enter(&mut self, number: Generation, cause: Cause, commit: Commit) {
        let record = record_of(&[&[0, 1, 2, 3]], &[&[0]]);
        let mut record = Record { cause, resume: commit.step, commit: Some(commit), ..record };
        record.members[0].worker = WORKER;
        (record.number, record.predecessor) = (number, Generation(number.0 - 1));
        self.hear(Message::Pause { term: Term(1), number });
        self.hear(Message::Announce(record));
    }

    /// The newest part is durable.
    fn is_saved(&mut self) {
        let commit = self.core.member().and_then(|member| member.commit().cloned());
        let generation = *self.parts.last().expect("a part");
        let shards = vec![(Shard(0), [0; 32])];
        let part = SavedPart {
            commit: commit.expect("a commit"),
            generation,
            bytes: 9,
            head_bytes: 1,
            head_digest: [0; 32],
            shards,
            write_ms: 1,
        };
        self.give(Input::Store(StoreReport::Saved(part)));
    }

    /// How many durable parts it has told of since the last look.
    fn parts_told(&mut self) -> usize {
        let before = self.told.len();
        self.told.retain(|message| !matches!(message, Message::Saved(_)));
        before - self.told.len()
    }

    fn beat(&mut self) {
        self.pass(250);
    }

    fn pass(&mut self, ms: u64) {
        self.now = Time(self.now.0 + ms * 1_000_000);
        self.give(Input::Tick);
    }
}

fn saving(commit: Box<Commit>, shards: &[Shard]) -> Report {
    let state = || Arc::new(ShardState { master: Vec::new(), moments: Vec::new() });
    let shards =
        shards.iter().map(|shard| ShardToSave { shard: *shard, state: state(), digest: 0 });
    Report::Saving { commit, shards: shards.collect() }
}

/// A run of three steps, each of which is due. The store writes the part of step 1 meanwhile.
fn saving_each_step() -> Lone {
    let (path, on_failure) = ("/store".into(), OnFailure::Continue);
    let spec = CheckpointSpec { path, every: 1, keep: 1, keep_every: 0, on_failure };
    let run = RunSpec { steps: 3, copies: 1, checkpoint: Some(spec), ..exemplars::run() };
    let lone = Lone::training_as(run);
    assert_eq!((lone.committed(), lone.parts.len()), (Step(3), 2), "of steps 1 and 3");
    lone
}

#[test]
fn a_due_step_is_skipped_while_an_earlier_part_is_written_and_the_last_step_is_not() {
    let lone = saving_each_step();
    let unsaved = lone.told.into_iter().filter_map(|message| match message {
        Message::Unsaved { id, reason } => Some((id.step, reason)),
        _ => None,
    });
    let skipped = UnsavedPart::Skipped { earlier: Step(1) };
    assert_eq!(unsaved.collect::<Vec<_>>(), [(Step(2), skipped)]);
}

/// Each part that the store's thread has holds states of its own.
#[test]
fn a_store_that_fails_has_one_part_that_is_tried_and_one_that_waits() {
    // The parts of the first step and of the last one.
    let mut lone = saving_each_step();
    let commit = lone.core.member().and_then(|member| member.commit().cloned());
    let commit = commit.expect("a commit");
    let parts = |lone: &mut Lone, due: u64| {
        let commit = Commit { step: Step(due), ..commit.clone() };
        lone.give(Input::Device(saving(Box::new(commit), &[Shard(0)])));
        lone.parts.len()
    };
    lone.give(Input::Store(StoreReport::Failing(Some("no route to the store".into()))));
    for due in 10..20 {
        assert_eq!(parts(&mut lone, due), 2, "step {due}");
    }
    // An attempt has ended, and its part gives way.
    let id = CheckpointId { step: Step(1), generation: GENERATION };
    lone.give(Input::Store(StoreReport::Unsaved { id, reason: "no route to the store".into() }));
    assert_eq!([20, 21].map(|due| parts(&mut lone, due)), [3, 3]);
}

/// The device hands out a state that the rollback has undone when the core has heard of it.
#[test]
fn the_checkpoint_of_a_rollback_is_not_written_again() {
    let mut lone = saving_each_step();
    let commit = lone.core.member().and_then(|member| member.commit().cloned());
    let last = commit.expect("a commit");
    let first = Commit { step: Step(1), ..last.clone() };
    lone.enter(Generation(5), Cause::Rollback, first.clone());
    for commit in [last, first] {
        lone.give(Input::Device(saving(Box::new(commit), &[Shard(0)])));
    }
    assert_eq!(lone.parts.len(), 2, "the parts of before");
}

#[test]
fn a_checkpoint_that_is_asked_for_is_written_once_for_each_generation_that_asks() {
    let mut lone = Lone::saving();
    lone.is_asked(Generation(5));
    assert_eq!(lone.parts, [GENERATION, Generation(5)], "the earlier part may yet fail");
    lone.is_saved();
    assert_eq!(lone.parts_told(), 1);
    lone.is_asked(Generation(6));
    assert_eq!((lone.parts.len(), lone.parts_told()), (2, 1), "a durable part is told again");
}

/// The device had handed them out for the generation before, in which this worker was primary of
/// others. Found by a simulation: the checkpoint lacked shards for ever.
#[test]
fn shards_that_were_primary_before_are_not_saved_for_the_generation_that_asks() {
    let mut lone = Lone::saving();
    let commit = lone.core.member().and_then(|member| member.commit().cloned());
    let commit = Box::new(commit.expect("a commit"));
    lone.late = Some(saving(commit, &[Shard(0), Shard(1)]));
    lone.is_asked(Generation(5));
    assert_eq!(lone.parts, [GENERATION, Generation(5)]);
    assert_eq!(lone.saved, [Shard(0)]);
}

#[test]
fn a_worker_that_may_go_tells_of_its_part_first() {
    let mut lone = Lone::saving();
    lone.hear(Message::Drain { worker: WORKER });
    assert_eq!((lone.parts_told(), lone.exit.as_ref()), (0, None));
    lone.is_saved();
    assert_eq!((lone.parts_told(), lone.exit.as_ref()), (1, Some(&Exit::Drained)));
}

/// A generation has asked for the checkpoint anew: the manifest of its earlier parts gives way.
#[test]
fn a_manifest_that_gives_way_takes_no_part_with_it() {
    let mut lone = Lone::saving();
    lone.hear(Message::Drain { worker: WORKER });
    let commit = lone.core.member().and_then(|member| member.commit().cloned());
    let id = CheckpointId::of(&commit.expect("a commit"));
    lone.give(Input::Store(StoreReport::NoManifest { id, reason: "no space left".into() }));
    assert_eq!(lone.exit, None, "the part is still written");
    lone.is_saved();
    assert_eq!((lone.parts_told(), lone.exit.as_ref()), (1, Some(&Exit::Drained)));
}

#[test]
fn a_worker_that_may_go_does_not_wait_for_a_store_that_fails_or_beyond_its_grace() {
    let mut lone = Lone::saving();
    lone.hear(Message::Drain { worker: WORKER });
    lone.give(Input::Store(StoreReport::Failing(Some("no space left".into()))));
    assert_eq!(lone.exit, Some(Exit::Drained));
    let mut lone = Lone::saving();
    lone.hear(Message::Drain { worker: WORKER });
    lone.give(Input::DrainOverdue);
    assert_eq!(lone.exit, Some(Exit::Overdue));
}

#[test]
fn a_checkpoint_is_verified_once_for_each_verdict_and_for_no_earlier_leader() {
    let mut lone = Lone::saving();
    let id = CheckpointId { step: Step(1), generation: GENERATION };
    let tell = |lone: &mut Lone, state| {
        lone.give(Input::Store(StoreReport::Verification { id, state }));
        lone.told.pop_back()
    };
    lone.hear(Message::Verify { term: Term(0), id });
    assert_eq!(lone.verifies, 0);
    lone.hear(Message::Verify { term: Term(1), id });
    let reading = || Verification::Reading { bytes: 1, total: 2 };
    let state = reading();
    assert_eq!(tell(&mut lone, reading()), Some(Message::Verification { id, state }));
    lone.hear(Message::Verify { term: Term(1), id });
    assert_eq!(lone.verifies, 1, "it is under way");
    let state = Verification::Whole;
    assert_eq!(tell(&mut lone, state.clone()), Some(Message::Verification { id, state }));
    lone.hear(Message::Verify { term: Term(1), id });
    assert_eq!(lone.verifies, 2);
}

#[test]
fn each_leader_hears_which_workers_have_ended() {
    let name = NodeName::parse("again").expect("a valid name");
    let mut lone = Lone::new(name, &exemplars::run());
    lone.core = lone.core.succeeding(vec![4, 5]);
    lone.register(exemplars::run());
    let told = |lone: &mut Lone| {
        let before = lone.told.len();
        lone.told.retain(|told| *told != Message::Predecessors { ended: vec![4, 5] });
        before - lone.told.len()
    };
    assert_eq!(told(&mut lone), 1);
    lone.hear(Message::Registered { worker: WORKER, term: Term(2) });
    assert_eq!(told(&mut lone), 1);
}

/// Invariant I18: the worker does not refuse the record that it asked for. Found by a simulation in
/// which a process was started again while the cluster began, and another one joined too late.
#[test]
fn a_worker_in_excess_fetches_the_record_once_and_waits() {
    let name = NodeName::parse("in-excess").expect("a valid name");
    let mut lone = Lone::registered(name, exemplars::run());
    let answer = Message::HeartbeatAnswer {
        generation: Generation(3),
        written: Step(0),
        lacks_lines: false,
        retained: 0,
    };
    for _ in 0..3 {
        lone.hear(answer.clone());
        let fetches = lone.told.iter().filter(|told| matches!(told, Message::FetchRecord)).count();
        assert_eq!(fetches, 1);
        let record = Record { number: Generation(3), ..record_of(&[&[0, 1, 2, 3]], &[&[0]]) };
        lone.hear(Message::Announce(record));
    }
    assert!(lone.core.member().is_none());
    assert_eq!(lone.core.refused(), 0);
}

/// Invariant I13: a run faster than its heartbeats.
#[test]
fn a_long_tail_of_lines_goes_out_page_by_page_without_waiting_for_time() {
    let mut lone = Lone::training(1_000);
    lone.beat();
    let written = lone.answer();
    assert_eq!(written, (1..=1_000).collect::<Vec<_>>());
}

/// Invariant I13. Found by a simulation: the step leader had died with its lines, and the others
/// left before the leader of the coordinators had asked them for theirs.
#[test]
fn a_worker_that_leaves_tells_lines_before_it_promises_a_generation_without_it() {
    let mut lone = Lone::training(5);
    let next = |number: u64, members: &[&[u32]]| {
        let (number, predecessor) = (Generation(number), Generation(number - 1));
        Record { number, predecessor, ..record_of(members, &[&[0, 1]]) }
    };
    let commit = lone.core.member().and_then(|member| member.commit().cloned());
    let (resume, cause) = (Step(5), Cause::Lost);
    let mut record = Record { resume, cause, commit, ..next(5, &[&[0, 1], &[2, 3]]) };
    record.members[1].worker = WORKER;
    lone.hear(Message::Pause { term: Term(1), number: record.number });
    lone.hear(Message::Announce(record));
    lone.told.clear();
    let told = |lone: &mut Lone| -> Vec<(u64, bool)> {
        let told = std::mem::take(&mut lone.told).into_iter();
        told.filter_map(|message| match message {
            Message::Heartbeat(heartbeat) => Some((heartbeat.lines.len() as u64, false)),
            Message::Status(_) => Some((0, true)),
            _ => None,
        })
        .collect()
    };
    lone.beat();
    assert_eq!(told(&mut lone), [(0, false)], "the step leader tells them");
    lone.give(Input::Drain);
    lone.told.clear();
    lone.hear(Message::Pause { term: Term(1), number: Generation(6) });
    assert_eq!(told(&mut lone), [(5, false), (0, true)], "and then it promises");
}

/// Invariant I10. Found by a simulation: the last lines of a run are news for a leader. They were
/// told every 25 ms, also to one that was paused.
#[test]
fn news_is_told_early_again_only_once_the_leader_has_answered() {
    let mut lone = Lone::training(3);
    let beats = |lone: &mut Lone| {
        let told = std::mem::take(&mut lone.told);
        told.iter().filter(|told| matches!(told, Message::Heartbeat(_))).count()
    };
    beats(&mut lone);
    (0..120).for_each(|_| lone.pass(25));
    assert_eq!(beats(&mut lone), 12, "in three seconds");
    let (written, lacks_lines, retained) = (Step(0), false, 0);
    for _ in 0..3 {
        let generation = GENERATION;
        lone.hear(Message::HeartbeatAnswer { generation, written, lacks_lines, retained });
        lone.pass(25);
        assert_eq!(beats(&mut lone), 1, "it may be on its way to the disk");
    }
}

/// Invariants I10 and I13: lines are bounded, and none is dropped.
#[test]
fn the_step_leader_commits_no_more_than_it_can_remember() {
    let steps = 65_536 + 1_000;
    let mut lone = Lone::training(steps);
    assert_eq!(lone.committed(), Step(65_536));
    lone.beat();
    let written = lone.answer();
    assert_eq!((written.len() as u64, lone.committed()), (steps, Step(steps)));
}
