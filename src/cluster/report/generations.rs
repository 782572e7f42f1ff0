//! The part of the report about generations: why each began, and what it cost.
//!
//! In: events and lines, including undone ones. Out: a report of each generation, made as the
//! coordinator makes it.

use everstep_coordinator::history::{GenerationReport, Generations};
use everstep_transport::protocol::MetricsLine;

use crate::cluster::Progress;

/// All generations of a run, including the first.
pub(crate) fn generations(progress: &Progress) -> Vec<GenerationReport> {
    let mut generations = Generations::with_room(usize::MAX);
    progress.events.iter().for_each(|event| generations.event(&event.kind));
    for line in commits(progress) {
        generations.line(line);
    }
    generations.reports().to_vec()
}

/// All commits, in order. Undone lines were also commits, of older generations.
fn commits(progress: &Progress) -> Vec<&MetricsLine> {
    let mut commits: Vec<_> = progress.undone.iter().chain(&progress.lines).collect();
    commits.sort_by_key(|line| (line.generation, line.step));
    commits
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::outcome::{Event, EventKind};
    use everstep_transport::protocol::{Cause, Generation, Step, WorkerId};

    use super::*;

    fn line(step: u64, generation: u64, unix_ms: u64) -> MetricsLine {
        let (step, generation) = (Step(step), Generation(generation));
        MetricsLine { step, generation, unix_ms, seconds: 0.010, ..MetricsLine::default() }
    }

    #[test]
    fn what_a_rollback_took_back_counts_for_the_time_it_cost() {
        let kind = EventKind::Generation {
            generation: Generation(5),
            cause: Cause::Rollback,
            workers: vec![WorkerId(8)],
            at_step: Step(0),
            redone: false,
            waiting: false,
            under_protected: Vec::new(),
        };
        let progress = Progress {
            events: vec![Event { number: 1, unix_ms: 0, kind }],
            undone: vec![line(1, 1, 1_000), line(2, 1, 1_010), line(3, 4, 1_175)],
            lines: vec![line(1, 5, 3_185)],
            ..Progress::default()
        };
        let [report] = &generations(&progress)[..] else { panic!("one generation") };
        assert_eq!(report.stall_ms, Some(2_000.0));
    }
}
