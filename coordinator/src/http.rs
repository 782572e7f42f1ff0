//! The HTTP API of a coordinator: probes, figures for Prometheus, and the requests of operators.
//!
//! In: an address, a token, and the coordinator's actor to ask. Out: answers, until the process
//! stops it. The API decides nothing. It renders a plain `Overview`, and passes changes on to the
//! core as any operator would. A client that names its request and repeats it gets it done once
//! (`key.rs`).
//!
//! Clients may be many, slow or hostile, and training must not notice. One thread serves all of
//! them. `server.rs` bounds connections and bodies, everything has a time-out, and the actor gets a
//! bounded number of questions a second. On loopback all users of this machine may read, and a
//! change takes the token (`guard.rs`). The API does not encrypt.

mod actor_client;
mod answers;
mod changes;
mod connections;
mod guard;
mod key;
mod metrics;
mod problem;
mod process;
mod query;
mod routes;
mod server;
mod token;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use actix::Addr;
use actix_web::body::MessageBody;
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::middleware::{DefaultHeaders, Next, from_fn};
use actix_web::web::Data;
use actix_web::{App, ResponseError};

use everstep_transport::identity::Authority;
use everstep_transport::protocol::question::{CoordinatorStatus, RunView, TokenView};

use self::actor_client::ActorClient;
use self::guard::Guard;
pub(crate) use self::server::RunningApi;
use self::token::Token;
use crate::core::ClusterView;
use crate::daemon::CoordinatorActor;
use crate::history::{Lapse, Tally};

/// Most bytes of a request's body: a run must fit a message to a worker.
const MAX_BODY: usize = 32 * 1024;
/// How long a request's head may take to come.
const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request's body may take to come.
const REQUEST_BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// The API's address if the options state none: this port of loopback, if it is free.
pub const DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7080);

/// The API's address and tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpOptions {
    /// The address to listen on. Port 0 stands for any free port. None: [`DEFAULT`], or any free
    /// port of loopback if another process has that one.
    pub listen: Option<SocketAddr>,
    /// A file with a token that every request needs. Without one, only a change needs a token:
    /// `api.token` in the coordinator's directory.
    pub token: Option<PathBuf>,
    /// A file with a token that allows reading, and nothing else. With one, reading needs a token.
    pub read_token: Option<PathBuf>,
}

/// Why there is no API.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// Every client that reaches the address could read everything.
    #[error("{0} can be reached from other machines, and reading needs no token")]
    Exposed(SocketAddr),
    /// The file holds no token.
    #[error("{}: a token is one word of 32 to 1,024 visible ASCII characters", .0.display())]
    Token(PathBuf),
    /// Every user of this machine can read or replace the token.
    #[error("{}: users other than its owner and group may read or write the token", .0.display())]
    Public(PathBuf),
    /// A client with the token for reading could change everything.
    #[error("the token for reading is the one for changes as well")]
    Same,
    /// The process could not read or write a file.
    #[error("{}: {source}", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// What the system says of it.
        source: io::Error,
    },
    /// The process cannot listen on the address.
    #[error("the HTTP API cannot listen on {address}: {source}")]
    Bind {
        /// The address of the options.
        address: SocketAddr,
        /// What the system says of it.
        source: io::Error,
    },
}

impl HttpOptions {
    fn address(&self) -> SocketAddr {
        self.listen.unwrap_or(DEFAULT)
    }

    /// Refuses options that no operator can have meant, before the process makes anything.
    ///
    /// # Errors
    /// [`HttpError::Exposed`].
    pub(crate) fn check(&self) -> Result<(), HttpError> {
        let reading_is_free = self.token.is_none() && self.read_token.is_none();
        match !self.address().ip().is_loopback() && reading_is_free {
            true => Err(HttpError::Exposed(self.address())),
            false => Ok(()),
        }
    }

    /// A listener on the kept port, or on the address of these options. Then the port is kept.
    fn listener(&self, port: &mut ApiPort) -> Result<TcpListener, HttpError> {
        let address = self.address();
        let failed = |source| HttpError::Bind { address, source };
        let kept = match port.0.take() {
            Some(kept) => kept,
            None => self.bind().map_err(failed)?,
        };
        port.0.insert(kept).try_clone().map_err(failed)
    }

    fn bind(&self) -> io::Result<TcpListener> {
        let address = self.address();
        match TcpListener::bind(address) {
            Err(error) if self.listen.is_none() && error.kind() == io::ErrorKind::AddrInUse => {
                TcpListener::bind((address.ip(), 0))
            }
            bound => bound,
        }
    }
}

/// The port of the API. A process keeps it while its coordinator is away: no other process takes it
/// meanwhile, and its clients wait.
#[derive(Debug, Default)]
pub struct ApiPort(Option<TcpListener>);

/// The data of all answers, at one moment.
#[derive(Clone, Debug)]
struct Overview {
    cluster: ClusterView,
    tally: Tally,
    under_protected: Vec<Lapse>,
    /// The number of links to peers of each role.
    links: Vec<(&'static str, u64)>,
    /// The runs. The one under way comes last.
    runs: Vec<RunView>,
    /// The tokens, by id.
    tokens: Vec<TokenView>,
    /// The coordinators, by id.
    coordinators: Vec<CoordinatorStatus>,
    /// The newest entry of the log that this coordinator has applied.
    applied: u64,
    /// Whether some coordinator is known to lead.
    is_led: bool,
}

/// The authority that makes tokens here.
struct Issuer(Arc<Authority>);

/// The addresses of a coordinator.
#[derive(Clone, Copy, Debug)]
struct OwnAddress {
    /// The address for its peers.
    links: SocketAddr,
}

/// An address on which the process listens, and the tokens of the options. Opening it shows every
/// problem of an API before a coordinator has files.
pub(crate) struct BoundApi {
    listener: TcpListener,
    address: SocketAddr,
    token: Option<Token>,
    read_token: Option<Token>,
}

/// An API that listens, and does not answer yet.
pub(crate) struct Api {
    listener: TcpListener,
    address: SocketAddr,
    guard: Guard,
    authority: Arc<Authority>,
}

impl BoundApi {
    pub(crate) fn open(options: &HttpOptions, port: &mut ApiPort) -> Result<Self, HttpError> {
        options.check()?;
        let read = |path: &Option<PathBuf>| path.as_deref().map(Token::read_private).transpose();
        let (token, read_token) = (read(&options.token)?, read(&options.read_token)?);
        if token.is_some() && token == read_token {
            return Err(HttpError::Same);
        }
        let listener = options.listener(port)?;
        let failed = |source| HttpError::Bind { address: options.address(), source };
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, token, read_token })
    }

    /// The API of the coordinator with its files in `dir` and with this authority.
    pub(crate) fn api(self, dir: &Path, authority: Arc<Authority>) -> Result<Api, HttpError> {
        let Self { listener, address, token, read_token } = self;
        let for_everything = token.is_some();
        let token = token.map_or_else(|| Token::read_or_make(&dir.join("api.token")), Ok)?;
        if read_token.as_ref() == Some(&token) {
            return Err(HttpError::Same);
        }
        let loopback = address.ip().is_loopback();
        let guard = Guard { token, for_everything, read_token, loopback };
        Ok(Api { listener, address, guard, authority })
    }
}

impl Api {
    /// The address on which it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers, on a thread of its own, until it is stopped. The caller runs on an actix system.
    pub(crate) fn serve(
        self,
        coordinator: Addr<CoordinatorActor>,
        links: SocketAddr,
    ) -> Result<RunningApi, HttpError> {
        let Self { listener, address, guard, authority } = self;
        let (actor, guard) = (Arc::new(ActorClient::new(coordinator)), Arc::new(guard));
        let issuer = Data::new(Issuer(authority));
        let place = OwnAddress { links };
        let app = move || {
            App::new()
                .app_data(Data::from(actor))
                .app_data(Data::from(guard))
                .app_data(Data::new(place))
                .app_data(issuer)
                .configure(routes::configure)
                .wrap(from_fn(admit))
                .wrap(headers())
        };
        let served = server::serve(listener, app);
        served.map_err(|source| HttpError::Bind { address, source })
    }
}

/// Lets in the requests that the guard permits.
async fn admit(
    guard: Data<Guard>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<impl MessageBody>, actix_web::Error> {
    match guard.permit(request.method(), request.path(), request.headers()) {
        Ok(()) => Ok(next.call(request).await?.map_into_left_body()),
        Err(problem) => Ok(request.into_response(problem.error_response()).map_into_right_body()),
    }
}

/// No client may store an answer, or guess another content type.
fn headers() -> DefaultHeaders {
    DefaultHeaders::new()
        .add(("cache-control", "no-store"))
        .add(("x-content-type-options", "nosniff"))
}

#[cfg(test)]
pub(crate) mod tests;
