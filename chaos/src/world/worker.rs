//! A worker in the world: its core, its device, and what the shell does in production.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use everstep_coordinator::core as coordination;
use everstep_kernels::buffer::Pool;
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::{Chunk, Generation, NodeName, Record, RunSpec, Step, WorkerId};
use everstep_transport::time::Time;
use everstep_worker::device::build::{Place, build};
use everstep_worker::step::core::{self, Core};
use everstep_worker::step::event::{Admission, Effect, Exit, Input, Job, Report};

use super::bench::Bench;
use super::clock::Clock;
use super::types::Happening;
use super::wire::StreamId;
use super::{CONNECT_AGAIN, Node, UNIX_MS_AT_ZERO, WORKER_TICK, World};
use crate::check::{Copy, Observation, Violation};

/// One worker.
pub struct Worker {
    name: NodeName,
    slot: usize,
    clock: Clock,
    /// Its id, once it is a member.
    id: Option<WorkerId>,
    core: Core,
    pool: Pool,
    bench: Option<Bench>,
    /// Streams whose next header waits until the core has moved on.
    waiting: BTreeSet<StreamId>,
    ended: bool,
}

/// What the world looks at before and after an input.
struct Standing {
    refused: u64,
    committed: Option<Step>,
    settled: Option<Step>,
}

/// Free memory that a worker's pool keeps, bytes.
const POOL_BYTES: usize = 1 << 20;

impl Worker {
    /// The worker at `place`, before its first word.
    pub fn new(place: usize, slot: usize, clock: Clock) -> Self {
        let name = NodeName::parse(&format!("worker-{place}")).expect("a valid name");
        let pool = Pool::new(POOL_BYTES);
        let identity = core::Identity { name: name.clone(), unix_ms_at_zero: UNIX_MS_AT_ZERO };
        Self {
            core: Core::new(identity, pool.clone()),
            name,
            slot,
            clock,
            id: None,
            pool,
            bench: None,
            waiting: BTreeSet::new(),
            ended: false,
        }
    }

    /// The slot that it is in.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Its clock.
    pub fn clock_mut(&mut self) -> &mut Clock {
        &mut self.clock
    }

    /// Whether it has entered a generation.
    pub fn is_member(&self) -> bool {
        self.id.is_some()
    }

    /// Its id.
    ///
    /// # Panics
    /// Before it is a member: until then it says nothing to other workers.
    pub fn id(&self) -> WorkerId {
        self.id.expect("only members speak to members")
    }

    /// Where its buffers come from.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Whether its process has ended.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// See [`Core::admit`].
    pub fn admit(&self, from: WorkerId, chunk: &Chunk) -> Admission {
        self.core.admit(from, chunk)
    }

    /// The stream's next header waits.
    pub fn wait_with(&mut self, stream: StreamId) {
        self.waiting.insert(stream);
    }

    /// The process is gone without a word.
    pub fn crash(&mut self) {
        self.ended = true;
        self.bench = None;
        self.waiting.clear();
    }

    /// Its generation and its last commit; of none before it is a member.
    pub fn current(&self) -> (Generation, Step) {
        let member = self.core.member();
        member.map_or_else(Default::default, |member| {
            (member.plan().generation(), member.committed())
        })
    }

    fn look(&self) -> Standing {
        let member = self.core.member();
        Standing {
            refused: self.core.refused(),
            committed: member.map(|member| member.committed()),
            settled: member.map(|member| member.settled()),
        }
    }
}

impl World {
    /// A new process in a slot.
    pub(super) fn start_worker(&mut self, slot: usize) {
        let place = self.workers.len();
        self.slots[slot] = place;
        let permille = self.drifts.get(&Node::Worker(slot)).copied().unwrap_or(1000);
        let mut worker = Worker::new(place, slot, Clock::new(self.now, permille));
        (self.scenario.prepare.worker)(&mut worker.core);
        self.workers.push(worker);
        let at = self.now + self.random.delay();
        self.queue.put(at, Happening::Connect(place));
        self.queue.put(at, Happening::WorkerTick(place));
    }

    /// Reaches the coordinator, or tries again.
    pub(super) fn connect_worker(&mut self, place: usize) -> Result<(), Violation> {
        let own = Node::Worker(place);
        if !self.is_alive(own) {
            return Ok(());
        }
        let shut = self.shut_until(own, Node::Coordinator).is_some()
            || self.shut_until(Node::Coordinator, own).is_some();
        if shut || self.coordinator.is_down() || self.paused.contains_key(&Node::Coordinator) {
            self.queue.put(self.now + CONNECT_AGAIN, Happening::Connect(place));
            return Ok(());
        }
        self.link(own, Node::Coordinator);
        let identity = Identity { role: Role::Worker, name: self.workers[place].name.clone() };
        self.later(Happening::Worker(place, Input::Start));
        self.coordinate(coordination::Input::Connected { link: own.link(), identity })
    }

    pub(super) fn tick_worker(&mut self, place: usize) -> Result<(), Violation> {
        if self.workers[place].ended {
            return Ok(());
        }
        let next = self.now + self.workers[place].clock.true_time(WORKER_TICK);
        self.queue.put(next, Happening::WorkerTick(place));
        self.feed(place, Input::Tick)
    }

    /// The id of the member at a place, as far as any member has told.
    pub(super) fn member_at(&self, place: usize) -> Option<WorkerId> {
        self.places.iter().find(|(_, at)| **at == place).map(|(id, _)| *id)
    }

    /// The clock of a process.
    pub(super) fn clock(&self, node: Node) -> Clock {
        match node {
            Node::Coordinator => *self.coordinator.clock(),
            Node::Worker(place) => *self.workers[place].clock(),
            Node::Operator => Clock::new(Time(0), 1000),
        }
    }

    /// What a worker waits for, in words.
    pub(super) fn waits_for(&self, place: usize) -> String {
        let Worker { core, slot, bench, waiting, ended, .. } = &self.workers[place];
        let what = match core.member() {
            _ if *ended => "has ended".into(),
            _ if self.paused.contains_key(&Node::Worker(place)) => "stands still".into(),
            None => "is no member yet".into(),
            Some(member) => format!(
                "has committed step {}, settled {}; {} streams wait, {} jobs are to do",
                member.committed(),
                member.settled(),
                waiting.len(),
                bench.as_ref().map_or(0, Bench::waiting)
            ),
        };
        format!("worker {place} (slot {slot}) {what}")
    }

    /// Gives a worker's core an input, does what it wants done, and shows both to the checkers.
    pub(super) fn feed(&mut self, place: usize, input: Input) -> Result<(), Violation> {
        if self.workers[place].ended {
            return Ok(());
        }
        if let Input::Device(report) = &input {
            self.witness_report(place, report)?;
        }
        let worker = &mut self.workers[place];
        let now = worker.clock.read(self.now);
        let before = worker.look();
        worker.core.handle(now, input);
        let after = worker.look();
        self.witness(place, &before, &after)?;
        while let Some(effect) = self.workers[place].core.poll_effect() {
            self.perform(place, effect)?;
        }
        if after.committed != before.committed {
            for stream in std::mem::take(&mut self.workers[place].waiting) {
                self.later(Happening::Header(stream));
            }
        }
        Ok(())
    }

    fn perform(&mut self, place: usize, effect: Effect) -> Result<(), Violation> {
        let own = Node::Worker(place);
        match effect {
            Effect::Tell(message) => self.say(own, Node::Coordinator, message),
            Effect::Send { to, message } => {
                if let Some(to) = self.places.get(&to) {
                    self.say(own, Node::Worker(*to), message);
                }
            }
            Effect::Stream { to, lane, step, parcel } => {
                return self.stream(place, to, (lane, step, parcel));
            }
            Effect::Build(run) => self.build(place, &run),
            Effect::Enter(record) => self.meet(place, &record),
            Effect::Device(job) => return self.give_job(place, job),
            Effect::Exit(exit) => self.exit(place, exit),
        }
        Ok(())
    }

    // The device.

    fn build(&mut self, place: usize, run: &RunSpec) {
        let address = (Ipv4Addr::LOCALHOST, 1 + place as u16).into();
        let incarnation = self.random.bits();
        // Without a thread that loads ahead: its pace would be the machine's.
        let own = Place { incarnation, address, dir: None, overlap: true, prefetch: 0 };
        let worker = &mut self.workers[place];
        let built = build(&self.scenario.registry, run, &own, worker.pool.clone());
        let input = match built {
            Ok((mut device, built)) => {
                (self.scenario.prepare.device)(&mut device);
                let shards = built.registration.fingerprint.shards;
                worker.bench = Some(Bench::new(device, shards));
                Input::Built(built)
            }
            Err(reason) => Input::BuildFailed(reason),
        };
        self.later(Happening::Worker(place, input));
    }

    fn give_job(&mut self, place: usize, job: Job) -> Result<(), Violation> {
        if let Job::Load { shard, version, values } = &job {
            let (version, shard, parameters) = (*version, *shard, Some(&**values));
            let copy = Copy { version, shard, digest: None, parameters };
            self.observe(Observation::Loaded(self.workers[place].id(), copy))?;
        }
        let bench = self.workers[place].bench.as_mut();
        let bench = bench.expect("a device is built before its first job");
        bench.push(job);
        let waiting = bench.waiting();
        self.observe(Observation::Queued("device", waiting))?;
        self.work(place)
    }

    pub(super) fn free(&mut self, place: usize) -> Result<(), Violation> {
        if let Some(bench) = &mut self.workers[place].bench {
            bench.release();
        }
        self.work(place)
    }

    fn work(&mut self, place: usize) -> Result<(), Violation> {
        let Some(bench) = &mut self.workers[place].bench else { return Ok(()) };
        let Some(work) = bench.work(self.now, &mut self.random) else { return Ok(()) };
        for (at, report) in work.reports {
            self.queue.put(at, Happening::Worker(place, Input::Device(report)));
        }
        self.queue.put(work.until, Happening::Free(place));
        match work.gradient {
            Some(step) => self.observe(Observation::Began(self.workers[place].id(), step)),
            None => Ok(()),
        }
    }

    // The end.

    /// The process ends, and its links with it.
    fn exit(&mut self, place: usize, exit: Exit) {
        self.note(format_args!("worker {place} ends: {exit:?}"));
        self.course.progress(self.now);
        self.close_links(Node::Worker(place), "its process has ended");
        self.workers[place].crash();
    }

    // What the checkers see.

    fn witness_report(&mut self, place: usize, report: &Report) -> Result<(), Violation> {
        match report {
            Report::Computed { step, contribution, .. } => {
                self.observe(Observation::Computed(*step, contribution))
            }
            Report::Updated { version, shard, digest, parameters } => {
                let parameters = parameters.as_ref().map(|values| &***values);
                let (version, shard, digest) = (*version, *shard, Some(*digest));
                let copy = Copy { version, shard, digest, parameters };
                self.observe(Observation::Updated(self.workers[place].id(), copy))
            }
            _ => Ok(()),
        }
    }

    fn witness(
        &mut self,
        place: usize,
        before: &Standing,
        after: &Standing,
    ) -> Result<(), Violation> {
        if before.committed.is_none() && after.committed.is_some() {
            self.enter(place)?;
        }
        let worker = &self.workers[place];
        let commit = worker.core.member().and_then(|member| member.commit()).cloned();
        if let Some(commit) = commit.filter(|_| before.committed != after.committed) {
            let id = worker.id();
            self.course.progress(self.now);
            self.note(format_args!("worker {place} commits {commit:?}"));
            self.observe(Observation::Committed(id, &commit))?;
        }
        if let Some(settled) = after.settled.filter(|_| before.settled != after.settled) {
            self.observe(Observation::Settled(self.workers[place].id(), settled))?;
        }
        for _ in before.refused..after.refused {
            self.observe(Observation::Refused(format_args!("worker {place} refuses an input")))?;
        }
        Ok(())
    }

    /// A member's links to the others come up; one that was lost before is told now.
    fn meet(&mut self, place: usize, record: &Record) {
        let others: Vec<(usize, WorkerId)> = record
            .members
            .iter()
            .filter_map(|member| Some((*self.places.get(&member.worker)?, member.worker)))
            .filter(|(other, _)| *other != place)
            .collect();
        for (other, from) in others {
            let (own, peer) = (Node::Worker(place), Node::Worker(other));
            if self.links.is_lost(own, peer) {
                let reason = "it was lost before".to_string();
                self.later(Happening::Worker(place, Input::PeerLost { from, reason }));
            } else {
                self.link(own, peer);
            }
        }
    }

    fn enter(&mut self, place: usize) -> Result<(), Violation> {
        let worker = &mut self.workers[place];
        let Some(member) = worker.core.member() else { return Ok(()) };
        let (id, record) = (member.plan().worker(), member.plan().record().clone());
        worker.id = Some(id);
        for (at, worker) in self.workers.iter().enumerate() {
            let listed = record.members.iter().find(|member| member.name == worker.name);
            self.places.extend(listed.map(|member| (member.worker, at)));
        }
        self.observe(Observation::Entered(id, &record))
    }
}
