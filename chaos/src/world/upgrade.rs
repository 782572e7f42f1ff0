//! The builds of coordinators, when a cluster is upgraded one coordinator after the other.
//!
//! Every process but the first of each machine is then of a later build, which knows one format of
//! the log more. That format differs from the newest of today in nothing but its number. So the
//! build of today can stand for both, and reads nothing of the later one.

use std::net::Ipv4Addr;

use everstep_coordinator::node::NodeError;
use everstep_coordinator::state::{CoordinatorInfo, LOG_FORMATS};
use everstep_transport::protocol::NodeName;
use everstep_transport::protocol::format::LogFormat;

use super::World;
use crate::check::{Invariant, Violation};

/// The newest format of the log that the later build knows.
pub const LATER_LOG_FORMAT: LogFormat = LogFormat(LOG_FORMATS.end().0 + 1);

impl World {
    /// What a coordinator's process states about itself. The process runs, or is about to start.
    pub(super) fn own(&self, place: usize) -> CoordinatorInfo {
        let coordinator = &self.coordinators[place];
        let is_later = self.scenario.prepare.upgrades && coordinator.lives() > 0;
        let log_format = if is_later { LATER_LOG_FORMAT } else { *LOG_FORMATS.end() };
        CoordinatorInfo { log_format, ..coordinator.of_today() }
    }

    /// What the error of a coordinator's process means: it cannot read what others have agreed on.
    ///
    /// # Panics
    /// For any other error: no fault explains it.
    pub(super) fn unreadable(&self, place: usize, error: &NodeError) -> Violation {
        match error {
            NodeError::Entry { .. } | NodeError::Snapshot(_) => Violation {
                invariant: Invariant::I23,
                at: self.now,
                seen: format!("coordinator {place} ends: {error}"),
            },
            _ => panic!("coordinator {place}: {error}"),
        }
    }
}

/// What the coordinator at a place states about itself, after `before` older directories.
pub(super) fn own(place: usize, before: u64) -> CoordinatorInfo {
    let machine = place as u8 + 1;
    let address = (Ipv4Addr::new(10, 0, 1, machine), 4000).into();
    let incarnation = u64::from(machine) + (before << 8);
    // A name follows from a key, and every directory has its own.
    let name = NodeName::parse(&format!("coordinator-{machine}-{before}")).expect("a valid name");
    CoordinatorInfo { name, incarnation, address, api: None, log_format: *LOG_FORMATS.end() }
}
