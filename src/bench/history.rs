//! `everstep bench history`: the cost of a long run's history for a coordinator.
//!
//! A coordinator takes a run and stops. The benchmark replaces its file of metrics lines by one
//! with the requested number of lines, and starts it again. It measures the time until the
//! coordinator listens, the time until a watcher has the last line, and the largest resident set of
//! the process. No worker trains a step.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use everstep_coordinator::line_file::LineFiles;
use everstep_coordinator::lines::{LineRecord, LineSums};
use everstep_coordinator::state::LineHistory;
use everstep_transport::protocol::{
    Generation, Lineage, MetricsLine, OperatorCommand, RunId, RunSpec, Step,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::all_reduce;
use crate::cli::HistoryFlags;
use crate::failure::{Exit, Failure};
use crate::operator::Operator;
use crate::{output, scratch};

/// Lines in one write.
const BLOCK: u64 = 10_000;
/// The length of a step in the generated lines.
const STEP_SECONDS: f64 = 0.1;

/// A coordinator's process. It ends when this is dropped.
struct Coordinator {
    child: Child,
    address: SocketAddr,
    /// The time from its start until it listened.
    started: Duration,
}

struct HistoryFigures {
    file_bytes: u64,
    restart_ms: f64,
    last_page_ms: f64,
    peak_rss_mib: f64,
}

pub(super) fn run(flags: &HistoryFlags) -> Result<(), Failure> {
    let folder = scratch::folder()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| failed("no runtime", error))?;
    let figures = runtime.block_on(measure(&folder.path().join("home"), flags.steps))?;
    let HistoryFigures { file_bytes, restart_ms, last_page_ms, peak_rss_mib } = figures;
    let steps = flags.steps;
    if flags.json {
        return output::print(json!({
            "steps": steps, "file_bytes": file_bytes, "restart_ms": restart_ms,
            "last_page_ms": last_page_ms, "peak_rss_mib": peak_rss_mib,
        }));
    }
    output::print(format_args!(
        "a history of {steps} steps, {:.0} bytes a step\n  \
           restart    {restart_ms:.0} ms  (start of the process until it listens)\n  \
           last page  {last_page_ms:.0} ms  (until a watcher has the last line)\n  \
           memory     {peak_rss_mib:.1} MiB  (largest resident set)",
        file_bytes as f64 / steps as f64
    ))
}

async fn measure(home: &Path, steps: u64) -> Result<HistoryFigures, Failure> {
    let coordinator = Coordinator::start(home, &["--bootstrap"])?;
    let mut operator = coordinator.operator(home)?;
    let spec = RunSpec { steps: steps.saturating_add(1), ..all_reduce::smallest_run() };
    let run = operator
        .command(OperatorCommand::Submit(spec.into()))
        .await
        .map_err(|e| failed("no run", e))?;
    let run = run.ok_or_else(|| failed("no run", "the coordinator names none"))?;
    operator.close().await;
    coordinator.stop()?;
    let lines = home.join("metrics");
    generate(&lines, run, steps).map_err(|error| failed("no history", error))?;
    let file_bytes = std::fs::metadata(lines.join(format!("{run}.log")));
    let file_bytes = file_bytes.map_err(|error| failed("no history", error))?.len();
    let began = Instant::now();
    let coordinator = Coordinator::start(home, &[])?;
    let mut operator = coordinator.operator(home)?;
    let newest = Step(steps.saturating_sub(1));
    let update = operator.watch(newest, 0).await.map_err(|e| failed("no answer", e))?;
    let last_page_ms = began.elapsed().as_secs_f64() * 1e3;
    let told = update.lines.last().map(|line| line.step);
    if told != Some(Step(steps)) {
        return Err(failed("the history is not whole", format!("its last step is {told:?}")));
    }
    let first = operator.watch(Step(0), 0).await.map_err(|e| failed("no answer", e))?;
    if first.lines.first().map(|line| line.step) != Some(Step(1)) {
        return Err(failed("the history is not whole", "its first step is missing"));
    }
    operator.close().await;
    let peak_rss_mib = coordinator.peak_rss_mib()?;
    let restart_ms = coordinator.started.as_secs_f64() * 1e3;
    coordinator.stop()?;
    Ok(HistoryFigures { file_bytes, restart_ms, last_page_ms, peak_rss_mib })
}

/// Writes the lines of `steps` steps behind the head of the run's file.
fn generate(
    folder: &Path,
    run: RunId,
    steps: u64,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut files = LineFiles::beside(folder, run)?;
    let lineage = Lineage { run, ..Lineage::default() };
    files.open(&LineHistory { lineage, ..LineHistory::default() })?;
    let mut sums = LineSums::default();
    let mut record = |step| {
        let line = MetricsLine {
            step: Step(step),
            generation: Generation(1),
            loss: 3.0 / (step as f64).sqrt(),
            seconds: STEP_SECONDS,
            tokens: 1_024,
            ..MetricsLine::default()
        };
        sums = sums.with(&line, None);
        LineRecord { line, sums }
    };
    let mut written = 0;
    while written < steps {
        let last = steps.min(written + BLOCK);
        let block: Vec<LineRecord> = (written + 1..=last).map(&mut record).collect();
        files.append(&block)?;
        written = last;
    }
    // A history of days has reached the disk long before a restart.
    rustix::fs::sync();
    Ok(())
}

impl Coordinator {
    fn start(home: &Path, flags: &[&str]) -> Result<Self, Failure> {
        let program = std::env::current_exe().map_err(|error| failed("no program", error))?;
        let mut command = Command::new(program);
        command.arg("coordinator").args(flags).arg("--dir").arg(home);
        command.args(["--listen", "127.0.0.1:0"]).stdin(Stdio::null());
        let began = Instant::now();
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.map_err(|error| failed("no coordinator", error))?;
        let mut line = String::new();
        let read = child.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
        let started = began.elapsed();
        let ready: Option<Value> = serde_json::from_str(&line).ok();
        let address = ready.as_ref().and_then(|ready| ready["address"].as_str()?.parse().ok());
        match (read, address) {
            (Some(Ok(_)), Some(address)) => Ok(Self { child, address, started }),
            _ => {
                let _ = child.kill(); // an error means that it has ended
                let _ = child.wait();
                Err(failed("no coordinator", format!("it said {line:?}")))
            }
        }
    }

    fn operator(&self, home: &Path) -> Result<Operator, Failure> {
        let operator = Operator::new(&home.join("operator"), &[self.address]);
        operator.map_err(|error| failed("no link to the coordinator", error))
    }

    /// The largest resident set of its process so far, MiB.
    fn peak_rss_mib(&self) -> Result<f64, Failure> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.map_err(|error| failed("memory cannot be measured here", error))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kib.map(|kib| kib / 1024.0).ok_or_else(|| failed("memory cannot be measured here", status))
    }

    fn stop(mut self) -> Result<(), Failure> {
        let told = kill_process(Pid::from_child(&self.child), Signal::TERM);
        told.map_err(|error| failed("the coordinator cannot be stopped", error))?;
        let ended = self.child.wait();
        ended.map(drop).map_err(|error| failed("the coordinator does not stop", error))
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let _ = self.child.kill(); // an error means that it has ended
        let _ = self.child.wait();
    }
}

fn failed(what: &str, why: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, what).because(why)
}
