// GELU in its tanh form, forward and backward. CPU reference: backend/cpu/gelu.rs, whose formula
// this is: (1 + tanh u) / 2 = 1 / (1 + e^-2u) has no cancellation for negative inputs.
//
// Tried or considered:
// 1. one thread an element: too few bytes on their way at once to keep the memory busy;
// 2. 16 bytes a thread at a time where both vectors are aligned: this; the forward pass does not
//    use the old output, so it is not read;
// 3. in the epilogue of the product before it: the library's, where it can (gpu/cublaslt.rs).
// On a GPU: right on an H200, beside the f64 reference.

// 2 sqrt(2 / pi).
constexpr float FACTOR = 1.5957692f;
constexpr float CUBIC = 0.044715f;

// The share of x that passes.
static __device__ __forceinline__ float gate(float x) {
    return 1.0f / (1.0f + expf(-FACTOR * x * (1.0f + CUBIC * x * x)));
}

extern "C" __global__ void gelu(const real* x, real* y, u64 count) {
    combine(x, y, count, [](float x, float) { return x * gate(x); });
}

extern "C" __global__ void gelu_backward(const real* x, real* dy, u64 count) {
    combine(x, dy, count, [](float x, float dy) {
        float share = gate(x), slope = FACTOR * (1.0f + 3.0f * CUBIC * x * x);
        return dy * (share + x * share * (1.0f - share) * slope);
    });
}
