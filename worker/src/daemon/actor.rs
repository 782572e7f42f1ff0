//! The actor that owns the core: carries events in and effects out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use actix::{Actor, Addr, AsyncContext, Context, Handler, MessageResult};
use everstep_kernels::buffer::Pool;
use everstep_transport::identity::{Identity, Role};
use everstep_transport::protocol::outcome::WorkerResult;
use everstep_transport::protocol::{Message, NodeName, Record, RunSpec, WorkerId};
use everstep_transport::quic::{Endpoint, Expected, Link};
use everstep_transport::time::Time;
use tokio::sync::{oneshot, watch};

use super::event::{Ask, Event};
use super::peer::{Peer, Wiring};
use super::traffic::{self, Traffic};
use crate::device::build::{Place, build};
use crate::device::{Device, thread as device_thread};
use crate::registry::Registry;
use crate::step::core::Core;
use crate::step::event::{Built, Effect, Exit, Input, Job};

/// How often the core is told the time.
const TICK: Duration = Duration::from_millis(50);
/// Links of workers that no record names yet; more are closed.
const MAX_STRANGERS: usize = 1024;
/// How long a member's address is tried.
const CONNECT_PATIENCE: Duration = Duration::from_secs(3);

/// The outside world, as the actor holds it.
pub struct Shell {
    /// The process's port.
    pub endpoint: Arc<Endpoint>,
    /// The link to the coordinator.
    pub coordinator: Link,
    /// What `kind` means.
    pub registry: Arc<Registry>,
    /// The name in its certificate.
    pub name: NodeName,
    /// What the worker knows of itself.
    pub place: Place,
    /// Where buffers come from.
    pub pool: Pool,
    /// The core's time zero.
    pub began: Instant,
}

/// The actor.
pub struct WorkerActor {
    core: Core,
    shell: Shell,
    peers: BTreeMap<WorkerId, Peer>,
    record: Option<Record>,
    /// Links of workers that no record names yet. They are not read.
    strangers: Vec<Link>,
    device: Option<Sender<Job>>,
    changed: watch::Sender<u64>,
    traffic: Arc<Traffic>,
    /// CPU seconds that were used before the worker became a member.
    cpu_before: f64,
    exit: Option<oneshot::Sender<Exit>>,
}

#[derive(actix::Message)]
#[rtype(result = "()")]
struct Arrival(Link);

#[derive(actix::Message)]
#[rtype(result = "()")]
struct DeviceBuilt(Result<(Device, Built), String>);

impl WorkerActor {
    /// Starts the actor on this thread; `exit` is told how it ended.
    pub fn launch(core: Core, shell: Shell, exit: oneshot::Sender<Exit>) {
        let (changed, _) = watch::channel(0);
        let actor = Self {
            core,
            shell,
            peers: BTreeMap::new(),
            record: None,
            strangers: Vec::new(),
            device: None,
            changed,
            traffic: Arc::default(),
            cpu_before: 0.0,
            exit: Some(exit),
        };
        actor.start();
    }

    fn now(&self) -> Time {
        Time(self.shell.began.elapsed().as_nanos() as u64)
    }

    fn feed(&mut self, input: Input, own: Addr<Self>) {
        let now = self.now();
        let before = self.core.member().map(|member| member.committed());
        self.core.handle(now, input);
        while let Some(effect) = self.core.poll_effect() {
            self.perform(effect, &own);
        }
        if self.core.member().map(|member| member.committed()) != before {
            self.changed.send_modify(|version| *version += 1);
        }
    }

    fn perform(&mut self, effect: Effect, own: &Addr<Self>) {
        match effect {
            Effect::Tell(Message::Finished(result)) => {
                let result = self.complete(result);
                self.tell(Message::Finished(result));
            }
            Effect::Tell(message) => self.tell(message),
            Effect::Send { to, message } => {
                if let Some(peer) = self.peers.get_mut(&to) {
                    peer.send(message);
                }
            }
            Effect::Stream { to, lane, step, parcel } => {
                if let Some(peer) = self.peers.get(&to) {
                    peer.stream(lane, step, parcel);
                }
            }
            Effect::Build(run) => self.build(run, own.clone()),
            Effect::Enter(record) => self.enter(record, own),
            Effect::Device(job) => {
                let device = self.device.as_ref().expect("a device is built before its first job");
                // An error means that the device has failed, which its last report says.
                let _ = device.send(job);
            }
            Effect::Exit(exit) => {
                if let Some(ended) = self.exit.take() {
                    let _ = ended.send(exit);
                }
            }
        }
    }

    fn tell(&self, message: Message) {
        if let Err(error) = self.shell.coordinator.send(message) {
            tracing::debug!(%error, "the coordinator cannot be told");
        }
    }

    /// Adds what only the shell has measured.
    fn complete(&self, mut result: WorkerResult) -> WorkerResult {
        let endpoint = self.shell.endpoint.stats();
        let buffers = self.shell.endpoint.socket_buffers();
        (result.bytes_sent, result.bytes_received) = self.traffic.totals();
        result.cpu_seconds = traffic::cpu_seconds() - self.cpu_before;
        result.peak_rss_bytes = traffic::peak_rss_bytes();
        result.refused += endpoint.refused_peers + endpoint.failed_handshakes;
        result.path_mtu = u64::from(endpoint.path_mtu);
        result.lost_packets = endpoint.lost_packets;
        result.socket_buffers = (buffers.receive as u64, buffers.send as u64);
        result
    }

    // The device.

    fn build(&self, run: RunSpec, own: Addr<Self>) {
        let (registry, place) = (self.shell.registry.clone(), self.shell.place.clone());
        let pool = self.shell.pool.clone();
        let builder = thread::Builder::new().name("build".into());
        let spawned = builder.spawn(move || {
            let built = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                build(&registry, &run, &place, pool)
            }));
            let built = built.unwrap_or_else(|_| Err("building the model panicked".into()));
            own.do_send(DeviceBuilt(built));
        });
        spawned.expect("the system gives a process a thread");
    }

    // The generation.

    fn enter(&mut self, record: Record, own: &Addr<Self>) {
        let me = record.members.iter().find(|member| member.name == self.shell.name);
        let me = me.map(|member| member.worker);
        tracing::info!(generation = %record.number, members = record.members.len(), "entered");
        for member in &record.members {
            let worker = member.worker;
            if Some(worker) == me {
                continue;
            }
            self.peers.insert(worker, Peer::awaited());
            // One link a pair: the newer worker calls the older one.
            if me > Some(worker) {
                let identity = Identity { role: Role::Worker, name: member.name.clone() };
                let (endpoint, own) = (self.shell.endpoint.clone(), own.clone());
                let address = member.address;
                actix::spawn(async move {
                    match connect(&endpoint, address, Expected::Node(identity)).await {
                        Ok(link) => own.do_send(Arrival(link)),
                        Err(reason) => {
                            own.do_send(Event(Input::PeerLost { from: worker, reason }));
                        }
                    }
                });
            }
        }
        self.record = Some(record);
        self.cpu_before = traffic::cpu_seconds();
        self.changed.send_modify(|version| *version += 1);
        for link in std::mem::take(&mut self.strangers) {
            self.admit(link, own);
        }
    }

    /// A link is up: it is a member's, or it waits until a record names its worker.
    fn admit(&mut self, link: Link, own: &Addr<Self>) {
        let Some(record) = &self.record else {
            if self.strangers.len() < MAX_STRANGERS {
                self.strangers.push(link);
            }
            return;
        };
        let identity = link.identity();
        let member = record
            .members
            .iter()
            .find(|member| identity.role == Role::Worker && member.name == identity.name);
        let Some(worker) = member.map(|member| member.worker) else {
            tracing::warn!(%identity, "refused a node that is not in the roster");
            link.close("this node is not a member of the generation");
            return own.do_send(Event(Input::Refused));
        };
        let wiring = Wiring {
            worker,
            generation: record.number,
            events: own.clone().recipient(),
            asks: own.clone().recipient(),
            changed: self.changed.subscribe(),
            pool: self.shell.pool.clone(),
            traffic: self.traffic.clone(),
        };
        if let Some(peer) = self.peers.get_mut(&worker) {
            peer.attach(link, &wiring);
        }
    }
}

async fn connect(
    endpoint: &Endpoint,
    address: std::net::SocketAddr,
    expected: Expected,
) -> Result<Link, String> {
    let began = Instant::now();
    loop {
        match endpoint.connect(address, &expected).await {
            Ok(link) => return Ok(link),
            Err(error) if began.elapsed() > CONNECT_PATIENCE => return Err(error.to_string()),
            Err(error) => tracing::debug!(%address, %error, "trying again"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn receive(link: Link, own: Addr<WorkerActor>) {
    let reason = loop {
        match link.receive().await {
            Ok(message) => {
                if own.send(Event(Input::Coordinator(message))).await.is_err() {
                    return;
                }
            }
            Err(error) => break error.to_string(),
        }
    };
    let _ = own.send(Event(Input::CoordinatorLost(reason))).await;
}

async fn accept(endpoint: Arc<Endpoint>, own: Addr<WorkerActor>) {
    while let Some(link) = endpoint.accept().await {
        if own.send(Arrival(link)).await.is_err() {
            return;
        }
    }
}

impl Actor for WorkerActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        let own = context.address();
        actix::spawn(receive(self.shell.coordinator.clone(), own.clone()));
        actix::spawn(accept(self.shell.endpoint.clone(), own.clone()));
        context.run_interval(TICK, |actor, context| actor.feed(Input::Tick, context.address()));
        self.feed(Input::Start, own);
    }
}

impl Handler<Event> for WorkerActor {
    type Result = ();

    fn handle(&mut self, Event(input): Event, context: &mut Self::Context) {
        self.feed(input, context.address());
    }
}

impl Handler<Ask> for WorkerActor {
    type Result = MessageResult<Ask>;

    fn handle(&mut self, ask: Ask, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.core.admit(ask.from, &ask.chunk))
    }
}

impl Handler<Arrival> for WorkerActor {
    type Result = ();

    fn handle(&mut self, Arrival(link): Arrival, context: &mut Self::Context) {
        self.admit(link, &context.address());
    }
}

impl Handler<DeviceBuilt> for WorkerActor {
    type Result = ();

    fn handle(&mut self, DeviceBuilt(built): DeviceBuilt, context: &mut Self::Context) {
        let own = context.address();
        let built = match built {
            Ok((device, built)) => {
                let (jobs, mut reports) = device_thread::start(device);
                self.device = Some(jobs);
                let actor = own.clone();
                actix::spawn(async move {
                    while let Some(report) = reports.recv().await {
                        if actor.send(Event(Input::Device(report))).await.is_err() {
                            return;
                        }
                    }
                });
                Input::Built(built)
            }
            Err(reason) => Input::BuildFailed(reason),
        };
        self.feed(built, own);
    }
}
