//! The cost of a storm of workers for the coordinator's core: `cargo bench -p everstep-chaos`.
//!
//! A table for each number of workers: CPU time of the core by kind of input, and the longest input
//! (all others wait for it). Then the total, beside the virtual time in which it happened. One
//! worker is killed while all train: a Pause to all, their answers, and another generation.

use std::collections::BTreeMap;
use std::time::Duration;

use everstep_chaos::storm::{StormScenario, StormSim};
use everstep_coordinator::core::{Core, CoreInput, ShellInput};
use everstep_transport::time::Time;
use rustix::time::{ClockId, clock_gettime};

const WORKERS: [u32; 3] = [100, 1_000, 10_000];
const VIRTUAL_TIME_LIMIT: Duration = Duration::from_secs(60);

/// The cost of inputs of one kind.
#[derive(Default)]
struct Cost {
    inputs: u32,
    cpu: Duration,
    longest: Duration,
}

fn main() {
    WORKERS.into_iter().for_each(storm);
}

fn storm(workers: u32) {
    let mut costs = BTreeMap::<&str, Cost>::new();
    let measured = |core: &mut Core, now: Time, input: CoreInput| {
        let cost = costs.entry(kind(&input)).or_default();
        let before = cpu_time();
        core.handle(now, input);
        let spent = cpu_time().saturating_sub(before);
        cost.inputs += 1;
        cost.cpu += spent;
        cost.longest = cost.longest.max(spent);
    };
    let before = cpu_time();
    let scenario = StormScenario { killed: 1, ..StormScenario::storm(1, workers) };
    let report = StormSim::new(scenario).run(VIRTUAL_TIME_LIMIT, measured).expect("it is complete");
    let whole = cpu_time().saturating_sub(before);
    println!("\n{workers} workers: inputs, CPU ms in the core, longest ms");
    for (kind, Cost { inputs, cpu, longest }) in &costs {
        println!("  {kind:16} {inputs:8} {:10.1} {:8.2}", ms(*cpu), ms(*longest));
    }
    let core: Duration = costs.values().map(|cost| cost.cpu).sum();
    let [announced, finished] =
        [report.announced_at, report.finished_at].map(|at| ms(at.since(Time(0))) / 1e3);
    let mended = ms(report.mended_at.since(report.killed_at));
    println!("  announced after {announced:.3} s, finished after {finished:.3} s (virtual)");
    let (joins, all) = (report.entries_of_joins as f64, report.entries as f64);
    let a_worker = joins / f64::from(workers);
    println!("  entries for the log until then: {joins}, {a_worker:.4} a worker,");
    println!("  {:.0} a virtual second; in all {all}, {:.0}", joins / announced, all / finished);
    println!("  the next generation {mended:.1} ms after the death (virtual)");
    println!("  CPU s: {:.3} in the core, {:.3} in all", ms(core) / 1e3, ms(whole) / 1e3);
    println!("  {report:?}");
}

fn kind(input: &CoreInput) -> &'static str {
    match input {
        CoreInput::Shell(ShellInput::Connected { .. }) => "connected",
        CoreInput::Shell(ShellInput::Disconnected { .. }) => "disconnected",
        CoreInput::Shell(ShellInput::Message { message, .. }) => message.name(),
        CoreInput::Applied { .. } => "applied",
        CoreInput::Elected { .. } => "elected",
        CoreInput::Tick => "tick",
        _ => "other",
    }
}

/// CPU time of this thread. On a shared machine the wall clock measures other programs, too.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}
