//! The seam between the backend and a GPU: memory at addresses, and launches of kernels.
//!
//! Everything above it is plain code about addresses and shapes. Everything below knows contexts,
//! streams and compilers, and no models. There are two drivers: that of a GPU, and in the tests one
//! that runs the same kernels on the CPU.
//!
//! Work is *enqueued*, in order. Only [`Driver::read`] waits, and [`Driver::fetched`] if the caller
//! asks for it. Copies to the host and deliveries of parameters run beside that order. Enqueued
//! work that fails cannot be undone, and on a GPU its failure ends all work after it. So a failure
//! stays, and these two report it from then on.

use crate::precision::Precision;

/// A place in a device's memory, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address(pub u64);

/// A file of kernels, as it is embedded in the program.
#[derive(Debug, PartialEq, Eq)]
pub struct KernelSource {
    /// The file's name, for messages and caches: `add.cu`.
    pub name: &'static str,
    /// The file's text, without the preamble.
    pub text: &'static str,
    /// The precisions that `real` may have in the file.
    pub precisions: &'static [Precision],
}

/// A kernel: a function of a file, `extern "C"`.
#[derive(Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The file that defines it.
    pub source: &'static KernelSource,
    /// The name of the function.
    pub name: &'static str,
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument {
    /// A pointer.
    Address(Address),
    /// An `unsigned long long`: every count and size.
    Long(u64),
    /// An `int`: every choice.
    Int(i32),
    /// A `float`.
    Float(f32),
}

/// The shape of a launch. Shared memory is static, and no dimension is ever zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
}

/// A matrix of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Where it begins. Aligned to its elements, and to no more than that, since parameters lie one
    /// after the other without gaps.
    pub address: Address,
    /// The precision of its elements.
    pub element: Precision,
    /// Rows of the product's operand, after transposition.
    pub rows: usize,
    /// Columns of the product's operand, after transposition.
    pub columns: usize,
    /// False: row-major. True: the memory holds the transpose, row-major.
    pub transposed: bool,
}

/// `c = a b`, or `c += a b`, added up in f32. An epilogue may change `a b` before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// The left operand, of the driver's precision.
    pub a: Matrix,
    /// The right operand, of the driver's precision.
    pub b: Matrix,
    /// The result, of the driver's precision or f32. Never transposed.
    pub c: Matrix,
    /// Whether the old `c` stays in the sum.
    pub accumulate: bool,
    /// What the sums become before they are written. [`Epilogue::None`] if they are added, or
    /// written to gradients or statistics.
    pub epilogue: Epilogue,
}

/// What the sums of a product become. Numbers are of the driver's precision. A bias has one for
/// each column of `c`. GELU's input has as many as `c`, in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// `c` is the sums.
    None,
    /// `c` is the sums and the bias.
    Bias {
        /// Where the bias begins.
        bias: Address,
    },
    /// `input` is the sums and the bias, and `c` is GELU of that.
    Gelu {
        /// Where the bias begins.
        bias: Address,
        /// Where the product writes GELU's input.
        input: Address,
    },
    /// `c` is the sums, multiplied by the derivative of GELU at `input`.
    GeluBackward {
        /// Where GELU's input begins.
        input: Address,
    },
}

/// A kernel, with everything that a launch of it needs.
#[derive(Clone, Copy, Debug)]
pub struct KernelCall<'a> {
    /// The kernel that the device runs.
    pub kernel: &'static Kernel,
    /// Its blocks and threads.
    pub launch: Launch,
    /// Its arguments, in the order of its signature.
    pub arguments: &'a [Argument],
}

/// Parameters that go to the device beside its computation, after every earlier delivery.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The address to copy the parameters to.
    pub to: Address,
    /// The parameters. They may change as soon as the call returns.
    pub values: &'a [f32],
    /// The launch after the copy, as part of the delivery: the cast to the place of the parameters.
    pub cast: Option<KernelCall<'a>>,
    /// Whether the delivery waits for all enqueued work, which may still use the overwritten
    /// memory.
    pub waits: bool,
}

/// The number of a delivery. Later deliveries have greater numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveryId(pub u64);

/// A device that runs kernels.
pub trait Driver: Send {
    /// The type of `real` in the kernels that this driver compiles. It never changes.
    fn precision(&self) -> Precision;

    /// Allocates zeroed memory that lives as long as the driver, at a multiple of 256.
    fn allocate(&mut self, bytes: usize) -> Result<Address, DriverError>;

    /// Copies `bytes` to the device. They may change as soon as the call returns.
    fn write(&mut self, to: Address, bytes: &[u8]);

    /// Enqueues a delivery. Only later work with [`Driver::wait_for`] waits for it.
    fn deliver(&mut self, delivery: Delivery<'_>) -> DeliveryId;

    /// Makes all later work wait for this delivery, and so for those before it.
    fn wait_for(&mut self, delivered: DeliveryId);

    /// Waits for all enqueued work, and copies from the device. If this or earlier work has failed,
    /// `into` is of no use, now and in every later call. All requested copies have then been
    /// fetched.
    fn read(&mut self, from: Address, into: &mut [u8]) -> Result<(), DriverError>;

    /// Requests a copy of `count` f32, at least one, as they are after all work enqueued before.
    /// The copy runs beside later work. Until the caller has fetched all of it, no work may change
    /// the copied memory.
    fn fetch(&mut self, from: Address, count: usize);

    /// Lends the next part of the requested copies, in their order. A part never spans two copies.
    /// `None` if it has not come yet. With `wait`, `None` only if nothing is left to come. If this
    /// or earlier work has failed, nothing comes any more.
    fn fetched(&mut self, wait: bool) -> Result<Option<&[f32]>, DriverError>;

    /// Writes zeros.
    fn zero(&mut self, to: Address, bytes: usize);

    /// Launches `kernel`. The arguments are those of its signature, in order.
    fn launch(&mut self, kernel: &'static Kernel, launch: Launch, arguments: &[Argument]);

    /// Computes a product by the device's library. `false` if the library has no way to compute
    /// this product, which is then so every time. The backend does it in smaller steps, or by its
    /// own kernels.
    fn matmul(&mut self, product: &Product) -> bool;
}

/// What a device could not do. A new attempt is useless.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The model does not fit.
    #[error(
        "out of device memory: {asked_bytes} bytes were asked for, {free_bytes} of {total_bytes} \
         are free. Lower batch.micro_batch (a GPT also takes less with model.recompute = true)"
    )]
    OutOfMemory {
        /// The size of the failed allocation.
        asked_bytes: usize,
        /// The free memory at that time.
        free_bytes: usize,
        /// All memory of the device.
        total_bytes: usize,
    },
    /// Something else, in the device's own words.
    #[error("{0}")]
    Failed(String),
}

impl KernelSource {
    /// The text to compile, for any precision: the preamble, then the file. Its lines count from 1.
    pub fn compiled(&self) -> String {
        let preamble = include_str!("kernels/real.cuh");
        format!("#line 1 \"real.cuh\"\n{preamble}\n#line 1 \"{}\"\n{}", self.name, self.text)
    }
}

/// What a compiler of kernels needs to know of a precision.
impl Precision {
    /// A GPU compiler's options beside the architecture, which is sm_80 or later. The compiler
    /// contracts nothing into a fused operation, so that owners' bits are the CPU's.
    pub fn options(self) -> [&'static str; 3] {
        ["--std=c++17", "-fmad=false", self.definition()]
    }

    /// The compiler's option that makes `real` this precision.
    pub fn definition(self) -> &'static str {
        match self {
            Self::F32 => "-DREAL=0",
            Self::Bf16 => "-DREAL=1",
            Self::Fp16 => "-DREAL=2",
        }
    }
}

impl Epilogue {
    /// Where the bias and GELU's input begin, if the epilogue has them.
    pub fn addresses(self) -> [Option<Address>; 2] {
        match self {
            Self::None => [None; 2],
            Self::Bias { bias } => [Some(bias), None],
            Self::Gelu { bias, input } => [Some(bias), Some(input)],
            Self::GeluBackward { input } => [None, Some(input)],
        }
    }
}

impl Address {
    /// The address this many bytes further on.
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

impl Launch {
    /// The number of threads of a block.
    pub fn threads(self) -> u32 {
        self.block.iter().product()
    }
}

impl From<DriverError> for crate::backend::DeviceError {
    fn from(error: DriverError) -> Self {
        Self(error.to_string())
    }
}
