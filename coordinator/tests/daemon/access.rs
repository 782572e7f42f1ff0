//! Which nodes the cluster admits: revoked tokens, workers and operators. A failed join spends no
//! token. The HTTP API has one token for reading and one for changes, and stands a crowd.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use everstep_coordinator::daemon::{self, CoordinatorError, CoordinatorOptions, Start, run};
use everstep_coordinator::http::ApiPort;
use everstep_transport::identity::{Credentials, JoinToken, Role, TokenLimits};
use everstep_transport::protocol::{Message, OperatorCommand, Question, Reply};
use everstep_transport::quic::enrol;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::client::{ask, look, send};
use crate::http::write_secret;
use crate::support::{Cluster, Node, anywhere};

/// Longer than anything takes here, however busy the machine is.
const ACCESS_TEST_TIMEOUT: Duration = Duration::from_secs(20);

fn token_in(path: &Path) -> JoinToken {
    fs::read_to_string(path).expect("a token").trim().parse().expect("a token")
}

/// Waits until the link has ended.
async fn ends(node: &Node) {
    let ended = timeout(ACCESS_TEST_TIMEOUT, async { while node.link.receive().await.is_ok() {} });
    ended.await.expect("the link is closed at once");
}

/// The reason against admitting the node. Peers reach a coordinator that has just started a moment
/// before it knows its log. The links of that moment end. It does nothing that came on them, since
/// it does not lead yet.
async fn refused(address: SocketAddr, credentials: &Credentials) -> String {
    for _ in 0..2 {
        match Node::call(address, credentials).await {
            Err(error) => return error.to_string(),
            Ok(node) => ends(&node).await,
        }
    }
    panic!("it is let in twice");
}

#[tokio::test]
async fn a_revoked_worker_loses_its_link_at_once_and_comes_back_by_no_way() {
    let mut cluster = Cluster::start().await;
    let (revoked, other) = (cluster.worker().await, cluster.worker().await);
    let identity = revoked.credentials.identity().clone();
    assert_eq!(cluster.command(1, OperatorCommand::Revoke(identity.clone())).await, None);
    ends(&revoked.node).await;
    let token = token_in(&cluster.path("join.token"));
    for restarted in [false, true] {
        if restarted {
            cluster.restart().await;
        }
        let error = refused(cluster.address, &revoked.credentials).await;
        assert!(error.contains("removed"), "{error}");
        let renewed =
            everstep_transport::quic::renew(cluster.address, &token, &revoked.credentials).await;
        let error = renewed.map(drop).expect_err("it gets no certificate").to_string();
        assert!(error.contains("removed"), "{error}");
    }
    Node::connect(cluster.address, &other.credentials).await;
    let operator = Node::connect(
        cluster.address,
        &Credentials::load(&cluster.path("operator")).expect("credentials"),
    )
    .await;
    let start = Instant::now();
    let told = loop {
        match operator.ask(Message::Ask(Question::Revoked)).await {
            Some(Message::Reply(Reply::Revoked(told))) => break told,
            _ => assert!(start.elapsed() < ACCESS_TEST_TIMEOUT, "it does not lead"),
        }
    };
    assert_eq!((told[0].role, &told[0].name), (Role::Worker, &identity.name));
}

/// An outage may outlast the certificates of all members, and their tokens lasted minutes.
#[tokio::test]
async fn a_worker_of_the_run_gets_a_certificate_by_its_key_when_its_token_is_no_more() {
    let mut cluster = Cluster::start().await;
    let (worker, idle) = (cluster.worker().await, cluster.enrol().await);
    let (held, token) = (&worker.credentials, token_in(&cluster.path("join.token")));
    let renew = everstep_transport::quic::renew;
    assert_eq!(cluster.command(1, OperatorCommand::RevokeToken(token.id())).await, None);
    for restarted in [false, true] {
        if restarted {
            cluster.restart().await;
        }
        let renewed = timeout(ACCESS_TEST_TIMEOUT, async {
            loop {
                match renew(cluster.address, &token, held).await {
                    Err(error) if error.may_pass() => sleep(Duration::from_millis(20)).await,
                    renewed => break renewed,
                }
            }
        });
        let renewed = renewed.await.expect("an answer").expect("a certificate");
        assert_eq!(renewed.identity(), held.identity());
        let stranger = renew(cluster.address, &token, &idle).await.map(drop);
        let stranger = stranger.expect_err("no worker of the run").to_string();
        assert!(stranger.contains("not known to this cluster"), "{stranger}");
        let thief = enrol(cluster.address, &token, Role::Worker).await.map(drop);
        let thief = thief.expect_err("the token is worth nothing").to_string();
        assert!(thief.contains("not known to this cluster"), "{thief}");
    }
    let revoke = OperatorCommand::Revoke(held.identity().clone());
    assert_eq!(cluster.command(2, revoke).await, None);
    let refused = renew(cluster.address, &token, held).await.map(drop);
    let refused = refused.expect_err("it was revoked").to_string();
    assert!(refused.contains("removed"), "{refused}");
}

#[tokio::test]
async fn copies_of_a_revoked_operators_folder_are_worth_nothing_and_the_folder_has_another() {
    let cluster = Cluster::lasting().await;
    let folder = cluster.path("operator");
    let stolen = Credentials::load(&folder).expect("credentials");
    let thief = Node::connect(cluster.address, &stolen).await;
    assert_eq!(cluster.command(1, OperatorCommand::Revoke(stolen.identity().clone())).await, None);
    ends(&thief).await;
    assert!(Node::call(cluster.address, &stolen).await.is_err(), "it is not let in");
    let start = Instant::now();
    loop {
        if let Ok(held) = Credentials::load(&folder)
            && held.identity() != stolen.identity()
            && Node::call(cluster.address, &held).await.is_ok()
        {
            return;
        }
        assert!(start.elapsed() < ACCESS_TEST_TIMEOUT, "the folder has no other credentials");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_tokens_in_the_files_are_listed_and_revoked_as_any() {
    let mut cluster = Cluster::lasting().await;
    let (workers, coordinators) =
        (token_in(&cluster.path("join.token")), token_in(&cluster.path("coordinator.token")));
    enrol(cluster.address, &workers, Role::Worker).await.expect("it is admitted");
    for (number, token) in [(1, &workers), (2, &coordinators)] {
        assert_eq!(cluster.command(number, OperatorCommand::RevokeToken(token.id())).await, None);
    }
    for restarted in [false, true] {
        if restarted {
            cluster.restart().await;
        }
        for (token, role) in [(&workers, Role::Worker), (&coordinators, Role::Coordinator)] {
            let refused = enrol(cluster.address, token, role).await.map(drop);
            let words = refused.expect_err("it is revoked").to_string();
            assert!(words.contains("not known to this cluster"), "{words}");
        }
    }
}

#[tokio::test]
async fn a_token_for_reading_reads_and_the_other_changes() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, token) = (dir.path().join("reader"), "r".repeat(40));
    write_secret(&path, &token);
    let cluster = Cluster::read_with(&path).await;
    let bearer = format!("Bearer {token}");
    let read = ask(cluster.api, "GET", "/metrics", &[("authorization", &bearer)], "").await;
    assert_eq!(read.status, 200, "{read:?}");
    assert_eq!(look(cluster.api, "/metrics").await.status, 401);
    let body = r#"{"role": "worker"}"#;
    assert_eq!(send(cluster.api, "/api/v1/tokens", &token, body).await.status, 403);
    let made = send(cluster.api, "/api/v1/tokens", &cluster.api_token(), body).await;
    assert_eq!(made.status, 201, "{made:?}");
}

#[test]
fn a_token_file_that_everybody_reads_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, home) = (dir.path().join("token"), dir.path().join("home"));
    write_secret(&path, &"t".repeat(40));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let http = everstep_coordinator::http::HttpOptions {
        listen: Some(anywhere()),
        token: Some(path),
        read_token: None,
    };
    let start = Start::Bootstrap { ephemeral: false };
    let options =
        CoordinatorOptions { dir: home.clone(), listen: anywhere(), start, http: Some(http) };
    let refused =
        run(options, &mut ApiPort::default(), |_| ()).expect_err("everybody reads it").to_string();
    assert!(refused.contains("other"), "{refused}");
    assert!(!home.exists(), "nothing is made");
}

/// Four hundred connections that send nothing, and forty more a second.
#[tokio::test]
async fn a_probe_is_answered_however_many_idle_connections_there_are() {
    let cluster = Cluster::lasting().await;
    let mut idle = Vec::new();
    for _ in 0..400 {
        idle.push(TcpStream::connect(cluster.api).await.expect("connected"));
    }
    for round in 0..20 {
        idle.push(TcpStream::connect(cluster.api).await.expect("connected"));
        let mut begun = TcpStream::connect(cluster.api).await.expect("connected");
        begun.write_all(b"G").await.expect("sent");
        idle.push(begun);
        let began = Instant::now();
        assert_eq!(look(cluster.api, "/livez").await.status, 200);
        assert!(began.elapsed() < ACCESS_TEST_TIMEOUT, "round {round}: {:?}", began.elapsed());
        sleep(Duration::from_millis(50)).await;
    }
}

/// How many nodes a token of two uses has admitted.
async fn uses_left(cluster: &Cluster, token: &JoinToken) -> Option<u32> {
    let credentials = Credentials::load(&cluster.path("operator")).expect("credentials");
    let operator = Node::connect(cluster.address, &credentials).await;
    match operator.ask(Message::Ask(Question::Tokens)).await {
        Some(Message::Reply(Reply::Tokens(all))) => {
            all.iter().find(|view| view.id == token.id()).expect("it is listed").uses_left
        }
        other => panic!("no answer but {other:?}"),
    }
}

#[tokio::test]
async fn a_join_that_cannot_be_spends_no_token_and_its_key_is_used_again() {
    let cluster = Cluster::lasting().await;
    let authority = Credentials::load(&cluster.path("operator")).expect("credentials");
    let token = JoinToken::for_cluster_of(&authority).expect("a token");
    let limits = TokenLimits { uses: Some(1), ..TokenLimits::unlimited(Role::Coordinator) };
    assert_eq!(
        cluster.command(1, OperatorCommand::CreateToken(token.accepted(limits))).await,
        None
    );
    let dir = tempfile::tempdir().expect("a directory");
    let taken = UdpSocket::bind(anywhere()).expect("bound");
    let join = |home: &Path, listen| {
        let coordinators = vec![cluster.address.into()];
        let start = Start::Join { token: token.to_string(), coordinators };
        let options = CoordinatorOptions { dir: home.to_path_buf(), listen, start, http: None };
        // Its thread may outlive the test: a coordinator that has joined goes on.
        let (tell, told) = oneshot::channel();
        std::thread::spawn(move || tell.send(run(options, &mut ApiPort::default(), |_| ())));
        told
    };
    let address = taken.local_addr().expect("bound");
    let refused = join(&dir.path().join("a"), address).await.expect("no panic");
    assert!(matches!(refused, Err(CoordinatorError::Bind(_))), "{refused:?}");
    fs::write(dir.path().join("file"), "").expect("written");
    let refused = join(&dir.path().join("file/b"), anywhere()).await.expect("no panic");
    assert!(matches!(refused, Err(CoordinatorError::File { .. })), "{refused:?}");
    assert_eq!(uses_left(&cluster, &token).await, Some(1));
    // A process that was killed after it enrolled has left its key.
    let home = dir.path().join("c");
    fs::create_dir(&home).expect("made");
    let key = everstep_transport::identity::NodeKey::read_or_make(&home.join("joining.key"));
    let key = key.expect("a key");
    let enrolled = everstep_transport::quic::enrol_as;
    enrolled(cluster.address, &token, Role::Coordinator, &key).await.expect("admitted");
    assert_eq!(uses_left(&cluster, &token).await, Some(0));
    let _joins = join(&home, anywhere());
    let start = Instant::now();
    while !home.join("history.log").exists() {
        assert!(start.elapsed() < ACCESS_TEST_TIMEOUT, "it does not join");
        sleep(Duration::from_millis(20)).await;
    }
}

/// An operator finds the founder as soon as the founder says that it listens.
#[tokio::test]
async fn a_founder_is_listed_before_it_says_that_it_listens() {
    for _ in 0..3 {
        let dir = tempfile::tempdir().expect("a directory");
        let home = dir.path().to_path_buf();
        let start = Start::Bootstrap { ephemeral: false };
        let options =
            CoordinatorOptions { dir: home.clone(), listen: anywhere(), start, http: None };
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            run(options, &mut ApiPort::default(), |addresses| {
                let known = daemon::addresses(&home).expect("a membership file");
                tell.send(known == [addresses.links]).expect("the test listens");
            })
        });
        assert!(told.recv_timeout(ACCESS_TEST_TIMEOUT).expect("it listens"), "it is not listed");
        let mode = dir.path().join("coordinators").metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o077, 0);
    }
}
