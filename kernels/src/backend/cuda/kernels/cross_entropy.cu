// Softmax cross-entropy with its gradient, in the memory of the logits. CPU reference:
// backend/cpu/cross_entropy.rs.
//
// Tried or considered:
// 1. one thread a row: as many threads as rows, and nothing coalesced;
// 2. one block a row, three passes over it: the largest, the sum, the gradient;
// 3. the largest and the sum in one pass (Milakov, Gimelshein: "Online normalizer calculation for
//    softmax"), each thread its own, combined by a fixed tree: this. A row is read twice.
// Never run on a GPU; run on the CPU under emulation.

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS)
    cross_entropy(real* logits, const u32* targets, float* losses, u64 classes, float scale) {
    __shared__ float peaks[WARPS], sums[WARPS];
    u64 row = blockIdx.x, target = targets[row];
    logits += row * classes;
    // Read before the first barrier, and overwritten after it.
    float right = load(&logits[target]);
    Exponentials own = {LOWEST, 0};
    for (u64 i = threadIdx.x; i < classes; i += THREADS) own = with(own, load(&logits[i]));
    own = group_exponentials(own, 32);
    if (threadIdx.x % 32 == 0) {
        peaks[threadIdx.x / 32] = own.peak;
        sums[threadIdx.x / 32] = own.sum;
    }
    __syncthreads();
    float peak = peaks[0], sum = 0;
    for (int warp = 1; warp < WARPS; warp++) peak = fmaxf(peak, peaks[warp]);
    for (int warp = 0; warp < WARPS; warp++) sum += sums[warp] * expf(peaks[warp] - peak);
    float factor = scale / sum;
    for (u64 i = threadIdx.x; i < classes; i += THREADS) {
        float d = expf(load(&logits[i]) - peak) * factor;
        store(&logits[i], i == target ? d - scale : d);
    }
    if (threadIdx.x == 0) losses[row] = logf(sum) - (right - peak);
}
