//! Peers over real links on loopback, through generations.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use actix::{Actor, Addr, AsyncContext, Context, Handler, MessageResult};
use everstep_kernels::buffer::{Buffer, Pool, Shared};
use everstep_transport::identity::{Authority, Identity, NODE_LIFETIME};
use everstep_transport::protocol::generation::Member;
use everstep_transport::protocol::{Chunk, ChunkKind, Encoding, Message, Shard, Step, exemplars};
use everstep_transport::quic::{Expected, LinkError, Settings};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::super::event::AdmitChunk;
use super::super::traffic::Traffic;
use super::*;
use crate::step::event::{Admission, Lane, StreamItem};

/// Longer than anything takes here, however busy the machine is.
const PEERS_TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A cluster's authority.
struct World {
    authority: Authority,
}

/// A worker's peers, and a core that records its inputs and admits the chunks that the test names.
struct Worker {
    id: WorkerId,
    name: NodeName,
    endpoint: Arc<Endpoint>,
    peers: Addr<Shell>,
    heard: Arc<Mutex<Vec<String>>>,
    admission: Arc<Mutex<Admission>>,
    changed: Arc<watch::Sender<u64>>,
}

struct Shell {
    peers: Peers,
    heard: Arc<Mutex<Vec<String>>>,
    admission: Arc<Mutex<Admission>>,
}

type Action = Box<dyn FnOnce(&mut Peers) -> Vec<Input> + Send>;

/// Changes the peers, inside the actor.
#[derive(actix::Message)]
#[rtype(result = "()")]
struct Do(Action);

impl Actor for Shell {
    type Context = Context<Self>;
}

impl Shell {
    fn note(&self, input: &Input) {
        let words = match input {
            Input::Peer { from, message } => format!("{from} said {}", message.name()),
            Input::PeerLost { from, reason } => format!("{from} lost: {reason}"),
            Input::Chunk { from, chunk, values } => {
                let (kind, generation, first) = (chunk.kind, chunk.generation, values[0]);
                let same = values.iter().all(|value| *value == first);
                assert!(same && values.len() == chunk.count as usize, "{chunk:?}");
                format!("{from} sent {kind:?} of {generation}: {first}")
            }
            other => format!("{other:?}"),
        };
        self.heard.lock().unwrap().push(words);
    }
}

impl Handler<Do> for Shell {
    type Result = ();

    fn handle(&mut self, Do(action): Do, _: &mut Self::Context) {
        action(&mut self.peers).iter().for_each(|input| self.note(input));
    }
}

impl Handler<PeerInput> for Shell {
    type Result = ();

    fn handle(&mut self, heard: PeerInput, _: &mut Self::Context) {
        if let Some(input) = self.peers.hear(heard) {
            self.note(&input);
        }
    }
}

impl Handler<PeerConnected> for Shell {
    type Result = ();

    fn handle(&mut self, PeerConnected(link): PeerConnected, _: &mut Self::Context) {
        let told = self.peers.admit(link.into());
        told.iter().for_each(|input| self.note(input));
    }
}

impl Handler<AdmitChunk> for Shell {
    type Result = MessageResult<AdmitChunk>;

    fn handle(&mut self, _: AdmitChunk, _: &mut Self::Context) -> Self::Result {
        MessageResult(*self.admission.lock().unwrap())
    }
}

impl World {
    fn new() -> Self {
        Self { authority: Authority::create().unwrap() }
    }

    fn endpoint(&self, role: Role, name: &str) -> Endpoint {
        let name = NodeName::parse(name).unwrap();
        let credentials = self.authority.issue(&Identity { role, name }, NODE_LIFETIME).unwrap();
        let loopback = Ipv4Addr::LOCALHOST.into();
        let settings = Settings::for_address(loopback);
        Endpoint::bind((loopback, 0).into(), &credentials, settings, None).unwrap()
    }

    fn worker(&self, id: u64) -> Worker {
        let endpoint = Arc::new(self.endpoint(Role::Worker, &format!("worker-{id}")));
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let admission = Arc::new(Mutex::new(Admission::Take));
        let (changed, watched) = watch::channel(0);
        let shell = (endpoint.clone(), heard.clone(), admission.clone());
        let peers = Shell::create(|context| {
            let (endpoint, heard, admission) = shell;
            let own = context.address();
            let reader_context = ReaderContext {
                inputs: own.clone().recipient(),
                questions: own.clone().recipient(),
                changed: watched,
                pool: Pool::new(0),
                traffic: Arc::<Traffic>::default(),
                shares_memory: true,
            };
            Shell { peers: Peers::new(endpoint, reader_context, own.recipient()), heard, admission }
        });
        let (accepting, own) = (endpoint.clone(), peers.clone());
        actix::spawn(async move {
            while let Some(link) = accepting.accept().await {
                own.do_send(PeerConnected(link));
            }
        });
        let name = NodeName::parse(&format!("worker-{id}")).unwrap();
        let (id, changed) = (WorkerId(id), Arc::new(changed));
        Worker { id, name, endpoint, peers, heard, admission, changed }
    }
}

impl Worker {
    async fn act(&self, action: impl FnOnce(&mut Peers) -> Vec<Input> + Send + 'static) {
        self.peers.send(Do(Box::new(action))).await.unwrap();
    }

    async fn enter(&self, record: &Record) {
        let (own, record) = (self.id, record.clone());
        self.act(move |peers| peers.enter(Some(own), &record)).await;
    }

    async fn begin_anew(&self) {
        self.act(|peers| {
            peers.clear("this worker begins anew");
            vec![]
        })
        .await;
    }

    async fn accept(&self, other: &Worker) {
        let (name, address) = (other.name.clone(), other.endpoint.local_address());
        let id = other.id;
        self.act(move |peers| peers.accept(id, name, address)).await;
    }

    async fn say(&self, to: &Worker, message: Message) {
        let to = to.id;
        self.act(move |peers| {
            peers.peer(to).expect("a peer").send(message);
            vec![]
        })
        .await;
    }

    async fn stream(&self, to: &Worker, generation: u64) {
        self.stream_of(to, generation, vec![1.0]).await;
    }

    async fn stream_of(&self, to: &Worker, generation: u64, values: Vec<f32>) {
        let (to, step) = (to.id, Step(3));
        self.act(move |peers| {
            let chunk = Chunk {
                kind: ChunkKind::Partial,
                encoding: Encoding::F32,
                shard: Shard(1),
                ..Chunk::message(Generation(generation), step, values.len())
            };
            let values = Shared::new(Buffer::detached(values));
            assert!(peers.peer(to).is_some(), "a peer");
            peers.stream(to, Lane::Partials, step, StreamItem::Tensor { chunk, values });
            vec![]
        })
        .await;
    }

    async fn until_it_shares_memory_with(&self, other: &Worker) {
        let (id, shares) = (other.id, Arc::<AtomicBool>::default());
        let sharing = async {
            while !shares.load(Ordering::Relaxed) {
                let told = shares.clone();
                let look = move |peers: &mut Peers| {
                    let is_so = peers.peer(id).is_some_and(|peer| peer.shares_memory());
                    told.store(is_so, Ordering::Relaxed);
                    vec![]
                };
                self.act(look).await;
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PEERS_TEST_TIMEOUT, sharing).await.expect("both are of one host");
    }

    /// Waits until the core has heard an input that begins so, and forgets the inputs before it.
    async fn hears(&self, beginning: &str) {
        let hear = async {
            loop {
                if self.has_heard(beginning) {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        let heard = timeout(PEERS_TEST_TIMEOUT, hear).await;
        heard.unwrap_or_else(|_| panic!("{beginning:?} is not in {:?}", self.heard));
    }

    fn has_heard(&self, beginning: &str) -> bool {
        let mut heard = self.heard.lock().unwrap();
        let place = heard.iter().position(|words| words.starts_with(beginning));
        place.inspect(|place| drop(heard.drain(..=*place))).is_some()
    }

    fn has_heard_nothing(&self) {
        assert_eq!(*self.heard.lock().unwrap(), [""; 0]);
    }

    fn links(&self) -> u64 {
        self.endpoint.stats().links
    }
}

/// Generation `number` of these workers.
fn record(number: u64, workers: &[&Worker]) -> Record {
    let member = |worker: &&Worker| Member {
        worker: worker.id,
        name: worker.name.clone(),
        address: worker.endpoint.local_address(),
        data_shards: vec![],
    };
    let exemplar = exemplars::all().into_iter().find_map(|message| match message {
        Message::Announce(record) => Some(record),
        _ => None,
    });
    let members = workers.iter().map(member).collect();
    Record { number: Generation(number), members, ..exemplar.unwrap() }
}

async fn enter_all(number: u64, workers: &[&Worker]) {
    let record = record(number, workers);
    for worker in workers {
        worker.enter(&record).await;
    }
}

async fn talk(one: &Worker, other: &Worker) {
    one.say(other, Message::FetchRecord).await;
    other.say(one, Message::FetchRecord).await;
    one.hears(&format!("{} said", other.id)).await;
    other.hears(&format!("{} said", one.id)).await;
}

#[actix::test]
async fn links_outlive_generations_and_reach_whoever_joins() {
    let world = World::new();
    let (one, two, three) = (world.worker(1), world.worker(2), world.worker(3));
    enter_all(1, &[&one, &two]).await;
    talk(&one, &two).await;
    enter_all(2, &[&one, &two, &three]).await;
    for (from, to) in [(&one, &two), (&one, &three), (&two, &three)] {
        talk(from, to).await;
    }
    enter_all(3, &[&three, &one, &two]).await;
    talk(&one, &three).await;
    assert_eq!([&one, &two, &three].map(Worker::links), [2; 3]);
    [&one, &two, &three].into_iter().for_each(Worker::has_heard_nothing);
}

#[actix::test]
async fn a_new_generation_gives_up_streams_and_the_link_lives_on() {
    let world = World::new();
    let (one, two) = (world.worker(1), world.worker(2));
    enter_all(1, &[&one, &two]).await;
    talk(&one, &two).await;
    *two.admission.lock().unwrap() = Admission::Wait;
    one.stream(&two, 1).await;
    sleep(Duration::from_millis(50)).await;
    one.enter(&record(2, &[&one, &two])).await;
    one.stream(&two, 2).await;
    sleep(Duration::from_millis(50)).await;
    *two.admission.lock().unwrap() = Admission::Take;
    two.changed.send_modify(|version| *version += 1);
    two.hears("1 sent Partial of 2").await;
    talk(&one, &two).await;
    two.has_heard_nothing();
}

/// A worker that was evicted is back, and a member of a generation that the other one has not
/// entered yet. What has come from it by then is the new member's.
#[actix::test]
async fn what_an_evicted_worker_sends_under_its_new_id_is_not_lost() {
    let world = World::new();
    let (one, mut two) = (world.worker(1), world.worker(2));
    enter_all(1, &[&one, &two]).await;
    talk(&one, &two).await;
    two.begin_anew().await;
    one.hears("2 lost").await;
    two.id = WorkerId(3);
    let next = record(2, &[&one, &two]);
    *one.admission.lock().unwrap() = Admission::Wait;
    two.enter(&next).await;
    two.say(&one, Message::FetchRecord).await;
    one.hears("2 said").await;
    two.stream(&one, 2).await;
    sleep(Duration::from_millis(100)).await;
    one.enter(&next).await;
    *one.admission.lock().unwrap() = Admission::Take;
    one.changed.send_modify(|version| *version += 1);
    one.hears("3 sent Partial of 2").await;
    talk(&one, &two).await;
    [&one, &two].into_iter().for_each(Worker::has_heard_nothing);
    assert_eq!([&one, &two].map(Worker::links), [1; 2], "the link is kept");
}

#[actix::test]
async fn i25_tensors_of_members_on_one_host_go_through_memory_in_each_generation() {
    let world = World::new();
    let (one, two) = (world.worker(1), world.worker(2));
    for number in 1..4 {
        enter_all(number, &[&one, &two]).await;
        for (from, to) in [(&one, &two), (&two, &one)] {
            from.until_it_shares_memory_with(to).await;
            // More than the memory has room for at once.
            for value in 0..20 {
                from.stream_of(to, number, vec![value as f32; 100_000]).await;
            }
            for value in 0..20 {
                to.hears(&format!("{} sent Partial of {number}: {value}", from.id)).await;
            }
        }
    }
    // A tensor outside the plan holds up no other.
    *two.admission.lock().unwrap() = Admission::Drop;
    for _ in 0..20 {
        one.stream_of(&two, 3, vec![7.0; 100_000]).await;
    }
    for _ in 0..20 {
        two.hears("Refused").await;
    }
    *two.admission.lock().unwrap() = Admission::Take;
    one.stream_of(&two, 3, vec![8.0; 100_000]).await;
    two.hears("1 sent Partial of 3: 8").await;
    [&one, &two].into_iter().for_each(Worker::has_heard_nothing);
}

/// Its link is kept, and the memory with it.
#[actix::test]
async fn a_worker_that_is_no_member_for_a_generation_shares_memory_again() {
    let world = World::new();
    let (one, two) = (world.worker(1), world.worker(2));
    for number in [1, 3, 5] {
        enter_all(number, &[&one, &two]).await;
        for (from, to) in [(&one, &two), (&two, &one)] {
            from.until_it_shares_memory_with(to).await;
            for value in 0..5 {
                from.stream_of(to, number, vec![value as f32; 100_000]).await;
            }
            for value in 0..5 {
                to.hears(&format!("{} sent Partial of {number}: {value}", from.id)).await;
            }
        }
        one.enter(&record(number + 1, &[&one])).await;
        if number == 3 {
            two.enter(&record(number + 1, &[&one])).await;
        }
    }
    [&one, &two].into_iter().for_each(Worker::has_heard_nothing);
}

#[actix::test]
async fn what_waits_for_a_link_is_sent_in_its_generation_and_dropped_after_it() {
    let world = World::new();
    let (one, two) = (world.worker(1), world.worker(2));
    // The older worker waits until the newer one dials it.
    one.enter(&record(1, &[&one, &two])).await;
    one.say(&two, Message::Dismiss).await;
    one.stream(&two, 1).await;
    one.enter(&record(2, &[&one, &two])).await;
    one.say(&two, Message::FetchRecord).await;
    one.stream(&two, 2).await;
    two.enter(&record(2, &[&one, &two])).await;
    let both = async {
        while two.heard.lock().unwrap().len() < 2 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let arrived = timeout(PEERS_TEST_TIMEOUT, both).await;
    arrived.unwrap_or_else(|_| panic!("{:?}", two.heard));
    sleep(Duration::from_millis(300)).await; // what was to be dropped would follow by then
    let mut heard = two.heard.lock().unwrap().clone();
    heard.sort();
    assert_eq!(heard, ["1 said fetch_record", "1 sent Partial of 2: 1"]);
}

#[actix::test]
async fn a_joiner_waits_as_a_stranger_until_it_is_met() {
    let world = World::new();
    let (one, two, joiner) = (world.worker(1), world.worker(2), world.worker(3));
    for number in [1, 2] {
        enter_all(number, &[&one, &two]).await;
        joiner.enter(&record(number, &[&one, &two])).await;
        joiner.say(&one, Message::FetchRecord).await;
        sleep(Duration::from_millis(200)).await;
        one.has_heard_nothing();
        for member in [&one, &two] {
            member.accept(&joiner).await;
        }
        one.hears("3 said fetch_record").await;
        talk(&two, &joiner).await;
        // Its links see another generation begin.
        assert_eq!((one.links(), joiner.links()), (2, 2));
    }
    joiner.has_heard_nothing();
}

#[actix::test]
async fn a_joiner_that_was_lost_calls_again_and_is_fed_on_its_new_link() {
    let world = World::new();
    let (one, joiner) = (world.worker(1), world.worker(2));
    one.enter(&record(1, &[&one])).await;
    joiner.enter(&record(1, &[&one])).await;
    one.accept(&joiner).await;
    talk(&one, &joiner).await;
    one.stream(&joiner, 1).await;
    joiner.hears("1 sent Partial").await;
    let id = one.id;
    joiner
        .act(move |peers| {
            let link = peers.known.remove(&id).and_then(Peer::into_connection);
            link.expect("there was one").link.close("cut");
            vec![]
        })
        .await;
    one.hears("2 lost: the peer closed the link: cut").await;
    joiner.accept(&one).await;
    talk(&one, &joiner).await;
    one.accept(&joiner).await;
    one.stream(&joiner, 1).await;
    joiner.hears("1 sent Partial").await;
    one.has_heard_nothing();
}

#[actix::test]
async fn a_link_to_who_is_no_peer_is_closed_after_some_generations() {
    let world = World::new();
    let (one, two) = (world.worker(1), world.worker(2));
    enter_all(1, &[&one, &two]).await;
    talk(&one, &two).await;
    for number in 2..=u64::from(MAX_PENDING_GENERATIONS) + 1 {
        one.enter(&record(number, &[&one])).await;
        one.has_heard_nothing();
    }
    one.enter(&record(9, &[&one])).await;
    one.hears("Refused").await;
    two.hears("1 lost: the peer closed the link: this node is not a member").await;
}

#[actix::test]
async fn a_link_that_does_not_come_up_is_told_once() {
    let world = World::new();
    let (one, two, absent) = (world.worker(1), world.worker(2), world.worker(3));
    one.enter(&record(1, &[&one, &two, &absent])).await;
    two.enter(&record(1, &[&one, &two, &absent])).await;
    talk(&one, &two).await;
    one.act(Peers::overdue).await;
    one.has_heard_nothing();
    sleep(PEER_LINK_TIMEOUT).await;
    one.act(Peers::overdue).await;
    one.act(Peers::overdue).await;
    one.hears("3 lost: no link to it came up within 3s").await;
    one.has_heard_nothing();
}

#[actix::test]
async fn a_newer_link_takes_the_place_of_one_that_its_caller_lost() {
    let world = World::new();
    for is_used in [false, true] {
        let (one, two) = (world.worker(1), world.worker(2));
        enter_all(1, &[&one, &two]).await;
        talk(&one, &two).await;
        enter_all(2, &[&one, &two]).await;
        if is_used {
            one.say(&two, Message::FetchRecord).await;
            two.hears("1 said").await;
        }
        let called = two.endpoint.connect(one.endpoint.local_address(), &Expected::Anyone).await;
        let link = called.unwrap();
        two.hears("1 lost: the peer closed the link: a newer link takes its place").await;
        if is_used {
            one.hears("2 lost: it has connected anew").await;
        }
        link.send(Message::FetchRecord).unwrap();
        one.hears("2 said fetch_record").await;
        one.has_heard_nothing();
    }
}

#[actix::test]
async fn a_link_that_was_lost_comes_up_again_in_the_next_generation() {
    let world = World::new();
    let (one, two) = (world.worker(1), world.worker(2));
    enter_all(1, &[&one, &two]).await;
    talk(&one, &two).await;
    two.begin_anew().await;
    one.hears("2 lost: the peer closed the link: this worker begins anew").await;
    enter_all(2, &[&one, &two]).await;
    talk(&one, &two).await;
}

#[actix::test]
async fn only_workers_call_workers() {
    let world = World::new();
    let one = world.worker(1);
    let operator = world.endpoint(Role::Operator, "operator");
    let link = operator.connect(one.endpoint.local_address(), &Expected::Anyone).await.unwrap();
    assert!(matches!(link.closed().await, LinkError::Closed { .. }));
    one.hears("Refused").await;
}
