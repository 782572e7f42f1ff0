//! The links to coordinators: one to each. The worker dials again whenever it loses one.
//!
//! Input: the addresses of the command line and, once a coordinator has sent it to the core, the
//! list of coordinators. Output: links that come up, their messages, links that are gone, and a
//! report when there was no link at all for long. The core decides whether that ends the worker.
//! Until then the search goes on. Training goes on meanwhile.
//!
//! A coordinator that does not let the worker in may merely not know its log yet. So the worker
//! asks it for a certificate. If the answer is that the worker was removed, the core hears so, and
//! the search is over.
//!
//! This module does not know which coordinator leads. A silent coordinator is as good as any other.
//! A link is lost when QUIC finds that the coordinator's process is gone, and not before.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use actix::{MailboxError, Recipient};
use everstep_transport::identity::{
    Credentials, EnrolmentError, Identity, JoinToken, Refusal, Role, UnixTime,
};
use everstep_transport::protocol::{CoordinatorView, NodeName};
use everstep_transport::quic::{
    self, ConnectError, DialSettings, Dialer, Endpoint, EnrolError, Expected, HostPort, Link,
    LinkError,
};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::event::{CoordinatorConnected, CoreInput};
use crate::step::event::{Input, LinkId};

/// How long the search lasts before the core hears that there are no coordinators.
const COORDINATORS_GONE_AFTER: Duration = Duration::from_secs(600);
/// The interval at which the log says that no coordinator can be reached.
const UNREACHABLE_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The means to reach coordinators.
pub struct DialContext {
    /// The process's QUIC endpoint.
    pub endpoint: Arc<Endpoint>,
    /// Addresses of the command line. The worker dials them until it has a list of coordinators,
    /// and whenever all links are gone. It resolves names each time.
    pub places: Vec<HostPort>,
    /// The list of coordinators. Empty until a coordinator has sent it.
    pub known: watch::Receiver<Vec<CoordinatorView>>,
    /// The token that admits the worker, and names the cluster's authority.
    pub token: JoinToken,
}

/// The receivers of the search's events.
pub struct LinkEvents {
    /// Gets each link that comes up.
    pub connected: Recipient<CoordinatorConnected>,
    /// Gets the messages of links, the loss of links, and the report that there is none.
    pub event: Recipient<CoreInput>,
}

/// Keeps a link to every coordinator and passes its messages on, until the actor has ended.
pub async fn run(dial_context: DialContext, link_events: LinkEvents) {
    // An error means that the actor has ended.
    let _ = CoordinatorLinks::new(dial_context, link_events).run().await;
}

/// The links, and the search for missing ones.
struct CoordinatorLinks {
    endpoint: Arc<RenewingEndpoint>,
    seeds: SeedAddresses,
    known: watch::Receiver<Vec<CoordinatorView>>,
    link_events: LinkEvents,
    dialer: Dialer<SocketAddr>,
    /// The names of the coordinators that the worker has met at dialed addresses.
    met: BTreeMap<SocketAddr, NodeName>,
    /// Links that are up. If there are two to one coordinator, that coordinator closes the link
    /// that it takes for the older.
    links: BTreeMap<LinkId, CoordinatorLink>,
    /// The reading tasks, one for each link that is up.
    readers: JoinSet<Result<LinkLost, MailboxError>>,
    /// The number of links that have been up.
    count: u64,
    link_loss: LinkLoss,
}

/// The addresses of the command line.
struct SeedAddresses {
    places: Vec<HostPort>,
    /// The addresses that the names last resolved to.
    addresses: Vec<SocketAddr>,
    /// The task that resolves the names.
    resolving: JoinSet<Vec<SocketAddr>>,
    /// The time before which the names are not resolved again.
    due: Instant,
}

/// A link that is up.
struct CoordinatorLink {
    address: SocketAddr,
    link: Link,
}

/// A link that is gone, and the reason.
struct LinkLost(LinkId, LinkError);

/// How long there has been no link.
struct LinkLoss {
    since: Instant,
    warned: Instant,
    /// Why the last call failed.
    reason: String,
}

impl CoordinatorLinks {
    fn new(dial_context: DialContext, link_events: LinkEvents) -> Self {
        let DialContext { endpoint, places, known, token } = dial_context;
        let now = Instant::now();
        Self {
            endpoint: Arc::new(RenewingEndpoint::new(endpoint, token)),
            seeds: SeedAddresses::new(places, now),
            known,
            link_events,
            dialer: Dialer::new(DialSettings::DEFAULT),
            met: BTreeMap::new(),
            links: BTreeMap::new(),
            readers: JoinSet::new(),
            count: 0,
            link_loss: LinkLoss { since: now, warned: now, reason: "none was named".into() },
        }
    }

    async fn run(mut self) -> Result<(), MailboxError> {
        loop {
            let wake = self.dial();
            tokio::select! {
                changed = self.known.changed() => match changed {
                    Ok(()) => self.take(),
                    Err(_) => return Ok(()), // The actor has ended.
                },
                (address, dialed) = self.dialer.dialed() => {
                    self.dialed(address, dialed).await?;
                    if self.endpoint.is_removed() {
                        return self.link_events.event.send(CoreInput(Input::Removed)).await;
                    }
                }
                Some(Ok(ended)) = self.readers.join_next() => self.lost(ended?).await?,
                Some(Ok(addresses)) = self.seeds.resolving.join_next() => {
                    self.seeds.take(addresses);
                    self.forget();
                }
                () = sleep_until(wake) => {}
            }
            self.report_outage().await?;
        }
    }

    /// Dials every wanted address that is due. Returns when to look again.
    fn dial(&mut self) -> Instant {
        let (now, is_alone) = (Instant::now(), self.links.is_empty());
        let mut wake = now + DialSettings::DEFAULT.longest_pause;
        if is_alone || self.known.borrow().is_empty() {
            self.seeds.resolve(now);
        }
        for (address, expected) in self.wanted() {
            let endpoint = self.endpoint.clone();
            let due = self.dialer.dial(address, now, |limit| async move {
                endpoint.connect_within(address, &expected, limit, is_alone).await
            });
            wake = due.map_or(wake, |due| due.min(wake));
        }
        wake
    }

    /// The addresses to dial, and the node expected at each.
    fn wanted(&self) -> BTreeMap<SocketAddr, Expected> {
        let known = self.known.borrow();
        let seeds = match known.is_empty() || self.links.is_empty() {
            true => self.seeds.addresses.as_slice(),
            false => &[],
        };
        // A coordinator may have two of these addresses, and needs one link.
        let is_linked = |address: &SocketAddr| {
            let met = self.met.get(address);
            met.is_some_and(|name| self.links.values().any(|linked| linked.name() == name))
        };
        let seeds = seeds.iter().filter(|address| !is_linked(address));
        let seeds = seeds.map(|address| (*address, Expected::Role(Role::Coordinator)));
        // The worker dials a moved coordinator at its new address, even if the old link has not
        // ended.
        let is_there = |view: &CoordinatorView| {
            let is = |linked: &CoordinatorLink| {
                (linked.name(), linked.address) == (&view.name, view.address)
            };
            self.links.values().any(is)
        };
        let listed = known.iter().filter(|view| !is_there(view)).map(|view| {
            let identity = Identity { role: Role::Coordinator, name: view.name.clone() };
            (view.address, Expected::Node(identity))
        });
        seeds.chain(listed).collect()
    }

    /// There is a new list of coordinators.
    fn take(&mut self) {
        drop(self.known.borrow_and_update());
        self.forget();
        self.part();
    }

    /// Forgets addresses that the worker no longer dials.
    fn forget(&mut self) {
        let (known, seeds) = (self.known.borrow(), &self.seeds.addresses);
        let is_named = |address: &SocketAddr| {
            seeds.contains(address) || known.iter().any(|view| view.address == *address)
        };
        self.dialer.retain(is_named);
        self.met.retain(|address, _| is_named(address));
    }

    /// Closes links to nodes that are no longer coordinators, once there is a link to a current
    /// one.
    fn part(&self) {
        let known = self.known.borrow();
        let is_known =
            |linked: &&CoordinatorLink| known.iter().any(|view| view.name == *linked.name());
        let (right, wrong): (Vec<_>, Vec<_>) = self.links.values().partition(is_known);
        if !right.is_empty() {
            let reason = "it is no coordinator of this cluster any more";
            wrong.into_iter().for_each(|linked| linked.link.close(reason));
        }
    }

    /// A call has ended.
    async fn dialed(
        &mut self,
        address: SocketAddr,
        dialed: Result<Link, ConnectError>,
    ) -> Result<(), MailboxError> {
        match dialed {
            Ok(link) => {
                self.dialer.reset(&address);
                self.met.insert(address, link.identity().name.clone());
                self.attach(address, link).await
            }
            Err(error) => {
                tracing::debug!(%address, %error, "trying again");
                self.link_loss.reason = error.to_string();
                Ok(())
            }
        }
    }

    async fn attach(&mut self, address: SocketAddr, link: Link) -> Result<(), MailboxError> {
        self.count += 1;
        let id = LinkId(self.count);
        self.link_events.connected.send(CoordinatorConnected { id, link: link.clone() }).await?;
        self.readers.spawn(read(id, link.clone(), self.link_events.event.clone()));
        self.links.insert(id, CoordinatorLink { address, link });
        self.part();
        Ok(())
    }

    /// A link is gone. The worker dials again after a short pause, since the link may go at once
    /// each time.
    async fn lost(&mut self, LinkLost(id, reason): LinkLost) -> Result<(), MailboxError> {
        let now = Instant::now();
        if let Some(linked) = self.links.remove(&id) {
            tracing::warn!(name = %linked.name(), %reason, "the link to a coordinator is lost");
            self.dialer.put_off(&linked.address);
        }
        if self.links.is_empty() {
            self.link_loss = LinkLoss { since: now, warned: now, reason: reason.to_string() };
        }
        self.link_events.event.send(CoreInput(Input::CoordinatorLost { link: id })).await
    }

    /// If there is no link, logs that now and then, and tells the core after long.
    async fn report_outage(&mut self) -> Result<(), MailboxError> {
        if !self.links.is_empty() {
            return Ok(());
        }
        let LinkLoss { since, warned, reason } = &mut self.link_loss;
        if warned.elapsed() > UNREACHABLE_LOG_INTERVAL {
            *warned = Instant::now();
            tracing::warn!(reason, "no coordinator can be reached, still trying");
        }
        if since.elapsed() <= COORDINATORS_GONE_AFTER {
            return Ok(());
        }
        *since = Instant::now();
        self.link_events.event.send(CoreInput(Input::CoordinatorGone(reason.clone()))).await
    }
}

impl SeedAddresses {
    fn new(places: Vec<HostPort>, now: Instant) -> Self {
        let addresses = places.iter().filter_map(HostPort::literal).collect();
        Self { places, addresses, resolving: JoinSet::new(), due: now }
    }

    /// Starts to resolve the names, if there are any and it is time.
    fn resolve(&mut self, now: Instant) {
        let is_literal = self.places.iter().all(|place| place.literal().is_some());
        if is_literal || now < self.due || !self.resolving.is_empty() {
            return;
        }
        self.due = now + DialSettings::DEFAULT.longest_pause;
        let places = self.places.clone();
        self.resolving.spawn(async move {
            let mut addresses = Vec::new();
            for place in places {
                match place.resolve().await {
                    Ok(found) => addresses.extend(found),
                    Err(error) => tracing::debug!(%place, %error, "the name is not known now"),
                }
            }
            addresses
        });
    }

    /// Takes what the names resolve to now. Without any answer the old addresses stay.
    fn take(&mut self, addresses: Vec<SocketAddr>) {
        if !addresses.is_empty() {
            self.addresses = addresses;
        }
    }
}

impl CoordinatorLink {
    fn name(&self) -> &NodeName {
        &self.link.identity().name
    }
}

/// Passes one link's messages on. Returns when the link has ended. An error means that the actor
/// has ended.
async fn read(
    id: LinkId,
    link: Link,
    event: Recipient<CoreInput>,
) -> Result<LinkLost, MailboxError> {
    loop {
        match link.receive().await {
            Ok(message) => event.send(CoreInput(Input::Coordinator { link: id, message })).await?,
            Err(reason) => return Ok(LinkLost(id, reason)),
        }
    }
}

/// The endpoint, which connects to coordinators with a certificate that is still valid.
struct RenewingEndpoint {
    endpoint: Arc<Endpoint>,
    token: JoinToken,
    /// Held while one call renews the certificate. One new certificate is enough.
    renewing: Mutex<()>,
    /// Whether a coordinator has said that the cluster has removed this node.
    removed: AtomicBool,
}

impl RenewingEndpoint {
    fn new(endpoint: Arc<Endpoint>, token: JoinToken) -> Self {
        Self { endpoint, token, renewing: Mutex::new(()), removed: AtomicBool::new(false) }
    }

    fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    async fn connect_within(
        &self,
        address: SocketAddr,
        expected: &Expected,
        limit: Duration,
        is_alone: bool,
    ) -> Result<Link, ConnectError> {
        let held = self.endpoint.credentials();
        // There is no link to renew it over, and no coordinator accepts an expired certificate.
        if is_alone && held.are_due(UnixTime::now()) {
            self.renew(address, &held, limit).await;
        }
        let held = self.endpoint.credentials();
        let dialed = self.endpoint.connect_within(address, expected, limit).await;
        let is_in_question = |error: &ConnectError| {
            matches!(error, ConnectError::Expired { .. }) || error.is_expulsion()
        };
        if dialed.as_ref().is_err_and(is_in_question) {
            self.renew(address, &held, limit).await;
        }
        dialed
    }

    /// Enrols again with the same key, and so under the same name, unless another call has done so.
    async fn renew(&self, address: SocketAddr, held: &Credentials, limit: Duration) {
        let _alone = self.renewing.lock().await;
        if self.endpoint.credentials().chain() != held.chain() {
            return;
        }
        match timeout(limit, quic::renew(address, &self.token, held)).await {
            Ok(Ok(renewed)) => match self.endpoint.renew(&renewed) {
                Ok(()) => tracing::info!("the worker's certificate is renewed"),
                Err(error) => tracing::warn!(%error, "the new certificate is of no use"),
            },
            Ok(Err(EnrolError::Enrolment(EnrolmentError::Refused(Refusal::Removed)))) => {
                self.removed.store(true, Ordering::Relaxed);
            }
            Ok(Err(error)) => tracing::debug!(%address, %error, "no new certificate"),
            Err(_) => tracing::debug!(%address, "no new certificate: no answer"),
        }
    }
}

#[cfg(test)]
mod tests;
