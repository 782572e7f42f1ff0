//! A coordinator as its predecessor in the same directory left it.
//!
//! In: the log and the journal. Out: a core that knows their history, not yet elected, and both
//! files open for what follows. An empty history is one too.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use everstep_transport::time::Time;

use super::CoordinatorError;
use super::files::Cluster;
use super::journal::Journal;
use crate::core::{Core, Input};
use crate::log::{Agreed, Log};

/// What a coordinator begins with.
pub(super) struct Resumed {
    pub(super) core: Core,
    /// The core's time zero.
    pub(super) start: Instant,
    pub(super) log: Log,
    pub(super) journal: Journal,
}

/// Applies every entry of the log, and gives the lines back.
pub(super) fn resume(cluster: &Cluster) -> Result<Resumed, CoordinatorError> {
    let (log, entries) = Log::open(&cluster.log())?;
    let (journal, lines) = Journal::open(&cluster.journal())?;
    tracing::info!(term = %log.term(), entries = entries.len(), lines = lines.len(), "resumed");
    // A clock before 1970 is wrong anyway; it only stamps events.
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let start = Instant::now();
    let mut core = Core::new(Time(0), unix.as_millis() as u64);
    for Agreed { index, term, entry } in entries {
        core.handle(Time(0), Input::Applied { index, term, entry });
        // What was to be done then was done, or is for those who no longer listen.
        while core.poll_effect().is_some() {}
    }
    core.restore_lines(lines);
    Ok(Resumed { core, start, log, journal })
}
