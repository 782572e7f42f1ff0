use std::net::Ipv4Addr;

use everstep_transport::protocol::NodeName;
use everstep_transport::time::Time;

use super::*;
use crate::raft::{RaftEffect, RaftOptions, Replica};
use crate::state::{CoordinatorInfo, FOUNDER, LOG_FORMATS};

fn entry(index: u64, command: Command) -> raft::RaftEntry {
    let bytes = CommandEntry { unix_ms: index, command }.encode(*LOG_FORMATS.end());
    raft::RaftEntry {
        position: LogPosition { index, term: Term(1) },
        kind: EntryKind::Command,
        bytes,
    }
}

fn coordinator(number: u16) -> CoordinatorInfo {
    CoordinatorInfo {
        name: NodeName::parse(&format!("coordinator-{number}")).expect("a valid name"),
        incarnation: number.into(),
        address: (Ipv4Addr::LOCALHOST, number).into(),
        api: None,
        log_format: *LOG_FORMATS.end(),
    }
}

/// The disk of the first of three coordinators. Its last entry is not known to be agreed on.
fn disk() -> DurableState {
    let mut kept = DurableState::founded_by(ReplicaId(1));
    let join = |id| Command::Coordinator { id: None, coordinator: coordinator(id) };
    let (ephemeral, tokens) = (false, Vec::new());
    let founded = Command::Found { ephemeral, founder: coordinator(1), tokens };
    let change = |index| raft::RaftEntry {
        kind: EntryKind::Members,
        ..entry(index, Command::Lead { coordinator: FOUNDER })
    };
    kept.entries = [
        entry(2, founded),
        entry(3, join(2)),
        change(4),
        entry(5, join(3)),
        change(6),
        entry(7, Command::Lead { coordinator: FOUNDER }),
    ]
    .into();
    kept.hard_state.commit = 6;
    kept
}

#[test]
fn a_log_tells_what_it_holds_and_who_is_given_up() {
    let plan = plan(&disk(), FOUNDER).expect("it can be gone on from");
    let lost: Vec<_> = plan.lost.iter().map(|view| view.id).collect();
    assert_eq!((lost, plan.last.index, plan.agreed), ([3, 5].map(CoordinatorId).to_vec(), 7, 6));
    assert_eq!(plan.newest_unix_ms, Some(7));
}

#[test]
fn the_survivor_leads_alone_with_every_entry_that_it_has_and_the_others_are_shut_out() {
    let kept = recovered(disk(), FOUNDER, 99);
    kept.validate().expect("sound");
    let options = RaftOptions::new(ReplicaId(1), 1, 10);
    let mut replica = Replica::new(Time(0), options, kept.clone()).expect("sound");
    let (mut applied, mut leads) = (Vec::new(), None);
    while let Some(effect) = replica.poll_effect() {
        match effect {
            RaftEffect::Persist(batch) => replica.persisted(batch.number),
            RaftEffect::Apply(agreed) => applied.extend(agreed.iter().map(|it| it.position.index)),
            RaftEffect::Leads(term) => leads = Some(term),
            _ => {}
        }
    }
    assert_eq!(applied, [2, 3, 5, 7, 8], "what it had, and that it goes on alone");
    assert!(leads.expect("it leads").0 > TERMS, "workers obey it rather than the lost ones");
    assert_eq!(replica.members().voters, [ReplicaId(1)]);
    let (state, _) = replay(&kept).expect("it can be read");
    assert!(state.coordinator_ids().eq([FOUNDER]));
    assert!(state.names_shut_out().map(|(id, _)| id).eq([3, 5].map(CoordinatorId)));
    assert!(matches!(plan(&kept, FOUNDER), Err(RecoveryError::Alone)), "once is enough");
}

#[test]
fn a_log_that_is_empty_or_of_a_removed_coordinator_is_refused() {
    assert!(matches!(plan(&DurableState::default(), FOUNDER), Err(RecoveryError::Empty)));
    assert!(matches!(plan(&disk(), CoordinatorId(9)), Err(RecoveryError::Removed)));
}
