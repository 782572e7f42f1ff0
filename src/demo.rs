//! `everstep demo`: a run with a live view and faults on demand, and the proof that they cost only
//! time.
//!
//! It trains on a local cluster, where chance or the user kills, stops, adds and drains workers.
//! Then it trains the same run undisturbed. Both must end with the same bits.

mod keys;
mod model;
mod screen;
mod show;
mod strikes;
mod view;

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use everstep_transport::protocol::RunSpec;
use everstep_worker::registry::Registry;

use crate::cli::{DemoFlags, Overrides, StartFlags};
use crate::cluster::{self, Cluster, ClusterError, ClusterOptions, Directory, Report};
use crate::config::{self, Resolved};
use crate::failure::{Exit, Failure};
use crate::text::RunText;
use crate::{logging, output, progress, scratch, train};

use show::{DemoEnd, Show};
pub(crate) use strikes::Strikes;

/// The number of worker processes if no flag states it.
const WORKERS: u32 = 4;
/// The number of steps in the measurement of a step's time, including the warm-up.
const MEASURED: u64 = 20;
/// Steps before the measured ones.
const WARM_UP: usize = 3;

pub(crate) fn run(flags: &DemoFlags, registry: &Registry) -> Result<(), Failure> {
    // Log lines would be written across the view.
    logging::start("error")?;
    let workers = flags.overrides.workers.unwrap_or(WORKERS);
    let overrides = Overrides {
        workers: Some(workers),
        start_workers: Some(workers),
        ..flags.overrides.clone()
    };
    let mut resolved = config::read(flags.config.as_deref(), &overrides, registry)?;
    let shards = resolved.run.batch.data_shards;
    train::idle(resolved.workers, shards)
        .into_iter()
        .for_each(|note| output::say(format_args!("note: {note}")));
    let text = RunText::find(&resolved)?;
    train::with_listed_text(&resolved, &text, |resolved| {
        train::check_model_and_data(resolved, registry)
    })?;
    if let Some(duration) = flags.duration {
        // The other half is for the undisturbed run.
        resolved.run.steps = steps_within(duration / 2, &resolved, &text)?;
    }
    let start = StartFlags { dir: flags.dir.clone(), ..StartFlags::default() };
    let (directory, _) = train::claim_directory(&start, &mut resolved.run, &text)?;
    let home = directory.path().to_path_buf();
    let end = perform(flags, &resolved, directory);
    let told = |failure| train::interrupted(failure, &home, &resolved.run);
    let mut report = match end.map_err(told)? {
        DemoEnd::Complete(report) => report,
        DemoEnd::Quit(report) => return Err(quit(&resolved.run, &report, &home)),
    };
    report.loss.bigram = text.facts(&resolved.run).bigram;
    cluster::add_bigram(&home, report.loss.bigram);
    output::print(progress::summary(&resolved.run, &report, &home))?;
    let undisturbed = undisturbed(&resolved, &home)?;
    compare(&report, &undisturbed)
}

/// The number of steps that take about `duration`. It trains some, undisturbed, to measure.
pub(crate) fn steps_within(
    duration: Duration,
    resolved: &Resolved,
    text: &RunText,
) -> Result<u64, Failure> {
    let folder = scratch::folder()?;
    let mut run = RunSpec { steps: MEASURED, checkpoint: None, ..resolved.run.clone() };
    run.data = text.listed_in(folder.path(), &run.data)?;
    let mut seconds = Vec::new();
    let directory = Directory::claim_new(folder.path(), &run)?;
    let options = ClusterOptions::new(resolved.workers);
    let options = ClusterOptions { keeps_history: true, ..options };
    cluster::train(&run, directory, &options, |progress| {
        seconds = progress.lines.iter().map(|line| line.seconds).collect();
    })?;
    let mut seconds = seconds.split_off(WARM_UP);
    seconds.sort_by(f64::total_cmp);
    let step = seconds[seconds.len() / 2];
    let steps = (duration.as_secs_f64() / step).ceil().max(1.0) as u64;
    output::say(format_args!(
        "measured: a step takes {:.1} ms, so {steps} steps are about {}",
        1e3 * step,
        progress::clock(duration.as_secs_f64())
    ));
    Ok(steps)
}

fn perform(
    flags: &DemoFlags,
    resolved: &Resolved,
    directory: Directory,
) -> Result<DemoEnd, Failure> {
    let Resolved { run, workers, .. } = resolved;
    let wait = flags.wait;
    let respawn = flags.respawn || flags.chaos.is_some();
    let options =
        ClusterOptions { wait, respawn, keeps_history: true, ..ClusterOptions::new(*workers) };
    let chaos = flags.chaos.map(|chances| Strikes::new(chances, run.seed));
    cluster::block_on(async {
        let cluster = Cluster::start(directory, &options).await?;
        Show::begin(run, cluster, *workers, chaos).await?.perform().await
    })
}

/// The end of a run that its user has left: its results, and that there is no run to compare with.
fn quit(run: &RunSpec, report: &Report, home: &Path) -> Failure {
    if report.steps > 0 {
        let _ = output::print(progress::summary(run, report, home)); // the end is told all the same
    }
    output::say("the undisturbed run is left out: only a run that is complete can be compared");
    train::interrupted(ClusterError::Interrupted.into(), home, run)
}

/// Trains the run again without faults.
fn undisturbed(resolved: &Resolved, home: &Path) -> Result<Report, Failure> {
    let Resolved { run, workers, .. } = resolved;
    output::say("now the same run undisturbed, to compare");
    // Its checkpoints would meet those of the first run in one store.
    let run = &RunSpec { checkpoint: None, ..run.clone() };
    let directory = Directory::claim(&home.join("undisturbed"), run)?;
    let mut display = progress::Display::new(run, *workers, directory.path());
    let options = ClusterOptions::new(*workers);
    let report = cluster::train(run, directory, &options, |progress| display.show(progress));
    display.end();
    Ok(report?)
}

/// Whether the hashes are equal, in green or red if the terminal shows colours.
fn verdict(equal: bool, colours: bool) -> String {
    let (colour, words) = if equal { ("32", "equal") } else { ("31", "DIFFERENT") };
    if colours { format!("\x1b[1;{colour}m{words}\x1b[0m") } else { words.into() }
}

fn compare(disturbed: &Report, undisturbed: &Report) -> Result<(), Failure> {
    let equal = disturbed.state_hash == undisturbed.state_hash;
    let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    output::print(format_args!(
        "disturbed    {}\nundisturbed  {}\n{}",
        disturbed.state_hash,
        undisturbed.state_hash,
        verdict(equal, colours)
    ))?;
    if equal {
        return Ok(());
    }
    let failure = Failure::new(Exit::Failed, "the two runs ended with different bits");
    let reasons = [&disturbed.bitwise_reason, &undisturbed.bitwise_reason];
    Err(match reasons.into_iter().flatten().next() {
        None => failure.next("keep both directories: this must not be, and is worth a report"),
        Some(reason) => failure.because(reason),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_hashes_are_green_on_a_terminal_that_shows_colours() {
        assert_eq!(verdict(true, false), "equal");
        assert_eq!(verdict(true, true), "\x1b[1;32mequal\x1b[0m");
        assert_eq!(verdict(false, true), "\x1b[1;31mDIFFERENT\x1b[0m");
    }
}
