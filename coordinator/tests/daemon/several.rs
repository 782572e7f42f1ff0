//! Three coordinators in processes of their own: what one has promised the others keep.

use std::time::{Duration, Instant};

use everstep_coordinator::daemon::{CoordinatorError, Ended, Options, Start, run};
use everstep_transport::protocol::{Message, Step, Wish};

use crate::client::{look, send};
use crate::operator::Operator;
use crate::support::{Cluster, Member, anywhere, lines};

/// Longer than anything takes here, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until somebody of these leads, and all of so many have a vote.
pub async fn leader<'m>(members: &[&'m Member], voters: usize) -> &'m Member {
    let start = Instant::now();
    loop {
        for member in members {
            let known = look(member.api, "/api/v1/coordinators").await.json();
            let all = known["coordinators"].as_array().expect("a list").clone();
            let own = all.iter().find(|it| it["address"] == member.address.to_string());
            let leads = own.is_some_and(|own| own["leader"] == true && !own["term"].is_null());
            if leads && all.iter().filter(|it| it["voter"] == true).count() == voters {
                return member;
            }
        }
        assert!(start.elapsed() < PATIENCE, "nobody of {} leads {voters} voters", members.len());
        tokio::time::sleep(Duration::from_millis(20)).await;
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
    assert_eq!(generations["generations"].as_array().expect("a list").len(), 1, "nobody was lost");
    // A worker that comes with the founder's token is admitted by whoever is there.
    cluster.address = next.address;
    cluster.enrol().await;
}

/// It begins with a snapshot, in which the lines are not.
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
        let page = look(second.api, "/api/v1/metrics").await.json();
        if page["metrics"].as_array().expect("lines").len() == 4 {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{page}");
    }
    let second = second.restarted();
    let page = look(second.api, "/api/v1/metrics").await.json();
    assert_eq!(page["metrics"].as_array().expect("lines").len(), 4, "it has them on its disk");
}

#[tokio::test]
async fn who_follows_says_who_leads_and_who_comes_back_follows() {
    let mut cluster = Cluster::idle(None).await;
    let first = cluster.take_member();
    let (second, third) = (first.joined_by(), first.joined_by());
    leader(&[&first], 3).await;
    let token = std::fs::read_to_string(second.path("api.token")).expect("a token");
    let run = serde_json::to_string(&everstep_transport::protocol::exemplars::run());
    let refused = send(second.api, "/api/v1/run", &token, &run.expect("plain data")).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    let words = refused.json()["error"].to_string();
    assert!(words.contains(&format!("at http://{}", first.api)), "{words}");
    for secret in ["authority/authority.key", "join.token", "coordinator.token"] {
        use std::os::unix::fs::PermissionsExt;
        let mode = second.path(secret).metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    let first = first.restarted();
    let next = leader(&[&first, &second, &third], 3).await;
    let others: Vec<&Member> =
        [&first, &second, &third].into_iter().filter(|it| it.api != next.api).collect();
    for member in others {
        assert_eq!(look(member.api, "/api/v1/status").await.json()["leader"], false);
    }
    drop((first, third));
    let again = second.restarted();
    assert_eq!(look(again.api, "/readyz").await.status, 503, "one of three agrees on nothing");
}

/// How soon, the seat's own tests show on virtual time.
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
    // If it leads, another one has to, then.
    let (gone, address, dir) = (first.id().await, first.address, first.path(""));
    let mut members = vec![second, third, first];
    assert_eq!(operator.wish(&members, Wish::Remove(gone)).await, Ok(()));
    assert_eq!(members.pop().expect("the first").ended(), "Removed");
    let [second, third] = &members[..] else { unreachable!("two are left") };
    leader(&[second, third], 2).await;
    assert_eq!(
        operator.wish(&members, Wish::Remove(gone)).await,
        Err(format!("there is no coordinator {gone}"))
    );
    let again = Options { dir, listen: address, start: Start::Again, http: None };
    let again = tokio::task::spawn_blocking(|| run(again, |_| ()));
    let ended = again.await.expect("no panic").expect("it is told so again");
    assert_eq!(ended, Ended::Removed);
}

#[test]
fn who_cannot_join_is_told_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = |token: &str| {
        let (token, coordinators) = (token.to_string(), vec![anywhere()]);
        let start = Start::Join { token, coordinators };
        Options { dir: dir.path().to_path_buf(), listen: anywhere(), start, http: None }
    };
    let refused = run(options("a token"), |_| ()).expect_err("it is no token");
    assert!(matches!(refused, CoordinatorError::JoinToken(_)), "{refused}");
    std::fs::write(dir.path().join("join.token"), "another's").expect("written");
    let token = format!("es1.AAAAAAAAAAAA.{0}.{0}", "A".repeat(43));
    let refused = run(options(&token), |_| ()).expect_err("somebody lives there");
    assert!(matches!(refused, CoordinatorError::AlreadyThere(_)), "{refused}");
}
