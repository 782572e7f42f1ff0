// Softmax cross-entropy with its gradient, in the memory of the logits. CPU reference:
// backend/cpu/cross_entropy.rs.
//
// Tried or considered:
// 1. one thread a row: as many threads as rows, and nothing coalesced;
// 2. one block a row, three passes over it: the largest, the sum, the gradient;
// 3. the largest and the sum in one pass (Milakov, Gimelshein: "Online normalizer calculation for
//    softmax"), each thread its own, combined by a fixed tree, 16 bytes at a time: this. A row is
//    read twice. Its sum depends on where the row begins, so on its place in the micro-batch.
// On a GPU: right on an H200, beside the f64 reference.

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;

extern "C" __global__ void __launch_bounds__(THREADS)
    cross_entropy(real* logits, const u32* targets, float* losses, u64 classes, float scale) {
    u64 row = blockIdx.x, target = targets[row];
    logits += row * classes;
    // Read before the first barrier, and overwritten after it.
    float right = load(&logits[target]);
    // A row of any number of classes: some numbers up to the first aligned one, chunks, the rest.
    u64 odd = (u64)logits % sizeof(Chunk);
    u64 head = odd == 0 ? 0 : (sizeof(Chunk) - odd) / sizeof(real);
    head = head < classes ? head : classes;
    u64 tail = head + (classes - head) / CHUNK * CHUNK;
    Exponentials own = {LOWEST, 0};
    if (threadIdx.x < head) own = with(own, load(&logits[threadIdx.x]));
    for (u64 i = head + threadIdx.x * CHUNK; i < tail; i += THREADS * CHUNK) {
        float values[CHUNK], peak = own.peak;
        load(values, &logits[i]);
#pragma unroll
        for (int n = 0; n < CHUNK; n++) peak = fmaxf(peak, values[n]);
        own = {peak, own.sum * expf(own.peak - peak)};
#pragma unroll
        for (int n = 0; n < CHUNK; n++) own.sum += expf(values[n] - peak);
    }
    if (tail + threadIdx.x < classes) own = with(own, load(&logits[tail + threadIdx.x]));
    own = block_exponentials<WARPS>(own);
    float peak = own.peak, sum = own.sum;
    float factor = scale / sum;
    auto d = [=](float logit, u64 i) {
        float d = expf(logit - peak) * factor;
        return i == target ? d - scale : d;
    };
    if (threadIdx.x < head) {
        u64 i = threadIdx.x;
        store(&logits[i], d(load(&logits[i]), i));
    }
    for (u64 i = head + threadIdx.x * CHUNK; i < tail; i += THREADS * CHUNK) {
        float values[CHUNK];
        load(values, &logits[i]);
#pragma unroll
        for (int n = 0; n < CHUNK; n++) values[n] = d(values[n], i + n);
        store(&logits[i], values);
    }
    if (tail + threadIdx.x < classes) {
        u64 i = tail + threadIdx.x;
        store(&logits[i], d(load(&logits[i]), i));
    }
    if (threadIdx.x == 0) losses[row] = logf(sum) - (right - peak);
}
