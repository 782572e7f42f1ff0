//! The UDP socket, with buffers as large as the kernel grants.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};

/// A socket's buffers as the kernel reports them, bytes. Linux counts its own bookkeeping in, so
/// they hold about half as much payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketBuffers {
    /// What has arrived and was not read.
    pub receive: usize,
    /// What was sent and has not left.
    pub send: usize,
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
    // Granted up to the system's limit; what was granted is reported, and less is no error.
    socket.set_recv_buffer_size(wanted)?;
    socket.set_send_buffer_size(wanted)?;
    socket.bind(&listen.into())?;
    let buffers =
        SocketBuffers { receive: socket.recv_buffer_size()?, send: socket.send_buffer_size()? };
    Ok((socket.into(), buffers))
}
