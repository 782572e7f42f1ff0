//! Products by cuBLASLt. Each shape has a plan, made once.
//!
//! A plan fixes the algorithm, so equal shapes give equal bits in every call and every process on
//! one kind of GPU and one version of the library. Every algorithm adds up each sum in one order.
//! Most have one block for it. Gradients of weights have few elements, and sums over all rows: for
//! those the library may split the inner dimension among blocks (split-K), if it keeps the partial
//! sums, in f32, in the workspace, and adds them in a separate step. Algorithms that add to the
//! result in place, as blocks finish, are left out.
//!
//! The library stores matrices column by column. A matrix that lies row by row is its transpose
//! there, so it computes `c' = b' a'`. A bias, with one number for each of our columns, then has
//! one for each of the library's rows, as the library wants it. GELU's input, which it calls
//! auxiliary, is also `c'`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::ptr;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t,
    cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t as Attribute,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t, cublasStatus_t, cudaDataType,
};
use cudarc::driver::CudaStream;
use cudarc::driver::result as driver;
use tracing::{debug, warn};

use super::super::driver::{Address, Epilogue, Matrix, Product};
use super::super::memory::WORKSPACE_BYTES;
use super::devices;
use super::error::CudaError;
use crate::precision::Precision;

/// The oldest version with the calls that this code knows, in the library's count.
const OLDEST: usize = 130_000;
/// No algorithm asks for a stricter alignment.
const WIDEST: u64 = 256;
/// The alignment of an epilogue's vectors, bytes. The rows of GELU's input must be a multiple of
/// the second constant, elements. The documentation asks for the second. The first is what a thread
/// reads at once. With less, the library does only the product, and our kernels do the rest.
const EPILOGUE_BYTES: u32 = 16;
const INPUT_COLUMNS: usize = 8;

/// The library, and the plans made so far.
pub struct Products {
    handle: cublasLtHandle_t,
    workspace: u64,
    plans: HashMap<Shape, Option<MatmulPlan>>,
}

// SAFETY: any thread may use a handle, one thread at a time.
unsafe impl Send for Products {}

/// The properties of a product that decide the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    left: MatmulOperand,
    right: MatmulOperand,
    result: MatmulOperand,
    accumulate: bool,
    epilogue: cublasLtEpilogue_t,
    /// The alignment of the bias and of GELU's input, if the epilogue has them.
    vectors: [Option<u32>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct MatmulOperand {
    element: Precision,
    rows: usize,
    columns: usize,
    transposed: bool,
    /// The largest power of two, up to [`WIDEST`], that divides its address.
    alignment: u32,
}

/// Everything that the library wants to know of a product, except the addresses.
struct MatmulPlan {
    product: cublasLtMatmulDesc_t,
    /// Of the first, the second and the resulting matrix, as the library counts them.
    layouts: [cublasLtMatrixLayout_t; 3],
    algorithm: cublasLtMatmulAlgo_t,
}

impl Products {
    /// Opens the library, and allocates what its algorithms may use. It does so now, so that no
    /// other process takes that memory away in the midst of a run. `None`, with a warning, if the
    /// library is not available: all products then take a kernel of our own. A context is bound.
    ///
    /// # Errors
    /// [`CudaError::Full`], [`CudaError::Failed`].
    pub fn new() -> Result<Option<Self>, CudaError> {
        // SAFETY: it only opens a library by its well-known name.
        if !unsafe { sys::is_culib_present() } {
            warn!("libcublasLt.so.13 is not found: products take Everstep's own, slower kernel");
            return Ok(None);
        }
        // SAFETY: every version has this call.
        let version = unsafe { sys::cublasLtGetVersion() };
        if version < OLDEST {
            warn!(version, "cuBLASLt is older than 13.0: products take Everstep's own kernel");
            return Ok(None);
        }
        let handle = result::create_handle().map_err(|error| failed("cublasLtCreate", error))?;
        // SAFETY: a context is bound. The memory is freed once, with this.
        let workspace = unsafe { driver::malloc_sync(WORKSPACE_BYTES) };
        let workspace = workspace.map_err(|error| {
            // SAFETY: it was just created, and nothing uses it.
            let _ = unsafe { result::destroy_handle(handle) };
            devices::failed("cuMemAlloc", error)
        });
        Ok(Some(Self { handle, workspace: workspace?, plans: HashMap::new() }))
    }

    /// Enqueues a product. `false` if the library has no way to compute one of its shape, which is
    /// so in every call and every process.
    pub fn compute(&mut self, product: &Product, stream: &CudaStream) -> Result<bool, CudaError> {
        let shape = Shape::of(product);
        let plan = match self.plans.entry(shape) {
            Entry::Occupied(made) => made.into_mut(),
            Entry::Vacant(place) if !shape.is_taken() => {
                debug!(?shape, "cuBLASLt is not asked for this product");
                place.insert(None)
            }
            Entry::Vacant(place) => place.insert(match MatmulPlan::new(self.handle, &shape) {
                Ok(plan) => Some(plan),
                Err(CublasError(cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => {
                    debug!(?shape, "cuBLASLt has no algorithm for this product");
                    None
                }
                Err(error) => return Err(failed("cublasLtMatmulAlgoGetHeuristic", error)),
            }),
        };
        let Some(plan) = plan else { return Ok(false) };
        let enqueued = plan.enqueue(self.handle, product, self.workspace, stream);
        enqueued.map(|()| true).map_err(|error| failed("cublasLtMatmul", error))
    }
}

fn failed(call: &'static str, error: CublasError) -> CudaError {
    CudaError::Failed { call, why: error.to_string() }
}

impl MatmulPlan {
    fn new(handle: cublasLtHandle_t, shape: &Shape) -> Result<Self, CublasError> {
        let float = cudaDataType::CUDA_R_32F;
        // Exact products of f32, with no shorter format on the way.
        let product = result::create_matmul_desc(cublasComputeType_t::CUBLAS_COMPUTE_32F, float)?;
        let mut plan = Self {
            product,
            layouts: [ptr::null_mut(); 3],
            algorithm: cublasLtMatmulAlgo_t { data: [0; 8] },
        };
        let operands = [shape.right, shape.left, shape.result]; // c' = b' a'
        // CUBLAS_OP_N and CUBLAS_OP_T
        let [first, second] = [shape.right, shape.left].map(|it| i32::from(it.transposed));
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &first)?;
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &second)?;
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &(shape.epilogue as u32))?;
        if let [_, Some(_)] = shape.vectors {
            let columns = shape.result.columns as i64;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &columns)?;
        }
        // An algorithm depends only on the alignment of these addresses. So the plan takes
        // addresses with just this alignment.
        plan.set_vectors(shape.vectors.map(|alignment| alignment.map(u64::from)))?;
        for (layout, operand) in plan.layouts.iter_mut().zip(operands) {
            *layout = operand.layout()?;
        }
        let invalid = CublasError(cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE);
        plan.algorithm = plan.choose(handle, shape, operands).map_err(|error| {
            // No documentation lists in full which types it takes with an epilogue.
            let may_be_invalid = shape.epilogue != cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT;
            if may_be_invalid && error == invalid {
                return CublasError(cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED);
            }
            error
        })?;
        Ok(plan)
    }

    fn set<T>(&self, attribute: Attribute, value: &T) -> Result<(), CublasError> {
        let (value, size) = (ptr::from_ref(value).cast(), size_of::<T>());
        // SAFETY: the value is of the attribute's type, and the call copies it.
        unsafe { result::set_matmul_desc_attribute(self.product, attribute, value, size) }
    }

    /// Sets the addresses of the bias and of GELU's input.
    fn set_vectors(&self, [bias, input]: [Option<u64>; 2]) -> Result<(), CublasError> {
        let bias = bias.map(|at| (Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, at));
        let input = input.map(|at| (Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, at));
        bias.into_iter().chain(input).try_for_each(|(attribute, at)| self.set(attribute, &at))
    }

    /// The fastest algorithm in the library's opinion, among those with one order of addition.
    fn choose(
        &self,
        handle: cublasLtHandle_t,
        shape: &Shape,
        operands: [MatmulOperand; 3],
    ) -> Result<cublasLtMatmulAlgo_t, CublasError> {
        use cublasLtMatmulPreferenceAttributes_t::*;
        let preference = Preference(result::create_matmul_pref()?);
        preference.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE_BYTES)?;
        // Beside these the library may always take an algorithm that splits nothing.
        let splits: u32 = match shape.accumulate {
            true => 2,  // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
            false => 0, // CUBLASLT_REDUCTION_SCHEME_NONE
        };
        preference.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &splits)?;
        let [first, second, third] = operands.map(|operand| operand.alignment);
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &first)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &second)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &third)?;
        preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &third)?;
        let [a, b, c] = self.layouts;
        // SAFETY: all descriptors live. The result has the size that the call writes.
        let best = unsafe {
            result::get_matmul_algo_heuristic(handle, self.product, a, b, c, c, preference.0)?
        };
        Ok(best.algo)
    }

    fn enqueue(
        &self,
        handle: cublasLtHandle_t,
        product: &Product,
        workspace: u64,
        stream: &CudaStream,
    ) -> Result<(), CublasError> {
        self.set_vectors(product.epilogue.addresses().map(|at| at.map(|Address(at)| at)))?;
        let at = |matrix: &Matrix| matrix.address.0 as *mut c_void;
        let (one, old) = (1f32, if product.accumulate { 1f32 } else { 0f32 });
        let [a, b, c] = self.layouts;
        // SAFETY: the matrices lie where the backend says, as large as their layouts. Only this
        // stream uses the workspace, and the library copies the scalars.
        unsafe {
            result::matmul(
                handle,
                self.product,
                ptr::from_ref(&one).cast(),
                ptr::from_ref(&old).cast(),
                at(&product.b),
                a,
                at(&product.a),
                b,
                at(&product.c),
                c,
                at(&product.c),
                c,
                &raw const self.algorithm,
                workspace as *mut c_void,
                WORKSPACE_BYTES,
                stream.cu_stream().cast(),
            )
        }
    }
}

/// The wishes of a plan for its algorithm.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn set<T>(
        &self,
        attribute: cublasLtMatmulPreferenceAttributes_t,
        value: &T,
    ) -> Result<(), CublasError> {
        let (value, size) = (ptr::from_ref(value).cast(), size_of::<T>());
        // SAFETY: the value is of the attribute's type, and the call copies it.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, value, size) }
    }
}

impl Shape {
    fn of(product: &Product) -> Self {
        let Product { a, b, c, accumulate, epilogue } = *product;
        let [left, right, result] = [a, b, c].map(|matrix| MatmulOperand::of(&matrix));
        let vectors = epilogue.addresses().map(|address| address.map(alignment));
        let epilogue = match epilogue {
            Epilogue::None => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias { .. } => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS,
            Epilogue::Gelu { .. } => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
            Epilogue::GeluBackward { .. } => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DGELU,
        };
        Self { left, right, result, accumulate, epilogue, vectors }
    }

    /// Whether to ask the library for an algorithm at all. Not for GELU in f32, which is there to
    /// be exact: the library's `tanh` is good enough for 16 bits alone.
    fn is_taken(&self) -> bool {
        let [_, input] = self.vectors;
        let aligned = self.vectors.iter().flatten().all(|bytes| *bytes >= EPILOGUE_BYTES);
        let has_input = self.result.columns.is_multiple_of(INPUT_COLUMNS)
            && self.result.element != Precision::F32;
        aligned && (input.is_none() || has_input)
    }
}

/// The largest power of two, up to [`WIDEST`], that divides an address.
fn alignment(Address(address): Address) -> u32 {
    1 << (address | WIDEST).trailing_zeros()
}

impl MatmulOperand {
    fn of(matrix: &Matrix) -> Self {
        let Matrix { address, element, rows, columns, transposed } = *matrix;
        Self { element, rows, columns, transposed, alignment: alignment(address) }
    }

    /// The matrix as it lies in memory, read column by column. It has as many rows as a row is
    /// long.
    fn layout(self) -> Result<cublasLtMatrixLayout_t, CublasError> {
        let (long, many) = self.stored();
        let element = match self.element {
            Precision::F32 => cudaDataType::CUDA_R_32F,
            Precision::Bf16 => cudaDataType::CUDA_R_16BF,
            Precision::Fp16 => cudaDataType::CUDA_R_16F,
        };
        result::create_matrix_layout(element, long as u64, many as u64, long as i64)
    }

    /// The length of a row of the memory, and the number of rows.
    fn stored(self) -> (usize, usize) {
        match self.transposed {
            false => (self.columns, self.rows),
            true => (self.rows, self.columns),
        }
    }
}

impl Drop for MatmulPlan {
    fn drop(&mut self) {
        for layout in self.layouts.into_iter().filter(|layout| !layout.is_null()) {
            // SAFETY: the plan created this layout, and destroys it once. Enqueued work has copies.
            let _ = unsafe { result::destroy_matrix_layout(layout) };
        }
        // SAFETY: the plan created this descriptor, and destroys it once. Enqueued work has copies.
        let _ = unsafe { result::destroy_matmul_desc(self.product) };
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: this value owns the preference, and destroys it once. Only the search for an
        // algorithm reads it, which has returned.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: freeing waits for the work that uses the memory.
        let _ = unsafe { driver::free_sync(self.workspace) };
        // SAFETY: this value created the handle, and destroys it once. Its plans are gone, and no
        // work is under way: freeing the workspace has waited for it.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::driver::Address;
    use super::*;

    fn matrix(address: u64, rows: usize, columns: usize, transposed: bool) -> Matrix {
        let (address, element) = (Address(address), Precision::Bf16);
        Matrix { address, element, rows, columns, transposed }
    }

    #[test]
    fn a_plan_depends_on_the_shape_and_the_alignment_and_not_on_the_place() {
        let product = |at| Product {
            a: matrix(at, 2, 3, false),
            b: matrix(1 << 20, 3, 5, true),
            c: matrix(1 << 21, 2, 5, false),
            accumulate: false,
            epilogue: Epilogue::None,
        };
        let shape = |at| Shape::of(&product(at));
        assert_eq!(shape(512), shape(1 << 30));
        assert_eq!(shape(2 + 512).left.alignment, 2);
        assert_ne!(shape(2 + 512), shape(512));
        let adds = Product { accumulate: true, ..product(512) };
        assert_ne!(Shape::of(&adds), shape(512));
        let with_bias = |at| {
            let epilogue = Epilogue::Bias { bias: Address(at) };
            Shape::of(&Product { epilogue, ..product(512) })
        };
        assert_eq!(with_bias(512), with_bias(1 << 30));
        assert_ne!(with_bias(512), shape(512));
        assert_ne!(with_bias(512), with_bias(512 + 16));
    }

    #[test]
    fn an_epilogue_whose_vectors_are_not_aligned_or_too_narrow_is_not_the_librarys() {
        let (bias, input) = (Address(1 << 20), Address(1 << 21));
        let is_taken = |columns, epilogue| {
            let [a, b] = [matrix(2, 3, 7, false), matrix(4, 7, columns, false)];
            let c = matrix(6, 3, columns, false);
            Shape::of(&Product { a, b, c, accumulate: false, epilogue }).is_taken()
        };
        assert!(is_taken(5, Epilogue::None) && is_taken(5, Epilogue::Bias { bias }));
        assert!(!is_taken(5, Epilogue::Bias { bias: bias.plus(8) }));
        for (columns, taken) in [(8, true), (12, false)] {
            assert_eq!(is_taken(columns, Epilogue::Gelu { bias, input }), taken);
            assert_eq!(is_taken(columns, Epilogue::GeluBackward { input }), taken);
        }
        assert!(!is_taken(8, Epilogue::GeluBackward { input: input.plus(2) }));
    }

    #[test]
    fn a_gelu_in_f32_is_not_the_librarys() {
        let (bias, input) = (Address(1 << 20), Address(1 << 21));
        let exact =
            |rows, columns| Matrix { element: Precision::F32, ..matrix(0, rows, columns, false) };
        let is_taken = |epilogue| {
            let [a, b, c] = [exact(3, 7), exact(7, 8), exact(3, 8)];
            Shape::of(&Product { a, b, c, accumulate: false, epilogue }).is_taken()
        };
        assert!(is_taken(Epilogue::None) && is_taken(Epilogue::Bias { bias }));
        assert!(!is_taken(Epilogue::Gelu { bias, input }));
        assert!(!is_taken(Epilogue::GeluBackward { input }));
    }

    #[test]
    fn a_row_of_the_memory_is_a_column_of_the_library() {
        assert_eq!(MatmulOperand::of(&matrix(0, 2, 3, false)).stored(), (3, 2));
        // The memory holds the transpose: three rows of two.
        assert_eq!(MatmulOperand::of(&matrix(0, 2, 3, true)).stored(), (2, 3));
    }
}
