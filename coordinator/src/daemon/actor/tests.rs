use std::path::PathBuf;

use actix::AsyncContext;
use everstep_transport::quic::Settings;

use super::*;
use crate::daemon::admission::admission_gate;
use crate::daemon::files::Cluster;
use crate::log::LogError;
use crate::state;

#[test]
fn a_disk_that_fails_stops_the_coordinator_with_the_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = Cluster::create(dir.path().to_path_buf(), true).expect("a cluster");
    let stored = cluster.stored_history(1).expect("an empty history");
    let credentials = cluster.renew_credentials().expect("credentials");
    let name = cluster.membership.membership().name.clone();
    let address = ([127, 0, 0, 1], 1).into();
    let own = state::CoordinatorInfo {
        name,
        incarnation: 1,
        address,
        api: None,
        log_format: *state::LOG_FORMATS.end(),
    };
    let (_gate, applicants) = admission_gate();
    let restored = RestoredNode::new(cluster, own, stored, applicants).expect("a sound directory");
    actix::System::new().block_on(async {
        let (count, _backlog) = watch::channel(0);
        let (missing, _wanted) = watch::channel(Vec::new());
        let settings = Settings::for_address([127, 0, 0, 1].into());
        let listen = ([127, 0, 0, 1], 0).into();
        let endpoint = Endpoint::bind(listen, &credentials, settings, None).expect("bound");
        let coordinator = CoordinatorActor::create(|context| {
            CoordinatorActor::new(restored, Arc::new(endpoint), count, missing, context.address())
        });
        coordinator.send(Tick).await.expect("it runs").expect("nothing has failed");
        let (path, source) = (PathBuf::from("log.redb"), std::io::ErrorKind::StorageFull.into());
        let full = LogError::File { path, source };
        coordinator.send(Written(Err(full.into()))).await.expect("it runs");
        let failure = coordinator.send(Tick).await.expect("it answers").expect_err("it is over");
        assert_eq!(failure.to_string(), "log.redb: no storage space");
        assert!(coordinator.send(Tick).await.is_err(), "it has stopped");
    });
}
