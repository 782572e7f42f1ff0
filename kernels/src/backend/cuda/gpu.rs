//! A real GPU as a [`Driver`]: one context, kernels compiled as they are first needed.
//!
//! All work is enqueued on one stream, so the GPU does it in order. Beside it, on streams of their
//! own, parameters come (`gpu/delivery_stream.rs`) and gradients go (`gpu/fetches.rs`). Bytes to
//! and from the host go by way of pinned memory (`gpu/staging.rs`), which the GPU copies by itself
//! while the host goes on.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError as Failure};
use cudarc::driver::sys::{CUdeviceptr, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream};
use cudarc::nvrtc::Ptx;

use super::driver::{
    Address, Argument, Delivery, DeliveryId, Driver, DriverError, Kernel, KernelCall, KernelSource,
    Launch, Product,
};

mod cache;
mod cublaslt;
mod delivery_stream;
pub mod devices;
mod error;
mod fetches;
pub mod nvrtc;
mod staging;

pub use cache::Cache;
pub use devices::DriverDevice;
pub use error::CudaError;

use crate::precision::Precision;
use cublaslt::Products;
use delivery_stream::DeliveryStream;
use devices::failed;
use fetches::Fetches;
use staging::Staging;

/// The alignment of every allocation, bytes.
const ALIGNMENT: u64 = 256;

/// A GPU that this process computes on.
pub struct CudaDriver {
    device: DriverDevice,
    precision: Precision,
    staging: Staging,
    fetches: Fetches,
    arrivals: DeliveryStream,
    products: Option<Products>,
    functions: HashMap<(&'static str, &'static str), CudaFunction>,
    modules: HashMap<&'static str, Arc<CudaModule>>,
    allocated: Vec<CUdeviceptr>,
    /// The first failure. Nothing is enqueued after it.
    failure: Option<DriverError>,
    stream: Arc<CudaStream>,
    /// The last to be dropped: the fields above live in it.
    context: Arc<CudaContext>,
}

impl CudaDriver {
    /// Opens the GPU of this number, and compiles these kernels for it, or finds them compiled.
    ///
    /// # Errors
    /// [`CudaError`], in words for the user.
    pub fn open(
        index: usize,
        precision: Precision,
        sources: &[&'static KernelSource],
    ) -> Result<Self, CudaError> {
        let device = devices::one(index)?;
        nvrtc::version()?; // said before the GPU is taken
        let context = CudaContext::new(index).map_err(|error| match error.0 {
            CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => CudaError::Taken { index },
            _ => failed("cuDevicePrimaryCtxRetain", error),
        })?;
        // SAFETY: it would track cudarc's own buffers, and there are none here. Work that involves
        // two streams has explicit events, which are recorded and waited for by name.
        unsafe { context.disable_event_tracking() };
        // A waiting thread does not spin: the network thread needs the core.
        let blocking = context.set_blocking_synchronize();
        blocking.map_err(|error| failed("cuCtxSetFlags", error))?;
        let stream = context.new_stream().map_err(|error| failed("cuStreamCreate", error))?;
        let staging = Staging::new(&context)?;
        let fetches = Fetches::new(&context)?;
        let arrivals = DeliveryStream::new(&context)?;
        let products = Products::new()?;
        let mut gpu = Self {
            device,
            precision,
            products,
            context,
            stream,
            staging,
            fetches,
            arrivals,
            modules: HashMap::new(),
            functions: HashMap::new(),
            allocated: Vec::new(),
            failure: None,
        };
        let cache = Cache::of_user();
        for source in sources.iter().filter(|source| source.precisions.contains(&precision)) {
            gpu.load(source, cache.as_ref())?;
        }
        Ok(gpu)
    }

    /// The GPU as the driver describes it.
    pub fn device(&self) -> &DriverDevice {
        &self.device
    }

    /// The stream on which it computes.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    fn load(
        &mut self,
        source: &'static KernelSource,
        cache: Option<&Cache>,
    ) -> Result<(), CudaError> {
        let code = nvrtc::compile_once(source, self.precision, self.device.architecture, cache)?;
        let module = self.context.load_module(Ptx::from_binary(code));
        let module = module.map_err(|error| failed("cuModuleLoadData", error))?;
        self.modules.insert(source.name, module);
        Ok(())
    }

    fn function(&mut self, kernel: &'static Kernel) -> Result<CudaFunction, Failure> {
        let key = (kernel.source.name, kernel.name);
        if let Some(function) = self.functions.get(&key) {
            return Ok(function.clone());
        }
        let module = self.modules.get(kernel.source.name);
        let module = module.ok_or(Failure(CUresult::CUDA_ERROR_NOT_FOUND))?;
        let function = module.load_function(kernel.name)?;
        self.functions.insert(key, function.clone());
        Ok(function)
    }

    fn launch_on(&mut self, stream: &CudaStream, call: KernelCall<'_>) -> Result<(), Failure> {
        let KernelCall { kernel, launch, arguments } = call;
        let function = self.function(kernel)?;
        let mut pointers: Vec<*mut c_void> = arguments.iter().map(pointer).collect();
        let (grid, block) = (launch.grid.into(), launch.block.into());
        let (function, stream) = (function.cu_function(), stream.cu_stream());
        // SAFETY: the function's module lives in `modules`. The arguments are those of the kernel's
        // signature, and the driver copies them before it returns.
        unsafe { result::launch_kernel(function, grid, block, 0, stream, &mut pointers) }
    }

    /// Enqueues work, unless earlier work has failed.
    fn enqueue(&mut self, call: &'static str, work: impl FnOnce(&mut Self) -> Result<(), Failure>) {
        if self.failure.is_none() {
            let outcome = self.context.bind_to_thread().and_then(|()| work(self));
            self.failure = outcome.err().map(|error| failed(call, error).into());
        }
    }
}

impl Driver for CudaDriver {
    fn precision(&self) -> Precision {
        self.precision
    }

    fn allocate(&mut self, bytes: usize) -> Result<Address, DriverError> {
        let call = |error| DriverError::from(failed("cuMemAlloc", error));
        self.context.bind_to_thread().map_err(call)?;
        let (free_bytes, total_bytes) = result::mem_get_info().map_err(call)?;
        // SAFETY: a context is bound. The memory is freed once, when this is dropped.
        let pointer = unsafe { result::malloc_sync(bytes.max(1)) };
        let pointer = pointer.map_err(|error| match error.0 {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                DriverError::OutOfMemory { asked_bytes: bytes, free_bytes, total_bytes }
            }
            _ => call(error),
        })?;
        self.allocated.push(pointer);
        assert_eq!(pointer % ALIGNMENT, 0, "CUDA aligns what it allocates");
        self.zero(Address(pointer), bytes);
        Ok(Address(pointer))
    }

    fn write(&mut self, to: Address, bytes: &[u8]) {
        let stream = self.stream.clone();
        self.enqueue("cuMemcpyHtoDAsync", |gpu| gpu.staging.write(&stream, to.0, bytes));
    }

    fn deliver(&mut self, delivery: Delivery<'_>) -> DeliveryId {
        let Delivery { to, values, cast, waits } = delivery;
        let stream = self.arrivals.stream();
        self.enqueue("cuMemcpyHtoDAsync", |gpu| {
            if waits {
                stream.wait(&gpu.stream.record_event(None)?)?;
            }
            gpu.staging.write(&stream, to.0, bytemuck::cast_slice(values))?;
            cast.map_or(Ok(()), |cast| gpu.launch_on(&stream, cast))?;
            gpu.arrivals.record()
        });
        self.arrivals.last()
    }

    fn wait_for(&mut self, delivered: DeliveryId) {
        let stream = self.stream.clone();
        self.enqueue("cuStreamWaitEvent", |gpu| gpu.arrivals.wait_for(delivered, &stream));
    }

    fn read(&mut self, from: Address, into: &mut [u8]) -> Result<(), DriverError> {
        let stream = self.stream.clone();
        self.enqueue("cuMemcpyDtoHAsync", |gpu| gpu.fetches.read(&stream, from.0, into));
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn fetch(&mut self, from: Address, count: usize) {
        let stream = self.stream.clone();
        self.enqueue("cuEventRecord", |gpu| gpu.fetches.ask(&stream, from.0, 4 * count));
    }

    fn fetched(&mut self, wait: bool) -> Result<Option<&[f32]>, DriverError> {
        let mut part = None;
        self.enqueue("cuMemcpyDtoHAsync", |gpu| {
            part = gpu.fetches.next(wait)?;
            Ok(())
        });
        match &self.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(part.map(|part| self.fetches.values(part))),
        }
    }

    fn zero(&mut self, to: Address, bytes: usize) {
        self.enqueue("cuMemsetD8Async", |gpu| {
            // SAFETY: the caller names memory that was allocated here and lives as long as the GPU.
            unsafe { result::memset_d8_async(to.0, 0, bytes, gpu.stream.cu_stream()) }
        });
    }

    fn launch(&mut self, kernel: &'static Kernel, launch: Launch, arguments: &[Argument]) {
        let stream = self.stream.clone();
        let call = KernelCall { kernel, launch, arguments };
        self.enqueue(kernel.name, |gpu| gpu.launch_on(&stream, call));
    }

    fn matmul(&mut self, product: &Product) -> bool {
        let Some(products) = &mut self.products else { return false };
        if self.failure.is_some() {
            return true; // no more work is enqueued, not even the backend's own kernel
        }
        let bound = self.context.bind_to_thread().map_err(|error| failed("cuCtxSetCurrent", error));
        // After a failure here, another way of computing would give other bits, so there is none.
        bound.and_then(|()| products.compute(product, &self.stream)).unwrap_or_else(|error| {
            self.failure = Some(error.into());
            true
        })
    }
}

/// The address of an argument's value. CUDA copies as many bytes from there as the signature says.
fn pointer(argument: &Argument) -> *mut c_void {
    match argument {
        Argument::Address(address) => ptr::from_ref(&address.0).cast_mut().cast(),
        Argument::Long(value) => ptr::from_ref(value).cast_mut().cast(),
        Argument::Int(value) => ptr::from_ref(value).cast_mut().cast(),
        Argument::Float(value) => ptr::from_ref(value).cast_mut().cast(),
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        // A failure now is of no use to any caller: the process ends, or builds a new one.
        let _ = self.stream.synchronize();
        let _ = self.fetches.finish();
        let _ = self.arrivals.stream().synchronize();
        let _ = self.context.bind_to_thread();
        for pointer in self.allocated.drain(..) {
            // SAFETY: it was allocated here, and the GPU has done all that was enqueued.
            let _ = unsafe { result::free_sync(pointer) };
        }
    }
}

impl From<CudaError> for DriverError {
    fn from(error: CudaError) -> Self {
        Self::Failed(error.to_string())
    }
}
