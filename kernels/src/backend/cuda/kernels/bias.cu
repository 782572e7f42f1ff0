// A bias, forward and backward. CPU references: Backend::add_bias and bias_backward in
// backend/cpu.rs.
//
// Tried or considered, forward:
// 1. one thread an element: a division of 64 bits for each;
// 2. one thread a column, or 16 bytes of columns where rows are aligned, the biases in registers,
//    going down the rows: this;
// 3. in the epilogue of the product before it: the library's, where it can (gpu/cublaslt.rs).
// Backward:
// 1. one thread a column: too few threads for a narrow matrix of many rows;
// 2. blocks of columns over chunks of rows, whose sums a second kernel (partials.cu) adds in order,
//    so that the bits are the same on every run, without atomics: a column a thread reads 2 bytes
//    at a time in 16 bits;
// 3. the same with two columns a thread: this.
// On a GPU: the version before was right on an H200; this one ran on the CPU under emulation.

constexpr int COLUMNS = 64;  // of a block: two a thread
constexpr int LANES = 8;
constexpr int BATCH = 8;  // rows that a thread reads before it waits for one of them

extern "C" __global__ void add_bias(const real* __restrict__ bias, real* __restrict__ y, u64 rows,
                                    u64 columns) {
    bool chunks = columns % CHUNK == 0 && aligned(bias) && aligned(y);
    u64 column = chunks ? thread_index() * CHUNK : thread_index();
    if (column >= columns) return;
    if (!chunks) {
        float value = load(&bias[column]);
        for (u64 row = blockIdx.y; row < rows; row += gridDim.y) {
            real* to = &y[row * columns + column];
            store(to, load(to) + value);
        }
        return;
    }
    float values[CHUNK], sums[CHUNK];
    load(values, &bias[column]);
    for (u64 row = blockIdx.y; row < rows; row += gridDim.y) {
        real* to = &y[row * columns + column];
        load(sums, to);
#pragma unroll
        for (int n = 0; n < CHUNK; n++) sums[n] += values[n];
        store(to, sums);
    }
}

// The sums of two columns over some rows, those of this thread.
template <bool PAIRS>
static __device__ __forceinline__ void sum_rows(float (&sum)[2], const real* dy, u64 first,
                                                u64 end, u64 columns, u64 left) {
    for (u64 row = first + threadIdx.y; row < end; row += BATCH * LANES) {
        float values[BATCH][2];
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            u64 at = row + n * LANES;
            load_pair<PAIRS>(values[n], &dy[at * columns], at < end ? left : 0);
        }
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            sum[0] += values[n][0];
            sum[1] += values[n][1];
        }
    }
}

// Block (x, y) sums `chunk` rows, beginning at y * chunk. Where `direct`, there is one chunk, and
// the sum is added to the gradient itself.
extern "C" __global__ void bias_partials(const real* __restrict__ dy, float* partials,
                                         u64 rows, u64 columns, u64 chunk, int direct) {
    __shared__ float sums[LANES][COLUMNS];
    u64 column = (u64)blockIdx.x * COLUMNS + 2 * threadIdx.x;
    u64 first = blockIdx.y * chunk, end = first + chunk < rows ? first + chunk : rows;
    u64 left = column < columns ? columns - column : 0;
    float sum[2] = {};
    if (in_pairs(dy, columns)) sum_rows<true>(sum, dy + column, first, end, columns, left);
    else sum_rows<false>(sum, dy + column, first, end, columns, left);
    for (int n = 0; n < 2; n++) sums[threadIdx.y][2 * threadIdx.x + n] = sum[n];
    __syncthreads();
    if (threadIdx.y > 0) return;
    for (int n = 0; n < 2 && n < left; n++) {
        for (int lane = 1; lane < LANES; lane++) sum[n] += sums[lane][2 * threadIdx.x + n];
        float* to = &partials[blockIdx.y * columns + column + n];
        *to = direct ? *to + sum[n] : sum[n];
    }
}
