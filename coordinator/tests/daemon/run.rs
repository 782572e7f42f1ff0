//! A run from Hello to the end, and the uses of a directory.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use everstep_coordinator::daemon::{CoordinatorError, CoordinatorOptions, Start, run};
use everstep_coordinator::http::ApiPort;
use everstep_transport::protocol::outcome::{EventKind, Outcome};
use everstep_transport::protocol::{Generation, Message, Step};
use tokio::time::timeout;

use crate::support::{Cluster, anywhere, lines};

/// Longer than anything takes here, however busy the machine is.
const RUN_TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn options(dir: &Path, bootstrap: bool) -> CoordinatorOptions {
    let start = if bootstrap { Start::Bootstrap { ephemeral: true } } else { Start::Again };
    CoordinatorOptions { dir: dir.to_path_buf(), listen: anywhere(), start, http: None }
}

#[tokio::test]
async fn a_run_goes_from_hello_to_complete() {
    let cluster = Cluster::start().await;
    let workers = [cluster.worker().await, cluster.worker().await];
    let (record, same) = tokio::join!(workers[0].enters(), workers[1].enters());
    assert_eq!((record.number, record.world_size()), (Generation(1), 2));
    assert_eq!(record, same);
    assert_eq!(workers[0].beat(lines(1..=10)).await, (Step(10), Generation(1)));
    workers.iter().for_each(|worker| worker.finishes());
    for worker in &workers {
        assert_eq!(worker.node.hear().await, Message::Dismiss);
    }
    let update = cluster.watch().await;
    assert_eq!(update.lines.len(), 10);
    assert!(matches!(update.outcome, Outcome::Complete(results) if results.len() == 2));
}

#[tokio::test]
async fn a_dropped_worker_is_lost_and_the_other_one_goes_on() {
    let cluster = Cluster::start().await;
    let (alive, dropped) = (cluster.worker().await, cluster.worker().await);
    let record = tokio::join!(alive.enters(), dropped.enters()).0;
    assert_eq!(record.world_size(), 2);
    let lost = dropped.id;
    drop(dropped);
    // A second silent worker would make this an outage of the coordinator's network.
    let beats = async {
        loop {
            alive.lives(Vec::new());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let noticed = async {
        tokio::select! {
            record = alive.enters() => record,
            () = beats => unreachable!("it beats for ever"),
        }
    };
    let record = timeout(RUN_TEST_TIMEOUT, noticed).await.expect("the loss is noticed");
    assert_eq!(record.world_size(), 1);
    let events = cluster.watch().await.events;
    let is_loss = |kind: &_| matches!(kind, EventKind::Lost { worker, .. } if *worker == lost);
    assert!(events.iter().any(|event| is_loss(&event.kind)), "{events:?}");
}

/// The end of a coordinator in this process.
async fn try_run(options: CoordinatorOptions) -> CoordinatorError {
    let ended = tokio::task::spawn_blocking(|| run(options, &mut ApiPort::default(), |_| ())).await;
    ended.expect("no panic").expect_err("it cannot run")
}

#[tokio::test]
async fn a_cluster_is_made_once_and_its_secrets_are_private() {
    let dir = tempfile::tempdir().expect("a directory");
    let nothing = try_run(options(dir.path(), false)).await;
    assert!(matches!(nothing, CoordinatorError::NothingThere(_)));
    assert!(nothing.to_string().starts_with("nothing to start from in"));
    // The address is not of this machine. The start makes nothing, and the same command may be
    // corrected.
    let listen = SocketAddr::from(([192, 0, 2, 1], 1));
    let unbound = try_run(CoordinatorOptions { listen, ..options(dir.path(), true) }).await;
    assert!(matches!(unbound, CoordinatorError::Bind(_)), "{unbound}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 0);
    let cluster = Cluster::lasting().await;
    for secret in
        ["join.token", "coordinator.token", "operator/node.key", "authority/authority.key"]
    {
        let mode = cluster.path(secret).metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    let again = try_run(options(&cluster.path(""), true)).await;
    assert!(matches!(again, CoordinatorError::AlreadyThere(_)));
}

#[tokio::test]
async fn a_directory_whose_history_is_damaged_is_refused_in_words() {
    let mut cluster = Cluster::lasting().await;
    drop(cluster.take_member());
    for file in ["history.log", "log.redb", "coordinators"] {
        let path = cluster.path(file);
        std::fs::write(&path, "").expect("written");
        let refused = try_run(options(&cluster.path(""), false)).await;
        let words = format!("{}: the file is damaged", path.display());
        assert!(refused.to_string().starts_with(&words), "{refused}");
    }
}
