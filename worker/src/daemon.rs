//! The worker's shell: sockets, threads and clocks around the core.
//!
//! One thread runs the endpoint and an actor that owns the core. The device, the loader, the
//! checkpoints and the model's file have threads of their own. Messages enter as events, one at a
//! time. A task that brings an event waits for the answer before it reads on, so a busy actor
//! exerts back-pressure on its peers. Each stream's task reads tensors into buffers, which then
//! change hands by pointer.
//!
//! Lifetimes: the process keeps its port, its name and its key. A build keeps a device and an id. A
//! generation keeps its peers' queues and streams. The links outlive generations, and training
//! outlives the links to the coordinators.

mod actor;
mod coordinator_links;
mod device_host;
mod drain;
mod event;
#[cfg(feature = "failpoints")]
pub mod failpoint;
mod file_thread;
mod lane;
mod machine;
mod peer;
mod peers;
mod predecessors;
mod preemption;
mod reader;
mod shared_memory;
mod store_thread;
mod telemetry;
mod traffic;
mod wait_span;
mod wire_item;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use actix::{Actor, Addr};
use everstep_kernels::buffer::Pool;
use everstep_kernels::device::DeviceChoice;
use everstep_transport::identity::{
    Credentials, EnrolmentError, JoinToken, NodeKey, Role, TokenError,
};
use everstep_transport::protocol::{NodeName, Zone};
use everstep_transport::quic::{
    BindError, BoundSocket, Endpoint, EnrolError, HostPort, Settings, enrol_as,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::device::build::BuildContext;
use crate::device::directory::Directory;
use crate::registry::Registry;
use crate::step::core::{Core, WorkerIdentity};
use crate::step::event::Exit;
use crate::store_work::ClusterIdentity;
use actor::{Ending, Shell, WorkerActor};
use coordinator_links::{DialContext, LinkEvents};
use device_host::DeviceHost;
use drain::LeaveOrders;
use event::PeerConnected;
use predecessors::Predecessors;
pub use preemption::{Fate, FateChange, FateWatch, MetadataService, PREEMPTION_POLL_INTERVAL};

/// The options of a worker daemon.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Addresses of coordinators. At least one must answer, and it names the others.
    pub coordinators: Vec<HostPort>,
    /// The join token that admits the worker.
    pub token: String,
    /// The address to listen on for other workers. Port 0 takes a free port.
    pub listen: SocketAddr,
    /// What this machine may fail together with. The coordinator keeps copies of one parameter
    /// shard apart.
    pub zone: Option<Zone>,
    /// Where this worker puts the model at the end. None if it cannot write the model.
    pub dir: Option<PathBuf>,
    /// A directory in which this worker keeps a locked file, so that the next worker that starts
    /// there can prove the end of this one. None: nothing is kept or proved.
    pub kept_in: Option<PathBuf>,
    /// The device that the model computes on.
    pub device: DeviceChoice,
    /// The longest wait after SIGTERM until this worker's shards are copied. None means no limit.
    pub grace: Option<Duration>,
    /// The service that tells whether the cloud takes the machine back. None: none is asked.
    pub metadata: Option<MetadataService>,
    /// Overlap communication with compute. Off only to measure what that saves.
    pub overlap: bool,
    /// End with the run that the worker takes part in. Otherwise the worker waits for another one.
    pub ends_with_run: bool,
    /// Exchange tensors with workers of this host through shared memory. Off only to measure what
    /// that saves.
    pub shares_memory: bool,
}

/// The worker's name and address, once it listens.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The name in its certificate.
    pub name: NodeName,
    /// The address on which it listens.
    pub address: SocketAddr,
}

/// How a worker ended in good order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanExit {
    /// The run is over.
    Dismissed,
    /// The worker was told to leave, and has left: nothing depends on it any more.
    Drained,
    /// The worker was told to leave. It has ended before it could do so in good order.
    Overdue,
}

/// Why a worker ended that nobody told to leave.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The join token cannot be read.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The coordinator did not admit the worker.
    #[error("the worker was not admitted to the cluster: {0}")]
    Enrol(#[from] EnrolError),
    /// The worker could not bind a port.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// No other worker could reach the address.
    #[error("cannot listen on {0}: name an address that other workers can call")]
    Unspecified(SocketAddr),
    /// Other machines cannot reach the address, and a coordinator is on another machine.
    #[error("cannot listen on {listen}: the coordinator at {coordinator} cannot call it there")]
    Loopback {
        /// The address where the worker was to listen.
        listen: SocketAddr,
        /// A coordinator on another machine.
        coordinator: HostPort,
    },
    /// The coordinator refused the worker.
    #[error("the coordinator refused this worker: {0}")]
    Refused(String),
    /// The worker could not go on, for this reason.
    #[error("{0}")]
    Failed(String),
    /// The process cannot wait for SIGTERM.
    #[error("signals cannot be received: {0}")]
    Signals(std::io::Error),
    /// The failpoints cannot be set.
    #[cfg(feature = "failpoints")]
    #[error(transparent)]
    Failpoints(#[from] failpoint::FailpointError),
}

/// Data shards that the loader fills ahead.
const PREFETCH: usize = 2;
/// Free memory that the buffer pool keeps even if the last steps needed less, bytes.
const POOL_BYTES: usize = 64 << 20;
/// How long a worker asks for a coordinator before it gives up.
const ENROL_TIMEOUT: Duration = Duration::from_secs(10);

/// Joins a cluster and works until the coordinator dismisses it or, after SIGTERM, it has left.
/// Blocks. Calls `ready` once the worker listens.
///
/// # Errors
/// [`WorkerError`], in words for the user.
pub fn run(
    options: WorkerOptions,
    registry: Arc<Registry>,
    ready: impl FnOnce(&Ready),
) -> Result<CleanExit, WorkerError> {
    #[cfg(feature = "failpoints")]
    failpoint::arm()?;
    actix::System::new().block_on(work(options, registry, ready))
}

async fn work(
    options: WorkerOptions,
    registry: Arc<Registry>,
    ready: impl FnOnce(&Ready),
) -> Result<CleanExit, WorkerError> {
    if options.listen.ip().is_unspecified() {
        return Err(WorkerError::Unspecified(options.listen));
    }
    let token: JoinToken = options.token.parse()?;
    let began = Instant::now();
    if let Some(place) = HostPort::out_of_reach(&options.coordinators, options.listen).await {
        let (listen, coordinator) = (options.listen, place.clone());
        return Err(WorkerError::Loopback { listen, coordinator });
    }
    let settings = Settings::for_address(options.listen.ip());
    let port = BoundSocket::bind(options.listen, &settings)?; // the token's use must not be lost
    let enrolling = enrol_anywhere(&options.coordinators, &token);
    let credentials = HostPort::await_answer(&options.coordinators, enrolling).await?;
    let name = credentials.identity().name.clone();
    let endpoint = Arc::new(Endpoint::open(port, &credentials, settings, None)?);
    let address = endpoint.local_address();
    let terminations = drain::terminations().map_err(WorkerError::Signals)?;
    ready(&Ready { name: name.clone(), address });
    tracing::info!(%name, %address, "admitted");

    let predecessors = options.kept_in.as_deref().map(Predecessors::find).unwrap_or_default();
    let WorkerOptions { zone, dir, device, overlap, shares_memory, grace, metadata, .. } = options;
    let (incarnation, machine, prefetch, lacked) = (0, machine::id(), PREFETCH, None);
    let context = BuildContext {
        incarnation,
        address,
        machine,
        zone,
        dir: dir.map(Directory::new),
        device,
        overlap,
        prefetch,
        lacked,
    };
    let cluster = ClusterIdentity::of(&credentials);
    let Predecessors { own, ended } = predecessors;
    let pool = Pool::new(POOL_BYTES);
    let device_host = DeviceHost::new(registry, context, pool, cluster).kept_in(own);
    let (known, coordinators) = watch::channel(Vec::new());
    let shell =
        Shell { endpoint: endpoint.clone(), device_host, known, began, ended, shares_memory };
    let core = core_of(name, &shell, options.ends_with_run);
    let places = options.coordinators;
    let dial_context =
        DialContext { endpoint: endpoint.clone(), places, known: coordinators, token };
    let notices = preemption::notices(metadata);
    let orders = LeaveOrders { terminations, grace, notices };
    let (exit, links) = run_actor(core, shell, dial_context, orders).await;
    tracing::info!(reason = words(&exit), "leaving");
    // The last messages must arrive before the process ends.
    let mut finishing = JoinSet::new();
    links.into_iter().for_each(|link| {
        finishing.spawn(async move { link.finish().await });
    });
    finishing.join_all().await;
    endpoint.close("the worker is done").await;
    match exit {
        Exit::Dismissed => Ok(CleanExit::Dismissed),
        Exit::Drained => Ok(CleanExit::Drained),
        Exit::Overdue => Ok(CleanExit::Overdue),
        Exit::Refused(reason) => Err(WorkerError::Refused(reason)),
        Exit::Failed(reason) => Err(WorkerError::Failed(reason)),
    }
}

/// Why the worker ends, in words for its log.
fn words(exit: &Exit) -> &str {
    match exit {
        Exit::Dismissed => "the run is over",
        Exit::Drained => "the worker was told to leave",
        Exit::Overdue => "the worker was told to leave, and its time is over",
        Exit::Refused(reason) | Exit::Failed(reason) => reason,
    }
}

/// The core of the worker of this name.
fn core_of(name: NodeName, shell: &Shell, ends_with_run: bool) -> Core {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let unix_ms = since_epoch.map_or(0, |span| span.as_millis() as u64);
    let unix_ms_at_zero = unix_ms.saturating_sub(shell.began.elapsed().as_millis() as u64);
    let identity = WorkerIdentity { name, unix_ms_at_zero };
    let core = Core::new(identity, shell.device_host.pool.clone()).succeeding(shell.ended.clone());
    if ends_with_run { core.ending_with_run() } else { core }
}

/// Runs the actor until it ends.
async fn run_actor(
    core: Core,
    shell: Shell,
    dial_context: DialContext,
    orders: LeaveOrders,
) -> Ending {
    let (exit, ended) = tokio::sync::oneshot::channel();
    let endpoint = shell.endpoint.clone();
    let actor = WorkerActor::create(|context| WorkerActor::new(core, shell, exit, context));
    actix::spawn(run_acceptor(endpoint, actor.clone()));
    actix::spawn(drain::run(orders, actor.clone()));
    let link_events = LinkEvents { connected: actor.clone().recipient(), event: actor.recipient() };
    actix::spawn(coordinator_links::run(dial_context, link_events));
    let broken = |_| (Exit::Failed("the worker's actor stopped".into()), Vec::new());
    ended.await.unwrap_or_else(broken)
}

/// Brings the links of other workers to the actor.
async fn run_acceptor(endpoint: Arc<Endpoint>, actor: Addr<WorkerActor>) {
    while let Some(link) = endpoint.accept().await {
        if actor.send(PeerConnected(link)).await.is_err() {
            return;
        }
    }
}

/// Enrols with the first coordinator that answers. Asks again while none answers.
async fn enrol_anywhere(
    coordinators: &[HostPort],
    token: &JoinToken,
) -> Result<Credentials, WorkerError> {
    let began = Instant::now();
    // The key makes all attempts one node, which spends one use of the token.
    let key = NodeKey::create().map_err(EnrolmentError::from).map_err(EnrolError::from)?;
    loop {
        let mut may_pass = false;
        let mut last = WorkerError::Failed("no coordinator was named".into());
        for place in coordinators {
            let addresses = match place.resolve().await {
                Ok(addresses) => addresses,
                Err(error) => {
                    may_pass = true;
                    last = WorkerError::Failed(format!("{place}: {error}"));
                    continue;
                }
            };
            for address in addresses {
                match enrol_as(address, token, Role::Worker, &key).await {
                    Ok(credentials) => return Ok(credentials),
                    Err(error) => {
                        may_pass |= error.may_pass();
                        last = error.into();
                    }
                }
            }
        }
        if !may_pass || began.elapsed() > ENROL_TIMEOUT {
            return Err(last);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
