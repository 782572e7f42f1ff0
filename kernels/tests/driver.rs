//! The driver of a real GPU, above a CUDA and a cuBLASLt of our own. Their GPU is the CPU
//! (`tests/gpu/driver.cpp` and `cublaslt.cpp` of the workspace). It does enqueued work at the last
//! moment, so a value that is read or overwritten too early is wrong.
//!
//! Some files of kernels run here, in every precision. The tests need a C++ compiler and NVRTC, and
//! say loudly when one is missing.

#![cfg(all(feature = "cuda", target_os = "linux"))]

#[path = "operations"]
mod operations {
    pub mod check;
    #[expect(dead_code, unused_macros, reason = "most checks need kernels that are not run here")]
    pub mod checks;
    pub mod precisions;
}

use std::fs;
use std::io::{self, Write as _};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use everstep_kernels::backend::cuda::gpu::{CudaDriver, nvrtc};
use everstep_kernels::backend::cuda::{
    Address, Cuda, Delivery, Driver, KERNELS, Kernel, KernelSource, Launch, SOURCES,
};
use everstep_kernels::backend::{Arena, Backend, Sizes, View};
use everstep_kernels::precision::Precision;
use libloading::Library;
use operations::check::Subject;
use operations::{checks, precisions};

/// More than the whole ring holds, one number, a slot to the byte, a little more, and a little.
const COUNTS: [usize; 5] = [9 << 20, 1, 1 << 20, (1 << 20) + 3, 77];

/// The kernels that run. There is none for products: the library does them, or they fail.
const FILES: [&str; 4] = ["add.cu", "bias.cu", "cast.cu", "gelu.cu"];

const PRECISIONS: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::Fp16];

/// A GPU without kernels.
fn gpu() -> Option<(CudaDriver, MutexGuard<'static, ()>)> {
    let alone = alone(Precision::F32)?;
    Some((open(Precision::F32, &[]), alone))
}

fn open(precision: Precision, sources: &[&'static KernelSource]) -> CudaDriver {
    CudaDriver::open(0, precision, sources).expect("an emulated GPU")
}

/// The CUDA of our own, with kernels in this precision. Only one test at a time may use it, since
/// it knows no threads.
fn alone(precision: Precision) -> Option<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let [driver, _] = loaded()?;
    // SAFETY: `program` defines a function of this type.
    let choose = unsafe { driver.get::<unsafe extern "C" fn(i32)>(b"choose") };
    // SAFETY: no other test calls that CUDA meanwhile.
    unsafe { choose.expect("it was compiled")(precision as i32) };
    Some(alone)
}

fn loaded() -> Option<&'static [Library; 2]> {
    static LIBRARIES: OnceLock<Option<[Library; 2]>> = OnceLock::new();
    LIBRARIES.get_or_init(libraries).as_ref()
}

/// The calls so far of that CUDA that enqueue copies to the GPU, or concern events.
fn calls() -> i64 {
    let [driver, _] = loaded().expect("a test uses it");
    // SAFETY: it defines a function of this type, which reads a number.
    unsafe { driver.get::<unsafe extern "C" fn() -> i64>(b"calls_so_far").expect("compiled")() }
}

/// Compiles and loads that CUDA and that cuBLASLt. The code under test then finds them by their
/// names.
fn libraries() -> Option<[Library; 2]> {
    if let Err(error) = nvrtc::version() {
        return skipped(&error.to_string());
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect(name);
    write("emulation.h", include_str!("cuda/emulation.h"));
    write("real.cuh", include_str!("../src/backend/cuda/kernels/real.cuh"));
    write("kernel.h", include_str!("../../tests/gpu/kernel.h"));
    write("driver.cpp", include_str!("../../tests/gpu/driver.cpp"));
    write("cublaslt.cpp", include_str!("../../tests/gpu/cublaslt.cpp"));
    write("all.cpp", &program());
    let driver = library(folder.path(), "libcuda.so", "all.cpp")?;
    Some([driver, library(folder.path(), "libcublasLt.so", "cublaslt.cpp")?])
}

fn library(folder: &Path, name: &str, source: &str) -> Option<Library> {
    let compiler = std::env::var("CXX").unwrap_or("c++".into());
    let output = Command::new(&compiler)
        .args(["-std=c++17", "-O2", "-shared", "-fPIC", &format!("-Wl,-soname,{name}")])
        .args([Precision::F32.definition(), "-Wno-unknown-pragmas", "-o", name, source, "-ldl"])
        .current_dir(folder)
        .output();
    let Ok(output) = output else { return skipped(&format!("no C++ compiler `{compiler}`")) };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{source} does not compile:\n{errors}");
    // SAFETY: it was just compiled, and its initialisers only make empty collections.
    Some(unsafe { Library::new(folder.join(name)) }.expect("just compiled"))
}

fn files(names: &[&str]) -> Vec<&'static KernelSource> {
    SOURCES.iter().copied().filter(|source| names.contains(&source.name)).collect()
}

/// The kernels in every precision, with a way to choose one, and the driver.
fn program() -> String {
    let (mut spaces, mut tables) = (String::new(), String::new());
    for precision in PRECISIONS {
        spaces += &format!("#undef REAL\n#define REAL {}\n", precision as i32);
        tables += "{";
        for source in files(&FILES) {
            let space = format!("{precision}_{}", source.name.replace('.', "_"));
            // Functions of C are the same in every namespace.
            let text = source.compiled().replace("extern \"C\"", "");
            spaces += &format!("namespace {space} {{\n{text}\n}}\n");
            for Kernel { name, .. } in KERNELS.iter().filter(|kernel| kernel.source == source) {
                tables += &format!("{{\"{name}\", bind<{space}::{name}>}},");
            }
        }
        tables += "},";
    }
    let count = KERNELS.iter().filter(|kernel| FILES.contains(&kernel.source.name)).count();
    let kernels = format!(
        "static const Kernel TABLES[][{count}] = {{{tables}}};\nstatic int chosen = 0;\n\
         extern \"C\" void choose(int precision) {{ chosen = precision; }}\n\
         #define KERNELS TABLES[chosen]\n"
    );
    let include = |name: &str| format!("#include \"{name}\"\n");
    let headers = ["emulation.h", "kernel.h"].map(include).concat();
    headers + &spaces + &kernels + &include("driver.cpp")
}

fn skipped<T>(why: &str) -> Option<T> {
    // Past the capture of the tests' output, which hides the output of a passing test.
    let _ = writeln!(io::stderr(), "SKIPPED, nothing ran above an emulated CUDA: {why}");
    None
}

fn values(round: usize) -> Vec<f32> {
    (0..COUNTS.iter().sum()).map(|index| ((index * 7 + round) % 8191) as f32).collect()
}

#[test]
fn what_is_fetched_is_as_it_was_computed_however_long_it_is() {
    let Some((mut gpu, _alone)) = gpu() else { return };
    let base = gpu.allocate(4 * values(0).len()).expect("memory");
    for (round, wait) in [true, false, true].into_iter().enumerate() {
        let (values, mut start) = (values(round), 0);
        let (mut found, mut ends, mut none) = (Vec::new(), Vec::new(), 0);
        for count in COUNTS {
            let from = base.plus(4 * start);
            gpu.write(from, bytemuck::cast_slice(&values[start..start + count]));
            gpu.fetch(from, count);
            start += count;
        }
        while found.len() < values.len() {
            match gpu.fetched(wait).expect("nothing fails") {
                Some(part) => found.extend_from_slice(part),
                None => none += 1,
            }
            ends.push(found.len());
        }
        assert!(found == values, "other values in round {round}");
        assert_eq!(none > 0, !wait, "only those who wait get something every time");
        let mut end = 0;
        assert!(COUNTS.iter().all(|count| {
            end += count;
            ends.contains(&end)
        }));
        for wait in [false, true] {
            assert_eq!(gpu.fetched(wait), Ok(None), "nothing is left to come");
        }
    }
}

#[test]
fn what_is_read_is_whole_however_long_it_is() {
    let Some((mut gpu, _alone)) = gpu() else { return };
    let values = values(0);
    let base = gpu.allocate(4 * values.len()).expect("memory");
    gpu.write(base, bytemuck::cast_slice(&values));
    for count in [values.len(), 1, 0] {
        let mut found = vec![f32::NAN; count];
        gpu.read(base, bytemuck::cast_slice_mut(&mut found)).expect("nothing fails");
        assert!(found == values[..count]);
    }
}

#[test]
fn to_read_before_all_was_fetched_is_a_mistake() {
    let Some((mut gpu, _alone)) = gpu() else { return };
    let base = gpu.allocate(4).expect("memory");
    gpu.fetch(base, 1);
    let read = panic::catch_unwind(AssertUnwindSafe(|| gpu.read(base, &mut [0; 4])));
    let words = read.expect_err("a panic").downcast::<&str>().expect("words");
    assert_eq!(*words, "what was asked for is fetched before anything is read");
}

#[test]
fn what_is_computed_meanwhile_does_not_change_what_is_fetched() {
    let Some((mut gpu, _alone)) = gpu() else { return };
    let [first, second] = [(); 2].map(|()| gpu.allocate(4 << 20).expect("memory"));
    let ones = vec![1.0f32; 1 << 20];
    gpu.write(first, bytemuck::cast_slice(&ones));
    gpu.fetch(first, 1 << 20);
    gpu.write(second, bytemuck::cast_slice(&ones));
    gpu.zero(second, 2 << 20);
    assert_eq!(gpu.fetched(true), Ok(Some(&ones[..])));
    gpu.zero(first, 4 << 20);
    gpu.fetch(second, 1 << 20);
    gpu.fetch(first, 1);
    let halves = [vec![0.0; 1 << 19], vec![1.0; 1 << 19]].concat();
    assert_eq!(gpu.fetched(true), Ok(Some(&halves[..])));
    assert_eq!(gpu.fetched(true), Ok(Some(&[0.0][..])));
}

#[test]
fn nothing_is_fetched_from_a_gpu_that_has_failed() {
    static NOWHERE: KernelSource = KernelSource { name: "nowhere.cu", text: "", precisions: &[] };
    static NONE: Kernel = Kernel { source: &NOWHERE, name: "none" };
    let Some((mut gpu, _alone)) = gpu() else { return };
    let base = gpu.allocate(4 << 20).expect("memory");
    gpu.fetch(base, 9);
    gpu.fetch(base, 1);
    assert_eq!(gpu.fetched(true), Ok(Some(&[0.0; 9][..])));
    gpu.launch(&NONE, Launch { grid: [1; 3], block: [1; 3] }, &[]);
    gpu.fetch(base, 1);
    for wait in [false, true, true] {
        let error = gpu.fetched(wait).expect_err("it has failed");
        assert!(error.to_string().starts_with("none failed on the GPU"), "{error}");
    }
}

/// The present value in the memory of that GPU, which is the host's.
fn peek(at: Address) -> f32 {
    let place = std::ptr::with_exposed_provenance::<f32>(at.0 as usize);
    // SAFETY: `cuMemAlloc` above allocated it, and no other code writes there meanwhile.
    unsafe { place.read_volatile() }
}

/// More than the ring holds: a delivery of that waits for its own first part.
const MANY: usize = (4 << 20) + 77;

fn delivery(to: Address, values: &[f32]) -> Delivery<'_> {
    Delivery { to, values, cast: None, waits: false }
}

#[test]
fn parameters_arrive_beside_what_is_computed() {
    let Some((mut gpu, _alone)) = gpu() else { return };
    let [parameters, others] = [MANY, 1].map(|count| gpu.allocate(4 * count).expect("memory"));
    gpu.zero(others, 4); // any enqueued work would do
    gpu.deliver(delivery(parameters, &vec![1.0; MANY]));
    assert_eq!(peek(parameters), 1.0, "it waits for what was computed before");
    assert!(peek(others).is_nan(), "the other one was waited for");
}

#[test]
fn what_waits_for_a_delivery_waits_for_no_later_one() {
    let Some((mut gpu, _alone)) = gpu() else { return };
    let [first, second] = [(); 2].map(|()| gpu.allocate(4).expect("memory"));
    for address in [first, second] {
        gpu.fetch(address, 1);
        assert_eq!(gpu.fetched(true), Ok(Some(&[0.0][..])));
    }
    let delivered = gpu.deliver(delivery(first, &[1.0]));
    let later = gpu.deliver(delivery(second, &[2.0]));
    gpu.wait_for(delivered);
    gpu.fetch(first, 1);
    assert_eq!(gpu.fetched(true), Ok(Some(&[1.0][..])));
    assert_eq!(peek(second), 0.0);
    gpu.wait_for(later);
    gpu.fetch(second, 1);
    assert_eq!(gpu.fetched(true), Ok(Some(&[2.0][..])));
}

/// In bf16, the device casts parameters after the copy, by way of memory that deliveries share.
#[test]
fn parameters_are_those_that_were_written_last_before_they_are_used_however_late_they_come() {
    let Some(_alone) = alone(Precision::Bf16) else { return };
    let sizes = Sizes { parameters: MANY, activations: MANY, ..Sizes::default() };
    let mut device = device(Precision::Bf16, sizes);
    let [parameters, sums] =
        [Arena::Parameters, Arena::Activations].map(|arena| View::row(arena, 0..MANY));
    let values = |round: usize| -> Vec<f32> {
        (0..MANY).map(|index| ((index / 3 + round) % 64) as f32).collect()
    };
    device.zero(sums);
    for round in 0..2 {
        device.write(parameters, &values(round));
        device.add(parameters, sums);
    }
    let expected = |index| (0..2).map(|round| ((index / 3 + round) % 64) as f32).sum();
    let expected: Vec<f32> = (0..MANY).map(expected).collect();
    assert!(device.read_back(sums).expect("nothing fails") == expected);
    let last = View::row(Arena::Parameters, MANY - 1..MANY);
    device.write(last, &[77.0]);
    assert_eq!(*device.read_back(last).expect("nothing fails"), [77.0]);
}

/// A call takes some microseconds, and a large model has hundreds of shards.
#[test]
fn a_parameter_shard_comes_by_four_calls_beside_its_kernel() {
    const SHARDS: usize = 40;
    const LENGTH: usize = 1_000;
    for precision in PRECISIONS {
        let Some(_alone) = alone(precision) else { return };
        let sizes = Sizes { parameters: SHARDS * LENGTH, ..Sizes::default() };
        let mut device = device(precision, sizes);
        let all = View::row(Arena::Parameters, 0..SHARDS * LENGTH);
        for step in 1..=6 {
            let before = calls();
            for shard in 0..SHARDS {
                let range = shard * LENGTH..(shard + 1) * LENGTH;
                device.write(View::row(Arena::Parameters, range), &[step as f32; LENGTH]);
            }
            let made = calls() - before;
            assert!(step < 6 || made <= 4 * SHARDS as i64, "{made} calls in step {step}");
            assert_eq!(device.read_back(all).expect("nothing fails")[LENGTH], step as f32);
        }
    }
}

fn device(precision: Precision, sizes: Sizes) -> Cuda<CudaDriver> {
    Cuda::new(open(precision, &files(&FILES)), sizes).expect("memory")
}

/// A subject with these kernels.
fn subject(precision: Precision, names: &'static [&str]) -> Subject {
    let open = move |sizes| {
        let cuda = Cuda::new(open(precision, &files(names)), sizes).expect("memory");
        Box::new(cuda) as Box<dyn Backend>
    };
    precisions::subject(precision, Box::new(open))
}

/// Of every form and size. Most of them are at addresses that are aligned to an element alone.
#[test]
fn products_of_the_library_are_right_in_every_precision() {
    for precision in PRECISIONS {
        let Some(_alone) = alone(precision) else { return };
        let subject = subject(precision, &FILES);
        checks::products_of_all_forms(&subject);
        checks::products_into_a_gradient(&subject);
    }
}

#[test]
fn a_bias_and_gelu_are_right_whether_the_library_computes_them_or_kernels_do() {
    for precision in PRECISIONS {
        let Some(_alone) = alone(precision) else { return };
        let subject = subject(precision, &FILES);
        checks::linear_layers_of_all_forms(&subject);
        checks::a_gelu_between_linear_layers(&subject);
    }
}

/// These tests load no kernels for them.
#[test]
fn a_bias_and_gelu_are_computed_with_their_product_where_the_library_can() {
    for precision in PRECISIONS {
        let Some(_alone) = alone(precision) else { return };
        let subject = subject(precision, &["cast.cu"]);
        for shape in [[33, 17, 64], [64, 30, 24], [7, 16, 40], [1, 1, 8]] {
            checks::linear_layer(&subject, shape);
            if precision != Precision::F32 {
                checks::gelu_after_and_before(&subject, shape);
            }
        }
    }
}

/// A weight of 8 x 8 of ones, its bias, and many parameters behind them.
const WEIGHT: usize = 64;
const BIAS: usize = 8;

/// `x` of ones, GELU's input and its output, and a device with all of it in place.
fn linear_layer() -> (Cuda<CudaDriver>, [View; 3]) {
    let sizes = Sizes { parameters: WEIGHT + BIAS + MANY, activations: 96, ..Sizes::default() };
    let mut device = device(Precision::Bf16, sizes);
    let views = [0, 32, 64].map(|at| View::new(Arena::Activations, at, 1, 8));
    device.write(views[0], &[1.0; 8]);
    device.write(View::row(Arena::Parameters, 0..WEIGHT), &[1.0; WEIGHT]);
    device.read_back(View::row(Arena::Parameters, 0..WEIGHT)).expect("nothing fails");
    (device, views)
}

#[test]
fn a_linear_layer_waits_for_its_bias_and_a_new_bias_for_the_layer() {
    let Some(_alone) = alone(Precision::Bf16) else { return };
    let weight = View::new(Arena::Parameters, 0, 8, 8);
    let bias = View::row(Arena::Parameters, WEIGHT..WEIGHT + BIAS);
    // So much that it goes to the GPU before any work waits for it.
    let behind = View::row(Arena::Parameters, WEIGHT..WEIGHT + BIAS + MANY);
    for with_gelu in [false, true] {
        let (mut device, [x, y, activated]) = linear_layer();
        for late in [3.0, 5.0] {
            device.write(bias, &[late; BIAS]);
            match with_gelu {
                false => device.linear(x, weight, bias, y),
                true => device.linear_gelu(x, weight, bias, [y, activated]),
            }
            device.write(behind, &vec![100.0; BIAS + MANY]);
            assert_eq!(*device.read_back(y).expect("nothing fails"), [8.0 + late; 8]);
        }
    }
}

#[test]
fn the_way_back_through_a_linear_layer_waits_for_its_weight() {
    let Some(_alone) = alone(Precision::Bf16) else { return };
    let (mut device, [dy, input, d_input]) = linear_layer();
    device.write(input, &[50.0; 8]); // GELU passes all of it
    device.write(View::row(Arena::Parameters, 0..WEIGHT), &[2.0; WEIGHT]);
    let weight = View::new(Arena::Parameters, 0, 8, 8);
    device.matmul_gelu_backward(dy, weight.t(), input, d_input);
    assert_eq!(*device.read_back(d_input).expect("nothing fails"), [16.0; 8]);
}
