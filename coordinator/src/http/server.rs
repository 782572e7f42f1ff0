//! The entry of HTTP clients: one thread accepts every connection at once, and serves those that
//! send something.
//!
//! A connection has a second to send its first bytes, and then a few seconds to get one of the
//! slots for requests. Idle connections never make others wait. When too many wait, the front
//! closes the one that has waited longest, of the same source first. Requests for `/livez` have
//! slots of their own, so that no crowd makes a liveness probe fail.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use actix::Arbiter;
use actix_http::{HttpService, Request};
use actix_service::{IntoServiceFactory, Service, ServiceFactory, ServiceFactoryExt, map_config};
use actix_web::body::MessageBody;
use actix_web::dev::{AppConfig, ServiceResponse};
use actix_web::http::KeepAlive;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::REQUEST_HEAD_TIMEOUT;
use super::connections::{ConnectionId, Connections};

/// How long a connection may take to send its first byte.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a request waits for a slot.
const SLOT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a probe may take.
const LIVENESS_PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of answers that the kernel keeps for a client.
const SEND_BUFFER: usize = 64 * 1024;
/// How long a client may leave an answer unread.
#[cfg(target_os = "linux")]
const UNREAD_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long requests under way may take when the coordinator stops.
const API_STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after an error of `accept`, such as too many open files.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// The answer to a request that gets no slot.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\
                      retry-after: 1\r\nconnection: close\r\n\r\n";

/// An API that answers.
pub(crate) struct RunningApi {
    arbiter: Arbiter,
    stop: watch::Sender<bool>,
    done: oneshot::Receiver<()>,
}

impl RunningApi {
    /// Accepts no connection any more, and waits a second at most for requests under way.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(true); // an error means that it has ended
        let _ = self.done.await;
        self.arbiter.stop();
    }
}

/// Serves the requests with the service that `app` makes, on a thread of its own.
pub(super) fn serve<A, I, S, B>(listener: std::net::TcpListener, app: A) -> io::Result<RunningApi>
where
    A: FnOnce() -> I + Send + 'static,
    I: IntoServiceFactory<S, Request>,
    S: ServiceFactory<
            Request,
            Config = AppConfig,
            Response = ServiceResponse<B>,
            Error = actix_web::Error,
            InitError = (),
        > + 'static,
    S::Service: 'static,
    B: MessageBody + 'static,
{
    listener.set_nonblocking(true)?;
    let (stop, stopped) = watch::channel(false);
    let (ended, done) = oneshot::channel();
    let arbiter = Arbiter::new();
    arbiter.spawn_fn(move || {
        let factory = app().into_factory().map_err(|error| error.error_response());
        let service = HttpService::build()
            // The next request's head would have no time-out.
            .keep_alive(KeepAlive::Disabled)
            .client_request_timeout(REQUEST_HEAD_TIMEOUT)
            .finish(map_config(factory, |_| AppConfig::default()))
            .tcp();
        actix::spawn(async move {
            if let (Ok(service), Ok(listener)) =
                (service.new_service(()).await, TcpListener::from_std(listener))
            {
                run(listener, Rc::new(service), stopped).await;
            }
            let _ = ended.send(()); // an error means that `RunningApi` was dropped
        });
    });
    Ok(RunningApi { arbiter, stop, done })
}

/// The shared state that a connection's task needs.
struct ConnectionContext<S> {
    service: Rc<S>,
    connections: Rc<RefCell<Connections>>,
    /// Notifies when a connection has ended.
    freed: Rc<Notify>,
}

impl<S> Clone for ConnectionContext<S> {
    fn clone(&self) -> Self {
        let Self { service, connections, freed } = self;
        Self { service: service.clone(), connections: connections.clone(), freed: freed.clone() }
    }
}

async fn run<S>(listener: TcpListener, service: Rc<S>, mut stopped: watch::Receiver<bool>)
where
    S: Service<TcpStream> + 'static,
    S::Future: 'static,
{
    let context = ConnectionContext { service, connections: Rc::default(), freed: Rc::default() };
    loop {
        tokio::select! {
            _ = stopped.changed() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => accept(&context, stream, peer),
                Err(_) => sleep(ACCEPT_BACKOFF).await,
            },
        }
    }
    drop(listener);
    let empty = async {
        while context.connections.borrow().are_served() {
            context.freed.notified().await;
        }
    };
    let _ = timeout(API_STOP_TIMEOUT, empty).await; // the remaining requests are cut off
}

fn accept<S>(context: &ConnectionContext<S>, stream: TcpStream, peer: SocketAddr)
where
    S: Service<TcpStream> + 'static,
    S::Future: 'static,
{
    bound(&stream);
    let id = context.connections.borrow_mut().id();
    let task = actix::spawn(handle(context.clone(), stream, id));
    let crowded_out =
        context.connections.borrow_mut().wait(id, source(peer.ip()), task.abort_handle());
    crowded_out.into_iter().for_each(|task| task.abort());
}

/// Handles one connection, from its first byte to its answer.
async fn handle<S: Service<TcpStream>>(
    context: ConnectionContext<S>,
    stream: TcpStream,
    id: ConnectionId,
) {
    let _leaves =
        RemoveOnDrop { connections: context.connections.clone(), freed: context.freed.clone(), id };
    let mut first = [0; 16];
    let Ok(Ok(length @ 1..)) = timeout(FIRST_BYTE_TIMEOUT, stream.peek(&mut first)).await else {
        return;
    };
    if is_probe(&first[..length]) {
        let crowded_out = context.connections.borrow_mut().probe(id);
        crowded_out.into_iter().for_each(|task| task.abort());
        let _ = timeout(LIVENESS_PROBE_TIMEOUT, context.service.call(stream)).await;
        return;
    }
    let slot = async {
        while !context.connections.borrow_mut().serve(id) {
            context.freed.notified().await;
        }
    };
    match timeout(SLOT_TIMEOUT, slot).await {
        Ok(()) => drop(context.service.call(stream).await),
        Err(_) => drop(stream.try_write(BUSY)),
    }
}

/// Frees a connection's place, however its task ends.
struct RemoveOnDrop {
    connections: Rc<RefCell<Connections>>,
    freed: Rc<Notify>,
    id: ConnectionId,
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        self.connections.borrow_mut().leave(self.id);
        self.freed.notify_waiters();
    }
}

fn is_probe(first: &[u8]) -> bool {
    let asks = |method: &str| {
        let rest = first.strip_prefix(method.as_bytes());
        rest.and_then(|rest| rest.strip_prefix(b"/livez")).is_some()
    };
    asks("GET ") || asks("HEAD ")
}

/// The source of a client: its IPv4 address, or the /64 in which a host may choose its addresses.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

/// Lets the kernel cut off a client that does not read its answer. No layer above would notice.
fn bound(stream: &TcpStream) {
    let socket = socket2::SockRef::from(stream);
    // After an error a client may be slower, or take more memory.
    let _ = socket.set_send_buffer_size(SEND_BUFFER);
    #[cfg(target_os = "linux")]
    let _ = socket.set_tcp_user_timeout(Some(UNREAD_ANSWER_TIMEOUT));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_known_by_its_first_bytes() {
        for first in ["GET /livez HTTP/1", "HEAD /livez HTTP", "GET /livez?x"] {
            assert!(is_probe(first.as_bytes()), "{first}");
        }
        for first in ["GET /readyz HTTP", "POST /livez HTTP", "GET /live", "G", "HEAD /"] {
            assert!(!is_probe(first.as_bytes()), "{first}");
        }
    }

    #[test]
    fn addresses_that_one_host_may_choose_are_one_source() {
        let of = |text: &str| source(text.parse().expect("an address"));
        assert_eq!(of("2001:db8:1:2::7"), of("2001:db8:1:2:ffff::8"));
        assert_ne!(of("2001:db8:1:2::7"), of("2001:db8:1:3::7"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
