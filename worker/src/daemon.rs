//! The worker's shell: sockets, threads and clocks around the core.
//!
//! One thread runs the endpoint and an actor that owns the core; the device has its own thread, and
//! so has the loader. Messages enter as events, one at a time; every task that brings one waits for
//! the answer before it reads on, so a busy actor holds its peers back. Tensors are read into
//! buffers by the task of their stream and change hands by pointer.

mod actor;
mod event;
mod peer;
mod traffic;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use everstep_kernels::buffer::Pool;
use everstep_transport::identity::{JoinToken, Role, TokenError};
use everstep_transport::protocol::NodeName;
use everstep_transport::quic::{
    BindError, ConnectError, Endpoint, EnrolError, Expected, Link, Settings, enrol,
};

use crate::device::build::Place;
use crate::registry::Registry;
use crate::step::core::{Core, Identity};
use crate::step::event::Exit;
use actor::{Shell, WorkerActor};

/// How a worker daemon is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where coordinators listen; the first that answers is taken.
    pub coordinators: Vec<SocketAddr>,
    /// The join token.
    pub token: String,
    /// Where to listen for other workers; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where the model goes at the end, if this worker is asked to write it.
    pub dir: Option<PathBuf>,
    /// Overlap communication with compute. Off only to measure what that saves.
    pub overlap: bool,
}

/// Who the worker is, as soon as it listens.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The name in its certificate.
    pub name: NodeName,
    /// Where it listens.
    pub address: SocketAddr,
}

/// Why a worker ended before its run was over.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The join token cannot be read.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The coordinator did not admit the worker.
    #[error("the worker was not admitted to the cluster: {0}")]
    Enrol(#[from] EnrolError),
    /// No port could be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The address is one that no other worker could call.
    #[error("cannot listen on {0}: other workers must be able to call the address; name one")]
    Unspecified(SocketAddr),
    /// No coordinator could be reached.
    #[error("no coordinator can be reached: {0}")]
    Connect(#[from] ConnectError),
    /// The coordinator refused the worker.
    #[error("the coordinator refused this worker: {0}")]
    Refused(String),
    /// Something failed on the way.
    #[error("{0}")]
    Failed(String),
}

/// Data shards that are loaded ahead.
const PREFETCH: usize = 2;
/// Free memory that the buffer pool keeps, bytes.
const POOL_BYTES: usize = 64 << 20;
/// How long a worker goes on asking for a coordinator that does not answer yet.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Joins a cluster and works until it is dismissed. Blocks; calls `ready` once it listens.
///
/// # Errors
/// [`WorkerError`], in words for the user.
pub fn run(
    options: Options,
    registry: Arc<Registry>,
    ready: impl FnOnce(&Ready),
) -> Result<(), WorkerError> {
    actix::System::new().block_on(work(options, registry, ready))
}

async fn work(
    options: Options,
    registry: Arc<Registry>,
    ready: impl FnOnce(&Ready),
) -> Result<(), WorkerError> {
    if options.listen.ip().is_unspecified() {
        return Err(WorkerError::Unspecified(options.listen));
    }
    let token: JoinToken = options.token.parse()?;
    let incarnation = random();
    let (credentials, coordinator) = enrol_anywhere(&options.coordinators, &token).await?;
    let name = credentials.identity().name.clone();
    let settings = Settings::for_address(options.listen.ip());
    let endpoint = Arc::new(Endpoint::bind(options.listen, &credentials, settings, None)?);
    let address = endpoint.local_address();
    ready(&Ready { name: name.clone(), address });
    let expected = Expected::Role(Role::Coordinator);
    let link = endpoint.connect(coordinator, &expected).await?;
    tracing::info!(%name, %address, %coordinator, "joined");

    let (dir, overlap) = (options.dir, options.overlap);
    let place = Place { incarnation, address, dir, overlap, prefetch: PREFETCH };
    let exit = attend(endpoint.clone(), link.clone(), registry, (name, place)).await;
    tracing::info!(?exit, "leaving");
    // The last word must arrive before the process goes.
    link.finish().await;
    endpoint.close("the worker is done").await;
    match exit {
        Exit::Dismissed => Ok(()),
        Exit::Refused(reason) => Err(WorkerError::Refused(reason)),
        Exit::Failed(reason) => Err(WorkerError::Failed(reason)),
    }
}

/// Runs the actor to its end.
async fn attend(
    endpoint: Arc<Endpoint>,
    coordinator: Link,
    registry: Arc<Registry>,
    (name, place): (NodeName, Place),
) -> Exit {
    let pool = Pool::new(POOL_BYTES);
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let unix_ms_at_zero = since_epoch.map_or(0, |span| span.as_millis() as u64);
    let core = Core::new(Identity { name: name.clone(), unix_ms_at_zero }, pool.clone());
    let began = Instant::now();
    let shell = Shell { endpoint, coordinator, registry, name, place, pool, began };
    let (exit, ended) = tokio::sync::oneshot::channel();
    WorkerActor::launch(core, shell, exit);
    ended.await.unwrap_or_else(|_| Exit::Failed("the worker's actor stopped".into()))
}

/// Takes the first coordinator that answers, and goes on asking while none does.
async fn enrol_anywhere(
    coordinators: &[SocketAddr],
    token: &JoinToken,
) -> Result<(everstep_transport::identity::Credentials, SocketAddr), WorkerError> {
    let began = Instant::now();
    let mut last = WorkerError::Failed("no coordinator was named".into());
    loop {
        for address in coordinators {
            match enrol(*address, token).await {
                Ok(credentials) => return Ok((credentials, *address)),
                Err(error) => last = error.into(),
            }
        }
        let absent = matches!(
            &last,
            WorkerError::Enrol(EnrolError::Connect(
                ConnectError::NoAnswer { .. } | ConnectError::Busy { .. }
            ))
        );
        if !absent || began.elapsed() > CONNECT_PATIENCE {
            return Err(last);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A number that no other incarnation draws.
fn random() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    u64::from_le_bytes(bytes)
}
