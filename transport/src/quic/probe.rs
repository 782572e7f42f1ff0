//! Notices that a peer's process is dead, which QUIC cannot: asks the peer's kernel.
//!
//! A killed process takes no leave, and silence alone does not tell the dead from the slow. But the
//! kernel of a dead process's machine answers what comes to its port with ICMP. So an endpoint
//! sends the port of each watched peer a probe now and then, from a [socket] of its own for all of
//! them. A living endpoint does not answer it: it is no QUIC packet, only a [sign of life](signs)
//! of its sender. A stopped process's socket takes it, too, so a paused process is not dead.
//!
//! ICMP is not authenticated, and firewalls send it as well. A refusal is therefore a hint, which
//! [`check`] follows up on the link itself.
//!
//! Input: a link's connection. Output: the link's end, when the peer's host refuses probes and the
//! link receives nothing. Where a firewall keeps ICMP back, only the idle time-out remains.

mod check;
mod distrusted;
mod queue;
mod signs;
mod socket;

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep_until};

pub use self::check::RefusalChecks;
pub(super) use self::signs::Signs;
pub(super) use self::socket::Probes;
use self::socket::Watcher;
use super::wire::Wire;

/// A datagram on the link that makes the peer acknowledge it.
const ASK: &[u8] = &[0];
/// A process that watches many links probes each less often, so that it sends at most 2,000 a
/// second.
const PROBE_SPACING: Duration = Duration::from_micros(500);

/// An endpoint at rest probes this many times less often.
const RESTING_PROBE_FACTOR: u32 = 40;

/// Probes every `interval` until the link ends, and ends it when the peer seems to be dead.
pub(super) async fn watch(wire: Wire, peer: Watcher, interval: Duration) {
    let watched = Watched::new(&wire, &peer);
    tokio::select! {
        _ = wire.connection.closed() => {}
        () = watched.refused(interval) => wire.unreachable("no process listens at its port"),
    }
}

/// Counts a link as watched while this value lives.
struct Watched<'a> {
    wire: &'a Wire,
    peer: &'a Watcher,
}

impl<'a> Watched<'a> {
    fn new(wire: &'a Wire, peer: &'a Watcher) -> Self {
        wire.links.watched.fetch_add(1, Ordering::Relaxed);
        Self { wire, peer }
    }

    /// Returns when refusals go on and the link has received nothing since the first one.
    async fn refused(&self, interval: Duration) {
        let mut checks = RefusalChecks::default();
        if self.peer.is_distrusted() {
            checks.distrust();
        }
        loop {
            let began = Instant::now();
            self.peer.probe();
            if checks.is_open() {
                self.ask();
            }
            let pause = began + checks.pause(self.interval(interval));
            loop {
                tokio::select! {
                    () = self.probe_until(pause, interval) => break,
                    () = self.peer.refused() => if checks.refused(self.received()) { break },
                }
            }
            let (rtt, was_checked) = (self.wire.connection.rtt(), checks.is_open());
            if checks.judge(began.elapsed(), self.received(), rtt) {
                return;
            }
            // The newest refusal was wrong, too.
            if was_checked && !checks.is_open() && checks.are_wrong() {
                self.peer.distrust();
            }
            self.probe_until(began + checks.rest(self.interval(interval)), interval).await;
        }
    }

    /// Waits until this time. The peer hears meanwhile that this process lives: its host may refuse
    /// every probe, and the peer may be about to check this process for a refusal of its own.
    async fn probe_until(&self, time: Instant, interval: Duration) {
        loop {
            let next = Instant::now() + self.interval(interval);
            if next >= time {
                return sleep_until(time).await;
            }
            sleep_until(next).await;
            self.peer.probe();
        }
    }

    /// Sends a datagram that a living peer acknowledges, and that has no other meaning.
    fn ask(&self) {
        // Fails only where the link has ended, or the peer takes no datagrams.
        let _ = self.wire.connection.send_datagram(Bytes::from_static(ASK));
    }

    /// How many datagrams have come from the peer: packets of the link, and the peer's own probes.
    fn received(&self) -> u64 {
        self.wire.connection.stats().udp_rx.datagrams + self.peer.signs()
    }

    /// The time between two probes, if the peer refuses none.
    fn interval(&self, wanted: Duration) -> Duration {
        let links = &self.wire.links;
        let factor = if links.rests.load(Ordering::Relaxed) { RESTING_PROBE_FACTOR } else { 1 };
        wanted.max(PROBE_SPACING * links.watched.load(Ordering::Relaxed)) * factor
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.wire.links.watched.fetch_sub(1, Ordering::Relaxed);
    }
}
