//! `everstep chaos`: looks for a broken promise by simulation, and reports it.
//!
//! `simulate` runs small clusters on virtual time, one for each seed, on all cores. The first
//! broken promise ends it. The report has the seed that repeats it, and the few faults that it
//! takes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use everstep_chaos::fault::{Rates, Schedule};
use everstep_chaos::simulate::{Simulated, Simulation};
use everstep_chaos::world;
use serde_json::{Value, json};

use crate::cli::{ChaosTask, SimulateFlags};
use crate::failure::{Exit, Failure};
use crate::output;

/// How often the program reports progress.
const SIMULATION_REPORT_INTERVAL: Duration = Duration::from_secs(2);

pub(crate) fn run(chaos: &ChaosTask) -> Result<(), Failure> {
    match chaos {
        ChaosTask::Simulate(flags) => simulate(flags),
    }
}

fn simulate(flags: &SimulateFlags) -> Result<(), Failure> {
    if flags.from.checked_add(flags.seeds - 1).is_none() {
        return Err(Failure::new(Exit::Usage, "there are not so many seeds")
            .at("--from")
            .because(format!("{} seeds from {} on exceed 64 bits", flags.seeds, flags.from))
            .next("begin with a smaller seed"));
    }
    let mut trace = flags.trace.as_deref().map(TraceFile::create).transpose()?;
    let span = Duration::from_secs(60 * u64::from(flags.minutes));
    let simulation = Simulation::new(flags.workers, span, Rates::default()).map_err(|failure| {
        Failure::new(Exit::Failed, "the run fails without any fault").because(failure)
    })?;
    let simulation = match flags.coordinators {
        Some(coordinators) => simulation.coordinated(coordinators),
        None => simulation,
    };
    // One thread writes the lines, in the order of the seeds.
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = if trace.is_some() { 1 } else { cores };
    let share = Share {
        simulation: &simulation,
        from: flags.from,
        seeds: flags.seeds,
        taken: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        record: trace.is_some(),
    };
    let tally = thread::scope(|scope| {
        let (results, seeds) = channel();
        for _ in 0..threads {
            let (share, results) = (&share, results.clone());
            scope.spawn(move || share.work(&results));
        }
        drop(results);
        let collected = Tally::collect(flags.seeds, &seeds, trace.as_mut());
        share.stop.store(true, Ordering::Relaxed);
        collected
    })?;
    conclude(flags, &simulation, &tally)
}

/// The threads' shared state. They take one seed after the other.
struct Share<'a> {
    simulation: &'a Simulation,
    from: u64,
    seeds: u64,
    /// How many seeds the threads have taken.
    taken: AtomicU64,
    stop: AtomicBool,
    record: bool,
}

impl Share<'_> {
    /// Simulates until no seed is left, or a seed has failed. The threads take seeds in ascending
    /// order, and finish those that they have taken. So the smallest failing seed is found.
    fn work(&self, results: &Sender<(u64, Simulated)>) {
        while !self.stop.load(Ordering::Relaxed) {
            let place = self.taken.fetch_add(1, Ordering::Relaxed);
            if place >= self.seeds {
                return;
            }
            let (simulation, seed) = (self.simulation, self.from + place);
            let simulated =
                if self.record { simulation.record(seed) } else { simulation.simulate(seed) };
            if simulated.result.is_err() {
                self.stop.store(true, Ordering::Relaxed);
            }
            if results.send((seed, simulated)).is_err() {
                return;
            }
        }
    }
}

/// The sum of all seeds' results.
#[derive(Default)]
struct Tally {
    seeds: u64,
    simulated: Duration,
    faults: BTreeMap<&'static str, u64>,
    steps: u64,
    completed: u64,
    /// Runs that ended since memory had changed, as a fault explains.
    failed: u64,
    changes: world::Tally,
    events: u64,
    longest: Duration,
    longest_change: Duration,
    longest_recovery: Duration,
    /// The sum of the traces' digests: equal for equal histories, in any order.
    digest: u64,
    wall: Duration,
    /// CPU time of all threads.
    cpu: Duration,
    /// The failing seed, and its failure. The smallest one if there are several.
    broken: Option<(u64, world::Failure)>,
}

impl Tally {
    fn collect(
        seeds: u64,
        results: &Receiver<(u64, Simulated)>,
        mut trace: Option<&mut TraceFile>,
    ) -> Result<Self, Failure> {
        let (began, cpu, mut told) = (Instant::now(), cpu_time(), Instant::now());
        let mut tally = Self::default();
        for (seed, simulated) in results {
            if let Some(trace) = &mut trace {
                trace.write(seed, &simulated)?;
            }
            tally.add(seed, simulated);
            if told.elapsed() >= SIMULATION_REPORT_INTERVAL {
                told = Instant::now();
                let Self { seeds: done, steps, completed, .. } = tally;
                output::say(format_args!(
                    "{done} of {seeds} seeds, {steps} steps committed, {completed} runs complete"
                ));
            }
        }
        if let Some(trace) = trace {
            trace.finish()?;
        }
        (tally.wall, tally.cpu) = (began.elapsed(), cpu_time().saturating_sub(cpu));
        Ok(tally)
    }

    fn add(&mut self, seed: u64, simulated: Simulated) {
        self.seeds += 1;
        self.events += simulated.events;
        self.digest = self.digest.wrapping_add(simulated.digest);
        match simulated.result {
            Ok(endured) => {
                for (kind, count) in endured.faults {
                    *self.faults.entry(kind).or_default() += count;
                }
                self.simulated += Duration::from_nanos(endured.at.0);
                self.steps += endured.steps;
                self.completed += endured.completed;
                self.failed += endured.failed;
                self.changes += endured.changes;
                self.longest = self.longest.max(endured.longest);
                self.longest_change = self.longest_change.max(endured.longest_change);
                self.longest_recovery = self.longest_recovery.max(endured.recovery);
            }
            Err(failure) => {
                if self.broken.as_ref().is_none_or(|(other, _)| seed < *other) {
                    self.broken = Some((seed, failure));
                }
            }
        }
    }

    fn seeds_per_core_second(&self) -> f64 {
        self.seeds as f64 / self.cpu.as_secs_f64()
    }

    fn print(&self) -> Result<(), Failure> {
        let Self { seeds, steps, completed, failed, changes, events, digest, .. } = self;
        let world::Tally { generations, lost, left, redone, rollbacks, .. } = changes;
        let world::Tally { installed, pages, line_pages, joined, removed, .. } = changes;
        let world::Tally { stopped, full, replaced, .. } = changes;
        let (simulated, wall) = (self.simulated.as_secs_f64() / 60.0, self.wall.as_secs_f64());
        output::print(format_args!("simulated {seeds} seeds, {simulated:.0} virtual minutes"))?;
        for (kind, count) in &self.faults {
            output::print(format_args!("  {kind:<26}{count}"))?;
        }
        output::print(format_args!(
            "  runs        {completed} complete with the same hash, {failed} ended by memory that \
             had changed\n  \
             generations {generations}: {lost} members lost, {left} left, {redone} steps done \
             again, {rollbacks} rollbacks\n  \
             members     {joined} coordinators joined, {removed} ended since they were removed, \
             {stopped} stopped, {full} ended with a full disk, {replaced} with a damaged log were \
             replaced, {installed} snapshots, {pages} pages of history and {line_pages} of \
             lines sent\n  \
             steps       {steps} committed, {events} events\n  \
             longest     {:.2} s without progress, {:.2} s from a Pause to its record, {:.2} s \
             from the last fault to the end\n  \
             histories   {digest:016x}\n  \
             speed       {wall:.1} s, {:.1} seeds a core-second",
            self.longest.as_secs_f64(),
            self.longest_change.as_secs_f64(),
            self.longest_recovery.as_secs_f64(),
            self.seeds_per_core_second()
        ))
    }

    fn json(&self, flags: &SimulateFlags, violation: Value) -> Value {
        let world::Tally { generations, lost, left, redone, rollbacks, .. } = self.changes;
        let world::Tally { installed, pages, line_pages, joined, removed, .. } = self.changes;
        let world::Tally { stopped, full, replaced, .. } = self.changes;
        json!({
            "seeds": self.seeds, "from": flags.from, "workers": flags.workers,
            "minutes": flags.minutes, "virtual_seconds": self.simulated.as_secs_f64(),
            "faults": self.faults, "steps": self.steps, "runs_completed": self.completed,
            "runs_failed": self.failed,
            "generations": generations, "members_lost": lost, "members_left": left,
            "coordinators_joined": joined, "coordinators_removed": removed,
            "coordinators_stopped": stopped, "full_disks": full, "damaged_logs_replaced": replaced,
            "snapshots_sent": installed,
            "history_pages_sent": pages, "line_pages_sent": line_pages,
            "steps_redone": redone, "rollbacks": rollbacks, "events": self.events,
            "longest_ms": self.longest.as_secs_f64() * 1e3,
            "longest_change_ms": self.longest_change.as_secs_f64() * 1e3,
            "longest_recovery_ms": self.longest_recovery.as_secs_f64() * 1e3,
            "histories": format!("{:016x}", self.digest),
            "wall_seconds": self.wall.as_secs_f64(),
            "seeds_per_core_second": self.seeds_per_core_second(), "violation": violation,
        })
    }
}

/// Prints the summary, and the broken promise.
fn conclude(flags: &SimulateFlags, simulation: &Simulation, tally: &Tally) -> Result<(), Failure> {
    let Some((seed, failure)) = &tally.broken else {
        return if flags.json {
            output::print(tally.json(flags, Value::Null))
        } else {
            tally.print()
        };
    };
    output::say(format_args!("seed {seed} has failed: looking for the faults that it takes"));
    let faults = shrink(simulation, *seed, failure);
    let (workers, minutes) = (flags.workers, flags.minutes);
    let mut again = format!(
        "everstep chaos simulate --seeds 1 --from {seed} --workers {workers} --minutes {minutes}"
    );
    if let Some(coordinators) = flags.coordinators {
        again += &format!(" --coordinators {coordinators}");
    }
    let invariant = failure.invariant().map(|invariant| format!("{invariant:?}"));
    if flags.json {
        let violation = json!({
            "seed": seed, "invariant": invariant, "seen": failure.to_string(),
            "faults": faults.to_string().lines().map(str::trim).collect::<Vec<_>>(),
            "repeat": again,
        });
        output::print(tally.json(flags, violation))?;
    }
    let found = invariant.unwrap_or_else(|| "an assertion".into());
    let words = if faults.0.is_empty() { "no faults at all\n".into() } else { faults.to_string() };
    Err(Failure::new(Exit::Failed, format!("a promise did not hold: {found}"))
        .at(format_args!("seed {seed}"))
        .because(format_args!("{failure}\nit takes these faults:\n{}", words.trim_end()))
        .next(format!("repeat it: {again} --trace FILE")))
}

/// Shrinks silently: a core that stops at an assertion prints that once, not at every attempt.
fn shrink(simulation: &Simulation, seed: u64, failure: &world::Failure) -> Schedule {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let faults = simulation.shrink(seed, failure);
    std::panic::set_hook(hook);
    faults
}

fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec.unsigned_abs() as u32)
}

/// The file that gets a line for every event.
struct TraceFile {
    path: PathBuf,
    file: BufWriter<File>,
}

impl TraceFile {
    fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|error| unwritable(path, error))?;
        Ok(Self { path: path.to_path_buf(), file: BufWriter::new(file) })
    }

    fn write(&mut self, seed: u64, simulated: &Simulated) -> Result<(), Failure> {
        let mut write = || {
            writeln!(self.file, "seed {seed}")?;
            simulated.lines.iter().try_for_each(|line| writeln!(self.file, "{line}"))
        };
        write().map_err(|error| unwritable(&self.path, error))
    }

    fn finish(&mut self) -> Result<(), Failure> {
        self.file.flush().map_err(|error| unwritable(&self.path, error))
    }
}

fn unwritable(path: &Path, error: std::io::Error) -> Failure {
    Failure::new(Exit::Failed, "the trace cannot be written")
        .at(path.display())
        .because(error)
        .next("name a file in a directory that is there and has room")
}

#[cfg(test)]
mod tests {
    use everstep_chaos::check::{Invariant, Violation};
    use everstep_transport::time::Time;

    use super::*;

    fn flags() -> SimulateFlags {
        SimulateFlags {
            seeds: 9,
            from: 3,
            workers: 1,
            coordinators: None,
            minutes: 1,
            json: false,
            trace: None,
        }
    }

    fn broken(at: u64) -> Simulated {
        let invariant = Invariant::I2;
        let violation = Violation { invariant, at: Time(at), seen: "two commits".into() };
        let result = Err(world::Failure::Violation(violation));
        Simulated { result, digest: 1, events: 1, lines: Vec::new() }
    }

    #[test]
    fn a_broken_promise_is_told_with_its_time_its_faults_and_how_to_repeat_it() {
        let mut tally = Tally::default();
        for (seed, at) in [(7, 9), (5, 1_234_567), (8, 9)] {
            tally.add(seed, broken(at));
        }
        let second = Duration::from_secs(1);
        let simulation = Simulation::new(1, second, Rates::none()).expect("no fault");
        let failure = conclude(&flags(), &simulation, &tally).expect_err("seed 5 has failed");
        assert_eq!(failure.exit, Exit::Failed);
        let words = failure.to_string();
        for said in [
            "a promise did not hold: I2",
            "seed 5",
            "after 1.235 ms: two commits",
            "no faults at all",
            "everstep chaos simulate --seeds 1 --from 5 --workers 1 --minutes 1 --trace FILE",
        ] {
            assert!(words.contains(said), "{said:?} in {words}");
        }
    }

    #[test]
    fn seeds_are_taken_once_each_up_to_the_last_there_is() {
        let second = Duration::from_secs(1);
        let simulation = Simulation::new(1, second, Rates::none()).expect("no fault");
        let (from, seeds) = (u64::MAX - 1, 2);
        let (taken, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let share = Share { simulation: &simulation, from, seeds, taken, stop, record: false };
        let (results, done) = channel();
        thread::scope(|scope| {
            scope.spawn(|| share.work(&results));
            share.work(&results);
        });
        drop(results);
        let mut done: Vec<u64> = done.iter().map(|(seed, _)| seed).collect();
        done.sort_unstable();
        assert_eq!(done, [u64::MAX - 1, u64::MAX]);
    }
}
