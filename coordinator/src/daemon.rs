//! The coordinator's process: gives a node among the coordinators a clock, links, a log and files.
//!
//! Input: a directory and an address. Output: a cluster that workers can join with a token, until
//! SIGTERM or SIGINT. The process decides nothing. Every message, loss and tick goes into
//! [`crate::node::Node`], and the process carries out the node's effects.
//!
//! One coordinator founds a cluster, and others join it. The [log](crate::log) holds what they
//! agree on, and a history file of its own holds the events. A coordinator that starts again in its
//! directory, after whatever end, goes on where it was. A lone coordinator leads at once, in a new
//! term. A file that the process cannot read or write ends it, because it must not promise what it
//! cannot keep.

mod acceptor;
mod actor;
mod admission;
mod api;
mod dial;
mod error;
#[cfg(feature = "failpoints")]
pub mod failpoint;
mod files;
mod history_file;
mod join;
mod membership_file;
mod operator_folder;
mod pending_reads;
mod recover;
mod renewal;
#[cfg(test)]
mod tests {
    mod golden;
}

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, Addr, AsyncContext, MailboxError};
use everstep_transport::identity::{Credentials, Enrolment, UnixTime};
use everstep_transport::protocol::CoordinatorView;
use everstep_transport::quic::{BoundSocket, Endpoint, HostPort, Settings};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::yield_now;
use tokio::time::sleep_until;

use self::acceptor::Acceptor;
pub(crate) use self::actor::CoordinatorActor;
use self::actor::{Leave, RestoredNode, Stop, Tick};
use self::admission::AdmissionRequest;
pub(crate) use self::api::{OperatorRequest, Query, QueryContext, RequestError, RequestResult};
pub use self::error::{AnswerError, CoordinatorError, JoinError};
use self::files::{Cluster, LOG_FILE, MEMBERSHIP_FILE};
pub use self::history_file::HistoryFileError;
pub use self::membership_file::MembershipFileError;
use self::membership_file::{Membership, MembershipFile};
pub(crate) use self::pending_reads::LinearizableRead;
pub use self::recover::{RecoverError, Recovered, recover};
use crate::http::{Api, ApiPort, BoundApi, HttpOptions};
use crate::node::NODE_TICK;
use crate::state;

/// How often the process asks the actor whether it has stopped.
const ACTOR_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// How long a stopping coordinator waits for another one to lead.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(1);

/// The options of a coordinator's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorOptions {
    /// The folder with its files: `authority/`, `operator/`, `join.token`, `coordinator.token`,
    /// `api.token`, `coordinators`, `log.redb`, `history.log`.
    pub dir: PathBuf,
    /// The address to listen on. Port 0 stands for any free port. Workers find a restarted
    /// coordinator where it was.
    pub listen: SocketAddr,
    /// The state that it starts from.
    pub start: Start,
    /// The options of its HTTP API. None: no API.
    pub http: Option<HttpOptions>,
}

/// The state that a coordinator starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// The files in its directory.
    Again,
    /// Nothing: it founds a cluster.
    Bootstrap {
        /// The cluster exists for one run, and dismisses its workers afterwards.
        ephemeral: bool,
    },
    /// Nothing: it joins a cluster as a further coordinator.
    Join {
        /// A token that admits coordinators.
        token: String,
        /// The places where some coordinators of the cluster listen.
        coordinators: Vec<HostPort>,
    },
}

/// The addresses at which a coordinator listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The address for workers, operators and other coordinators.
    pub links: SocketAddr,
    /// The address for HTTP. None: no API.
    pub api: Option<SocketAddr>,
}

/// Why a coordinator has ended in good order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// SIGTERM told it to stop.
    Stopped,
    /// SIGINT told it to stop.
    Interrupted,
    /// The other coordinators go on without it.
    Removed,
}

/// The addresses of the coordinators when the one of this directory last heard of them.
///
/// # Errors
/// [`MembershipFileError`]: the directory has no membership file, or a damaged one.
pub fn addresses(dir: &Path) -> Result<Vec<SocketAddr>, MembershipFileError> {
    let membership = MembershipFile::load(&dir.join(MEMBERSHIP_FILE))?;
    Ok(membership.membership().members.iter().map(|view| view.address).collect())
}

/// The coordinator of this directory with the addresses at which it listened, as it last listed
/// itself. `None` if it was never admitted to a cluster, or was removed from it.
///
/// # Errors
/// [`MembershipFileError`]: the directory has no membership file, or a damaged one.
pub fn own_view(dir: &Path) -> Result<Option<CoordinatorView>, MembershipFileError> {
    let file = MembershipFile::load(&dir.join(MEMBERSHIP_FILE))?;
    let Membership { id, members, .. } = file.membership();
    Ok(members.iter().find(|view| Some(view.id) == *id).cloned())
}

/// The file of the log in a coordinator's directory. It holds everything that the coordinator
/// agreed to.
pub fn log_file(dir: &Path) -> PathBuf {
    dir.join(LOG_FILE)
}

/// Runs a coordinator until SIGTERM or SIGINT, until the cluster removes it, or until its disk
/// fails. Blocks. Calls `ready` with the addresses once workers can join. Listens at `api_port` if
/// a coordinator of this process did before, else leaves the port there.
///
/// # Errors
/// [`CoordinatorError`], in words for the user.
pub fn run(
    options: CoordinatorOptions,
    api_port: &mut ApiPort,
    ready: impl FnOnce(Addresses),
) -> Result<Ended, CoordinatorError> {
    #[cfg(feature = "failpoints")]
    failpoint::arm()?;
    let CoordinatorOptions { dir, listen, start, http } = options;
    if listen.ip().is_unspecified() {
        return Err(CoordinatorError::Unspecified(listen));
    }
    http.iter().try_for_each(HttpOptions::check)?;
    let mut bind = || bind_addresses(listen, http.as_ref(), api_port);
    actix::System::new().block_on(async {
        let mut stop = Signals::install()?;
        let (mut cluster, seeds, bound, _lock) = match start {
            Start::Again => (Cluster::load(dir)?, Vec::new(), None, None),
            Start::Bootstrap { ephemeral } => {
                files::refuse_existing(&dir)?;
                let bound = bind()?;
                let lock = files::prepare(&dir)?;
                (Cluster::create(dir, ephemeral)?, Vec::new(), Some(bound), Some(lock))
            }
            Start::Join { token, coordinators } => {
                let adopted = join::adopt(dir, &token, &coordinators, listen, &mut bind);
                let (cluster, bound, lock) = tokio::select! {
                    adopted = adopted => adopted?,
                    told = stop.received() => return Ok(told),
                };
                (cluster, coordinators, Some(bound), Some(lock))
            }
        };
        files::warn_of_onlookers(&cluster.dir);
        if cluster.id().is_none() && seeds.is_empty() {
            return Err(CoordinatorError::NotJoined(cluster.dir));
        }
        // First, so that the second of two coordinators in one directory comes no further.
        let stored = cluster.id().map(|id| cluster.stored_history(id)).transpose()?;
        let settings = Settings::for_address(listen.ip());
        let credentials = cluster.renew_credentials()?;
        let (port, bound_api) = bound.map_or_else(bind, Ok)?;
        let (endpoint, applicants) = open(port, &cluster, &credentials, settings)?;
        let api =
            bound_api.map(|it| it.api(&cluster.dir, cluster.authority.clone())).transpose()?;
        let addresses =
            Addresses { links: endpoint.local_address(), api: api.as_ref().map(Api::address) };
        let own = own(&cluster, addresses);
        let authority = cluster.authority.clone();
        let stored = match stored {
            Some(stored) => stored,
            None => {
                let id = tokio::select! {
                    id = join::ask(&endpoint, &mut cluster, &own, &seeds) => id?,
                    told = stop.received() => return Ok(told),
                };
                cluster.stored_history(id)?
            }
        };
        cluster.list(&own)?;
        let restored = RestoredNode::new(cluster, own, stored, applicants)?;
        let endpoint = Arc::new(endpoint);
        let are_due = |held: &Credentials| held.are_due(UnixTime::now());
        let every = renewal::CERTIFICATE_CHECK_INTERVAL;
        let renewals = tokio::spawn(renewal::run(endpoint.clone(), authority, every, are_due));
        let ended = run_actor(endpoint, api, restored, stop, || ready(addresses)).await;
        renewals.abort();
        ended
    })
}

/// The addresses of links and of HTTP. The process takes them before it spends anything: no other
/// process takes them meanwhile, and every problem with them shows first.
type BoundAddresses = (BoundSocket, Option<BoundApi>);

fn bind_addresses(
    listen: SocketAddr,
    http: Option<&HttpOptions>,
    api_port: &mut ApiPort,
) -> Result<BoundAddresses, CoordinatorError> {
    let port = BoundSocket::bind(listen, &Settings::for_address(listen.ip()))?;
    Ok((port, http.map(|http| BoundApi::open(http, api_port)).transpose()?))
}

/// Opens the endpoint, and the channel of the nodes that ask it for a certificate.
fn open(
    port: BoundSocket,
    cluster: &Cluster,
    credentials: &Credentials,
    settings: Settings,
) -> Result<(Endpoint, mpsc::Receiver<AdmissionRequest>), CoordinatorError> {
    let (gate, applicants) = admission::admission_gate();
    let enrolment = Enrolment::decided_by(cluster.authority.clone(), gate);
    let endpoint = Endpoint::open(port, credentials, settings, Some(enrolment))?;
    endpoint.expect_from(cluster.membership.membership().members.iter().map(|it| it.address.ip()));
    Ok((endpoint, applicants))
}

/// The name and the addresses by which the other coordinators know this one.
fn own(cluster: &Cluster, Addresses { links, api }: Addresses) -> state::CoordinatorInfo {
    let membership = cluster.membership.membership();
    // An API that listens on all addresses is at the address of the links.
    let named = |api: SocketAddr| match api.ip().is_unspecified() {
        true => (links.ip(), api.port()).into(),
        false => api,
    };
    state::CoordinatorInfo {
        name: membership.name.clone(),
        incarnation: membership.incarnation,
        address: links,
        api: api.map(named),
        log_format: *state::LOG_FORMATS.end(),
    }
}

/// Serves until the coordinator ends.
async fn run_actor(
    endpoint: Arc<Endpoint>,
    api: Option<Api>,
    restored: RestoredNode,
    stop: Signals,
    ready: impl FnOnce(),
) -> Result<Ended, CoordinatorError> {
    let (count, backlog) = watch::channel(0);
    let (missing, wanted) = watch::channel(Vec::new());
    let (own, at) = (restored.id, endpoint.clone());
    // On the network's thread: at rest, waking another thread for each message would cost more than
    // the messages.
    let coordinator = CoordinatorActor::create(move |context| {
        CoordinatorActor::new(restored, at, count, missing, context.address())
    });
    let links = endpoint.local_address();
    let served = async {
        let api = api.map(|api| api.serve(coordinator.clone(), links)).transpose()?;
        ready();
        let acceptor = Acceptor::new(coordinator.clone(), backlog);
        let calls = tokio::spawn(dial::run(own, endpoint.clone(), wanted, acceptor.clone()));
        let served = serve(&endpoint, acceptor, stop).await;
        calls.abort();
        if let Some(api) = api {
            api.stop().await;
        }
        served
    }
    .await;
    endpoint.close("the coordinator stops").await;
    // The actor holds the directory's files until it is dropped.
    coordinator.do_send(Stop);
    while coordinator.connected() {
        yield_now().await;
    }
    served
}

async fn serve(
    endpoint: &Endpoint,
    acceptor: Acceptor,
    mut stop: Signals,
) -> Result<Ended, CoordinatorError> {
    let broken = |_: MailboxError| CoordinatorError::Broken;
    let coordinator: Addr<CoordinatorActor> = acceptor.coordinator();
    let mut look = Instant::now();
    let mut leaving: Option<(Instant, Ended)> = None;
    loop {
        tokio::select! {
            told = stop.received(), if leaving.is_none() => leaving = Some((Instant::now(), told)),
            () = sleep_until(look.into()) => {
                if coordinator.send(Tick).await.map_err(broken)?? {
                    return Ok(Ended::Removed);
                }
                let every = if leaving.is_some() { NODE_TICK } else { ACTOR_CHECK_INTERVAL };
                look = Instant::now() + every;
                if let Some((since, told)) = leaving
                    && (coordinator.send(Leave).await.map_err(broken)?
                        || since.elapsed() > HAND_OVER_TIMEOUT)
                {
                    return Ok(told);
                }
            }
            Some(link) = endpoint.accept() => acceptor.admit(link).await,
        }
    }
}

/// The signals that end the process in good order.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn install() -> Result<Self, CoordinatorError> {
        let listen = |kind| signal(kind).map_err(CoordinatorError::Signals);
        let terminate = listen(SignalKind::terminate())?;
        Ok(Self { terminate, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn received(&mut self) -> Ended {
        tokio::select! {
            _ = self.terminate.recv() => Ended::Stopped,
            _ = self.interrupt.recv() => Ended::Interrupted,
        }
    }
}
