//! A driver that runs the kernels on the CPU: each `.cu` compiled as C++ with `emulation.h`.

use std::collections::VecDeque;
use std::ffi::{CString, c_char, c_uint, c_void};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::slice;
use std::sync::OnceLock;

use everstep_kernels::backend::cuda::{
    Address, Argument, Delivery, DeliveryId, Driver, DriverError, KERNELS, Kernel, KernelCall,
    Launch, Product, SOURCES,
};
use everstep_kernels::precision::Precision;
use libloading::Library;

/// Takes grid and block, pointers to the arguments, and the kinds of these.
///
/// # Safety
///
/// Six numbers, as many pointers as kinds, and a kernel that stays within the memory of its
/// arguments.
type Emulate = unsafe extern "C" fn(*const c_uint, *mut *mut c_void, *const c_char);

/// A driver on the host. The address of an allocation is its address on the host.
pub struct Emulated {
    library: &'static Library,
    precision: Precision,
    asked: VecDeque<(Address, usize)>,
    /// Kept until the driver goes, and never touched through these.
    memory: Vec<Vec<Line>>,
}

/// The alignment of every allocation.
#[derive(Clone, Copy)]
#[repr(align(256))]
struct Line(#[expect(dead_code, reason = "read through addresses")] [u8; 256]);

impl Emulated {
    /// `None`, and loud, without a C++ compiler.
    pub fn new(precision: Precision) -> Option<Self> {
        static LIBRARIES: [OnceLock<Option<Library>>; 3] = [const { OnceLock::new() }; 3];
        let library = LIBRARIES[precision as usize].get_or_init(|| library(precision));
        let library = library.as_ref()?;
        let (memory, asked) = (Vec::new(), VecDeque::new());
        Some(Self { library, precision, memory, asked })
    }
}

impl Driver for Emulated {
    fn precision(&self) -> Precision {
        self.precision
    }

    fn allocate(&mut self, bytes: usize) -> Result<Address, DriverError> {
        let mut lines = vec![Line([0; 256]); bytes.div_ceil(256)];
        let address = Address(lines.as_mut_ptr().expose_provenance() as u64);
        self.memory.push(lines);
        Ok(address)
    }

    fn write(&mut self, to: Address, bytes: &[u8]) {
        // SAFETY: the backend names only memory that it has allocated, and no code holds a
        // reference to it.
        unsafe { memory(to, bytes.len()) }.copy_from_slice(bytes);
    }

    fn deliver(&mut self, delivery: Delivery<'_>) -> DeliveryId {
        self.write(delivery.to, bytemuck::cast_slice(delivery.values));
        if let Some(KernelCall { kernel, launch, arguments }) = delivery.cast {
            self.launch(kernel, launch, arguments);
        }
        DeliveryId(0)
    }

    /// All work is done as soon as it is enqueued.
    fn wait_for(&mut self, _delivered: DeliveryId) {}

    fn read(&mut self, from: Address, into: &mut [u8]) -> Result<(), DriverError> {
        // SAFETY: as for `write`.
        into.copy_from_slice(unsafe { memory(from, into.len()) });
        Ok(())
    }

    fn fetch(&mut self, from: Address, count: usize) {
        self.asked.push_back((from, count));
    }

    fn fetched(&mut self, _wait: bool) -> Result<Option<&[f32]>, DriverError> {
        let Some((from, count)) = self.asked.pop_front() else { return Ok(None) };
        // SAFETY: as for `write`. While the slice is lent, no code can call this driver.
        Ok(Some(bytemuck::cast_slice(unsafe { memory(from, 4 * count) })))
    }

    fn zero(&mut self, to: Address, bytes: usize) {
        // SAFETY: as for `write`.
        unsafe { memory(to, bytes) }.fill(0);
    }

    fn launch(&mut self, kernel: &'static Kernel, launch: Launch, arguments: &[Argument]) {
        let name = format!("emulate_{}", kernel.name);
        // SAFETY: EMULATE in emulation.h defines a function of this type for every kernel.
        let emulate = unsafe { self.library.get::<Emulate>(name.as_bytes()) };
        let emulate = emulate.expect("the library has every kernel");
        let mut words: Vec<u64> = arguments.iter().map(word).collect();
        let mut places: Vec<*mut c_void> =
            words.iter_mut().map(|word| (word as *mut u64).cast()).collect();
        let kinds = CString::new(arguments.iter().map(kind).collect::<Vec<u8>>());
        let kinds = kinds.expect("no kind is zero");
        let [grid, block] = [launch.grid, launch.block];
        let shape = [grid, block].concat();
        // SAFETY: `shape` has six numbers. The emulation ends the process if the kinds are not
        // those of the kernel's parameters. The tests check that kernels stay in their views.
        unsafe { emulate(shape.as_ptr(), places.as_mut_ptr(), kinds.as_ptr()) }
    }

    fn matmul(&mut self, _product: &Product) -> bool {
        false
    }
}

/// # Safety
///
/// The bytes lie in an allocation of a driver, and no reference to them lives as long as this one.
unsafe fn memory<'a>(at: Address, bytes: usize) -> &'a mut [u8] {
    let pointer = std::ptr::with_exposed_provenance_mut(at.0 as usize);
    // SAFETY: as the caller promises.
    unsafe { slice::from_raw_parts_mut(pointer, bytes) }
}

fn word(argument: &Argument) -> u64 {
    match *argument {
        Argument::Address(address) => address.0,
        Argument::Long(value) => value,
        // Little-endian: the first four bytes are the value.
        Argument::Int(value) => u64::from(value as u32),
        Argument::Float(value) => u64::from(value.to_bits()),
    }
}

fn kind(argument: &Argument) -> u8 {
    match argument {
        Argument::Address(_) => b'p',
        Argument::Long(_) => b'l',
        Argument::Int(_) => b'i',
        Argument::Float(_) => b'f',
    }
}

/// Compiles and loads every kernel.
fn library(precision: Precision) -> Option<Library> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("kernels.so");
    compile(folder.path(), &path, precision)?;
    // SAFETY: it was just compiled, and only its thread-local state has initialisers.
    Some(unsafe { Library::new(&path) }.expect("a library that was just compiled"))
}

fn compile(folder: &Path, library: &Path, precision: Precision) -> Option<()> {
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect(name);
    write("emulation.h", include_str!("emulation.h"));
    write("tensor.h", include_str!("tensor.h"));
    write("kernels.cpp", &program(precision));
    let compiler = std::env::var("CXX").unwrap_or("c++".into());
    let output = Command::new(&compiler)
        .args(["-std=c++17", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing"])
        // For fused multiply-adds in hardware, and only where the kernels say so.
        .args(cfg!(target_arch = "x86_64").then_some("-march=native"))
        .args(["-shared", "-fPIC", precision.definition(), "-o"])
        .args([library, &folder.join("kernels.cpp")])
        .output();
    let Ok(output) = output else {
        // Past the capture of the tests' output, which hides the output of a passing test.
        let message = format!("SKIPPED: no C++ compiler `{compiler}`: no kernel was run\n");
        let _ = std::io::stderr().write_all(message.as_bytes());
        return None;
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the kernels do not compile:\n{errors}");
    Some(())
}

/// Each file in a namespace of its own, since a GPU's compiler sees it alone, and a function for
/// each of its kernels.
fn program(precision: Precision) -> String {
    let mut program = String::from("#include \"emulation.h\"\n#include \"tensor.h\"\n");
    for source in SOURCES.iter().filter(|source| source.precisions.contains(&precision)) {
        let space = source.name.replace('.', "_");
        let _ = writeln!(program, "namespace {space} {{\n{}\n}}", source.compiled());
        for kernel in KERNELS.iter().filter(|kernel| kernel.source == *source) {
            let _ = writeln!(program, "EMULATE({space}, {})", kernel.name);
        }
    }
    program
}
