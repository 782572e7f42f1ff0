// The sums of squares of blocks of 64 Ki elements. CPU reference: reduce::sum_of_squares, whose
// bits these are: element i goes to lane i % 16, in f64, and the lanes are added along a tree. The
// host adds the blocks in index order.
//
// Tried or considered:
// 1. a tree over all threads of a block: faster, and other bits than the CPU's;
// 2. 16 threads a block of elements, as the lanes of the CPU, eight of these a block of threads:
//    this. Long chains of additions, hidden by the number of blocks: a hundred million elements
//    have 1,500.
// Never run on a GPU; run on the CPU under emulation.

constexpr u64 BLOCK = 64 << 10;
constexpr int LANES = 16;
constexpr int GROUPS = 8;

extern "C" __global__ void sum_of_squares(const float* values, double* blocks, u64 count) {
    __shared__ double lanes[GROUPS][LANES];
    u64 block = (u64)blockIdx.x * GROUPS + threadIdx.y;
    u64 start = block * BLOCK, end = start + BLOCK < count ? start + BLOCK : count;
    double sum = 0;
    for (u64 i = start + threadIdx.x; i < end; i += LANES) {
        double value = values[i];
        sum += value * value;
    }
    lanes[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x > 0 || start >= count) return;
    double* own = lanes[threadIdx.y];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++) own[lane] += own[lane + half];
    blocks[block] = own[0];
}
