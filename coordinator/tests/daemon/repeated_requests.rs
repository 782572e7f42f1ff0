//! A request repeated over HTTP under the same `Idempotency-Key` is carried out once, and gets the
//! same answer as before: after the answer was lost, from another coordinator, after the death of
//! the first.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::client::{Request, Response, ask, look, try_ask};
use crate::several::leader;
use crate::support::{Cluster, Member};

/// Longer than anything takes here, however busy the machine is.
const REPEAT_TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long one coordinator may take before the client asks another one.
const CLIENT_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the test kills a leader.
const ROUNDS: u64 = 5;

const TOKENS: &str = "/api/v1/tokens";
const WANTED: &str = r#"{"role": "worker", "uses": 1, "ttl_s": 900}"#;

/// A client of one coordinator.
struct Client {
    api: SocketAddr,
    bearer: String,
}

impl Client {
    async fn say(&self, method: &str, path: &str, key: &str, body: &str) -> Response {
        let headers = [("authorization", &*self.bearer), ("idempotency-key", key)];
        ask(self.api, method, path, &headers, body).await
    }

    async fn post(&self, path: &str, key: &str, body: &str) -> (u16, Value) {
        let answer = self.say("POST", path, key, body).await;
        (answer.status, answer.json())
    }

    /// The tokens made since the cluster was founded.
    async fn tokens(&self) -> Vec<Value> {
        let told = look(self.api, TOKENS).await.json();
        let all = told["tokens"].as_array().expect("a list");
        all.iter().filter(|token| !token["uses_left"].is_null()).cloned().collect()
    }
}

fn bearer(token: &str) -> String {
    format!("Bearer {}", token.trim())
}

/// A key that no other request has.
fn key(number: u64) -> String {
    format!("\"a-key-of-this-test-{number}\"")
}

#[tokio::test]
async fn what_is_said_again_with_its_key_is_done_once_and_answered_as_before() {
    let mut cluster = Cluster::start().await;
    let client = Client { api: cluster.api, bearer: bearer(&cluster.api_token()) };
    let made = client.post(TOKENS, &key(1), WANTED).await;
    assert_eq!((made.0, &made.1["uses_left"]), (201, &json!(1)), "{made:?}");
    // Its expiry does not move on.
    let of_the_next_second = made.1["expires_unix_s"].as_u64().expect("a time") - 900;
    let now = || std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
    while now() <= of_the_next_second {
        sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(client.post(TOKENS, &key(1), WANTED).await, made);
    let (id, text) = (made.1["id"].as_str().expect("text"), made.1["token"].as_str());
    assert_eq!(client.tokens().await.len(), 1);

    let path = format!("{TOKENS}/{id}");
    for _ in 0..2 {
        assert_eq!(client.say("DELETE", &path, &key(2), "").await.status, 200);
    }
    let runs = look(client.api, "/api/v1/runs").await.json();
    let run = format!("{{\"run\": {}}}", runs["runs"][0]["id"]);
    let more = WANTED.replace('1', "2");
    for (what, path, key, body, status) in [
        ("another body", TOKENS, key(1), &*more, 422),
        ("another change", "/api/v1/run/cancel", key(1), &*run, 422),
        ("no run named", "/api/v1/run/cancel", key(4), "", 400),
        ("no key", TOKENS, "short".into(), WANTED, 400),
        ("not remembered", "/api/v1/coordinators/transfer", key(3), "", 400),
        ("revoked since", TOKENS, key(1), WANTED, 410),
        ("the first", "/api/v1/run/cancel", key(4), &*run, 200),
        ("the same", "/api/v1/run/cancel", key(4), &*run, 200),
        ("too late", "/api/v1/run/cancel", key(5), &*run, 409),
        ("too late as before", "/api/v1/run/cancel", key(5), &*run, 409),
    ] {
        let answer = client.post(path, &key, body).await;
        assert_eq!(answer.0, status, "{what}: {answer:?}");
    }
    assert_eq!(client.tokens().await, [] as [Value; 0], "nothing is made of all that");
    let other = client.post(TOKENS, &key(6), WANTED).await;
    assert_ne!(other.1["token"].as_str(), text);
    cluster.restart().await;
    let client = Client { api: cluster.api, ..client };
    let start = Instant::now();
    loop {
        let (status, answer) = client.post(TOKENS, &key(6), WANTED).await;
        if status != 503 {
            assert_eq!((status, answer), other, "it is in the log");
            break;
        }
        assert!(start.elapsed() < REPEAT_TEST_TIMEOUT, "{answer:?}");
    }
    assert_eq!(client.tokens().await.len(), 1);
}

/// Asks for a token under a key.
async fn try_make(member: (SocketAddr, String), key: String) -> Option<Response> {
    let (api, bearer) = member;
    let headers = [("authorization", &*bearer), ("idempotency-key", &*key)];
    let request = Request { method: "POST", path: TOKENS, headers: &headers, body: WANTED };
    timeout(CLIENT_ANSWER_TIMEOUT, try_ask(api, request)).await.ok()?
}

fn place(member: &Member) -> (SocketAddr, String) {
    let token = std::fs::read_to_string(member.path("api.token")).expect("a token");
    (member.api, bearer(&token))
}

/// Asks these coordinators one after the other, until a leader has an answer.
async fn make(members: &[&Member], key: &str) -> Value {
    let start = Instant::now();
    loop {
        for member in members {
            match try_make(place(member), key.into()).await {
                Some(answer) if answer.status == 201 => return answer.json(),
                Some(answer) if ![503, 504].contains(&answer.status) => panic!("{answer:?}"),
                _ => {}
            }
        }
        assert!(start.elapsed() < REPEAT_TEST_TIMEOUT, "no coordinator answers");
    }
}

#[tokio::test]
async fn i9_a_token_is_made_once_however_many_are_asked_and_whoever_dies_meanwhile() {
    let mut cluster = Cluster::idle(None).await;
    let first = cluster.take_member();
    let mut members = vec![first.joined_by(), first.joined_by(), first];
    for round in 0..ROUNDS {
        let address = leader(&members.iter().collect::<Vec<_>>(), 3).await.address;
        let at = members.iter().position(|member| member.address == address).expect("one of them");
        let key = key(round);
        let asked = tokio::spawn(try_make(place(&members[at]), key.clone()));
        // Chance decides whether the request is heard, agreed to or answered before the leader
        // dies.
        sleep(Duration::from_micros(1_500 * round)).await;
        let mut struck = members.remove(at);
        struck.strike();
        let before = asked.await.expect("no panic").filter(|answer| answer.status == 201);
        let made = make(&members.iter().collect::<Vec<_>>(), &key).await;
        if let Some(before) = before {
            assert_eq!(before.json(), made, "it was answered");
        }
        members.insert(at, spawn_blocking(|| struck.restarted()).await.expect("it starts"));
        // Each coordinator gets the request first once.
        for first in 0..members.len() {
            let mut order: Vec<&Member> = members.iter().collect();
            order.rotate_left(first);
            assert_eq!(make(&order, &key).await, made);
        }
        let leading = leader(&members.iter().collect::<Vec<_>>(), 3).await;
        let client = Client { api: leading.api, bearer: String::new() };
        assert_eq!(client.tokens().await.len() as u64, round + 1, "one for each round");
    }
}
