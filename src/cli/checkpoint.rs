//! The command line of `everstep checkpoint`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Subcommand, ValueEnum};
use everstep_checkpoint::export::WeightType;
use everstep_kernels::device::DeviceChoice;

use super::AskFlags;

/// What an operator does with checkpoints.
#[derive(Subcommand, Clone, Debug)]
pub enum CheckpointTask {
    /// List the checkpoints, oldest first
    Ls(StoreFlags),
    /// Save a checkpoint of the run under way, and wait until it is listed or has failed
    Now(AskFlags),
    /// Read all of every checkpoint, and compare it with its digests. Exits with 1 if one is
    /// damaged
    Verify(VerifyFlags),
    /// Write the weights of a checkpoint into a folder that Hugging Face `transformers` loads
    Export(ExportFlags),
    /// Delete a checkpoint
    Rm(RemoveCheckpointFlags),
}

/// The store that an operator means, and how the answer is printed.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreFlags {
    /// The directory of a run or of a coordinator, or the store itself: a directory, or a URL
    /// such as s3://BUCKET/FOLDER [default: the newest run under `runs`]
    #[arg(long, value_name = "DIR|URL", env = "EVERSTEP_DIR")]
    pub dir: Option<PathBuf>,
    /// Where coordinators listen, if not where DIR says. Those are asked then for the checkpoints
    /// of their run
    #[arg(
        long,
        value_name = "HOST:PORT,...",
        value_delimiter = ',',
        env = "EVERSTEP_COORDINATORS"
    )]
    pub coordinators: Vec<String>,
    /// Print the answer as JSON
    #[arg(long, env = "EVERSTEP_JSON", value_parser = BoolishValueParser::new())]
    pub json: bool,
}

/// The flags of `everstep checkpoint verify`.
#[derive(Args, Clone, Debug)]
pub struct VerifyFlags {
    /// Only the checkpoint of this step
    #[arg(long, value_name = "N", env = "EVERSTEP_STEP")]
    pub step: Option<u64>,
    /// Instead, train so many steps after the checkpoint again, on this machine, and compare
    /// losses, norms and state hashes with what was recorded. Exits with 1 if a step differs
    #[arg(long, value_name = "N", env = "EVERSTEP_REPLAY",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub replay: Option<u64>,
    /// With --replay: where the run's data are now, if they have moved. They must be the same
    #[arg(long, value_name = "PATH", env = "EVERSTEP_DATA")]
    pub data: Option<String>,
    /// With --replay: where to compute, as for `everstep train`. Another kind of device than the
    /// run's computes other bits
    #[arg(long, value_name = "DEVICE", env = "EVERSTEP_DEVICE", default_value_t)]
    pub device: DeviceChoice,
    /// Where the checkpoints are.
    #[command(flatten)]
    pub store: StoreFlags,
    /// The script of the run and its arguments, for a replay, if the run's directory keeps none, or
    /// if the script has moved
    #[arg(value_name = "SCRIPT", last = true, requires = "replay")]
    pub script: Vec<OsString>,
}

/// The flags of `everstep checkpoint export`.
#[derive(Args, Clone, Debug)]
pub struct ExportFlags {
    /// The folder, which must have no model yet
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
    /// The checkpoint of this step [default: the newest that is not damaged]
    #[arg(long, value_name = "N", env = "EVERSTEP_STEP")]
    pub step: Option<u64>,
    /// How the weights are stored
    #[arg(long, value_name = "TYPE", env = "EVERSTEP_DTYPE", default_value = "f32")]
    pub dtype: ExportType,
    /// Where the checkpoints are.
    #[command(flatten)]
    pub store: StoreFlags,
}

/// The flags of `everstep checkpoint rm`.
#[derive(Args, Clone, Debug)]
pub struct RemoveCheckpointFlags {
    /// The step of the checkpoint
    #[arg(long, value_name = "N", env = "EVERSTEP_STEP")]
    pub step: u64,
    /// Delete it even if it is the newest that can be restored
    #[arg(long, env = "EVERSTEP_FORCE", value_parser = BoolishValueParser::new())]
    pub force: bool,
    /// Where the checkpoints are.
    #[command(flatten)]
    pub store: StoreFlags,
}

/// How exported weights are stored.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportType {
    /// As they are: 32 bits each.
    F32,
    /// Rounded to the nearest bf16: 16 bits each.
    Bf16,
}

impl From<ExportType> for WeightType {
    fn from(stored: ExportType) -> Self {
        match stored {
            ExportType::F32 => Self::F32,
            ExportType::Bf16 => Self::Bf16,
        }
    }
}
