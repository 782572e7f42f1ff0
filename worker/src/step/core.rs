//! The worker from its first word to its last, as a plain state machine.
//!
//! Inputs: what the coordinator, other members and the device say, and time. Outputs: messages,
//! pieces and jobs. The phases are those of `Phase`; the step itself is [`Member`]'s. The core
//! does not know sockets, threads or files.
//!
//! Until shards survive their owners, whatever ends a member's connection ends the run: the core
//! says so to the coordinator, names the member, and ends.

#![deny(clippy::disallowed_types, clippy::disallowed_methods)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use everstep_kernels::buffer::{Buffer, Pool};
use everstep_transport::protocol::codec;
use everstep_transport::protocol::message::Heartbeat;
use everstep_transport::protocol::outcome::WorkerResult;
use everstep_transport::protocol::{
    Chunk, Generation, Message, NodeName, Record, RunSpec, Step, WorkerId,
};
use everstep_transport::time::Time;

use super::event::{Admission, Built, Effect, Exit, Input, Report, Summary};
use super::member::Member;
use super::plan::Plan;
use super::setup::Setup;
use crate::data::Sampler;
use crate::optimize;

/// Who the worker is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The name in its certificate.
    pub name: NodeName,
    /// Wall clock at the core's time zero.
    pub unix_ms_at_zero: u64,
}

/// Where a worker stands.
#[derive(Debug)]
enum Phase {
    /// Waits for a run.
    Greeting,
    /// Builds the run's model and data.
    Building(Box<RunSpec>),
    /// Has stated what it would compute, and waits for its id and a generation.
    Registering(Arc<Setup>),
    /// Is a member.
    Training(Box<Member>),
    /// Has said its last word.
    Ended,
}

/// How often a worker says that it lives.
pub const HEARTBEAT: Duration = Duration::from_millis(250);
/// How long a lost member may go unnoticed by the coordinator before a member speaks up.
const LOSS_GRACE: Duration = Duration::from_millis(1500);
/// Most lines in one heartbeat: it must fit the control stream.
const LINES_PER_HEARTBEAT: usize = 200;
/// Most messages of a newer generation that wait, for each peer.
const MAX_EARLY: usize = 4;

/// The worker's core.
#[derive(Debug)]
pub struct Core {
    identity: Identity,
    pool: Pool,
    phase: Phase,
    worker: Option<WorkerId>,
    /// The newest generation whose record has come.
    known: Generation,
    heartbeat_at: Time,
    /// Members whose connection was lost, and when.
    lost: BTreeMap<WorkerId, (Time, String)>,
    /// What members said before this worker knew their generation.
    early: BTreeMap<WorkerId, VecDeque<Message>>,
    reported: bool,
    refused: u64,
    out: VecDeque<Effect>,
    #[cfg(feature = "planted")]
    plant: Option<crate::plant::Plant>,
}

impl Core {
    /// A worker that has said nothing yet. Buffers for sums come from `pool`.
    pub fn new(identity: Identity, pool: Pool) -> Self {
        Self {
            identity,
            pool,
            phase: Phase::Greeting,
            worker: None,
            known: Generation(0),
            heartbeat_at: Time(0),
            lost: BTreeMap::new(),
            early: BTreeMap::new(),
            reported: false,
            refused: 0,
            out: VecDeque::new(),
            #[cfg(feature = "planted")]
            plant: None,
        }
    }

    /// From its next generation on, the worker has this bug.
    #[cfg(feature = "planted")]
    pub fn plant(&mut self, plant: crate::plant::Plant) {
        self.plant = Some(plant);
    }

    /// The next thing to be done.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.out.pop_front()
    }

    /// The member, while the worker is one.
    pub fn member(&self) -> Option<&Member> {
        match &self.phase {
            Phase::Training(member) => Some(member),
            _ => None,
        }
    }

    /// Messages and pieces refused so far.
    pub fn refused(&self) -> u64 {
        self.refused + self.member().map_or(0, Member::refused)
    }

    /// What to do with a chunk whose header has arrived from another worker.
    pub fn admit(&self, from: WorkerId, chunk: &Chunk) -> Admission {
        match &self.phase {
            Phase::Training(member) => member.admit(from, chunk),
            Phase::Ended => Admission::Drop,
            _ => Admission::Wait,
        }
    }

    /// Something happened at `now`.
    pub fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Start => self.tell(Message::Hello { schema: codec::schema() }),
            Input::Coordinator(message) => self.coordinator(now, message),
            Input::CoordinatorLost(reason) => {
                self.end(Exit::Failed(format!("the coordinator is gone: {reason}")));
            }
            Input::Built(built) => self.built(built),
            Input::BuildFailed(reason) => self.fail(None, reason),
            Input::Peer { from, message } => self.peer(now, from, message),
            Input::PeerLost { from, reason } => {
                self.lost.entry(from).or_insert((now, reason));
            }
            Input::Piece { from, chunk, values } => self.piece(now, from, &chunk, values),
            Input::Refused => self.refused += 1,
            Input::Device(Report::Failed(reason)) => self.fail(None, reason),
            Input::Device(report) => {
                if let Phase::Training(member) = &mut self.phase {
                    member.report(now, report);
                }
            }
            Input::Tick => self.tick(now),
        }
        self.follow(now);
    }

    // The coordinator.

    fn coordinator(&mut self, now: Time, message: Message) {
        match (message, &mut self.phase) {
            (Message::Welcome { run }, Phase::Greeting) => {
                self.out.push_back(Effect::Build(run.clone()));
                self.phase = Phase::Building(Box::new(run));
            }
            (Message::Registered { worker }, Phase::Registering(_)) => self.worker = Some(worker),
            (Message::Announce(record), Phase::Registering(setup)) => {
                let setup = setup.clone();
                self.enter(now, setup, record);
            }
            (Message::HeartbeatAnswer { written, .. }, Phase::Training(member)) => {
                member.written(now, written);
                // A long tail goes out page by page, each with the answer to the one before.
                if member.settled_lines().next().is_some() {
                    self.heartbeat(now);
                }
            }
            (Message::HeartbeatAnswer { generation, .. }, Phase::Registering(_)) => {
                // The record was announced, and did not come.
                if generation > self.known {
                    self.tell(Message::FetchRecord);
                }
            }
            (Message::Refused { reason }, _) => self.end(Exit::Refused(reason)),
            (Message::Dismiss, _) => self.end(Exit::Dismissed),
            _ => self.refused += 1,
        }
    }

    fn built(&mut self, built: Built) {
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        let Phase::Building(run) = phase else {
            self.phase = phase;
            return;
        };
        let fingerprint = &built.registration.fingerprint;
        self.phase = Phase::Registering(Arc::new(Setup {
            parameters: fingerprint.parameters as usize,
            sampler: Sampler::new(run.seed, fingerprint.samples, run.batch),
            schedule: optimize::schedule(&run),
            tokens_per_step: built.tokens_per_step,
            unix_ms_at_zero: self.identity.unix_ms_at_zero,
            pool: self.pool.clone(),
            run: *run,
        }));
        self.tell(Message::Register(built.registration));
    }

    /// Enters the generation. The record may overtake the answer to the registration, so the
    /// worker finds itself by its name.
    fn enter(&mut self, now: Time, setup: Arc<Setup>, record: Record) {
        let mine = record.members.iter().find(|member| member.name == self.identity.name);
        self.known = self.known.max(record.number);
        // Enough had registered before: who is in excess waits for the end of the run.
        let Some(worker) = mine.map(|member| member.worker) else { return };
        if record.resume != Step(0) {
            let reason = format!("generation {} begins in the middle of a run", record.number);
            return self.fail(None, reason);
        }
        let data_shards = setup.run.batch.data_shards;
        match Plan::new(record, worker, setup.parameters, data_shards) {
            Ok(plan) => {
                self.worker = Some(worker);
                self.phase = Phase::Training(Box::new(Member::enter(now, setup, plan)));
                #[cfg(feature = "planted")]
                if let Phase::Training(member) = &mut self.phase {
                    member.plant(self.plant);
                }
                for (from, messages) in std::mem::take(&mut self.early) {
                    for message in messages {
                        self.peer(now, from, message);
                    }
                }
            }
            Err(error) => self.fail(None, error.to_string()),
        }
    }

    // Other members.

    fn peer(&mut self, now: Time, from: WorkerId, message: Message) {
        match &mut self.phase {
            Phase::Training(member) => member.peer(now, from, message),
            Phase::Ended => {}
            _ => {
                let waiting = self.early.entry(from).or_default();
                if waiting.len() < MAX_EARLY {
                    waiting.push_back(message);
                } else {
                    self.refused += 1;
                }
            }
        }
    }

    fn piece(&mut self, now: Time, from: WorkerId, chunk: &Chunk, values: Buffer) {
        if let Phase::Training(member) = &mut self.phase {
            member.piece(now, from, chunk, values);
        }
    }

    // Time.

    fn tick(&mut self, now: Time) {
        if now.since(self.heartbeat_at) >= HEARTBEAT {
            self.heartbeat(now);
        }
        let overdue = self.lost.iter().find(|(_, (at, _))| now.since(*at) >= LOSS_GRACE);
        if let Some((worker, (_, reason))) = overdue {
            let reason = format!("worker {worker} cannot be reached: {reason}");
            self.fail(Some(*worker), reason);
        }
    }

    fn heartbeat(&mut self, now: Time) {
        let Some(worker) = self.worker else { return };
        self.heartbeat_at = now;
        let member = self.member();
        let lines = member.into_iter().flat_map(|member| member.settled_lines().cloned());
        let generation = member.map_or(Generation(0), |member| member.plan().generation());
        let heartbeat = Heartbeat {
            worker,
            generation,
            promised: generation,
            step: member.map_or(Step(0), Member::committed),
            lines: lines.take(LINES_PER_HEARTBEAT).collect(),
            unreachable: self.lost.keys().copied().collect(),
        };
        self.tell(Message::Heartbeat(heartbeat));
    }

    /// What follows from a member's new state.
    fn follow(&mut self, now: Time) {
        let Phase::Training(member) = &mut self.phase else { return };
        while let Some(effect) = member.poll_effect() {
            self.out.push_back(effect);
        }
        if let Some(broken) = member.broken() {
            let (at_fault, reason) = (broken.at_fault(), broken.to_string());
            return self.fail(at_fault, reason);
        }
        // The last lines go out at once: the run ends when they are written.
        let pressing = member.is_settled() && now.since(self.heartbeat_at) >= HEARTBEAT / 10;
        if pressing && member.settled_lines().next().is_some() {
            return self.heartbeat(now);
        }
        let Some(summary) = member.result().filter(|_| !self.reported) else { return };
        let refused = self.refused + member.refused();
        let result = result(self.worker.unwrap_or_default(), summary, refused);
        self.reported = true;
        self.tell(Message::Finished(result));
    }

    // Ends.

    /// The worker cannot go on, because of a member or of itself: says so, and ends.
    fn fail(&mut self, at_fault: Option<WorkerId>, reason: String) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        self.tell(Message::Failed { at_fault, reason: reason.clone() });
        self.end(Exit::Failed(reason));
    }

    fn end(&mut self, exit: Exit) {
        if !matches!(self.phase, Phase::Ended) {
            self.phase = Phase::Ended;
            self.out.push_back(Effect::Exit(exit));
        }
    }

    fn tell(&mut self, message: Message) {
        self.out.push_back(Effect::Tell(message));
    }
}

/// What the core and the device know of the result; the shell adds what it measured.
fn result(worker: WorkerId, summary: &Summary, refused: u64) -> WorkerResult {
    WorkerResult {
        worker,
        data_shards_computed: summary.data_shards_computed,
        compute_seconds: summary.compute_seconds,
        exposed_communication_seconds: summary.exposed_seconds,
        optimizer_bytes: summary.optimizer_bytes,
        evaluations: summary.evaluations.clone(),
        digests: summary.digests.clone(),
        refused,
        ..WorkerResult::default()
    }
}
