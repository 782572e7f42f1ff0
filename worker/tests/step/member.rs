//! What a member waits for before it votes, and which messages and chunks it refuses.

use std::sync::Arc;

use everstep_kernels::buffer::{Buffer, Pool, Shared};
use everstep_kernels::reduce::Tree;
use everstep_kernels::threads::Threads;
use everstep_transport::protocol::exemplars;
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{
    Chunk, ChunkKind, Commit, DataShard, Decision, Encoding, LossScale, Message, MetricsLine,
    Record, Shard, Step, WorkerId,
};
use everstep_transport::time::Time;
use everstep_worker::optimize;
use everstep_worker::step::event::{Admission, Effect, Report};
use everstep_worker::step::member::Member;
use everstep_worker::step::plan::MemberPlan;
use everstep_worker::step::replica_state::ReplicaState;
use everstep_worker::step::scaling::{GROWTH_INTERVAL, Scaling};
use everstep_worker::step::setup::Setup;

use crate::support::{DATA_SHARDS, GENERATION, MEMBERS, PARAMETERS, record, record_of};

const NOW: Time = Time(1);

fn enter(worker: WorkerId, record: Record) -> Member {
    enter_with(worker, record, PARAMETERS)
}

/// A member whose optimizer trains the first elements alone. The others are statistics.
fn enter_with(worker: WorkerId, record: Record, trained: usize) -> Member {
    let mut run = exemplars::run();
    run.batch.data_shards = DATA_SHARDS;
    let setup = Setup {
        parameters: PARAMETERS,
        trained,
        scaling: Scaling::of(run.model.precision, GROWTH_INTERVAL),
        rates: optimize::rates(&run, None),
        tokens_per_step: 16,
        unix_ms_at_zero: 0,
        pool: Pool::new(1 << 20),
        threads: Threads::default(),
        state_parts: 3,
        merge_bytes: 1,
        run,
    };
    let plan = MemberPlan::new(record, worker, PARAMETERS, DATA_SHARDS).expect("a member");
    let owned = plan.owned().keys().map(|shard| (*shard, Step(0), 0)).collect();
    let replica = ReplicaState::initial(3);
    let entered = Member::enter(NOW, Arc::new(setup), plan, replica);
    let mut member = entered.expect("a record to enter");
    member.report(NOW, Report::Entered { generation: GENERATION, owned });
    member
}

/// A spare without a data shard or parameter shard, beside one member that does everything.
fn idle() -> Member {
    let record = record_of(&[&[0, 1, 2, 3, 4, 5, 6, 7], &[]], &[&[0], &[0], &[0]]);
    enter(MEMBERS[1], record)
}

/// The steps that the member has voted for since the last question.
fn votes(member: &mut Member) -> Vec<u64> {
    let mut steps = Vec::new();
    while let Some(effect) = member.poll_effect() {
        if let Effect::SendToPeer { message: Message::Prepared(vote), .. } = effect {
            steps.push(vote.step.0);
        }
    }
    steps
}

fn commit(decision: Decision) -> Message {
    let line = MetricsLine { step: Step(1), ..MetricsLine::default() };
    let (generation, step, updates) = (GENERATION, Step(1), 1);
    let (norm, loss, hold) = (1.0, 2.0, false);
    let (gradient_factor, loss_scale) = (1.0, LossScale::default());
    Message::Commit(Commit {
        generation,
        step,
        norm,
        loss,
        decision,
        gradient_factor,
        updates,
        loss_scale,
        hold,
        line,
    })
}

fn chunk(kind: ChunkKind, step: u64, shard: u32) -> Chunk {
    let count = PARAMETERS.min(1_024 * (shard as usize + 1)) - 1_024 * shard as usize;
    Chunk {
        kind,
        generation: GENERATION,
        step: Step(step),
        shard: Shard(shard),
        level: 0,
        index: 0,
        count: count as u32,
        encoding: Encoding::F32,
        digest: 0,
    }
}

fn receive_chunk(member: &mut Member, from: WorkerId, chunk: Chunk, value: f32) {
    let values = Buffer::detached(vec![value; chunk.count as usize]);
    member.on_chunk(NOW, from, &chunk, values);
}

#[test]
fn who_has_nothing_to_do_votes_at_once() {
    assert_eq!(votes(&mut idle()), [1]);
}

#[test]
fn a_spare_votes_when_it_has_gathered_what_was_updated() {
    let mut member = idle();
    votes(&mut member);
    member.peer(NOW, MEMBERS[0], commit(Decision::Apply));
    for shard in 0..3 {
        assert_eq!(votes(&mut member), [0; 0], "shard {shard} is missing");
        receive_chunk(&mut member, MEMBERS[0], chunk(ChunkKind::Parameters, 1, shard), 0.5);
    }
    assert_eq!((votes(&mut member), member.refused()), (vec![2], 0));
}

#[test]
fn after_a_skipped_step_there_is_nothing_to_gather() {
    let mut member = idle();
    votes(&mut member);
    member.peer(NOW, MEMBERS[0], commit(Decision::Skip));
    assert_eq!(votes(&mut member), [2]);
}

#[test]
fn statistics_have_no_part_in_the_norm() {
    let all: Vec<u32> = (0..DATA_SHARDS).collect();
    let record = record_of(&[&[], &all], &[&[1], &[1], &[1]]);
    let mut member = enter_with(MEMBERS[1], record, 1_024 + 100);
    let (step, node) = (Step(1), Tree::new(DATA_SHARDS).root());
    for shard in (0..3).map(Shard) {
        let length = chunk(ChunkKind::Partial, 1, shard.0).count as usize;
        let sum = Shared::new(Buffer::detached(vec![2.0; length]));
        member.report(NOW, Report::Partial { step, shard, node, sum });
    }
    for data_shard in all.into_iter().map(DataShard) {
        let (loss, weight, samples) = (1.0, 1.0, vec![0]);
        let (samples_lost, samples_repeated) = (0, 0);
        let contribution = Contribution {
            data_shard,
            loss,
            weight,
            samples,
            samples_lost,
            samples_repeated,
            evaluation: None,
            scalars: Vec::new(),
        };
        let (seconds, load_seconds) = (0.0, 0.0);
        member.report(NOW, Report::Computed { step, contribution, seconds, load_seconds });
    }
    let votes = std::iter::from_fn(|| member.poll_effect()).filter_map(|effect| match effect {
        Effect::SendToPeer { message: Message::Prepared(vote), .. } => Some(vote.squares),
        _ => None,
    });
    let squares = vec![(Shard(0), 4.0 * 1_024.0), (Shard(1), 4.0 * 100.0), (Shard(2), 0.0)];
    assert_eq!(votes.collect::<Vec<_>>(), [squares]);
}

#[test]
fn a_reduced_shard_is_taken_once() {
    let mut member = enter(MEMBERS[1], record());
    let reduced = chunk(ChunkKind::Reduced, 1, 0);
    for (refused, value) in [1.0, 2.0].into_iter().enumerate() {
        receive_chunk(&mut member, MEMBERS[0], reduced, value);
        assert_eq!(member.refused(), refused as u64);
    }
}

#[test]
fn what_is_early_waits_and_what_is_late_or_unexpected_is_dropped() {
    let member = enter(MEMBERS[1], record());
    let other = |change: fn(&mut Chunk)| {
        let mut chunk = chunk(ChunkKind::Reduced, 1, 0);
        change(&mut chunk);
        chunk
    };
    let table = [
        (MEMBERS[0], other(|_| {}), Admission::Take),
        (MEMBERS[0], other(|chunk| chunk.step = Step(2)), Admission::Wait),
        (MEMBERS[0], other(|chunk| chunk.step = Step(0)), Admission::Drop),
        (MEMBERS[0], other(|chunk| chunk.generation.0 += 1), Admission::Wait),
        (MEMBERS[0], other(|chunk| chunk.generation.0 -= 1), Admission::Drop),
        (MEMBERS[0], other(|chunk| chunk.count -= 1), Admission::Drop),
        (MEMBERS[0], other(|chunk| chunk.shard = Shard(1)), Admission::Drop),
        (MEMBERS[0], other(|chunk| chunk.shard = Shard(9)), Admission::Drop),
        (MEMBERS[2], other(|_| {}), Admission::Drop),
        (MEMBERS[0], chunk(ChunkKind::Partial, 1, 1), Admission::Drop),
        (MEMBERS[2], chunk(ChunkKind::Parameters, 1, 2), Admission::Wait),
    ];
    for (from, chunk, expected) in table {
        assert_eq!(member.admit(from, &chunk), expected, "{chunk:?} from {from}");
    }
}

/// Invariant I2.
#[test]
fn another_commit_of_a_known_step_breaks_the_history() {
    let mut member = idle();
    votes(&mut member);
    member.peer(NOW, MEMBERS[0], commit(Decision::Skip));
    member.peer(NOW, MEMBERS[0], commit(Decision::Skip));
    assert_eq!(member.divergence(), None, "it came on two lanes");
    member.peer(NOW, MEMBERS[0], commit(Decision::Apply));
    let broken = member.divergence().expect("a contradiction");
    assert_eq!(broken.at_fault(), Some(MEMBERS[0]));
}
