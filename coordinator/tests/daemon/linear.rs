//! Clients of a cluster with leaders that are killed and stopped see one history.
//!
//! Each token is a register: it exists, or not. So is whether a run is under way. Writers make and
//! revoke tokens, and submit and cancel runs. Readers read lists of all. Both use links and HTTP.
//! In the end a judge checks all answers and their times.

#[path = "../../../chaos/src/check/linear.rs"]
mod judge;
mod reader;
mod writer;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use everstep_transport::identity::{Credentials, Role, TokenId, format_token_id};
use everstep_transport::protocol::Message;
use everstep_transport::quic::{Endpoint, Expected, Link, Settings};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use self::judge::{Action, Operation, check};
use crate::several::leader;
use crate::support::{Cluster, Member, anywhere};

/// Longer than anything takes here, however busy the machine is.
const LINEAR_TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a leader is stopped. Readers wait longer, to hear its answer afterwards.
const LEADER_STOPPED_FOR: Duration = Duration::from_millis(700);
/// How often the test kills or stops a leader.
const ROUNDS: u64 = 9;
/// How many answers come between one of these and the next.
const PROGRESS: u64 = 100;
/// How many tokens the writers share.
const TOKENS: u8 = 6;
/// The register of the run, which belongs to no token.
const RUN: &str = "a run is under way";

/// The addresses of one coordinator, and the token of its API.
#[derive(Clone)]
struct Place {
    links: SocketAddr,
    api: SocketAddr,
    bearer: String,
}

/// The coordinators, by place.
type Places = Arc<Mutex<Vec<Place>>>;

/// The content of one list, which a client saw at once.
struct List {
    /// Whether the list is of runs. Otherwise it is of tokens.
    of_runs: bool,
    /// The registers that hold true.
    there: BTreeSet<String>,
    called: u64,
    answered: u64,
}

/// The observations of all clients.
struct Record {
    start: Instant,
    changes: Mutex<Vec<Operation<String, bool>>>,
    lists: Mutex<Vec<List>>,
    /// How many operations were answered.
    answered: AtomicU64,
    round: AtomicU64,
    over: AtomicBool,
}

impl Record {
    fn begin() -> Arc<Self> {
        let (changes, lists) = Default::default();
        let (answered, round) = (AtomicU64::new(0), AtomicU64::new(0));
        let (start, over) = (Instant::now(), AtomicBool::new(false));
        Arc::new(Self { start, changes, lists, answered, round, over })
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn note(&self, key: &str, action: Action<bool>, called: u64, answered: Option<u64>) {
        let operation = Operation { key: key.into(), action, called, answered };
        self.changes.lock().expect("no thread panics").push(operation);
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    fn note_list(&self, list: List) {
        self.lists.lock().expect("no thread panics").push(list);
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Waits until clients have had so many more answers.
    async fn progresses(&self, by: u64) {
        let (before, start) = (self.answered.load(Ordering::Relaxed), Instant::now());
        while self.answered.load(Ordering::Relaxed) < before + by {
            assert!(start.elapsed() < LINEAR_TEST_TIMEOUT, "no client is answered any more");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Everything as operations: a list is a read of each register of its kind. No client made the
    /// tokens that the cluster began with.
    fn history(&self, first: &[String]) -> Vec<Operation<String, bool>> {
        let mut history = self.changes.lock().expect("no thread panics").clone();
        let known: BTreeSet<String> = history.iter().map(|it| it.key.clone()).collect();
        for List { of_runs, there, called, answered } in
            self.lists.lock().expect("no thread panics").iter()
        {
            let there: BTreeSet<_> =
                there.iter().filter(|name| !first.contains(name)).cloned().collect();
            assert!(there.is_subset(&known), "nobody has made one of {there:?}");
            let read = |key: &String| Operation {
                key: key.clone(),
                action: Action::Read(there.contains(key)),
                called: *called,
                answered: Some(*answered),
            };
            history.extend(known.iter().filter(|key| (*key == RUN) == *of_runs).map(read));
        }
        history
    }
}

fn id_of(key: u8) -> TokenId {
    [key + 1; 9]
}

fn name_of(key: u8) -> String {
    format_token_id(&id_of(key))
}

/// An operator with a link to one coordinator at a time.
struct Client {
    number: u64,
    endpoint: Endpoint,
    places: Places,
    record: Arc<Record>,
    link: Option<(usize, Link)>,
}

impl Client {
    fn new(number: u64, credentials: &Credentials, places: &Places, record: &Arc<Record>) -> Self {
        let settings = Settings::for_address(anywhere().ip());
        let endpoint = Endpoint::bind(anywhere(), credentials, settings, None).expect("bound");
        Self { number, endpoint, places: places.clone(), record: record.clone(), link: None }
    }

    fn place(&self, at: usize) -> Place {
        self.places.lock().expect("no thread panics")[at].clone()
    }

    /// The answer of the coordinator at a place, if it leads. Otherwise the client drops the link.
    async fn ask(&mut self, place: usize, question: Message, haste: Duration) -> Option<Message> {
        let link = match self.link.take().filter(|(at, _)| *at == place) {
            Some((_, link)) => link,
            None => {
                let address = self.place(place).links;
                let expected = Expected::Role(Role::Coordinator);
                timeout(haste, self.endpoint.connect(address, &expected)).await.ok()?.ok()?
            }
        };
        let answer = timeout(haste, hear(&link, question)).await.ok()??;
        self.link = Some((place, link));
        Some(answer)
    }
}

/// The answer. None if another coordinator leads, or none does.
async fn hear(link: &Link, question: Message) -> Option<Message> {
    link.send(question).ok()?;
    loop {
        match link.receive().await.ok()? {
            Message::Coordinators { leader, members, .. } => {
                let asked = members.iter().find(|view| view.address == link.remote_address());
                if leader.is_none() || leader != asked.map(|view| view.id) {
                    return None;
                }
            }
            message => return Some(message),
        }
    }
}

fn place_of(member: &Member) -> Place {
    let token = std::fs::read_to_string(member.path("api.token")).expect("a token");
    let bearer = format!("Bearer {}", token.trim());
    Place { links: member.address, api: member.api, bearer }
}

/// The place of the leader.
async fn leading(members: &[Option<Member>]) -> usize {
    let there: Vec<&Member> = members.iter().flatten().collect();
    let address = leader(&there, 3).await.address;
    let leads = |member: &Option<Member>| member.as_ref().is_some_and(|it| it.address == address);
    members.iter().position(leads).expect("one of them")
}

/// Kills a coordinator, which comes back, or stops it for a while.
async fn strike(members: &mut [Option<Member>], place: usize, places: &Places, kill: bool) {
    if kill {
        let killed = members[place].take().expect("it is there");
        let restarted = spawn_blocking(|| killed.restarted()).await.expect("it starts");
        places.lock().expect("no thread panics")[place] = place_of(&restarted);
        members[place] = Some(restarted);
    } else {
        let stopped = members[place].as_ref().expect("it is there");
        stopped.signal("STOP");
        sleep(LEADER_STOPPED_FOR).await;
        stopped.signal("CONT");
    }
}

#[tokio::test]
async fn i9_what_clients_see_while_leaders_are_killed_and_stopped_is_one_story() {
    let mut cluster = Cluster::lasting().await;
    let credentials = Credentials::load(&cluster.path("operator")).expect("an operator's");
    let tokens = ["join.token", "coordinator.token"]
        .map(|name| std::fs::read_to_string(cluster.path(name)).expect("a token"));
    let tokens = tokens.map(|text| text.split('.').nth(1).expect("an id").to_string());
    let first = cluster.take_member();
    let (second, third) = (first.joined_by(), first.joined_by());
    let mut members = [first, second, third].map(Some);
    leading(&members).await;
    let places: Places = Arc::new(Mutex::new(members.iter().flatten().map(place_of).collect()));
    let record = Record::begin();
    let client = |number| Client::new(number, &credentials, &places, &record);
    let mut clients: Vec<_> = (1..=3).map(|number| tokio::spawn(client(number).write())).collect();
    clients.extend((4..=6).map(|number| tokio::spawn(client(number).write_api())));
    clients.extend((7..=12).map(|number| tokio::spawn(client(number).read())));

    for round in 1..=ROUNDS {
        record.round.store(round, Ordering::Relaxed);
        record.progresses(PROGRESS).await;
        let place = leading(&members).await;
        strike(&mut members, place, &places, round % 3 == 0).await;
    }
    record.progresses(PROGRESS).await;
    record.over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("it does not panic");
    }
    let history = record.history(&tokens);
    let seen = history.iter().filter(|it| it.action == Action::Read(true));
    let kinds: BTreeSet<bool> = seen.map(|it| it.key == RUN).collect();
    assert_eq!(kinds.len(), 2, "nobody has seen a token, or a run: {} operations", history.len());
    if let Err(contradiction) = check(&false, &history) {
        panic!("{contradiction}");
    }
}
