//! Dials nodes again and again: after ever longer pauses, and for ever longer each time.
//!
//! In: the nodes to dial, which may change from moment to moment. Out: links, and the reasons why
//! there is none. [`Dialer`] dials many nodes at once, each in a task of its own. [`DialBackoff`]
//! paces the dials of one node, for a caller that has a task for it. This module does not know
//! which nodes ought to be connected, what is expected of them, or what becomes of a link.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{ConnectError, Endpoint, Expected, Link};

/// How long the pauses between two dials of a node are, and how long a dial may take. Each pause,
/// and each dial, may take twice as long as the one before.
#[derive(Clone, Copy, Debug)]
pub struct DialSettings {
    /// The pause after the first dial.
    pub first_pause: Duration,
    /// No pause is longer.
    pub longest_pause: Duration,
    /// How long the first dial may take. QUIC asks a silent port ever less often, so a new dial
    /// finds a node that has just come up sooner than an old one does.
    pub first_timeout: Duration,
    /// No dial takes longer, nor longer than the endpoint lets a handshake take.
    pub longest_timeout: Duration,
}

impl DialSettings {
    /// Finds a node soon after it comes up, at the cost of a packet or two a second until then.
    pub const DEFAULT: Self = Self {
        first_pause: Duration::from_millis(50),
        longest_pause: Duration::from_secs(1),
        first_timeout: Duration::from_millis(500),
        longest_timeout: Duration::from_secs(3),
    };
}

/// The pace at which one node is dialed.
#[derive(Clone, Copy, Debug)]
pub struct DialBackoff {
    settings: DialSettings,
    pause: Duration,
    timeout: Duration,
}

impl DialBackoff {
    /// The pace of a node that was not dialed before.
    pub fn new(settings: DialSettings) -> Self {
        Self { settings, pause: settings.first_pause, timeout: settings.first_timeout }
    }

    /// Dials the node once.
    ///
    /// # Errors
    /// [`ConnectError`]. It is [`ConnectError::NoAnswer`] if the dial takes too long.
    pub async fn dial(
        &self,
        endpoint: &Endpoint,
        address: SocketAddr,
        expected: &Expected,
    ) -> Result<Link, ConnectError> {
        endpoint.connect_within(address, expected, self.timeout).await
    }

    /// Waits until the node may be dialed again.
    pub async fn pause(&mut self) {
        sleep(self.next_pause()).await;
    }

    /// The pause that is due now. The next one is longer, and so is the next dial.
    fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(self.settings.longest_pause);
        self.timeout = (self.timeout * 2).min(self.settings.longest_timeout);
        pause
    }

    /// There was a link: the pace is that of a new node again.
    pub fn reset(&mut self) {
        *self = Self::new(self.settings);
    }
}

/// Dials many nodes, at most once at a time each. `K` tells one node from another.
///
/// The caller offers every node to which a link is missing ([`Dialer::dial`]), again after every
/// event, and awaits what comes of it ([`Dialer::dialed`]). Dials end when this is dropped.
#[derive(Debug)]
pub struct Dialer<K> {
    settings: DialSettings,
    targets: BTreeMap<K, DialTarget>,
    dials: JoinSet<(K, Result<Link, ConnectError>)>,
}

/// A node that was offered.
#[derive(Debug)]
struct DialTarget {
    backoff: DialBackoff,
    is_dialing: bool,
    /// The time before which it is not dialed again.
    due: Instant,
}

impl<K: Copy + Ord + Send + 'static> Dialer<K> {
    /// A dialer that has not dialed any node.
    pub fn new(settings: DialSettings) -> Self {
        Self { settings, targets: BTreeMap::new(), dials: JoinSet::new() }
    }

    /// Dials the node by `connect`, which gets the time that it may take, unless a dial of the node
    /// is under way or the next is not due yet. A node that is new here is due at `first`. Returns
    /// when to offer the node again, if time alone makes it due.
    pub fn dial<F>(
        &mut self,
        node: K,
        first: Instant,
        connect: impl FnOnce(Duration) -> F,
    ) -> Option<Instant>
    where
        F: Future<Output = Result<Link, ConnectError>> + Send + 'static,
    {
        let backoff = DialBackoff::new(self.settings);
        let new = DialTarget { backoff, is_dialing: false, due: first };
        let target = self.targets.entry(node).or_insert(new);
        if target.is_dialing {
            return None;
        }
        if target.due > Instant::now() {
            return Some(target.due);
        }
        target.is_dialing = true;
        let dial = connect(target.backoff.timeout);
        self.dials.spawn(async move { (node, dial.await) });
        None
    }

    /// The next dial that ends. Its node is not due before a pause, even if there is a link now: it
    /// may be lost at once. Pending while no dial is under way. Cancel-safe.
    pub async fn dialed(&mut self) -> (K, Result<Link, ConnectError>) {
        loop {
            match self.dials.join_next().await {
                Some(Ok((node, dialed))) => {
                    if let Some(target) = self.targets.get_mut(&node) {
                        target.is_dialing = false;
                    }
                    self.put_off(&node);
                    return (node, dialed);
                }
                Some(Err(_)) => {} // The runtime ends.
                None => std::future::pending().await,
            }
        }
    }

    /// A link to the node is lost: it is not due before a pause.
    pub fn put_off(&mut self, node: &K) {
        if let Some(target) = self.targets.get_mut(node) {
            target.due = Instant::now() + target.backoff.next_pause();
        }
    }

    /// There is a link to the node, and the next pauses are short again. Once the link is lost, the
    /// node is due at once.
    pub fn reset(&mut self, node: &K) {
        if let Some(target) = self.targets.get_mut(node) {
            target.backoff.reset();
            target.due = Instant::now();
        }
    }

    /// Forgets the pace of all other nodes, unless a dial is under way.
    pub fn retain(&mut self, is_wanted: impl Fn(&K) -> bool) {
        self.targets.retain(|node, target| target.is_dialing || is_wanted(node));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Pauses that no test outlasts.
    const PATIENT: DialSettings = DialSettings {
        first_pause: Duration::from_secs(1_000),
        longest_pause: Duration::from_secs(3_000),
        ..DialSettings::DEFAULT
    };

    async fn fails() -> Result<Link, ConnectError> {
        Err(ConnectError::NoAnswer { address: (Ipv4Addr::LOCALHOST, 1).into() })
    }

    #[test]
    fn pauses_and_time_outs_double_up_to_their_limits_and_begin_anew_after_a_link() {
        let mut backoff = DialBackoff::new(DialSettings::DEFAULT);
        let mut paces = |count: usize| -> Vec<(u128, u128)> {
            let pace = |backoff: &mut DialBackoff| {
                (backoff.timeout.as_millis(), backoff.next_pause().as_millis())
            };
            let paces = (0..count).map(|_| pace(&mut backoff)).collect();
            backoff.reset();
            paces
        };
        let expected =
            [(500, 50), (1_000, 100), (2_000, 200), (3_000, 400), (3_000, 800), (3_000, 1_000)];
        assert_eq!(paces(6), expected);
        assert_eq!(paces(1), expected[..1]);
    }

    #[tokio::test]
    async fn a_node_is_dialed_once_at_a_time_and_not_before_its_pause_is_over() {
        let mut dialer = Dialer::new(PATIENT);
        let now = Instant::now();
        assert_eq!(dialer.dial(7, now, |_| fails()), None);
        let again = |_| -> std::future::Ready<_> { panic!("a dial is under way") };
        assert_eq!(dialer.dial(7, now, again), None);
        let (node, dialed) = dialer.dialed().await;
        assert!(node == 7 && dialed.is_err());
        let again = |_| -> std::future::Ready<_> { panic!("it is too early") };
        let due = dialer.dial(7, now, again).expect("it is due later");
        assert!(due >= now + PATIENT.first_pause && due < now + PATIENT.longest_pause);
        let limit = |limit: Duration| {
            assert_eq!(limit, DialSettings::DEFAULT.first_timeout, "the pace begins anew");
            fails()
        };
        dialer.reset(&7);
        assert_eq!(dialer.dial(7, now, limit), None);
    }

    #[tokio::test]
    async fn a_new_node_is_dialed_when_the_caller_says_and_a_forgotten_one_is_new() {
        let mut dialer = Dialer::new(PATIENT);
        let (now, later) = (Instant::now(), Instant::now() + PATIENT.first_pause);
        assert_eq!(dialer.dial(1, later, |_| fails()), Some(later));
        assert_eq!(dialer.dial(1, now, |_| fails()), Some(later));
        assert_eq!(dialer.dial(2, now, |_| fails()), None);
        dialer.retain(|_| false);
        assert_eq!(dialer.targets.keys().collect::<Vec<_>>(), [&2], "its dial is under way");
        assert_eq!(dialer.dial(1, now, |_| fails()), None);
    }
}
