//! Several cores with toy devices, and a coordinator that the test plays.
//!
//! One thing happens at a time, chosen by a seed: a device takes a step, a message or a chunk
//! arrives, or an answer of the coordinator arrives.

pub mod planner;
pub mod toy_device;
pub mod toy_file;
pub mod toy_store;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;

use everstep_kernels::buffer::{Buffer, Pool};
use everstep_kernels::threads::Threads;
use everstep_transport::protocol::message::Heartbeat;
use everstep_transport::protocol::outcome::WorkerResult;
use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{
    Cause, Chunk, Generation, Message, ModelPlace, NodeName, Record, RunSpec, Shard, Step, Term,
    WorkerId, codec, exemplars,
};
use everstep_transport::time::Time;
use everstep_worker::step::core::{Core, WorkerIdentity};
use everstep_worker::step::event::{Admission, Built, Effect, Input, Lane, LinkId, StreamItem};

use self::toy_device::ToyDevice;
use self::toy_file::ToyFile;
use self::toy_store::ToyStore;
use crate::support::{DATA_SHARDS, PARAMETERS, registration};

pub const TERM: Term = Term(1);
pub const SAMPLES: u64 = 1_000;
/// Each worker's link to the coordinator.
const LINK: LinkId = LinkId(1);

/// A run of so many steps over the eight data shards and three parameter shards.
pub fn run(steps: u64) -> RunSpec {
    let mut run = RunSpec { steps, ..exemplars::run() };
    run.batch.data_shards = DATA_SHARDS;
    run
}

pub fn name(worker: WorkerId) -> NodeName {
    NodeName::parse(&format!("worker-{worker}")).expect("a valid name")
}

/// Where every worker would write the model.
fn place() -> ModelPlace {
    ModelPlace { host: "node".into(), path: "/runs/model.safetensors".into() }
}

/// A worker, its device, and its directory.
pub struct Node {
    pub core: Core,
    pub toy_device: ToyDevice,
    pub toy_file: ToyFile,
    pub alive: bool,
    /// The workers that it lets in: the members of its generation, and those of each Meet.
    peers: BTreeSet<WorkerId>,
    /// How often the core still has to go on with the work that it put off.
    goes_on: usize,
}

/// A way from one worker to another. Messages and chunks on it keep their order.
type Way = (WorkerId, WorkerId, Option<Lane>);

pub struct Cluster {
    pub run: RunSpec,
    pub now: Time,
    pub nodes: BTreeMap<WorkerId, Node>,
    ways: BTreeMap<Way, VecDeque<StreamItem>>,
    /// Pairs whose link is cut.
    pub cut: BTreeSet<(WorkerId, WorkerId)>,
    /// Messages of the coordinator that have not arrived, in order.
    inbox: BTreeMap<WorkerId, VecDeque<Message>>,
    pub record: Option<Record>,
    pub statuses: BTreeMap<WorkerId, Status>,
    pub heartbeats: BTreeMap<WorkerId, Heartbeat>,
    pub results: BTreeMap<WorkerId, WorkerResult>,
    /// The worker that has reported a durable model file.
    pub durable: Option<WorkerId>,
    /// The workers that have reported the model in the store, and where it is.
    pub stored: Vec<(WorkerId, String)>,
    /// Whether the coordinator tells step leaders to write.
    pub writes: bool,
    /// Steps whose lines are written, with the bits of their loss.
    pub written: Vec<(Step, u64)>,
    pub failures: Vec<String>,
    pub store: ToyStore,
    seed: u64,
}

impl Cluster {
    /// A cluster in which these workers have registered.
    pub fn new(workers: &[u64], run: RunSpec, seed: u64) -> Self {
        let mut cluster = Self {
            run,
            now: Time(1),
            nodes: BTreeMap::new(),
            ways: BTreeMap::new(),
            cut: BTreeSet::new(),
            inbox: BTreeMap::new(),
            record: None,
            statuses: BTreeMap::new(),
            heartbeats: BTreeMap::new(),
            results: BTreeMap::new(),
            durable: None,
            stored: Vec::new(),
            writes: true,
            written: Vec::new(),
            failures: Vec::new(),
            store: ToyStore::default(),
            seed: seed.wrapping_mul(2).wrapping_add(1),
        };
        for worker in workers {
            cluster.join(WorkerId(*worker));
        }
        cluster
    }

    /// Adds a worker, which registers.
    pub fn join(&mut self, worker: WorkerId) {
        let identity = WorkerIdentity { name: name(worker), unix_ms_at_zero: 0 };
        let core = Core::new(identity, Pool::new(1 << 22)).merging(1);
        let toy_device = ToyDevice::new(&self.run, PARAMETERS, SAMPLES);
        let (toy_file, peers) = (ToyFile::default(), BTreeSet::new());
        let node = Node { core, toy_device, toy_file, alive: true, peers, goes_on: 0 };
        self.nodes.insert(worker, node);
        let run = self.run.clone();
        let centre = NodeName::parse("coordinator-1").expect("a valid name");
        self.give(worker, Input::CoordinatorUp { link: LINK, name: centre });
        self.say(worker, Message::Welcome { run, term: TERM });
        self.say(worker, Message::Registered { worker, term: TERM });
        self.beat(worker);
    }

    pub fn built() -> Built {
        let registration = registration((PARAMETERS, 3, SAMPLES), Some(place()));
        let trained = PARAMETERS;
        Built {
            registration,
            tokens_per_step: 1,
            trained,
            state_parts: 3,
            rates: None,
            threads: Threads::default(),
        }
    }

    // Actions of the test.

    /// Ends a worker's process, and with it the links of the others to it.
    pub fn kill(&mut self, worker: WorkerId) {
        self.nodes.get_mut(&worker).expect("a worker").alive = false;
        self.ways.retain(|(from, to, _), _| *from != worker && *to != worker);
        self.inbox.remove(&worker);
        for other in self.alive() {
            self.give(other, Input::PeerLost { from: worker, reason: "gone".into() });
        }
    }

    pub fn alive(&self) -> Vec<WorkerId> {
        self.nodes.iter().filter(|(_, node)| node.alive).map(|(worker, _)| *worker).collect()
    }

    pub fn core(&self, worker: u64) -> &Core {
        &self.nodes[&WorkerId(worker)].core
    }

    /// Sends a worker a message, which it handles at once.
    pub fn say(&mut self, worker: WorkerId, message: Message) {
        self.give(worker, Input::Coordinator { link: LINK, message });
    }

    /// Pauses these workers for the next generation and collects their answers.
    pub fn pause(&mut self, workers: &[WorkerId]) {
        self.statuses.clear();
        let number = self.number().next();
        for worker in workers {
            self.say(*worker, Message::Pause { term: TERM, number });
        }
    }

    pub fn number(&self) -> Generation {
        self.record.as_ref().map_or(Generation(0), |record| record.number)
    }

    /// Pauses all living workers, and begins a generation of these members.
    pub fn change(&mut self, members: &[WorkerId], cause: Cause) {
        self.pause(&self.alive());
        let record = planner::plan(self, members, cause);
        self.begin(record);
    }

    /// Announces a record to all living workers, sooner or later.
    pub fn begin(&mut self, record: Record) {
        if record.cause == Cause::Rollback {
            self.written.retain(|(step, _)| *step <= record.resume);
            self.store.go_back(record.resume);
        }
        self.record = Some(record.clone());
        self.results.clear();
        self.durable = None;
        for worker in self.alive() {
            let inbox = self.inbox.entry(worker).or_default();
            inbox.push_back(Message::Announce(record.clone()));
        }
        if self.writes {
            self.tell_to_write(record.step_leader());
        }
    }

    /// Tells a worker to write the model.
    pub fn tell_to_write(&mut self, worker: WorkerId) {
        let message = Message::Write { term: TERM, generation: self.number() };
        self.inbox.entry(worker).or_default().push_back(message);
    }

    /// Announces the current record to a worker.
    pub fn announce_to(&mut self, worker: WorkerId) {
        let record = self.record.clone().map(Message::Announce);
        self.inbox.entry(worker).or_default().extend(record);
    }

    /// Feeds a joiner in the current generation.
    pub fn feed(&mut self, joiner: WorkerId, shards: &[u32]) {
        let message = Message::Feed {
            term: TERM,
            generation: self.number(),
            joiner,
            name: name(joiner),
            address: (Ipv4Addr::LOCALHOST, 1).into(),
            shards: shards.iter().copied().map(Shard).collect(),
        };
        for worker in self.alive() {
            self.inbox.entry(worker).or_default().push_back(message.clone());
        }
    }

    /// Loses the announcement to a worker.
    pub fn mislay(&mut self, worker: WorkerId) {
        self.inbox.remove(&worker);
    }

    pub fn members(&self) -> Vec<WorkerId> {
        let members = &self.record.as_ref().expect("a generation").members;
        members.iter().map(|member| member.worker).collect()
    }

    /// The last heartbeat of a worker in the current generation, if there is one.
    pub fn heard(&self, worker: WorkerId) -> Option<&Heartbeat> {
        let heartbeat = self.heartbeats.get(&worker);
        heartbeat.filter(|heartbeat| heartbeat.generation == self.number())
    }

    pub fn is_over(&self) -> bool {
        self.committed().0 == self.run.steps
    }

    /// Runs events until this holds.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        for _ in 0..200_000 {
            if holds(self) {
                return;
            }
            self.step();
        }
        panic!("it never came that {what}; failures: {:?}", self.failures);
    }

    /// Runs so many events.
    pub fn steps(&mut self, count: u64) {
        (0..count).for_each(|_| self.step());
    }

    /// Runs until every member has reported, and the model is durable.
    pub fn finish(&mut self) {
        self.until("the run ends", |cluster| {
            let mut members = cluster.members().into_iter();
            members.all(|member| cluster.results.contains_key(&member)) && cluster.durable.is_some()
        });
    }

    /// The greatest commit that a living member knows.
    pub fn committed(&self) -> Step {
        let living = self.nodes.values().filter(|node| node.alive);
        let steps = living.filter_map(|node| Some(node.core.member()?.committed()));
        steps.max().unwrap_or_default()
    }

    pub fn random(&mut self, below: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.seed >> 33) as usize) % below.max(1)
    }

    // The events.

    /// One event happens.
    pub fn step(&mut self) {
        self.now = self.now + Duration::from_millis(1);
        let alive = self.alive();
        let worker = alive[self.random(alive.len())];
        match self.random(8) {
            0 => {
                self.beat(worker);
                let node = self.nodes.get_mut(&worker).expect("a worker");
                for _ in 0..std::mem::take(&mut node.goes_on) {
                    self.give(worker, Input::Yielded);
                }
            }
            1 => {
                let said = self.inbox.get_mut(&worker).and_then(VecDeque::pop_front);
                said.into_iter().for_each(|message| self.say(worker, message));
            }
            2 | 3 => {
                let node = self.nodes.get_mut(&worker).expect("a worker");
                let (reports, of_file) = (node.toy_device.work(), node.toy_file.work());
                if let Some((generation, report)) = of_file {
                    self.give(worker, Input::File(generation, report));
                }
                reports.into_iter().for_each(|report| self.give(worker, Input::Device(report)));
                if let Some((worker, report)) = self.store.next() {
                    self.give(worker, Input::Store(report));
                }
            }
            _ => self.carry(),
        }
    }

    fn beat(&mut self, worker: WorkerId) {
        self.give(worker, Input::Tick);
    }

    /// A message or a chunk arrives, if its receiver lets it in.
    fn carry(&mut self) {
        let open = |way: &&Way| {
            !self.cut.contains(&(way.0, way.1)) && self.nodes[&way.1].peers.contains(&way.0)
        };
        let ways: Vec<Way> = self.ways.keys().filter(open).copied().collect();
        if ways.is_empty() {
            return;
        }
        let (from, to, lane) = ways[self.random(ways.len())];
        let way = self.ways.get_mut(&(from, to, lane)).expect("a way");
        let core = &self.nodes[&to].core;
        let admission = match way.front() {
            Some(StreamItem::Message(message)) if lane.is_some() => {
                let bytes = codec::encode(message).len();
                core.admit(from, &Chunk::message(generation_of(message), Step(0), bytes))
            }
            Some(StreamItem::Tensor { chunk, .. }) => core.admit(from, chunk),
            _ => Admission::Take,
        };
        if admission == Admission::Wait {
            return;
        }
        let item = way.pop_front();
        if way.is_empty() {
            self.ways.remove(&(from, to, lane));
        }
        let input = match item {
            _ if admission == Admission::Drop => Input::Refused,
            Some(StreamItem::Message(message)) => Input::Peer { from, message: *message },
            Some(StreamItem::Tensor { chunk, values }) => {
                Input::Chunk { from, chunk, values: Buffer::detached(values.to_vec()) }
            }
            None => return,
        };
        self.give(to, input);
    }

    pub fn give(&mut self, worker: WorkerId, input: Input) {
        let node = self.nodes.get_mut(&worker).expect("a worker");
        if !node.alive {
            return;
        }
        node.core.handle(self.now, input);
        while let Some(effect) = self.nodes.get_mut(&worker).and_then(|it| it.core.poll_effect()) {
            self.perform(worker, effect);
        }
    }

    fn perform(&mut self, worker: WorkerId, effect: Effect) {
        match effect {
            Effect::SendToCoordinator { message, .. } => self.told(worker, message),
            Effect::SendToPeer { to, message } => {
                self.put((worker, to, None), StreamItem::Message(message.into()))
            }
            Effect::Stream { to, lane, item, .. } => self.put((worker, to, Some(lane)), item),
            Effect::Build(run) => {
                let node = self.nodes.get_mut(&worker).expect("a worker");
                node.toy_device = ToyDevice::new(&run, PARAMETERS, SAMPLES);
                self.give(worker, Input::Built(Self::built()));
            }
            Effect::Enter(record) => {
                let peers = record.members.iter().map(|member| member.worker).collect();
                self.nodes.get_mut(&worker).expect("a worker").peers = peers;
                // This worker's unsent messages of an older generation are dropped.
                self.ways.retain(|(from, _, _), _| *from != worker);
            }
            Effect::AcceptPeer { worker: joiner, .. } => {
                self.nodes.get_mut(&worker).expect("a worker").peers.insert(joiner);
            }
            Effect::Yield => self.nodes.get_mut(&worker).expect("a worker").goes_on += 1,
            Effect::Coordinators(_) | Effect::Exit(_) => {}
            Effect::Store(job) => self.store.take(worker, job),
            Effect::File(job) => {
                self.nodes.get_mut(&worker).expect("a worker").toy_file.give(job);
            }
            Effect::Device(job) => {
                self.nodes.get_mut(&worker).expect("a worker").toy_device.give(job);
            }
        }
    }

    fn put(&mut self, way: Way, item: StreamItem) {
        if self.nodes.get(&way.1).is_some_and(|node| node.alive) {
            self.ways.entry(way).or_default().push_back(item);
        }
    }

    fn told(&mut self, worker: WorkerId, message: Message) {
        match message {
            Message::Status(status) => {
                self.statuses.insert(worker, status);
            }
            Message::Heartbeat(heartbeat) => {
                for line in &heartbeat.lines {
                    self.write(line.step, line.loss.to_bits());
                }
                let written = Step(self.written.len() as u64);
                self.store.list(written);
                let answer = Message::HeartbeatAnswer {
                    generation: self.number(),
                    written,
                    lacks_lines: self.record.as_ref().is_some_and(|it| written < it.resume),
                    retained: 0,
                };
                self.inbox.entry(worker).or_default().push_back(answer);
                self.heartbeats.insert(worker, heartbeat);
                self.remind_writer();
            }
            Message::FetchRecord => {
                let record = self.record.clone().map(Message::Announce);
                self.inbox.entry(worker).or_default().extend(record);
            }
            Message::Finished(result) => {
                self.results.insert(worker, result);
            }
            Message::Written(place) => {
                assert_eq!(place, self::place());
                self.durable = Some(worker);
            }
            Message::Stored(place) => self.stored.push((worker, place.path)),
            Message::Failed { reason, .. } => self.failures.push(reason),
            Message::Saved(part) => self.store.saved(worker, part),
            _ => {}
        }
    }

    /// Tells the step leader again to write, since the first message may be lost.
    fn remind_writer(&mut self) {
        let writer = self.record.as_ref().map(|record| record.step_leader());
        let waits = self.writes && self.is_over() && self.durable.is_none();
        if let Some(writer) =
            writer.filter(|it| waits && self.inbox.get(it).map_or(0, VecDeque::len) < 2)
        {
            self.tell_to_write(writer);
        }
    }

    fn write(&mut self, step: Step, loss: u64) {
        if step.0 == self.written.len() as u64 + 1 {
            self.written.push((step, loss));
        }
    }
}

fn generation_of(message: &Message) -> Generation {
    match message {
        Message::Commit(commit) => commit.generation,
        Message::State { generation, .. } => *generation,
        _ => Generation(0),
    }
}
