//! A billion parameters on eight workers, and a ninth that syncs its part of them over a modelled
//! link: the bytes under way follow from bytes and time, for steps of any kind.

use std::collections::VecDeque;
use std::time::Duration;

use everstep_kernels::buffer::Buffer;
use everstep_kernels::reduce;
use everstep_transport::protocol::{
    Chunk, ChunkKind, Message, Ownership, Rank, Record, Shard, Step, WorkerId,
};
use everstep_worker::step::event::{Effect, Input, Job, Report};

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
            if self.ready {
                return Some(self.tick as f64 * TICK_INTERVAL.as_secs_f64());
            }
        }
        None
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

/// A chunk as long as the shard in this model.
fn chunk_of(kind: ChunkKind, step: u64, shard: Shard, index: u32) -> Chunk {
    let count = length(shard) as u32;
    Chunk { shard, count, index, ..chunk(kind, step, 0) }
}

/// Seconds that the joiner takes to catch up, with steps of so many ticks, over a link that carries
/// so many bytes a tick.
fn seconds(mut scene: Scene, step_ticks: u64, carries: usize) -> f64 {
    let took = scene.catch_up(step_ticks, carries).expect("it learns everything");
    let bytes = scene.most_under_way;
    println!("steps of {step_ticks} ticks: {took:.1} s, {bytes} bytes under way");
    assert!(bytes <= 512 << 20, "{bytes}");
    took
}

/// 10 Gbit/s, bytes a tick.
const TEN_GIGABITS: usize = 12_500_000;

/// 2.7 GB of states, and 0.9 GB of gradients with each step.
#[test]
fn a_ninth_worker_learns_its_part_of_a_billion_parameters_by_what_its_link_carries() {
    for (step_ticks, within) in [(200, 12.0), (3_000, 60.0)] {
        let took = seconds(Scene::new(|shard| shard % 9 < 2), step_ticks, TEN_GIGABITS);
        assert!(took < within, "{took} s");
    }
}

/// One of eight workers had a quarter of all copies. Each of the seven others syncs its part of
/// them: 0.43 GB of states, and 0.14 GB of gradients with each step.
#[test]
fn a_lost_copy_of_a_billion_parameters_is_restored_within_twenty_seconds() {
    for carries in [TEN_GIGABITS, TEN_GIGABITS / 10] {
        let took = seconds(Scene::new(|shard| shard % 28 == 0), 200, carries);
        assert!(took < 20.0, "{took} s");
    }
}
