//! Where nodes listen, as a user writes it, and the socket that a node binds before it has an
//! endpoint.

use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::str::FromStr;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::{Instant, sleep};

use super::endpoint::BindError;
use super::settings::Settings;
use super::socket::{self, SocketBuffers};

/// `HOST:PORT`. Each dial resolves the name again, since its address may change while a node runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort(String);

/// The text is not `HOST:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not HOST:PORT, with a port of 1 to 65535")]
pub struct HostPortError;

impl HostPort {
    /// The address, if no name has to be resolved.
    pub fn literal(&self) -> Option<SocketAddr> {
        self.0.parse().ok()
    }

    /// All addresses that it stands for now, at least one.
    ///
    /// # Errors
    /// The name has no address, or its resolution failed.
    pub async fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        if let Some(address) = self.literal() {
            return Ok(vec![address]);
        }
        let found: Vec<_> = lookup_host(&self.0).await?.collect();
        match found.is_empty() {
            true => Err(io::Error::other("the host has no address")),
            false => Ok(found),
        }
    }

    /// The first of these places that is on other machines only, if `listen` is an address that no
    /// other machine can dial. A name that cannot be resolved now passes.
    pub async fn out_of_reach(places: &[Self], listen: SocketAddr) -> Option<&Self> {
        for place in places.iter().filter(|_| listen.ip().is_loopback()) {
            let found = place.resolve().await.unwrap_or_default();
            let is_remote = |address: &SocketAddr| !address.ip().to_canonical().is_loopback();
            if !found.is_empty() && found.iter().all(is_remote) {
                return Some(place);
            }
        }
        None
    }

    /// Does `work`, which lasts as long as no node answers at `places`. Logs that wait after a
    /// second, and every few seconds from then on.
    pub async fn await_answer<T>(places: &[Self], work: impl Future<Output = T>) -> T {
        const NO_ANSWER_LOGGED_AFTER: Duration = Duration::from_secs(1);
        const NO_ANSWER_LOG_INTERVAL: Duration = Duration::from_secs(4);
        let began = Instant::now();
        let complain = async {
            let names: Vec<_> = places.iter().map(Self::to_string).collect();
            let coordinators = names.join(",");
            sleep(NO_ANSWER_LOGGED_AFTER).await;
            loop {
                let waited_s = began.elapsed().as_secs();
                tracing::warn!(coordinators, waited_s, "no coordinator answers yet, still trying");
                sleep(NO_ANSWER_LOG_INTERVAL).await;
            }
        };
        tokio::select! {
            done = work => done,
            () = complain => unreachable!("complaining does not end"),
        }
    }
}

impl FromStr for HostPort {
    type Err = HostPortError;

    fn from_str(text: &str) -> Result<Self, HostPortError> {
        let (host, port) = text.rsplit_once(':').ok_or(HostPortError)?;
        match port.parse() {
            Ok(1..=u16::MAX) if !host.is_empty() => Ok(Self(text.into())),
            _ => Err(HostPortError),
        }
    }
}

impl From<SocketAddr> for HostPort {
    fn from(address: SocketAddr) -> Self {
        Self(address.to_string())
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A bound UDP port that does not answer yet. A node takes it before it spends a token.
#[derive(Debug)]
pub struct BoundSocket {
    pub(super) socket: UdpSocket,
    pub(super) buffers: SocketBuffers,
    pub(super) address: SocketAddr,
}

impl BoundSocket {
    /// Binds to `listen` (port 0: any free port).
    ///
    /// # Errors
    /// [`BindError::Socket`].
    pub fn bind(listen: SocketAddr, settings: &Settings) -> Result<Self, BindError> {
        let failed = |source| BindError::Socket { address: listen, source };
        let (socket, buffers) = socket::open(listen, settings.socket_buffer).map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        // Loopback loses little: its receiver slows down its sender.
        let shortage = buffers.shortage(settings.socket_buffer);
        if let Some(remedy) = shortage.filter(|_| !address.ip().is_loopback()) {
            let SocketBuffers { receive, send } = buffers;
            tracing::warn!(
                receive,
                send,
                remedy,
                "the kernel grants small socket buffers: packets are lost under load"
            );
        }
        Ok(Self { socket, buffers, address })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_host_and_a_port() {
        for text in ["10.0.0.1:7070", "[::1]:1", "node-1.example:65535"] {
            assert_eq!(text.parse::<HostPort>().expect(text).to_string(), text);
        }
        for text in ["", "node", "node:", ":7070", "node:0", "node:65536", "node:port"] {
            assert_eq!(text.parse::<HostPort>(), Err(HostPortError), "{text}");
        }
    }

    #[tokio::test]
    async fn a_name_stands_for_all_of_its_addresses() {
        let place: HostPort = "localhost:7070".parse().expect("a place");
        let found = place.resolve().await.expect("every machine knows it");
        assert!(found.iter().all(|it| it.ip().is_loopback() && it.port() == 7070), "{found:?}");
        let nowhere: HostPort = "nowhere.invalid:7070".parse().expect("a place");
        assert!(nowhere.resolve().await.is_err());
    }

    #[tokio::test]
    async fn other_machines_cannot_call_a_loopback_address() {
        let [own, local, remote] = ["127.0.0.1:0", "127.0.0.1:7070", "192.0.2.1:7070"]
            .map(|it| it.parse::<SocketAddr>().expect("an address"));
        let places = [HostPort::from(local), HostPort::from(remote)];
        assert_eq!(HostPort::out_of_reach(&places, own).await, Some(&places[1]));
        assert_eq!(HostPort::out_of_reach(&places[..1], own).await, None);
        assert_eq!(HostPort::out_of_reach(&places, remote).await, None);
        let unknown = ["nowhere.invalid:7070".parse().expect("a place")];
        assert_eq!(HostPort::out_of_reach(&unknown, own).await, None);
    }
}
