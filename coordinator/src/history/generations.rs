//! The generations of a run: why each began, and what it cost.
//!
//! In: events and lines, those that were taken back too. Out: a report of each generation. All
//! times are those that the cluster's processes stated: nothing is measured here.

use std::collections::{BTreeMap, VecDeque};

use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::{Cause, Generation, MetricsLine, Step, WorkerId};

/// One generation.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct GenerationReport {
    /// Its number.
    pub number: Generation,
    /// Why it began.
    pub cause: Cause,
    /// Whom the cause is about: who was lost, joined or left; at the start, the members.
    pub workers: Vec<WorkerId>,
    /// Its members, in rank order.
    pub members: Vec<WorkerId>,
    /// The last step of its history.
    pub at_step: Step,
    /// A step was under way, and was done again.
    pub redone: bool,
    /// It started no step: there were fewer members than the run needs.
    pub waiting: bool,
    /// From the last sign of life of those whom it lost to the notice of their loss: the longest,
    /// milliseconds. None where nobody was lost.
    pub detect_ms: Option<f64>,
    /// How long training stood still: from the last commit before the generation to its first,
    /// less the median step before, at least 0, milliseconds. None without such a pair of commits.
    pub stall_ms: Option<f64>,
}

/// Steps before a generation whose median is what a step takes.
const RECENT: usize = 20;
/// So many commits tell how long training stood still before the last of them.
pub const WINDOW: usize = RECENT + 1;

/// The generations so far, and what the next one is judged by.
#[derive(Debug, Default)]
pub struct Generations {
    reports: Vec<GenerationReport>,
    /// Workers lost since the last of them, each with how long that took to notice, milliseconds.
    lost: BTreeMap<WorkerId, u64>,
    /// The newest commit: its generation, and when.
    newest: Option<(Generation, u64)>,
    /// Seconds that the newest steps took.
    recent: VecDeque<f64>,
    /// So many reports are of earlier runs.
    earlier: usize,
}

impl Generations {
    /// Another run begins. The reports of generations stay: their numbers go on.
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
            }
            _ => {}
        }
    }

    /// The last steps before generations of this run whose stalls are not known: at most `most`,
    /// the newest.
    pub fn unmeasured(&self, most: usize) -> Vec<Step> {
        let reports = self.reports[self.earlier..].iter().rev();
        let unmeasured = reports.filter(|report| report.stall_ms.is_none());
        unmeasured.take(most).map(|report| report.at_step).collect()
    }

    /// Takes commits that a file holds: the newest [`WINDOW`], at most, up to the first commit of a
    /// generation. Lines of another place change nothing.
    pub fn recall(&mut self, lines: &[MetricsLine]) {
        let mut window = Self::default();
        let Some(stall) = lines.iter().map(|line| window.line(line)).last().flatten() else {
            return;
        };
        let first = window.newest.map(|(generation, _)| generation);
        if let Some(report) = self.reports.iter_mut().rev().find(|r| Some(r.number) == first) {
            report.stall_ms = Some(stall);
        }
    }

    /// Takes the next commit: by generation, then by step. Returns how long training stood still
    /// before it, milliseconds, if it is a generation's first and there is one before.
    pub fn line(&mut self, line: &MetricsLine) -> Option<f64> {
        let before = self.newest.replace((line.generation, line.unix_ms));
        let stall =
            before.filter(|(generation, _)| *generation < line.generation).map(|(_, at)| {
                let stood = line.unix_ms as f64 - at as f64;
                (stood - 1e3 * self.median_seconds()).max(0.0)
            });
        if stall.is_some()
            && let Some(report) =
                self.reports.iter_mut().rev().find(|r| r.number == line.generation)
        {
            report.stall_ms = stall;
        }
        self.recent.push_back(line.seconds);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        stall
    }

    /// The generations, in order.
    pub fn reports(&self) -> &[GenerationReport] {
        &self.reports
    }

    /// The median time of a recent step; 0 if there was none.
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
