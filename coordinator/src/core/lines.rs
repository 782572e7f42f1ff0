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

mod copies;

use std::collections::VecDeque;
use std::time::Duration;

use everstep_transport::identity::Role;
use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::{
    Cause, Generation, Lineage, Message, MetricsLine, RunId, Step, WorkerId,
};
use everstep_transport::time::Time;

use self::copies::LineCopies;
use super::invariants;
use super::links::Links;
use super::outbox::Outbox;
use super::{Core, LinkId, ShellEffect};
use crate::history::Generations;
use crate::lines::{LineRecord, LineSums, LinesFound, PAGE, RECENT, UNSURE};
#[cfg(feature = "planted")]
use crate::plant::CorePlant;
use crate::state::{Command, Gap, State};

/// Of how many generations a coordinator knows which steps they made: the newest.
const GENERATIONS: usize = 64;
/// A coordinator that lacks lines asks another coordinator after this long.
const LINES_FETCH_RETRY: Duration = Duration::from_millis(500);
/// A coordinator that has heard of no line of a run under way for this long asks for news.
const LINES_NEWS_ASKED_AFTER: Duration = Duration::from_secs(1);
/// Lines that no member and no coordinator has told for this long are lost.
const LINES_LOST_AFTER: Duration = Duration::from_secs(10);
/// The same while a coordinator has no link: it may have the lines.
const LINES_LOST_AFTER_ABSENCE: Duration = Duration::from_secs(30);
/// The same, even if coordinators keep coming and going.
const LINES_LOST_AT_LATEST: Duration = Duration::from_secs(120);

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
    /// The first step of each generation, as far as this coordinator has seen its lines come: the
    /// newest [`GENERATIONS`].
    begun: VecDeque<(Step, Generation)>,
    /// The newest records, at most [`RECENT`].
    recent: VecDeque<LineRecord>,
    /// Measures how long training stands still.
    stalls: Generations,
    /// The newest step of which another coordinator is known to have the line.
    told: Step,
    /// What the other coordinators' files have.
    copies: LineCopies,
    /// When this coordinator last asked another coordinator.
    asked: Option<Time>,
    /// How often it has asked.
    questions: usize,
    /// When lines, or the word that there are none, came last.
    heard: Time,
    /// Whether another coordinator has told how far its file is, since this one is open.
    is_told: bool,
    lack: Option<MissingLines>,
}

/// Settled steps that have no line here, nor one on its way.
#[derive(Clone, Copy, Debug)]
struct MissingLines {
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

    /// Takes the next line, and returns its record for the file. A pause is no stall.
    fn take(&mut self, state: &State, line: MetricsLine) -> LineRecord {
        let is_first = line.generation != self.newest_generation();
        let stall = self.stalls.line(&line);
        let stall = stall.filter(|_| !is_first || !has_rested(state, line.generation));
        let sums = self.sums().with(&line, stall);
        self.reach = line.step;
        if line.step == Step(1) {
            self.first_loss = Some(line.loss);
        }
        let record = LineRecord { line, sums };
        self.keep(record.clone());
        record
    }

    /// The generation that made a step, if its line is here and this coordinator has seen it come.
    pub(super) fn generation_of(&self, step: Step) -> Option<Generation> {
        let begun = self.begun.iter().rev().find(|(first, _)| *first <= step);
        begun.filter(|_| step <= self.reach).map(|(_, generation)| *generation)
    }

    fn keep(&mut self, record: LineRecord) {
        let MetricsLine { step, generation, .. } = record.line;
        if self.newest_generation() != generation || self.begun.is_empty() {
            self.begun.push_back((step, generation));
            if self.begun.len() > GENERATIONS {
                self.begun.pop_front();
            }
        }
        self.recent.push_back(record);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }
}

/// Whether the run was paused before this generation.
fn has_rested(state: &State, number: Generation) -> bool {
    state.events().iter().rev().any(|event| match event.kind {
        EventKind::Generation { generation, cause: Cause::Resume, .. } => generation == number,
        _ => false,
    })
}

// The file.
impl Lines {
    /// The history of the log may be another one, or have lost lines. Opens its file.
    pub(super) fn follow(&mut self, now: Time, state: &State, outbox: &mut Outbox) {
        let history = state.lines();
        if history.lineage.run != RunId(0) && self.lineage != Some(history.lineage) {
            *self = Self { lineage: Some(history.lineage), heard: now, ..Self::default() };
            let history = history.clone();
            #[cfg(feature = "planted")]
            let history = match state.plant {
                Some(CorePlant::KeepUndoneLines) => {
                    crate::state::LineHistory { undone: Vec::new(), ..history }
                }
                _ => history,
            };
            outbox.push(ShellEffect::OpenLines(history));
        }
        self.skip_lost(state, outbox);
    }

    /// The file of a history is open, and holds `found`. Returns whether that is news of the
    /// current history.
    fn opened(&mut self, lineage: Lineage, found: LinesFound) -> bool {
        if self.lineage != Some(lineage) || self.is_open {
            return false;
        }
        let LinesFound { reach, first_loss, recent } = found;
        (self.is_open, self.reach, self.durable) = (true, reach, reach);
        self.first_loss = first_loss;
        for record in recent {
            self.stalls.line(&record.line);
            self.keep(record);
        }
        true
    }

    /// The file of a history is durable up to this step. Returns whether that is news of the
    /// current history.
    fn made_durable(&mut self, lineage: Lineage, reach: Step) -> bool {
        let is_news = self.lineage == Some(lineage) && reach > self.durable;
        if is_news {
            self.durable = reach;
        }
        is_news
    }

    fn skip_lost(&mut self, state: &State, outbox: &mut Outbox) {
        while self.is_open
            && let Some(gap) = state.lines().gap_at(self.reach.next())
        {
            self.reach = gap.to;
            outbox.push(ShellEffect::SkipLines(gap.to));
        }
    }

    /// Writes the lines that follow the newest, each step once, in order, and of this history
    /// (I13). Returns those lines.
    fn append(
        &mut self,
        now: Time,
        state: &State,
        lines: Vec<MetricsLine>,
        outbox: &mut Outbox,
    ) -> Vec<MetricsLine> {
        if !self.is_open {
            return Vec::new();
        }
        let steps = state.run().map_or(0, |run| run.steps);
        let mut fresh = Vec::new();
        for line in lines.into_iter().filter(|line| line.step.0 <= steps) {
            let follows = line.step == self.reach.next()
                && line.step.0 <= self.durable.0 + UNSURE
                && line.generation >= self.newest_generation()
                && state.lines().admits(line.step, line.generation);
            if follows {
                fresh.push(self.take(state, line));
            }
        }
        if fresh.is_empty() {
            return Vec::new();
        }
        (self.heard, self.lack) = (now, None);
        invariants::check_lines(state, &fresh, self.reach);
        let lines = fresh.iter().map(|record| record.line.clone()).collect();
        outbox.push(ShellEffect::AppendLines(fresh));
        self.skip_lost(state, outbox);
        lines
    }
}

// What members tell.
impl Lines {
    /// A member has the line of this step, and none before it: the lines between may be lost.
    fn offer(&mut self, first: Option<Step>) {
        if let Some(lack) = &mut self.lack
            && let Some(first) = first.filter(|first| *first > self.reach.next())
        {
            lack.offered = Some(lack.offered.map_or(first, |offered| offered.min(first)));
        }
    }

    /// Tells the other coordinators what members have told.
    fn pass_on(&self, links: &Links, fresh: &[MetricsLine], outbox: &mut Outbox) {
        let Some(lineage) = self.lineage else { return };
        for page in fresh.chunks(PAGE) {
            let message = Message::Lines { lineage, reach: self.durable, lines: page.to_vec() };
            outbox.broadcast(links.of_role(Role::Coordinator), message);
        }
    }

    /// Lines that no process has told for long are lost. Returns the steps that the log should give
    /// up.
    fn give_up(&mut self, now: Time, state: &State, linked: usize) -> Option<Gap> {
        let (settled, reach) = (state.settled(), self.reach);
        let others = state.coordinator_ids().count().saturating_sub(1);
        let lost_after = if linked >= others { LINES_LOST_AFTER } else { LINES_LOST_AFTER_ABSENCE };
        let fresh = MissingLines { began: now, since: now, linked, offered: None };
        let lack = self.lack.get_or_insert(fresh);
        if linked > lack.linked {
            (lack.linked, lack.since) = (linked, now);
        }
        let MissingLines { began, since, offered, .. } = *lack;
        if now.since(since) < lost_after && now.since(began) < LINES_LOST_AT_LATEST {
            return None;
        }
        self.lack = Some(fresh);
        let last = offered.map_or(settled, |first| Step(first.0 - 1)).min(settled);
        Some(Gap { from: reach.next(), to: last })
    }
}

// What coordinators tell each other.
impl Lines {
    /// Another coordinator lacks the lines after this step.
    pub(super) fn tell(&self, to: LinkId, lineage: Lineage, after: Step, outbox: &mut Outbox) {
        if self.is_open && self.lineage == Some(lineage) {
            outbox.push(ShellEffect::TellLines { to, lineage, reach: self.durable, after });
        }
    }

    fn ask(&mut self, now: Time, to: LinkId, outbox: &mut Outbox) {
        if let Some(lineage) = self.lineage {
            self.asked = Some(now);
            self.questions += 1;
            outbox.send(to, Message::FetchLines { lineage, after: self.reach });
        }
    }

    /// Asks another coordinator, each in its turn, while lines are missing here, or while no news
    /// of a run under way comes.
    fn seek(&mut self, now: Time, state: &State, others: &[LinkId], outbox: &mut Outbox) {
        let is_behind = self.reach < self.told.max(state.settled());
        // A file that has just been opened may lack lines that no entry of the log knows.
        let asks_soon = is_behind || !self.is_told;
        let (last, pause) = match (asks_soon, state.is_training() && state.record().is_some()) {
            (true, _) => (self.asked, LINES_FETCH_RETRY),
            (false, true) => (self.asked.max(Some(self.heard)), LINES_NEWS_ASKED_AFTER),
            (false, false) => return,
        };
        if !self.is_open || last.is_some_and(|last| now.since(last) < pause) {
            return;
        }
        if let Some(to) = others.get(self.questions % others.len().max(1)) {
            self.ask(now, *to, outbox);
        }
    }

    /// Whether to ask for lines after a coordinator told some up to `reach`: for the next page, or
    /// for the lines before those that were passed on. `before` is the newest step before that.
    fn asks_again(&self, now: Time, reach: Step, before: Step) -> bool {
        let is_due = self.asked.is_none_or(|asked| now.since(asked) >= LINES_FETCH_RETRY);
        reach > self.reach && (self.reach > before || is_due)
    }
}

impl Core {
    /// The file of a history is open, and holds `found`.
    pub(super) fn lines_opened(&mut self, now: Time, lineage: Lineage, found: LinesFound) {
        if self.lines.opened(lineage, found) {
            self.lines.skip_lost(&self.state, &mut self.outbox);
            self.announce_lines(self.links.of_role(Role::Coordinator));
            self.conclude(now);
        }
    }

    /// The file of a history is durable up to this step.
    pub(super) fn lines_durable(&mut self, now: Time, lineage: Lineage, reach: Step) {
        if !self.lines.made_durable(lineage, reach) {
            return;
        }
        self.announce_lines(self.links.of_role(Role::Coordinator));
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
        if self.state.plant == Some(CorePlant::AcknowledgeEarly) {
            return self.lines.reach;
        }
        self.lines.durable
    }

    /// A member of the current generation tells `lines`: the leader writes those that follow its
    /// newest. For steps of this generation it takes the step leader's word alone that they are
    /// settled. All members know the settled steps before this generation.
    pub(super) fn report(&mut self, now: Time, worker: WorkerId, mut lines: Vec<MetricsLine>) {
        let Some(record) = self.state.record() else { return };
        if record.step_leader() != worker {
            let resume = record.resume;
            lines.retain(|line| line.step <= resume);
        }
        self.lines.offer(lines.first().map(|line| line.step));
        // The record has the line of its resume step.
        lines.extend(record.commit.as_ref().map(|commit| commit.line.clone()));
        self.write_lines(now, lines);
    }

    /// Takes the line of the resume step from the record, so that it is not lost if the run ends
    /// before a member tells it.
    fn take_resumed(&mut self, now: Time) {
        let commit = self.state.record().and_then(|record| record.commit.as_ref());
        let next = commit.filter(|commit| commit.step == self.lines.reach.next());
        if let Some(line) = next.map(|commit| commit.line.clone()) {
            self.write_lines(now, vec![line]);
        }
    }

    /// Writes lines, and passes the new ones on.
    fn write_lines(&mut self, now: Time, lines: Vec<MetricsLine>) {
        let Self { lines: file, state, links, outbox, .. } = self;
        let fresh = file.append(now, state, lines, outbox);
        file.pass_on(links, &fresh, outbox);
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
        self.outbox.send(to, message);
    }

    /// Another coordinator tells lines, and up to which step its file is durable.
    pub(super) fn lines_told(
        &mut self,
        now: Time,
        from: LinkId,
        lineage: Lineage,
        reach: Step,
        lines: Vec<MetricsLine>,
    ) {
        let Self { lines: file, state, outbox, .. } = self;
        if file.lineage != Some(lineage) {
            return;
        }
        file.copies.told(from, reach);
        if !file.is_open {
            return;
        }
        (file.heard, file.is_told) = (now, true);
        file.told = file.told.max(reach);
        // A message without lines says only how far the other file is durable.
        if !lines.is_empty() {
            let before = file.reach;
            file.append(now, state, lines, outbox);
            if file.asks_again(now, reach, before) {
                file.ask(now, from, outbox);
            }
        }
        if self.leader().is_some() {
            self.conclude(now);
        }
    }

    /// Asks another coordinator for lines, if it is time.
    pub(super) fn seek_lines(&mut self, now: Time) {
        let others = self.links.of_role(Role::Coordinator);
        self.lines.seek(now, &self.state, &others, &mut self.outbox);
    }

    /// Whether every member of a run under way can be asked for lines. While one member cannot, the
    /// run waits for it anyway, goes on without it, or goes back.
    fn members_can_tell(&self, now: Time) -> bool {
        !self.running() || self.change.is_steady() && self.roster(now).all_members_are_linked()
    }

    /// Whether another coordinator may have lines that this one lacks. The log does not know how
    /// many lines there are: as long as no coordinator has told, it may be any number.
    pub fn may_lack_lines(&self) -> bool {
        let Lines { is_open, is_told, reach, told, .. } = self.lines;
        let is_of_run = self.state.lines().lineage.run != RunId(0);
        is_of_run && !(is_open && is_told && reach >= told.max(self.state.settled()))
    }

    /// Lines that no process has told for long are lost: the leader has the log say so.
    pub(super) fn give_up_lines(&mut self, now: Time) {
        self.take_resumed(now);
        let lacks = self.lines.is_open && self.lines.reach < self.state.settled();
        if !lacks || !self.members_can_tell(now) {
            self.lines.lack = None;
            return;
        }
        let linked = self.links.of_role(Role::Coordinator).len();
        if let Some(gap) = self.lines.give_up(now, &self.state, linked) {
            let lineage = self.state.lines().lineage;
            self.propose(now, Command::LoseLines { lineage, gap });
        }
    }
}
