//! A worker in the world: its core, and the work of its shell in production.

use std::collections::BTreeSet;
use std::time::Duration;

use everstep_coordinator::core as coordination;
use everstep_coordinator::core::ShellInput;
use everstep_kernels::buffer::Pool;
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::outcome::Outcome;
use everstep_transport::protocol::reason::ProcessExit;
use everstep_transport::protocol::{Chunk, Generation, Message, NodeName, Shard, Step, WorkerId};
use everstep_transport::time::Time;
use everstep_worker::step::Promise;
use everstep_worker::step::core::{self, Core};
use everstep_worker::step::event::{Admission, Effect, Exit, Input, LinkId};

use super::clock::Clock;
use super::peer::Peers;
use super::preemption::KnownFate;
use super::sim_device::SimDevice;
use super::sim_model_file::SimModelFile;
use super::types::{Event, LaneItem};
use super::wire::StreamId;
use super::{NodeId, UNIX_MS_AT_ZERO, WORKER_TICK_INTERVAL, World};
use crate::check::{Observation, ReceiverState, Violation};
use crate::toy;

/// A worker: its core, its device and its links.
pub struct SimWorker {
    name: NodeName,
    slot: usize,
    clock: Clock,
    core: Core,
    pool: Pool,
    pub(super) sim_device: Option<SimDevice>,
    pub(super) model_file: SimModelFile,
    /// Since when its device does nothing, or did nothing the last time.
    pub(super) hangs_since: Time,
    /// Its device does nothing until this time.
    pub(super) hangs_until: Time,
    /// How many devices it has built. The world ignores reports of earlier ones.
    pub(super) builds: u64,
    peers: Peers,
    /// The generation that the shell has entered.
    entered: Generation,
    /// What it has heard of its machine's fate.
    pub(super) fate: KnownFate,
    /// Streams whose next header waits until the core moves on.
    waiting: BTreeSet<StreamId>,
    ended: bool,
}

/// The state that the world compares before and after an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreView {
    /// Its id. None before it is registered.
    pub worker: Option<WorkerId>,
    /// The promise that the worker made last.
    pub promised: Promise,
    /// The generation that it is in, as member or joiner.
    pub generation: Generation,
    /// Its last commit, if it is a member.
    pub committed: Option<Step>,
    /// The last step that it takes for settled, if it is a member.
    pub settled: Option<Step>,
    /// How many messages and chunks it has refused so far.
    pub refused: u64,
}

/// Free memory that a worker's pool keeps, bytes.
const POOL_BYTES: usize = 1 << 20;
/// How soon a worker that ends after the last fault starts again.
const WORKER_RESTART_DELAY: Duration = Duration::from_millis(200);

impl SimWorker {
    /// The worker at `place`, before its first message.
    pub fn new(place: usize, slot: usize, clock: Clock) -> Self {
        let name = NodeName::parse(&format!("worker-{place}")).expect("a valid name");
        let pool = Pool::new(POOL_BYTES);
        let identity =
            core::WorkerIdentity { name: name.clone(), unix_ms_at_zero: UNIX_MS_AT_ZERO };
        Self {
            core: Core::new(identity, pool.clone())
                .growing_after(toy::GROWTH_INTERVAL)
                .merging(toy::MERGE_BYTES),
            name,
            slot,
            clock,
            pool,
            sim_device: None,
            model_file: SimModelFile::default(),
            hangs_since: Time(0),
            hangs_until: Time(0),
            builds: 0,
            peers: Peers::default(),
            entered: Generation(0),
            fate: KnownFate::default(),
            waiting: BTreeSet::new(),
            ended: false,
        }
    }

    /// The name in its certificate.
    pub fn name(&self) -> &NodeName {
        &self.name
    }

    /// The slot that it is in.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// The clock of its machine, which may be fast or slow.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The clock of its machine, for a fault that sets it.
    pub fn clock_mut(&mut self) -> &mut Clock {
        &mut self.clock
    }

    /// The state machine that decides for the process.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Its id. None before it is registered.
    pub fn id(&self) -> Option<WorkerId> {
        self.core.worker()
    }

    /// The pool from which it takes its buffers.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The other workers that its shell knows.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// As [`SimWorker::peers`], to change.
    pub fn peers_mut(&mut self) -> &mut Peers {
        &mut self.peers
    }

    /// The generation that its shell has entered.
    pub fn entered(&self) -> Generation {
        self.entered
    }

    /// Whether its process has ended.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// What [`Core::admit`] says of a chunk.
    pub fn admit(&self, from: WorkerId, chunk: &Chunk) -> Admission {
        self.core.admit(from, chunk)
    }

    /// Notes that the stream's next header waits.
    pub fn wait_with(&mut self, stream: StreamId) {
        self.waiting.insert(stream);
    }

    /// How many streams wait.
    pub fn streams_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Ends the process without a word.
    pub fn crash(&mut self) {
        self.ended = true;
        self.sim_device = None;
        self.peers = Peers::default();
        self.waiting.clear();
    }

    /// Its id, and its state as far as it matters for a chunk about `shard`.
    pub fn receiver_state(&self, shard: Shard) -> (WorkerId, ReceiverState) {
        let CoreView { worker, generation, promised, committed, .. } = self.core_view();
        let member = self.core.member();
        let owns = member.is_some_and(|member| member.plan().owned().contains_key(&shard));
        let receiver =
            ReceiverState { floor: generation.max(promised.generation), committed, owns };
        (worker.unwrap_or_default(), receiver)
    }

    /// The state that is visible from outside.
    pub fn core_view(&self) -> CoreView {
        let member = self.core.member();
        CoreView {
            worker: self.core.worker(),
            promised: self.core.promised(),
            generation: self.core.generation(),
            committed: member.map(|member| member.committed()),
            settled: member.map(|member| member.settled()),
            refused: self.core.refused(),
        }
    }
}

impl World {
    /// Starts a new process in a slot.
    pub(super) fn start_worker(&mut self, slot: usize) {
        let place = self.workers.len();
        let permille = self.faults.permille(NodeId::Worker(slot));
        let mut worker = SimWorker::new(place, slot, Clock::new(self.now, permille));
        (self.scenario.prepare.worker)(&mut worker.core);
        self.workers.add(worker);
        let at = self.now + self.random.delay();
        for coordinator in 0..self.coordinators.len() {
            self.queue.put(at, Event::Connect(NodeId::Worker(place), coordinator));
        }
        self.queue.put(at, Event::WorkerTick(place));
        self.ask_soon(NodeId::Worker(slot));
    }

    /// Gives a worker a link to a coordinator.
    pub(super) fn connect_worker(
        &mut self,
        place: usize,
        coordinator: usize,
    ) -> Result<(), Violation> {
        let own = NodeId::Worker(place);
        let number = self.link(own, NodeId::Coordinator(coordinator));
        let link = coordination::LinkId(number);
        let identity = Identity { role: Role::Worker, name: self.workers[place].name.clone() };
        let name = self.coordinators[coordinator].of_today().name;
        let up = Input::CoordinatorUp { link: LinkId(number), name };
        self.later(Event::Worker(place, up.into()));
        self.step_coordinator(coordinator, ShellInput::Connected { link, identity, address: None })
    }

    pub(super) fn tick_worker(&mut self, place: usize) -> Result<(), Violation> {
        if self.workers[place].ended {
            return Ok(());
        }
        let next = self.now + self.workers[place].clock.true_time(WORKER_TICK_INTERVAL);
        self.queue.put(next, Event::WorkerTick(place));
        self.step_worker(place, Input::Tick)
    }

    /// Gives a worker's core an input, carries out its effects, and shows both to the checkers.
    pub(super) fn step_worker(&mut self, place: usize, input: Input) -> Result<(), Violation> {
        if self.workers[place].ended {
            return Ok(());
        }
        let heard = self.expected_of_a_member(place, &input);
        let worker = &mut self.workers[place];
        let now = worker.clock.read(self.now);
        let before = worker.core_view();
        worker.core.handle(now, input);
        let after = worker.core_view();
        self.witness(place, &before, &after)?;
        let refused = after.refused.saturating_sub(before.refused);
        self.checkers.refused += refused;
        if let Some(what) = heard.filter(|_| refused > 0) {
            self.observe(Observation::Refused(format_args!("worker {place} refuses {what}")))?;
        }
        while let Some(effect) = self.workers[place].core.poll_effect() {
            self.perform(place, effect)?;
        }
        let moved = |core_view: CoreView| {
            (core_view.worker, core_view.promised, core_view.generation, core_view.committed)
        };
        if moved(before) != moved(after) {
            for stream in std::mem::take(&mut self.workers[place].waiting) {
                self.later(Event::Header(stream));
            }
        }
        Ok(())
    }

    fn perform(&mut self, place: usize, effect: Effect) -> Result<(), Violation> {
        let own = NodeId::Worker(place);
        match effect {
            Effect::SendToCoordinator { link, message } => {
                self.witness_evidence(place, &message)?;
                let peer = self.network.links.peer(own, link.0);
                if let Some(peer) =
                    peer.filter(|it| self.network.links.number(own, *it) == Some(link.0))
                {
                    self.say(own, peer, message);
                }
            }
            Effect::Coordinators(_) => {} // it knows them all from the beginning
            Effect::SendToPeer { to, message } => {
                self.witness_words(place, &message)?;
                self.send(place, to, message);
            }
            Effect::Stream { to, lane, step, item } => {
                self.witness_item(place, &item)?;
                return self.post(place, to, LaneItem { lane, step, item });
            }
            Effect::Build(run) => return self.build(place, &run),
            Effect::Enter(record) => {
                self.workers[place].entered = record.number;
                self.enter_roster(place, &record);
            }
            Effect::AcceptPeer { worker, name, .. } => self.accept_peer(place, worker, &name),
            Effect::Device(job) => return self.give_job(place, job),
            Effect::Store(job) => self.give_store(place, job),
            Effect::File(job) => self.give_file(place, job),
            Effect::Yield => self.later(Event::Worker(place, Input::Yielded.into())),
            Effect::Exit(exit) => self.exit(place, exit),
        }
        Ok(())
    }

    // The end.

    /// The process ends, and its links with it. After the last fault the world starts another one
    /// while the run goes on.
    fn exit(&mut self, place: usize, exit: Exit) {
        self.note(format_args!("worker {place} ends: {exit:?}"));
        self.checkers.liveness.progress(self.now);
        self.close_links(NodeId::Worker(place), "its process has ended");
        self.end_worker(place, ProcessExit::Unknown);
        if self.now >= self.faults.end() && *self.operator.outcome() == Outcome::Running {
            let slot = self.workers[place].slot;
            self.queue.put(self.now + WORKER_RESTART_DELAY, Event::Restart(NodeId::Worker(slot)));
        }
    }

    /// A process has ended. Sometimes the operator sees that before any coordinator. A launcher
    /// reports it until the leader has recorded it.
    pub(super) fn end_worker(&mut self, place: usize, how: ProcessExit) {
        let name = self.workers[place].name.clone();
        self.workers[place].crash();
        self.operator.exited(name.clone(), how);
        if self.random.below(2) == 0 {
            let exited = Message::Exited { name, how };
            let at = self.now + self.random.delay() * 8;
            self.queue.put(at, Event::Operator(Box::new(exited)));
        }
    }
}
