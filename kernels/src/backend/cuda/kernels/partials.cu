// The second pass of a sum over rows: adds the sums of chunks to a gradient.
// CPU references: Backend::bias_backward, layer_norm_backward.
//
// Tried or considered:
// 1. one thread a column: each addition waits for a number to come from memory;
// 2. eight threads a column, which take every eighth chunk, and whose sums are then added in order:
//    this.
// On a GPU: the version before was right on an H200; this one ran on the CPU under emulation.

constexpr int COLUMNS = 32;
constexpr int LANES = 8;
constexpr int BATCH = 8;  // numbers that a thread reads before it waits for one of them

extern "C" __global__ void add_partials(const float* __restrict__ partials, float* d, u64 chunks,
                                        u64 columns) {
    __shared__ float sums[LANES][COLUMNS];
    u64 column = (u64)blockIdx.x * COLUMNS + threadIdx.x;
    float sum = 0;
    for (u64 chunk = threadIdx.y; chunk < chunks; chunk += BATCH * LANES) {
        float values[BATCH];
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            u64 at = chunk + n * LANES;
            values[n] = at < chunks && column < columns ? partials[at * columns + column] : 0.0f;
        }
#pragma unroll
        for (int n = 0; n < BATCH; n++) sum += values[n];
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= columns) return;
    for (int lane = 1; lane < LANES; lane++) sum += sums[lane][threadIdx.x];
    d[column] += sum;
}
