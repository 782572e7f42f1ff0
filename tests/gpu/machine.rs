//! A machine with an emulated GPU, and a folder with a small run.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use everstep_kernels::backend::cuda::gpu::Cache;
use everstep_kernels::backend::cuda::gpu::nvrtc::{self, Architecture};
use everstep_kernels::backend::cuda::{KERNELS, SOURCES};
use everstep_kernels::precision::Precision;
use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Program, TEST_TIMEOUT};

/// The architecture that the emulated GPU reports.
const HOPPER: Architecture = Architecture { major: 9, minor: 0 };

/// The folder with the run, and the libraries of the machine.
pub struct Machine {
    folder: TempDir,
    /// The folder of the driver, if there is one.
    library: Option<&'static Path>,
    cache: PathBuf,
    /// The settings that `driver.cpp` reads.
    settings: String,
    /// The folder of NVML, if there is one, and the settings that `nvml.cpp` reads.
    nvml: Option<&'static Path>,
    nvml_settings: &'static str,
    /// The folder of cuBLASLt, if there is one, and the settings that `cublaslt.cpp` reads.
    cublaslt: Option<&'static Path>,
    cublaslt_settings: &'static str,
    /// The folders of other libraries of CUDA, in the order of search.
    path: Vec<PathBuf>,
}

/// A run that a hand-started worker joined.
pub struct Joined {
    /// Its report.
    pub report: Value,
    /// The end of that worker.
    pub ended: Output,
}

impl Machine {
    /// A small GPT in this precision. `None`, with a loud message, if a compiler is missing.
    pub fn new(precision: &str) -> Option<Self> {
        let element = match precision {
            "bf16" => Precision::Bf16,
            "fp16" => Precision::Fp16,
            _ => Precision::F32,
        };
        let library = library(element)?;
        let folder = tempfile::tempdir().unwrap();
        let text = "the worker owns the shard, and the shard has two owners\n".repeat(100);
        fs::write(folder.path().join("text.txt"), text).unwrap();
        let config = format!(
            "[run]\nsteps = 8\n[model]\nlayers = 2\nheads = 2\nwidth = 32\ncontext = 16\n\
             precision = \"{precision}\"\n[data]\npath = \"text.txt\"\n[batch]\ndata_shards = 4\n\
             micro_batch = 2\n[optimizer]\nlearning_rate = 1e-2\nwarmup_steps = 2\n"
        );
        fs::write(folder.path().join("run.toml"), config).unwrap();
        // Kernels of one source and precision are the same in every test.
        let cache = place("cache");
        let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        Some(Self {
            folder,
            library: Some(library),
            cache,
            settings: String::new(),
            nvml: Some(nvml()),
            nvml_settings: "",
            cublaslt: None,
            cublaslt_settings: "",
            path: std::env::split_paths(&path).collect(),
        })
    }

    /// The same with other settings of the driver.
    pub fn having(&self, settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["text.txt", "run.toml"] {
            fs::copy(self.folder.path().join(name), folder.path().join(name)).unwrap();
        }
        let (cache, path) = (self.cache.clone(), self.path.clone());
        Self { folder, cache, settings: settings.into(), path, ..*self }
    }

    /// The same with another run.
    pub fn training(&self, change: impl FnOnce(String) -> String) -> Self {
        let machine = self.having(&self.settings);
        let config = machine.folder.path().join("run.toml");
        fs::write(&config, change(fs::read_to_string(&config).unwrap())).unwrap();
        machine
    }

    /// The same without the driver.
    pub fn without_driver(self) -> Self {
        Self { library: None, ..self }
    }

    /// The same without other libraries of CUDA, as far as they are not the system's own.
    pub fn without_libraries(&self) -> Self {
        Self { path: Vec::new(), ..self.having("") }
    }

    /// The same with our own library in place of the one of this name.
    pub fn with_library(&self, name: &str, source: &str) -> Self {
        let mut machine = self.having("");
        let folder = machine.folder.path();
        fs::write(folder.join("library.cpp"), source).unwrap();
        let compiler = std::env::var("CXX").unwrap_or("c++".into());
        let shared = ["-shared", "-fPIC", "library.cpp", "-o", name];
        assert!(
            Command::new(compiler).args(shared).current_dir(folder).status().unwrap().success()
        );
        machine.path.insert(0, folder.into());
        machine
    }

    /// The same without NVML.
    pub fn without_nvml(self) -> Self {
        Self { nvml: None, ..self }
    }

    /// The same with other settings of NVML.
    pub fn with_nvml(self, nvml_settings: &'static str) -> Self {
        Self { nvml_settings, ..self }
    }

    /// The same with cuBLASLt, and these settings of it.
    pub fn with_cublaslt(&self, cublaslt_settings: &'static str) -> Self {
        Self { cublaslt: Some(cublaslt()), cublaslt_settings, ..self.having(&self.settings) }
    }

    /// The same, with an empty cache of kernels.
    pub fn with_cache_of_its_own(mut self) -> Self {
        self.cache = self.folder.path().join("cache");
        self
    }

    /// The folder of compiled kernels.
    pub fn cache(&self) -> PathBuf {
        self.cache.join("everstep/kernels")
    }

    /// Runs the program to its end.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(&self.settings, arguments).output().unwrap()
    }

    /// Trains the run.
    pub fn launch(&self, flags: &[&str]) -> Output {
        let _ = fs::remove_dir_all(self.folder.path().join("run"));
        let train = ["train", "--config", "run.toml", "--dir", "run", "--report", "report.json"];
        self.run(&[&train, flags].concat())
    }

    /// Trains the run, and reads its report.
    pub fn train(&self, flags: &[&str]) -> Value {
        let output = self.launch(flags);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{flags:?}: {said}{}", self.log());
        self.report()
    }

    /// The loss scale of every step of the last run.
    pub fn scales(&self) -> Vec<u64> {
        let lines = fs::read_to_string(self.folder.path().join("run/metrics.jsonl")).unwrap();
        let line = |line| serde_json::from_str::<Value>(line).unwrap();
        lines.lines().map(line).map(|line| line["loss_scale"].as_u64().unwrap()).collect()
    }

    /// The logs of the last run's workers.
    pub fn log(&self) -> String {
        let logs = fs::read_dir(self.folder.path().join("run/logs")).into_iter().flatten();
        let logs = logs.filter_map(|log| fs::read_to_string(log.ok()?.path()).ok());
        logs.collect()
    }

    /// Begins the run with more steps than it will do, and asks until there is an answer. Then
    /// cancels the run.
    pub fn under_way<A>(&self, flags: &[&str], ask: impl Fn(&Self) -> Option<A>) -> A {
        let config = self.folder.path().join("run.toml");
        let text = fs::read_to_string(&config).unwrap();
        fs::write(&config, text.replace("steps = 8", "steps = 1000000")).unwrap();
        let _ = fs::remove_dir_all(self.folder.path().join("run"));
        let train = ["train", "--config", "run.toml", "--dir", "run"];
        let mut launcher = self.spawn(&self.settings, &[&train[..], flags].concat());
        let began = Instant::now();
        let answer = loop {
            let ended = launcher.ended();
            let said = || launcher.said() + &self.log();
            assert!(ended.is_none(), "the launcher has ended: {ended:?}{}", said());
            if let Some(answer) = ask(self) {
                break answer;
            }
            assert!(began.elapsed() < TEST_TIMEOUT, "no answer: {}", said());
            thread::sleep(Duration::from_millis(100));
        };
        let cancelled = self.run(&["run", "cancel", "--dir", "run"]);
        assert!(cancelled.status.success(), "{}", String::from_utf8_lossy(&cancelled.stderr));
        launcher.end();
        answer
    }

    /// A page of the coordinator's HTTP API. None while there is no coordinator.
    pub fn page(&self, path: &str) -> Option<String> {
        let view = fs::read(self.folder.path().join("run/cluster.json")).ok()?;
        let view: Value = serde_json::from_slice(&view).ok()?;
        let address = view["coordinators"][0]["api"].as_str()?.strip_prefix("http://")?.to_string();
        let mut stream = TcpStream::connect(&address).ok()?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    }

    /// Trains the run with a worker on the GPU, and another one that joins it with its own settings
    /// and another device.
    pub fn joined(&self, settings: &str, device: &str) -> Joined {
        let config = self.folder.path().join("run.toml");
        let text = fs::read_to_string(&config).unwrap();
        fs::write(&config, text.replace("[run]", "[run]\nstart_workers = 2")).unwrap();
        let _ = fs::remove_dir_all(self.folder.path().join("run"));
        let train = ["train", "--config", "run.toml", "--dir", "run", "--report", "report.json"];
        let one = ["--workers", "1", "--device", "cuda"];
        let mut launcher = self.spawn("", &[&train[..], &one].concat());
        let address = self.coordinator(&mut launcher);
        let worker = ["worker", "--join", "@run/join.token", "--coordinators", &address];
        let joined = self.spawn(settings, &[&worker[..], &["--device", device]].concat());
        let (output, ended) = (launcher.end(), joined.end());
        let said = [&output, &ended].map(|it| String::from_utf8_lossy(&it.stderr));
        assert!(output.status.success(), "{said:?}");
        Joined { report: self.report(), ended }
    }

    /// The coordinator's address, as soon as there is one.
    fn coordinator(&self, launcher: &mut Program) -> String {
        let began = Instant::now();
        loop {
            let view = fs::read(self.folder.path().join("run/cluster.json")).unwrap_or_default();
            let view: Value = serde_json::from_slice(&view).unwrap_or_default();
            if let Some(address) = view["coordinators"][0]["address"].as_str() {
                return address.into();
            }
            assert!(launcher.ended().is_none(), "the launcher has ended: {}", launcher.said());
            assert!(began.elapsed() < TEST_TIMEOUT, "no coordinator");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn report(&self) -> Value {
        serde_json::from_slice(&fs::read(self.folder.path().join("report.json")).unwrap()).unwrap()
    }

    fn spawn(&self, settings: &str, arguments: &[&str]) -> Program {
        Program::start(self.command(settings, arguments))
    }

    fn command(&self, settings: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_everstep"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("EVERSTEP_") {
                command.env_remove(name);
            }
        }
        let own = [self.library, self.nvml, self.cublaslt];
        let own = own.into_iter().flatten().map(PathBuf::from);
        let path = own.chain(self.path.iter().cloned());
        let path = std::env::join_paths(path).unwrap();
        command.env("LD_LIBRARY_PATH", path).env("XDG_CACHE_HOME", &self.cache);
        command.env("EMULATED_CUDA", settings).env("EMULATED_NVML", self.nvml_settings);
        command.env("EMULATED_CUBLASLT", self.cublaslt_settings);
        command.args(arguments).current_dir(&self.folder).stdin(Stdio::null());
        command
    }
}

/// A folder that stays from one run of the tests to the next.
fn place(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated-gpu").join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The folder of the driver with kernels that compute in this precision.
fn library(precision: Precision) -> Option<&'static Path> {
    static FOLDERS: [OnceLock<Option<PathBuf>>; 3] = [const { OnceLock::new() }; 3];
    let folder = FOLDERS[precision as usize].get_or_init(|| match nvrtc::version() {
        Ok(_) => build(precision),
        Err(error) => skipped(&error.to_string()),
    });
    folder.as_deref()
}

/// The folder of NVML.
fn nvml() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let sources = [("nvml.cpp", include_str!("nvml.cpp"))];
    FOLDER.get_or_init(|| compiled("nvml", "libnvidia-ml.so.1", &sources))
}

/// The folder of cuBLASLt.
fn cublaslt() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let sources = [
        ("cublaslt.cpp", include_str!("cublaslt.cpp")),
        ("emulation.h", include_str!("../../kernels/tests/cuda/emulation.h")),
        ("real.cuh", include_str!("../../kernels/src/backend/cuda/kernels/real.cuh")),
    ];
    FOLDER.get_or_init(|| compiled("cublaslt", "libcublasLt.so", &sources))
}

/// The folder of a library beside the driver. The first source is the one to compile.
fn compiled(place_of: &str, name: &str, sources: &[(&str, &str)]) -> PathBuf {
    let folder = tempfile::tempdir().unwrap();
    for (source, text) in sources {
        fs::write(folder.path().join(source), text).unwrap();
    }
    let compiler = std::env::var("CXX").unwrap_or("c++".into());
    let output = Command::new(compiler)
        .args(["-std=c++17", "-O2", "-shared", "-fPIC", Precision::F32.definition()])
        .args(["-Wno-unknown-pragmas", "-o", name, sources[0].0, "-ldl"])
        .current_dir(&folder)
        .output()
        .expect("the compiler has just compiled the driver");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} does not compile:\n{errors}");
    install(&folder.path().join(name), place(place_of))
}

/// Replaces the library in one step: tests of another process may be using the old one.
fn install(library: &Path, folder: PathBuf) -> PathBuf {
    let next = folder.join(format!("next-{}", std::process::id()));
    fs::copy(library, &next).unwrap();
    fs::rename(next, folder.join(library.file_name().unwrap())).unwrap();
    folder
}

fn build(precision: Precision) -> Option<PathBuf> {
    let sources = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(sources.path().join(name), text).unwrap();
    write("emulation.h", include_str!("../../kernels/tests/cuda/emulation.h"));
    write("tensor.h", include_str!("../../kernels/tests/cuda/tensor.h"));
    write("kernel.h", include_str!("kernel.h"));
    write("driver.cpp", include_str!("driver.cpp"));
    write("all.cpp", &program(precision));
    let compiler = std::env::var("CXX").unwrap_or("c++".into());
    let output = Command::new(&compiler)
        .args(["-std=c++17", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing"])
        .args(cfg!(target_arch = "x86_64").then_some("-march=native"))
        .args(["-shared", "-fPIC", precision.definition(), "-Wno-unknown-pragmas"])
        .args(["-o", "libcuda.so", "all.cpp"])
        .current_dir(&sources)
        .output();
    let Ok(output) = output else {
        return skipped(&format!("no C++ compiler `{compiler}`"));
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the driver does not compile:\n{errors}");
    let folder = install(&sources.path().join("libcuda.so"), place(&precision.to_string()));
    warm_up(precision);
    Some(folder)
}

/// Compiles the kernels once. Else the first workers would all compile them at the same time.
fn warm_up(precision: Precision) {
    let cache = Cache::at(place("cache").join("everstep/kernels"));
    for source in SOURCES.iter().filter(|source| source.precisions.contains(&precision)) {
        nvrtc::compile_once(source, precision, HOPPER, Some(&cache)).unwrap();
    }
}

/// Reports that no test can run here.
fn skipped(why: &str) -> Option<PathBuf> {
    say_skipped(&format!("nothing ran on an emulated GPU: {why}"));
    None
}

/// Prints past the capture of the tests' output, which the harness hides for a test that passes.
pub fn say_skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED, {what}");
}

fn include(header: &str) -> String {
    format!("#include \"{header}\"\n")
}

/// The emulation, each file of kernels in a namespace of its own, and the driver.
fn program(precision: Precision) -> String {
    let mut program = ["emulation.h", "tensor.h", "kernel.h"].map(include).concat();
    let mut table = String::new();
    for source in SOURCES.iter().filter(|source| source.precisions.contains(&precision)) {
        let space = source.name.replace('.', "_");
        let _ = writeln!(program, "namespace {space} {{\n{}\n}}", source.compiled());
        for kernel in KERNELS.iter().filter(|kernel| kernel.source == *source) {
            let _ = writeln!(table, "    {{\"{0}\", bind<{space}::{0}>}},", kernel.name);
        }
    }
    let _ = writeln!(program, "static const Kernel KERNELS[] = {{\n{table}}};");
    program + "#include \"driver.cpp\"\n"
}
