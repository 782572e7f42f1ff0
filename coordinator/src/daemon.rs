//! The coordinator's process: gives the core a clock, links, a log and files.
//!
//! Input: a directory and an address. Output: a cluster that workers can join with a token, until
//! SIGTERM or SIGINT. It decides nothing: every message, loss and tick goes into
//! [`crate::core::Core`], and what comes out is done.
//!
//! There is one replica: `Coordinator::propose` applies an entry where it stands, in memory, so a
//! coordinator that is started again knows its cluster but no run. Raft fills that one function: it
//! appends the entry to the replicated log, durably, on a thread of its own, and each
//! replica's core is given the entry when it is committed. Then a proposal can be late or lost, and
//! a leader proposes again what its conditions still ask for.

mod actor;
mod files;

use std::net::SocketAddr;
use std::path::PathBuf;

use actix::{Actor, Addr, Arbiter, MailboxError};
use everstep_transport::identity::{Enrolment, IdentityError, TokenError};
use everstep_transport::quic::{BindError, Endpoint, Link, Settings};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;

use self::actor::{Arrival, Coordinator, Happening};
use self::files::Cluster;
use crate::core::{Input, LinkId, TICK};

/// How to run a coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where its files are: `authority/`, `join.token`, `operator/`.
    pub dir: PathBuf,
    /// Where to listen; port 0 for any free port.
    pub listen: SocketAddr,
    /// Make a new cluster in `dir`, instead of going on with the one that is there.
    pub bootstrap: bool,
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
    /// The address could not be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// SIGTERM and SIGINT could not be waited for.
    #[error("signals cannot be received: {0}")]
    Signals(std::io::Error),
    /// The actor is gone: it met a broken invariant, which its log tells.
    #[error("the coordinator stopped at a broken invariant; its log says which")]
    Broken,
}

/// Runs a coordinator until SIGTERM or SIGINT; blocks. `ready` is told the address once workers can
/// join.
///
/// # Errors
/// [`CoordinatorError`], in words for the user.
pub fn run(options: Options, ready: impl FnOnce(SocketAddr)) -> Result<(), CoordinatorError> {
    let cluster =
        if options.bootstrap { Cluster::create(options.dir) } else { Cluster::load(options.dir) }?;
    let credentials = cluster.renew_credentials()?;
    let system = actix::System::new();
    system.block_on(async {
        let settings = Settings::for_address(options.listen.ip());
        let enrolment = Enrolment::new(cluster.authority.into(), vec![cluster.token.accepted()]);
        let endpoint = Endpoint::bind(options.listen, &credentials, settings, Some(enrolment))?;
        // An arbiter of its own: handshakes never make heartbeats wait.
        let arbiter = Arbiter::new();
        let coordinator = Coordinator::start_in_arbiter(&arbiter.handle(), |_| Coordinator::new());
        let stop = Signals::install()?;
        ready(endpoint.local_address());
        let served = serve(&endpoint, &coordinator, stop).await;
        endpoint.close("the coordinator stops").await;
        arbiter.stop();
        arbiter.join().map_err(|_| CoordinatorError::Broken)?;
        served
    })
}

async fn serve(
    endpoint: &Endpoint,
    coordinator: &Addr<Coordinator>,
    mut stop: Signals,
) -> Result<(), CoordinatorError> {
    let broken = |_: MailboxError| CoordinatorError::Broken;
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut links = (1..).map(LinkId);
    loop {
        tokio::select! {
            () = stop.received() => return Ok(()),
            _ = ticks.tick() => {
                coordinator.send(Happening(Input::Tick)).await.map_err(broken)?;
            }
            Some(link) = endpoint.accept() => {
                let id = links.next().expect("more numbers than links");
                let arrival = Arrival { id, link: link.clone() };
                coordinator.send(arrival).await.map_err(broken)?;
                tokio::spawn(listen_to(id, link, coordinator.clone()));
            }
        }
    }
}

/// Carries what a peer says to the actor, one message at a time, so that a peer who talks too much
/// waits on its own link.
async fn listen_to(id: LinkId, link: Link, coordinator: Addr<Coordinator>) {
    loop {
        let (input, over) = match link.receive().await {
            Ok(message) => (Input::Message { from: id, message }, false),
            Err(error) => (Input::Disconnected { link: id, reason: error.to_string() }, true),
        };
        if coordinator.send(Happening(input)).await.is_err() || over {
            return;
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
