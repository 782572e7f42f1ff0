//! Writes and reads metrics lines for the node.

use everstep_transport::protocol::outcome::Update;
use everstep_transport::protocol::{self, Lineage, RunId, Step};

use tokio::task::spawn_blocking;

use super::{CoordinatorActor, LinesDurable};
use crate::core::{EventRange, LinkId, ShellInput};
use crate::daemon::CoordinatorError;
use crate::history::WINDOW;
use crate::line_file::{LineFileError, LineFiles};
use crate::lines::{LineRecord, LinesFound, PAGE};
use crate::log::SyncFile;
use crate::node::NodeInput;
use crate::state::LineHistory;

/// A starting coordinator reads the stalls of at most this many of the newest generations.
const RECALLED: usize = 1_000;

/// The files of metrics lines, and the state of the thread that makes them durable.
#[derive(Debug)]
pub(super) struct DurableLines {
    pub(super) files: LineFiles,
    /// Whether a write is under way.
    is_busy: bool,
    /// The last state of the open file that was durable.
    durable: Option<(Lineage, Step)>,
}

impl DurableLines {
    pub(super) fn new(files: LineFiles) -> Self {
        Self { files, is_busy: false, durable: None }
    }

    /// Opens the file of a run's lines, and removes the files of all runs but these.
    fn open(&mut self, history: &LineHistory, runs: &[RunId]) -> Result<LinesFound, LineFileError> {
        let found = self.files.open(history)?;
        self.files.keep_only(runs)?;
        self.durable = Some((history.lineage, found.reach));
        Ok(found)
    }

    /// The file to make durable, with its history and its last step. None if it is durable, or a
    /// write is under way: one write covers all lines written by then.
    fn begin_sync(&mut self) -> Result<Option<(SyncFile, Lineage, Step)>, LineFileError> {
        if self.is_busy {
            return Ok(None);
        }
        let open = self.files.file()?;
        let open = open.filter(|(_, lineage, reach)| self.durable != Some((*lineage, *reach)));
        self.is_busy = open.is_some();
        Ok(open)
    }

    /// The write has ended.
    fn synced(&mut self, durable: Option<(Lineage, Step)>) {
        self.is_busy = false;
        self.durable = durable.or(self.durable);
    }
}

impl CoordinatorActor {
    /// Opens the file of a run's lines, and gives the node its content at once.
    pub(super) fn open_lines(&mut self, history: &LineHistory) -> Result<(), CoordinatorError> {
        let state = self.node.core().state();
        let mut runs: Vec<_> = state.past_runs().iter().map(|past| past.id).collect();
        runs.extend([state.run_id(), history.lineage.run]);
        let found = self.lines.open(history, &runs)?;
        let (lineage, now) = (history.lineage, self.now());
        self.recall_stalls()?;
        let recent: Vec<_> = found.recent.iter().map(|record| record.line.clone()).collect();
        self.history.summary.lines(&recent);
        self.node.handle(now, ShellInput::LinesOpened { lineage, found })?;
        Ok(())
    }

    /// Reads the stalls from before this process started, which only the file has.
    fn recall_stalls(&mut self) -> Result<(), CoordinatorError> {
        for step in self.history.summary.unmeasured(RECALLED) {
            let before = Step(step.next().0.saturating_sub(WINDOW as u64));
            let lines = self.lines.files.page(before, (step.next().0 - before.0) as usize)?;
            self.history.summary.recall(&lines);
        }
        Ok(())
    }

    pub(super) fn append_lines(&mut self, records: &[LineRecord]) -> Result<(), CoordinatorError> {
        self.lines.files.append(records)?;
        let lines: Vec<_> = records.iter().map(|record| record.line.clone()).collect();
        self.history.summary.recorded(&lines);
        self.sync_lines()
    }

    pub(super) fn skip_lines(&mut self, to: Step) -> Result<(), CoordinatorError> {
        self.lines.files.skip(to)?;
        self.sync_lines()
    }

    /// Makes the written lines durable, on a thread that may wait.
    fn sync_lines(&mut self) -> Result<(), CoordinatorError> {
        let Some((file, lineage, reach)) = self.lines.begin_sync()? else { return Ok(()) };
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
        self.lines.synced(done.as_ref().ok().copied());
        let (lineage, reach) = done?;
        self.sync_lines()?;
        Ok(NodeInput::Shell(ShellInput::LinesDurable { lineage, reach }))
    }

    /// Sends a watcher its update, with a page of lines, and with a page of events if memory does
    /// not have them any more.
    pub(super) fn update(
        &mut self,
        to: LinkId,
        after: Option<Step>,
        in_file: Option<EventRange>,
        update: Update,
    ) -> Result<(), CoordinatorError> {
        let lines = after.map_or(Ok(Vec::new()), |after| self.lines.files.page(after, PAGE))?;
        let events = match in_file {
            Some(range) => self.history.file.events(range, PAGE)?,
            None => update.events,
        };
        self.send(to, protocol::Message::Update(Update { lines, events, ..update }));
        Ok(())
    }
}
