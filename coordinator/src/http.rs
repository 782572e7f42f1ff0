//! The HTTP API of a coordinator: probes, figures for Prometheus, and what operators ask for.
//!
//! In: an address, a token, and the coordinator's actor to ask. Out: answers, until it is told to
//! stop. It decides nothing: what it tells is rendered from a plain `Overview`, and what it is
//! asked to change, it says to the core as any operator would: once, if the client names its
//! request and says it again (`key.rs`).
//!
//! Clients may be many, slow or hostile, and training must not notice: there is one thread for all
//! of them, connections and bodies are bounded, everything has a time-out, and the actor is asked a
//! bounded number of times a second. On loopback everyone on this machine may read; to change
//! something takes the token (`guard.rs`). It is not encrypted.

mod answers;
mod changes;
mod guard;
mod key;
mod metrics;
mod problem;
mod query;
mod routes;
mod source;
mod token;

use std::any::Any;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use actix_web::body::MessageBody;
use actix_web::dev::{ServerHandle, ServiceRequest, ServiceResponse};
use actix_web::http::KeepAlive;
use actix_web::middleware::{DefaultHeaders, Next, from_fn};
use actix_web::web::Data;
use actix_web::{App, HttpServer, ResponseError};

use everstep_transport::identity::Authority;
use everstep_transport::protocol::question::{CoordinatorStanding, RunView, TokenView};

use self::guard::Guard;
use self::source::Source;
use self::token::Token;
use crate::core::ClusterView;
use crate::daemon::Coordinator;
use crate::history::{Lapse, Tally};

/// Most connections at a time; who comes then waits.
const MAX_CONNECTIONS: usize = 128;
/// Most bytes of a request's body: a run must fit a message to a worker.
const MAX_BODY: usize = 32 * 1024;
/// How long a request's head may take to come.
const HEAD_PATIENCE: Duration = Duration::from_secs(5);
/// How long its body may take.
const BODY_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of answers that the kernel keeps for a client.
const SEND_BUFFER: usize = 64 * 1024;
/// How long a client may leave an answer unread.
#[cfg(target_os = "linux")]
const UNREAD: Duration = Duration::from_secs(10);
/// How long requests under way may take when the coordinator stops, seconds.
const FAREWELL: u64 = 1;

/// Where the API is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where to listen; port 0 for any free port.
    pub listen: SocketAddr,
    /// A file with a token that is needed for everything. Without one, only what changes something
    /// needs a token: `api.token` in the coordinator's directory.
    pub token: Option<PathBuf>,
}

/// Why there is no API.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Everyone who reaches the address could read everything.
    #[error("{0} can be reached from other machines, and reading needs no token")]
    Exposed(SocketAddr),
    /// The file holds no token.
    #[error("{}: a token is one word of 32 to 1,024 visible ASCII characters", .0.display())]
    Token(PathBuf),
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The address cannot be listened on.
    #[error("the HTTP API cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

impl Options {
    /// Refuses what nobody can have meant, before anything is made.
    ///
    /// # Errors
    /// [`HttpError::Exposed`].
    pub(crate) fn check(&self) -> Result<(), HttpError> {
        let exposed = !self.listen.ip().is_loopback() && self.token.is_none();
        if exposed { Err(HttpError::Exposed(self.listen)) } else { Ok(()) }
    }
}

/// What all answers are made from, at one moment.
#[derive(Clone, Debug)]
struct Overview {
    cluster: ClusterView,
    tally: Tally,
    under_protected: Vec<Lapse>,
    /// How many links there are to peers of each role.
    links: Vec<(&'static str, u64)>,
    /// The runs, the one under way last.
    runs: Vec<RunView>,
    /// The tokens, by id.
    tokens: Vec<TokenView>,
    /// The coordinators, by id.
    coordinators: Vec<CoordinatorStanding>,
    /// The newest entry of the log that is applied here.
    applied: u64,
    /// A coordinator is known to lead.
    is_led: bool,
}

/// Whose tokens are made here.
struct Issuer(Arc<Authority>);

/// Where a coordinator is.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// For its peers.
    links: SocketAddr,
}

/// An API that listens, and does not answer yet.
pub(crate) struct Api {
    listener: TcpListener,
    address: SocketAddr,
    guard: Guard,
    authority: Arc<Authority>,
}

impl Api {
    /// Listens, for a coordinator whose files are in `dir`, and of whose cluster this is the
    /// authority.
    pub(crate) fn open(
        options: &Options,
        dir: &Path,
        authority: Arc<Authority>,
    ) -> Result<Self, HttpError> {
        options.check()?;
        let token = match &options.token {
            Some(path) => Token::read(path),
            None => Token::read_or_make(&dir.join("api.token")),
        }?;
        let bind = |source| HttpError::Bind { address: options.listen, source };
        let listener = TcpListener::bind(options.listen).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let guard = Guard {
            token,
            for_everything: options.token.is_some(),
            loopback: address.ip().is_loopback(),
        };
        Ok(Self { listener, address, guard, authority })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers, on a thread of its own, until it is stopped. To be called on an actix system.
    pub(crate) fn serve(
        self,
        coordinator: Addr<Coordinator>,
        links: SocketAddr,
    ) -> Result<ServerHandle, HttpError> {
        let Self { listener, address, guard, authority } = self;
        let (source, guard) = (Arc::new(Source::new(coordinator)), Arc::new(guard));
        let issuer = Data::new(Issuer(authority));
        let place = Place { links };
        let app = move || {
            App::new()
                .app_data(Data::from(source.clone()))
                .app_data(Data::from(guard.clone()))
                .app_data(Data::new(place))
                .app_data(issuer.clone())
                .configure(routes::lay)
                .wrap(from_fn(admit))
                .wrap(headers())
        };
        let server = HttpServer::new(app)
            .workers(1)
            .max_connections(MAX_CONNECTIONS)
            .client_request_timeout(HEAD_PATIENCE)
            // The next request's head would have no time-out.
            .keep_alive(KeepAlive::Disabled)
            .shutdown_timeout(FAREWELL)
            .disable_signals()
            .on_connect(|connection, _| bound(connection))
            .listen(listener)
            .map_err(|source| HttpError::Bind { address, source })?
            .run();
        let handle = server.handle();
        actix::spawn(server);
        Ok(handle)
    }
}

/// Lets in whoever may come.
async fn admit(
    guard: Data<Guard>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    match guard.permit(request.method(), request.headers()) {
        Ok(()) => Ok(next.call(request).await?.map_into_left_body()),
        Err(problem) => Ok(request.into_response(problem.error_response()).map_into_right_body()),
    }
}

/// Answers are of their moment, and are what they say they are.
fn headers() -> DefaultHeaders {
    DefaultHeaders::new()
        .add(("cache-control", "no-store"))
        .add(("x-content-type-options", "nosniff"))
}

/// A client that does not read what it has asked for is cut off by the kernel: there is nothing
/// above it that would notice.
fn bound(connection: &dyn Any) {
    let Some(stream) = connection.downcast_ref::<tokio::net::TcpStream>() else { return };
    let socket = socket2::SockRef::from(stream);
    // An error leaves a client that may be slower, or take more memory.
    let _ = socket.set_send_buffer_size(SEND_BUFFER);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(UNREAD));
}

#[cfg(test)]
pub(crate) mod tests;
