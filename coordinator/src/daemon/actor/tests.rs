use std::path::PathBuf;

use actix::AsyncContext;

use super::*;
use crate::daemon::files::Cluster;
use crate::daemon::resume::resume;

#[test]
fn a_disk_that_fails_stops_the_coordinator_with_the_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = Cluster::create(dir.path().to_path_buf()).expect("a cluster");
    let resumed = resume(&cluster).expect("an empty history");
    actix::System::new().block_on(async {
        let (count, _backlog) = watch::channel(0);
        let coordinator =
            Coordinator::create(|context| Coordinator::new(resumed, count, context.address()));
        coordinator.send(Tick).await.expect("it runs").expect("nothing has failed");
        let (path, source) = (PathBuf::from("log.redb"), std::io::ErrorKind::StorageFull.into());
        let full = LogError::File { path, source };
        coordinator.send(Written(Err(full))).await.expect("it runs");
        let failure = coordinator.send(Tick).await.expect("it answers").expect_err("it is over");
        assert_eq!(failure.to_string(), "log.redb: no storage space");
        assert!(coordinator.send(Tick).await.is_err(), "it has stopped");
    });
}
