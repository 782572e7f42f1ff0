//! A light worker: how far it has come, and what it says next.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use everstep_coordinator::core::Input;
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::message::{Fingerprint, Heartbeat, Registration};
use everstep_transport::protocol::outcome::WorkerResult;
use everstep_transport::protocol::{
    Generation, MetricsLine, NodeName, Rank, Record, Shard, Step, WorkerId,
};
use everstep_transport::time::Time;

use super::{Arc, Crowd, Failure, Happening, Lane, LinkId, Message};

/// Between two signs of life, as of a real worker.
const BEAT: Duration = Duration::from_millis(250);
/// A worker builds its model and data within this long.
const BUILD: Duration = Duration::from_millis(100);
/// Before it connects again.
const PAUSE: Duration = Duration::from_millis(100);
/// Parameter shards of the model.
const SHARDS: u32 = 16_384;
/// Most lines in one heartbeat.
const LINES: u64 = 64;

/// What goes wrong with a worker, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Registered, it says nothing, until its link is closed.
    Silent,
    /// Its link is cut at some moment.
    Cut,
}

/// What happens to a worker.
#[derive(Debug)]
pub(super) enum Event {
    /// The coordinator says something, perhaps to many.
    Hear(Arc<Message>),
    /// The coordinator has closed the link.
    Closed,
    /// The link is cut.
    Cut,
    /// Model and data are built.
    Built,
    /// It is time for a heartbeat.
    Beat,
    /// It has trained the last step.
    Trained,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has no link.
    Away,
    /// It is on its way to be registered.
    Joining,
    /// It sends heartbeats.
    Present(WorkerId),
    /// It is registered and says nothing.
    Silent,
    /// The run is over for it.
    Gone,
}

#[derive(Debug)]
pub(super) struct Worker {
    phase: Phase,
    /// Its newest link.
    link: LinkId,
    fault: Option<Fault>,
    generation: Generation,
    /// When it entered its generation.
    entered: Time,
    /// The newest step whose line the coordinator has.
    written: Step,
}

/// The members of the generation, and what they own.
pub(super) struct Members(BTreeMap<WorkerId, (Rank, Vec<Shard>)>);

impl Worker {
    pub(super) fn new(fault: Option<Fault>) -> Self {
        Self {
            phase: Phase::Away,
            link: LinkId(0),
            fault,
            generation: Generation(0),
            entered: Time(0),
            written: Step(0),
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }
}

impl Members {
    fn of(record: &Record) -> Self {
        let mut owned = vec![Vec::new(); record.members.len()];
        for ownership in &record.owners {
            let shards = (ownership.first.0..).take(ownership.count as usize).map(Shard);
            for shard in shards {
                ownership.owners.iter().for_each(|rank| owned[rank.0 as usize].push(shard));
            }
        }
        let members = record.members.iter().zip(0..).zip(owned);
        Self(members.map(|((m, rank), owned)| (m.worker, (Rank(rank), owned))).collect())
    }
}

impl Crowd {
    pub(super) fn connect(&mut self, place: usize) {
        let link = LinkId(self.places.len() as u64);
        self.places.push(place);
        let worker = &mut self.workers[place];
        (worker.phase, worker.link) = (Phase::Joining, link);
        let cut = worker.fault == Some(Fault::Cut);
        let name = NodeName::parse(&format!("worker-{place}")).expect("a valid name");
        let identity = Identity { role: Role::Worker, name };
        self.bring(Lane::Up(link), Happening::Arrive(Input::Connected { link, identity }));
        self.say(link, Message::Hello { schema: self.schema });
        if cut {
            self.later(place, self.scenario.storm, Event::Cut);
        }
    }

    pub(super) fn work(&mut self, place: usize, link: LinkId, event: Event) -> Result<(), Failure> {
        if let Event::Hear(_) = event {
            self.checks.heard(link);
        }
        let Worker { phase, link: newest, .. } = self.workers[place];
        if newest != link || matches!(phase, Phase::Away | Phase::Gone) {
            return Ok(());
        }
        match (event, phase) {
            (Event::Hear(message), _) => self.hear(place, &message)?,
            (Event::Closed, _) => self.come_again(place),
            (Event::Cut, _) => {
                let gone = Input::Disconnected { link, reason: "cut".into() };
                self.bring(Lane::Up(link), Happening::Arrive(gone));
                self.come_again(place);
            }
            (Event::Built, _) => self.say(link, Message::Register(registration(place, link))),
            (Event::Beat, Phase::Present(worker)) => self.beat(place, worker),
            (Event::Trained, Phase::Present(worker)) => self.finish(link, worker),
            (Event::Beat | Event::Trained, _) => {}
        }
        Ok(())
    }

    fn hear(&mut self, place: usize, message: &Arc<Message>) -> Result<(), Failure> {
        let link = self.workers[place].link;
        self.note(message.name(), link.0);
        match &**message {
            Message::Welcome { .. } => self.later(place, BUILD, Event::Built),
            Message::Registered { worker } => self.registered(place, *worker)?,
            Message::Announce(record) => self.enter(place, record, message)?,
            Message::HeartbeatAnswer { generation, written } => {
                self.workers[place].written = *written;
                if *generation > self.workers[place].generation {
                    self.say(link, Message::FetchRecord);
                }
            }
            Message::Dismiss => {
                self.checks.absent(link);
                self.workers[place].phase = Phase::Gone;
            }
            Message::Refused { reason } => return Err(Failure::Run(reason.clone())),
            _ => {}
        }
        Ok(())
    }

    fn registered(&mut self, place: usize, worker: WorkerId) -> Result<(), Failure> {
        let Worker { link, fault, .. } = self.workers[place];
        if fault == Some(Fault::Silent) {
            self.workers[place].phase = Phase::Silent;
            return Ok(());
        }
        self.checks.registered(link, worker)?;
        self.workers[place].phase = Phase::Present(worker);
        self.later(place, BEAT, Event::Beat);
        Ok(())
    }

    fn enter(
        &mut self,
        place: usize,
        record: &Record,
        message: &Arc<Message>,
    ) -> Result<(), Failure> {
        self.checks.announced(record, message)?;
        let members = self.members.get_or_insert_with(|| Members::of(record));
        let worker = &mut self.workers[place];
        let Phase::Present(id) = worker.phase else { return Ok(()) };
        if members.0.contains_key(&id) && record.number > worker.generation {
            (worker.generation, worker.entered) = (record.number, self.now);
            self.report.announced_at = self.now;
            let (at, link) = (self.now + self.scenario.training, worker.link);
            self.put(at, Happening::Worker(place, link, Event::Trained));
        }
        Ok(())
    }

    fn beat(&mut self, place: usize, worker: WorkerId) {
        let Worker { link, generation, entered, written, .. } = self.workers[place];
        let leads = self.members.as_ref().and_then(|members| members.0.get(&worker));
        let leads = generation > Generation(0) && leads.is_some_and(|(rank, _)| *rank == Rank(0));
        let Step(settled) = if leads { self.settled(entered) } else { Step(0) };
        let line = |step| MetricsLine { step: Step(step), generation, ..MetricsLine::default() };
        let lines = (written.0 + 1..=settled.min(written.0 + LINES)).map(line).collect();
        let (promised, step, unreachable) = (generation, Step(settled), Vec::new());
        let heartbeat = Heartbeat { worker, generation, promised, step, lines, unreachable };
        self.say(link, Message::Heartbeat(heartbeat));
        self.put(self.now + BEAT, Happening::Worker(place, link, Event::Beat));
    }

    /// The steps that have settled since training began: all take the same time.
    fn settled(&self, began: Time) -> Step {
        let Self { scenario, now, .. } = self;
        let (passed, whole) = (now.since(began).as_nanos(), scenario.training.as_nanos().max(1));
        Step((passed * u128::from(scenario.steps) / whole).min(scenario.steps.into()) as u64)
    }

    fn finish(&mut self, link: LinkId, worker: WorkerId) {
        let members = self.members.as_ref().and_then(|members| members.0.get(&worker));
        let owned = members.map_or(&[][..], |(_, owned)| owned);
        let digests = owned.iter().map(|shard| (*shard, [shard.0 as u8; 32])).collect();
        let result = WorkerResult { worker, digests, ..WorkerResult::default() };
        self.say(link, Message::Finished(result));
    }

    /// Without a link: after a while it connects again, and is faulty no more. When the last of
    /// them has come again, so may the worker that waited for them.
    fn come_again(&mut self, place: usize) {
        let worker = &mut self.workers[place];
        self.checks.absent(worker.link);
        worker.phase = Phase::Away;
        let was_faulty = worker.fault.take().is_some();
        let at = self.now + self.up_to(PAUSE);
        self.put(at, Happening::Connect(place));
        self.to_come_again -= u32::from(was_faulty);
        if was_faulty && self.to_come_again == 0 {
            self.put(at, Happening::Connect(self.workers.len() - 1));
        }
    }

    /// Lets something happen to a worker within `most`, unless its link goes before.
    fn later(&mut self, place: usize, most: Duration, event: Event) {
        let at = self.now + self.up_to(most);
        self.put(at, Happening::Worker(place, self.workers[place].link, event));
    }
}

/// All workers state the same; a link is an incarnation.
fn registration(place: usize, link: LinkId) -> Registration {
    let host = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + place as u32);
    let (model, data) = ([1; 32], [2; 32]);
    let (parameters, samples) = (u64::from(SHARDS) << 20, 1 << 30);
    Registration {
        incarnation: link.0,
        address: (host, 4_001).into(),
        fingerprint: Fingerprint { model, data, parameters, shards: SHARDS, samples },
        probe: 1,
    }
}
