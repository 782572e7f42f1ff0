use std::path::PathBuf;

use actix::AsyncContext;
use everstep_transport::protocol::{HistoryEntry, Term};
use everstep_transport::quic::Settings;

use super::*;
use crate::core::EventsAfter;
use crate::daemon::admission::admission_gate;
use crate::daemon::files::Cluster;
use crate::lines::PAGE;
use crate::log::LogError;
use crate::raft::{LogPosition, Snapshot};
use crate::state::{self, Command, CommandEntry, FOUNDER, State};

fn own(cluster: &Cluster) -> state::CoordinatorInfo {
    state::CoordinatorInfo {
        name: cluster.membership.membership().name.clone(),
        incarnation: 1,
        address: ([127, 0, 0, 1], 1).into(),
        api: None,
        log_format: *state::LOG_FORMATS.end(),
    }
}

/// A restarted coordinator with three thousand events before its snapshot. The file has all of
/// them, and memory the newest thousand.
#[test]
fn i10_a_reader_of_old_events_gets_them_from_the_file_and_the_newest_from_memory() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = Cluster::create(dir.path().to_path_buf(), true).expect("a cluster");
    let mut stored = cluster.stored_history(FOUNDER).expect("an empty history");
    let mut state = State::default();
    for index in 1..=3_000 {
        let entry =
            CommandEntry { unix_ms: index, command: Command::Lead { coordinator: FOUNDER } };
        state.apply(index, Term(1), &entry);
        let events = state.new_events().to_vec();
        stored.history_file.take(HistoryEntry { index, events }).expect("written");
    }
    let position = LogPosition { index: state.index(), term: Term(1) };
    let members = stored.kept.snapshot.members.clone();
    stored.kept.snapshot = Snapshot { position, members, bytes: state.encode() };
    stored.kept.hard_state.commit = position.index;
    (stored.kept.hard_state.term, stored.kept.base) = (Term(1), position);
    let ((_gate, applicants), own) = (admission_gate(), own(&cluster));
    let restored = RestoredNode::new(cluster, own, stored, applicants).expect("a sound directory");
    let (core, mut numbers, mut reads) = (restored.node.core(), Vec::new(), 0);
    let newest = loop {
        match core.events_after(numbers.last().copied().unwrap_or(0)) {
            EventsAfter::Recent(rest) => break rest,
            EventsAfter::InFile(range) => {
                let page = restored.history_file.events(range, PAGE).expect("sound");
                assert!(!page.is_empty(), "the reader would ask for ever");
                numbers.extend(page.iter().map(|event| event.number));
                reads += 1;
            }
        }
    };
    assert_eq!((reads, newest.len()), (2_000 / PAGE, 1_000));
    numbers.extend(newest.iter().map(|event| event.number));
    assert!(numbers.into_iter().eq(1..=3_000));
}

#[test]
fn a_disk_that_fails_stops_the_coordinator_with_the_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = Cluster::create(dir.path().to_path_buf(), true).expect("a cluster");
    let stored = cluster.stored_history(FOUNDER).expect("an empty history");
    let credentials = cluster.renew_credentials().expect("credentials");
    let own = own(&cluster);
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
