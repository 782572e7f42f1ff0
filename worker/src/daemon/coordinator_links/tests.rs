//! Coordinators on real links on loopback, which send only the test's messages.

use std::net::{Ipv4Addr, UdpSocket};

use actix::{Actor, Context, Handler};
use everstep_transport::identity::{
    AdmissionDecision, Applicant, Authority, Enrolment, Gatekeeper, NODE_LIFETIME, TokenLimits,
};
use everstep_transport::protocol::{CoordinatorId, Message};
use everstep_transport::quic::Settings;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::*;

const EVENT_TIMEOUT: Duration = Duration::from_secs(20);
/// Long enough to notice a call that the worker should not have made.
const NO_DIAL_WITHIN: Duration = Duration::from_millis(700);

/// A cluster's authority and token.
struct World {
    authority: Arc<Authority>,
    token: JoinToken,
}

/// A worker that looks for coordinators, and the events for its core.
struct Worker {
    endpoint: Arc<Endpoint>,
    known: watch::Sender<Vec<CoordinatorView>>,
    told: mpsc::UnboundedReceiver<Told>,
    /// The links that are up, each with the name at its other end.
    up: BTreeMap<LinkId, NodeName>,
}

/// An event for the core.
enum Told {
    Up(LinkId, NodeName),
    Event(Box<Input>),
}

/// Takes the place of the worker's actor.
struct Ear {
    told: mpsc::UnboundedSender<Told>,
    links: BTreeMap<LinkId, Link>,
}

impl Actor for Ear {
    type Context = Context<Self>;
}

impl Handler<CoordinatorConnected> for Ear {
    type Result = ();

    fn handle(
        &mut self,
        CoordinatorConnected { id, link }: CoordinatorConnected,
        _: &mut Self::Context,
    ) {
        let _ = self.told.send(Told::Up(id, link.identity().name.clone()));
        self.links.insert(id, link);
    }
}

impl Handler<CoreInput> for Ear {
    type Result = ();

    fn handle(&mut self, CoreInput(input): CoreInput, _: &mut Self::Context) {
        if let Input::CoordinatorLost { link } = &input {
            self.links.remove(link);
        }
        let _ = self.told.send(Told::Event(input.into()));
    }
}

impl World {
    fn new() -> Self {
        let authority = Arc::new(Authority::create().unwrap());
        Self { token: JoinToken::create(&authority), authority }
    }

    fn issue(&self, role: Role, name: &str, valid: Duration) -> Credentials {
        let name = NodeName::parse(name).unwrap();
        self.authority.issue(&Identity { role, name }, valid).unwrap()
    }

    fn coordinator(&self, name: &str, listen: SocketAddr) -> Endpoint {
        let credentials = self.issue(Role::Coordinator, name, NODE_LIFETIME);
        let workers = self.token.accepted(TokenLimits::unlimited(Role::Worker));
        let enrolment = Enrolment::new(self.authority.clone(), vec![workers]);
        let settings = Settings::for_address(listen.ip());
        Endpoint::bind(listen, &credentials, settings, Some(enrolment)).unwrap()
    }

    fn worker(&self, addresses: &[SocketAddr]) -> Worker {
        let credentials = self.issue(Role::Worker, "some-worker", NODE_LIFETIME);
        self.worker_with(addresses, &credentials)
    }

    fn worker_with(&self, addresses: &[SocketAddr], credentials: &Credentials) -> Worker {
        let places = addresses.iter().map(|address| (*address).into()).collect();
        self.worker_at(places, credentials)
    }

    fn worker_at(&self, places: Vec<HostPort>, credentials: &Credentials) -> Worker {
        let settings = Settings::for_address(anywhere().ip());
        let endpoint = Endpoint::bind(anywhere(), credentials, settings, None).unwrap();
        let endpoint = Arc::new(endpoint);
        let (known, coordinators) = watch::channel(Vec::new());
        let dial_context = DialContext {
            endpoint: endpoint.clone(),
            places,
            known: coordinators,
            token: self.token.to_string().parse().unwrap(),
        };
        let (link_events, told) = mpsc::unbounded_channel();
        let ear = Ear { told: link_events, links: BTreeMap::new() }.start();
        let link_events = LinkEvents { connected: ear.clone().recipient(), event: ear.recipient() };
        actix::spawn(run(dial_context, link_events));
        Worker { endpoint, known, told, up: BTreeMap::new() }
    }
}

impl Worker {
    /// Waits for the next event for the core.
    async fn hear(&mut self) -> Told {
        let told =
            timeout(EVENT_TIMEOUT, self.told.recv()).await.expect("news in time").expect("an ear");
        match &told {
            Told::Up(link, name) => {
                self.up.insert(*link, name.clone());
            }
            Told::Event(input) => {
                if let Input::CoordinatorLost { link } = **input {
                    self.up.remove(&link);
                }
            }
        }
        told
    }

    /// Waits until the links that are up lead to these coordinators, one link each.
    async fn linked(&mut self, names: &[&str]) {
        while self.names() != names {
            self.hear().await;
        }
    }

    fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.up.values().map(NodeName::as_str).collect();
        names.sort_unstable();
        names
    }

    async fn hears_nothing(&mut self) {
        assert!(timeout(NO_DIAL_WITHIN, self.told.recv()).await.is_err());
    }

    fn learn(&self, coordinators: &[(&str, SocketAddr)]) {
        let view = |(at, (name, address)): (usize, &(&str, SocketAddr))| CoordinatorView {
            id: CoordinatorId(at as u64 + 1),
            name: NodeName::parse(name).unwrap(),
            address: *address,
            api: None,
        };
        self.known.send_replace(coordinators.iter().enumerate().map(view).collect());
    }
}

fn anywhere() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// An address on which no process listens.
fn nowhere() -> SocketAddr {
    UdpSocket::bind(anywhere()).unwrap().local_addr().unwrap()
}

#[actix::test]
async fn a_worker_holds_a_link_to_each_coordinator_that_answers() {
    let world = World::new();
    let (one, two) = (world.coordinator("one", anywhere()), world.coordinator("two", anywhere()));
    let addresses = [nowhere(), one.local_address(), two.local_address()];
    let mut worker = world.worker(&addresses);
    worker.linked(&["one", "two"]).await;
    // A follower is silent, and that is no loss.
    worker.hears_nothing().await;
    let link = two.accept().await.expect("a link");
    link.send(Message::Dismiss).unwrap();
    let Told::Event(input) = worker.hear().await else { panic!("no link came up") };
    let Input::Coordinator { link, message: Message::Dismiss } = *input else {
        panic!("it was said")
    };
    assert_eq!(worker.up[&link].as_str(), "two");
}

#[actix::test]
async fn a_name_is_resolved_and_called_at_all_of_its_addresses() {
    let world = World::new();
    // Not at localhost's first address, where that is ::1.
    let one = world.coordinator("one", anywhere());
    let named = format!("localhost:{}", one.local_address().port()).parse().unwrap();
    let credentials = world.issue(Role::Worker, "some-worker", NODE_LIFETIME);
    let mut worker = world.worker_at(vec![named], &credentials);
    worker.linked(&["one"]).await;
}

#[actix::test]
async fn a_coordinator_that_comes_up_late_is_found() {
    let world = World::new();
    let (one, late) = (world.coordinator("one", anywhere()), nowhere());
    let mut worker = world.worker(&[one.local_address(), late]);
    worker.linked(&["one"]).await;
    sleep(NO_DIAL_WITHIN).await;
    let _two = world.coordinator("two", late);
    let up = Instant::now();
    worker.linked(&["one", "two"]).await;
    println!("found {:?} after it came up", up.elapsed());
}

#[actix::test]
async fn the_death_of_one_coordinator_is_the_loss_of_one_link() {
    let world = World::new();
    let (one, two) = (world.coordinator("one", anywhere()), world.coordinator("two", anywhere()));
    let address = two.local_address();
    let mut worker = world.worker(&[one.local_address(), address]);
    worker.linked(&["one", "two"]).await;
    let before = worker.up.clone();
    drop(two);
    worker.linked(&["one"]).await;
    let mut again = None;
    while again.is_none() {
        sleep(Duration::from_millis(20)).await; // the port is not free at once
        again = UdpSocket::bind(address).ok().map(drop);
    }
    let _two = world.coordinator("two", address);
    worker.linked(&["one", "two"]).await;
    let kept = worker.up.iter().filter(|(link, _)| before.contains_key(link));
    assert_eq!(kept.map(|(_, name)| name.as_str()).collect::<Vec<_>>(), ["one"]);
}

#[actix::test]
async fn a_worker_that_was_told_of_one_learns_of_the_others_and_parts_with_the_removed() {
    let world = World::new();
    let [one, two, three] = ["one", "two", "three"].map(|it| world.coordinator(it, anywhere()));
    let mut worker = world.worker(&[one.local_address()]);
    worker.linked(&["one"]).await;
    let views = [("one", &one), ("two", &two), ("three", &three)];
    let views = views.map(|(name, endpoint)| (name, endpoint.local_address()));
    worker.learn(&views);
    worker.linked(&["one", "three", "two"]).await;
    worker.learn(&views[1..]);
    worker.linked(&["three", "two"]).await;
    // The worker does not dial even the address of the command line.
    worker.hears_nothing().await;
}

#[actix::test]
async fn a_coordinator_that_has_moved_is_called_where_it_is() {
    let world = World::new();
    let (one, two) = (world.coordinator("one", anywhere()), world.coordinator("two", anywhere()));
    let mut worker = world.worker(&[one.local_address()]);
    worker.learn(&[("one", one.local_address()), ("two", two.local_address())]);
    worker.linked(&["one", "two"]).await;
    let moved = world.coordinator("two", anywhere());
    worker.learn(&[("one", one.local_address()), ("two", moved.local_address())]);
    // The old link may end by itself: a coordinator that replaces a link closes the old one.
    worker.linked(&["one", "two", "two"]).await;
    let _called = timeout(EVENT_TIMEOUT, moved.accept()).await.expect("a call").expect("a link");
    drop(two);
    worker.linked(&["one", "two"]).await;
    worker.hears_nothing().await;
}

#[actix::test]
async fn another_node_at_a_coordinators_address_is_not_taken_for_it() {
    let world = World::new();
    let (one, two) = (world.coordinator("one", anywhere()), world.coordinator("two", anywhere()));
    let mut worker = world.worker(&[one.local_address()]);
    worker.learn(&[("one", one.local_address()), ("three", two.local_address())]);
    worker.linked(&["one"]).await;
    worker.hears_nothing().await;
}

#[actix::test]
async fn two_addresses_of_one_coordinator_are_one_link() {
    let world = World::new();
    let one = world.coordinator("one", (Ipv4Addr::UNSPECIFIED, 0).into());
    let port = one.local_address().port();
    let addresses = [1, 2].map(|last| (Ipv4Addr::new(127, 0, 0, last), port).into());
    let mut worker = world.worker(&addresses);
    worker.linked(&["one", "one"]).await; // the worker had dialled both at once
    let links = [one.accept().await.expect("a link"), one.accept().await.expect("a link")];
    links[0].close("a newer link of the same node replaced it");
    while worker.up.len() > 1 {
        worker.hear().await;
    }
    worker.hears_nothing().await;
}

#[actix::test]
async fn the_addresses_of_the_command_line_are_called_again_when_all_links_are_gone() {
    let world = World::new();
    let (one, two) = (world.coordinator("one", anywhere()), world.coordinator("two", anywhere()));
    let mut worker = world.worker(&[one.local_address()]);
    worker.learn(&[("two", two.local_address())]);
    worker.linked(&["two"]).await;
    drop(two);
    worker.linked(&["one"]).await;
}

#[actix::test]
async fn a_worker_whose_certificate_has_expired_enrols_again() {
    let world = World::new();
    let centre = world.coordinator("one", anywhere());
    let expired = world.issue(Role::Worker, "some-worker", Duration::ZERO);
    sleep(Duration::from_millis(1100)).await; // certificates count seconds
    let mut worker = world.worker_with(&[centre.local_address()], &expired);
    worker.linked(&["one"]).await;
    assert_ne!(worker.endpoint.credentials().chain(), expired.chain());
}

/// Refuses every node for this reason.
struct Closed(Refusal);

impl Gatekeeper for Closed {
    fn admit(&self, _applicant: Applicant, _now: UnixTime) -> AdmissionDecision {
        Box::pin(std::future::ready(Err(self.0.clone())))
    }

    fn renew(&self, _node: Identity, _now: UnixTime) -> AdmissionDecision {
        Box::pin(std::future::ready(Err(self.0.clone())))
    }
}

/// A coordinator that does not know its log yet lets no worker in, and that is no removal.
#[actix::test]
async fn a_worker_hears_that_it_was_removed_and_dials_no_more() {
    let world = World::new();
    for (refusal, is_removed) in [(Refusal::Undecided, false), (Refusal::Removed, true)] {
        let credentials = world.issue(Role::Coordinator, "one", NODE_LIFETIME);
        let enrolment = Enrolment::decided_by(world.authority.clone(), Closed(refusal));
        let settings = Settings::for_address(anywhere().ip());
        let one = Endpoint::bind(anywhere(), &credentials, settings, Some(enrolment)).unwrap();
        one.admit_only(|node| node.role == Role::Coordinator);
        let mut worker = world.worker(&[one.local_address()]);
        if is_removed {
            let Told::Event(input) = worker.hear().await else { panic!("a link came up") };
            assert!(matches!(*input, Input::Removed));
            assert!(worker.told.recv().await.is_none(), "the search is over");
        } else {
            worker.hears_nothing().await;
        }
    }
}
