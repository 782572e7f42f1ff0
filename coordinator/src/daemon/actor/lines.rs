//! Writes and reads metrics lines for the node.

use everstep_transport::protocol::outcome::Update;
use everstep_transport::protocol::{self, Lineage, Step};

use tokio::task::spawn_blocking;

use super::{CoordinatorActor, LinesDurable};
use crate::core::{EventRange, LinkId, ShellInput};
use crate::daemon::CoordinatorError;
use crate::history::WINDOW;
use crate::lines::{LineRecord, PAGE};
use crate::node::NodeInput;
use crate::state::LineHistory;

/// A starting coordinator reads the stalls of at most this many of the newest generations.
const RECALLED: usize = 1_000;

/// The state of the thread that makes lines durable.
#[derive(Debug, Default)]
pub(super) struct LineSync {
    /// Whether a write is under way.
    is_busy: bool,
    /// The last state of the file that was durable.
    durable: Option<(Lineage, Step)>,
}

impl CoordinatorActor {
    /// Opens the file of a run's lines, and gives the node its content at once.
    pub(super) fn open_lines(&mut self, history: &LineHistory) -> Result<(), CoordinatorError> {
        let found = self.lines.open(history)?;
        let state = self.node.core().state();
        let mut runs: Vec<_> = state.past_runs().iter().map(|past| past.id).collect();
        runs.extend([state.run_id(), history.lineage.run]);
        self.lines.keep_only(&runs)?;
        let (lineage, now) = (history.lineage, self.now());
        self.line_sync.durable = Some((lineage, found.reach));
        self.recall_stalls()?;
        let recent: Vec<_> = found.recent.iter().map(|record| record.line.clone()).collect();
        self.history.lines(&recent);
        self.node.handle(now, ShellInput::LinesOpened { lineage, found })?;
        Ok(())
    }

    /// Reads the stalls from before this process started, which only the file has.
    fn recall_stalls(&mut self) -> Result<(), CoordinatorError> {
        for step in self.history.unmeasured(RECALLED) {
            let before = Step(step.next().0.saturating_sub(WINDOW as u64));
            let lines = self.lines.page(before, (step.next().0 - before.0) as usize)?;
            self.history.recall(&lines);
        }
        Ok(())
    }

    pub(super) fn append_lines(&mut self, records: &[LineRecord]) -> Result<(), CoordinatorError> {
        self.lines.append(records)?;
        let lines: Vec<_> = records.iter().map(|record| record.line.clone()).collect();
        self.history.recorded(&lines);
        self.sync_lines()
    }

    pub(super) fn skip_lines(&mut self, to: Step) -> Result<(), CoordinatorError> {
        self.lines.skip(to)?;
        self.sync_lines()
    }

    /// Makes the written lines durable, on a thread that may wait. One write is under way at a
    /// time, and covers all lines written by then.
    fn sync_lines(&mut self) -> Result<(), CoordinatorError> {
        if self.line_sync.is_busy {
            return Ok(());
        }
        let Some((file, lineage, reach)) = self.lines.file()? else { return Ok(()) };
        if self.line_sync.durable == Some((lineage, reach)) {
            return Ok(());
        }
        self.line_sync.is_busy = true;
        let own = self.own.clone();
        spawn_blocking(move || {
            let done = file.make_durable().map_err(CoordinatorError::from);
            own.do_send(LinesDurable(done.map(|()| (lineage, reach))));
        });
        Ok(())
    }

    /// The lines up to a step are durable. Begins the next write if there are more.
    pub(super) fn lines_durable(
        &mut self,
        done: Result<(Lineage, Step), CoordinatorError>,
    ) -> Result<NodeInput, CoordinatorError> {
        self.line_sync.is_busy = false;
        let (lineage, reach) = done?;
        self.line_sync.durable = Some((lineage, reach));
        self.sync_lines()?;
        Ok(NodeInput::Shell(ShellInput::LinesDurable { lineage, reach }))
    }

    /// Sends a watcher its update, with a page of lines, and with a page of events if memory does
    /// not have them any more.
    pub(super) fn update(
        &mut self,
        to: LinkId,
        (after, in_file): (Option<Step>, Option<EventRange>),
        update: Update,
    ) -> Result<(), CoordinatorError> {
        let lines = after.map_or(Ok(Vec::new()), |after| self.lines.page(after, PAGE))?;
        let events = match in_file {
            Some(range) => self.history_file.events(range, PAGE)?,
            None => update.events,
        };
        self.send(to, protocol::Message::Update(Update { lines, events, ..update }));
        Ok(())
    }
}
