//! A worker of a storm: its progress, and its next message.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use everstep_coordinator::core::{CoreInput, LinkId, ShellInput};
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::message::{Fingerprint, Heartbeat, Registration};
use everstep_transport::protocol::outcome::WorkerResult;
use everstep_transport::protocol::reason::LinkEnd;
use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{
    Device, Generation, MachineId, Message, ModelPlace, NodeName, Record, Shard, Step, Term,
    WorkerId,
};
use everstep_transport::time::Time;

use super::{StormEvent, StormFailure, StormLane, StormSim};

/// The time between two heartbeats, as of a real worker.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(250);
/// A worker builds its model and data within this long.
const MAX_BUILD_TIME: Duration = Duration::from_millis(100);
/// A joiner has all that it is fed within this time.
const MAX_CATCH_UP_TIME: Duration = Duration::from_millis(100);
/// A member that is to hold has finished the earlier steps within this time.
const MAX_HOLD_TIME: Duration = Duration::from_millis(10);
/// The longest pause before it connects again.
const MAX_RECONNECT_DELAY: Duration = Duration::from_millis(100);
/// Parameter shards of the model.
pub(super) const SHARDS: u32 = 16_384;

/// The one fault of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StormFault {
    /// It falls silent after registration, until it is evicted.
    Silent,
    /// Its link is cut at some moment.
    Cut,
    /// Its process ends when it is a member, and does not start again.
    Killed,
}

/// An event of a worker.
#[derive(Debug)]
pub(super) enum WorkerEvent {
    /// The coordinator's message, perhaps to many workers.
    Hear(Arc<Message>),
    /// The coordinator has closed the link.
    Closed,
    /// The link is cut.
    Cut,
    Killed,
    /// Model and data are built.
    Built,
    /// It is time for a heartbeat.
    Beat,
    /// It has all that it is fed in this generation.
    CaughtUp(Generation),
    /// Its last commit of this generation holds.
    Held(Generation),
    /// It has trained the last step, in this generation.
    Trained(Generation),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has no link.
    Away,
    /// It has connected and is not registered yet.
    Joining,
    Present(WorkerId),
    /// It is registered and sends nothing, until it hears that it was lost.
    Silent,
    /// The run is over for it.
    Gone,
}

#[derive(Debug)]
pub(super) struct StormWorker {
    phase: Phase,
    link: LinkId,
    fault: Option<StormFault>,
    /// The generation that it knows of, and the one that it has promised.
    generation: Generation,
    promised: Generation,
    /// Shards that it syncs.
    fed: Vec<Shard>,
    /// Whether it has synced them.
    ready: bool,
    /// The step of the newest line that the coordinator has.
    written: Step,
}

impl StormWorker {
    pub(super) fn new(fault: Option<StormFault>) -> Self {
        Self {
            phase: Phase::Away,
            link: LinkId(0),
            fault,
            generation: Generation(0),
            promised: Generation(0),
            fed: Vec::new(),
            ready: false,
            written: Step(0),
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }
}

impl StormSim {
    pub(super) fn connect(&mut self, place: usize) {
        let link = LinkId(self.places.len() as u64);
        self.places.push(place);
        let worker = &mut self.workers[place];
        (worker.phase, worker.link) = (Phase::Joining, link);
        let cut = worker.fault == Some(StormFault::Cut);
        let identity = Identity { role: Role::Worker, name: node_name(place) };
        self.bring(
            StormLane::Up(link),
            StormEvent::Arrive(CoreInput::Shell(ShellInput::Connected {
                link,
                identity,
                address: None,
            })),
        );
        self.say(link, Message::Hello { worker: None });
        if cut {
            self.later(place, self.scenario.storm, WorkerEvent::Cut);
        }
    }

    pub(super) fn work(
        &mut self,
        place: usize,
        link: LinkId,
        event: WorkerEvent,
    ) -> Result<(), StormFailure> {
        if let WorkerEvent::Hear(_) = event {
            self.checks.heard(link);
        }
        let StormWorker { phase, link: newest, generation, .. } = self.workers[place];
        if newest != link || matches!(phase, Phase::Away | Phase::Gone) {
            return Ok(());
        }
        match (event, phase) {
            (WorkerEvent::Hear(message), _) => self.hear(place, &message)?,
            (WorkerEvent::Closed, _) => self.come_again(place),
            (WorkerEvent::Cut, _) => {
                self.disconnect(link, LinkEnd::Silent);
                self.come_again(place);
            }
            (WorkerEvent::Killed, _) => {
                self.disconnect(link, LinkEnd::Refused);
                self.report_exit(node_name(place));
                self.checks.absent(link);
                self.workers[place].phase = Phase::Gone;
                (self.report.killed_at, self.report.mended_at) = (self.now, Time(0));
            }
            (WorkerEvent::Built, _) => {
                self.incarnations += 1;
                let registration = registration(place, self.incarnations);
                self.say(link, Message::Register(registration));
            }
            (WorkerEvent::Beat, Phase::Present(worker)) => {
                self.beat(place, worker, false);
                self.put(
                    self.now + HEARTBEAT_INTERVAL,
                    StormEvent::Worker(place, link, WorkerEvent::Beat),
                );
            }
            (WorkerEvent::CaughtUp(of), Phase::Present(worker)) if of == generation => {
                self.workers[place].ready = true;
                self.beat(place, worker, false);
            }
            (WorkerEvent::Held(of), Phase::Present(worker)) if of == generation => {
                self.beat(place, worker, true);
            }
            (WorkerEvent::Trained(of), Phase::Present(worker)) if of == generation => {
                self.finish(link, worker);
            }
            _ => {}
        }
        Ok(())
    }

    fn hear(&mut self, place: usize, message: &Arc<Message>) -> Result<(), StormFailure> {
        let link = self.workers[place].link;
        self.note(message.name(), link.0);
        match &**message {
            Message::Welcome { .. } => self.later(place, MAX_BUILD_TIME, WorkerEvent::Built),
            Message::Registered { worker, .. } => self.registered(place, *worker)?,
            Message::Pause { term, number } => self.promise(place, *term, *number),
            Message::Announce(record) => self.enter(place, record, message)?,
            Message::Feed { generation, joiner, shards, .. } => {
                self.catch_up(place, *generation, *joiner, shards);
            }
            Message::Hold { generation, .. } => self.hold(*generation),
            Message::HeartbeatAnswer { generation, written, .. } => {
                self.workers[place].written = *written;
                if *generation > self.workers[place].generation {
                    self.say(link, Message::FetchRecord);
                }
            }
            Message::Dismiss | Message::Drain { .. } => {
                self.checks.absent(link);
                self.workers[place].phase = Phase::Gone;
            }
            Message::Evicted { .. } => self.begin_anew(place),
            Message::Refused { reason } => return Err(StormFailure::Run(reason.clone())),
            _ => {}
        }
        Ok(())
    }

    fn registered(&mut self, place: usize, worker: WorkerId) -> Result<(), StormFailure> {
        let StormWorker { link, fault, .. } = self.workers[place];
        if fault == Some(StormFault::Silent) {
            self.workers[place].phase = Phase::Silent;
            return Ok(());
        }
        self.checks.registered(link, worker)?;
        self.workers[place].phase = Phase::Present(worker);
        self.later(place, HEARTBEAT_INTERVAL, WorkerEvent::Beat);
        Ok(())
    }

    // A change of generation.

    fn promise(&mut self, place: usize, term: Term, number: Generation) {
        let StormWorker { phase: Phase::Present(id), link, generation, .. } = self.workers[place]
        else {
            return;
        };
        if number <= generation || number < self.workers[place].promised {
            return;
        }
        self.history.stop(self.now);
        let worker = &mut self.workers[place];
        worker.promised = number;
        let fed = if worker.ready { &worker.fed[..] } else { &[] };
        let owned = self.history.owned(id);
        let held = owned.iter().chain(fed).copied();
        let member = self.history.lists(id);
        let version = self.history.version(self.now);
        let status = Status {
            term,
            number,
            commit: self.history.commit(self.now).filter(|_| member || !fed.is_empty()),
            prepared: Vec::new(),
            versions: held.map(|shard| (shard, version.0, version.1)).collect(),
            under_way: member.then(|| version.0.next()),
            unreachable: Vec::new(),
        };
        self.say(link, Message::Status(status));
    }

    fn enter(
        &mut self,
        place: usize,
        record: &Record,
        message: &Arc<Message>,
    ) -> Result<(), StormFailure> {
        self.checks.announced(record, message)?;
        if self.history.follow(self.now, record) {
            self.report.generations += 1;
        }
        let worker = &mut self.workers[place];
        let Phase::Present(id) = worker.phase else { return Ok(()) };
        if record.number <= worker.generation {
            return Ok(());
        }
        worker.generation = record.number;
        worker.promised = worker.promised.max(record.number);
        (worker.fed, worker.ready) = (Vec::new(), false);
        let (link, first) = (worker.link, self.history.is_first());
        let killed = worker.fault == Some(StormFault::Killed);
        if !self.history.lists(id) {
            return Ok(());
        }
        if first {
            self.report.announced_at = self.now;
            self.report.entries_of_joins = self.report.entries;
        }
        if self.report.killed_at.0 > 0 && self.report.mended_at.0 == 0 {
            self.report.mended_at = self.now;
        }
        if let Some(end) = self.history.end() {
            let trained = WorkerEvent::Trained(record.number);
            self.put(end.max(self.now), StormEvent::Worker(place, link, trained));
        }
        if killed {
            self.later(place, self.scenario.training / 2, WorkerEvent::Killed);
        }
        Ok(())
    }

    fn catch_up(
        &mut self,
        place: usize,
        generation: Generation,
        joiner: WorkerId,
        shards: &[Shard],
    ) {
        let worker = &mut self.workers[place];
        if worker.phase == Phase::Present(joiner) && worker.generation == generation {
            worker.fed = shards.to_vec();
            worker.ready = false;
            self.later(place, MAX_CATCH_UP_TIME, WorkerEvent::CaughtUp(generation));
        }
    }

    /// The step leader's next commit holds. All other members hold when they hear of it.
    fn hold(&mut self, generation: Generation) {
        if generation != self.history.generation() {
            return;
        }
        self.history.stop(self.now);
        for place in 0..self.workers.len() {
            self.later(place, MAX_HOLD_TIME, WorkerEvent::Held(generation));
        }
    }

    // Signs of life.

    fn beat(&mut self, place: usize, worker: WorkerId, held: bool) {
        let StormWorker { link, generation, promised, written, ready, .. } = self.workers[place];
        let leads = generation > Generation(0) && self.history.leads(worker);
        let lines = if leads { self.history.lines(written, self.now) } else { Vec::new() };
        let heartbeat = Heartbeat {
            worker,
            generation,
            promised: promised.max(generation),
            step: self.history.version(self.now).0,
            lines,
            unreachable: Vec::new(),
            held,
            ready,
            behind: 0,
            unread: 0,
            computing: None,
            shard_us: 0,
            telemetry: None,
            store_error: None,
            unwritten: None,
        };
        self.say(link, Message::Heartbeat(heartbeat));
    }

    fn finish(&mut self, link: LinkId, worker: WorkerId) {
        let owned = self.history.owned(worker);
        let digests = owned.iter().map(|shard| (*shard, [shard.0 as u8; 32])).collect();
        let result = WorkerResult { worker, digests, ..WorkerResult::default() };
        if self.history.leads(worker) {
            let place = self.workers.iter().position(|known| known.link == link);
            let written = place.map(|place| Message::Written(model_place(place)));
            written.into_iter().for_each(|written| self.say(link, written));
        }
        self.say(link, Message::Finished(result));
    }

    // Links.

    fn disconnect(&mut self, link: LinkId, end: LinkEnd) {
        let closed = CoreInput::Shell(ShellInput::Disconnected { link, end });
        self.bring(StormLane::Up(link), StormEvent::Arrive(closed));
    }

    /// A worker without a link connects again after a while.
    fn come_again(&mut self, place: usize) {
        self.workers[place].phase = Phase::Away;
        let at = self.now + self.up_to(MAX_RECONNECT_DELAY);
        self.put(at, StormEvent::Connect(place));
        self.recover(place);
    }

    /// A worker has heard that it was lost. It begins anew on the same link.
    fn begin_anew(&mut self, place: usize) {
        let worker = &mut self.workers[place];
        let (fault, link) = (worker.fault, worker.link);
        *worker = StormWorker { phase: Phase::Joining, link, ..StormWorker::new(fault) };
        self.say(link, Message::Hello { worker: None });
        self.recover(place);
    }

    /// A worker is faulty no more. After the last of them, the worker that waited for them may
    /// join.
    fn recover(&mut self, place: usize) {
        let worker = &mut self.workers[place];
        self.checks.absent(worker.link);
        let was_faulty = worker.fault.take().is_some();
        self.to_come_again -= u32::from(was_faulty);
        if was_faulty && self.to_come_again == 0 {
            let at = self.now + self.up_to(MAX_RECONNECT_DELAY);
            self.put(at, StormEvent::Connect(self.workers.len() - 1));
        }
    }

    /// Schedules an event of a worker within `most`. It is void if the worker's link goes before.
    fn later(&mut self, place: usize, most: Duration, event: WorkerEvent) {
        let at = self.now + self.up_to(most);
        self.put(at, StormEvent::Worker(place, self.workers[place].link, event));
    }
}

/// All workers state the same.
fn node_name(place: usize) -> NodeName {
    NodeName::parse(&format!("worker-{place}")).expect("a valid name")
}

fn model_place(place: usize) -> ModelPlace {
    ModelPlace { host: format!("machine-{place}"), path: "/runs/model.safetensors".into() }
}

fn registration(place: usize, incarnation: u64) -> Registration {
    let host = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + place as u32);
    let (model, data) = ([1; 32], [2; 32]);
    let (parameters, samples) = (u64::from(SHARDS) << 20, 1 << 30);
    Registration {
        incarnation,
        address: (host, 4_001).into(),
        fingerprint: Fingerprint { model, data, parameters, shards: SHARDS, samples },
        probe: 1,
        zone: None,
        device: Device::default(),
        model: Some(model_place(place)),
        host: None,
        machine: Some(MachineId(place as u64)),
    }
}
