//! The task that meets the other end of a link, and carries notices between the two.

use std::convert::Infallible;
use std::io;

use everstep_transport::quic::Link;
use tokio::sync::mpsc::Receiver;

use super::SharedMemory;
use super::notice::MemoryNotice;
use super::socket::MemorySocket;

/// Notices that are sent together at most.
const BATCH: usize = 64;

/// Shares memory with the other end of the link, as long as both are there.
pub async fn run(link: Link, shared: SharedMemory, mut notices: Receiver<MemoryNotice>) {
    let socket = match MemorySocket::meet(&link).await {
        Ok(socket) => socket,
        Err(error) => {
            tracing::info!(peer = %link.identity(), %error, "no shared memory");
            return;
        }
    };
    tracing::debug!(peer = %link.identity(), "shares memory");
    shared.change(|state| state.is_shared = true);
    let Err(error) = carry(&socket, &shared, &mut notices).await;
    shared.change(|state| state.is_shared = false);
    // No honest process sends invalid data. Any other error costs the memory and not the link: what
    // was announced can still be read, and what follows goes over the link.
    if error.kind() == io::ErrorKind::InvalidData {
        link.close(&format!("shared memory: {error}"));
    } else {
        tracing::debug!(peer = %link.identity(), %error, "shares no memory any more");
    }
}

/// Carries notices until the other end is gone, this system fails, or the other end sends invalid
/// data.
async fn carry(
    socket: &MemorySocket,
    shared: &SharedMemory,
    notices: &mut Receiver<MemoryNotice>,
) -> io::Result<Infallible> {
    let send = async {
        let mut batch = Vec::new();
        loop {
            // `shared` holds the sender, so there is always a next one.
            notices.recv_many(&mut batch, BATCH).await;
            socket.send(&mut batch).await?;
        }
    };
    let receive = async {
        loop {
            for notice in socket.receive().await? {
                shared.hear(notice)?;
            }
        }
    };
    let mut changed = shared.inner.changed.subscribe();
    let overrun = async {
        while shared.is_shared() {
            let _ = changed.changed().await; // `shared` holds the sender
        }
        Err(io::Error::other("the other end does not listen"))
    };
    tokio::select! { ended = send => ended, ended = receive => ended, ended = overrun => ended }
}
