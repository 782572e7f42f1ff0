//! `everstep bench kills`: how long training stands still when a worker is killed.

use everstep_transport::protocol::WorkerId;
use everstep_transport::protocol::outcome::EventKind;
use everstep_worker::registry::Registry;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::churn::{self, Churn, Times};
use crate::cli::KillsFlags;
use crate::cluster::Progress;
use crate::failure::Failure;
use crate::output;

/// One kill, milliseconds.
#[derive(Clone, Copy, Debug)]
struct Kill {
    /// To the first commit without the victim, less the median step before.
    stall: f64,
    /// From the victim's last sign of life to the notice of its loss, as the coordinator has it.
    detect: f64,
    /// From the kill to the record of the generation without it.
    record: f64,
    /// From that record to its first commit.
    resume: f64,
}

/// What a whole benchmark has come to.
struct Outcome {
    kills: Vec<Kill>,
    step_ms: f64,
    steps_lost: u64,
    rollbacks: usize,
}

pub(super) fn run(flags: &KillsFlags, registry: &Registry) -> Result<(), Failure> {
    let outcome = churn::run(&flags.churn, registry, true, async |churn| {
        let mut kills = Vec::new();
        while (kills.len() as u32) < flags.kills {
            kills.extend(kill(churn).await?);
            churn.say(kills.len() as u32, flags.kills, "kills");
        }
        let progress = churn.progress();
        let (step_ms, rollbacks) = (churn::step_ms(progress), rollbacks(progress));
        Ok(Outcome { kills, step_ms, steps_lost: steps_lost(progress), rollbacks })
    })?;
    print(flags, &outcome)
}

/// Kills a worker of a cluster that is whole, and waits until training goes on; none if the victim
/// was gone already.
async fn kill(churn: &mut Churn) -> Result<Option<Kill>, Failure> {
    churn.until_whole().await?;
    let Some((victim, process)) = churn.victim() else { return Ok(None) };
    let step_ms = churn::step_ms(churn.progress());
    let event = churn.progress().events.last().map_or(0, |event| event.number);
    let killed_at = churn::unix_ms();
    if Pid::from_raw(process as i32).is_none_or(|pid| kill_process(pid, Signal::KILL).is_err()) {
        return Ok(None);
    }
    let kill = |progress: &Progress| {
        let without = |workers: &[WorkerId]| !workers.contains(&victim);
        let (_, recorded_at, line) = churn::change(progress, event, without)?;
        let (recorded_at, resumed_at) = (recorded_at as f64, line.unix_ms as f64);
        Some(Kill {
            stall: (resumed_at - killed_at - step_ms).max(0.0),
            detect: detect_ms(progress, victim)?,
            record: recorded_at - killed_at,
            resume: resumed_at - recorded_at,
        })
    };
    churn.until("going on without the worker that was killed", kill).await.map(Some)
}

fn detect_ms(progress: &Progress, victim: WorkerId) -> Option<f64> {
    progress.events.iter().rev().find_map(|event| match event.kind {
        EventKind::Lost { worker, detect_ms, .. } if worker == victim => Some(detect_ms as f64),
        _ => None,
    })
}

/// Steps before the last one that have no line.
fn steps_lost(progress: &Progress) -> u64 {
    progress.step().0 - progress.lines.len() as u64
}

fn rollbacks(progress: &Progress) -> usize {
    let is_rollback = |kind: &EventKind| matches!(kind, EventKind::Rollback { .. });
    progress.events.iter().filter(|event| is_rollback(&event.kind)).count()
}

fn print(flags: &KillsFlags, outcome: &Outcome) -> Result<(), Failure> {
    let Outcome { kills, step_ms, steps_lost, rollbacks } = outcome;
    let times = |time: fn(&Kill) -> f64| Times::new(kills.iter().map(time));
    let [stall, detect, record, resume] =
        [times(|k| k.stall), times(|k| k.detect), times(|k| k.record), times(|k| k.resume)];
    let (workers, count) = (flags.churn.workers, kills.len());
    if flags.churn.json {
        return output::print(json!({
            "workers": workers, "kills": count, "step_ms": step_ms, "stall_ms": stall.json(),
            "detect_ms": detect.json(), "record_ms": record.json(), "resume_ms": resume.json(),
            "steps_lost": steps_lost, "rollbacks": rollbacks,
        }));
    }
    output::print(format_args!(
        "{count} kills, one of {workers} workers each, a step takes {step_ms:.1} ms\n  \
           stall   {}  (kill to next commit, less a step)\n  \
           detect  {}  (last sign of life to notice)\n  \
           record  {}  (kill to new generation)\n  \
           resume  {}  (new generation to its first commit)\n  \
           {steps_lost} steps lost, {rollbacks} rollbacks",
        stall.words(),
        detect.words(),
        record.words(),
        resume.words()
    ))
}
