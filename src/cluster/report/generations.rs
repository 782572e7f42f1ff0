//! The part of the report about generations: why each began, and what it cost.
//!
//! In: events and lines, those that were taken back too. Out: a report of each generation. All
//! times are those that the cluster's processes stated: nothing is measured here.

use everstep_transport::protocol::outcome::EventKind;
use everstep_transport::protocol::{Cause, Generation, MetricsLine, Step, WorkerId};
use serde::Serialize;

use crate::cluster::Progress;

/// One generation.
#[derive(Clone, Debug, PartialEq, Serialize)]
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

/// The generations of a run, the first included.
pub(crate) fn generations(progress: &Progress) -> Vec<GenerationReport> {
    let commits = commits(progress);
    let mut before: &[WorkerId] = &[];
    let mut reports = Vec::new();
    for event in &progress.events {
        let EventKind::Generation { generation, cause, workers, at_step, redone, waiting, .. } =
            &event.kind
        else {
            continue;
        };
        let gone = except(before, workers);
        reports.push(GenerationReport {
            number: *generation,
            cause: *cause,
            workers: match cause {
                Cause::Start => workers.clone(),
                Cause::Join => except(workers, before),
                _ => gone.clone(),
            },
            members: workers.clone(),
            at_step: *at_step,
            redone: *redone,
            waiting: *waiting,
            detect_ms: detect_ms(progress, &gone),
            stall_ms: stall_ms(&commits, *generation),
        });
        before = workers;
    }
    reports
}

/// Those of `these` that are not among `others`.
fn except(these: &[WorkerId], others: &[WorkerId]) -> Vec<WorkerId> {
    these.iter().filter(|id| !others.contains(id)).copied().collect()
}

fn detect_ms(progress: &Progress, gone: &[WorkerId]) -> Option<f64> {
    let losses = progress.events.iter().filter_map(|event| match event.kind {
        EventKind::Lost { worker, detect_ms, .. } if gone.contains(&worker) => Some(detect_ms),
        _ => None,
    });
    losses.max().map(|ms| ms as f64)
}

/// All commits, in order. What was taken back was committed all the same, in older generations.
fn commits(progress: &Progress) -> Vec<&MetricsLine> {
    let mut commits: Vec<_> = progress.undone.iter().chain(&progress.lines).collect();
    commits.sort_by_key(|line| (line.generation, line.step));
    commits
}

fn stall_ms(commits: &[&MetricsLine], generation: Generation) -> Option<f64> {
    let (before, since) =
        commits.split_at(commits.partition_point(|line| line.generation < generation));
    let (last, first) = (before.last()?, since.first()?);
    let stood = first.unix_ms as f64 - last.unix_ms as f64;
    let usual = 1e3 * median_seconds(&before[before.len().saturating_sub(RECENT)..]);
    (first.generation == generation).then_some((stood - usual).max(0.0))
}

/// The median time of a step.
fn median_seconds(lines: &[&MetricsLine]) -> f64 {
    let mut seconds: Vec<f64> = lines.iter().map(|line| line.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    seconds[(seconds.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::outcome::Event;

    use super::*;

    fn began(generation: u64, cause: Cause, workers: &[u64], at_step: u64) -> EventKind {
        EventKind::Generation {
            generation: Generation(generation),
            cause,
            workers: workers.iter().copied().map(WorkerId).collect(),
            at_step: Step(at_step),
            redone: cause == Cause::Lost,
            waiting: false,
            under_protected: Vec::new(),
        }
    }

    fn lost(worker: u64, detect_ms: u64) -> EventKind {
        EventKind::Lost { worker: WorkerId(worker), reason: "gone".into(), detect_ms }
    }

    fn line(step: u64, generation: u64, unix_ms: u64) -> MetricsLine {
        let (step, generation) = (Step(step), Generation(generation));
        MetricsLine { step, generation, unix_ms, seconds: 0.010, ..MetricsLine::default() }
    }

    fn progress(kinds: Vec<EventKind>) -> Progress {
        let event = |(number, kind)| Event { number, unix_ms: 0, kind };
        let events = (1..).zip(kinds).map(event).collect();
        let lines = vec![
            line(1, 1, 1_000),
            line(2, 1, 1_010),
            line(3, 2, 1_150),
            line(4, 2, 1_160),
            line(5, 4, 1_175),
        ];
        Progress { events, lines, ..Progress::default() }
    }

    #[test]
    fn a_generation_tells_whom_it_is_about_and_how_long_training_stood_still() {
        let reports = generations(&progress(vec![
            began(1, Cause::Start, &[2, 3, 4], 0),
            lost(3, 60),
            began(2, Cause::Lost, &[2, 4], 2),
            lost(9, 999),
            began(3, Cause::Join, &[2, 4, 7], 4),
            began(4, Cause::Leave, &[4, 7], 4),
        ]));
        let about: Vec<Vec<u64>> =
            reports.iter().map(|report| report.workers.iter().map(|id| id.0).collect()).collect();
        assert_eq!(about, [vec![2, 3, 4], vec![3], vec![7], vec![2]]);
        let detected: Vec<_> = reports.iter().map(|report| report.detect_ms).collect();
        assert_eq!(detected, [None, Some(60.0), None, None], "a lost learner is no lost member");
        let stalls: Vec<_> = reports.iter().map(|report| report.stall_ms).collect();
        assert_eq!(stalls, [None, Some(130.0), None, Some(5.0)], "generation 3 committed nothing");
    }

    #[test]
    fn what_a_rollback_took_back_counts_for_the_time_it_cost() {
        let mut progress = progress(vec![began(5, Cause::Rollback, &[8], 0)]);
        progress.undone = std::mem::take(&mut progress.lines);
        progress.lines = vec![line(1, 5, 3_185)];
        let [report] = &generations(&progress)[..] else { panic!("one generation") };
        assert_eq!(report.stall_ms, Some(2_000.0));
    }
}
