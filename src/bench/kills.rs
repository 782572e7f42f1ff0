//! `everstep bench kills`: how long training stands still when a worker is killed.
//!
//! There are two modes. In one the launcher looks after its workers, tells the coordinator of each
//! that ends, and starts another one at once. In the other the workers are as if started by hand:
//! the cluster notices an end by itself, and the benchmark starts another worker when training goes
//! on. Detection counts from the kill in both modes.

use everstep_transport::protocol::WorkerId;
use everstep_transport::protocol::outcome::EventKind;
use everstep_worker::registry::Registry;
use rustix::process::Signal;
use serde_json::json;

use super::churn::{self, Churn, TimeSamples};
use crate::cli::KillsFlags;
use crate::cluster::{ClusterOptions, Progress};
use crate::failure::{Exit, Failure};
use crate::output;

/// One kill, times in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Kill {
    /// From the kill to the first commit without the victim, less the median step before.
    stall: f64,
    /// From the kill to the coordinator's notice of the loss.
    detect: f64,
    /// From the kill to the record of the generation without it.
    record: f64,
    /// From that record to its first commit.
    resume: f64,
}

/// The results of a whole benchmark.
struct KillsResult {
    kills: Vec<Kill>,
    step_ms: f64,
    calm: TimeSamples,
    losses: KillCosts,
}

/// Costs that a kill must not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KillCosts {
    /// Steps before the last one that have no line.
    steps: u64,
    samples_lost: u64,
    samples_repeated: u64,
    rollbacks: usize,
}

pub(super) fn run(flags: &KillsFlags, registry: &Registry) -> Result<(), Failure> {
    let (by_hand, respawn) = (flags.by_hand, !flags.by_hand);
    let options = ClusterOptions { by_hand, respawn, ..ClusterOptions::new(flags.churn.workers) };
    let outcome = churn::run(&flags.churn, registry, options, async |churn| {
        let mut kills = Vec::new();
        while (kills.len() as u32) < flags.kills {
            let Some(kill) = kill(churn).await? else { continue };
            kills.push(kill);
            if by_hand {
                churn.cluster().add_worker(&[])?;
            }
            churn.say(kills.len() as u32, flags.kills, "kills");
        }
        let progress = churn.progress();
        let (step_ms, calm) = (churn::step_ms(progress), churn::calm(progress));
        Ok(KillsResult { kills, step_ms, calm, losses: KillCosts::of(progress) })
    })?;
    print(flags, &outcome)?;
    outcome.losses.must_be_none()
}

/// Kills a worker of a cluster that is whole, and waits until training goes on. None if the victim
/// was gone already.
async fn kill(churn: &mut Churn) -> Result<Option<Kill>, Failure> {
    churn.until_whole().await?;
    let Some((victim, process)) = churn.victim() else { return Ok(None) };
    let step_ms = churn::step_ms(churn.progress());
    let event = churn.newest_event();
    let killed_at = churn::unix_ms();
    if churn::signal(process, Signal::KILL).is_err() {
        return Ok(None);
    }
    let kill = |progress: &Progress| {
        let (_, recorded_at, line) = churn::change_without(progress, event, victim)?;
        let (recorded_at, resumed_at) = (recorded_at as f64, line.unix_ms as f64);
        Some(Kill {
            stall: (resumed_at - killed_at - step_ms).max(0.0),
            detect: (noticed_at(progress, victim)? - killed_at).max(0.0),
            record: recorded_at - killed_at,
            resume: resumed_at - recorded_at,
        })
    };
    churn.until("going on without the worker that was killed", kill).await.map(Some)
}

/// When the coordinator noticed the end of the victim, milliseconds of Unix time. The event is
/// later, since the coordinator first waits for the Statuses of the others.
fn noticed_at(progress: &Progress, victim: WorkerId) -> Option<f64> {
    progress.events.iter().rev().find_map(|event| match event.kind {
        EventKind::Lost { worker, pause_ms, .. } if worker == victim => {
            Some(event.unix_ms.saturating_sub(pause_ms) as f64)
        }
        _ => None,
    })
}

impl KillCosts {
    /// The losses of the whole run, including undone steps.
    fn of(progress: &Progress) -> Self {
        let lines = || progress.undone.iter().chain(progress.lines.iter());
        let is_rollback = |kind: &EventKind| matches!(kind, EventKind::Rollback { .. });
        Self {
            steps: progress.step().0 - progress.lines.len() as u64,
            samples_lost: lines().map(|line| line.samples_lost).sum(),
            samples_repeated: lines().map(|line| line.samples_repeated).sum(),
            rollbacks: progress.events.iter().filter(|event| is_rollback(&event.kind)).count(),
        }
    }

    fn must_be_none(self) -> Result<(), Failure> {
        let none = Self { steps: 0, samples_lost: 0, samples_repeated: 0, rollbacks: 0 };
        if self == none {
            return Ok(());
        }
        Err(Failure::new(Exit::Failed, "the kills cost more than time").because(self.words()))
    }

    fn words(self) -> String {
        let Self { steps, samples_lost, samples_repeated, rollbacks } = self;
        format!(
            "{steps} steps and {samples_lost} samples lost, {samples_repeated} samples repeated, \
             {rollbacks} rollbacks"
        )
    }
}

fn print(flags: &KillsFlags, outcome: &KillsResult) -> Result<(), Failure> {
    let KillsResult { kills, step_ms, calm, losses } = outcome;
    let times = |time: fn(&Kill) -> f64| TimeSamples::new(kills.iter().map(time));
    let [stall, detect, record, resume] =
        [times(|k| k.stall), times(|k| k.detect), times(|k| k.record), times(|k| k.resume)];
    let (workers, count, by_hand) = (flags.churn.workers, kills.len(), flags.by_hand);
    if flags.churn.json {
        return output::print(json!({
            "workers": workers, "kills": count, "by_hand": by_hand, "step_ms": step_ms,
            "calm_ms": calm.json(), "stall_ms": stall.json(),
            "detect_ms": detect.json(), "detect_from": "kill",
            "record_ms": record.json(), "resume_ms": resume.json(), "steps_lost": losses.steps,
            "samples_lost": losses.samples_lost, "samples_repeated": losses.samples_repeated,
            "rollbacks": losses.rollbacks,
        }));
    }
    let teller = if by_hand { "no launcher tells of it" } else { "the launcher tells of it" };
    output::print(format_args!(
        "{count} kills, one of {workers} workers each, a step takes {step_ms:.1} ms\n  \
           calm    {}  (how much longer steps take to which nothing happens)\n  \
           stall   {}  (kill to next commit, less a step)\n  \
           detect  {}  (kill to the coordinator's notice, {teller})\n  \
           record  {}  (kill to new generation)\n  \
           resume  {}  (new generation to its first commit)\n  \
           {}",
        calm.words(),
        stall.words(),
        detect.words(),
        record.words(),
        resume.words(),
        losses.words()
    ))
}
