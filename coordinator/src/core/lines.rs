//! The lines of settled steps: how this coordinator's file comes to have all of them.
//!
//! Lines are in no log. A step leader repeats its newest lines until the leader says that they are
//! written: that they, and all lines before them, are on the leader's disk. The leader sends every
//! other coordinator the lines that it takes. A coordinator that lacks lines asks the others, each
//! in its turn. All members keep their newest lines after they are written, so a new leader that
//! lacks some asks the members. A line is lost when no process has told it for a while, though
//! every process was asked. Then an entry of the log says so, and every file goes on behind it.
//!
//! A rollback begins another history. Each message names the history of its lines, and counts for
//! no other. So no file ever gets a late line of undone steps.

use std::collections::VecDeque;
use std::time::Duration;

use everstep_transport::identity::Role;
use everstep_transport::protocol::{Generation, Lineage, Message, MetricsLine, Step, WorkerId};
use everstep_transport::time::Time;

use super::change::Phase;
use super::{Core, Effect, LinkId};
use crate::history::Generations;
use crate::lines::{LineRecord, LineSums, LinesFound, PAGE, RECENT, UNSURE};
#[cfg(feature = "planted")]
use crate::plant::Plant;
use crate::state::{Command, Gap};

/// A coordinator that lacks lines asks another coordinator after this long.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// A coordinator that has heard of no line of a run under way for this long asks for news.
const ASK_QUIET: Duration = Duration::from_secs(1);
/// Lines that no member and no coordinator has told for this long are lost.
const LOST_AFTER: Duration = Duration::from_secs(10);
/// The same while a coordinator has no link: it may have the lines.
const LOST_AFTER_ABSENCE: Duration = Duration::from_secs(30);
/// The same, even if coordinators keep coming and going.
const LOST_AT_LAST: Duration = Duration::from_secs(120);

/// The file of lines, as far as the core knows it.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The history that the file is of, or is being opened for. `None` before the first run.
    lineage: Option<Lineage>,
    /// Whether the file is open.
    is_open: bool,
    /// The newest step with a line in the file, or with a lost line. The same holds for all steps
    /// before.
    reach: Step,
    /// The newest step up to which the file is durable.
    durable: Step,
    first_loss: Option<f64>,
    /// The newest records, at most [`RECENT`].
    recent: VecDeque<LineRecord>,
    /// Measures how long training stands still.
    stalls: Generations,
    /// The newest step of which another coordinator is known to have the line.
    told: Step,
    /// When this coordinator last asked another coordinator.
    asked: Option<Time>,
    /// When lines, or the word that there are none, came last.
    heard: Time,
    lack: Option<Lack>,
}

/// Settled steps that have no line here, nor one on its way.
#[derive(Clone, Copy, Debug)]
struct Lack {
    /// When this coordinator found the lack.
    began: Time,
    /// When it found the lack, or when another coordinator came that may have the lines.
    since: Time,
    /// The most coordinators that have had a link at once.
    linked: usize,
    /// The first step behind the lack of which a member has the line.
    offered: Option<Step>,
}

impl Lines {
    /// The newest lines, in order.
    pub(super) fn recent(&self) -> impl DoubleEndedIterator<Item = &MetricsLine> {
        self.recent.iter().map(|record| &record.line)
    }

    /// The sums over all lines that are here.
    pub(super) fn sums(&self) -> LineSums {
        self.recent.back().map(|record| record.sums).unwrap_or_default()
    }

    /// The loss of the run's first step.
    pub(super) fn first_loss(&self) -> Option<f64> {
        self.first_loss
    }

    /// The newest step of which the line is here, or is lost.
    pub(super) fn reach(&self) -> Step {
        self.reach
    }

    /// Whether the file can be read.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// How long the newest step took, seconds. 0 if there is no step.
    pub(super) fn pace(&self) -> f64 {
        self.recent.back().map_or(0.0, |record| record.line.seconds)
    }

    fn newest_generation(&self) -> Generation {
        self.recent.back().map_or(Generation(0), |record| record.line.generation)
    }

    /// Takes the next line, and returns its record for the file.
    fn take(&mut self, line: MetricsLine) -> LineRecord {
        let sums = self.sums().with(&line, self.stalls.line(&line));
        self.reach = line.step;
        if line.step == Step(1) {
            self.first_loss = Some(line.loss);
        }
        let record = LineRecord { line, sums };
        self.keep(record.clone());
        record
    }

    fn keep(&mut self, record: LineRecord) {
        self.recent.push_back(record);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }
}

// The file.
impl Core {
    /// The log may have begun another history, or have lost lines of this one.
    pub(super) fn follow_lines(&mut self, now: Time) {
        let history = self.state.lines();
        if history.lineage.run != 0 && self.lines.lineage != Some(history.lineage) {
            self.lines = Lines { lineage: Some(history.lineage), heard: now, ..Lines::default() };
            let history = history.clone();
            #[cfg(feature = "planted")]
            let history = match self.plant {
                Some(Plant::KeepUndoneLines) => {
                    crate::state::LineHistory { back_to: Step(u64::MAX), ..history }
                }
                _ => history,
            };
            self.effects.push_back(Effect::OpenLines(history));
        }
        self.skip_lost_lines();
    }

    /// The file of a history is open, and holds `found`.
    pub(super) fn lines_opened(&mut self, now: Time, lineage: Lineage, found: LinesFound) {
        if self.lines.lineage != Some(lineage) || self.lines.is_open {
            return;
        }
        let LinesFound { reach, first_loss, recent } = found;
        (self.lines.is_open, self.lines.reach, self.lines.durable) = (true, reach, reach);
        self.lines.first_loss = first_loss;
        for record in recent {
            self.lines.stalls.line(&record.line);
            self.lines.keep(record);
        }
        self.skip_lost_lines();
        self.conclude(now);
    }

    /// The file of a history is durable up to this step.
    pub(super) fn lines_durable(&mut self, now: Time, lineage: Lineage, reach: Step) {
        if self.lines.lineage != Some(lineage) || reach <= self.lines.durable {
            return;
        }
        self.lines.durable = reach;
        let leader = self.state.record().map(|record| record.step_leader());
        if self.leader().is_some()
            && let Some(worker) = leader
            && let Some(link) = self.links.of_registered(worker)
        {
            self.answer_heartbeat(link, worker);
        }
        self.conclude(now);
    }

    /// The newest step up to which every line is on this coordinator's disk.
    pub(super) fn written(&self) -> Step {
        #[cfg(feature = "planted")]
        if self.plant == Some(Plant::AcknowledgeEarly) {
            return self.lines.reach;
        }
        self.lines.durable
    }

    fn skip_lost_lines(&mut self) {
        while self.lines.is_open
            && let Some(gap) = self.state.lines().gap_at(self.lines.reach.next())
        {
            self.lines.reach = gap.to;
            self.effects.push_back(Effect::SkipLines(gap.to));
        }
    }
}

// What members tell.
impl Core {
    /// A member of the current generation tells `lines`: the leader writes those that follow its
    /// newest. For steps of this generation it takes the step leader's word alone that they are
    /// settled. All members know the settled steps before this generation.
    pub(super) fn report(&mut self, now: Time, worker: WorkerId, mut lines: Vec<MetricsLine>) {
        let Some(record) = self.state.record() else { return };
        if record.step_leader() != worker {
            let resume = record.resume;
            lines.retain(|line| line.step <= resume);
        }
        let first = lines.first().map(|line| line.step);
        if let Some(lack) = &mut self.lines.lack
            && let Some(first) = first.filter(|first| *first > self.lines.reach.next())
        {
            lack.offered = Some(lack.offered.map_or(first, |offered| offered.min(first)));
        }
        // The record has the line of its resume step.
        lines.extend(self.state.record().and_then(|it| Some(it.commit.as_ref()?.line.clone())));
        let fresh = self.take_lines(now, lines);
        self.pass_lines_on(&fresh);
    }

    /// Takes the line of the resume step from the record, so that it is not lost if the run ends
    /// before a member tells it.
    fn take_resumed(&mut self, now: Time) {
        let commit = self.state.record().and_then(|record| record.commit.as_ref());
        let next = commit.filter(|commit| commit.step == self.lines.reach.next());
        if let Some(line) = next.map(|commit| commit.line.clone()) {
            let fresh = self.take_lines(now, vec![line]);
            self.pass_lines_on(&fresh);
        }
    }

    /// Answers a heartbeat, and tells which lines are written.
    pub(super) fn answer_heartbeat(&mut self, to: LinkId, worker: WorkerId) {
        let resumed = self.state.record().map_or(Step(0), |record| record.resume);
        let message = Message::HeartbeatAnswer {
            generation: self.state.generation(),
            written: self.written(),
            lacks_lines: self.lines.is_open && self.lines.reach < resumed,
            retained: self.retained(worker),
        };
        self.send(to, message);
    }

    /// Writes the lines that follow the newest, each step once, in order, and of this history
    /// (I13). Returns those lines.
    fn take_lines(&mut self, now: Time, lines: Vec<MetricsLine>) -> Vec<MetricsLine> {
        if !self.lines.is_open {
            return Vec::new();
        }
        let steps = self.state.run().map_or(0, |run| run.steps);
        let mut fresh = Vec::new();
        for line in lines.into_iter().filter(|line| line.step.0 <= steps) {
            let follows = line.step == self.lines.reach.next()
                && line.step.0 <= self.lines.durable.0 + UNSURE
                && line.generation >= self.lines.newest_generation()
                && self.state.lines().admits(line.step, line.generation);
            if follows {
                fresh.push(self.lines.take(line));
            }
        }
        if fresh.is_empty() {
            return Vec::new();
        }
        (self.lines.heard, self.lines.lack) = (now, None);
        let lines = fresh.iter().map(|record| record.line.clone()).collect();
        self.effects.push_back(Effect::AppendLines(fresh));
        self.skip_lost_lines();
        lines
    }

    /// Tells the other coordinators what members have told.
    fn pass_lines_on(&mut self, fresh: &[MetricsLine]) {
        let Some(lineage) = self.lines.lineage else { return };
        for page in fresh.chunks(PAGE) {
            let message = Message::Lines { lineage, reach: self.lines.reach, lines: page.to_vec() };
            self.broadcast(self.links.of_role(Role::Coordinator), message);
        }
    }
}

// What coordinators tell each other.
impl Core {
    /// Another coordinator lacks the lines after this step.
    pub(super) fn lines_wanted(&mut self, from: LinkId, lineage: Lineage, after: Step) {
        if self.lines.is_open && self.lines.lineage == Some(lineage) {
            let reach = self.lines.reach;
            self.effects.push_back(Effect::TellLines { to: from, lineage, reach, after });
        }
    }

    /// Another coordinator tells lines, and its newest step.
    pub(super) fn lines_told(
        &mut self,
        now: Time,
        from: LinkId,
        (lineage, reach): (Lineage, Step),
        lines: Vec<MetricsLine>,
    ) {
        if self.lines.lineage != Some(lineage) || !self.lines.is_open {
            return;
        }
        let before = self.lines.reach;
        self.lines.told = self.lines.told.max(reach);
        self.lines.heard = now;
        self.take_lines(now, lines);
        // Asks for the next page, or for the lines before those that were passed on.
        let is_due = self.lines.asked.is_none_or(|asked| now.since(asked) >= ASK_AGAIN);
        if reach > self.lines.reach && (self.lines.reach > before || is_due) {
            self.ask_for_lines(now, from);
        }
    }

    /// Asks another coordinator, each in its turn, while lines are missing here, or while no news
    /// of a run under way comes.
    pub(super) fn seek_lines(&mut self, now: Time) {
        let is_behind = self.lines.reach < self.lines.told.max(self.state.settled());
        let (last, pause) = match (is_behind, self.running() && self.state.record().is_some()) {
            (true, _) => (self.lines.asked, ASK_AGAIN),
            (false, true) => (self.lines.asked.max(Some(self.lines.heard)), ASK_QUIET),
            (false, false) => return,
        };
        if !self.lines.is_open || last.is_some_and(|last| now.since(last) < pause) {
            return;
        }
        let others = self.links.of_role(Role::Coordinator);
        let turn = (now.0 / ASK_AGAIN.as_nanos() as u64) as usize;
        if let Some(to) = others.get(turn % others.len().max(1)) {
            self.ask_for_lines(now, *to);
        }
    }

    fn ask_for_lines(&mut self, now: Time, to: LinkId) {
        if let Some(lineage) = self.lines.lineage {
            self.lines.asked = Some(now);
            self.send(to, Message::FetchLines { lineage, after: self.lines.reach });
        }
    }

    /// Whether every member of a run under way can be asked for lines. While one member cannot, the
    /// run waits for it anyway, goes on without it, or goes back.
    fn members_can_tell(&self) -> bool {
        !self.running() || matches!(self.phase, Phase::Steady) && self.all_are_linked()
    }

    /// Lines that no process has told for long are lost: the leader has the log say so.
    pub(super) fn give_up_lines(&mut self, now: Time) {
        self.take_resumed(now);
        let (settled, reach) = (self.state.settled(), self.lines.reach);
        if !self.lines.is_open || reach >= settled || !self.members_can_tell() {
            self.lines.lack = None;
            return;
        }
        let linked = self.links.of_role(Role::Coordinator).len();
        let others = self.state.coordinators().len().saturating_sub(1);
        let patience = if linked >= others { LOST_AFTER } else { LOST_AFTER_ABSENCE };
        let fresh = Lack { began: now, since: now, linked, offered: None };
        let lack = self.lines.lack.get_or_insert(fresh);
        if linked > lack.linked {
            (lack.linked, lack.since) = (linked, now);
        }
        let Lack { began, since, offered, .. } = *lack;
        if now.since(since) < patience && now.since(began) < LOST_AT_LAST {
            return;
        }
        self.lines.lack = Some(fresh);
        let last = offered.map_or(settled, |first| Step(first.0 - 1)).min(settled);
        let (lineage, gap) = (self.state.lines().lineage, Gap { from: reach.next(), to: last });
        self.propose(now, Command::LoseLines { lineage, gap });
    }
}
