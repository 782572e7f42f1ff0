//! The driver of a real GPU, above a CUDA of our own whose GPU is the CPU (`tests/gpu/driver.cpp`
//! of the workspace): what it enqueues is done at the last moment, so whatever is read too early,
//! or overwritten too early, is wrong.
//!
//! No kernel is run here. It needs a C++ compiler and NVRTC, and says loudly when one is missing.

#![cfg(all(feature = "cuda", target_os = "linux"))]

use std::fs;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use everstep_kernels::backend::cuda::gpu::{Gpu, nvrtc};
use everstep_kernels::backend::cuda::{Driver, Kernel, Launch, Precision, Source};
use libloading::Library;

/// More than the whole ring holds, one number, a slot to the byte, a little more, and a little.
const COUNTS: [usize; 5] = [9 << 20, 1, 1 << 20, (1 << 20) + 3, 77];

/// A GPU; one at a time, since that CUDA knows no threads.
fn gpu() -> Option<(Gpu, MutexGuard<'static, ()>)> {
    static ONE: Mutex<()> = Mutex::new(());
    let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY.get_or_init(library).as_ref()?;
    let gpu = Gpu::open(0, Precision::F32, &[]).expect("an emulated GPU");
    Some((gpu, alone))
}

/// Compiles and loads that CUDA. Whoever looks for `libcuda.so` then finds it by its name.
fn library() -> Option<Library> {
    if let Err(error) = nvrtc::version() {
        return skipped(&error.to_string());
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect(name);
    write("emulation.h", include_str!("cuda/emulation.h"));
    write("kernel.h", include_str!("../../tests/gpu/kernel.h"));
    write("driver.cpp", include_str!("../../tests/gpu/driver.cpp"));
    write("all.cpp", PROGRAM);
    let compiler = std::env::var("CXX").unwrap_or("c++".into());
    let output = Command::new(&compiler)
        .args(["-std=c++17", "-O2", "-shared", "-fPIC", "-Wl,-soname,libcuda.so", "-o"])
        .args(["libcuda.so", "all.cpp"])
        .current_dir(&folder)
        .output();
    let Ok(output) = output else { return skipped(&format!("no C++ compiler `{compiler}`")) };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the driver does not compile:\n{errors}");
    // SAFETY: it was just compiled, and its initialisers do nothing but make empty collections.
    Some(unsafe { Library::new(folder.path().join("libcuda.so")) }.expect("just compiled"))
}

/// Its only kernel has no name that anybody looks for.
const PROGRAM: &str = r#"#include "emulation.h"
#include "kernel.h"
static const Kernel KERNELS[] = {{"", nullptr}};
#include "driver.cpp"
"#;

fn skipped(why: &str) -> Option<Library> {
    eprintln!("SKIPPED, nothing ran above an emulated CUDA: {why}");
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
    static NOWHERE: Source = Source { name: "nowhere.cu", text: "", precisions: &[] };
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
