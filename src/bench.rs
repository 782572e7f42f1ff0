//! `everstep bench`: measures this machine with the training step's own exchange.
//!
//! A benchmark is a run like any other, on a local cluster of real processes. Its figures are those
//! of the committed steps.

mod all_reduce;
mod churn;
mod failovers;
mod history;
mod joins;
mod kills;
mod overlap;
mod stages;
mod vector;

use std::path::Path;

use everstep_transport::protocol::{MetricsLine, RunSpec};
use everstep_worker::registry::Registry;
use tempfile::TempDir;

use crate::cli::{Bench, Overrides};
use crate::cluster::{self, ClusterOptions, Directory, Report};
use crate::failure::Failure;
use crate::progress::WaitReports;
use crate::text::RunText;
use crate::{config, logging, output, scratch};

pub(crate) use vector::register;

pub(crate) fn run(bench: &Bench, registry: &Registry) -> Result<(), Failure> {
    logging::start("warn")?;
    match bench {
        Bench::AllReduce(flags) => all_reduce::run(flags),
        Bench::Overlap(flags) => overlap::run(flags, registry),
        Bench::Stages(flags) => stages::run(flags, registry),
        Bench::Kills(flags) => kills::run(flags, registry),
        Bench::Failovers(flags) => failovers::run(flags, registry),
        Bench::History(flags) => history::run(flags),
        Bench::Joins(flags) => joins::run(flags, registry),
    }
}

/// The run of a configuration with these values, and a folder for its directories and for the list
/// of its files.
fn configured_run(
    config: Option<&Path>,
    overrides: &Overrides,
    registry: &Registry,
) -> Result<(RunSpec, TempDir), Failure> {
    let mut resolved = config::read(config, overrides, registry)?;
    resolved.keep_checkpoints_by_the_run();
    let folder = scratch::folder()?;
    let text = RunText::find(&resolved)?;
    resolved.run.data = text.listed_in(folder.path(), &resolved.run.data)?;
    Ok((resolved.run, folder))
}

/// Trains `run` in a new directory below `folder`.
fn train(
    folder: &Path,
    run: &RunSpec,
    options: &ClusterOptions,
) -> Result<(Report, Vec<MetricsLine>), Failure> {
    train_in(Directory::claim_new(folder, run)?, run, options)
}

/// Trains `run` in its directory.
fn train_in(
    directory: Directory,
    run: &RunSpec,
    options: &ClusterOptions,
) -> Result<(Report, Vec<MetricsLine>), Failure> {
    let mut waiting = WaitReports::new(run, options.workers);
    let mut lines = Vec::new();
    let options = ClusterOptions { keeps_history: true, ..options.clone() };
    let report = cluster::train(run, directory, &options, |progress| {
        waiting.sentences(progress).iter().for_each(output::say);
        lines.extend_from_slice(&progress.lines[lines.len()..]);
    })?;
    Ok((report, lines))
}

/// The value below which `share` of the sorted values lie: the nearest rank.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// The values in ascending order.
fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::{quantile, sorted};

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values = sorted([4.0, 1.0, 3.0, 2.0].into_iter());
        assert_eq!(quantile(&values, 0.5), 2.0);
        assert_eq!(quantile(&values, 0.99), 4.0);
        assert_eq!(quantile(&values, 0.0), 1.0);
    }
}
