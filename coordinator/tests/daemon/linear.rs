//! What clients see of a cluster whose leaders are killed and stopped is one story.
//!
//! The tokens are a set of registers: each is there, or not. Writers make and revoke them, readers
//! read them all, over links and over HTTP; what each has seen, and when, is judged in the end.

#[path = "../../../chaos/src/check/linear.rs"]
mod judge;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use everstep_transport::identity::{
    AcceptedToken, Credentials, JoinToken, Role, Terms, TokenId, format_token_id,
};
use everstep_transport::protocol::{Message, Question, Reply, RequestId, Wish};
use everstep_transport::quic::{Endpoint, Expected, Link, Settings};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use self::judge::{Action, Operation, check};
use crate::client::try_look;
use crate::several::leader;
use crate::support::{Cluster, Member, anywhere};

/// Longer than anything takes here, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a writer waits for one coordinator.
const HASTE: Duration = Duration::from_millis(400);
/// A reader waits for longer than a leader is stopped, to hear what that has to say.
const STOPPED: Duration = Duration::from_millis(700);
const CALM: Duration = Duration::from_millis(2_500);
/// How many tokens there are, or not.
const TOKENS: u8 = 6;

/// The coordinators' links and APIs, by place.
type Places = Arc<Mutex<Vec<(SocketAddr, SocketAddr)>>>;

/// What all clients have seen.
struct Record {
    start: Instant,
    history: Mutex<Vec<Operation<u8, bool>>>,
    /// How many operations were answered.
    answered: AtomicU64,
    over: AtomicBool,
}

impl Record {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn note(&self, key: u8, action: Action<bool>, called: u64, answered: Option<u64>) {
        let operation = Operation { key, action, called, answered };
        self.history.lock().expect("nobody panics").push(operation);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Waits until clients have had so many more answers.
    async fn progresses(&self, by: u64) {
        let (before, start) = (self.answered.load(Ordering::Relaxed), Instant::now());
        while self.answered.load(Ordering::Relaxed) < before + by {
            assert!(start.elapsed() < PATIENCE, "nobody is answered any more");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

fn token(key: u8) -> AcceptedToken {
    let zeros = "A".repeat(43); // 32 bytes
    let id = format_token_id(&id_of(key));
    let token: JoinToken = format!("es1.{id}.{zeros}.{zeros}").parse().expect("a token");
    token.accepted(Terms::unlimited(Role::Worker))
}

fn id_of(key: u8) -> TokenId {
    [key + 1; 9]
}

/// An operator, who has a link to one coordinator at a time.
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

    /// The answer of the coordinator at a place, if it leads; otherwise the link is not used again.
    async fn ask(&mut self, place: usize, question: Message, haste: Duration) -> Option<Message> {
        let link = match self.link.take().filter(|(at, _)| *at == place) {
            Some((_, link)) => link,
            None => {
                let (address, _) = self.places.lock().expect("nobody panics")[place];
                let expected = Expected::Role(Role::Coordinator);
                timeout(haste, self.endpoint.connect(address, &expected)).await.ok()?.ok()?
            }
        };
        let answer = timeout(haste, hear(&link, question)).await.ok()??;
        self.link = Some((place, link));
        Some(answer)
    }

    /// Has a token made or revoked: the same request is said until it is answered.
    async fn write(mut self) {
        let (mut number, mut place) = (0, self.number as usize % 3);
        while !self.record.is_over() {
            number += 1;
            let key = (self.number + number * 5) as u8 % TOKENS;
            let there = !(self.number + number / 3).is_multiple_of(2);
            let wish = match there {
                true => Wish::CreateToken(token(key)),
                false => Wish::RevokeToken(id_of(key)),
            };
            let id = RequestId { client: self.number, number };
            let called = self.record.now();
            let refusal = loop {
                let request = Message::Request { id, wish: wish.clone() };
                match self.ask(place, request, HASTE).await {
                    Some(Message::Answer { id: answered, refusal, .. }) if answered == id => {
                        break Some(refusal);
                    }
                    // It may have been done, or be done yet.
                    _ if self.record.is_over() => break None,
                    _ => place = (place + 1) % 3,
                }
                sleep(Duration::from_millis(5)).await;
            };
            let answered = refusal.as_ref().map(|_| self.record.now());
            // What is not there cannot be revoked.
            let action = match refusal.flatten() {
                None => Action::Write(there),
                Some(_) => Action::Read(false),
            };
            self.record.note(key, action, called, answered);
            self.record.answered.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Reads all tokens from one coordinator after the other, as often as it answers.
    async fn read(mut self) {
        let mut round = 0;
        while !self.record.is_over() {
            round += 1;
            let place = (self.number as usize + round / 8) % 3;
            let called = self.record.now();
            let found = match round % 2 {
                0 => self.read_link(place).await,
                _ => self.read_api(place).await,
            };
            let Some(found) = found else {
                sleep(Duration::from_millis(5)).await;
                continue;
            };
            let answered = self.record.now();
            for key in 0..TOKENS {
                let there = found.contains(&format_token_id(&id_of(key)));
                self.record.note(key, Action::Read(there), called, Some(answered));
            }
            self.record.answered.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn read_link(&mut self, place: usize) -> Option<BTreeSet<String>> {
        match self.ask(place, Message::Ask(Question::Tokens), CALM).await? {
            Message::Told(Reply::Tokens(tokens)) => {
                Some(tokens.iter().map(|token| format_token_id(&token.id)).collect())
            }
            other => panic!("not told but {other:?}"),
        }
    }

    async fn read_api(&mut self, place: usize) -> Option<BTreeSet<String>> {
        let (_, api) = self.places.lock().expect("nobody panics")[place];
        let answer = timeout(CALM, try_look(api, "/api/v1/tokens")).await.ok()??;
        if answer.status != 200 {
            return None;
        }
        let tokens = answer.json()["tokens"].as_array()?.clone();
        Some(tokens.iter().filter_map(|token| Some(token["id"].as_str()?.to_string())).collect())
    }
}

/// The answer, or none where somebody else leads, or nobody.
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

/// Where the one is that leads.
async fn leading(members: &[Option<Member>]) -> usize {
    let there: Vec<&Member> = members.iter().flatten().collect();
    let address = leader(&there, 3).await.address;
    let leads = |member: &Option<Member>| member.as_ref().is_some_and(|it| it.address == address);
    members.iter().position(leads).expect("one of them")
}

#[tokio::test]
async fn i9_what_clients_see_while_leaders_are_killed_and_stopped_is_one_story() {
    let mut cluster = Cluster::idle(None).await;
    let credentials = Credentials::load(&cluster.path("operator")).expect("an operator's");
    let first = cluster.take_member();
    let (second, third) = (first.joined_by(), first.joined_by());
    let mut members = [first, second, third].map(Some);
    leading(&members).await;
    let places = members.iter().flatten().map(|member| (member.address, member.api)).collect();
    let places: Places = Arc::new(Mutex::new(places));
    let record = Arc::new(Record {
        start: Instant::now(),
        history: Mutex::default(),
        answered: AtomicU64::new(0),
        over: AtomicBool::new(false),
    });
    let client = |number| Client::new(number, &credentials, &places, &record);
    let mut clients: Vec<_> = (1..=3).map(|number| tokio::spawn(client(number).write())).collect();
    clients.extend((4..=9).map(|number| tokio::spawn(client(number).read())));

    for round in 0..9 {
        record.progresses(20).await;
        let place = leading(&members).await;
        if round % 3 == 2 {
            let killed = members[place].take().expect("it is there");
            let restarted = spawn_blocking(|| killed.restarted()).await.expect("it starts");
            places.lock().expect("nobody panics")[place] = (restarted.address, restarted.api);
            members[place] = Some(restarted);
        } else {
            let stopped = members[place].as_ref().expect("it is there");
            stopped.signal("STOP");
            sleep(STOPPED).await;
            stopped.signal("CONT");
        }
    }
    record.progresses(20).await;
    record.over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("it does not panic");
    }
    let history = record.history.lock().expect("nobody panics").clone();
    let reads = history.iter().filter(|it| matches!(it.action, Action::Read(true))).count();
    assert!(reads > 0, "nobody has seen anything of {} operations", history.len());
    if let Err(contradiction) = check(&false, &history) {
        panic!("{contradiction}");
    }
}
