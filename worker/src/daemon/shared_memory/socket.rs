//! The local socket of a link, on which both sides hand over their memory.
//!
//! Its name and the proof that each side gives are secrets of the link's connection, so the process
//! at the other end of the socket is that at the other end of the link. The names of such sockets
//! belong to a network namespace: containers apart do not find each other.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use everstep_transport::quic::Link;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::time::{sleep, timeout};

use super::invalid;
use super::notice::{MEMORY_PROTOCOL, MemoryNotice, NOTICE_BYTES};

/// The first and the longest pause between attempts to reach the other side. It may not have heard
/// yet that the link is one between peers, or it may be of another host after all.
const CONNECT_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(20)];
/// How long the other side is waited for: longer than its longest pause.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a process that has reached the socket may take to prove who it is.
const PROOF_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of the proof of each side.
const PROOF_BYTES: usize = 16;
/// Notices in a packet.
const PACKET_NOTICES: usize = 64;

/// A socket that carries packets between two processes. The runtime has no type for one. It only
/// waits here until there is something to do, for which the type of another socket is as good.
#[derive(Debug)]
pub struct MemorySocket(UnixDatagram);

/// What the connection of a link gives to its socket.
struct Secrets {
    name: SocketAddrUnix,
    /// The proofs of the side that has dialled, and of the other one.
    proofs: [[u8; PROOF_BYTES]; 2],
}

impl Secrets {
    fn of(link: &Link) -> io::Result<Self> {
        let secret = link.secret(MEMORY_PROTOCOL);
        let part = |at: usize| *secret[PROOF_BYTES * at..].first_chunk().expect("64 bytes");
        let name = format!("everstep-{:032x}", u128::from_be_bytes(part(0)));
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        Ok(Self { name, proofs: [part(1), part(2)] })
    }
}

impl MemorySocket {
    /// Meets the other side of the link. The side that has dialled looks for the other one, which
    /// waits for it for [`LISTEN_TIMEOUT`].
    ///
    /// # Errors
    /// Those of the system, and that nobody has come.
    pub async fn meet(link: &Link) -> io::Result<Self> {
        let secrets = Secrets::of(link)?;
        match link.is_dialled() {
            true => Self::find(&secrets).await,
            false => timeout(LISTEN_TIMEOUT, Self::await_other(&secrets)).await?,
        }
    }

    /// Looks for the other side, more and more rarely.
    async fn find(secrets: &Secrets) -> io::Result<Self> {
        let [mut pause, longest] = CONNECT_PAUSES;
        loop {
            if let Ok(Ok(socket)) = timeout(PROOF_TIMEOUT, Self::connect(secrets)).await {
                return Ok(socket);
            }
            sleep(pause).await;
            pause = longest.min(2 * pause);
        }
    }

    /// Reaches the other side. This side proves first that it is the process of the link.
    async fn connect(secrets: &Secrets) -> io::Result<Self> {
        let socket = socket()?;
        rustix::net::connect(&socket, &secrets.name)?;
        let socket = Self::new(socket)?;
        let [dialled, answered] = &secrets.proofs;
        socket.send_packet(dialled, None).await?;
        socket.demand(answered).await?;
        Ok(socket)
    }

    /// Waits for the other side. Any process of the host may have found the name, and gets nothing
    /// without the proof.
    async fn await_other(secrets: &Secrets) -> io::Result<Self> {
        let listener = Self::listen(&secrets.name)?;
        let [dialled, answered] = &secrets.proofs;
        loop {
            let socket = listener.accept().await?;
            match timeout(PROOF_TIMEOUT, socket.demand(dialled)).await {
                Ok(Ok(())) => {
                    socket.send_packet(answered, None).await?;
                    return Ok(socket);
                }
                Ok(Err(error)) => tracing::debug!(%error, "a process is not let in"),
                Err(_) => tracing::debug!("a process proves nothing"),
            }
        }
    }

    /// Waits for the proof of the process there.
    async fn demand(&self, proof: &[u8]) -> io::Result<()> {
        if socket_peercred(&self.0)?.uid != rustix::process::geteuid() {
            return Err(io::Error::other("the process there belongs to another user"));
        }
        let mut shown = [0; PROOF_BYTES + 1];
        let (read, _) = self.receive_packet(&mut shown).await?;
        match shown[..read] == *proof {
            true => Ok(()),
            false => Err(io::Error::other("the process there is not that of the link")),
        }
    }

    fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self(UnixDatagram::from_std(socket.into())?))
    }

    /// A socket on which processes that know the name arrive.
    fn listen(name: &SocketAddrUnix) -> io::Result<Self> {
        let listener = socket()?;
        rustix::net::bind(&listener, name)?;
        rustix::net::listen(&listener, 1)?;
        Self::new(listener)
    }

    /// The next process that arrives here.
    async fn accept(&self) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accept = || Ok(rustix::net::accept_with(&self.0, flags)?);
        Self::new(self.0.async_io(Interest::READABLE, accept).await?)
    }

    /// Reaches the socket of a link with the proof of another one.
    #[cfg(test)]
    pub async fn intrude(link: &Link, other: &Link) -> io::Result<Self> {
        let (name, proofs) = (Secrets::of(link)?.name, Secrets::of(other)?.proofs);
        Self::connect(&Secrets { name, proofs }).await
    }

    /// Sends notices, and takes those that it has sent.
    ///
    /// # Errors
    /// The other side has ended.
    pub async fn send(&self, notices: &mut Vec<MemoryNotice>) -> io::Result<()> {
        while !notices.is_empty() {
            // A packet has one descriptor at most, that of its last notice.
            let is_open = |notice: &MemoryNotice| matches!(notice, MemoryNotice::Open { .. });
            let upto = notices.iter().position(is_open).map_or(notices.len(), |at| at + 1);
            let upto = upto.min(PACKET_NOTICES);
            let packet: Vec<u8> = notices[..upto].iter().flat_map(MemoryNotice::encode).collect();
            let file = match &notices[upto - 1] {
                MemoryNotice::Open { file, .. } => file.as_ref().map(OwnedFd::as_fd),
                _ => None,
            };
            self.send_packet(&packet, file).await?;
            notices.drain(..upto);
        }
        Ok(())
    }

    /// The next notices, at least one. Cancel-safe.
    ///
    /// # Errors
    /// The other side has ended, or has sent what no honest process sends.
    pub async fn receive(&self) -> io::Result<Vec<MemoryNotice>> {
        let mut bytes = [0; NOTICE_BYTES * PACKET_NOTICES + 1];
        let (read, mut file) = self.receive_packet(&mut bytes).await?;
        let packet = bytes[..read].chunks(NOTICE_BYTES);
        let notices: Option<Vec<_>> =
            packet.map(|notice| MemoryNotice::decode(notice, &mut file)).collect();
        match notices {
            Some(notices) if file.is_none() => Ok(notices),
            _ => Err(invalid("the other side sends what no honest process sends")),
        }
    }

    async fn send_packet(&self, packet: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let files: Vec<_> = file.into_iter().collect();
        let send = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !files.is_empty() {
                let fits = ancillary.push(SendAncillaryMessage::ScmRights(&files));
                assert!(fits, "there is space for one descriptor");
            }
            let packet = [IoSlice::new(packet)];
            let flags = SendFlags::NOSIGNAL;
            rustix::net::sendmsg(&self.0, &packet, &mut ancillary, flags)?;
            Ok(())
        };
        self.0.async_io(Interest::WRITABLE, send).await
    }

    /// Reads a packet. Returns how many bytes it has, and its descriptor.
    async fn receive_packet(&self, into: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
        let receive = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut packet = [IoSliceMut::new(into)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            let received = rustix::net::recvmsg(&self.0, &mut packet, &mut ancillary, flags)?;
            let mut files = ancillary.drain().flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(files) => files.collect(),
                _ => Vec::new(),
            });
            Ok((received.bytes, files.next()))
        };
        match self.0.async_io(Interest::READABLE, receive).await? {
            (0, _) => Err(io::ErrorKind::UnexpectedEof.into()),
            received => Ok(received),
        }
    }
}

impl Drop for MemorySocket {
    /// Ends the socket for the other side also if a process that was forked from this one has it.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both); // the other side may be gone
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}
