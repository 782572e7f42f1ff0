//! A coordinator's files of metrics lines, record by record, as the daemon keeps them.
//!
//! One sync makes all records durable that are in the file by then. A crash takes any number of the
//! newest records that are not durable.

use std::collections::BTreeMap;

use everstep_coordinator::core::{LinkId, ShellEffect, ShellInput};
use everstep_coordinator::lines::{LineRecord, LinesFound, PAGE, RECENT};
use everstep_coordinator::state::LineHistory;
use everstep_transport::protocol::outcome::Update;
use everstep_transport::protocol::{Lineage, ManifestToWrite, Message, MetricsLine, RunId, Step};

use super::World;
use super::types::Event;
use crate::check::{Invariant, Violation};
use crate::random::Random;

/// The files of metrics lines on the disk of a coordinator's machine, by run.
#[derive(Debug, Default)]
pub struct LineFiles {
    files: BTreeMap<RunId, LineFile>,
    /// The history of the open file.
    open: Lineage,
    /// Whether a sync is under way.
    is_busy: bool,
}

/// The file of a run.
#[derive(Debug, Default)]
struct LineFile {
    /// One record a step. None where the line is lost.
    records: Vec<Option<LineRecord>>,
    /// How many of the records are durable.
    durable: usize,
}

impl LineFiles {
    /// As [`everstep_coordinator::line_file::LineFiles::open`] does.
    fn open(&mut self, history: &LineHistory) -> LinesFound {
        self.open = history.lineage;
        let records = &mut self.files.entry(history.lineage.run).or_default().records;
        let is_undone = |(record, step): (&Option<LineRecord>, u64)| match record {
            Some(LineRecord { line, .. }) => !history.admits(line.step, line.generation),
            None => history.gap_at(Step(step)).is_none(),
        };
        if let Some(first) = records.iter().zip(1..).position(is_undone) {
            records.truncate(first);
        }
        let begin = records.len().saturating_sub(RECENT);
        let found = LinesFound {
            reach: Step(records.len() as u64),
            first_loss: records.first().and_then(|it| Some(it.as_ref()?.line.loss)),
            recent: records[begin..].iter().flatten().cloned().collect(),
        };
        self.sync();
        found
    }

    fn current(&self) -> Option<&LineFile> {
        self.files.get(&self.open.run)
    }

    fn current_mut(&mut self) -> &mut LineFile {
        self.files.entry(self.open.run).or_default()
    }

    /// The lines after a step, up to the first gap.
    fn page(&self, after: Step) -> Vec<MetricsLine> {
        let records = self.current().map_or(&[][..], |file| &file.records);
        let rest = records.iter().skip(after.0 as usize).take(PAGE);
        rest.map_while(|record| Some(record.as_ref()?.line.clone())).collect()
    }

    /// The lines after one step, up to another. It leaves out those that are lost.
    fn between(&self, after: Step, to: Step) -> Vec<MetricsLine> {
        let records = self.current().map_or(&[][..], |file| &file.records);
        let span = records.iter().take(to.0 as usize).skip(after.0 as usize);
        span.flatten().map(|record| record.line.clone()).collect()
    }

    /// The last step up to which the history's lines are durable.
    fn durable(&self) -> Step {
        self.current().map_or(Step(0), |file| Step(file.durable as u64))
    }

    /// Makes all records durable.
    pub fn sync(&mut self) {
        let file = self.current_mut();
        file.durable = file.records.len();
    }

    /// Ends the process. A random number of the newest records is lost, of those that were not
    /// durable.
    pub fn crash(&mut self, random: &mut Random) {
        self.is_busy = false;
        for file in self.files.values_mut() {
            let cached = file.records.len() - file.durable.min(file.records.len());
            let kept = random.below(cached as u64 + 1) as usize;
            file.records.truncate(file.durable + kept);
            file.durable = file.records.len();
        }
    }
}

impl World {
    /// Carries out a coordinator's effect on lines.
    pub(super) fn bring_lines_about(
        &mut self,
        place: usize,
        effect: ShellEffect,
    ) -> Result<(), Violation> {
        match effect {
            ShellEffect::OpenLines(history) => self.open_lines(place, &history),
            ShellEffect::AppendLines(records) => self.append_lines(place, records),
            ShellEffect::SkipLines(to) => {
                self.skip_lines(place, to);
                Ok(())
            }
            ShellEffect::TellLines { to, lineage, reach, after } => {
                self.tell_lines(place, to, lineage, reach, after)
            }
            ShellEffect::OrderManifest { to, after, to_step, order } => {
                let lines = self.coordinators[place].disk().lines().between(after, to_step);
                let order = ManifestToWrite { lines, ..*order };
                self.tell(place, to, Message::WriteManifest(order))
            }
            ShellEffect::Update { to, after, in_file, update } => {
                let events = match in_file {
                    Some(range) => self.coordinators[place].disk().history_file().events(range),
                    None => update.events,
                };
                self.update(place, to, after, Update { events, ..*update })
            }
            other => panic!("{other:?} is not about lines"),
        }
    }

    /// A coordinator opens the file of a run's lines.
    fn open_lines(&mut self, place: usize, history: &LineHistory) -> Result<(), Violation> {
        let found = self.coordinators[place].disk_mut().lines_mut().open(history);
        self.step_coordinator(place, ShellInput::LinesOpened { lineage: history.lineage, found })
    }

    /// A coordinator writes lines at the end of the file.
    ///
    /// # Errors
    /// I13.
    fn append_lines(&mut self, place: usize, records: Vec<LineRecord>) -> Result<(), Violation> {
        let file = self.coordinators[place].disk_mut().lines_mut().current_mut();
        for record in records {
            let (step, next) = (record.line.step, Step(file.records.len() as u64 + 1));
            if step != next {
                let seen = format!("coordinator {place} writes step {step} in the place of {next}");
                return Err(Violation { invariant: Invariant::I13, at: self.now, seen });
            }
            file.records.push(Some(record));
        }
        self.sync_lines(place);
        Ok(())
    }

    /// Notes that the lines up to this step are lost.
    fn skip_lines(&mut self, place: usize, to: Step) {
        let file = self.coordinators[place].disk_mut().lines_mut().current_mut();
        file.records.resize(file.records.len().max(to.0 as usize), None);
        self.sync_lines(place);
    }

    /// Makes all present records durable. If a sync is under way, newer records follow after it.
    fn sync_lines(&mut self, place: usize) {
        let lines = self.coordinators[place].disk_mut().lines_mut();
        let (lineage, durable) = (lines.open, lines.durable());
        let reach = Step(lines.current_mut().records.len() as u64);
        if reach > durable && !std::mem::replace(&mut lines.is_busy, true) {
            self.later(Event::LinesDurable(place, lineage, reach));
        }
    }

    /// A sync of lines should be done by now.
    pub(super) fn on_lines_durable(
        &mut self,
        place: usize,
        lineage: Lineage,
        reach: Step,
    ) -> Result<(), Violation> {
        let now = self.now;
        let disk = self.coordinators[place].disk_mut();
        if let Some(until) = disk.stalled(now) {
            self.queue.put(until, Event::LinesDurable(place, lineage, reach));
            return Ok(());
        }
        let lines = disk.lines_mut();
        lines.is_busy = false;
        if lines.open == lineage {
            let file = lines.current_mut();
            file.durable = file.durable.max(reach.0 as usize);
        }
        self.sync_lines(place);
        self.step_coordinator(place, ShellInput::LinesDurable { lineage, reach })
    }

    /// A coordinator sends lines to another one.
    fn tell_lines(
        &mut self,
        place: usize,
        to: LinkId,
        lineage: Lineage,
        reach: Step,
        after: Step,
    ) -> Result<(), Violation> {
        let lines = self.coordinators[place].disk().lines().page(after);
        self.checkers.liveness.tally.line_pages += u64::from(!lines.is_empty());
        self.tell(place, to, Message::Lines { lineage, reach, lines })
    }

    /// A coordinator sends a watcher the news.
    fn update(
        &mut self,
        place: usize,
        to: LinkId,
        after: Option<Step>,
        update: Update,
    ) -> Result<(), Violation> {
        let disk = self.coordinators[place].disk();
        let lines = after.map_or(Vec::new(), |after| disk.lines().page(after));
        self.tell(place, to, Message::Update(Update { lines, ..update }))
    }

    /// A coordinator states that lines are written. They must be on its disk.
    ///
    /// # Errors
    /// I13.
    pub(super) fn judge_written(&self, place: usize, written: Step) -> Result<(), Violation> {
        let durable = self.coordinators[place].disk().lines().durable();
        if written <= durable {
            return Ok(());
        }
        let seen = format!(
            "coordinator {place} calls lines up to step {written} written, and has those up to \
             {durable} on its disk"
        );
        Err(Violation { invariant: Invariant::I13, at: self.now, seen })
    }
}

#[cfg(test)]
mod tests {
    use everstep_coordinator::state::{Gap, Undone};
    use everstep_transport::protocol::Generation;

    use super::*;

    fn record(step: u64, generation: u64) -> Option<LineRecord> {
        let (step, generation) = (Step(step), Generation(generation));
        let line = MetricsLine { step, generation, ..MetricsLine::default() };
        Some(LineRecord { line, ..LineRecord::default() })
    }

    fn history(rollback: u64) -> LineHistory {
        let lineage = Lineage { run: RunId(4), rollback: Generation(rollback) };
        let undone = Undone { after: Step(2), before: Generation(rollback) };
        LineHistory { lineage, undone: vec![undone], gaps: Vec::new() }
    }

    #[test]
    fn a_crash_takes_only_the_newest_lines_that_are_not_durable() {
        let mut found = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let mut files = LineFiles::default();
            files.open(&history(0));
            files.current_mut().records = (1..=3).map(|step| record(step, 1)).collect();
            files.sync();
            files.current_mut().records.extend([record(4, 1), record(5, 1)]);
            files.crash(&mut Random::new(seed));
            found.insert(files.open(&history(0)).reach.0);
        }
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [3, 4, 5]);
    }

    /// Another cluster has the lines of the first three steps. The run goes back behind them.
    #[test]
    fn i13_a_rollback_cuts_the_place_of_lines_that_another_cluster_has() {
        let gaps = |to| vec![Gap { from: Step(1), to: Step(to) }];
        let mut files = LineFiles::default();
        files.open(&LineHistory { undone: vec![], gaps: gaps(3), ..history(0) });
        files.current_mut().records = vec![None, None, None, record(4, 1)];
        let found = files.open(&LineHistory { gaps: gaps(2), ..history(2) });
        assert_eq!(found.reach, Step(2));
    }

    #[test]
    fn i13_a_rollback_cuts_the_lines_that_it_undoes() {
        let mut files = LineFiles::default();
        files.open(&history(0));
        files.current_mut().records = (1..=3).map(|step| record(step, 1)).collect();
        assert_eq!(files.open(&history(2)).reach, Step(2));
        files.current_mut().records.push(record(3, 2));
        assert_eq!((files.open(&history(0)).reach, files.open(&history(2)).reach.0), (Step(3), 3));
    }
}
