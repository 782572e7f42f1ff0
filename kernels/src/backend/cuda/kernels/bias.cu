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
// 2. blocks of 32 columns over chunks of rows, whose sums a second kernel (partials.cu) adds in
//    order: this. No atomics, so the bits are the same on every run.
// Never run on a GPU; run on the CPU under emulation.

constexpr int COLUMNS = 32;
constexpr int LANES = 8;

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

// Block (x, y) sums `chunk` rows, beginning at y * chunk. Where `direct`, there is one chunk, and
// the sum is added to the gradient itself.
extern "C" __global__ void bias_partials(const real* __restrict__ dy, float* partials,
                                         u64 rows, u64 columns, u64 chunk, int direct) {
    __shared__ float sums[LANES][COLUMNS];
    u64 column = (u64)blockIdx.x * COLUMNS + threadIdx.x;
    u64 first = blockIdx.y * chunk, end = first + chunk < rows ? first + chunk : rows;
    float sum = 0;
    if (column < columns)
        for (u64 row = first + threadIdx.y; row < end; row += LANES)
            sum += load(&dy[row * columns + column]);
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= columns) return;
    for (int lane = 1; lane < LANES; lane++) sum += sums[lane][threadIdx.x];
    float* to = &partials[blockIdx.y * columns + column];
    *to = direct ? *to + sum : sum;
}
