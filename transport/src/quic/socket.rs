//! The UDP socket, with buffers as large as the kernel grants, and batches as large as it takes.

mod udp;

use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use socket2::{Domain, Protocol, Socket, Type};

pub(super) use self::udp::{Udp, watch};
use super::probe::Signs;

/// A socket's buffers as the kernel reports them, bytes. Linux includes its own bookkeeping, so
/// they hold about half as much payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketBuffers {
    /// Room for packets that have arrived and were not read.
    pub receive: usize,
    /// Room for packets that were sent and have not left.
    pub send: usize,
}

impl SocketBuffers {
    /// What to do if the kernel grants less than `wanted`, in words for the user.
    pub(super) fn shortage(self, wanted: usize) -> Option<String> {
        // Linux reports twice what it grants, to make room for its bookkeeping.
        let short = |granted: usize| granted < 2 * wanted;
        let names = [(self.receive, "net.core.rmem_max"), (self.send, "net.core.wmem_max")];
        let settings = names.iter().filter(|(granted, _)| short(*granted));
        let settings: Vec<String> =
            settings.map(|(_, name)| format!("sysctl -w {name}={wanted}")).collect();
        (!settings.is_empty()).then(|| settings.join("; "))
    }
}

/// Binds a socket and asks for buffers of `wanted` bytes.
pub(super) fn open(listen: SocketAddr, wanted: usize) -> io::Result<(UdpSocket, SocketBuffers)> {
    let socket = Socket::new(Domain::for_address(listen), Type::DGRAM, Some(Protocol::UDP))?;
    if listen.is_ipv6() {
        // One port for both families, where the system allows it.
        socket.set_only_v6(false).or_else(|error| match error.kind() {
            io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput => Ok(()),
            _ => Err(error),
        })?;
    }
    // The system grants up to its limit. The result reports what it granted, and less is no error.
    socket.set_recv_buffer_size(wanted)?;
    socket.set_send_buffer_size(wanted)?;
    socket.bind(&listen.into())?;
    let buffers =
        SocketBuffers { receive: socket.recv_buffer_size()?, send: socket.send_buffer_size()? };
    Ok((socket.into(), buffers))
}

/// The largest UDP payload of IPv4, bytes.
const LARGEST_BATCH: usize = 65_507;

/// A socket with batches that the kernel takes. The kernel refuses batches over [`LARGEST_BATCH`],
/// and quinn does not notice, since it counts packets and not bytes.
#[derive(Debug)]
pub(super) struct Batches {
    socket: Arc<dyn AsyncUdpSocket>,
    /// How many of the largest packets fit in a batch.
    fits: usize,
    /// The counters of arriving probes.
    signs: Arc<Signs>,
}

impl Batches {
    /// For packets of up to `mtu` bytes.
    pub(super) fn new(socket: Arc<dyn AsyncUdpSocket>, mtu: u16, signs: Arc<Signs>) -> Self {
        Self { socket, fits: LARGEST_BATCH / usize::from(mtu), signs }
    }
}

impl AsyncUdpSocket for Batches {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.socket.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = ready!(self.socket.poll_recv(context, buffers, metas))?;
        for (buffer, meta) in buffers.iter().zip(&*metas).take(received) {
            self.signs.arrived(&buffer[..meta.len], meta.stride);
        }
        Poll::Ready(Ok(received))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The socket may find out only at its first send that it cannot batch here.
    fn max_transmit_segments(&self) -> usize {
        self.fits.min(self.socket.max_transmit_segments())
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A socket that finds out that it cannot batch here.
    #[derive(Debug)]
    struct UnbatchedFallback(Arc<dyn AsyncUdpSocket>, AtomicUsize);

    impl AsyncUdpSocket for UnbatchedFallback {
        fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
            self.0.clone().create_io_poller()
        }

        fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
            self.0.try_send(transmit)
        }

        fn poll_recv(
            &self,
            context: &mut Context<'_>,
            buffers: &mut [IoSliceMut<'_>],
            metas: &mut [RecvMeta],
        ) -> Poll<io::Result<usize>> {
            self.0.poll_recv(context, buffers, metas)
        }

        fn local_addr(&self) -> io::Result<SocketAddr> {
            self.0.local_addr()
        }

        fn max_transmit_segments(&self) -> usize {
            self.1.swap(1, Ordering::Relaxed)
        }
    }

    #[test]
    fn buffers_that_are_smaller_than_wanted_come_with_the_settings_to_change() {
        let buffers = |receive, send| SocketBuffers { receive, send };
        let shortage = |receive, send| buffers(receive, send).shortage(1_000);
        assert_eq!(shortage(2_000, 2_000), None);
        assert_eq!(shortage(1_999, 2_000).as_deref(), Some("sysctl -w net.core.rmem_max=1000"));
        let both = "sysctl -w net.core.rmem_max=1000; sysctl -w net.core.wmem_max=1000";
        assert_eq!(shortage(400, 400).as_deref(), Some(both));
    }

    #[tokio::test]
    async fn who_finds_out_that_there_are_no_batches_is_given_none() {
        let (socket, _) = open(([127, 0, 0, 1], 0).into(), 1 << 20).expect("a free port");
        let socket = Arc::new(Udp::new(socket).expect("a socket"));
        let batches = Batches::new(
            Arc::new(UnbatchedFallback(socket, AtomicUsize::new(10))),
            1_200,
            Arc::default(),
        );
        assert_eq!([(); 2].map(|()| batches.max_transmit_segments()), [10, 1]);
    }

    #[tokio::test]
    async fn a_batch_is_never_more_than_the_kernel_takes() {
        let (socket, _) = open(([127, 0, 0, 1], 0).into(), 1 << 20).expect("a free port");
        let socket = Arc::new(Udp::new(socket).expect("a socket"));
        let own = socket.max_transmit_segments();
        for (mtu, most) in [(1_200, 54), (8_952, 7), (crate::quic::MAX_MTU, 4)] {
            let batches = Batches::new(socket.clone(), mtu, Arc::default());
            assert_eq!(batches.max_transmit_segments(), own.min(most), "of packets of {mtu} bytes");
        }
    }
}
