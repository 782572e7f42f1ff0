//! The generations of a run: why each began, and what it cost.
//!
//! In: events and lines, including those that a rollback took back. Out: a report of each
//! generation. All times are those that the cluster's processes stated. This module measures
//! nothing.

use std::collections::{BTreeMap, VecDeque};

use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::{Cause, Generation, MetricsLine, Step, WorkerId};

/// The report of one generation.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct GenerationReport {
    /// The number of the generation, from 1.
    pub number: Generation,
    /// Why the generation began.
    pub cause: Cause,
    /// The workers that were lost, that joined or that left. At the start: the members.
    pub workers: Vec<WorkerId>,
    /// The generation's members, in rank order.
    pub members: Vec<WorkerId>,
    /// The last step before the generation.
    pub at_step: Step,
    /// Whether the step that was under way was done again.
    pub redone: bool,
    /// Whether the generation started no step because it had fewer members than the run needs.
    pub waiting: bool,
    /// The time from the last sign of life of a lost worker to the notice of its loss, in
    /// milliseconds: the longest of all lost workers. None if no worker was lost.
    pub detect_ms: Option<f64>,
    /// How long training stood still, in milliseconds: from the last commit before the generation
    /// to its first, less the median step before, at least 0. None without such a pair of commits,
    /// and after a pause.
    pub stall_ms: Option<f64>,
}

/// How many steps before a generation count for the median time of a step.
const RECENT: usize = 20;
/// How many commits show how long training stood still before the last of them.
pub const WINDOW: usize = RECENT + 1;

/// How many reports stay in memory at least, unless the owner says otherwise.
const ROOM: usize = 1_000;

/// The newest generations, and the figures by which to judge the next one.
#[derive(Clone, Debug)]
pub struct Generations {
    /// Less than twice `room`, in order.
    reports: Vec<GenerationReport>,
    room: usize,
    /// Workers lost since the newest generation, each with the time until the notice, in
    /// milliseconds.
    lost: BTreeMap<WorkerId, u64>,
    /// The generation and the time of the newest commit, in milliseconds of Unix time.
    newest: Option<(Generation, u64)>,
    /// How many seconds each of the newest steps took.
    recent: VecDeque<f64>,
    /// How many reports are of earlier runs.
    earlier: usize,
}

impl Default for Generations {
    fn default() -> Self {
        Self::with_room(ROOM)
    }
}

impl Generations {
    /// No generations yet. At least the newest `room` of them will stay in memory, and fewer than
    /// twice as many.
    pub fn with_room(room: usize) -> Self {
        let (lost, recent) = (BTreeMap::new(), VecDeque::new());
        Self { reports: Vec::new(), room: room.max(1), lost, newest: None, recent, earlier: 0 }
    }

    /// Another run begins. The reports stay, since the numbers of generations go on.
    pub fn begin(&mut self) {
        (self.newest, self.recent) = (None, VecDeque::new());
        self.earlier = self.reports.len();
        self.lost.clear();
    }

    /// Takes the next event.
    pub fn event(&mut self, kind: &EventKind) {
        match kind {
            EventKind::Lost { worker, detect_ms, .. } => {
                self.lost.insert(*worker, *detect_ms);
            }
            EventKind::Generation {
                generation, cause, workers, at_step, redone, waiting, ..
            } => {
                let before = self.reports.last().map_or(&[][..], |report| &report.members);
                let gone = except(before, workers);
                let lost = std::mem::take(&mut self.lost);
                let detect = gone.iter().filter_map(|worker| lost.get(worker)).max();
                let report = GenerationReport {
                    number: *generation,
                    cause: *cause,
                    workers: match cause {
                        Cause::Start => workers.clone(),
                        Cause::Join => except(workers, before),
                        _ => gone,
                    },
                    members: workers.clone(),
                    at_step: *at_step,
                    redone: *redone,
                    waiting: *waiting,
                    detect_ms: detect.map(|ms| *ms as f64),
                    stall_ms: None,
                };
                self.reports.push(report);
                self.evict();
            }
            _ => {}
        }
    }

    /// Drops the oldest reports when there are twice as many as stay.
    fn evict(&mut self) {
        if self.reports.len() >= self.room.saturating_mul(2) {
            let count = self.reports.len() - self.room;
            self.reports.drain(..count);
            self.earlier = self.earlier.saturating_sub(count);
        }
    }

    /// The last steps before generations of this run without a known stall: the newest, at most
    /// `most`.
    pub fn unmeasured(&self, most: usize) -> Vec<Step> {
        let reports = self.reports[self.earlier..].iter().rev();
        let unmeasured =
            reports.filter(|report| report.stall_ms.is_none() && report.cause != Cause::Resume);
        unmeasured.take(most).map(|report| report.at_step).collect()
    }

    /// Takes commits from a file: at most the newest [`WINDOW`] up to the first commit of a
    /// generation. Other lines change nothing.
    pub fn recall(&mut self, lines: &[MetricsLine]) {
        let mut window = Self::with_room(1);
        let Some(stall) = lines.iter().map(|line| window.line(line)).last().flatten() else {
            return;
        };
        let first = window.newest.map(|(generation, _)| generation);
        if let Some(report) = self.reports.iter_mut().rev().find(|r| Some(r.number) == first) {
            report.stall_ms = Some(stall);
        }
    }

    /// Takes the next commit, in order of generation, then step. If it is a generation's first and
    /// another one came before, returns how long training stood still in between, in milliseconds.
    pub fn line(&mut self, line: &MetricsLine) -> Option<f64> {
        let before = self.newest.replace((line.generation, line.unix_ms));
        let stall =
            before.filter(|(generation, _)| *generation < line.generation).map(|(_, at)| {
                let stood = line.unix_ms as f64 - at as f64;
                (stood - 1e3 * self.median_seconds()).max(0.0)
            });
        let report = self.reports.iter_mut().rev().find(|r| r.number == line.generation);
        let rested = report.as_ref().is_some_and(|report| report.cause == Cause::Resume);
        let stall = stall.filter(|_| !rested); // A pause is no stall.
        if stall.is_some()
            && let Some(report) = report
        {
            report.stall_ms = stall;
        }
        self.recent.push_back(line.seconds);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        stall
    }

    /// The newest generations, in order: all if there were no more than there is room for.
    pub fn reports(&self) -> &[GenerationReport] {
        &self.reports
    }

    /// The median time of a recent step, in seconds. 0 without a recent step.
    fn median_seconds(&self) -> f64 {
        let mut seconds: Vec<f64> = self.recent.iter().copied().collect();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
    }
}

/// Those of `these` that are not among `others`.
fn except(these: &[WorkerId], others: &[WorkerId]) -> Vec<WorkerId> {
    these.iter().filter(|id| !others.contains(id)).copied().collect()
}
