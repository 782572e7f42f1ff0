//! `everstep bench failovers`: how soon another coordinator leads after the leader was killed, or
//! stood still, and whether training notices.
//!
//! The launcher starts a killed coordinator again at once. The control plane is back when it has
//! agreed on a request that was made at the moment of the kill. The benchmark examines the steps in
//! the second after each kill, and in the quiet second before it: a delay in both is noise. A
//! leader that stood still may hurt most when it goes on, so the benchmark also examines the second
//! after that, and separately: over a longer time the longest step would be longer by chance. At
//! the end it compares the run's bits with those of the same run undisturbed.

use std::ops::Range;
use std::time::{Duration, Instant};

use everstep_transport::protocol::{MetricsLine, RunSpec, WorkerId};
use everstep_worker::registry::Registry;
use rustix::process::Signal;
use serde_json::json;

use super::churn::{self, Churn, TimeSamples};
use crate::cli::{FailoversFlags, Overrides};
use crate::cluster::{ClusterOptions, Progress, Report};
use crate::failure::{Exit, Failure};
use crate::text::RunText;
use crate::{config, demo, output, scratch};

/// One loss of a leader, times in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Failover {
    /// The moment of the kill, Unix time.
    killed_at: f64,
    /// When the leader went on. None if it was killed.
    woken_at: Option<f64>,
    /// From the kill to the answer to a request that was made then.
    back: f64,
    /// From the kill to the first commit without the worker that was also killed.
    stall: Option<f64>,
}

/// The results of a whole benchmark.
struct FailoversResult {
    failovers: Vec<Failover>,
    /// The longest time between two commits in the second after each kill, or until a new leader,
    /// less the median step.
    gaps: TimeSamples,
    /// The same in the second after each leader that stood still goes on.
    wakes: Option<TimeSamples>,
    /// The same in the second before each kill.
    calm: TimeSamples,
    step_ms: f64,
    report: Report,
    undisturbed: String,
}

/// How long the benchmark examines steps: before a kill, after it, and after a leader that stood
/// still goes on.
const STEP_WINDOW: Duration = Duration::from_secs(1);
/// The same in milliseconds.
const STEP_WINDOW_MS: f64 = 1_000.0;
/// About how long one failover takes, with the time before it. It sets the length of the run.
const FAILOVER_TIME: Duration = Duration::from_secs(3);
/// The time of the run besides the failovers.
const RUN_TIME_MARGIN: Duration = Duration::from_secs(5);
/// Commits after a failover before the next one.
const SETTLED: u64 = 3;

pub(super) fn run(flags: &FailoversFlags, registry: &Registry) -> Result<(), Failure> {
    let mut steps = flags.steps.map_or_else(|| steps(flags, registry), Ok)?;
    let (mut run, mut outcome) = loop {
        if let Some(outcome) = measure(steps, flags, registry)? {
            break outcome;
        }
        steps *= 2;
        output::say(format_args!("the run was over too soon: again, with {steps} steps"));
    };
    output::say("now the same run undisturbed, to compare");
    let folder = scratch::folder()?;
    let resolved = resolved(flags, registry)?;
    run.data = RunText::find(&resolved)?.listed_in(folder.path(), &resolved.run.data)?;
    let (report, _) = super::train(folder.path(), &run, &ClusterOptions::new(flags.churn.workers))?;
    outcome.undisturbed = report.state_hash;
    print(flags, &outcome)?;
    outcome.must_be_unnoticed(flags)
}

/// The failovers of a run of `steps` steps. None if the run was over before all of them.
fn measure(
    steps: u64,
    flags: &FailoversFlags,
    registry: &Registry,
) -> Result<Option<(RunSpec, FailoversResult)>, Failure> {
    let options = ClusterOptions {
        coordinators: flags.replicas,
        respawn: flags.with_worker,
        ..ClusterOptions::new(flags.churn.workers)
    };
    churn::run_for(steps, &flags.churn, registry, options, async |churn| {
        let mut failovers = Vec::new();
        while (failovers.len() as u32) < flags.kills {
            match fail_over(flags, churn).await {
                Ok(failover) => failovers.push(failover),
                Err(_) if churn.is_over() => return Ok(None),
                Err(failure) => return Err(failure),
            }
            churn.say(failovers.len() as u32, flags.kills, "failovers");
        }
        let report = churn.finish().await?;
        let (progress, run) = (churn.progress(), churn.spec().clone());
        let step_ms = churn::step_ms(progress);
        let longer = |window| (longest(&progress.lines, window) - step_ms).max(0.0);
        let gaps = TimeSamples::new(failovers.iter().map(|it| longer(it.after())));
        let wakes: Option<Vec<_>> = failovers.iter().map(|it| it.awake().map(longer)).collect();
        let wakes = wakes.map(|times| TimeSamples::new(times.into_iter()));
        let calm = failovers.iter().map(|it| longer(it.before(&progress.lines)));
        let (calm, undisturbed) = (TimeSamples::new(calm), String::new());
        Ok(Some((
            run,
            FailoversResult { failovers, gaps, wakes, calm, step_ms, report, undisturbed },
        )))
    })
}

fn resolved(flags: &FailoversFlags, registry: &Registry) -> Result<config::Resolved, Failure> {
    let workers = Some(flags.churn.workers);
    let overrides = Overrides { workers, start_workers: workers, ..Overrides::default() };
    Ok(config::read(flags.churn.config.as_deref(), &overrides, registry)?)
}

/// The number of steps of the run.
fn steps(flags: &FailoversFlags, registry: &Registry) -> Result<u64, Failure> {
    let resolved = resolved(flags, registry)?;
    let round = FAILOVER_TIME + flags.stop.map_or(Duration::ZERO, |time| time + STEP_WINDOW);
    demo::steps_within(round * flags.kills + RUN_TIME_MARGIN, &resolved, &RunText::find(&resolved)?)
}

/// Takes a coordinator from a cluster that is whole. Waits until a coordinator leads and training
/// has gone on.
async fn fail_over(flags: &FailoversFlags, churn: &mut Churn) -> Result<Failover, Failure> {
    churn.until_whole().await?;
    let taken = match flags.follower {
        true => churn.until_followed().await?,
        false => churn.until_led().await?,
    };
    churn.rest(STEP_WINDOW).await?;
    let victim = if flags.with_worker { churn.victim() } else { None };
    let event = churn.newest_event();
    let (killed_at, began) = (churn::unix_ms(), Instant::now());
    churn::signal(taken, if flags.stop.is_some() { Signal::STOP } else { Signal::KILL })?;
    if let Some((_, process)) = victim {
        churn::signal(process, Signal::KILL)?;
    }
    churn.cluster().agree().await?;
    let back = 1e3 * began.elapsed().as_secs_f64();
    let mut last = began;
    let mut woken_at = None;
    if let Some(time) = flags.stop {
        churn.rest(time.saturating_sub(began.elapsed())).await?;
        (woken_at, last) = (Some(churn::unix_ms()), Instant::now());
        churn::signal(taken, Signal::CONT)?;
    }
    let step = churn.progress().step().0;
    churn.until("going on", |progress| (progress.step().0 >= step + SETTLED).then_some(())).await?;
    churn.rest(STEP_WINDOW.saturating_sub(last.elapsed())).await?;
    let stall = match victim {
        Some((victim, _)) => {
            let look = |progress: &Progress| stall(progress, event, victim, killed_at);
            Some(churn.until("going on without the worker", look).await?)
        }
        None => None,
    };
    Ok(Failover { killed_at, woken_at, back, stall })
}

/// From a kill to the first commit without the victim, less a step, milliseconds.
fn stall(progress: &Progress, event: u64, victim: WorkerId, killed_at: f64) -> Option<f64> {
    let (_, _, line) = churn::change_without(progress, event, victim)?;
    Some((line.unix_ms as f64 - killed_at - churn::step_ms(progress)).max(0.0))
}

impl Failover {
    /// The second after the kill, or more until a new coordinator leads.
    fn after(&self) -> Range<f64> {
        self.killed_at..self.killed_at + self.back.max(STEP_WINDOW_MS)
    }

    /// The second after the leader went on again.
    fn awake(&self) -> Option<Range<f64>> {
        self.woken_at.map(|at| at..at + STEP_WINDOW_MS)
    }

    /// The second before the kill. It ends with a commit, since the next step was not undisturbed.
    fn before(&self, lines: &[MetricsLine]) -> Range<f64> {
        let ends = lines.iter().map(|line| line.unix_ms as f64);
        let last = ends.take_while(|end| *end < self.killed_at).last().unwrap_or(self.killed_at);
        last - STEP_WINDOW_MS..last
    }
}

/// The longest step that overlaps the window.
fn longest(lines: &[MetricsLine], window: Range<f64>) -> f64 {
    steps_in(lines, window).fold(0.0, f64::max)
}

fn steps_in(lines: &[MetricsLine], window: Range<f64>) -> impl Iterator<Item = f64> {
    lines.windows(2).filter_map(move |pair| {
        let [began, ended] = [&pair[0], &pair[1]].map(|line| line.unix_ms as f64);
        (began < window.end && ended >= window.start).then_some(ended - began)
    })
}

impl FailoversResult {
    /// Fails if a failover cost more than it may.
    fn must_be_unnoticed(&self, flags: &FailoversFlags) -> Result<(), Failure> {
        let Report { state_hash, steps_redone, steps_lost, generations, .. } = &self.report;
        let Report { samples_lost, samples_repeated, rollbacks, .. } = &self.report;
        let (samples, rollbacks) = (samples_lost + samples_repeated, rollbacks.len());
        // The worker's death changes the generation, and the members do the aborted step again.
        let redone = if flags.with_worker { 0 } else { *steps_redone };
        let changes = if flags.with_worker { 0 } else { generations.len() - 1 };
        let cost = (redone, changes, *steps_lost, samples, rollbacks);
        if *state_hash == self.undisturbed && cost == (0, 0, 0, 0, 0) {
            return Ok(());
        }
        let equal = if *state_hash == self.undisturbed { "equal" } else { "different" };
        Err(Failure::new(Exit::Failed, "training has noticed").because(format!(
            "{redone} steps redone, {steps_lost} lost, {samples_lost} samples lost, \
             {samples_repeated} repeated, {rollbacks} rollbacks, {changes} changes of generation, \
             {equal} bits"
        )))
    }
}

fn print(flags: &FailoversFlags, outcome: &FailoversResult) -> Result<(), Failure> {
    let FailoversResult { failovers, gaps, wakes, calm, step_ms, report, undisturbed } = outcome;
    let back = TimeSamples::new(failovers.iter().map(|failover| failover.back));
    let stalls: Vec<f64> = failovers.iter().filter_map(|failover| failover.stall).collect();
    let stall = (!stalls.is_empty()).then(|| TimeSamples::new(stalls.into_iter()));
    let equal = report.state_hash == *undisturbed;
    let (count, replicas, redone) = (failovers.len(), flags.replicas, report.steps_redone);
    if flags.churn.json {
        return output::print(json!({
            "failovers": count, "coordinators": replicas, "workers": flags.churn.workers,
            "followers": flags.follower, "step_ms": step_ms,
            "stopped_seconds": flags.stop.map(|time| time.as_secs_f64()),
            "back_ms": back.json(), "gap_ms": gaps.json(), "calm_ms": calm.json(),
            "wake_ms": wakes.as_ref().map(TimeSamples::json),
            "stall_ms": stall.map(|stall| stall.json()), "steps": report.steps,
            "steps_redone": redone, "steps_lost": report.steps_lost,
            "samples_lost": report.samples_lost, "samples_repeated": report.samples_repeated,
            "generations": report.generations.len(), "hash_equal": equal,
        }));
    }
    let who = if flags.follower { "followers" } else { "leaders" };
    let what = if flags.stop.is_some() { "stopped" } else { "killed" };
    let stall = stall.map_or(String::new(), |stall| {
        format!("  stall   {}  (kill to next commit without the worker)\n", stall.words())
    });
    let wake = wakes.as_ref().map_or(String::new(), |wakes| {
        format!("  wake    {}  (the same of the second after each goes on)\n", wakes.words())
    });
    let verdict = if equal { "equal" } else { "DIFFERENT" };
    output::print(format_args!(
        "{count} {who} of {replicas} {what}, a step takes {step_ms:.1} ms\n  \
           back    {}  (kill to the first answer of a new leader)\n  \
           gap     {}  (longest step of the second after each, less a step)\n{wake}  \
           calm    {}  (the same of the second before each)\n{stall}  \
           {redone} steps redone, {} lost. Samples: {} lost, {} repeated. Bits: {verdict}",
        back.words(),
        gaps.words(),
        calm.words(),
        report.steps_lost,
        report.samples_lost,
        report.samples_repeated
    ))
}

#[cfg(test)]
mod tests {
    use everstep_transport::protocol::MetricsLine;

    use super::{Failover, longest, steps_in};

    const STOPPED: Failover =
        Failover { killed_at: 2_050.0, woken_at: Some(5_050.0), back: 200.0, stall: None };

    /// Commits at these times.
    fn lines(unix_ms: impl IntoIterator<Item = u64>) -> Vec<MetricsLine> {
        let line = |unix_ms| MetricsLine { unix_ms, ..MetricsLine::default() };
        unix_ms.into_iter().map(line).collect()
    }

    #[test]
    fn a_step_that_a_leader_holds_up_when_it_goes_on_is_seen_there_only() {
        let (before, after) = ((0..=5_000).step_by(100), (5_400..=7_000).step_by(100));
        let lines = lines(before.chain(after));
        assert_eq!(longest(&lines, STOPPED.awake().unwrap()), 400.0);
        assert_eq!(longest(&lines, STOPPED.after()), 100.0);
        assert_eq!(longest(&lines, STOPPED.before(&lines)), 100.0);
        assert!(Failover { woken_at: None, ..STOPPED }.awake().is_none());
    }

    #[test]
    fn the_step_under_way_counts_for_the_fault_and_not_for_the_calm_before() {
        let lines = lines((0..=2_000).step_by(100).chain((2_900..=7_000).step_by(100)));
        assert_eq!(longest(&lines, STOPPED.after()), 900.0);
        assert_eq!(longest(&lines, STOPPED.before(&lines)), 100.0);
    }

    #[test]
    fn where_nobody_leads_for_long_it_is_looked_on_until_somebody_does() {
        let lines = lines((0..=4_000).step_by(100).chain((4_700..=7_000).step_by(100)));
        assert_eq!(longest(&lines, Failover { back: 2_500.0, ..STOPPED }.after()), 700.0);
        assert_eq!(longest(&lines, STOPPED.after()), 100.0);
    }

    #[test]
    fn each_window_has_as_many_steps_as_the_calm_one_so_that_chance_is_the_same() {
        let lines = lines((0..=9_000).step_by(100));
        let count = |window| steps_in(&lines, window).count();
        let calm = count(STOPPED.before(&lines));
        assert_eq!([STOPPED.after(), STOPPED.awake().unwrap()].map(count), [calm; 2]);
    }
}
