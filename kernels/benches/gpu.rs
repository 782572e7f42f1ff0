//! The time of a pass on a GPU, forward and backward, by kind of operation.
//!
//! `cargo bench -p everstep-kernels --bench gpu -- [small]` prints milliseconds of a micro-batch of
//! GPT-2's smallest in bf16, with bytes for tokens. The GPU takes the times itself, by events
//! before and after each launch, and nothing waits meanwhile. Parameters and gradients are copied
//! beside the computation, on streams that these events do not see. The last line is a pass as a
//! run does it, copies and all. Without a GPU the benchmark says so, and fails.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};
use everstep_kernels::backend::DeviceError;
use everstep_kernels::backend::cuda::gpu::CudaDriver;
use everstep_kernels::backend::cuda::{
    Address, Argument, Cuda, Delivery, DeliveryId, Driver, DriverError, Epilogue, Kernel, Launch,
    Product, SOURCES,
};
use everstep_kernels::compute::{Batch, Compute, GradientCollector, Pass, PassPlace};
use everstep_kernels::models::{Gpt, GptConfig, OnBackend};
use everstep_kernels::precision::Precision;
use everstep_kernels::reduce;

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

/// The events around each operation, by direction and kind.
type Events = Arc<Mutex<Vec<((&'static str, &'static str), [CudaEvent; 2])>>>;

/// A GPU with an event before and after each operation.
struct Timed {
    gpu: CudaDriver,
    direction: &'static str,
    events: Events,
}

impl Timed {
    fn timed<T>(&mut self, kind: &'static str, work: impl FnOnce(&mut CudaDriver) -> T) -> T {
        let stream = self.gpu.stream().clone();
        let before = recorded(&stream);
        let outcome = work(&mut self.gpu);
        let pair = [before, recorded(&stream)];
        self.events.lock().expect("no thread panics").push(((self.direction, kind), pair));
        outcome
    }
}

/// An event that has a time, enqueued now.
fn recorded(stream: &CudaStream) -> CudaEvent {
    let event = stream.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
    let event = event.expect("the GPU has not failed");
    event.record(stream).expect("the GPU has not failed");
    event
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
        self.gpu.deliver(delivery)
    }

    fn wait_for(&mut self, delivered: DeliveryId) {
        self.timed("parameters waited for", |gpu| gpu.wait_for(delivered));
    }

    fn read(&mut self, from: Address, into: &mut [u8]) -> Result<(), DriverError> {
        self.gpu.read(from, into)
    }

    fn fetch(&mut self, from: Address, count: usize) {
        self.gpu.fetch(from, count);
    }

    fn fetched(&mut self, wait: bool) -> Result<Option<&[f32]>, DriverError> {
        self.gpu.fetched(wait)
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
        // Kernels that are launched instead have events of their own.
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
    let events = Events::default();
    let timed = Timed { gpu: open()?, direction: "forward", events: events.clone() };
    passes(
        config,
        timed,
        || events.lock().expect("no thread panics").clear(),
        || {
            let mut times = BTreeMap::<_, f32>::new();
            for (kind, [before, after]) in events.lock().expect("no thread panics").drain(..) {
                let took_ms = before.elapsed_ms(&after).map_err(|error| error.to_string())?;
                *times.entry(kind).or_default() += took_ms / COUNTED as f32;
            }
            let all = times.values().sum::<f32>();
            times
                .iter()
                .for_each(|((direction, kind), ms)| line(&format!("{direction}, {kind}"), *ms));
            line("all of these", all);
            Ok(())
        },
    )?;
    let whole = passes(config, open()?, || (), || Ok(()))?;
    line("a whole pass", 1e3 * (whole / COUNTED).as_secs_f32());
    Ok(())
}

fn open() -> Result<CudaDriver, String> {
    CudaDriver::open(0, Precision::Bf16, SOURCES).map_err(|error| error.to_string())
}

fn line(what: &str, ms: f32) {
    println!("{what:<32}{ms:>9.3} ms");
}

/// The time of the counted passes, each with its parameters, which come shard by shard as in a run.
/// Calls `begin` before them and `end` after them, while the device is there.
fn passes<D: Driver + 'static>(
    config: GptConfig,
    driver: D,
    begin: impl FnOnce(),
    end: impl FnOnce() -> Result<(), String>,
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
        for shard in 0..reduce::shard_count(parameters.len()) {
            let range = reduce::shard_range(parameters.len(), shard);
            gpt.load(range.start, &parameters[range]);
        }
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
    let took = began.elapsed();
    end()?;
    Ok(took)
}
