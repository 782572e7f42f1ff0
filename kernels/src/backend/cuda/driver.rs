//! The seam between the backend and a GPU: memory at addresses, and launches of kernels.
//!
//! Everything above it is plain code about addresses and shapes; everything below knows contexts,
//! streams and compilers, and nothing of models. There are two drivers: that of a GPU, and in the
//! tests one that runs the same kernels on the CPU.
//!
//! Work is *enqueued*, in order; only [`Driver::read`] waits, and [`Driver::fetched`] where it is
//! told to. Beside that order stand copies to the host and deliveries of parameters. Work that
//! fails after it was enqueued cannot be undone, and on a GPU it ends everything that would come
//! after it: so a failure stays, and these two report it from then on.

use std::fmt;

/// A place in a device's memory, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address(pub u64);

/// How numbers are stored on the device that parameters and activations are made of. Gradients and
/// statistics are f32 always, and so is every sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// 32 bits.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// IEEE half precision.
    Fp16,
}

/// A file of kernels, as it is embedded in the program.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name, for messages and caches: `add.cu`.
    pub name: &'static str,
    /// Its text, without the preamble.
    pub text: &'static str,
    /// What `real` may be in it.
    pub precisions: &'static [Precision],
}

/// A kernel: a function of a file, `extern "C"`.
#[derive(Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The file.
    pub source: &'static Source,
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
    /// Where it begins. Aligned to its elements, and to no more than that: parameters lie one after
    /// the other without gaps.
    pub address: Address,
    /// What its elements are.
    pub element: Precision,
    /// Rows of the product's operand, after transposition.
    pub rows: usize,
    /// Columns of the product's operand, after transposition.
    pub columns: usize,
    /// False: row-major. True: the memory holds the transpose, row-major.
    pub transposed: bool,
}

/// `c = a b`, or `c += a b`, added up in f32; or what an epilogue makes of `a b`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// The left operand, of the driver's precision.
    pub a: Matrix,
    /// The right operand, of the driver's precision.
    pub b: Matrix,
    /// The result, of the driver's precision or f32; never transposed.
    pub c: Matrix,
    /// Whether the old `c` stays in the sum.
    pub accumulate: bool,
    /// What the sums become before they are written; none where they are added, or written to
    /// gradients or statistics.
    pub epilogue: Epilogue,
}

/// What the sums of a product become. Numbers are of the driver's precision: those of a bias one
/// for each column of `c`, those of GELU's input as many as `c` has, and in its order.
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
        /// Where GELU's input is written.
        input: Address,
    },
    /// `c` is the sums, multiplied by the derivative of GELU at `input`.
    GeluBackward {
        /// Where GELU's input begins.
        input: Address,
    },
}

/// Parameters that go to the device beside what is computed, after every delivery before.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// Where they are copied to.
    pub to: Address,
    /// The parameters. They may change as soon as the call returns.
    pub values: &'a [f32],
    /// What is launched after the copy, with it: the cast to where they belong.
    pub cast: Option<(&'static Kernel, Launch, &'a [Argument])>,
    /// Whether all that was enqueued is waited for: it may still use what is overwritten.
    pub waits: bool,
}

/// The number of a delivery; later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Delivered(pub u64);

/// A device that runs kernels.
pub trait Driver: Send {
    /// What `real` is in the kernels that this driver compiles. It never changes.
    fn precision(&self) -> Precision;

    /// Allocates zeroed memory that lives as long as the driver, at a multiple of 256.
    fn allocate(&mut self, bytes: usize) -> Result<Address, DriverError>;

    /// Copies `bytes` to the device. They may change as soon as the call returns.
    fn write(&mut self, to: Address, bytes: &[u8]);

    /// Enqueues a delivery, which nothing waits for that is not told to.
    fn deliver(&mut self, delivery: Delivery<'_>) -> Delivered;

    /// Has all that is enqueued from now on wait for this delivery, and so for those before it.
    fn wait_for(&mut self, delivered: Delivered);

    /// Waits for all that was enqueued, and copies from the device. Where this or anything enqueued
    /// before has failed, `into` is of no use, now and in every later call. Whatever was asked for
    /// has been fetched.
    fn read(&mut self, from: Address, into: &mut [u8]) -> Result<(), DriverError>;

    /// Asks for a copy of `count` f32, at least one, as they are after all that was enqueued
    /// before. The copy is made beside what is enqueued after it. Until all of it was fetched,
    /// nobody changes what is copied.
    fn fetch(&mut self, from: Address, count: usize);

    /// Lends the next part of what was asked for: copies in their order, a part never of two.
    /// `None` where it has not come yet; with `wait`, only where nothing is left to come. Where
    /// this or anything enqueued before has failed, nothing comes any more.
    fn fetched(&mut self, wait: bool) -> Result<Option<&[f32]>, DriverError>;

    /// Writes zeros.
    fn zero(&mut self, to: Address, bytes: usize);

    /// Launches `kernel`. The arguments are those of its signature, in order.
    fn launch(&mut self, kernel: &'static Kernel, launch: Launch, arguments: &[Argument]);

    /// Computes a product by the device's library. False where it has no way to compute such a one,
    /// which is so every time: the backend then does it in smaller steps, or by its own kernels.
    fn matmul(&mut self, product: &Product) -> bool;
}

/// What a device could not do. None of it can be tried again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The model does not fit.
    #[error(
        "out of device memory: {asked_bytes} bytes were asked for, {free_bytes} of {total_bytes} \
         are free; lower batch.micro_batch (a GPT also takes less with model.recompute = true)"
    )]
    OutOfMemory {
        /// What was asked for.
        asked_bytes: usize,
        /// What was free.
        free_bytes: usize,
        /// What the device has.
        total_bytes: usize,
    },
    /// Something else, in the device's own words.
    #[error("{0}")]
    Failed(String),
}

impl Source {
    /// What is compiled, for any precision: the preamble, then the file, its lines counted from 1.
    pub fn compiled(&self) -> String {
        let preamble = include_str!("kernels/real.cuh");
        format!("#line 1 \"real.cuh\"\n{preamble}\n#line 1 \"{}\"\n{}", self.name, self.text)
    }
}

impl Precision {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::Fp16 => 2,
        }
    }

    /// What a compiler for GPUs is told, beside the architecture, which is sm_80 or later: nothing
    /// is contracted into a fused operation, so that owners' bits are the CPU's.
    pub fn options(self) -> [&'static str; 3] {
        ["--std=c++17", "-fmad=false", self.definition()]
    }

    /// The compiler's option that makes `real` this.
    pub fn definition(self) -> &'static str {
        match self {
            Self::F32 => "-DREAL=0",
            Self::Bf16 => "-DREAL=1",
            Self::Fp16 => "-DREAL=2",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
        })
    }
}

impl Epilogue {
    /// Where the bias and GELU's input begin, of those that there are.
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
    /// So many bytes further on.
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

impl Launch {
    /// The threads of a block.
    pub fn threads(self) -> u32 {
        self.block.iter().product()
    }
}

impl From<DriverError> for crate::backend::DeviceError {
    fn from(error: DriverError) -> Self {
        Self(error.to_string())
    }
}
