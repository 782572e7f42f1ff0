//! The time of a pass on a GPU, forward and backward, by kind of operation.
//!
//! `cargo bench -p everstep-kernels --bench gpu -- [small]` prints milliseconds of a micro-batch of
//! GPT-2's smallest in bf16, with bytes for tokens. The benchmark waits for every launch, so each
//! takes as long as it takes alone, plus some microseconds. The last line is a pass as a run does
//! it. Without a GPU the benchmark says so, and fails.

use std::collections::{BTreeMap, VecDeque};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use everstep_kernels::backend::DeviceError;
use everstep_kernels::backend::cuda::gpu::CudaDriver;
use everstep_kernels::backend::cuda::{
    Address, Argument, Cuda, Delivery, DeliveryId, Driver, DriverError, Epilogue, Kernel, Launch,
    Product, SOURCES,
};
use everstep_kernels::compute::{Batch, Compute, GradientCollector, Pass, PassPlace};
use everstep_kernels::models::{Gpt, GptConfig, OnBackend};
use everstep_kernels::precision::Precision;

const LARGE: GptConfig = GptConfig {
    vocabulary: 256,
    layers: 12,
    heads: 12,
    width: 768,
    context: 1024,
    micro_batch: 8,
    recompute: false,
};
const SMALL: GptConfig =
    GptConfig { layers: 2, heads: 2, width: 64, context: 32, micro_batch: 2, ..LARGE };
const PASS: Pass = Pass { first: true, last: true, scale: 1.0, place: PassPlace::FIRST };
/// Passes before those that count, and the passes that count.
const WARM_UP: u32 = 2;
const COUNTED: u32 = 5;

/// Time by direction and kind.
type Times = Arc<Mutex<BTreeMap<(&'static str, &'static str), Duration>>>;

/// A GPU with a wait after every request.
struct Timed {
    gpu: CudaDriver,
    /// The address to read in order to wait.
    place: Address,
    direction: &'static str,
    times: Times,
    fetched: VecDeque<Vec<f32>>,
    lent: Vec<f32>,
}

impl Timed {
    fn new(mut gpu: CudaDriver, times: Times) -> Result<Self, DriverError> {
        let place = gpu.allocate(4)?;
        let (fetched, lent) = (VecDeque::new(), Vec::new());
        Ok(Self { gpu, place, direction: "forward", times, fetched, lent })
    }

    fn timed<T>(&mut self, kind: &'static str, work: impl FnOnce(&mut CudaDriver) -> T) -> T {
        let began = Instant::now();
        let outcome = work(&mut self.gpu);
        // A failure stays, and shows when the loss is read.
        let _ = self.gpu.read(self.place, &mut [0; 4]);
        let mut times = self.times.lock().expect("no thread panics");
        *times.entry((self.direction, kind)).or_default() += began.elapsed();
        outcome
    }
}

fn kind(file: &str) -> &'static str {
    match file {
        "matmul.cu" => "products",
        "attention.cu" | "expected.cu" | "flash_attention.cu" | "tensor_attention.cu" => {
            "attention"
        }
        "layer_norm.cu" => "norms",
        "cross_entropy.cu" => "loss",
        "embedding.cu" => "embedding",
        "cast.cu" => "casts",
        "partials.cu" => "sums over rows",
        _ => "bias, GELU, residual",
    }
}

impl Driver for Timed {
    fn precision(&self) -> Precision {
        self.gpu.precision()
    }

    fn allocate(&mut self, bytes: usize) -> Result<Address, DriverError> {
        self.gpu.allocate(bytes)
    }

    fn write(&mut self, to: Address, bytes: &[u8]) {
        self.timed("copies", |gpu| gpu.write(to, bytes));
    }

    /// A pass begins with its parameters.
    fn deliver(&mut self, delivery: Delivery<'_>) -> DeliveryId {
        self.direction = "forward";
        self.timed("parameters, cast", |gpu| {
            let delivered = gpu.deliver(delivery);
            gpu.wait_for(delivered);
            delivered
        })
    }

    fn wait_for(&mut self, delivered: DeliveryId) {
        self.gpu.wait_for(delivered);
    }

    fn read(&mut self, from: Address, into: &mut [u8]) -> Result<(), DriverError> {
        self.timed("copies", |gpu| gpu.read(from, into))
    }

    fn fetch(&mut self, from: Address, count: usize) {
        let parts = self.timed("copies", |gpu| {
            gpu.fetch(from, count);
            let mut parts = Vec::new();
            while let Ok(Some(part)) = gpu.fetched(true) {
                parts.push(part.to_vec());
            }
            parts
        });
        self.fetched.extend(parts);
    }

    fn fetched(&mut self, wait: bool) -> Result<Option<&[f32]>, DriverError> {
        if self.fetched.is_empty() {
            return self.gpu.fetched(wait);
        }
        self.lent = self.fetched.pop_front().expect("it is not empty");
        Ok(Some(&self.lent))
    }

    fn zero(&mut self, to: Address, bytes: usize) {
        self.timed("zeros", |gpu| gpu.zero(to, bytes));
    }

    fn launch(&mut self, kernel: &'static Kernel, launch: Launch, arguments: &[Argument]) {
        let kind = kind(kernel.source.name);
        self.timed(kind, |gpu| gpu.launch(kernel, launch, arguments));
        if kind == "loss" {
            self.direction = "backward";
        }
    }

    fn matmul(&mut self, product: &Product) -> bool {
        let kind = match product.epilogue {
            Epilogue::None => "products",
            _ => "products, bias, GELU",
        };
        // Kernels that are launched instead are timed by themselves.
        self.timed(kind, |gpu| gpu.matmul(product))
    }
}

fn main() -> ExitCode {
    let config = if std::env::args().any(|word| word == "small") { SMALL } else { LARGE };
    match print(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("nothing was measured: {why}");
            ExitCode::FAILURE
        }
    }
}

fn print(config: GptConfig) -> Result<(), String> {
    let times = Times::default();
    let timed = Timed::new(open()?, times.clone()).map_err(|error| error.to_string())?;
    passes(config, timed, || times.lock().expect("no thread panics").clear())?;
    for ((direction, kind), time) in times.lock().expect("no thread panics").iter() {
        line(&format!("{direction}, {kind}"), *time / COUNTED);
    }
    let whole = passes(config, open()?, || ())?;
    line("a whole pass", whole / COUNTED);
    Ok(())
}

fn open() -> Result<CudaDriver, String> {
    CudaDriver::open(0, Precision::Bf16, SOURCES).map_err(|error| error.to_string())
}

fn line(what: &str, time: Duration) {
    println!("{what:<32}{:>9.3} ms", time.as_secs_f64() * 1e3);
}

/// The time of the counted passes, each with its parameters. Calls `begin` before them.
fn passes<D: Driver + 'static>(
    config: GptConfig,
    driver: D,
    begin: impl FnOnce(),
) -> Result<Duration, String> {
    let open = |sizes| Cuda::new(driver, sizes).map_err(DeviceError::from);
    let mut gpt = OnBackend::<Gpt>::open(config, open).map_err(|error| error.to_string())?;
    let mut parameters = vec![0.0; gpt.layout().count()];
    gpt.layout().init(1, 0..parameters.len(), &mut parameters);
    let count = (config.micro_batch * config.context) as u32;
    let tokens: Vec<u32> = (0..count).map(|i| i.wrapping_mul(i) % 251).collect();
    let targets = tokens.clone();
    let batch = Batch { rows: config.micro_batch, tokens, targets, features: Vec::new() };
    let mut one = || {
        gpt.load(0, &parameters);
        gpt.gradient(&batch, PASS, &mut GradientCollector::default())
            .map_err(|error| error.to_string())
    };
    for _ in 0..WARM_UP {
        one()?;
    }
    begin();
    let began = Instant::now();
    for _ in 0..COUNTED {
        one()?;
    }
    Ok(began.elapsed())
}
