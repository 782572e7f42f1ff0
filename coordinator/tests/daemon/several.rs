//! Three coordinators in processes of their own: the others keep the promises of each.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use everstep_coordinator::daemon::{CoordinatorError, CoordinatorOptions, Ended, Start, run};
use everstep_coordinator::http::ApiPort;
use everstep_transport::identity::{Authority, Identity, JoinToken, Role, TokenLimits};
use everstep_transport::protocol::{Message, NodeName, OperatorCommand, Step};
use everstep_transport::quic::{Endpoint, Expected, Settings};
use tokio::time::timeout;

use crate::client::{look, send, try_look};
use crate::operator::Operator;
use crate::support::{Cluster, Member, anywhere, lines};

/// Longer than anything takes here, however busy the machine is.
const CLUSTER_TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the test waits for a stopped coordinator before it looks at another one.
const STOPPED_COORDINATOR_AWAITED_FOR: Duration = Duration::from_secs(1);

/// Waits until one of these leads, and so many have a vote.
pub async fn leader<'m>(members: &[&'m Member], voters: usize) -> &'m Member {
    let start = Instant::now();
    loop {
        for member in members {
            let known = timeout(
                STOPPED_COORDINATOR_AWAITED_FOR,
                try_look(member.api, "/api/v1/coordinators?stale=true"),
            )
            .await;
            let Ok(Some(known)) = known else { continue };
            let all = known.json()["coordinators"].as_array().cloned().unwrap_or_default();
            let own = all.iter().find(|it| it["address"] == member.address.to_string());
            let leads = own.is_some_and(|own| own["leader"] == true && !own["term"].is_null());
            if leads && all.iter().filter(|it| it["voter"] == true).count() == voters {
                return member;
            }
        }
        assert!(
            start.elapsed() < CLUSTER_TEST_TIMEOUT,
            "none of {} leads {voters} voters",
            members.len()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Asks each of three members that follows, once it knows a leader. Returns the API of the leader,
/// which led all the time, and the answers.
async fn ask_followers<T>(
    members: &[&Member; 3],
    ask: impl AsyncFn(&Member) -> T,
) -> (SocketAddr, Vec<T>) {
    let start = Instant::now();
    loop {
        let leading = leader(members, 3).await.api;
        let mut answers = Vec::new();
        for member in members.iter().filter(|member| member.api != leading) {
            while look(member.api, "/readyz").await.status != 200 {
                assert!(start.elapsed() < CLUSTER_TEST_TIMEOUT, "who follows a leader is ready");
            }
            answers.push(ask(member).await);
        }
        if leader(members, 3).await.api == leading {
            return (leading, answers);
        }
        assert!(start.elapsed() < CLUSTER_TEST_TIMEOUT, "no leader goes on");
    }
}

#[tokio::test]
async fn i9_when_the_leader_is_killed_another_goes_on_with_the_run_and_the_workers() {
    let mut cluster = Cluster::start().await;
    let first = cluster.take_member();
    let (second, third) = (first.joined_by(), first.joined_by());
    leader(&[&first], 3).await;
    let mut workers = [cluster.worker().await, cluster.worker().await];
    tokio::join!(workers[0].enters(), workers[1].enters());
    assert_eq!(workers[0].beat(lines(1..=4)).await.0, Step(4));

    drop(first);
    let next = leader(&[&second, &third], 3).await;
    for worker in &mut workers {
        match worker.return_to(next.address).await {
            Message::Registered { worker: id, .. } => assert_eq!(id, worker.id),
            other => panic!("not known but {other:?}"),
        }
    }
    assert_eq!(workers[0].beat(lines(5..=7)).await.0, Step(7));
    let page = look(next.api, "/api/v1/metrics").await.json();
    assert_eq!(page["metrics"].as_array().expect("lines").len(), 7, "each step has its line");
    let generations = look(next.api, "/api/v1/generations").await.json();
    assert_eq!(generations["generations"].as_array().expect("a list").len(), 1, "none was lost");
    // The present leader admits a worker that comes with the founder's token.
    cluster.address = next.address;
    cluster.enrol().await;
}

/// It begins with a snapshot, which does not have the lines.
#[tokio::test]
async fn who_joins_learns_what_happened_before() {
    let mut cluster = Cluster::start().await;
    let workers = [cluster.worker().await, cluster.worker().await];
    tokio::join!(workers[0].enters(), workers[1].enters());
    assert_eq!(workers[0].beat(lines(1..=4)).await.0, Step(4));
    let first = cluster.take_member();
    let second = first.joined_by();
    let start = Instant::now();
    loop {
        let page = look(second.api, "/api/v1/metrics?stale=true").await.json();
        if page["metrics"].as_array().expect("lines").len() == 4 {
            break;
        }
        assert!(start.elapsed() < CLUSTER_TEST_TIMEOUT, "{page}");
    }
    let second = second.restarted();
    let page = look(second.api, "/api/v1/metrics?stale=true").await.json();
    assert_eq!(page["metrics"].as_array().expect("lines").len(), 4, "it has them on its disk");
}

#[tokio::test]
async fn who_follows_says_who_leads_and_who_comes_back_follows() {
    let mut cluster = Cluster::idle(None).await;
    let first = cluster.take_member();
    let (second, third) = (first.joined_by(), first.joined_by());
    let run = serde_json::to_string(&everstep_transport::protocol::exemplars::run());
    let run = run.expect("plain data");
    let refused = async |member: &Member| {
        let token = std::fs::read_to_string(member.path("api.token")).expect("a token");
        send(member.api, "/api/v1/run", &token, &run).await
    };
    let (next, refused) = ask_followers(&[&first, &second, &third], refused).await;
    for refused in refused {
        assert_eq!(refused.status, 503, "{refused:?}");
        let words = refused.json()["error"].to_string();
        assert!(words.contains(&format!("at http://{next}")), "{words}");
    }
    for secret in ["authority/authority.key", "join.token", "coordinator.token"] {
        use std::os::unix::fs::PermissionsExt;
        let mode = second.path(secret).metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    let first = first.restarted();
    let status = async |member: &Member| {
        let stale = look(member.api, "/api/v1/status?stale=true").await.json();
        (stale, look(member.api, "/api/v1/status").await)
    };
    let (next, told) = ask_followers(&[&first, &second, &third], status).await;
    for (stale, sent_on) in told {
        assert_eq!((&stale["leader"], &stale["stale"]), (&false.into(), &true.into()));
        let words = sent_on.json()["error"].to_string();
        assert!(words.contains(&format!("at http://{next}")), "{words}");
        assert_eq!(sent_on.status, 503);
    }
    drop((first, third));
    let again = second.restarted();
    assert_eq!(look(again.api, "/readyz").await.status, 503, "one of three agrees on nothing");
    let start = Instant::now();
    let refused = look(again.api, "/api/v1/status").await;
    let words = "1 of 3 coordinators can be reached: two must agree. Training goes on";
    assert_eq!((refused.status, &refused.json()["error"]), (503, &words.into()));
    assert!(start.elapsed() < CLUSTER_TEST_TIMEOUT);
    assert_eq!(look(again.api, "/api/v1/status?stale=true").await.json()["stale"], true);
    for path in ["/livez", "/metrics"] {
        assert_eq!(look(again.api, path).await.status, 200, "{path}");
    }
}

/// It may have voted since, and forgotten that. It must not go on under its id.
#[tokio::test]
async fn a_coordinator_whose_directory_is_an_older_copy_ends_with_the_reason() {
    let mut cluster = Cluster::idle(None).await;
    let first = cluster.take_member();
    let (second, third) = (first.joined_by(), first.joined_by());
    leader(&[&first], 3).await;
    let (third, copy) = third.backed_up();
    let authority = Authority::load(&first.path("authority")).expect("an authority");
    let mut operator = Operator::of(&first);
    let mut members = vec![first, second, third];
    for _ in 0..5 {
        let limits = TokenLimits::unlimited(Role::Worker);
        let command = OperatorCommand::CreateToken(JoinToken::create(&authority).accepted(limits));
        operator.command(&members, command).await.expect("a token");
    }
    let third = members.pop().expect("three members");
    let start = Instant::now();
    while look(third.api, "/api/v1/tokens?stale=true").await.json()["tokens"][6].is_null() {
        assert!(
            start.elapsed() < CLUSTER_TEST_TIMEOUT,
            "the third one has two tokens and these five"
        );
    }
    let how = third.restored(copy.path()).ended();
    assert!(how.contains("was replaced by an older copy"), "{how}");
}

/// The node's own tests show on virtual time how soon that is.
#[tokio::test]
async fn a_leader_that_is_told_to_stop_ends_and_another_leads() {
    let mut cluster = Cluster::idle(None).await;
    let first = cluster.take_member();
    let (second, third) = (first.joined_by(), first.joined_by());
    let address = leader(&[&first, &second, &third], 3).await.address;
    let (leads, others): (Vec<_>, Vec<_>) =
        [first, second, third].into_iter().partition(|member| member.address == address);
    for leader in leads {
        assert_eq!(leader.dismissed(), "Stopped");
    }
    leader(&others.iter().collect::<Vec<_>>(), 3).await;
}

#[tokio::test]
async fn who_is_removed_ends_and_says_so_and_cannot_come_back() {
    let mut cluster = Cluster::idle(None).await;
    let first = cluster.take_member();
    let (second, third) = (first.joined_by(), first.joined_by());
    leader(&[&first, &second, &third], 3).await;
    let mut operator = Operator::of(&second);
    // If it leads, another one has to lead afterwards.
    let (gone, address, dir) = (first.id().await, first.address, first.path(""));
    let mut members = vec![second, third, first];
    assert_eq!(operator.command(&members, OperatorCommand::Remove(gone)).await, Ok(()));
    assert_eq!(members.pop().expect("the first").ended(), "Removed");
    let [second, third] = &members[..] else { unreachable!("two are left") };
    leader(&[second, third], 2).await;
    assert_eq!(
        operator.command(&members, OperatorCommand::Remove(gone)).await,
        Err(format!("there is no coordinator {gone}"))
    );
    let again = CoordinatorOptions { dir, listen: address, start: Start::Again, http: None };
    let again = tokio::task::spawn_blocking(|| run(again, &mut ApiPort::default(), |_| ()));
    let ended = again.await.expect("no panic").expect("it is told so again");
    assert_eq!(ended, Ended::Removed);
}

/// Its certificate is good for a day, and counts for nothing.
#[tokio::test]
async fn a_coordinator_that_was_removed_is_shut_out_and_ends() {
    let mut cluster = Cluster::idle(None).await;
    let first = cluster.take_member();
    let (second, third) = (first.joined_by(), first.joined_by());
    let leading = leader(&[&first, &second, &third], 3).await.address;
    // One that follows is removed.
    let (first, third) = if leading == third.address { (third, first) } else { (first, third) };
    let leading = leader(&[&first, &second, &third], 3).await;
    let known = look(leading.api, "/api/v1/coordinators?stale=true").await.json();
    let all = known["coordinators"].as_array().expect("a list");
    let view = all.iter().find(|it| it["address"] == third.address.to_string()).expect("listed");
    let name = NodeName::parse(view["name"].as_str().expect("text")).expect("a name");
    let authority = Authority::load(&first.path("authority")).expect("the cluster's");
    let day = Duration::from_secs(86_400);
    let identity = |name| Identity { role: Role::Coordinator, name };
    let credentials = authority.issue(&identity(name), day).expect("issued");
    let settings = Settings::for_address(first.address.ip());
    let endpoint = Endpoint::bind(anywhere(), &credentials, settings, None).expect("bound");
    let anyone = Expected::Role(Role::Coordinator);
    let link = endpoint.connect(first.address, &anyone).await.expect("it is one of them");

    let path = format!("/api/v1/coordinators/{}/remove", view["id"]);
    let start = Instant::now();
    loop {
        let leading = leader(&[&first, &second, &third], 3).await;
        let token = std::fs::read_to_string(leading.path("api.token")).expect("a token");
        let removed = send(leading.api, &path, &token, "").await;
        if removed.status == 202 {
            break;
        }
        // Another one may lead since the test asked.
        let leads_no_more = removed.status == 503 && removed.body.contains("does not lead");
        assert!(leads_no_more && start.elapsed() < CLUSTER_TEST_TIMEOUT, "{removed:?}");
    }
    let gone = tokio::task::spawn_blocking(|| third.ended()).await;
    assert_eq!(gone.expect("no panic"), "Removed");
    let ended = timeout(CLUSTER_TEST_TIMEOUT, link.closed()).await.expect("it is closed");
    assert!(ended.is_expulsion(), "{ended}");
    leader(&[&first, &second], 2).await;
    for member in [&first, &second] {
        let start = Instant::now();
        loop {
            match endpoint.connect(member.address, &anyone).await {
                Err(error) if error.is_expulsion() => break,
                // A follower may learn of it a moment later.
                other => assert!(start.elapsed() < CLUSTER_TEST_TIMEOUT, "{:?}", other.err()),
            }
        }
    }
}

#[test]
fn who_cannot_join_is_told_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = |token: &str| {
        let (token, coordinators) = (token.to_string(), vec![anywhere().into()]);
        let start = Start::Join { token, coordinators };
        CoordinatorOptions { dir: dir.path().to_path_buf(), listen: anywhere(), start, http: None }
    };
    let refused =
        run(options("a token"), &mut ApiPort::default(), |_| ()).expect_err("it is no token");
    assert!(matches!(refused, CoordinatorError::JoinToken(_)), "{refused}");
    std::fs::write(dir.path().join("join.token"), "another's").expect("written");
    let token = format!("es1.AAAAAAAAAAAA.{0}.{0}", "A".repeat(43));
    let refused =
        run(options(&token), &mut ApiPort::default(), |_| ()).expect_err("somebody lives there");
    assert!(matches!(refused, CoordinatorError::AlreadyThere(_)), "{refused}");
}
