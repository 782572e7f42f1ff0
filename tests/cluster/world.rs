//! A place for runs: a folder with a text and a configuration, and the programs started in it.
//!
//! As many worlds exist at once as the test harness has threads. The processes of each take about
//! one core. No test waits by the clock alone: it looks for an event until it has happened.

mod coordinator_group;
mod program;
mod run;
mod store;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

pub use coordinator_group::{CoordinatorGroup, Member};
pub use program::{Cluster, Ended, Launched, Node, Program, RUN_ENDS_WITHIN, Signal};
pub use run::{Run, assert_failed};
pub use store::{complete_checkpoints, flip_a_bit, part_of, step_of};

/// The limit of every wait, far above the usual time. A test that hangs shall report it.
const TEST_TIMEOUT: Duration = Duration::from_secs(1_200);

/// The failpoint that makes a worker so slow that a run of some hundred steps lasts until it is
/// gone.
pub const SLOW: &str = "load=sleep(100)";

/// The same for each worker of a launcher: it waits in each step, so that a run of some hundred
/// steps lasts, and other tests have the cores meanwhile.
pub const PACED: &str = "worker:load=sleep(100)";

/// The variable with the path of a file which ends the pauses at failpoints.
pub const UNTIL: &str = "EVERSTEP_FAILPOINTS_UNTIL";

/// That file, for the run in this directory.
fn full_speed(dir: &Path) -> PathBuf {
    dir.with_extension("full-speed")
}

/// A folder with a text and a configuration.
pub struct World {
    folder: TempDir,
    settings: BTreeMap<&'static str, toml::Value>,
    runs: Cell<u32>,
    is_paced: bool,
}

impl World {
    /// A small GPT, twelve steps long: it trains in less than a second.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (settings, runs) = (BTreeMap::new(), Cell::new(0));
        Self { folder, settings, runs, is_paced: false }
            .with("run.steps", 12)
            .with("model.layers", 2)
            .with("model.heads", 2)
            .with("model.width", 16)
            .with("model.context", 16)
            .with("batch.micro_batch", 2)
            .with_text(32 << 10)
    }

    /// The same with so many steps, each of which takes 100 ms or more: something can happen
    /// meanwhile. When the test waits for the end, the rest of the run goes at full speed.
    pub fn lasting(steps: i64) -> Self {
        Self { is_paced: true, ..Self::new() }.with("run.steps", steps)
    }

    /// The same, which lasts longer than any test.
    pub fn endless() -> Self {
        Self::lasting(1_000_000)
    }

    /// Sets a key of the configuration.
    pub fn with(mut self, key: &'static str, value: impl Into<toml::Value>) -> Self {
        self.settings.insert(key, value.into());
        self
    }

    /// Trains on `text.txt` with at least `bytes` bytes.
    pub fn with_text(self, bytes: usize) -> Self {
        let path = self.write("text.txt", &text(bytes));
        self.with("data.path", path.to_str().expect("UTF-8"))
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file in the folder.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("the folder can be written");
        path
    }

    /// Starts the program in the folder.
    pub fn start(&self, arguments: &[&str]) -> Program {
        Program::start(self.command(arguments))
    }

    /// The command that starts the program in the folder.
    pub fn command(&self, arguments: &[&str]) -> Command {
        command(self.folder.path(), arguments)
    }

    /// A worker that a user starts in another shell.
    pub fn join(&self, run: &Launched) -> Program {
        self.join_with(run, &[])
    }

    /// The same, with these flags.
    pub fn join_with(&self, run: &Launched, flags: &[&str]) -> Program {
        Program::start(self.joining(run, flags))
    }

    /// The same, but so slow that the run lasts until it is gone.
    pub fn join_slowly(&self, run: &Launched) -> Program {
        let mut command = self.joining(run, &[]);
        command.env("FAILPOINTS", SLOW);
        Program::start(command)
    }

    /// The command that starts such a worker.
    pub fn joining(&self, run: &Launched, flags: &[&str]) -> Command {
        let address = run.cluster().expect("a cluster").addresses();
        let token = format!("@{}", show(&run.dir.join("join.token")));
        let ours = ["worker", "--coordinators", &address, "--join", &token];
        let mut command = self.pace(self.command(&[&ours[..], flags].concat()));
        command.env(UNTIL, full_speed(&run.dir));
        command
    }

    /// The same command, for workers that are as slow as this world says.
    pub fn pace(&self, mut command: Command) -> Command {
        if self.is_paced {
            command.env("FAILPOINTS", PACED);
        }
        command
    }

    /// Starts `everstep train` with the configuration, in a new directory.
    pub fn launch(&self, arguments: &[&str]) -> Launched {
        self.launch_as(arguments, |command| self.pace(command))
    }

    /// The same with another command.
    fn launch_as(&self, arguments: &[&str], change: impl FnOnce(Command) -> Command) -> Launched {
        self.runs.set(self.runs.get() + 1);
        let dir = self.path(&format!("run-{}", self.runs.get()));
        let report = dir.with_extension("json");
        let config = self.config();
        let ours = ["train", "--config", show(&config), "--dir", show(&dir), "--report"];
        let mut command = self.command(&[&ours[..], &[show(&report)], arguments].concat());
        command.env(UNTIL, full_speed(&dir));
        Launched { program: Program::start(change(command)), dir, report }
    }

    /// Trains to the end.
    pub fn train(&self, arguments: &[&str]) -> Run {
        self.launch(arguments).complete()
    }

    /// The state hash of this world's run without any fault.
    pub fn undisturbed(&self) -> String {
        static KNOWN: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
        // Keys that do not change the bits, and the place of the text.
        const INDIFFERENT: [&str; 4] =
            ["data.path", "redundancy.copies", "run.min_workers", "run.start_workers"];
        let settings = self.settings.iter().filter(|(key, _)| !INDIFFERENT.contains(key));
        let settings = format!("{:?}", settings.collect::<Vec<_>>());
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(&settings).cloned();
        known.unwrap_or_else(|| {
            let start =
                self.settings.get("run.start_workers").map_or("2".into(), |n| n.to_string());
            let run = self.launch_as(&["--workers", &start], |at_full_speed| at_full_speed);
            let hash = run.complete().hash().to_string();
            let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert(settings, hash.clone());
            hash
        })
    }

    /// Writes the configuration, if it has changed: a process that has just started may be reading
    /// it. Returns its path.
    pub fn config(&self) -> PathBuf {
        let line = |(key, value): (&&str, &toml::Value)| format!("{key} = {value}\n");
        let config: String = self.settings.iter().map(line).collect();
        let path = self.path("run.toml");
        if fs::read_to_string(&path).is_ok_and(|known| known == config) {
            return path;
        }
        self.write("run.toml", &config)
    }
}

/// The command that starts the program in a folder. Its environment has nothing of the caller's
/// configuration.
fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everstep"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EVERSTEP_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command
}

/// A path as an argument.
pub fn show(path: &Path) -> &str {
    path.to_str().expect("a path of UTF-8")
}

/// Calls `look` until it returns a value.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < TEST_TIMEOUT, "waited {TEST_TIMEOUT:?} in vain: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The longest time between two lines of metrics.
pub fn longest_gap(lines: &[Value]) -> Duration {
    let unix_ms = |line: &Value| line["unix_ms"].as_u64().expect("a time");
    let gaps = lines.windows(2).map(|pair| unix_ms(&pair[1]).saturating_sub(unix_ms(&pair[0])));
    Duration::from_millis(gaps.max().unwrap_or_default())
}

/// Words in a fixed, irregular order.
fn text(bytes: usize) -> String {
    const WORDS: [&str; 8] = ["a ", "worker ", "owns ", "the ", "shard ", "and ", "sums\n", "it "];
    let mut draw = chance(1);
    let mut text = String::new();
    while text.len() < bytes {
        text += WORDS[draw(WORDS.len())];
    }
    text
}

/// Draws numbers below a bound. The same seed draws the same ones.
pub fn chance(seed: u32) -> impl FnMut(usize) -> usize {
    let mut drawn = seed;
    move |bound| {
        drawn = drawn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (drawn as usize * bound) >> 32
    }
}
