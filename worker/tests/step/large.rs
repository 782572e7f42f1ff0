//! A billion parameters on eight workers, and a ninth that syncs its part of them over a modelled
//! link, becomes a member and trains: the bytes under way follow from bytes and time, for steps of
//! any kind.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use everstep_kernels::buffer::{Buffer, Shared};
use everstep_kernels::reduce::{self, TreeNode};
use everstep_transport::protocol::step::Contribution;
use everstep_transport::protocol::{
    Cause, Chunk, ChunkKind, Commit, DataShard, Generation, Member, Message, NodeName, Ownership,
    Rank, Record, Shard, Step, WorkerId,
};
use everstep_worker::step::event::{Effect, Input, Job, Report, Work};

use crate::cluster::{Cluster, run};
use crate::solo::{LINK, Solo, TERM, chunk, commit};
use crate::support::{GENERATION, record_of};

const PARAMETERS: usize = 1_000_000_000;
const JOINER: WorkerId = WorkerId(30);
const TICK_INTERVAL: Duration = Duration::from_millis(10);
/// Ticks from a question to the first byte of its answer, because a pass is under way.
const ANSWER_TICKS: u64 = 10;

/// A chunk for the joiner.
#[derive(Clone, Copy)]
enum Item {
    State { from: WorkerId, shard: Shard, version: u64 },
    Gradient { shard: Shard, step: u64 },
}

/// A chunk for the new member.
struct MemberChunk {
    from: WorkerId,
    chunk: Chunk,
}

/// A joiner, and a link to it that states and gradients share.
struct Scene {
    solo: Solo,
    record: Record,
    missing: Vec<Shard>,
    tick: u64,
    /// States that the joiner asked for, each with the tick at which its owner sends it.
    asked: VecDeque<(u64, WorkerId, Shard)>,
    /// States and gradients on their way, each with the bytes that have not come.
    states: VecDeque<(Item, usize)>,
    gradients: VecDeque<(Item, usize)>,
    step: u64,
    ready: bool,
    most_under_way: usize,
}

fn length(shard: Shard) -> usize {
    reduce::shard_range(PARAMETERS, shard.0 as usize).len()
}

impl Scene {
    /// The joiner shall sync the shards for which this is true.
    fn new(syncs: impl Fn(u32) -> bool) -> Self {
        let shards = reduce::shard_count(PARAMETERS) as u32;
        let each: Vec<[u32; 1]> = (0..8).map(|data_shard| [data_shard]).collect();
        let each: Vec<&[u32]> = each.iter().map(|data_shard| &data_shard[..]).collect();
        let owners = (0..shards).map(|shard| Ownership {
            first: Shard(shard),
            count: 1,
            owners: [shard % 8, (shard + 1) % 8].map(Rank).to_vec(),
        });
        let record = Record { owners: owners.collect(), ..record_of(&each, &[]) };
        let mut solo = Solo::new();
        solo.connect(LINK);
        solo.hear(Message::Welcome { run: run(1_000), term: TERM });
        let mut built = Cluster::built();
        let fingerprint = &mut built.registration.fingerprint;
        (fingerprint.parameters, fingerprint.shards) = (PARAMETERS as u64, shards);
        solo.give(Input::Built(built));
        solo.hear(Message::Registered { worker: JOINER, term: TERM });
        solo.hear(Message::Announce(record.clone()));
        solo.entered(GENERATION, Step(0));
        let missing: Vec<u32> = (0..shards).filter(|shard| syncs(*shard)).collect();
        solo.hear(crate::solo::feed(JOINER, &missing));
        let missing = missing.into_iter().map(Shard).collect();
        let (states, gradients) = (VecDeque::new(), VecDeque::new());
        let (asked, most_under_way) = (VecDeque::new(), 0);
        let (tick, step, ready) = (0, 1, false);
        Self { solo, record, missing, tick, asked, states, gradients, step, ready, most_under_way }
    }

    /// Runs steps of so many ticks, over a link that carries so many bytes in each tick. Returns
    /// the seconds until the joiner has synced all shards. None if it does not in time.
    fn catch_up(&mut self, step_ticks: u64, carries: usize) -> Option<f64> {
        while self.tick < 30_000 {
            self.pass(step_ticks, carries);
            if self.ready {
                return Some(self.tick as f64 * TICK_INTERVAL.as_secs_f64());
            }
        }
        None
    }

    /// The next tick passes, with all that is due in it.
    fn pass(&mut self, step_ticks: u64, carries: usize) {
        self.tick += 1;
        self.solo.now = self.solo.now + TICK_INTERVAL;
        if self.tick % step_ticks == step_ticks / 2 && self.step > 1 {
            let step = self.step;
            let gradient =
                |shard: &Shard| (Item::Gradient { shard: *shard, step }, 4 * length(*shard));
            self.gradients.extend(self.missing.iter().map(gradient));
        }
        if self.tick.is_multiple_of(step_ticks) {
            let leader = self.record.members[0].worker;
            self.solo.peer(leader, Message::Commit(commit(self.step)));
            self.step += 1;
        }
        while self.asked.front().is_some_and(|(due, ..)| *due <= self.tick) {
            let Some((_, from, shard)) = self.asked.pop_front() else { break };
            let version = self.step - 1;
            self.states.push_back((Item::State { from, shard, version }, 12 * length(shard)));
        }
        self.carry(carries);
        self.solo.give(Input::Tick);
        self.follow();
    }

    /// States and gradients share the link. If there is only one kind, it has the whole link.
    fn carry(&mut self, bytes: usize) {
        let both = !self.states.is_empty() && !self.gradients.is_empty();
        let share = if both { bytes / 2 } else { bytes };
        let mut arrived = Vec::new();
        for queue in [&mut self.states, &mut self.gradients] {
            let mut left = share;
            while let Some((item, lacking)) = queue.front_mut() {
                let taken = left.min(*lacking);
                (left, *lacking) = (left - taken, *lacking - taken);
                if *lacking > 0 {
                    break;
                }
                arrived.push(*item);
                queue.pop_front();
            }
        }
        arrived.into_iter().for_each(|item| self.arrive(item));
    }

    fn arrive(&mut self, item: Item) {
        match item {
            Item::Gradient { shard, step } => {
                let primary = self.record.owners_of(shard)[0];
                let from = self.record.member(primary).worker;
                self.receive_chunk(from, chunk_of(ChunkKind::Reduced, step, shard, 0));
            }
            Item::State { from, shard, version } => {
                let (generation, version, digest) = (GENERATION, Step(version), 5);
                self.solo.peer(from, Message::State { generation, shard, version, digest });
                for index in 0..3 {
                    self.receive_chunk(from, chunk_of(ChunkKind::State, version.0, shard, index));
                }
            }
        }
    }

    fn receive_chunk(&mut self, from: WorkerId, chunk: Chunk) {
        let values = Buffer::detached(vec![0.0; chunk.count as usize]);
        self.solo.give(Input::Chunk { from, chunk, values });
        self.follow();
    }

    /// The device does its jobs at once. Questions reach their owners.
    fn follow(&mut self) {
        for effect in self.solo.took() {
            match effect {
                Effect::Device(Job::Restore { shard, version, .. }) => {
                    self.solo.report(Report::Restored { version, shard, digest: 0, intact: true });
                }
                Effect::SendToPeer { to, message: Message::FetchState { shards, .. } } => {
                    let due = self.tick + ANSWER_TICKS;
                    self.asked.extend(shards.into_iter().map(|shard| (due, to, shard)));
                }
                Effect::SendToCoordinator { message: Message::Heartbeat(heartbeat), .. } => {
                    self.ready = heartbeat.ready;
                    assert!(!heartbeat.ready || heartbeat.behind == 0);
                }
                _ => {}
            }
        }
        let asked = self.asked.iter().map(|(_, _, shard)| 12 * length(*shard));
        let coming = self.states.iter().map(|(_, lacking)| *lacking);
        self.most_under_way = self.most_under_way.max(asked.chain(coming).sum());
    }
}

/// The next generation, with the joiner as its ninth member.
impl Scene {
    /// The generation that begins after the last commit. The joiner owns what it has synced, every
    /// second shard as primary, and computes the last data shard.
    fn next_record(&self) -> Record {
        let mut members = self.record.members.clone();
        let data_shards = std::mem::take(&mut members[7].data_shards);
        let name = NodeName::parse("solo").expect("a valid name");
        let address = (Ipv4Addr::LOCALHOST, 1).into();
        members.push(Member { worker: JOINER, name, address, data_shards });
        let mut owners = self.record.owners.clone();
        for (number, shard) in self.missing.iter().enumerate() {
            let owners = &mut owners[shard.0 as usize].owners;
            owners[1] = owners[0];
            owners[number % 2] = Rank(8);
        }
        let resume = Step(self.step - 1);
        Record {
            number: GENERATION.next(),
            predecessor: GENERATION,
            cause: Cause::Join,
            members,
            owners,
            resume,
            commit: Some(commit(resume.0)),
            ..self.record.clone()
        }
    }

    /// Steps go on until no gradient of a step is under way. Then the generation changes, and the
    /// joiner trains a step. Returns the seconds from the change to its vote.
    fn train(&mut self, step_ticks: u64, carries: usize) -> f64 {
        while self.tick % step_ticks >= step_ticks / 2 || !self.gradients.is_empty() || !self.ready
        {
            self.pass(step_ticks, carries);
        }
        let record = self.next_record();
        let (number, resume) = (record.number, record.resume);
        self.solo.took();
        self.solo.hear(Message::Pause { term: TERM, number });
        let status = self.solo.status().expect("a promise");
        let synced: Vec<_> = self.missing.iter().map(|it| (*it, resume, GENERATION)).collect();
        assert_eq!((status.versions, status.prepared), (synced, vec![]), "all that it syncs");
        self.record = record.clone();
        self.solo.hear(Message::Announce(record));
        let (asked, work) = self.questions();
        self.solo.entered(number, resume);
        let began = self.tick;
        let mut parameters: VecDeque<_> = asked.into_iter().collect();
        assert_eq!(parameters.len() + self.missing.len(), self.record.owners.len());
        self.deliver(&mut parameters, carries);
        self.compute(&work.expect("a data shard to compute"));
        let mut others = self.chunks_of_others();
        assert!(!self.has_voted(), "a vote says that all is there");
        self.deliver(&mut others, carries);
        assert!(self.has_voted(), "{:?}", self.solo.core.member().map(|it| it.plan().rank()));
        (self.tick - began) as f64 * TICK_INTERVAL.as_secs_f64()
    }

    /// The parameters that the new member asks for, and what its device has to compute.
    fn questions(&mut self) -> (Vec<MemberChunk>, Option<Arc<Work>>) {
        let (mut asked, mut work) = (Vec::new(), None);
        let (generation, step) = (self.record.number, self.record.resume);
        for effect in self.solo.took() {
            match effect {
                Effect::SendToPeer { to, message: Message::FetchParameters { shards, .. } } => {
                    asked.extend(shards.into_iter().map(|shard| {
                        let chunk = chunk_of(ChunkKind::Parameters, step.0, shard, 0);
                        MemberChunk { from: to, chunk: Chunk { generation, ..chunk } }
                    }));
                }
                Effect::Device(Job::Gradient { work: asked, .. }) => work = Some(asked),
                _ => {}
            }
        }
        (asked, work)
    }

    /// What other members send the new one in a step: partial sums of the shards of which it is the
    /// primary, and reduced shards of the others that it owns.
    fn chunks_of_others(&self) -> VecDeque<MemberChunk> {
        let plan = self.solo.core.member().expect("a member").plan();
        let (generation, step) = (plan.generation(), self.record.resume.0 + 1);
        let mut chunks = VecDeque::new();
        for (shard, is_primary) in plan.owned() {
            let mut add = |from, kind, index| {
                let chunk = Chunk { generation, index, ..chunk_of(kind, step, *shard, 0) };
                chunks.push_back(MemberChunk { from, chunk });
            };
            if *is_primary {
                let computing = self.record.members[..7].iter().zip(0..);
                computing.for_each(|(it, index)| add(it.worker, ChunkKind::Partial, index));
            } else {
                add(plan.primary(*shard), ChunkKind::Reduced, 0);
            }
        }
        chunks
    }

    /// Chunks arrive over a link that carries so many bytes a tick.
    fn deliver(&mut self, chunks: &mut VecDeque<MemberChunk>, carries: usize) {
        let mut carried = 0;
        while let Some(MemberChunk { from, chunk }) = chunks.pop_front() {
            carried += 4 * chunk.count as usize;
            while carried > carries {
                carried -= carries;
                self.tick += 1;
                self.solo.now = self.solo.now + TICK_INTERVAL;
                self.solo.give(Input::Tick);
            }
            let values = Buffer::detached(vec![0.0; chunk.count as usize]);
            self.solo.give(Input::Chunk { from, chunk, values });
            self.solo.effects.retain(|effect| !matches!(effect, Effect::Device(Job::Load { .. })));
        }
        assert_eq!(self.solo.core.refused(), 0, "it expects each of them");
    }

    /// The device computes the data shards of a step. All gradients are zero.
    fn compute(&mut self, work: &Work) {
        let step = self.record.resume.next();
        let zeros = [Shard(0), Shard(self.record.owners.len() as u32 - 1)]
            .map(|shard| Shared::new(Buffer::detached(vec![0.0; length(shard)])));
        for shard in (0..self.record.owners.len() as u32).map(Shard) {
            let sum = zeros.iter().find(|sum| sum.len() == length(shard)).expect("a length");
            for node in &work.subtrees {
                let (node, sum): (TreeNode, Shared) = (*node, sum.clone());
                self.solo.report(Report::Partial { step, shard, node, sum });
            }
        }
        for data_shard in work.data_shards.iter().copied() {
            let contribution: Contribution = contribution(data_shard);
            let (seconds, load_seconds) = (1.0, 0.0);
            self.solo.report(Report::Computed { step, contribution, seconds, load_seconds });
        }
    }

    /// Whether the new member has voted since the last question.
    fn has_voted(&mut self) -> bool {
        let is_vote = |effect: &Effect| match effect {
            Effect::SendToPeer { message, .. } => matches!(message, Message::Prepared(_)),
            _ => false,
        };
        self.solo.took().iter().any(is_vote)
    }

    /// The step leader commits the step. Returns how many shards the new member updates.
    fn commit(&mut self) -> usize {
        let generation: Generation = self.record.number;
        let commit = Commit { generation, ..commit(self.record.resume.0 + 1) };
        self.solo.peer(self.record.members[0].worker, Message::Commit(commit));
        let jobs = self.solo.jobs();
        jobs.iter().filter(|job| matches!(job, Job::Update { .. })).count()
    }
}

fn contribution(data_shard: DataShard) -> Contribution {
    let (loss, weight) = (1.0, 1.0);
    let (samples, samples_lost, samples_repeated) = (vec![], 0, 0);
    Contribution {
        data_shard,
        loss,
        weight,
        samples,
        samples_lost,
        samples_repeated,
        evaluation: None,
        scalars: Vec::new(),
    }
}

/// A chunk as long as the shard in this model.
fn chunk_of(kind: ChunkKind, step: u64, shard: Shard, index: u32) -> Chunk {
    let count = length(shard) as u32;
    Chunk { shard, count, index, ..chunk(kind, step, 0) }
}

/// Seconds that the joiner takes to catch up, with steps of so many ticks, over a link that carries
/// so many bytes a tick. Then it becomes a member, which computes, votes and updates what it owns.
fn seconds(mut scene: Scene, step_ticks: u64, carries: usize) -> f64 {
    let took = scene.catch_up(step_ticks, carries).expect("it learns everything");
    let bytes = scene.most_under_way;
    println!("steps of {step_ticks} ticks: {took:.1} s, {bytes} bytes under way");
    assert!(bytes <= 512 << 20, "{bytes}");
    let voted = scene.train(step_ticks, carries);
    println!("its first vote came {voted:.1} s after the change");
    assert_eq!(scene.commit(), scene.missing.len(), "it updates what it owns");
    took
}

/// 10 Gbit/s, bytes a tick.
const TEN_GIGABITS: usize = 12_500_000;

/// 2.7 GB of states, and 0.9 GB of gradients with each step.
#[test]
fn a_ninth_worker_gets_its_part_of_a_billion_parameters_by_what_its_link_carries_and_trains() {
    for (step_ticks, within) in [(200, 12.0), (3_000, 60.0)] {
        let took = seconds(Scene::new(|shard| shard % 9 < 2), step_ticks, TEN_GIGABITS);
        assert!(took < within, "{took} s");
    }
}

/// One of eight workers had a quarter of all copies. Each of the seven others syncs its part of
/// them: 0.43 GB of states, and 0.14 GB of gradients with each step.
#[test]
fn a_lost_copy_of_a_billion_parameters_is_restored_within_twenty_seconds_and_is_updated() {
    for carries in [TEN_GIGABITS, TEN_GIGABITS / 10] {
        let took = seconds(Scene::new(|shard| shard % 28 == 0), 200, carries);
        assert!(took < 20.0, "{took} s");
    }
}
