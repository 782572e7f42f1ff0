//! The command line of `everstep resume`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::LocalFlags;

/// The flags of `everstep resume`.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct ResumeFlags {
    /// The directory of the run, or the store of its checkpoints: a directory, or a URL such as
    /// s3://BUCKET/FOLDER
    #[arg(value_name = "DIR|URL")]
    pub from: PathBuf,
    /// Go back to the checkpoint of this step, even if there is a newer one. Checkpoints of later
    /// steps are deleted. In the directory of a run 0 is the initial state
    #[arg(long, value_name = "N", env = "EVERSTEP_STEP")]
    pub step: Option<u64>,
    /// How many worker processes to start [default: as many as were there when the run stopped, or
    /// as many as the run begins with]
    #[arg(long, value_name = "N", env = "EVERSTEP_WORKERS",
        value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub workers: Option<u32>,
    /// Where the run's data are now, if they have moved. They must be the same
    #[arg(long, value_name = "PATH", env = "EVERSTEP_DATA")]
    pub data: Option<String>,
    /// How the local cluster trains the run.
    #[command(flatten)]
    pub local: LocalFlags,
    /// The script of the run and its arguments, if the run's directory keeps none, or if the script
    /// has moved
    #[arg(value_name = "SCRIPT", last = true)]
    pub script: Vec<OsString>,
}
