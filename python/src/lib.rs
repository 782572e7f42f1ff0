//! `everstep._everstep`: the engine inside a Python process.
//!
//! The package `everstep` around it is Python, in `python/everstep`. It reads a script's model,
//! optimizer and data, and asks for gradients. Everything here is Rust: the whole program
//! `everstep`, and the worker of a script.
//!
//! - `engine`: the worker of a script, as Python sees it.
//! - `rendezvous`: where the worker's threads meet the script's thread.
//! - `model`: the script's model and data, as the worker sees them.
//! - `measure`: what a script needs, without a cluster.
//! - `probe`: whether the script's model repeats.
//! - `optimizer`: PyTorch's formulas, which the owners of parameters apply.
//! - `statement`: the run that a script states.
//! - `memory`: memory of tensors, which PyTorch or JAX owns.
//! - `watchdog`: finds a script that hangs.

mod engine;
mod measure;
mod memory;
mod model;
mod optimizer;
mod probe;
mod rendezvous;
mod statement;
mod watchdog;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use everstep::builtin;
use everstep::cluster::Program;
use pyo3::prelude::*;

/// Runs the program `everstep` with these arguments, its name first. `interpreter` runs this
/// package as a module, for the processes of local clusters. Returns the exit code.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>, interpreter: PathBuf) -> u8 {
    let module = ["-m", "everstep"].map(OsString::from).to_vec();
    let own = Program { executable: interpreter, arguments: module };
    let code = py.detach(|| everstep::program_of(builtin::registry(), arguments, own));
    // An exit code tells no more of itself than whether it is one of the others.
    (0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(1)
}

/// Has this process end when its parent does: one that loads data for a worker.
#[pyfunction]
fn die_with_parent() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}

#[pymodule]
fn _everstep(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<engine::Engine>()?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_function(wrap_pyfunction!(die_with_parent, module)?)
}
