//! A coordinator as its predecessor in the same directory left it.
//!
//! In: the log and the journal. Out: a core that knows the history in the log, not yet elected, and
//! both files open for what follows. An empty history is one too. The journal follows from the log:
//! what it lacks, or has too much, is mended.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use everstep_transport::protocol::{News, Step};
use everstep_transport::time::Time;

use super::CoordinatorError;
use super::files::Cluster;
use super::journal::Journal;
use crate::core::{Core, Effect, Input};
use crate::history::History;
use crate::log::{Agreed, Log};

/// What a coordinator begins with.
pub(super) struct Resumed {
    pub(super) core: Core,
    /// The core's time zero.
    pub(super) start: Instant,
    pub(super) log: Log,
    pub(super) journal: Journal,
    pub(super) history: History,
}

/// Applies every entry of the log, and gives the lines back.
pub(super) fn resume(cluster: &Cluster) -> Result<Resumed, CoordinatorError> {
    let (log, entries) = Log::open(&cluster.log())?;
    let (mut journal, lines) = Journal::open(&cluster.journal())?;
    tracing::info!(term = %log.term(), entries = entries.len(), lines = lines.len(), "resumed");
    // A clock before 1970 is wrong anyway; it only stamps events.
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let start = Instant::now();
    let mut history = History::default();
    let mut core = Core::new(Time(0), unix.as_millis() as u64);
    for Agreed { index, term, entry } in entries {
        core.handle(Time(0), Input::Applied { index, term, entry });
        // What was to be done then was done, or is for those who no longer listen.
        while let Some(effect) = core.poll_effect() {
            if let Effect::History(frame) = effect {
                frame.news.into_iter().for_each(|news| recall(&mut history, news));
            }
        }
    }
    let logged = core.lines_after(Step(0));
    let same = logged.iter().zip(&lines).take_while(|(logged, line)| logged == line).count();
    if same < lines.len() {
        journal.forget(Step(same as u64))?;
    }
    if same < logged.len() {
        journal.record(logged[same..].to_vec())?;
    }
    Ok(Resumed { core, start, log, journal, history })
}

fn recall(history: &mut History, news: News) {
    match news {
        News::Event(event) => history.event(&event),
        News::Lines(lines) => history.lines(&lines),
        News::Forget(_) | News::Run(_) => {}
    }
}
