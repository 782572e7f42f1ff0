//! The settings of a local cluster.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread::available_parallelism;
use std::time::Duration;

use everstep_kernels::device::{DeviceChoice, Devices};
use everstep_transport::protocol::RunSpec;
use serde::{Deserialize, Serialize};

use crate::script::gpus;

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
    /// The threads with which each worker computes. None: as many as there are cores for it.
    pub threads: Option<u32>,
    /// Overlap communication with compute. A benchmark turns it off to measure what it saves.
    pub overlap: bool,
    /// Exchange tensors through shared memory. A benchmark turns it off to measure the network.
    pub shares_memory: bool,
    /// Have every worker write a trace of its stages.
    pub trace: bool,
    /// Keep all lines and events in memory, for a program that looks at the whole history of a
    /// short run. Otherwise the newest thousands stay.
    pub keeps_history: bool,
    /// The program of the daemons. None: that of this process.
    pub program: Option<Program>,
    /// The script of the workers. None: workers are daemons, too.
    pub script: Option<Script>,
}

/// The program `everstep`, as a process starts it: an executable, and the arguments that stand
/// before the verb.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The file to execute: `everstep`, or the interpreter of a language.
    pub executable: PathBuf,
    /// The arguments before the verb: none, or `-m everstep`.
    pub arguments: Vec<OsString>,
}

/// A script of which each process is a worker. It gets its settings as the variables of the flags
/// of `everstep worker`, and states its run on the socket that is its stdin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Script {
    /// The Python interpreter that runs the script.
    pub interpreter: PathBuf,
    /// The script, and its arguments.
    pub command: Vec<OsString>,
    /// Compute threads of each process. The bits of a run depend on their number.
    pub threads: u32,
    /// The instructions that its mathematics libraries use. None: the newest of each CPU.
    pub isa: Option<InstructionSet>,
    /// The GPUs that its processes see: one each, in turn, or the one of a number. None: those that
    /// this process sees.
    pub device: Option<DeviceChoice>,
    /// The working directory of each process. None: that of this process.
    pub directory: Option<PathBuf>,
    /// The run that each process must state. None: the first process says what the others must.
    pub stated: Option<Box<RunSpec>>,
    /// What it prints goes to stderr, since the stdout of this process is an answer.
    pub to_stderr: bool,
}

/// A set of instructions to which the libraries of a script keep, so that unlike CPUs get the same
/// bits.
#[derive(clap::ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum InstructionSet {
    /// AVX2, of x86-64 CPUs since 2013
    Avx2,
}

/// The threads with which each of so many workers computes here, if so many are asked for.
pub(crate) fn threads_of_worker(asked: Option<u32>, workers: u32) -> u32 {
    let share = || available_parallelism().map_or(1, |cores| cores.get() as u32) / workers.max(1);
    asked.unwrap_or_else(share).max(1)
}

/// The program of this process, if it is not simply the process's executable.
static OWN: OnceLock<Program> = OnceLock::new();

impl Program {
    /// The program that this process runs.
    ///
    /// # Errors
    /// If the system does not tell the path of the process's executable.
    pub fn own() -> io::Result<Self> {
        match OWN.get() {
            Some(own) => Ok(own.clone()),
            None => Ok(Self { executable: std::env::current_exe()?, arguments: Vec::new() }),
        }
    }

    /// This process runs the program of an interpreter: its daemons are started so.
    pub(crate) fn set_own(self) {
        OWN.get_or_init(|| self);
    }
}

impl Script {
    /// The variables that each process has, beside those of its flags. Numbers of threads are read
    /// by libraries when they are loaded.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let threads = self.threads.to_string();
        let counts = ["EVERSTEP_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"];
        let counts = counts.map(|name| (name, threads.clone()));
        let isa = self.isa.map(InstructionSet::environment).into_iter().flatten();
        // What a script prints comes at once, also if it is killed then.
        let others = [("PYTHONHASHSEED", "0"), ("PYTHONUNBUFFERED", "1")].into_iter().chain(isa);
        let others = others.chain(gpus::repeatable());
        counts.into_iter().chain(others.map(|(name, value)| (name, value.into()))).collect()
    }
}

impl InstructionSet {
    /// The variables by which PyTorch, MKL and oneDNN keep to it. One without the others breaks
    /// some of PyTorch's kernels.
    fn environment(self) -> [(&'static str, &'static str); 3] {
        match self {
            Self::Avx2 => [
                ("ATEN_CPU_CAPABILITY", "avx2"),
                ("MKL_CBWR", "AVX2"),
                ("ONEDNN_MAX_CPU_ISA", "AVX2"),
            ],
        }
    }

    /// The value of `--isa`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Avx2 => "avx2",
        }
    }
}

impl ClusterOptions {
    /// The threads with which each worker computes.
    pub fn threads_of_worker(&self) -> u32 {
        threads_of_worker(self.threads, self.workers)
    }

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
            threads: None,
            overlap: true,
            shares_memory: true,
            trace: false,
            keeps_history: false,
            program: None,
            script: None,
        }
    }
}
