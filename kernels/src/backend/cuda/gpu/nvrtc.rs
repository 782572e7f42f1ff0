//! Compiles kernels for the exact kind of a GPU, with NVRTC. That needs no GPU and no driver.

use std::ffi::{CStr, CString, c_char};
use std::fmt;

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys::{self, nvrtcProgram};
use tracing::{debug, warn};

use super::super::driver::KernelSource;
use super::cache::{Cache, Found};
use super::error::CudaError;
use crate::precision::Precision;

/// A kind of GPU, by its compute capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Architecture {
    /// The first number of the compute capability: 9 for Hopper.
    pub major: u32,
    /// 0 for the H100 and the H200.
    pub minor: u32,
}

/// With the letter, a kernel may use features that only this very kind has (from Hopper on).
impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = if self.major >= 9 { "a" } else { "" };
        f.pad(&format!("sm_{}{}{exact}", self.major, self.minor))
    }
}

/// The result of compiling a source.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The machine code: a CUBIN.
    pub code: Vec<u8>,
    /// The compiler's output: registers and spills of each kernel, and warnings.
    pub log: String,
}

/// The oldest major version that knows every architecture and option named here.
const OLDEST: i32 = 13;
/// These options write registers and spills to the log.
const OPTIONS: [&str; 1] = ["--ptxas-options=-v"];

/// The version of the installed compiler, major and minor.
///
/// # Errors
/// [`CudaError::NoLibrary`], [`CudaError::LibraryTooOld`].
pub fn version() -> Result<(i32, i32), CudaError> {
    // SAFETY: it only opens a library by its well-known name.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoLibrary {
            library: "libnvrtc.so.13",
            package: "nvidia-cuda-nvrtc",
        });
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both outlive the call, which writes a number to each.
    let status = unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    status.result().map_err(|error| failed("nvrtcVersion", error))?;
    if major < OLDEST {
        let found = format!("{major}.{minor}");
        return Err(CudaError::LibraryTooOld { library: "libnvrtc.so", found });
    }
    Ok((major, minor))
}

/// Compiles a file of kernels for one precision and one kind of GPU.
///
/// # Errors
/// [`CudaError::Compile`] with the compiler's words, or [`CudaError::NoLibrary`].
pub fn compile(
    source: &KernelSource,
    precision: Precision,
    architecture: Architecture,
) -> Result<Compiled, CudaError> {
    version()?;
    let wrong = |log: String| CudaError::Compile {
        file: source.name.into(),
        architecture: architecture.to_string(),
        log,
    };
    let c_string = |text: String| CString::new(text).map_err(|error| wrong(error.to_string()));
    // NVRTC may refer to both for as long as the program lives.
    let (text, file) = (c_string(source.compiled())?, c_string(source.name.into())?);
    let program = Program::create(&text, &file)?;
    let options = options(precision, architecture);
    // SAFETY: the program lives.
    let outcome = unsafe { result::compile_program(program.0, &options) };
    let log = program.log()?;
    match outcome {
        Ok(()) => Ok(Compiled { code: program.code()?, log }),
        Err(error) => Err(wrong(format!("{error}: {log}"))),
    }
}

/// The machine code of a file of kernels: from the cache, or compiled and kept there. An error of
/// the cache costs time and nothing else.
///
/// # Errors
/// As [`compile`].
pub fn compile_once(
    source: &KernelSource,
    precision: Precision,
    architecture: Architecture,
    cache: Option<&Cache>,
) -> Result<Vec<u8>, CudaError> {
    let Some(cache) = cache else {
        return Ok(compile(source, precision, architecture)?.code);
    };
    let (major, minor) = version()?;
    let mut key = vec![format!("NVRTC {major}.{minor}"), source.compiled()];
    key.extend(options(precision, architecture));
    let key: Vec<_> = key.iter().map(String::as_str).collect();
    match cache.find(&key) {
        Found::Kept(code) => return Ok(code),
        Found::Nothing => {}
        Found::Damaged => {
            let path = cache.path(&key);
            warn!(path = %path.display(), "a compiled kernel is damaged, and compiled anew");
        }
    }
    let Compiled { code, log } = compile(source, precision, architecture)?;
    debug!(file = source.name, %architecture, %precision, log, "compiled");
    if let Err(error) = cache.keep(&key, &code) {
        let folder = cache.folder().display();
        warn!(%folder, %error, "compiled kernels cannot be kept: every start compiles them anew");
    }
    Ok(code)
}

fn options(precision: Precision, architecture: Architecture) -> Vec<String> {
    let target = format!("--gpu-architecture={architecture}");
    let fixed = precision.options().into_iter().chain(OPTIONS).map(String::from);
    fixed.chain([target]).collect()
}

/// A program while NVRTC compiles it.
struct Program(nvrtcProgram);

impl Program {
    fn create(source: &CStr, file: &CStr) -> Result<Self, CudaError> {
        let created = result::create_program(source, Some(file));
        created.map(Self).map_err(|error| failed("nvrtcCreateProgram", error))
    }

    fn log(&self) -> Result<String, CudaError> {
        // SAFETY: the program lives, and was given to the compiler.
        let log = unsafe { result::get_program_log(self.0) };
        let log = log.map_err(|error| failed("nvrtcGetProgramLog", error))?;
        let bytes: Vec<u8> = log.into_iter().map(c_char::cast_unsigned).collect();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).trim().into())
    }

    fn code(&self) -> Result<Vec<u8>, CudaError> {
        let mut size = 0;
        // SAFETY: the program lives and is compiled. The size outlives the call.
        let status = unsafe { sys::nvrtcGetCUBINSize(self.0, &raw mut size) };
        status.result().map_err(|error| failed("nvrtcGetCUBINSize", error))?;
        let mut code = vec![0u8; size];
        // SAFETY: the vector has as many bytes as the compiler said.
        let status = unsafe { sys::nvrtcGetCUBIN(self.0, code.as_mut_ptr().cast()) };
        status.result().map_err(|error| failed("nvrtcGetCUBIN", error))?;
        Ok(code)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was created, and is used no more.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn failed(call: &'static str, error: NvrtcError) -> CudaError {
    CudaError::Failed { call, why: error.to_string() }
}
