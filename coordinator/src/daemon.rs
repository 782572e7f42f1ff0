//! The coordinator's process: gives a seat among the coordinators a clock, links, a log and files.
//!
//! Input: a directory and an address. Output: a cluster that workers can join with a token, until
//! SIGTERM or SIGINT. It decides nothing: every message, loss and tick goes into
//! [`crate::seat::Seat`], and what comes out is done.
//!
//! A cluster is founded by one coordinator; others join it. What they agree on is in the
//! [log](crate::log), and what has happened in a journal of its own. Started again in its
//! directory, after whatever end, a coordinator goes on where it was; one that is alone leads at
//! once, in a new term. A file that cannot be read or written ends it: what it cannot keep, it must
//! not promise.

mod actor;
mod asked;
mod book;
mod desk;
mod dial;
mod error;
#[cfg(feature = "failpoints")]
pub mod failpoint;
mod files;
mod gate;
mod join;
mod journal;
mod looks;
mod operator_folder;
mod recover;
mod renewal;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, Addr, AsyncContext, MailboxError};
use everstep_transport::identity::{Credentials, Enrolment, UnixTime};
use everstep_transport::quic::{Endpoint, HostPort, Port, Settings};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::yield_now;
use tokio::time::sleep_until;

pub(crate) use self::actor::Coordinator;
use self::actor::{Leave, Outfit, Stop, Tick};
pub(crate) use self::asked::{Ask, Denial, Known, Petition};
use self::book::Book;
pub use self::book::BookError;
use self::desk::Desk;
pub use self::error::CoordinatorError;
use self::files::{BOOK_FILE, Cluster, LOG_FILE};
use self::gate::Admission;
pub use self::journal::JournalError;
pub(crate) use self::looks::Look;
pub use self::recover::{RecoverError, Recovered, recover};
use crate::http::{self, Api, Door};
use crate::seat::TICK;
use crate::state;

/// How often the actor is asked whether it has stopped.
const LOOK: Duration = Duration::from_millis(500);
/// How long a coordinator that stops waits for another one to lead.
const HANDING_OVER: Duration = Duration::from_secs(1);

/// How to run a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where its files are: `authority/`, `operator/`, `join.token`, `coordinator.token`,
    /// `api.token`, `coordinators`, `log.redb`, `history.log`.
    pub dir: PathBuf,
    /// Where to listen; port 0 for any free port. A coordinator that is started again is found by
    /// its workers where it was.
    pub listen: SocketAddr,
    /// What it begins with.
    pub start: Start,
    /// Where its HTTP API is, if it has one.
    pub http: Option<http::Options>,
}

/// What a coordinator begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// What is in its directory.
    Again,
    /// Nothing: it founds a cluster.
    Bootstrap {
        /// It is there for one run, and dismisses its workers afterwards.
        ephemeral: bool,
    },
    /// Nothing: it becomes one of a cluster's coordinators.
    Join {
        /// Admits coordinators.
        token: String,
        /// Where some of them listen.
        coordinators: Vec<HostPort>,
    },
}

/// Where a coordinator listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// For workers and operators.
    pub links: SocketAddr,
    /// For HTTP.
    pub api: Option<SocketAddr>,
}

/// How a coordinator has ended in good order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// SIGTERM told it to stop.
    Stopped,
    /// SIGINT did.
    Interrupted,
    /// The others go on without it.
    Removed,
}

/// Where the coordinators were when the one of this directory last heard of them.
///
/// # Errors
/// [`BookError`]: it keeps no book, or a damaged one.
pub fn addresses(dir: &Path) -> Result<Vec<SocketAddr>, BookError> {
    let book = Book::load(&dir.join(BOOK_FILE))?;
    Ok(book.content().members.iter().map(|view| view.address).collect())
}

/// The file of the log in a coordinator's directory. What the coordinator has agreed to is there.
pub fn log_file(dir: &Path) -> PathBuf {
    dir.join(LOG_FILE)
}

/// Runs a coordinator until SIGTERM or SIGINT, until it is removed, or until its disk fails;
/// blocks. `ready` is told where it listens once workers can join.
///
/// # Errors
/// [`CoordinatorError`], in words for the user.
pub fn run(options: Options, ready: impl FnOnce(Addresses)) -> Result<Ended, CoordinatorError> {
    #[cfg(feature = "failpoints")]
    failpoint::arm()?;
    let Options { dir, listen, start, http } = options;
    if listen.ip().is_unspecified() {
        return Err(CoordinatorError::Unspecified(listen));
    }
    http.iter().try_for_each(http::Options::check)?;
    actix::System::new().block_on(async {
        let mut stop = Signals::install()?;
        let (mut cluster, doors, taken, _lock) = match start {
            Start::Again => (Cluster::load(dir)?, Vec::new(), None, None),
            Start::Bootstrap { ephemeral } => {
                files::refuse_existing(&dir)?;
                let taken = take_addresses(listen, http.as_ref())?;
                let lock = files::prepare(&dir)?;
                (Cluster::create(dir, ephemeral)?, Vec::new(), Some(taken), Some(lock))
            }
            Start::Join { token, coordinators } => {
                let adopted = join::adopt(dir, &token, &coordinators, (listen, http.as_ref()));
                let (cluster, taken, lock) = tokio::select! {
                    adopted = adopted => adopted?,
                    told = stop.received() => return Ok(told),
                };
                (cluster, coordinators, Some(taken), Some(lock))
            }
        };
        files::warn_of_onlookers(&cluster.dir);
        if cluster.id().is_none() && doors.is_empty() {
            return Err(CoordinatorError::NotJoined(cluster.dir));
        }
        // First of all: of two coordinators in one directory, the second comes no further.
        let past = cluster.id().map(|id| cluster.past(id)).transpose()?;
        let settings = Settings::for_address(listen.ip());
        let credentials = cluster.renew_credentials()?;
        let (port, door) = match taken {
            Some(taken) => taken,
            None => take_addresses(listen, http.as_ref())?,
        };
        let (endpoint, applicants) = open(port, &cluster, &credentials, settings)?;
        let api = door.map(|door| door.api(&cluster.dir, cluster.authority.clone())).transpose()?;
        let addresses =
            Addresses { links: endpoint.local_address(), api: api.as_ref().map(Api::address) };
        let own = own(&cluster, addresses);
        let authority = cluster.authority.clone();
        let past = match past {
            Some(past) => past,
            None => {
                let id = tokio::select! {
                    id = join::ask(&endpoint, &mut cluster, &own, &doors) => id?,
                    told = stop.received() => return Ok(told),
                };
                cluster.past(id)?
            }
        };
        cluster.list(&own)?;
        let outfit = Outfit::new(cluster, own, past, applicants)?;
        let endpoint = Arc::new(endpoint);
        let are_due = |held: &Credentials| held.are_due(UnixTime::now());
        let renewals = renewal::attend(endpoint.clone(), authority, renewal::PAUSE, are_due);
        let renewals = tokio::spawn(renewals);
        let ended = attend(endpoint, api, outfit, stop, || ready(addresses)).await;
        renewals.abort();
        ended
    })
}

/// The addresses of links and of HTTP are taken before anything is spent: nobody else takes them
/// meanwhile, and whatever can be wrong with them is found first.
type Taken = (Port, Option<Door>);

fn take_addresses(
    listen: SocketAddr,
    http: Option<&http::Options>,
) -> Result<Taken, CoordinatorError> {
    let port = Port::bind(listen, &Settings::for_address(listen.ip()))?;
    Ok((port, http.map(Door::open).transpose()?))
}

/// The endpoint, and the channel of the nodes that ask it for a certificate.
fn open(
    port: Port,
    cluster: &Cluster,
    credentials: &Credentials,
    settings: Settings,
) -> Result<(Endpoint, mpsc::Receiver<Admission>), CoordinatorError> {
    let (gate, applicants) = gate::gate();
    let enrolment = Enrolment::decided_by(cluster.authority.clone(), gate);
    let endpoint = Endpoint::open(port, credentials, settings, Some(enrolment))?;
    endpoint.expect_from(cluster.book.content().members.iter().map(|it| it.address.ip()));
    Ok((endpoint, applicants))
}

/// This coordinator, as the others are to know it.
fn own(cluster: &Cluster, Addresses { links, api }: Addresses) -> state::Coordinator {
    let content = cluster.book.content();
    // Whoever listens everywhere is found where its links are.
    let named = |api: SocketAddr| match api.ip().is_unspecified() {
        true => (links.ip(), api.port()).into(),
        false => api,
    };
    state::Coordinator {
        name: content.name.clone(),
        incarnation: content.incarnation,
        address: links,
        api: api.map(named),
    }
}

/// Serves until it is over.
async fn attend(
    endpoint: Arc<Endpoint>,
    api: Option<Api>,
    outfit: Outfit,
    stop: Signals,
    ready: impl FnOnce(),
) -> Result<Ended, CoordinatorError> {
    let (count, backlog) = watch::channel(0);
    let (missing, wanted) = watch::channel(Vec::new());
    let (own, at) = (outfit.id, endpoint.clone());
    // On the network's thread: at rest, waking another thread for each message would cost more than
    // the messages.
    let coordinator = Coordinator::create(move |context| {
        Coordinator::new(outfit, at, count, missing, context.address())
    });
    let links = endpoint.local_address();
    let served = async {
        let api = api.map(|api| api.serve(coordinator.clone(), links)).transpose()?;
        ready();
        let desk = Desk::new(coordinator.clone(), backlog);
        let calls = tokio::spawn(dial::attend(own, endpoint.clone(), wanted, desk.clone()));
        let served = serve(&endpoint, desk, stop).await;
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
    desk: Desk,
    mut stop: Signals,
) -> Result<Ended, CoordinatorError> {
    let broken = |_: MailboxError| CoordinatorError::Broken;
    let coordinator: Addr<Coordinator> = desk.coordinator();
    let mut look = Instant::now();
    let mut leaving: Option<(Instant, Ended)> = None;
    loop {
        tokio::select! {
            told = stop.received(), if leaving.is_none() => leaving = Some((Instant::now(), told)),
            () = sleep_until(look.into()) => {
                if coordinator.send(Tick).await.map_err(broken)?? {
                    return Ok(Ended::Removed);
                }
                look = Instant::now() + if leaving.is_some() { TICK } else { LOOK };
                if let Some((since, told)) = leaving
                    && (coordinator.send(Leave).await.map_err(broken)?
                        || since.elapsed() > HANDING_OVER)
                {
                    return Ok(told);
                }
            }
            Some(link) = endpoint.accept() => desk.admit(link).await,
        }
    }
}

/// What ends the process in good order.
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
