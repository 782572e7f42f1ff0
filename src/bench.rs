//! `everstep bench`: measures this machine with the training step's own exchange.
//!
//! A benchmark is a run like any other, on a local cluster of real processes; its figures are those
//! of the committed steps.

mod all_reduce;
mod overlap;
mod vector;

use std::path::PathBuf;

use everstep_transport::protocol::RunSpec;
use everstep_worker::registry::Registry;

use crate::cli::Bench;
use crate::cluster::{self, Directory, Options, Progress, Report};
use crate::failure::{Exit, Failure};

pub(crate) use vector::register;

pub(crate) fn run(bench: &Bench, registry: &Registry) -> Result<(), Failure> {
    match bench {
        Bench::AllReduce(flags) => all_reduce::run(flags),
        Bench::Overlap(flags) => overlap::run(flags, registry),
    }
}

/// A directory for the run of a benchmark, gone when it is over.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("everstep-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| {
            Failure::new(Exit::Failed, "the benchmark has nowhere to put its files")
                .at(path.display())
                .because(error)
                .next("set TMPDIR to a directory with room")
        })?;
        Ok(Self(path))
    }

    /// Trains `run` in a new directory below this one.
    fn train(&self, run: &RunSpec, options: &Options) -> Result<(Report, Progress), Failure> {
        let directory = Directory::claim_new(&self.0, run)?;
        let mut last = Progress::default();
        let report = cluster::train(run, directory, options, |progress| last = progress.clone())?;
        Ok((report, last))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // what is left is in the temporary directory
    }
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
