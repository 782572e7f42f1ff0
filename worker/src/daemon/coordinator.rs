//! The links to coordinators: one to each of them, found again whenever it is lost.
//!
//! In: the addresses of the command line and, once somebody has told the core, who the coordinators
//! are. Out: which links are up, what is said on them, which are gone; and that there was none at
//! all for long. Whether that ends the worker is the core's to say, and as long as it does not, the
//! search goes on. Training goes on meanwhile.
//!
//! Which coordinator leads is not known here. One that says nothing is no worse than another: its
//! link is lost when QUIC finds that its process is gone, and not before.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use actix::{MailboxError, Recipient};
use everstep_transport::identity::{Credentials, Identity, JoinToken, Role, UnixTime};
use everstep_transport::protocol::{CoordinatorView, NodeName};
use everstep_transport::quic::{self, ConnectError, Endpoint, Expected, HostPort, Link, LinkError};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::event::{Connected, Event};
use crate::step::event::{Input, LinkId};

/// How long coordinators are looked for before the core is told that there are none.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often the log says that none is found.
const WARNING: Duration = Duration::from_secs(60);
/// Between two calls at one place, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long one call may take, at first and at most: QUIC asks a silent port ever less often, so a
/// fresh call hears sooner of a coordinator that has just come up.
const CALLS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));

/// What it takes to reach coordinators.
pub struct Reach {
    /// The process's port.
    pub endpoint: Arc<Endpoint>,
    /// Where some listen: called as long as nobody has said who they are, and when all links are
    /// gone. Names are resolved each time.
    pub places: Vec<HostPort>,
    /// Who they are; empty until somebody has said so.
    pub known: watch::Receiver<Vec<CoordinatorView>>,
    /// The join token.
    pub token: JoinToken,
}

/// Who is told what comes of it.
pub struct Tell {
    /// That a link is up.
    pub connected: Recipient<Connected>,
    /// What is said on it, that it is gone, and that there is none.
    pub event: Recipient<Event>,
}

/// Holds a link to every coordinator and carries what they say, until whoever is told has ended.
pub async fn attend(reach: Reach, tell: Tell) {
    let _ = Search::new(reach, tell).run().await; // an error means just that
}

/// The links, and where others are looked for.
struct Search {
    caller: Arc<Caller>,
    named: Named,
    known: watch::Receiver<Vec<CoordinatorView>>,
    tell: Tell,
    places: BTreeMap<SocketAddr, Place>,
    /// Those that are up. Where there are two to one coordinator, it closes the one that it takes
    /// for the older.
    links: BTreeMap<LinkId, Linked>,
    calls: JoinSet<(SocketAddr, Result<Link, ConnectError>)>,
    /// One for each link that is up.
    readers: JoinSet<Result<Ended, MailboxError>>,
    /// How many links have been up.
    count: u64,
    want: Want,
}

/// An address that is called.
struct Place {
    /// Who was there.
    met: Option<NodeName>,
    is_called: bool,
    /// When it may be called again.
    due: Instant,
    pause: Duration,
    limit: Duration,
}

/// The places of the command line.
struct Named {
    places: Vec<HostPort>,
    /// What they stood for when they were last resolved.
    addresses: Vec<SocketAddr>,
    /// The task that resolves them.
    resolving: JoinSet<Vec<SocketAddr>>,
    /// When they may be resolved again.
    due: Instant,
}

/// A link that is up.
struct Linked {
    address: SocketAddr,
    link: Link,
}

/// A link that is gone, and why.
struct Ended(LinkId, LinkError);

/// The want of any link.
struct Want {
    since: Instant,
    warned: Instant,
    /// Why the last call led to nothing.
    reason: String,
}

impl Search {
    fn new(reach: Reach, tell: Tell) -> Self {
        let Reach { endpoint, places, known, token } = reach;
        let now = Instant::now();
        Self {
            caller: Arc::new(Caller { endpoint, token, renewing: Mutex::new(()) }),
            named: Named::new(places, now),
            known,
            tell,
            places: BTreeMap::new(),
            links: BTreeMap::new(),
            calls: JoinSet::new(),
            readers: JoinSet::new(),
            count: 0,
            want: Want { since: now, warned: now, reason: "none was named".into() },
        }
    }

    async fn run(mut self) -> Result<(), MailboxError> {
        loop {
            let wake = self.call();
            tokio::select! {
                changed = self.known.changed() => match changed {
                    Ok(()) => self.take(),
                    Err(_) => return Ok(()), // nobody is there to tell
                },
                Some(Ok((address, called))) = self.calls.join_next() => {
                    self.called(address, called).await?;
                }
                Some(Ok(ended)) = self.readers.join_next() => self.lost(ended?).await?,
                Some(Ok(addresses)) = self.named.resolving.join_next() => {
                    self.named.take(addresses);
                    self.forget();
                }
                () = sleep_until(wake) => {}
            }
            self.complain().await?;
        }
    }

    /// Calls where a link is wanted, once it is time; returns when it is time to look again.
    fn call(&mut self) -> Instant {
        let (now, is_alone) = (Instant::now(), self.links.is_empty());
        let mut wake = now + PAUSES.1;
        if is_alone || self.known.borrow().is_empty() {
            self.named.resolve(now);
        }
        for (address, expected) in self.wanted() {
            let place = self.places.entry(address).or_insert_with(|| Place::new(now));
            if place.is_called {
                continue;
            }
            if place.due > now {
                wake = wake.min(place.due);
                continue;
            }
            place.is_called = true;
            let (caller, limit) = (self.caller.clone(), place.limit);
            self.calls.spawn(async move {
                (address, caller.call(address, &expected, limit, is_alone).await)
            });
        }
        wake
    }

    /// Where links are wanted, and to whom.
    fn wanted(&self) -> BTreeMap<SocketAddr, Expected> {
        let known = self.known.borrow();
        let named = match known.is_empty() || self.links.is_empty() {
            true => self.named.addresses.as_slice(),
            false => &[],
        };
        // A coordinator may have two of these addresses, and needs one link.
        let is_linked = |address: &SocketAddr| {
            let met = self.places.get(address).and_then(|place| place.met.as_ref());
            met.is_some_and(|name| self.links.values().any(|linked| linked.name() == name))
        };
        let named = named.iter().filter(|address| !is_linked(address));
        let named = named.map(|address| (*address, Expected::Role(Role::Coordinator)));
        // One that has moved is called where it is now, though its old link may not have ended.
        let is_there = |view: &CoordinatorView| {
            let is =
                |linked: &Linked| (linked.name(), linked.address) == (&view.name, view.address);
            self.links.values().any(is)
        };
        let listed = known.iter().filter(|view| !is_there(view)).map(|view| {
            let identity = Identity { role: Role::Coordinator, name: view.name.clone() };
            (view.address, Expected::Node(identity))
        });
        named.chain(listed).collect()
    }

    /// There is news of who the coordinators are.
    fn take(&mut self) {
        drop(self.known.borrow_and_update());
        self.forget();
        self.part();
    }

    /// Forgets addresses at which no coordinator is looked for any more.
    fn forget(&mut self) {
        let (known, named) = (self.known.borrow(), &self.named.addresses);
        let is_named = |address: &SocketAddr| {
            named.contains(address) || known.iter().any(|view| view.address == *address)
        };
        self.places.retain(|address, place| place.is_called || is_named(address));
    }

    /// Parts with those that are no coordinators any more, once there is a link to one that is.
    fn part(&self) {
        let known = self.known.borrow();
        let is_known = |linked: &&Linked| known.iter().any(|view| view.name == *linked.name());
        let (right, wrong): (Vec<_>, Vec<_>) = self.links.values().partition(is_known);
        if !right.is_empty() {
            let reason = "it is no coordinator of this cluster any more";
            wrong.into_iter().for_each(|linked| linked.link.close(reason));
        }
    }

    /// A call has ended.
    async fn called(
        &mut self,
        address: SocketAddr,
        called: Result<Link, ConnectError>,
    ) -> Result<(), MailboxError> {
        let now = Instant::now();
        let place = self.places.entry(address).or_insert_with(|| Place::new(now));
        place.is_called = false;
        match called {
            Ok(link) => {
                *place = Place { met: Some(link.identity().name.clone()), ..Place::new(now) };
                self.attach(address, link).await
            }
            Err(error) => {
                tracing::debug!(%address, %error, "trying again");
                place.put_off(now);
                self.want.reason = error.to_string();
                Ok(())
            }
        }
    }

    async fn attach(&mut self, address: SocketAddr, link: Link) -> Result<(), MailboxError> {
        self.count += 1;
        let id = LinkId(self.count);
        self.tell.connected.send(Connected { id, link: link.clone() }).await?;
        self.readers.spawn(read(id, link.clone(), self.tell.event.clone()));
        self.links.insert(id, Linked { address, link });
        self.part();
        Ok(())
    }

    /// A link is gone. It is called again after a short while only: it may go at once each time.
    async fn lost(&mut self, Ended(id, reason): Ended) -> Result<(), MailboxError> {
        let now = Instant::now();
        if let Some(linked) = self.links.remove(&id) {
            tracing::warn!(name = %linked.name(), %reason, "the link to a coordinator is lost");
            if let Some(place) = self.places.get_mut(&linked.address) {
                place.put_off(now);
            }
        }
        if self.links.is_empty() {
            self.want = Want { since: now, warned: now, reason: reason.to_string() };
        }
        self.tell.event.send(Event(Input::CoordinatorLost { link: id })).await
    }

    /// Says now and then that there is no link, if there is none.
    async fn complain(&mut self) -> Result<(), MailboxError> {
        if !self.links.is_empty() {
            return Ok(());
        }
        let Want { since, warned, reason } = &mut self.want;
        if warned.elapsed() > WARNING {
            *warned = Instant::now();
            tracing::warn!(reason, "no coordinator can be reached; still trying");
        }
        if since.elapsed() <= PATIENCE {
            return Ok(());
        }
        *since = Instant::now();
        self.tell.event.send(Event(Input::CoordinatorGone(reason.clone()))).await
    }
}

impl Named {
    fn new(places: Vec<HostPort>, now: Instant) -> Self {
        let addresses = places.iter().filter_map(HostPort::literal).collect();
        Self { places, addresses, resolving: JoinSet::new(), due: now }
    }

    /// Has the names resolved, if there are any and it is time.
    fn resolve(&mut self, now: Instant) {
        let is_literal = self.places.iter().all(|place| place.literal().is_some());
        if is_literal || now < self.due || !self.resolving.is_empty() {
            return;
        }
        self.due = now + PAUSES.1;
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

    /// What the names stand for now. Without any answer, what they stood for remains.
    fn take(&mut self, addresses: Vec<SocketAddr>) {
        if !addresses.is_empty() {
            self.addresses = addresses;
        }
    }
}

impl Linked {
    fn name(&self) -> &NodeName {
        &self.link.identity().name
    }
}

impl Place {
    /// To be called at once.
    fn new(now: Instant) -> Self {
        Self { met: None, is_called: false, due: now, pause: PAUSES.0, limit: CALLS.0 }
    }

    fn put_off(&mut self, now: Instant) {
        self.due = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSES.1);
        self.limit = (self.limit * 2).min(CALLS.1);
    }
}

/// Carries one link's messages; returns when it has ended. An error means that nobody is told any
/// more.
async fn read(id: LinkId, link: Link, event: Recipient<Event>) -> Result<Ended, MailboxError> {
    loop {
        match link.receive().await {
            Ok(message) => event.send(Event(Input::Coordinator { link: id, message })).await?,
            Err(reason) => return Ok(Ended(id, reason)),
        }
    }
}

/// Calls coordinators, with a certificate that is good for it.
struct Caller {
    endpoint: Arc<Endpoint>,
    token: JoinToken,
    /// One certificate is enough.
    renewing: Mutex<()>,
}

impl Caller {
    async fn call(
        &self,
        address: SocketAddr,
        expected: &Expected,
        limit: Duration,
        is_alone: bool,
    ) -> Result<Link, ConnectError> {
        let held = self.endpoint.credentials();
        // No link to renew it over: a certificate that has expired lets nobody in.
        if is_alone && held.are_due(UnixTime::now()) {
            self.renew(address, &held, limit).await;
        }
        let held = self.endpoint.credentials();
        let called = timeout(limit, self.endpoint.connect(address, expected)).await;
        let called = called.unwrap_or(Err(ConnectError::NoAnswer { address }));
        if matches!(called, Err(ConnectError::Expired { .. })) {
            self.renew(address, &held, limit).await;
        }
        called
    }

    /// Enrols again with the same key, and so under the same name, unless somebody else has.
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
            Ok(Err(error)) => tracing::debug!(%address, %error, "no new certificate"),
            Err(_) => tracing::debug!(%address, "no new certificate: no answer"),
        }
    }
}

#[cfg(test)]
mod tests;
