// Lion with decoupled weight decay. CPU reference: optimizer/lion.rs and Optimizer::decay, whose
// bits these are.
//
// Tried or considered: one thread an element with a stride of the grid: this; bound by memory.
// Never run on a GPU; run on the CPU under emulation.
//
// w: weight. m: running mean of gradients. g: gradient. kept: 1 - learning rate * weight decay,
// or 1.

// -1, 0 or 1; of NaN it is zero.
static __device__ __forceinline__ float sign(float value) {
    return (float)(value > 0.0f) - (float)(value < 0.0f);
}

extern "C" __global__ void lion(float* __restrict__ w, float* __restrict__ m,
                                const float* __restrict__ g, u64 count, float kept, float clip,
                                float rate, float beta1, float beta2) {
    for (u64 i = thread_index(); i < count; i += thread_count()) {
        float clipped = g[i] * clip, mean = m[i];
        float moved = rate * sign(beta1 * mean + (1.0f - beta1) * clipped);
        w[i] = canonical(w[i] * kept - moved);
        m[i] = canonical(beta2 * mean + (1.0f - beta2) * clipped);
    }
}
