//! The task that meets the other end of a link, and carries notices between the two.

use std::convert::Infallible;
use std::io;

use everstep_transport::quic::Link;
use tokio::sync::mpsc::UnboundedReceiver;

use super::notice::MemoryNotice;
use super::socket::MemorySocket;
use super::{SharedMemory, Standing, State};

/// Notices that are sent together at most.
const BATCH: usize = 64;

/// Shares memory with the other end of the link. The other end stops if it has no use for the link
/// now, and begins again.
pub async fn run(link: Link, shared: SharedMemory, mut notices: UnboundedReceiver<MemoryNotice>) {
    loop {
        let socket = match MemorySocket::meet(&link).await {
            Ok(socket) => socket,
            Err(error) => {
                tracing::info!(peer = %link.identity(), %error, "no shared memory");
                shared.change(|state| state.standing = Standing::Apart);
                return;
            }
        };
        tracing::debug!(peer = %link.identity(), "shares memory");
        while notices.try_recv().is_ok() {} // They were for the other end as it was before.
        shared.change(State::meet);
        let Err(error) = carry(&socket, &shared, &mut notices).await;
        shared.change(|state| state.standing = Standing::Meeting);
        if !is_end(&error) {
            // What was announced may never be read, so the link cannot go on.
            link.close(&format!("shared memory: {error}"));
        }
    }
}

/// Whether the other end has closed its socket.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

/// Carries notices until the other end is gone.
async fn carry(
    socket: &MemorySocket,
    shared: &SharedMemory,
    notices: &mut UnboundedReceiver<MemoryNotice>,
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
    tokio::select! { ended = send => ended, ended = receive => ended }
}
