//! The HTTP API of a real coordinator, over real connections.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use everstep_coordinator::daemon::{CoordinatorError, CoordinatorOptions, Start, run};
use everstep_coordinator::http::{self, ApiPort, HttpError};
use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::{Message, Term, exemplars};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{ask, look, send};
use crate::support::{Cluster, Node, anywhere, lines};

/// Longer than anything takes here, however busy the machine is.
const HTTP_TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Asks for the status until it is as wanted.
async fn until(api: SocketAddr, wanted: impl Fn(&Value) -> bool) -> Value {
    let start = Instant::now();
    loop {
        let status = look(api, "/api/v1/status").await.json();
        if wanted(&status) {
            return status;
        }
        assert!(start.elapsed() < HTTP_TEST_TIMEOUT, "{status}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until_ready(api: SocketAddr) {
    let start = Instant::now();
    loop {
        let answer = look(api, "/readyz").await;
        if answer.status == 200 {
            return;
        }
        assert!(answer.status == 503 && answer.body.starts_with("not ready: "), "{answer:?}");
        assert!(start.elapsed() < HTTP_TEST_TIMEOUT, "{answer:?}");
    }
}

fn run_json(change: impl Fn(&mut Value)) -> String {
    let mut run = serde_json::to_value(exemplars::run()).expect("plain data");
    change(&mut run);
    run.to_string()
}

#[tokio::test]
async fn probes_answer_and_every_other_path_says_what_there_is() {
    let cluster = Cluster::idle(None).await;
    let api = cluster.api;
    assert_eq!(look(api, "/livez").await.status, 200);
    until_ready(api).await;
    let status = look(api, "/api/v1/status").await;
    assert_eq!(status.json()["status"], "idle: no run was submitted yet");
    for header in ["content-type: application/json", "cache-control: no-store"] {
        assert!(status.headers.contains(header), "{status:?}");
    }
    assert!(!status.headers.contains("access-control"), "no other origin is let in: {status:?}");
    let nowhere = look(api, "/api/v1/stauts").await;
    assert_eq!(
        (nowhere.status, &nowhere.json()["error"]),
        (404, &json!("there is nothing at /api/v1/stauts"))
    );
    let paths = nowhere.json()["paths"].as_array().expect("paths").clone();
    assert!(paths.contains(&json!("GET /api/v1/status")), "{paths:?}");
    for path in paths.iter().filter_map(|path| path.as_str()?.strip_prefix("GET ")) {
        let path = path.split('?').next().expect("a path").replace("ID", "7");
        let expected = if path.ends_with("/run") || path.ends_with('7') { 404 } else { 200 };
        assert_eq!(look(api, &path).await.status, expected, "{path}");
        let head = ask(api, "HEAD", &path, &[], "").await;
        assert_eq!((head.status, &*head.body), (expected, ""), "{path}");
    }
    let wrong = send(api, "/api/v1/status", &cluster.api_token(), "").await;
    assert_eq!(wrong.status, 405);
    assert!(wrong.headers.contains("allow: get, head"), "{wrong:?}");
}

#[tokio::test]
async fn a_run_is_told_of_until_it_is_complete() {
    let cluster = Cluster::start().await;
    let api = cluster.api;
    let status = until(api, |status| status["state"] == "starting").await;
    assert_eq!(status["status"], "starting: 0 of 2 workers registered");
    let workers = [cluster.worker().await, cluster.worker().await];
    tokio::join!(workers[0].enters(), workers[1].enters());
    workers[0].beat(lines(1..=7)).await;
    let status = until(api, |status| status["step"] == 7).await;
    assert_eq!(status["status"], "training: step 7 of 10 with 2 workers");
    assert_eq!((&status["leader"], &status["run"]), (&json!(true), &json!("example")));

    let told = look(api, "/api/v1/workers").await.json();
    let first = &told["workers"][0];
    assert_eq!((&first["id"], &first["rank"]), (&json!(workers[0].id), &json!(0)));
    assert_eq!(
        (&first["state"], told["workers"][1]["id"].as_u64()),
        (&json!("training"), Some(workers[1].id.0))
    );
    let path = format!("/api/v1/workers/{}", workers[0].id);
    assert_eq!(&look(api, &path).await.json(), first);
    let run: Value = run_json(|_| ()).parse().expect("JSON");
    assert_eq!(look(api, "/api/v1/run").await.json(), run);
    let told = look(api, "/api/v1/coordinators").await.json();
    let coordinator = &told["coordinators"][0];
    assert_eq!(coordinator["api"], format!("http://{api}"), "{told}");
    assert_eq!(coordinator["address"], cluster.address.to_string());

    workers[0].beat(lines(8..=10)).await;
    workers.iter().for_each(|worker| worker.finishes());
    let status = until(api, |status| status["state"] == "complete").await;
    assert_eq!(
        status["status"],
        "complete: all 10 steps, and the model is node:/runs/model.safetensors"
    );
    let again = send(api, "/api/v1/run", &cluster.api_token(), &run_json(|_| ())).await;
    assert_eq!((again.status, &again.json()["error"]), (409, &json!("the run is over")));
}

#[tokio::test]
async fn what_is_numbered_comes_in_pages() {
    let cluster = Cluster::start().await;
    let api = cluster.api;
    let workers = [cluster.worker().await, cluster.worker().await];
    tokio::join!(workers[0].enters(), workers[1].enters());
    workers[0].beat(lines(1..=7)).await;
    let page = look(api, "/api/v1/metrics?after=4").await.json();
    let steps: Vec<_> =
        page["metrics"].as_array().expect("lines").iter().map(|l| &l["step"]).collect();
    assert_eq!(steps, [5, 6, 7]);
    assert_eq!((&page["after"], &page["more"]), (&json!(7), &json!(false)));
    let ahead = look(api, "/api/v1/metrics?after=9").await.json();
    assert_eq!((&ahead["metrics"], &ahead["after"]), (&json!([]), &json!(7)));
    let events = look(api, "/api/v1/events").await.json();
    assert_eq!(events["events"][0]["event"], "leading");
    let newest = events["after"].as_u64().expect("a number");
    let rest = look(api, &format!("/api/v1/events?after={}", newest - 1)).await.json();
    assert_eq!(
        rest["events"].as_array().expect("events")[..],
        [events["events"][newest as usize - 1].clone()]
    );
    let generations = look(api, "/api/v1/generations").await.json();
    let generation = &generations["generations"][0];
    assert_eq!((&generation["number"], &generation["cause"]), (&json!(1), &json!("start")));
    assert_eq!(look(api, "/api/v1/events?before=3").await.status, 400);
}

#[tokio::test]
async fn figures_outlive_the_coordinator_where_the_log_tells_them() {
    let mut cluster = Cluster::start().await;
    let workers = [cluster.worker().await, cluster.worker().await];
    tokio::join!(workers[0].enters(), workers[1].enters());
    workers[0].beat(lines(1..=7)).await;
    let has =
        |text: &str, line: &str| assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
    let figures = look(cluster.api, "/metrics").await;
    assert!(figures.headers.contains("content-type: text/plain; version=0.0.4"), "{figures:?}");
    for line in [
        "everstep_step 7",
        "everstep_world_size 2",
        "everstep_workers{state=\"training\"} 2",
        "everstep_links{role=\"worker\"} 2",
        "everstep_lines_written_total 7",
        "everstep_leader 1",
    ] {
        has(&figures.body, line);
    }
    let lasting = [
        "everstep_registrations_total 2",
        "everstep_steps_committed_total 7",
        "everstep_generations_total{cause=\"start\"} 1",
    ];
    lasting.iter().for_each(|line| has(&figures.body, line));
    cluster.restart().await;
    let start = Instant::now();
    let figures = loop {
        let figures = look(cluster.api, "/metrics").await;
        // Figures are a moment old, and may be from before this coordinator led again.
        if !figures.body.contains("\neverstep_term 0\n") {
            break figures;
        }
        assert!(start.elapsed() < HTTP_TEST_TIMEOUT, "{figures:?}");
    };
    lasting.iter().for_each(|line| has(&figures.body, line));
    has(&figures.body, "everstep_term 3");
    has(&figures.body, "everstep_lines_written_total 0");
}

#[tokio::test]
async fn a_run_is_submitted_with_the_token_and_only_if_it_is_one() {
    let cluster = Cluster::idle(None).await;
    let (api, token) = (cluster.api, cluster.api_token());
    let run = run_json(|_| ());
    for token in ["", "0123456789abcdef0123456789abcdef"] {
        let refused = send(api, "/api/v1/run", token, &run).await;
        assert_eq!(refused.status, 401, "{refused:?}");
        assert!(refused.headers.contains("www-authenticate: bearer"), "{refused:?}");
        assert!(refused.json()["next"].as_str().expect("words").contains("api.token"));
    }
    let zero = run_json(|run| run["steps"] = json!(0));
    let large = format!("{run}{}", " ".repeat(40_000));
    for (body, status) in [("", 400), ("{}", 400), (&*zero, 422), (&*large, 413)] {
        let refused = send(api, "/api/v1/run", &token, body).await;
        assert_eq!(refused.status, status, "{refused:?}");
    }
    assert_eq!(look(api, "/api/v1/run").await.status, 404, "nothing was submitted so far");
    let mut ids = Vec::new();
    for _ in 0..2 {
        let accepted = send(api, "/api/v1/run", &token, &run).await;
        assert_eq!((accepted.status, &accepted.json()["run"]), (201, &json!("example")));
        ids.push(accepted.json()["id"].as_u64().expect("an id"));
    }
    assert_eq!(ids[0], ids[1], "it is the same run");
    let other = run_json(|run| run["seed"] = json!(2));
    let refused = send(api, "/api/v1/run", &token, &other).await;
    assert_eq!(refused.status, 409);
    assert_eq!(
        refused.json()["error"],
        "this cluster already trains example, another run. Cancel it or wait"
    );
    assert_eq!(cluster.watch().await.events.len(), 2, "it leads, and the run was submitted once");
    // The coordinator welcomes a worker to the run.
    let node = Node::connect(cluster.address, &cluster.enrol().await).await;
    node.say(Message::Hello { worker: None });
    assert_eq!(node.hear().await, Message::Welcome { run: exemplars::run(), term: Term(2) });
}

#[tokio::test]
async fn a_worker_is_let_go_with_the_token() {
    let cluster = Cluster::start().await;
    let (api, token) = (cluster.api, cluster.api_token());
    let workers = [cluster.worker().await, cluster.worker().await];
    tokio::join!(workers[0].enters(), workers[1].enters());
    let drain = |id: &str| format!("/api/v1/workers/{id}/drain");
    let id = workers[1].id.to_string();
    assert_eq!(ask(api, "POST", &drain(&id), &[], "").await.status, 401);
    for unknown in ["99", "nobody", "-1"] {
        let refused = send(api, &drain(unknown), &token, "").await;
        assert_eq!(refused.status, 404, "{refused:?}");
    }
    let accepted = send(api, &drain(&id), &token, "").await;
    assert_eq!((accepted.status, &accepted.json()["state"]), (202, &json!("leaving")));
    let events = cluster.watch().await.events;
    let drains = EventKind::Draining { worker: workers[1].id };
    assert!(events.iter().any(|event| event.kind == drains), "{events:?}");
}

#[tokio::test]
async fn a_page_in_a_browser_cannot_pass_itself_off_as_this_machine() {
    let cluster = Cluster::idle(None).await;
    let port = cluster.api.port();
    for (host, status) in [("evil.example", 403), ("localhost", 200), ("127.0.0.1", 200)] {
        let host = format!("{host}:{port}");
        let answer = ask(cluster.api, "GET", "/livez", &[("host", &host)], "").await;
        assert_eq!(answer.status, status, "{host}");
    }
}

/// Writes a file that its owner alone can read.
pub fn write_secret(path: &Path, text: &str) {
    std::fs::write(path, text).expect("written");
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, private).expect("it is ours");
}

#[tokio::test]
async fn with_a_token_for_everything_nothing_is_told_without_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, token) = (dir.path().join("token"), "s".repeat(40));
    write_secret(&path, &format!("{token}\n"));
    let cluster = Cluster::idle(Some(&path)).await;
    assert_eq!(look(cluster.api, "/livez").await.status, 200, "a probe needs none");
    let bearer = format!("Bearer {token}");
    for path in ["/readyz", "/metrics", "/api/v1/status", "/nowhere"] {
        assert_eq!(look(cluster.api, path).await.status, 401, "{path}");
        let shown = ask(cluster.api, "GET", path, &[("authorization", &bearer)], "").await;
        assert_ne!(shown.status, 401, "{path}");
    }
}

#[test]
fn an_address_beyond_this_machine_is_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().expect("a directory");
    let home = dir.path().join("home");
    let options = |ip: [u8; 4], token: Option<&Path>| CoordinatorOptions {
        dir: home.clone(),
        listen: anywhere(),
        start: Start::Bootstrap { ephemeral: false },
        http: Some(http::HttpOptions {
            listen: Some((ip, 0).into()),
            token: token.map(Into::into),
            read_token: None,
        }),
    };
    let exposed = run(options([0, 0, 0, 0], None), &mut ApiPort::default(), |_| ())
        .expect_err("it is exposed");
    assert!(matches!(exposed, CoordinatorError::Http(HttpError::Exposed(_))), "{exposed}");
    assert!(!home.exists());
    let foreign = run(
        options([192, 0, 2, 1], Some(&dir.path().join("none"))),
        &mut ApiPort::default(),
        |_| (),
    );
    let foreign = foreign.expect_err("there is no such file");
    assert!(matches!(foreign, CoordinatorError::Http(HttpError::File { .. })), "{foreign}");
}

#[tokio::test]
async fn the_token_for_changes_is_private_and_outlives_the_coordinator() {
    let mut cluster = Cluster::idle(None).await;
    let token = cluster.api_token();
    let mode = cluster.path("api.token").metadata().expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    cluster.restart().await;
    assert_eq!(cluster.api_token(), token);
}

/// The head of a second request would have no time-out.
#[tokio::test]
async fn a_connection_ends_with_its_answer() {
    let cluster = Cluster::idle(None).await;
    let mut stream = TcpStream::connect(cluster.api).await.expect("heard");
    let words = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\nG";
    stream.write_all(words).await.expect("sent");
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    let _ = timeout(HTTP_TEST_TIMEOUT, read).await.expect("it is closed, or reset");
}

#[tokio::test]
async fn clients_that_are_many_and_slow_do_not_hold_up_heartbeats() {
    let cluster = Cluster::start().await;
    let api = cluster.api;
    let workers = [cluster.worker().await, cluster.worker().await];
    tokio::join!(workers[0].enters(), workers[1].enters());
    let mut idle = Vec::new();
    for number in 0..200 {
        let mut stream =
            TcpStream::connect((Ipv4Addr::LOCALHOST, api.port())).await.expect("heard");
        // A head that never ends, a body that never comes, and answers that the client does not
        // read.
        let words = match number % 3 {
            0 => "GET /metr".to_string(),
            1 => "POST /api/v1/run HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n".into(),
            _ => "GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(50),
        };
        stream.write_all(words.as_bytes()).await.expect("sent");
        idle.push(stream);
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        workers[0].beat(Vec::new()).await;
        workers[1].beat(Vec::new()).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let events = cluster.watch().await.events;
    let lost = |kind: &EventKind| matches!(kind, EventKind::Lost { .. });
    assert!(!events.iter().any(|event| lost(&event.kind)), "{events:?}");
    drop(idle);
    assert_eq!(look(api, "/livez").await.status, 200);
}

#[tokio::test]
async fn tokens_are_made_told_and_revoked_and_runs_are_told_with_their_ends() {
    let cluster = Cluster::start().await;
    let (api, token) = (cluster.api, cluster.api_token());
    // The leader enters the cluster's own tokens in the log when it has begun.
    let start = Instant::now();
    while look(api, "/api/v1/tokens").await.json()["tokens"].as_array().map(Vec::len) != Some(2) {
        assert!(start.elapsed() < HTTP_TEST_TIMEOUT, "two tokens are the cluster's own");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let body = r#"{"role": "worker", "uses": 2, "ttl_s": 900}"#;
    let made = send(api, "/api/v1/tokens", &token, body).await;
    assert_eq!((made.status, &made.json()["uses_left"]), (201, &json!(2)), "{made:?}");
    let made = made.json();
    let (id, text) = (made["id"].as_str().expect("text"), made["token"].as_str().expect("text"));
    assert!(text.starts_with(&format!("es1.{id}.")), "{text}");
    let told = look(api, "/api/v1/tokens").await;
    let told_of = told.json()["tokens"].as_array().expect("a list").clone();
    let of_it = told_of.iter().find(|token| token["id"] == id).expect("it is listed");
    assert_eq!((&of_it["role"], told_of.len()), (&json!("worker"), 3), "two are the cluster's own");
    assert!(!told.body.contains(text), "the secret is told once");
    let (path, bearer) = (format!("/api/v1/tokens/{id}"), format!("Bearer {}", token.trim()));
    for status in [200, 404] {
        let revoked = ask(api, "DELETE", &path, &[("authorization", &bearer)], "").await;
        assert_eq!(revoked.status, status, "{revoked:?}");
    }
    let left = look(api, "/api/v1/tokens").await.json();
    assert_eq!(left["tokens"].as_array().map(Vec::len), Some(2), "{left}");
    for (path, body, status) in [
        ("/api/v1/tokens", r#"{"role": "worker"}"#, 201),
        ("/api/v1/tokens", r#"{"role": "king"}"#, 400),
        ("/api/v1/tokens", r#"{"role": "coordinator"}"#, 403),
        ("/api/v1/tokens", r#"{"role": "operator"}"#, 403),
        ("/api/v1/tokens", r#"{"role": "worker", "uses": 1001}"#, 422),
        ("/api/v1/run/cancel", r#"{"run": 999}"#, 404),
        ("/api/v1/coordinators/transfer", r#"{"to": 1}"#, 200),
        ("/api/v1/coordinators/transfer", "", 409),
        ("/api/v1/coordinators/1/remove", "", 409),
        ("/api/v1/coordinators/x/remove", "", 404),
        ("/api/v1/run/cancel", "", 200),
        ("/api/v1/run/cancel", "", 409),
    ] {
        let answer = send(api, path, &token, body).await;
        assert_eq!(answer.status, status, "{path} {body}: {answer:?}");
    }
    let runs = look(api, "/api/v1/runs").await.json();
    assert_eq!(runs["runs"][0]["status"], "failed: it was cancelled");
}
