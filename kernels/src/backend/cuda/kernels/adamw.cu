// Adam with decoupled weight decay. CPU reference: optimizer/adamw.rs and Optimizer::decay, whose
// bits these are: every operation is of IEEE, none is fused.
//
// Tried or considered: one thread an element with a stride of the whole grid: this. Bound by
// memory: it reads four values of an element and writes three.
// Never run on a GPU; run on the CPU under emulation.
//
// w: weight. m, v: running means of gradients and of their squares. g: gradient. kept: 1 - learning
// rate * weight decay, or 1. rate: learning rate over the correction of m. root: one over the root
// of the correction of v.

extern "C" __global__ void adamw(float* __restrict__ w, float* __restrict__ m,
                                 float* __restrict__ v, const float* __restrict__ g, u64 count,
                                 float kept, float clip, float beta1, float beta2, float epsilon,
                                 float rate, float root) {
    for (u64 i = thread_index(); i < count; i += thread_count()) {
        float clipped = g[i] * clip;
        float mean = canonical(beta1 * m[i] + (1.0f - beta1) * clipped);
        float square = canonical(beta2 * v[i] + (1.0f - beta2) * (clipped * clipped));
        m[i] = mean;
        v[i] = square;
        w[i] = canonical(w[i] * kept - rate * mean / (sqrtf(square) * root + epsilon));
    }
}
