//! The settings of a local cluster.

use std::path::PathBuf;
use std::time::Duration;

use everstep_kernels::device::{DeviceChoice, Devices};

/// The settings of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// How many workers to start.
    pub workers: u32,
    /// How many coordinators to start, at least one. Of three, two go on without the third.
    pub coordinators: u32,
    /// How long the run waits for workers that it needs: before it begins, and while too few take
    /// part.
    pub wait: Duration,
    /// Start a new worker for every one that dies once the run has begun.
    pub respawn: bool,
    /// Start the processes as a user would by hand, each on a machine of its own. The launcher does
    /// not look after them, and does not tell the coordinator when one ends. So a benchmark
    /// measures what a cluster notices by itself. On Linux only: there they still end with this
    /// process, however it ends.
    pub by_hand: bool,
    /// The device on which the workers compute.
    pub device: DeviceChoice,
    /// The devices of the program, to give each worker one of its own. Those that every program has
    /// by default.
    pub devices: Devices,
    /// Overlap communication with compute. A benchmark turns it off to measure what it saves.
    pub overlap: bool,
    /// Have every worker write a trace of its stages.
    pub trace: bool,
    /// The executable of the daemons. None: that of this process.
    pub program: Option<PathBuf>,
}

impl ClusterOptions {
    /// `workers` workers, one coordinator, ten minutes for others to join, and no successors.
    pub fn new(workers: u32) -> Self {
        Self {
            workers,
            coordinators: 1,
            wait: Duration::from_secs(600),
            respawn: false,
            by_hand: false,
            device: DeviceChoice::default(),
            devices: Devices::default(),
            overlap: true,
            trace: false,
            program: None,
        }
    }
}
