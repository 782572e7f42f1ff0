//! A UDP socket's queue of errors, ip(7) and ipv6(7): which datagrams were refused.

#[cfg(target_os = "linux")]
pub(super) use linux::{enable, next_refusal};
#[cfg(not(target_os = "linux"))]
pub(super) use other::{enable, next_refusal};

#[cfg(target_os = "linux")]
mod linux {
    use std::io::{self, IoSliceMut};
    use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
    use std::os::fd::AsRawFd;

    use nix::errno::Errno;
    use nix::libc::{SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6, sock_extended_err};
    use nix::sys::socket::{
        ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
    };

    /// Room for an error and the address of the host that reports it, bytes. It is ample.
    type Control = [u8; 128];

    /// Turns the queue on. `false` if the system has none.
    pub(in super::super) fn enable(socket: &UdpSocket, own: IpAddr) -> io::Result<bool> {
        match own {
            IpAddr::V4(_) => setsockopt(socket, sockopt::Ipv4RecvErr, &true)?,
            IpAddr::V6(_) => {
                setsockopt(socket, sockopt::Ipv6RecvErr, &true)?;
                // For a port of both families. A port of one family misses nothing without it.
                let _ = setsockopt(socket, sockopt::Ipv4RecvErr, &true);
            }
        }
        Ok(true)
    }

    /// Takes the oldest error. If no process listened there, returns where the datagram was to go.
    pub(in super::super) fn next_refusal(socket: &impl AsRawFd) -> io::Result<Option<SocketAddr>> {
        let mut quoted = [0];
        let mut parts = [IoSliceMut::new(&mut quoted)];
        let mut control = nix::cmsg_space!(Control);
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let error =
            recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
        let is_refusal = error.cmsgs()?.any(|message| match message {
            ControlMessageOwned::Ipv4RecvErr(error, _)
            | ControlMessageOwned::Ipv6RecvErr(error, _) => says_refused(&error),
            _ => false,
        });
        Ok(error.address.filter(|_| is_refusal).as_ref().and_then(address))
    }

    /// Whether the error says so. Unreachable hosts and networks, and this host's own reports, are
    /// no refusals.
    fn says_refused(error: &sock_extended_err) -> bool {
        let is_icmp = [SO_EE_ORIGIN_ICMP, SO_EE_ORIGIN_ICMP6].contains(&error.ee_origin);
        is_icmp && error.ee_errno == Errno::ECONNREFUSED as u32
    }

    fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
        let v4 = storage.as_sockaddr_in().map(|address| SocketAddrV4::from(*address).into());
        v4.or_else(|| storage.as_sockaddr_in6().map(|it| SocketAddrV6::from(*it).into()))
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::io;
    use std::net::{IpAddr, SocketAddr, UdpSocket};

    /// Turns the queue on. `false`: the system has none.
    pub(in super::super) fn enable(_: &UdpSocket, _: IpAddr) -> io::Result<bool> {
        Ok(false)
    }

    /// Never finds an error, since the system has no queue.
    pub(in super::super) fn next_refusal<S>(_: &S) -> io::Result<Option<SocketAddr>> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}
