//! A UDP socket that wakes its process when packets arrive, and not when they have left.
//!
//! A socket that is also watched for room to write reports room each time that the kernel lets a
//! sent packet go. That is one wake-up for each sent batch, and a full buffer is rare. So this
//! socket is watched for room only after a packet has found its buffer full.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The socket that the module describes.
#[derive(Debug)]
pub(in crate::quic) struct Udp {
    socket: AsyncFd<UdpSocket>,
    state: UdpSocketState,
    /// The last packet has found the kernel's buffer full, and the kernel has reported no room
    /// since.
    is_full: AtomicBool,
}

impl Udp {
    /// Watches a bound socket for packets that arrive.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub(in crate::quic) fn new(socket: UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        let (socket, is_full) = (watch(socket, Interest::READABLE)?, AtomicBool::new(false));
        Ok(Self { socket, state, is_full })
    }
}

impl AsyncUdpSocket for Udp {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(WritableWait { socket: self, awaited: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = self.state.send(self.socket.get_ref().into(), transmit);
        if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.is_full.store(true, Ordering::Relaxed);
        }
        sent
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut arrived = ready!(self.socket.poll_read_ready(context))?;
            let receive = |socket: &AsyncFd<UdpSocket>| {
                self.state.recv(socket.get_ref().into(), buffers, metas)
            };
            // An error means that nothing has arrived after all.
            if let Ok(received) = arrived.try_io(receive) {
                return Poll::Ready(received);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.get_ref().local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.state.gro_segments()
    }
}

/// Waits, for one link, until a socket that was full has room.
struct WritableWait {
    socket: Arc<Udp>,
    awaited: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>>,
}

impl UdpPoller for WritableWait {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.awaited.is_none() && !self.socket.is_full.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(()));
        }
        let socket = self.socket.clone();
        let awaited = self.awaited.get_or_insert_with(|| Box::pin(room(socket)));
        let result = ready!(awaited.as_mut().poll(context));
        self.awaited = None;
        self.socket.is_full.store(false, Ordering::Relaxed);
        Poll::Ready(result)
    }
}

impl fmt::Debug for WritableWait {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Room").finish_non_exhaustive()
    }
}

/// Returns when the socket has room to write: at once, if it has room now.
async fn room(socket: Arc<Udp>) -> io::Result<()> {
    // A second descriptor of the same socket, so that it is watched for room only while this waits.
    let second = watch(socket.socket.get_ref().try_clone()?, Interest::WRITABLE)?;
    second.writable().await.map(|_| ())
}

/// Makes the socket non-blocking. It wakes its process only for `interest`.
///
/// # Panics
/// Outside a tokio runtime.
pub(in crate::quic) fn watch(
    socket: UdpSocket,
    interest: Interest,
) -> io::Result<AsyncFd<UdpSocket>> {
    socket.set_nonblocking(true)?;
    // Deprecated for types with a descriptor that may change: that of a std socket never does.
    #[allow(deprecated)]
    AsyncFd::with_interest(socket, interest)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn socket() -> Arc<Udp> {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        Arc::new(Udp::new(socket).expect("a socket"))
    }

    #[tokio::test]
    async fn a_full_socket_is_waited_for_until_it_has_room() {
        let socket = socket();
        let mut room = socket.clone().create_io_poller();
        // In the second round the socket was full.
        for was_full in [false, true] {
            socket.is_full.store(was_full, Ordering::Relaxed);
            let writable = poll_fn(|context| room.as_mut().poll_writable(context));
            let found = timeout(Duration::from_secs(10), writable).await;
            found.expect("an empty buffer has room").expect("a socket");
            assert!(!socket.is_full.load(Ordering::Relaxed));
        }
    }
}
