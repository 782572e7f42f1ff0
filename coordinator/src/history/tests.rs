//! The sums of events and lines.

use everstep_transport::protocol::outcome::{Event, EventKind};
use everstep_transport::protocol::reason::{
    LinkEnd, LossReason, NamedWorker, ProcessExit, RollbackReason,
};
use everstep_transport::protocol::{Cause, NodeName, Shard, WorkerId};

use super::*;

fn event(number: u64, kind: EventKind) -> Event {
    Event { number, unix_ms: 1_000 * number, kind }
}

fn began(generation: u64, cause: Cause, workers: &[u64]) -> EventKind {
    EventKind::Generation {
        generation: Generation(generation),
        cause,
        workers: workers.iter().copied().map(WorkerId).collect(),
        at_step: Step(0),
        redone: cause == Cause::Lost,
        waiting: false,
        under_protected: vec![(Shard(3), workers.len() as u32)],
    }
}

fn lost(worker: u64, reason: LossReason) -> EventKind {
    EventKind::Lost { worker: WorkerId(worker), reason, detect_ms: 60, pause_ms: 1 }
}

fn line(step: u64, generation: u64, unix_ms: u64) -> MetricsLine {
    let (step, generation) = (Step(step), Generation(generation));
    MetricsLine { step, generation, unix_ms, seconds: 0.010, tokens: 7, ..MetricsLine::default() }
}

fn history(kinds: impl IntoIterator<Item = EventKind>) -> HistorySummary {
    let mut history = HistorySummary::default();
    (1..).zip(kinds).for_each(|(number, kind)| history.event(&event(number, kind)));
    history
}

#[test]
fn whatever_happens_is_counted_once() {
    let name = NodeName::parse("worker-1").expect("a name");
    let registered =
        |id| EventKind::Registered { worker: WorkerId(id), name: name.clone(), number: 1 };
    let mut history = history([
        registered(2),
        registered(3),
        began(1, Cause::Start, &[2, 3]),
        lost(3, LossReason::LinkClosed(LinkEnd::Silent)),
        began(2, Cause::Lost, &[2]),
        EventKind::Rollback { from: Step(9), to: Step(0), reason: RollbackReason::Asked },
    ]);
    history.lines(&[line(1, 1, 1_000), line(2, 1, 1_010)]);
    history.lines(&[line(2, 1, 1_010), line(3, 1, 1_020)]);
    history.lines(&[line(1, 2, 1_200)]);
    let tally = history.tally();
    assert_eq!((tally.registrations, tally.rollbacks, tally.redone), (2, 1, 1));
    assert_eq!((tally.steps, tally.tokens), (4, 28), "a repeat is none, a step done again is one");
    assert_eq!((tally.losses["link"], tally.losses["other"]), (1, 0));
    assert_eq!((tally.generations["start"], tally.generations["lost"]), (1, 1));
    assert_eq!(tally.stalls.count(), 1);
    assert!((tally.stalls.sum() - 0.170).abs() < 1e-9, "{}", tally.stalls.sum());
    let [lapse] = history.under_protected()[..] else { panic!("one lapse") };
    assert_eq!((lapse.first, lapse.count, lapse.from_unix_ms), (Shard(3), 1, 3_000));
}

#[test]
fn a_run_lacks_nothing_of_what_the_one_before_it_lacked() {
    let mut history = history([began(1, Cause::Start, &[2, 3])]);
    assert_eq!(history.under_protected().len(), 1);
    history.begin();
    assert_eq!(history.under_protected(), []);
}

#[test]
fn a_loss_is_classed_by_its_reason() {
    for (reason, class) in [
        (LossReason::LinkClosed(LinkEnd::Silent), "link"),
        (LossReason::ProcessEnded(ProcessExit::KILLED), "process"),
        (LossReason::Silent(2_200), "silence"),
        (LossReason::NoAnswer, "silence"),
        (LossReason::Failed("no space left".into()), "failure"),
        (LossReason::AddressStated, "replaced"),
        (LossReason::Unreachable(NamedWorker::Id(WorkerId(7))), "unreachable"),
        (LossReason::Revoked, "other"),
    ] {
        let kind = lost(3, reason);
        assert_eq!(history([kind.clone()]).tally().losses[class], 1, "{kind:?}");
    }
}

#[test]
fn a_generation_tells_whom_it_is_about_and_how_long_training_stood_still() {
    let mut history = history([
        began(1, Cause::Start, &[2, 3, 4]),
        lost(3, LossReason::Silent(2_200)),
        began(2, Cause::Lost, &[2, 4]),
        lost(9, LossReason::Silent(2_200)),
        began(3, Cause::Join, &[2, 4, 7]),
        began(4, Cause::Leave, &[4, 7]),
    ]);
    history.lines(&[line(1, 1, 1_000), line(2, 1, 1_010), line(3, 2, 1_150)]);
    history.lines(&[line(4, 2, 1_160), line(5, 4, 1_175)]);
    let reports = history.generations();
    let about: Vec<Vec<u64>> =
        reports.iter().map(|report| report.workers.iter().map(|id| id.0).collect()).collect();
    assert_eq!(about, [vec![2, 3, 4], vec![3], vec![7], vec![2]]);
    let detected: Vec<_> = reports.iter().map(|report| report.detect_ms).collect();
    assert_eq!(detected, [None, Some(60.0), None, None], "a lost joiner is no lost member");
    let stalls: Vec<_> = reports.iter().map(|report| report.stall_ms).collect();
    assert_eq!(stalls, [None, Some(130.0), None, Some(5.0)], "generation 3 committed nothing");
}

#[test]
fn a_histogram_counts_a_time_at_every_bound_that_it_does_not_exceed() {
    let mut histogram = Histogram::new(&[0.1, 1.0]);
    [0.1, 0.5, 7.0].into_iter().for_each(|seconds| histogram.observe(seconds));
    assert_eq!(histogram.buckets().collect::<Vec<_>>(), [(0.1, 1), (1.0, 2)]);
    assert_eq!((histogram.count(), histogram.sum()), (3, 7.6));
}

#[test]
fn the_time_of_a_write_is_that_from_proposal_to_application() {
    let mut history = HistorySummary::default();
    let at = |milliseconds: u64| Time(milliseconds * 1_000_000);
    history.proposed(at(10));
    history.proposed(at(12));
    history.applied(at(14));
    history.applied(at(14));
    let tally = history.tally();
    assert_eq!((tally.proposed, tally.applied, tally.log_write.count()), (2, 2, 2));
    assert!((tally.log_write.sum() - 0.006).abs() < 1e-9);
}

/// A starting coordinator has all events, but of the lines only those of its file.
#[test]
fn stalls_of_before_a_restart_come_from_lines_around_each_generation() {
    let kinds = [began(1, Cause::Start, &[2, 3]), began_at(2, 30), began_at(3, 60)];
    let mut lived = history(kinds.clone());
    let mut restarted = history(kinds);
    let generation = |step| 1 + u64::from(step > 30) + u64::from(step > 60);
    let stood = |step| 70 * generation(step);
    let lines: Vec<_> =
        (1..=80).map(|step| line(step, generation(step), 10 * step + stood(step))).collect();
    lived.lines(&lines);
    assert_eq!(restarted.unmeasured(2), [Step(60), Step(30)], "the newest first");
    for step in restarted.unmeasured(9) {
        let first = step.0 as usize + 1;
        restarted.recall(&lines[first.saturating_sub(WINDOW)..first]);
    }
    restarted.lines(&lines[60..]);
    assert_eq!(restarted.generations(), lived.generations());
    assert_eq!(restarted.generations()[2].stall_ms, Some(70.0));
    assert_eq!(restarted.tally().steps, 20, "what was recalled is not counted");
}

/// A rollback has put other lines in their place.
#[test]
fn lines_of_another_history_are_no_stall_of_a_generation() {
    let mut history = history([began(1, Cause::Start, &[2]), began_at(2, 30), began_at(4, 0)]);
    let lines: Vec<_> = (11..=31).map(|step| line(step, 4, 10 * step)).collect();
    history.recall(&lines);
    assert!(history.generations().iter().all(|report| report.stall_ms.is_none()));
}

fn began_at(generation: u64, step: u64) -> EventKind {
    match began(generation, Cause::Lost, &[2]) {
        EventKind::Generation { cause, workers, redone, waiting, under_protected, .. } => {
            EventKind::Generation {
                generation: Generation(generation),
                cause,
                workers,
                at_step: Step(step),
                redone,
                waiting,
                under_protected,
            }
        }
        other => other,
    }
}
