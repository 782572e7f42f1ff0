//! The state of the run and what it waits for, in one word and in one plain sentence.

use std::time::Duration;

use everstep_transport::protocol::outcome::{Inability, RunPause, WorkerState};
use everstep_transport::protocol::{Step, WorkerId};

use crate::core::{CheckpointStoreError, ClusterView, RunEnd, UnableWorker};

/// A word for scripts, and a sentence for people.
pub(crate) fn run_status(view: &ClusterView) -> (&'static str, String) {
    let Some(run) = &view.run else {
        return match view.leads {
            Some(_) => ("idle", "idle: no run was submitted yet".into()),
            None => ("following", "following: this coordinator does not lead".into()),
        };
    };
    let (step, steps) = (grouped(view.step().0), grouped(run.steps));
    if let Some(end) = &view.end {
        return ended(end, Step(run.steps));
    }
    if let Some(rests) = rests(view) {
        return rests;
    }
    if let Some((silent, span)) = view.outage {
        let words = format!(
            "cut off: {silent} of {} have been silent for {}. They may train on, and the \
             coordinator waits to hear of them",
            workers(view.world_size),
            seconds(span),
        );
        return ("cut_off", words);
    }
    if let Some(standstill) = &view.standstill {
        let waited = seconds(view.since(standstill.since_unix_ms));
        let words = format!(
            "waiting for {waited}: no device gets on after step {step} of {steps}: {}",
            standstill.reason
        );
        return ("waiting", words);
    }
    // Generation numbers go on from run to run. So only the lack of members shows a run that has
    // not begun.
    if view.world_size == 0 {
        let gone = |state| matches!(state, WorkerState::Lost | WorkerState::Left);
        let there = view.workers.iter().filter(|worker| !gone(worker.state)).count();
        let wanted = workers(run.start_workers);
        let unable = unable(view);
        return ("starting", format!("starting: {there} of {wanted} registered{unable}"));
    }
    if let Some((one, other)) = view.unreachable.first() {
        let (one, other) = (called(view, *one), called(view, *other));
        let words = format!(
            "cut off: {one} and {other} cannot reach each other, and neither can be left out. Step \
             {step} of {steps} was the last"
        );
        return ("cut_off", words);
    }
    if view.changing {
        let next = view.generation.next();
        let words = format!("changing: generation {next} begins after step {step} of {steps}");
        return ("changing", words);
    }
    if let Some(restore) = &view.restores {
        let (from, with) = (grouped(restore.step.0), workers(view.world_size));
        let read = restore.words();
        let words =
            format!("restoring: {with} read the checkpoint of step {from} of {steps}, {read}");
        return ("restoring", words);
    }
    let (with, unable, store) = (workers(view.world_size), unable(view), store(view));
    ("training", format!("training: step {step} of {steps} with {with}{unable}{store}"))
}

/// The status of a run that starts no step, and why. None if it does.
fn rests(view: &ClusterView) -> Option<(&'static str, String)> {
    if let Some(awaited) = &view.owners_awaited {
        let waited = seconds(view.since(awaited.since_unix_ms));
        return Some(("waiting", format!("waiting for {waited}: {awaited}")));
    }
    if let Some(since) = view.lacks_checkpoint {
        let words = format!(
            "waiting for {}: no checkpoint that the run may go back to is whole. `everstep \
             checkpoint ls` says why, and `everstep run rollback --step 0` lets the run begin anew",
            seconds(view.since(since)),
        );
        return Some(("waiting", words));
    }
    if let Some(paused) = &view.paused {
        return Some(pause_status(view, paused));
    }
    if view.closes {
        let (all, store) = (workers(view.world_size), store(view));
        let words = format!(
            "leaving: all {all} are to leave, as soon as a checkpoint has what they hold{store}"
        );
        return Some(("leaving", words));
    }
    if let Some(waiting) = view.waiting {
        let (members, wanted) = (waiting.members, waiting.wanted);
        let unable = unable(view);
        let words = format!("waiting: {members} of at least {}{unable}", workers(wanted));
        return Some(("waiting", words));
    }
    if let Some(awaited) = &view.model_awaited {
        let waited = seconds(view.since(awaited.since_unix_ms));
        return Some(("waiting", format!("waiting for {waited}: {awaited}")));
    }
    waits_for_store(view).map(|words| ("waiting", words))
}

/// A run that is paused, or is to pause after the step under way.
fn pause_status(view: &ClusterView, paused: &RunPause) -> (&'static str, String) {
    let steps = grouped(view.run.as_ref().map_or(0, |run| run.steps));
    let (step, with) = (grouped(view.step().0), workers(view.world_size));
    let store = store(view);
    match paused.in_force {
        true => {
            let words = format!(
                "{paused}: step {step} of {steps} was the last, with {with}. `everstep run resume` \
                 lets it go on{store}"
            );
            ("paused", words)
        }
        false => {
            let words = format!("pausing: step {step} of {steps} with {with}, {paused}");
            ("pausing", words)
        }
    }
}

/// What the run waits for if the store of its checkpoints keeps it waiting.
fn waits_for_store(view: &ClusterView) -> Option<String> {
    let error = view.store_error.as_ref().filter(|error| error.waits)?;
    let waited = seconds(view.since(error.since_unix_ms));
    let CheckpointStoreError { called, reason, .. } = error;
    Some(format!(
        "waiting for {waited}: {called} cannot use the store of the checkpoints: {reason}"
    ))
}

/// Why a worker cannot compute the run, as the end of a sentence. Empty where all can.
fn unable(view: &ClusterView) -> String {
    let Some((name, UnableWorker { inability, reason })) = view.unable.first() else {
        return String::new();
    };
    match inability {
        Inability::Run => format!(", but {name} cannot compute the run: {reason}"),
        Inability::Place => format!(", but {name} cannot compute yet: {reason}"),
    }
}

/// Why the run's store does not answer, as the end of a sentence. Empty where it does.
fn store(view: &ClusterView) -> String {
    let Some(CheckpointStoreError { called, reason, .. }) = &view.store_error else {
        return String::new();
    };
    format!(", and {called} cannot use the store of the checkpoints: {reason}")
}

/// The same for a run that is over. `last` is its last step.
pub(crate) fn ended(end: &RunEnd, Step(last): Step) -> (&'static str, String) {
    match end {
        RunEnd::Complete(None) => ("complete", format!("complete: all {} steps", grouped(last))),
        RunEnd::Complete(Some(place)) => {
            ("complete", format!("complete: all {} steps, and the model is {place}", grouped(last)))
        }
        RunEnd::Failed(reason) => ("failed", format!("failed: {reason}")),
    }
}

fn called(view: &ClusterView, id: WorkerId) -> String {
    let known = view.workers.iter().find(|known| known.worker == id);
    known.map_or_else(|| format!("the worker with id {id}"), |known| known.label().to_string())
}

fn seconds(span: Duration) -> String {
    format!("{} s", grouped(span.as_secs()))
}

fn workers(count: u32) -> String {
    format!("{} worker{}", grouped(u64::from(count)), if count == 1 { "" } else { "s" })
}

/// A number with its thousands set apart: 1,000,000.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::outcome::{PausedBy, WaitNotice, Waiting};
    use everstep_transport::protocol::reason::{
        LossReason, PauseReason, UnableCause, UnableReason, UnsavedReason,
    };
    use everstep_transport::protocol::{
        HostName, MetricsLine, ModelAwaited, ModelPlace, NodeName, Term, WorkerLabel, WriteFailure,
    };

    use super::*;
    use crate::core::{RestoreProgress, Standstill};
    use crate::http::tests::view;

    fn place() -> ModelPlace {
        ModelPlace { host: "node-7".into(), path: "/runs/model.safetensors".into() }
    }

    /// A wait for this owner of the newest copies.
    fn silent(owner: WorkerLabel) -> WaitNotice {
        let (owners, workers) = (vec![owner.worker], vec![owner]);
        let reasons = vec![LossReason::Silent(2_200)];
        let (since_unix_ms, checkpoint) = (78_000, Step(800));
        WaitNotice { shards: 3, owners, since_unix_ms, workers, reasons, checkpoint }
    }

    fn unable_worker(inability: Inability, words: &str) -> UnableWorker {
        let reason = UnableReason { cause: UnableCause::Words(words.into()), address: None };
        UnableWorker { inability, reason }
    }

    fn at_step(step: u64) -> Option<MetricsLine> {
        Some(MetricsLine { step: Step(step), ..MetricsLine::default() })
    }

    #[test]
    fn a_run_whose_members_read_a_checkpoint_says_so() {
        let restore =
            RestoreProgress { step: Step(800), read_bytes: 12_340_000, total_bytes: 40_000_000 };
        let restoring = ClusterView { restores: Some(restore), ..view() };
        let words =
            "restoring: 2 workers read the checkpoint of step 800 of 1,000, 12.3 of 40.0 MB";
        assert_eq!(run_status(&restoring), ("restoring", words.into()));
    }

    #[test]
    fn every_status_has_a_word_and_a_sentence() {
        let none = ClusterView { run: None, ..view() };
        assert_eq!(run_status(&none).1, "idle: no run was submitted yet");
        let follows = ClusterView { leads: None, ..none };
        assert_eq!(run_status(&follows).0, "following");
        let started = ClusterView { world_size: 0, ..view() };
        assert_eq!(run_status(&started).1, "starting: 2 of 3 workers registered");
        let name = NodeName::parse("worker-c").expect("a valid name");
        let why = unable_worker(Inability::Run, "no such file");
        let unable = ClusterView { unable: vec![(name.clone(), why)], ..started };
        let words = "starting: 2 of 3 workers registered, but worker-c cannot compute the run: no \
                     such file";
        assert_eq!(run_status(&unable).1, words);
        let why = unable_worker(Inability::Place, "no memory");
        let one_waits = ClusterView { unable: vec![(name, why)], ..view() };
        let words = "training: step 812 of 1,000 with 2 workers, but worker-c cannot compute yet: \
                     no memory";
        assert_eq!(run_status(&one_waits).1, words);
        assert_eq!(run_status(&view()).1, "training: step 812 of 1,000 with 2 workers");
        let alone = ClusterView { world_size: 1, line: at_step(1_000), ..view() };
        assert_eq!(run_status(&alone).1, "training: step 1,000 of 1,000 with 1 worker");
        let changing = ClusterView { changing: true, line: None, leads: Some(Term(3)), ..view() };
        let words = "changing: generation 5 begins after step 0 of 1,000";
        assert_eq!(run_status(&changing), ("changing", words.into()));
        let waiting = Waiting { members: 1, wanted: 2, since_unix_ms: 0 };
        let waiting = ClusterView { waiting: Some(waiting), changing: true, ..view() };
        assert_eq!(run_status(&waiting).1, "waiting: 1 of at least 2 workers");
        let label = WorkerLabel { number: 2, worker: WorkerId(4), host: HostName::of("b") };
        let awaited = silent(label);
        let owners = ClusterView { owners_awaited: Some(awaited), changing: true, ..view() };
        let words = "waiting for 12 s: worker 2 (id 4, on b) is silent, and no other worker holds \
                     3 parameter shards. If it has ended for good, `everstep run rollback --step \
                     800` gives up what it held";
        assert_eq!(run_status(&owners), ("waiting", words.into()));
        let silent = ClusterView { outage: Some((2, Duration::from_millis(14_900))), ..view() };
        let words = "cut off: 2 of 2 workers have been silent for 14 s. They may train on, and the \
                     coordinator waits to hear of them";
        assert_eq!(run_status(&silent), ("cut_off", words.into()));
        let cut_off = ClusterView { unreachable: vec![(WorkerId(3), WorkerId(9))], ..view() };
        let words = "cut off: the worker with id 3 and worker 2 (id 9) cannot reach each other, \
                     and neither can be left out. Step 812 of 1,000 was the last";
        assert_eq!(run_status(&cut_off).1, words);
        let (worker, number, reason) = (WorkerId(4), 2, "full".into());
        let failed = WriteFailure { worker, number, place: place(), reason };
        let full = ModelAwaited { failed: Some(failed), since_unix_ms: 78_000 };
        let unwritten = ClusterView { model_awaited: Some(full), ..view() };
        let words = "waiting for 12 s: all steps are trained, and the model cannot be written: \
                     worker 2 (id 4), node-7:/runs/model.safetensors: full. Make room there, or \
                     start a worker with another --dir";
        assert_eq!(run_status(&unwritten), ("waiting", words.into()));
        let nowhere = ModelAwaited { failed: None, since_unix_ms: 78_000 };
        let nowhere = ClusterView { model_awaited: Some(nowhere), ..view() };
        let words = "waiting for 12 s: all steps are trained, and no worker has a directory to \
                     write the model to. Start a worker with --dir (`everstep worker add` prints \
                     the command)";
        assert_eq!(run_status(&nowhere), ("waiting", words.into()));
        let reason = "worker 2 (id 5, on b): its device hangs".into();
        let standstill = Some(Standstill { since_unix_ms: 78_000, reason });
        let still = ClusterView { standstill, ..view() };
        let words = "waiting for 12 s: no device gets on after step 812 of 1,000: worker 2 (id 5, \
                     on b): its device hangs";
        assert_eq!(run_status(&still), ("waiting", words.into()));
        let complete = ClusterView { end: Some(RunEnd::Complete(Some(place()))), ..waiting };
        let words = "complete: all 1,000 steps, and the model is node-7:/runs/model.safetensors";
        assert_eq!(run_status(&complete).1, words);
        let failed = ClusterView { end: Some(RunEnd::Failed("no disk".into())), ..view() };
        assert_eq!(run_status(&failed), ("failed", "failed: no disk".into()));
    }

    #[test]
    fn a_pause_is_told_with_its_cause_and_the_way_out() {
        let by = PausedBy::Operator;
        let (reason, since_unix_ms) = (PauseReason::Asked, 78_000);
        let paused = RunPause { by, reason, since_unix_ms, in_force: false };
        let told = |paused| run_status(&ClusterView { paused: Some(paused), ..view() });
        let words = "pausing: step 812 of 1,000 with 2 workers, paused by an operator";
        assert_eq!(told(paused.clone()), ("pausing", words.into()));
        let paused = RunPause { in_force: true, ..paused };
        let words = "paused by an operator: step 812 of 1,000 was the last, with 2 workers. \
                     `everstep run resume` lets it go on";
        assert_eq!(told(paused.clone()), ("paused", words.into()));
        let reason = UnsavedReason::NoPart;
        let reason = PauseReason::Unsaved { step: Step(800), reason };
        let paused = RunPause { by: PausedBy::FailedCheckpoint, reason, ..paused };
        let (state, words) = told(paused);
        assert!(state == "paused" && words.contains("since the checkpoint of step 800"), "{words}");
        let closes = ClusterView { closes: true, ..view() };
        let words =
            "leaving: all 2 workers are to leave, as soon as a checkpoint has what they hold";
        assert_eq!(run_status(&closes), ("leaving", words.into()));
    }

    #[test]
    fn thousands_are_set_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345_678, "12,345,678")]
        {
            assert_eq!(grouped(number), text);
        }
    }
}
