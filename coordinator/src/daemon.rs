//! The coordinator's process: gives the core a clock, links, a log and files.
//!
//! Input: a directory and an address. Output: a cluster that workers can join with a token, until
//! SIGTERM or SIGINT. It decides nothing: every message, loss and tick goes into
//! [`crate::core::Core`], and what comes out is done.
//!
//! There is one replica. What its core proposes goes to the [log](crate::log), and comes back when
//! it is durable; metrics lines go to a journal of their own. Started again in its directory, after
//! whatever end, a coordinator goes on with its run, in a new term. A file that cannot be read or
//! written ends it: what it cannot keep, it must not promise.

mod actor;
mod asked;
#[cfg(feature = "failpoints")]
pub mod failpoint;
mod files;
mod journal;
mod resume;

use std::net::SocketAddr;
use std::path::PathBuf;

use actix::{Actor, Addr, Arbiter, AsyncContext, MailboxError};
use everstep_transport::identity::{Enrolment, IdentityError, Role, Terms, TokenError};
use everstep_transport::quic::{BindError, Endpoint, Link, Settings};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

pub(crate) use self::actor::Coordinator;
use self::actor::{Arrival, Happening, Tick};
pub(crate) use self::asked::{Ask, Known, Petition};
use self::files::Cluster;
pub use self::journal::JournalError;
use crate::core::{Input, LinkId, TICK};
use crate::http::{self, Api, HttpError};
use crate::log::LogError;

/// While so many entries wait for the disk, peers' messages wait too: they would bring more.
const MAX_BACKLOG: usize = 4096;

/// How to run a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where its files are: `authority/`, `join.token`, `api.token`, `operator/`, `log.redb`,
    /// `metrics.log`.
    pub dir: PathBuf,
    /// Where to listen; port 0 for any free port. A coordinator that is started again is found by
    /// its workers where it was.
    pub listen: SocketAddr,
    /// Make a new cluster in `dir`, instead of going on with the one that is there.
    pub bootstrap: bool,
    /// Where its HTTP API is, if it has one.
    pub http: Option<http::Options>,
}

/// Where a coordinator listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// For workers and operators.
    pub links: SocketAddr,
    /// For HTTP.
    pub api: Option<SocketAddr>,
}

/// Why a coordinator does not run.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// There is no cluster in the directory.
    #[error("nothing to start from in {}; use --bootstrap", .0.display())]
    NothingThere(PathBuf),
    /// There is a cluster already.
    #[error("there is a cluster in {} already; start without --bootstrap", .0.display())]
    AlreadyThere(PathBuf),
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// `join.token` holds no token.
    #[error("{}: {problem}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: TokenError,
    },
    /// Credentials could not be made or read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The log could not be read or written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The journal of metrics lines could not be read or written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The address could not be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// There can be no HTTP API as it was asked for.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// SIGTERM and SIGINT could not be waited for.
    #[error("signals cannot be received: {0}")]
    Signals(std::io::Error),
    /// The actor is gone: it met a broken invariant, which its log tells.
    #[error("the coordinator stopped at a broken invariant; its log says which")]
    Broken,
    /// The failpoints cannot be set.
    #[cfg(feature = "failpoints")]
    #[error(transparent)]
    Failpoints(#[from] failpoint::FailpointError),
}

/// Runs a coordinator until SIGTERM or SIGINT, or until its disk fails; blocks. `ready` is told
/// where it listens once workers can join.
///
/// # Errors
/// [`CoordinatorError`], in words for the user.
pub fn run(options: Options, ready: impl FnOnce(Addresses)) -> Result<(), CoordinatorError> {
    #[cfg(feature = "failpoints")]
    failpoint::arm()?;
    let Options { dir, listen, bootstrap, http } = options;
    http.iter().try_for_each(http::Options::check)?;
    let cluster =
        if bootstrap { Cluster::create(dir.clone()) } else { Cluster::load(dir.clone()) }?;
    // First of all: of two coordinators in one directory, the second comes no further.
    let resumed = resume::resume(&cluster)?;
    let credentials = cluster.renew_credentials()?;
    let system = actix::System::new();
    system.block_on(async {
        let settings = Settings::for_address(listen.ip());
        let workers = cluster.token.accepted(Terms::unlimited(Role::Worker));
        let enrolment = Enrolment::new(cluster.authority.into(), vec![workers]);
        let endpoint = Endpoint::bind(listen, &credentials, settings, Some(enrolment))?;
        let api = http.map(|http| Api::open(&http, &dir)).transpose()?;
        let stop = Signals::install()?;
        // An arbiter of its own: handshakes never make heartbeats wait.
        let arbiter = Arbiter::new();
        let (count, backlog) = watch::channel(0);
        let coordinator = Coordinator::start_in_arbiter(&arbiter.handle(), |context| {
            Coordinator::new(resumed, count, context.address())
        });
        let links = endpoint.local_address();
        let addresses = Addresses { links, api: api.as_ref().map(Api::address) };
        let served = async {
            let api = api.map(|api| api.serve(coordinator.clone(), links)).transpose()?;
            ready(addresses);
            let served = serve(&endpoint, Desk { coordinator, backlog }, stop).await;
            if let Some(api) = api {
                api.stop(true).await;
            }
            served
        }
        .await;
        endpoint.close("the coordinator stops").await;
        arbiter.stop();
        arbiter.join().map_err(|_| CoordinatorError::Broken)?;
        served
    })
}

/// Where a peer's messages are taken.
#[derive(Clone)]
struct Desk {
    coordinator: Addr<Coordinator>,
    /// How many entries wait for the disk.
    backlog: watch::Receiver<usize>,
}

async fn serve(endpoint: &Endpoint, desk: Desk, mut stop: Signals) -> Result<(), CoordinatorError> {
    let broken = |_: MailboxError| CoordinatorError::Broken;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut links = (1..).map(LinkId);
    loop {
        tokio::select! {
            () = stop.received() => return Ok(()),
            _ = ticks.tick() => desk.coordinator.send(Tick).await.map_err(broken)??,
            Some(link) = endpoint.accept() => {
                let id = links.next().expect("more numbers than links");
                let arrival = Arrival { id, link: link.clone() };
                desk.coordinator.send(arrival).await.map_err(broken)?;
                tokio::spawn(desk.clone().listen_to(id, link));
            }
        }
    }
}

impl Desk {
    /// Carries what a peer says to the actor, one message at a time, so that a peer who talks too
    /// much waits on its own link.
    async fn listen_to(mut self, id: LinkId, link: Link) {
        loop {
            let (input, over) = match link.receive().await {
                Ok(message) => (Input::Message { from: id, message }, false),
                Err(error) => {
                    let (gone, reason) = (error.is_gone(), error.to_string());
                    (Input::Disconnected { link: id, gone, reason }, true)
                }
            };
            let room = self.backlog.wait_for(|waiting| *waiting < MAX_BACKLOG).await.is_ok();
            if !room || self.coordinator.send(Happening(input)).await.is_err() || over {
                return;
            }
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

    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
