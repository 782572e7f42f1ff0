// Stochastic gradient descent, with and without heavy-ball momentum, and decoupled weight decay.
// CPU reference: optimizer/sgd.rs and Optimizer::decay, whose bits these are.
//
// Tried or considered: one thread an element with a stride of the grid: this; bound by memory.
// Never run on a GPU; run on the CPU under emulation.
//
// w: weight. v: velocity. g: gradient. kept: 1 - learning rate * weight decay, or 1.

extern "C" __global__ void sgd(float* __restrict__ w, const float* __restrict__ g, u64 count,
                               float kept, float clip, float rate) {
    for (u64 i = thread_index(); i < count; i += thread_count())
        w[i] = canonical(w[i] * kept - rate * (g[i] * clip));
}

extern "C" __global__ void sgd_momentum(float* __restrict__ w, float* __restrict__ v,
                                        const float* __restrict__ g, u64 count, float kept,
                                        float clip, float rate, float momentum) {
    for (u64 i = thread_index(); i < count; i += thread_count()) {
        float velocity = canonical(momentum * v[i] + g[i] * clip);
        v[i] = velocity;
        w[i] = canonical(w[i] * kept - rate * velocity);
    }
}
