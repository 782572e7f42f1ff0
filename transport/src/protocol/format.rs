//! The number of the log's format, which coordinators exchange.

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

/// The number of a format of the replicated log: of its entries, and of snapshots of the state.
///
/// A leader writes the newest format that all coordinators read. So each coordinator states the
/// newest format of its build when it joins, and when it starts again with another build.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
)]
pub struct LogFormat(pub u16);

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
