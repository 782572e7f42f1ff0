// GELU in its tanh form, forward and backward. CPU reference: backend/cpu/gelu.rs, whose formula
// this is: (1 + tanh u) / 2 = 1 / (1 + e^-2u) has no cancellation for negative inputs.
//
// Tried or considered:
// 1. one thread an element with a stride of the whole grid: this;
// 2. in the epilogue of the product before it: the library's, where the driver has one.
// Never run on a GPU; run on the CPU under emulation.

// 2 sqrt(2 / pi).
constexpr float FACTOR = 1.5957692f;
constexpr float CUBIC = 0.044715f;

// The share of x that passes.
static __device__ __forceinline__ float gate(float x) {
    return 1.0f / (1.0f + expf(-FACTOR * x * (1.0f + CUBIC * x * x)));
}

extern "C" __global__ void gelu(const real* x, real* y, u64 count) {
    for (u64 i = thread_index(); i < count; i += thread_count()) {
        float value = load(&x[i]);
        store(&y[i], value * gate(value));
    }
}

extern "C" __global__ void gelu_backward(const real* x, real* dy, u64 count) {
    for (u64 i = thread_index(); i < count; i += thread_count()) {
        float value = load(&x[i]), share = gate(value);
        float slope = FACTOR * (1.0f + 3.0f * CUBIC * value * value);
        store(&dy[i], load(&dy[i]) * (share + value * share * (1.0f - share) * slope));
    }
}
