//! A coordinator and its peers, hand-made: [`World`] with a log that agrees at once, and workers
//! that answer as real ones do, unless a test tells them not to.

mod checkpoints;
mod confirm;
mod continued;
mod cut_off;
mod departures;
mod hangs;
mod joining;
mod leadership;
mod lines;
mod losses;
mod models;
mod outages;
mod paces;
mod partitions;
mod pauses;
mod planned;
#[cfg(feature = "planted")]
mod planted;
mod reads;
mod registration;
mod requests;
mod restart;
mod restores;
mod results;
mod rollback;
mod stored_models;
mod storms;
mod unable;
mod unsaved;
mod verifications;
mod views;
mod zones;

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use everstep_transport::identity::{Identity, Refusal, Role};
use everstep_transport::protocol::message::{Fingerprint, Heartbeat, Registration};
use everstep_transport::protocol::outcome::{
    Event, EventKind, Inability, Update, WorkerResult, WorkerState, WorkerView,
};
use everstep_transport::protocol::reason::{LinkEnd, ProcessExit};
use everstep_transport::protocol::rejection::Rejection;
use everstep_transport::protocol::step::Status;
use everstep_transport::protocol::{
    Cause, Commit, Decision, Device, Generation, Lineage, LossScale, MachineId, ManifestToWrite,
    MetricsLine, ModelPlace, NodeName, OperatorCommand, Record, RequestId, RunSpec, Shard, Step,
    Telemetry, WorkerId, Zone, exemplars,
};

use super::*;
use crate::lines::{LineRecord, LinesFound, PAGE, RECENT};
use crate::state::{FOUNDER, LineHistory, RunSoFar};

const EPOCH_UNIX_MS: u64 = 1_000_000;
/// The operator among all clients.
const CLIENT: u64 = 5;
/// Parameter shards of every run here.
const SHARDS: u32 = 8;

/// One coordinator with a log that agrees at once (unless told to hold back), and its peers.
struct World {
    core: Core,
    now: Time,
    index: u64,
    term: Term,
    links: u64,
    /// Entries proposed and not yet applied.
    log: VecDeque<CommandEntry>,
    /// Every entry that was applied, with its term.
    applied: Vec<(Term, CommandEntry)>,
    holds_back: bool,
    /// The coordinator asks in vain whether it leads. `tickets` has its questions.
    cut_off: bool,
    tickets: Vec<u64>,
    /// The reads that the shell may answer.
    ready_reads: Vec<u64>,
    /// All messages on each link that the test has not heard yet.
    said: BTreeMap<LinkId, Vec<Message>>,
    closed: BTreeMap<LinkId, String>,
    /// The lines in the file of the current run, which outlives the process.
    line_file: Vec<MetricsLine>,
    /// The history that the file is of.
    lineage: Lineage,
    /// Nothing becomes durable in that file.
    disk_stalls: bool,
    /// Nodes that asked to be admitted, with the refusal if there was one.
    admitted: Vec<(NodeName, Option<Refusal>)>,
    workers: BTreeMap<LinkId, Actor>,
    operator: LinkId,
    /// The workers as the operator was told of them.
    views: BTreeMap<WorkerId, WorkerView>,
}

/// A worker: what it holds, and whether it answers.
#[derive(Clone, Debug, Default)]
struct Actor {
    id: WorkerId,
    node: String,
    /// The worker does not answer a Pause.
    mute: bool,
    generation: Generation,
    promised: Generation,
    commit: Option<Commit>,
    versions: BTreeMap<Shard, (Step, Generation)>,
    prepared: Vec<(Shard, Generation)>,
    under_way: Option<Step>,
    /// The lines of its commits.
    lines: Vec<MetricsLine>,
    /// Whether all members are asked for lines.
    asked: bool,
    /// The shards that the worker is fed. `ready` says whether it has synced them.
    shard_syncs: Option<Vec<Shard>>,
    ready: bool,
    /// How many bytes the worker says to be behind.
    behind: u64,
    /// How many bytes of a checkpoint the worker has yet to read.
    unread: u64,
    /// How long a data shard takes the worker's device. 0: it does not say.
    shard_us: u64,
    /// The worker reads a checkpoint only when the test says so.
    restores_late: bool,
}

impl World {
    fn empty() -> Self {
        let mut world = Self {
            core: Core::new(Time(0), EPOCH_UNIX_MS),
            now: Time(0),
            index: 0,
            term: Term(1),
            links: 0,
            log: VecDeque::new(),
            applied: Vec::new(),
            holds_back: false,
            cut_off: false,
            tickets: Vec::new(),
            ready_reads: Vec::new(),
            said: BTreeMap::new(),
            closed: BTreeMap::new(),
            line_file: Vec::new(),
            lineage: Lineage::default(),
            disk_stalls: false,
            admitted: Vec::new(),
            workers: BTreeMap::new(),
            operator: LinkId(0),
            views: BTreeMap::new(),
        };
        world.give(CoreInput::Elected { term: Term(1), id: FOUNDER });
        world.operator = world.connect(Role::Operator, "operator");
        world
    }

    fn with_run(run: RunSpec) -> Self {
        let mut world = Self::empty();
        world.request(0, OperatorCommand::Submit(run.into()));
        world.hear(world.operator);
        world
    }

    /// A coordinator that was elected again, with its own entry on its way.
    fn about_to_lead() -> Self {
        let mut world = Self::with_run(run_of(2));
        world.found(true);
        world.give(CoreInput::SteppedDown);
        world.holds_back = true;
        world.term = Term(2);
        world.give(CoreInput::Elected { term: Term(2), id: FOUNDER });
        world.hear(world.operator);
        world
    }

    /// A run of `count` workers and 20 steps, in its first generation.
    fn training(count: u32) -> (Self, Vec<LinkId>) {
        Self::training_as(run_of(count))
    }

    fn training_as(run: RunSpec) -> (Self, Vec<LinkId>) {
        let count = run.start_workers;
        let mut world = Self::with_run(run);
        let names: Vec<_> = (1..=count).map(|place| format!("worker-{place}")).collect();
        let links: Vec<LinkId> = names.iter().map(|name| world.worker(name)).collect();
        assert_eq!(world.generation(), Generation(1), "it has begun");
        links.iter().for_each(|link| drop(world.hear(*link)));
        (world, links)
    }

    fn give(&mut self, input: impl Into<CoreInput>) {
        self.core.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        loop {
            match self.core.poll_effect() {
                Some(CoreEffect::Shell(effect)) => self.perform(effect),
                Some(CoreEffect::Propose(entry)) => self.log.push_back(entry),
                Some(CoreEffect::Confirm { ticket }) if self.cut_off => self.tickets.push(ticket),
                Some(CoreEffect::Confirm { ticket }) => {
                    self.core.handle(self.now, CoreInput::Confirmed { ticket });
                }
                // These effects are for the replica.
                Some(CoreEffect::Describe { .. } | CoreEffect::Transfer { .. }) => {}
                None => match self.log.pop_front_if(|_| !self.holds_back) {
                    Some(entry) => self.apply(entry),
                    None => return,
                },
            }
        }
    }

    fn perform(&mut self, effect: ShellEffect) {
        match effect {
            ShellEffect::Send { to, message } => self.reach(to, message),
            ShellEffect::Broadcast { to, message } => {
                to.into_iter().for_each(|link| self.reach(link, message.clone()));
            }
            ShellEffect::Close { to, reason } => drop(self.closed.insert(to, reason)),
            ShellEffect::History(_) => {}
            ShellEffect::OpenLines(history) => self.open_lines(&history),
            ShellEffect::AppendLines(records) => self.append_lines(records),
            ShellEffect::SkipLines(to) => {
                let lost = (self.line_file.len() as u64 + 1..=to.0).map(|_| MetricsLine::default());
                self.line_file.extend(lost);
                self.sync_lines();
            }
            ShellEffect::TellLines { to, lineage, reach, after } => {
                let lines = self.page(after);
                self.reach(to, Message::Lines { lineage, reach, lines });
            }
            ShellEffect::Update { to, after, in_file, update } => {
                assert_eq!(in_file, None, "memory has all events of a short test");
                let lines = after.map_or(Vec::new(), |after| self.page(after));
                self.reach(to, Message::Update(Update { lines, ..*update }));
            }
            ShellEffect::OrderManifest { to, after, to_step, order } => {
                let lines = self.line_file.iter().skip(after.0 as usize);
                let lines = lines.filter(|line| line.step > after && line.step <= to_step);
                let order = ManifestToWrite { lines: lines.cloned().collect(), ..*order };
                self.reach(to, Message::WriteManifest(order));
            }
            ShellEffect::ReadReady(number) => self.ready_reads.push(number),
            ShellEffect::Admitted { node, refusal, .. } => self.admitted.push((node, refusal)),
        }
    }

    /// Opens the file as [`crate::line_file::LineFiles::open`] does, with one file.
    fn open_lines(&mut self, history: &LineHistory) {
        let before = std::mem::replace(&mut self.lineage, history.lineage);
        if before.run != history.lineage.run {
            self.line_file.clear();
        }
        self.line_file.retain(|line| history.admits(line.step, line.generation));
        let lines = self.line_file.iter().cloned();
        let mut recent: Vec<LineRecord> =
            lines.map(|line| LineRecord { line, ..LineRecord::default() }).collect();
        recent.drain(..recent.len().saturating_sub(RECENT));
        let reach = Step(self.line_file.len() as u64);
        let first_loss = self.line_file.first().map(|line| line.loss);
        let found = LinesFound { reach, first_loss, recent };
        let lineage = history.lineage;
        self.core.handle(self.now, ShellInput::LinesOpened { lineage, found });
    }

    fn append_lines(&mut self, records: Vec<LineRecord>) {
        self.line_file.extend(records.into_iter().map(|record| record.line));
        self.sync_lines();
    }

    /// Makes the lines in the file durable, unless the disk stalls.
    fn sync_lines(&mut self) {
        if !self.disk_stalls {
            let (lineage, reach) = (self.lineage, Step(self.line_file.len() as u64));
            self.core.handle(self.now, ShellInput::LinesDurable { lineage, reach });
        }
    }

    fn page(&self, after: Step) -> Vec<MetricsLine> {
        let lines = self.line_file.iter().skip(after.0 as usize).take(PAGE).cloned();
        lines.take_while(|line| line.step > Step(0)).collect()
    }

    fn apply(&mut self, entry: CommandEntry) {
        self.index += 1;
        self.applied.push((self.term, entry.clone()));
        let (index, term) = (self.index, self.term);
        self.core.handle(self.now, CoreInput::Applied { index, term, entry });
    }

    /// Lets everything happen that was held back.
    fn catch_up(&mut self) {
        self.holds_back = false;
        self.drain();
    }

    fn reach(&mut self, link: LinkId, message: Message) {
        self.said.entry(link).or_default().push(message.clone());
        let answer = self.workers.get_mut(&link).and_then(|worker| worker.hear(&message));
        if let Some(answer) = answer {
            self.core.handle(self.now, ShellInput::Message { from: link, message: answer });
        }
    }

    fn connect(&mut self, role: Role, name: &str) -> LinkId {
        self.links += 1;
        let link = LinkId(self.links);
        let name = NodeName::parse(name).expect("a valid name");
        let (identity, address) = (Identity { role, name }, None);
        self.give(ShellInput::Connected { link, identity, address });
        link
    }

    fn say(&mut self, from: LinkId, message: Message) {
        self.give(ShellInput::Message { from, message });
    }

    /// The operator sends a command.
    fn request(&mut self, number: u64, command: OperatorCommand) {
        self.say(self.operator, request(number, command));
    }

    /// An operator cancels the newest run.
    fn cancel(&mut self, number: u64) {
        let run = self.core.state().run_id();
        self.request(number, OperatorCommand::Cancel(run));
    }

    fn hear(&mut self, link: LinkId) -> Vec<Message> {
        self.said.remove(&link).unwrap_or_default()
    }

    /// The names of the messages on a link.
    fn words(&mut self, link: LinkId) -> Vec<&'static str> {
        self.hear(link).iter().map(Message::name).collect()
    }

    /// A worker connects and says Hello without an id.
    fn greeted(&mut self, name: &str) -> LinkId {
        let link = self.connect(Role::Worker, name);
        self.say(link, Message::Hello { worker: None });
        link
    }

    /// A worker connects and registers. It answers from now on.
    fn worker(&mut self, name: &str) -> LinkId {
        self.worker_in(name, None)
    }

    /// A worker on this machine.
    fn worker_on(&mut self, machine: Option<u64>) -> LinkId {
        let name = format!("worker-{}", machine.unwrap_or_default());
        let link = self.greeted(&name);
        self.workers.insert(link, Actor { node: name, ..Actor::default() });
        let machine = machine.map(MachineId);
        self.say(link, Message::Register(Registration { machine, ..registration(link.0) }));
        link
    }

    /// A worker on a machine in this zone.
    fn worker_in(&mut self, name: &str, zone: Option<Zone>) -> LinkId {
        let link = self.greeted(name);
        self.workers.insert(link, Actor { node: name.into(), ..Actor::default() });
        self.say(link, Message::Register(Registration { zone, ..registration(link.0) }));
        link
    }

    /// The worker's link is lost, and the worker comes back on another link.
    fn relink(&mut self, old: LinkId) -> LinkId {
        let actor = self.workers.remove(&old).expect("a worker");
        let link = self.connect(Role::Worker, &actor.node);
        let worker = (actor.id != WorkerId(0)).then_some(actor.id);
        let hello = Message::Hello { worker };
        self.workers.insert(link, actor);
        self.say(link, hello);
        link
    }

    fn cut(&mut self, link: LinkId) {
        self.give(ShellInput::Disconnected { link, end: LinkEnd::Silent });
    }

    fn kill(&mut self, link: LinkId) {
        self.workers.remove(&link);
        let end = LinkEnd::Goodbye("it said goodbye".into());
        self.give(ShellInput::Disconnected { link, end });
    }

    /// The worker's host refuses packets for the worker, which may live.
    fn refuse(&mut self, link: LinkId) {
        self.workers.remove(&link);
        self.give(ShellInput::Disconnected { link, end: LinkEnd::Refused });
    }

    fn actor(&mut self, link: LinkId) -> &mut Actor {
        self.workers.get_mut(&link).expect("a worker")
    }

    fn id(&self, link: LinkId) -> WorkerId {
        self.workers[&link].id
    }

    fn heartbeat(&self, link: LinkId) -> Heartbeat {
        let actor = &self.workers[&link];
        Heartbeat {
            worker: actor.id,
            generation: actor.generation,
            promised: actor.promised.max(actor.generation),
            step: actor.commit.as_ref().map_or(Step(0), |commit| commit.step),
            lines: if actor.asked { actor.lines.clone() } else { vec![] },
            unreachable: vec![],
            held: false,
            ready: actor.ready,
            behind: actor.behind,
            unread: actor.unread,
            computing: None,
            shard_us: actor.shard_us,
            telemetry: None,
            unwritten: None,
            store_error: None,
        }
    }

    fn beat(&mut self, link: LinkId) {
        let heartbeat = self.heartbeat(link);
        self.say(link, Message::Heartbeat(heartbeat));
    }

    fn beat_with(&mut self, link: LinkId, change: impl FnOnce(&mut Heartbeat)) {
        let mut heartbeat = self.heartbeat(link);
        change(&mut heartbeat);
        self.say(link, Message::Heartbeat(heartbeat));
    }

    fn report_lines(&mut self, link: LinkId, steps: RangeInclusive<u64>) {
        let generation = self.generation();
        self.beat_with(link, |heartbeat| heartbeat.lines = lines(generation, steps));
    }

    /// Time passes, tick by tick. These workers beat at each tick.
    fn pass(&mut self, millis: u64, beating: &[LinkId]) {
        let end = self.now + Duration::from_millis(millis);
        while self.now < end {
            self.now = self.now + CORE_TICK;
            beating.iter().for_each(|worker| self.beat(*worker));
            self.give(CoreInput::Tick);
        }
    }

    /// Every member commits these steps, and applies them.
    fn commit(&mut self, steps: RangeInclusive<u64>) {
        let record = self.record();
        for step in steps {
            for actor in self.workers.values_mut() {
                if record.rank(actor.id).is_some() && actor.generation == record.number {
                    actor.commit(step);
                }
            }
        }
    }

    /// A joiner has everything that it is fed, at its members' version, and says so.
    fn sync_shards(&mut self, link: LinkId) {
        let record = self.record();
        let donor = self.workers.values().find(|actor| record.rank(actor.id).is_some());
        let commit = donor.and_then(|donor| donor.commit.clone());
        let version = commit
            .as_ref()
            .map_or((Step(0), Generation(0)), |commit| (commit.step, commit.generation));
        let actor = self.actor(link);
        let shard_syncs = actor.shard_syncs.clone().expect("it is fed");
        actor.versions.extend(shard_syncs.into_iter().map(|shard| (shard, version)));
        (actor.commit, actor.ready) = (commit, true);
        self.beat(link);
    }

    /// All members have finished the step that holds.
    fn hold_all(&mut self) {
        let record = self.record();
        let members: Vec<LinkId> = self
            .workers
            .iter()
            .filter(|(_, a)| record.rank(a.id).is_some())
            .map(|w| *w.0)
            .collect();
        for link in members {
            self.actor(link).commit.iter_mut().for_each(|commit| commit.hold = true);
            self.beat_with(link, |heartbeat| heartbeat.held = true);
        }
    }

    /// The process of the coordinator is killed, and another process goes on with the log.
    fn restart(&mut self) {
        self.core = Core::new(self.now, EPOCH_UNIX_MS);
        for ((term, entry), index) in self.applied.clone().into_iter().zip(1..) {
            self.core.handle(self.now, CoreInput::Applied { index, term, entry });
        }
        self.term = Term(self.term.0 + 1);
        self.log.clear();
        self.give(CoreInput::Elected { term: self.term, id: FOUNDER });
        self.operator = self.connect(Role::Operator, "operator");
        self.views.clear();
    }

    /// The update that the operator gets.
    fn watch(&mut self, step: u64, event: u64) -> Update {
        self.say(self.operator, Message::Watch { run: None, step: Step(step), event });
        match self.hear(self.operator).pop() {
            Some(Message::Update(update)) => {
                self.views.extend(update.workers.iter().map(|view| (view.worker, view.clone())));
                self.views.retain(|worker, _| !update.forgotten.contains(worker));
                update
            }
            other => panic!("no update but {other:?}"),
        }
    }

    /// The workers as the operator sees them, by id.
    fn seen(&mut self) -> Vec<WorkerView> {
        self.watch(0, 0);
        self.views.values().cloned().collect()
    }

    fn events(&self) -> Vec<EventKind> {
        self.core.state().events().iter().map(|event| event.kind.clone()).collect()
    }

    /// The losses and joins among the events, in words: "lost 3", "joined 7".
    fn comings_and_goings(&self) -> Vec<String> {
        let words = |event: &Event| match &event.kind {
            EventKind::Lost { worker, .. } => Some(format!("lost {worker}")),
            EventKind::Left { worker } => Some(format!("left {worker}")),
            EventKind::Joined { worker } => Some(format!("joined {worker}")),
            EventKind::Rollback { from, to, .. } => Some(format!("back from {from} to {to}")),
            _ => None,
        };
        self.core.state().events().iter().filter_map(words).collect()
    }

    fn record(&self) -> Record {
        self.core.state().record().cloned().expect("there is a generation")
    }

    fn generation(&self) -> Generation {
        self.core.state().generation()
    }

    fn members(&self) -> Vec<WorkerId> {
        self.record().members.iter().map(|member| member.worker).collect()
    }

    fn cause(&self) -> Cause {
        self.record().cause
    }

    /// Why the run failed.
    fn failure(&self) -> String {
        match self.core.state().outcome() {
            Outcome::Failed { reason, .. } => reason.to_string(),
            other => panic!("the run did not fail: {other:?}"),
        }
    }

    fn running(&self) -> bool {
        *self.core.state().outcome() == Outcome::Running
    }

    /// The smallest number of owners that a shard has.
    fn protection(&self) -> usize {
        self.record().owners.iter().map(|run| run.owners.len()).min().expect("there are shards")
    }
}

impl Actor {
    /// Handles a message, and returns the worker's answer.
    fn hear(&mut self, message: &Message) -> Option<Message> {
        match message {
            Message::Registered { worker, .. } => self.id = *worker,
            Message::Pause { term, number } if !self.mute && *number > self.generation => {
                self.promised = *number;
                return Some(Message::Status(self.status(*term, *number)));
            }
            Message::HeartbeatAnswer { lacks_lines, .. } => self.asked = *lacks_lines,
            Message::Announce(record) if record.number > self.generation => self.enter(record),
            Message::Feed { joiner, shards, .. } if *joiner == self.id => {
                self.shard_syncs = Some(shards.clone());
            }
            _ => {}
        }
        None
    }

    fn status(&self, term: Term, number: Generation) -> Status {
        let versions = self.versions.iter();
        Status {
            term,
            number,
            commit: self.commit.clone(),
            prepared: self.prepared.clone(),
            versions: versions.map(|(shard, (step, made))| (*shard, *step, *made)).collect(),
            under_way: self.under_way,
            unreachable: vec![],
        }
    }

    fn enter(&mut self, record: &Record) {
        (self.generation, self.shard_syncs, self.ready) = (record.number, None, false);
        let Some(rank) = record.rank(self.id) else { return };
        if record.resume == Step(0) {
            (self.commit, self.under_way) = (None, None);
            self.lines.clear();
        } else {
            self.lines.retain(|line| line.step <= record.resume);
            self.commit = record.commit.clone();
            let line = record.commit.iter().map(|commit| commit.line.clone());
            let newest = self.lines.last().map_or(Step(0), |line| line.step);
            self.lines.extend(line.filter(|line| line.step > newest));
        }
        let made = self.commit.as_ref().map_or(Generation(0), |commit| commit.generation);
        let owned = record.owned_by(rank).into_iter();
        let is_late = record.restores().is_some() && self.restores_late;
        let owned = owned.filter(|_| !is_late);
        self.versions = owned.map(|(shard, _)| (shard, (record.resume, made))).collect();
        self.prepared.clear();
    }

    fn commit(&mut self, step: u64) {
        let (generation, step) = (self.generation, Step(step));
        self.commit = Some(commit(generation, step));
        self.versions.values_mut().for_each(|version| *version = (step, generation));
        self.lines.push(line(generation, step.0));
    }
}

/// A command of the operator.
fn request(number: u64, command: OperatorCommand) -> Message {
    Message::Request { id: RequestId { client: CLIENT, number }, command }
}

/// The answer to that command.
fn answer(number: u64, refusal: Option<Rejection>) -> Message {
    Message::Answer { id: RequestId { client: CLIENT, number }, refusal, run: None }
}

/// A run of this many workers, 20 steps and two copies. One worker is enough to go on.
fn run_of(start_workers: u32) -> RunSpec {
    RunSpec { start_workers, steps: 20, min_workers: 1, copies: 2, ..exemplars::run() }
}

fn commit(generation: Generation, step: Step) -> Commit {
    let line = line(generation, step.0);
    let (norm, loss, decision, updates, hold) = (1.0, 2.0, Decision::Apply, step.0, false);
    let (gradient_factor, loss_scale) = (1.0, LossScale::default());
    Commit {
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
    }
}

fn place() -> ModelPlace {
    ModelPlace { host: "node".into(), path: "/runs/model.safetensors".into() }
}

fn registration(incarnation: u64) -> Registration {
    let fingerprint =
        Fingerprint { model: [1; 32], data: [2; 32], parameters: 900, shards: SHARDS, samples: 99 };
    let port = 20_000 + (incarnation % 40_000) as u16;
    let address = (Ipv4Addr::LOCALHOST, port).into();
    let (zone, device, model) = (None, Device::default(), Some(place()));
    let (host, machine) = (None, None);
    Registration { incarnation, address, fingerprint, probe: 7, zone, device, model, host, machine }
}

fn line(generation: Generation, step: u64) -> MetricsLine {
    MetricsLine { step: Step(step), generation, seconds: 0.1, ..MetricsLine::default() }
}

fn lines(generation: Generation, steps: RangeInclusive<u64>) -> Vec<MetricsLine> {
    steps.map(|step| line(generation, step)).collect()
}
