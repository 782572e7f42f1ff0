//! The actor that owns the core. It carries events in and effects out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, ActorContext, AsyncContext, Context, Handler, MessageResult};
use everstep_transport::protocol::outcome::WorkerResult;
use everstep_transport::protocol::{CoordinatorView, Message, Record, Step, WorkerId};
use everstep_transport::quic::{Endpoint, Link};
use everstep_transport::time::Time;
use tokio::sync::{oneshot, watch};

use super::device_host::DeviceHost;
use super::event::{
    AdmitChunk, CoordinatorConnected, CoreInput, DeviceBuilt, DeviceReported, FileReported,
    PeerConnected, PeerInput, StoreReported,
};
#[cfg(feature = "failpoints")]
use super::failpoint;
use super::peers::Peers;
use super::reader::ReaderContext;
use super::traffic::{self, Traffic};
use super::wait_span::WaitSpan;
use crate::free_memory::peak_rss_bytes;
use crate::step::core::Core;
use crate::step::event::{Admission, Effect, Exit, Input, LinkId};

/// The interval at which the actor tells the core the time.
const CORE_TICK_INTERVAL: Duration = Duration::from_millis(50);
/// The interval at which the log states the loss.
const LOSS_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// How the actor ended, and the links that must still deliver its last messages.
pub type Ending = (Exit, Vec<Link>);

/// The parts around the core that the actor owns.
pub struct Shell {
    /// The process's QUIC endpoint, shared with the tasks.
    pub endpoint: Arc<Endpoint>,
    /// Builds, starts and ends devices.
    pub device_host: DeviceHost,
    /// Tells the search for coordinators the newest list of them. Empty until a coordinator has
    /// sent it.
    pub known: watch::Sender<Vec<CoordinatorView>>,
    /// The core's time zero.
    pub began: Instant,
    /// Incarnations of workers that have ended, as this worker's directory proves.
    pub ended: Vec<u64>,
    /// Whether tensors go through shared memory where that is possible.
    pub shares_memory: bool,
}

/// The core with its surroundings, as an actix actor.
pub struct WorkerActor {
    core: Core,
    shell: Shell,
    /// The links to coordinators.
    coordinators: BTreeMap<LinkId, Link>,
    peers: Peers,
    /// The number of shards that keep the worker from leaving, as the log said last.
    retained: Option<u32>,
    /// When the log stated the loss last, and of which step.
    loss_logged: Option<(Time, Step)>,
    wait_span: WaitSpan,
    /// The version that the generation resumes with.
    resume: Step,
    /// The members of the generation.
    members: BTreeSet<WorkerId>,
    changed: watch::Sender<u64>,
    traffic: Arc<Traffic>,
    /// CPU seconds that the process had used when the first generation since the build began.
    cpu_before: Option<f64>,
    exit: Option<oneshot::Sender<Ending>>,
}

impl WorkerActor {
    /// Makes the actor in `context`, which has not started yet. `exit` gets its ending.
    pub fn new(
        core: Core,
        shell: Shell,
        exit: oneshot::Sender<Ending>,
        context: &mut Context<Self>,
    ) -> Self {
        let (changed, watched) = watch::channel(0);
        let (own, traffic) = (context.address(), Arc::<Traffic>::default());
        let reader_context = ReaderContext {
            inputs: own.clone().recipient(),
            questions: own.clone().recipient(),
            changed: watched,
            pool: shell.device_host.pool.clone(),
            traffic: traffic.clone(),
            shares_memory: shell.shares_memory,
        };
        let peers = Peers::new(shell.endpoint.clone(), reader_context, own.recipient());
        Self {
            core,
            shell,
            coordinators: BTreeMap::new(),
            peers,
            retained: None,
            loss_logged: None,
            wait_span: WaitSpan::default(),
            resume: Step(0),
            members: BTreeSet::new(),
            changed,
            traffic,
            cpu_before: None,
            exit: Some(exit),
        }
    }

    fn now(&self) -> Time {
        Time(self.shell.began.elapsed().as_nanos() as u64)
    }

    /// Gives the core an input, and carries out what follows from it.
    fn on_input(&mut self, input: Input, context: &mut Context<Self>) {
        #[cfg(feature = "failpoints")]
        failpoint::on_input(&input, self.resume);
        let now = self.now();
        let committed = |core: &Core| core.member().map(|member| member.committed());
        let registered = self.core.worker();
        // Generations, promises and commits change what the core admits. All of them come with a
        // message, except the commits that this worker decides itself.
        let is_message = matches!(input, Input::Coordinator { .. } | Input::Peer { .. });
        let before = committed(&self.core);
        let refusal = refusal(&input);
        self.core.handle(now, input);
        if let Some((reason, again_at)) = refusal.zip(self.core.tries_again_at()) {
            let again_in_s = again_at.since(now).as_secs();
            let what = "the coordinators refuse what this worker would compute";
            tracing::warn!(reason, again_in_s, "{what}");
        }
        let mut inputs = Vec::new();
        while let Some(effect) = self.core.poll_effect() {
            #[cfg(feature = "failpoints")]
            failpoint::on_effect(&effect);
            inputs.extend(self.perform(effect, context));
        }
        self.wait_span.follow(&self.core);
        self.shell.endpoint.rest(self.core.member().is_none());
        self.log_leave_wait();
        self.log_loss(now);
        self.log_end(registered);
        if is_message || committed(&self.core) != before {
            self.changed.send_modify(|version| *version += 1);
        }
        // Only the beginning of a generation produces inputs, so this recursion ends.
        inputs.into_iter().for_each(|input| self.on_input(input, context));
    }

    /// Logs what a worker that shall leave waits for, whenever that changes.
    fn log_leave_wait(&mut self) {
        let retained = self.core.leaving().filter(|_| self.core.member().is_some());
        if self.retained == retained {
            return;
        }
        self.retained = retained;
        if let Some(shards @ 1..) = retained {
            tracing::info!(shards, "waits to leave: no worker that stays has a copy of its shards");
        }
    }

    /// Logs the loss, once a minute.
    fn log_loss(&mut self, now: Time) {
        let Some(commit) = self.core.member().and_then(|member| member.commit()) else { return };
        let is_new = self.loss_logged.is_none_or(|(_, step)| step != commit.step);
        let is_due = self.loss_logged.is_none_or(|(at, _)| now.since(at) >= LOSS_LOG_INTERVAL);
        if is_new && is_due {
            self.loss_logged = Some((now, commit.step));
            tracing::info!(step = %commit.step, loss = commit.loss, "trained");
        }
    }

    /// Logs that the worker has no registration any more, if it had one before.
    fn log_end(&mut self, registered: Option<WorkerId>) {
        if let Some(id) = registered.filter(|_| self.core.worker().is_none()) {
            self.members.clear();
            tracing::info!(id = id.0, "registration is over");
        }
    }

    /// Carries out an effect. Returns the inputs for the core that follow from it.
    fn perform(&mut self, effect: Effect, context: &mut Context<Self>) -> Vec<Input> {
        match effect {
            Effect::SendToCoordinator { link, message: Message::Finished(result) } => {
                let result = self.complete(result);
                self.send(link, Message::Finished(result));
            }
            Effect::SendToCoordinator { link, message: Message::Heartbeat(mut heartbeat) } => {
                heartbeat.telemetry = self.shell.device_host.telemetry();
                self.send(link, Message::Heartbeat(heartbeat));
            }
            Effect::SendToCoordinator { link, message } => self.send(link, message),
            Effect::Coordinators(all) => {
                self.shell.known.send_replace(all);
            }
            Effect::SendToPeer { to, message } => {
                if let Some(peer) = self.peers.peer(to) {
                    peer.send(message);
                }
            }
            Effect::Stream { to, lane, step, item } => {
                self.peers.stream(to, lane, step, item);
            }
            Effect::Build(run) => {
                // Peers may connect before the first record is here.
                self.shell.endpoint.share_among(run.start_workers);
                self.peers.clear("this worker begins anew");
                self.cpu_before = None;
                self.shell.device_host.build(run, context.address());
            }
            Effect::Enter(record) => return self.enter(&record),
            Effect::AcceptPeer { worker, name, address } => {
                return self.peers.accept(worker, name, address);
            }
            Effect::Device(job) => self.shell.device_host.give(job),
            Effect::Store(job) => self.shell.device_host.give_store(job),
            Effect::File(job) => self.shell.device_host.give_file(job),
            Effect::Yield => {
                let own = context.address();
                actix::spawn(async move {
                    tokio::task::yield_now().await; // the links' tasks have their turn
                    own.do_send(CoreInput(Input::Yielded));
                });
            }
            Effect::Exit(exit) => {
                if let Some(ended) = self.exit.take() {
                    let links = std::mem::take(&mut self.coordinators).into_values().collect();
                    let _ = ended.send((exit, links));
                }
                context.stop();
            }
        }
        Vec::new()
    }

    fn enter(&mut self, record: &Record) -> Vec<Input> {
        let (generation, cause) = (record.number, record.cause);
        let members: BTreeSet<_> = record.members.iter().map(|member| member.worker).collect();
        let id = self.core.worker().unwrap_or_default();
        let rank = record.members.iter().position(|member| member.worker == id);
        let (resume, count) = (record.resume, members.len());
        let gone: Vec<u64> = self.members.difference(&members).map(|worker| worker.0).collect();
        let id = id.0;
        tracing::info!(id, rank, %generation, ?cause, members = count, ?gone, %resume, "entered");
        (self.resume, self.members) = (resume, members);
        self.shell.endpoint.share_among(count as u32);
        self.cpu_before.get_or_insert_with(traffic::cpu_seconds);
        self.peers.enter(self.core.worker(), record)
    }

    fn send(&self, link: LinkId, message: Message) {
        // The core repeats a lost message when there is a new link.
        let Some(link) = self.coordinators.get(&link) else { return };
        if let Err(error) = link.send(message) {
            tracing::debug!(%error, "the coordinator cannot be told");
        }
    }

    /// Adds the shell's own measurements.
    fn complete(&self, mut result: WorkerResult) -> WorkerResult {
        let endpoint = self.shell.endpoint.stats();
        let buffers = self.shell.endpoint.socket_buffers();
        (result.bytes_sent, result.bytes_received) = self.traffic.totals();
        result.cpu_seconds = traffic::cpu_seconds() - self.cpu_before.unwrap_or_default();
        result.peak_rss_bytes = peak_rss_bytes();
        result.refused += endpoint.refused_peers + endpoint.failed_handshakes;
        result.path_mtu = u64::from(endpoint.path_mtu);
        result.lost_packets = endpoint.lost_packets;
        result.receive_buffer = buffers.receive as u64;
        result.send_buffer = buffers.send as u64;
        result
    }
}

impl Actor for WorkerActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.run_interval(CORE_TICK_INTERVAL, |actor, context| {
            actor.on_input(Input::Tick, context);
            let overdue = actor.peers.overdue();
            overdue.into_iter().for_each(|input| actor.on_input(input, context));
        });
    }
}

impl Handler<CoreInput> for WorkerActor {
    type Result = ();

    fn handle(&mut self, CoreInput(input): CoreInput, context: &mut Self::Context) {
        if let Input::CoordinatorLost { link } = &input {
            self.coordinators.remove(link);
        }
        self.on_input(input, context);
    }
}

impl Handler<PeerInput> for WorkerActor {
    type Result = ();

    fn handle(&mut self, from_peer: PeerInput, context: &mut Self::Context) {
        if let Some(input) = self.peers.hear(from_peer) {
            self.on_input(input, context);
        }
    }
}

impl Handler<AdmitChunk> for WorkerActor {
    type Result = MessageResult<AdmitChunk>;

    fn handle(&mut self, ask: AdmitChunk, _: &mut Self::Context) -> Self::Result {
        let from = self.peers.at_link(ask.link);
        MessageResult(from.map_or(Admission::Drop, |from| self.core.admit(from, &ask.chunk)))
    }
}

impl Handler<PeerConnected> for WorkerActor {
    type Result = ();

    fn handle(&mut self, PeerConnected(link): PeerConnected, context: &mut Self::Context) {
        if let Some(input) = self.peers.admit(link.into()) {
            self.on_input(input, context);
        }
    }
}

impl Handler<CoordinatorConnected> for WorkerActor {
    type Result = ();

    fn handle(
        &mut self,
        CoordinatorConnected { id, link }: CoordinatorConnected,
        context: &mut Self::Context,
    ) {
        let name = link.identity().name.clone();
        tracing::info!(%name, coordinator = %link.remote_address(), "connected");
        self.coordinators.insert(id, link);
        self.on_input(Input::CoordinatorUp { link: id, name }, context);
    }
}

impl Handler<DeviceBuilt> for WorkerActor {
    type Result = ();

    fn handle(&mut self, done: DeviceBuilt, context: &mut Self::Context) {
        if let Some(input) = self.shell.device_host.start(done, context.address()) {
            self.on_input(input, context);
        }
    }
}

impl Handler<DeviceReported> for WorkerActor {
    type Result = ();

    fn handle(&mut self, reported: DeviceReported, context: &mut Self::Context) {
        if let Some(input) = self.shell.device_host.report(reported) {
            self.on_input(input, context);
        }
    }
}

impl Handler<StoreReported> for WorkerActor {
    type Result = ();

    fn handle(&mut self, reported: StoreReported, context: &mut Self::Context) {
        if let Some(input) = self.shell.device_host.store_report(reported) {
            self.on_input(input, context);
        }
    }
}

impl Handler<FileReported> for WorkerActor {
    type Result = ();

    fn handle(&mut self, reported: FileReported, context: &mut Self::Context) {
        if let Some(input) = self.shell.device_host.file_report(reported) {
            self.on_input(input, context);
        }
    }
}

/// Why a leader refuses what this worker would compute. A user reads only this on the worker's own
/// machine.
fn refusal(input: &Input) -> Option<String> {
    match input {
        Input::Coordinator { message: Message::Unable { reason, .. }, .. } => Some(reason.clone()),
        _ => None,
    }
}
