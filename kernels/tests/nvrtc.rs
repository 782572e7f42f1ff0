//! Compiles every kernel for every kind of GPU that Everstep names, without a GPU.
//!
//! It needs NVRTC (`tests/cuda/install-nvrtc.sh` installs it), and says loudly when it is missing.
//! Each kernel keeps within its bounds of registers and spills. The test writes the present
//! numbers, for each kind of GPU and precision, to `target/tmp/registers.txt`.

#![cfg(feature = "cuda")]

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::{fs, thread};

use everstep_kernels::backend::cuda::gpu::nvrtc::{self, Architecture};
use everstep_kernels::backend::cuda::gpu::{Cache, CudaError};
use everstep_kernels::backend::cuda::{KernelSource, SOURCES};
use everstep_kernels::precision::Precision;

/// Ampere, Hopper, Blackwell.
const ARCHITECTURES: [Architecture; 3] = [
    Architecture { major: 8, minor: 0 },
    Architecture { major: 9, minor: 0 },
    Architecture { major: 10, minor: 0 },
];

/// The most that a kernel may take of a multiprocessor for each of its threads.
struct Bound {
    registers: u32,
    /// Spilled memory, bytes.
    spilled: u32,
}

/// Half of what a thread can have, so that two blocks of 256 threads fit on a multiprocessor.
const BOUND: Bound = Bound { registers: 128, spilled: 16 };

/// The kernels that take more. Attention on tensor cores keeps its tiles in registers, which 128
/// threads a block can afford, since a thread can have 255. The plain one spills on sm_80 only.
const EXCEPTIONS: [(&str, Bound); 6] = [
    ("attention", Bound { registers: 40, spilled: 64 }),
    ("tensor_attention_128", Bound { registers: 176, spilled: 0 }),
    ("tensor_backward_query_64", Bound { registers: 168, spilled: 0 }),
    ("tensor_backward_query_128", Bound { registers: 255, spilled: 0 }),
    ("tensor_backward_key_64", Bound { registers: 255, spilled: 0 }),
    ("tensor_backward_key_128", Bound { registers: 255, spilled: 8 }),
];

/// Whether there is a compiler. Loud if there is none.
fn is_there() -> bool {
    let version = nvrtc::version();
    if let Err(error) = &version {
        // Past the capture of the tests' output, which hides the output of a passing test.
        let _ = writeln!(io::stderr(), "SKIPPED, no kernel was compiled: {error}");
    }
    version.is_ok()
}

#[test]
fn every_kernel_compiles_for_every_kind_of_gpu_and_keeps_within_its_bounds() {
    if !is_there() {
        return;
    }
    // The compiler works for several architectures at once.
    let report: String = thread::scope(|scope| {
        let compiling = ARCHITECTURES.map(|it| scope.spawn(move || compile_all(it)));
        compiling.map(|thread| thread.join().expect("no kernel is wrong")).concat()
    });
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("registers.txt");
    fs::write(place, &report).unwrap();
    let beyond: Vec<_> = report.lines().filter(|line| line.ends_with(BEYOND)).collect();
    assert!(beyond.is_empty(), "{}", beyond.join("\n"));
}

/// The end of the line of a kernel that takes more than it may.
const BEYOND: &str = ", beyond its bounds";

/// A line for each kernel.
fn compile_all(architecture: Architecture) -> String {
    let mut lines = String::new();
    for source in SOURCES {
        for precision in source.precisions.iter().copied() {
            let compiled = nvrtc::compile(source, precision, architecture);
            let compiled = compiled.unwrap_or_else(|error| panic!("{error}"));
            assert!(compiled.code.starts_with(b"\x7fELF"), "a CUBIN is an ELF file");
            let kernels = usage(&compiled.log);
            assert!(!kernels.is_empty(), "{}: {}", source.name, compiled.log);
            for Usage { kernel, registers, stack, spilled } in kernels {
                assert!(registers > 0, "not told: {}", compiled.log);
                let bound = bound(&kernel);
                let within = registers <= bound.registers && spilled <= bound.spilled;
                let _ = writeln!(
                    lines,
                    "{architecture:<8} {precision:<5} {kernel:<28} {registers:>4} registers, \
                     {stack:>5} bytes of stack, {spilled:>5} bytes spilled{}",
                    if within { "" } else { BEYOND }
                );
            }
        }
    }
    lines
}

fn bound(kernel: &str) -> &'static Bound {
    let exception = EXCEPTIONS.iter().find(|(name, _)| *name == kernel);
    exception.map_or(&BOUND, |(_, bound)| bound)
}

/// The kernel's use of a multiprocessor, as the assembler reports it.
#[derive(Debug, Default)]
struct Usage {
    kernel: String,
    registers: u32,
    stack: u32,
    spilled: u32,
}

fn usage(log: &str) -> Vec<Usage> {
    let mut kernels: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or(rest).to_string();
            kernels.push(Usage { kernel, ..Usage::default() });
        } else if let Some(last) = kernels.last_mut() {
            last.registers += number_before(line, " registers");
            last.stack += number_before(line, " bytes stack frame");
            last.spilled += number_before(line, " bytes spill stores");
        }
    }
    kernels
}

/// The number before these words, or 0 without such words.
fn number_before(line: &str, words: &str) -> u32 {
    let before = line.split_once(words).map_or("", |(before, _)| before);
    before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or("").parse().unwrap_or(0)
}

#[test]
fn a_kernel_that_is_wrong_is_refused_in_the_compilers_words() {
    if !is_there() {
        return;
    }
    let text = "extern \"C\" __global__ void f() { g(); }";
    let wrong = KernelSource { name: "wrong.cu", text, precisions: &[Precision::F32] };
    let error = nvrtc::compile(&wrong, Precision::F32, ARCHITECTURES[1]).unwrap_err();
    let words = error.to_string();
    assert!(matches!(error, CudaError::Compile { .. }), "{words}");
    assert!(words.contains("wrong.cu(1)") && words.contains("\"g\" is undefined"), "{words}");
}

#[test]
fn what_was_compiled_is_found_the_next_time_and_compiled_anew_when_it_is_damaged() {
    if !is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().into());
    let compile =
        || nvrtc::compile_once(SOURCES[0], Precision::F32, ARCHITECTURES[1], Some(&cache)).unwrap();
    let first = compile();
    let [file] = std::fs::read_dir(folder.path()).unwrap().collect::<Vec<_>>().try_into().unwrap();
    let file = file.unwrap().path();
    let kept = std::fs::read(&file).unwrap();
    // The test marks the file, and the digest does not fit: the cache must not take it.
    std::fs::write(&file, b"no such kernel").unwrap();
    assert_eq!(compile(), first);
    assert_eq!(std::fs::read(&file).unwrap(), kept, "it is kept again");
}
