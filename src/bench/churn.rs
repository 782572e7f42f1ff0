//! A cluster that trains without an end while workers come and go, and the cost of that.

use std::time::{Duration, Instant, SystemTime};

use everstep_kernels::random::Philox;
use everstep_transport::protocol::outcome::{EventKind, WorkerState};
use everstep_transport::protocol::{Generation, MetricsLine, RunSpec, WorkerId};
use everstep_worker::registry::Registry;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{configured_run, quantile, sorted};
use crate::cli::{ChurnFlags, Overrides};
use crate::cluster::{self, Cluster, ClusterOptions, Directory, Progress, Report};
use crate::failure::{Exit, Failure};
use crate::output;

/// More steps than any benchmark waits for.
const ENDLESS: u64 = 1 << 40;
/// Steps after which a generation counts as settled in.
const SETTLED: usize = 3;
/// The longest time before the next event in a cluster that is whole.
const MAX_EVENT_GAP: Duration = Duration::from_millis(500);
/// How often the benchmark reports its progress.
const CHURN_REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Philox's purpose for these random numbers.
const CHURN: u32 = Philox::USER + 2;

/// The cluster under test.
pub(super) struct Churn {
    cluster: Cluster,
    workers: usize,
    wait: Duration,
    random: Philox,
    drawn: u64,
    said_at: Instant,
    run: RunSpec,
    /// Whether the run is complete.
    is_over: bool,
}

/// Starts the cluster of `flags`, otherwise as in `options`, which trains without an end. Calls
/// `work` with it.
pub(super) fn run<T>(
    flags: &ChurnFlags,
    registry: &Registry,
    options: ClusterOptions,
    work: impl AsyncFnOnce(&mut Churn) -> Result<T, Failure>,
) -> Result<T, Failure> {
    run_for(ENDLESS, flags, registry, options, work)
}

/// As [`run`], with a run of `steps` steps.
pub(super) fn run_for<T>(
    steps: u64,
    flags: &ChurnFlags,
    registry: &Registry,
    options: ClusterOptions,
    work: impl AsyncFnOnce(&mut Churn) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let workers = Some(flags.workers);
    let overrides = Overrides {
        workers,
        start_workers: workers,
        steps: Some(steps),
        seed: Some(flags.seed),
        ..Overrides::default()
    };
    let (mut run, folder) = configured_run(flags.config.as_deref(), &overrides, registry)?;
    // A run must not wait for more copies than there can be.
    run.copies = run.copies.min(flags.workers);
    let (workers, wait) = (flags.workers, flags.wait);
    let options = ClusterOptions { workers, wait, keeps_history: true, ..options };
    let directory = Directory::claim_new(folder.path(), &run)?;
    cluster::block_on(async {
        let mut cluster = Cluster::start(directory, &options).await?;
        cluster.submit(&run).await?;
        let (random, said_at) = (Philox::new(flags.seed, CHURN, 0), Instant::now());
        let (workers, is_over) = (flags.workers as usize, false);
        let mut churn = Churn { cluster, workers, wait, random, drawn: 0, said_at, run, is_over };
        work(&mut churn).await
    })
}

impl Churn {
    /// The progress that the launcher knows.
    pub(super) fn progress(&self) -> &Progress {
        self.cluster.progress()
    }

    pub(super) fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// Lets the cluster go on until `look` finds something.
    pub(super) async fn until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&Progress) -> Option<T>,
    ) -> Result<T, Failure> {
        self.until_cluster(what, |cluster| look(cluster.progress())).await
    }

    /// Lets the cluster go on until all coordinators are there. Returns the leader's process id.
    pub(super) async fn until_led(&mut self) -> Result<u32, Failure> {
        let led = |cluster: &Cluster| cluster.leader_pid().filter(|_| cluster.is_led());
        self.until_cluster("led", led).await
    }

    /// Waits for a follower. Returns its process id.
    pub(super) async fn until_followed(&mut self) -> Result<u32, Failure> {
        let led = |cluster: &Cluster| cluster.follower_pid().filter(|_| cluster.is_led());
        self.until_cluster("led", led).await
    }

    async fn until_cluster<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&Cluster) -> Option<T>,
    ) -> Result<T, Failure> {
        let began = Instant::now();
        loop {
            if let Some(found) = look(&self.cluster) {
                return Ok(found);
            }
            if self.is_over {
                return Err(Failure::new(Exit::Failed, "the run was over too soon")
                    .because(format!("it was complete before it was {what}"))
                    .next("pass more --steps"));
            }
            if began.elapsed() > self.wait {
                let waited = format!("{what} after {} s", self.wait.as_secs());
                return Err(Failure::new(Exit::Capacity, "the cluster does not come to rest")
                    .because(format!("not {waited}"))
                    .next("give it a longer --wait, or fewer --workers"));
            }
            self.is_over = self.cluster.advance().await?;
        }
    }

    /// Lets the run become complete.
    pub(super) async fn finish(&mut self) -> Result<Report, Failure> {
        while !self.is_over {
            self.is_over = self.cluster.advance().await?;
        }
        Ok(self.cluster.report(&self.run))
    }

    /// Lets the cluster go on until all workers are members, every shard has its owners and members
    /// commit steps. Then lets it go on for a random time.
    pub(super) async fn until_whole(&mut self) -> Result<(), Failure> {
        let workers = self.workers;
        self.until("whole", |progress| is_whole(progress, workers).then_some(())).await?;
        let pause = MAX_EVENT_GAP.mul_f64(self.unit());
        self.rest(pause).await
    }

    /// Lets the cluster go on for `time`.
    pub(super) async fn rest(&mut self, time: Duration) -> Result<(), Failure> {
        let until = Instant::now() + time;
        self.until("at rest", |_| (Instant::now() >= until).then_some(())).await
    }

    /// A random member, and its process id.
    pub(super) fn victim(&mut self) -> Option<(WorkerId, u32)> {
        let at = (self.unit() * self.workers as f64) as usize;
        let members = self.cluster.progress().members();
        let victim = *members.get(at.min(members.len().checked_sub(1)?))?;
        Some((victim, self.cluster.worker_pid(victim)?))
    }

    /// Reports the progress of the benchmark now and then.
    pub(super) fn say(&mut self, done: u32, of: u32, what: &str) {
        if self.said_at.elapsed() >= CHURN_REPORT_INTERVAL {
            self.said_at = Instant::now();
            output::say(format_args!("{done} of {of} {what}"));
        }
    }

    /// The number of the newest event.
    pub(super) fn newest_event(&self) -> u64 {
        self.progress().events.last().map_or(0, |event| event.number)
    }

    /// Whether the run is complete.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// The specification of the trained run.
    pub(super) fn spec(&self) -> &RunSpec {
        &self.run
    }

    /// A random number, uniform in `[0, 1)`.
    fn unit(&mut self) -> f64 {
        self.drawn += 1;
        self.random.unit(self.drawn).into()
    }
}

fn is_whole(progress: &Progress, workers: usize) -> bool {
    let training = |state| matches!(state, WorkerState::Training);
    let mut living = progress
        .workers
        .iter()
        .filter(|view| !matches!(view.state, WorkerState::Lost | WorkerState::Left));
    let settled = current(progress).is_some_and(|generation| {
        progress.lines.iter().rev().take_while(|line| line.generation == generation).count()
            >= SETTLED
    });
    progress.members().len() == workers
        && progress.waiting.is_none()
        && progress.protection.open().is_empty()
        && living.all(|view| training(view.state))
        && settled
}

fn current(progress: &Progress) -> Option<Generation> {
    progress.events.iter().rev().find_map(|event| match event.kind {
        EventKind::Generation { generation, .. } => Some(generation),
        _ => None,
    })
}

/// The first generation after event number `after` with members for which `is_it` holds, with the
/// time of its beginning and its first line, if that has come.
pub(super) fn change(
    progress: &Progress,
    after: u64,
    is_it: impl Fn(&[WorkerId]) -> bool,
) -> Option<(Generation, u64, &MetricsLine)> {
    let newer = progress.events.iter().filter(|event| event.number > after);
    let mut found = newer.filter_map(|event| match &event.kind {
        EventKind::Generation { generation, workers, .. } if is_it(workers) => {
            Some((*generation, event.unix_ms))
        }
        _ => None,
    });
    let (generation, unix_ms) = found.next()?;
    let line = progress.lines.iter().find(|line| line.generation >= generation)?;
    Some((generation, unix_ms, line))
}

/// The same for the first generation without a worker.
pub(super) fn change_without(
    progress: &Progress,
    after: u64,
    worker: WorkerId,
) -> Option<(Generation, u64, &MetricsLine)> {
    change(progress, after, |workers| !workers.contains(&worker))
}

/// Sends a signal to a process of the cluster.
pub(super) fn signal(process: u32, signal: Signal) -> Result<(), Failure> {
    let sent = Pid::from_raw(process as i32).map(|pid| kill_process(pid, signal));
    match sent {
        Some(Ok(())) => Ok(()),
        _ => Err(Failure::new(Exit::Failed, format!("process {process} cannot be signalled"))),
    }
}

/// How long training stood still for a generation, as the report counts it, milliseconds.
pub(super) fn stall_ms(progress: &Progress, number: Generation) -> Option<f64> {
    progress.generations().iter().find(|report| report.number == number)?.stall_ms
}

/// The median step, milliseconds.
pub(super) fn step_ms(progress: &Progress) -> f64 {
    1e3 * quantile(&sorted(progress.lines.iter().map(|line| line.seconds)), 0.5)
}

/// How much longer than the median step undisturbed steps took. This much of a stall is noise.
pub(super) fn calm(progress: &Progress) -> TimeSamples {
    let usual = step_ms(progress);
    let pairs = progress.lines.windows(2).filter(|pair| pair[0].generation == pair[1].generation);
    let times = pairs.map(|pair| pair[1].unix_ms as f64 - pair[0].unix_ms as f64);
    TimeSamples::new(times.map(|time| (time - usual).max(0.0)))
}

/// Wall clock, milliseconds of Unix time, with fractions.
pub(super) fn unix_ms() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0.0, |since| 1e3 * since.as_secs_f64())
}

/// Measured times of one kind, milliseconds.
pub(super) struct TimeSamples(Vec<f64>);

impl TimeSamples {
    /// The times in ascending order. At least one.
    pub(super) fn new(times: impl Iterator<Item = f64>) -> Self {
        Self(sorted(times))
    }

    /// The quantiles as JSON, by the nearest rank.
    pub(super) fn json(&self) -> Value {
        let [p50, p95, p99, longest] = self.ranks();
        json!({ "p50": p50, "p95": p95, "p99": p99, "longest": longest })
    }

    /// The quantiles in words.
    pub(super) fn words(&self) -> String {
        let [p50, p95, p99, longest] = self.ranks();
        format!(
            "p50 {p50:>6.1} ms   p95 {p95:>6.1} ms   p99 {p99:>6.1} ms   longest {longest:>6.1} ms"
        )
    }

    fn ranks(&self) -> [f64; 4] {
        [0.5, 0.95, 0.99, 1.0].map(|share| quantile(&self.0, share))
    }
}
