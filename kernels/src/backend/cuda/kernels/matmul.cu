// Products of matrices, any of the operands transposed, written or added. CPU reference:
// Backend::matmul and matmul_add, backend/reference.rs. For devices without the library of products
// and to check it against; a library with tensor cores is some ten times as fast.
//
// Tried or considered:
// 1. one thread an element of c: every operand read from memory 64 times as often;
// 2. tiles of 64 x 64 of c in shared memory, 4 x 4 of them a thread in registers, 16 of the inner
//    size at a time: this. Sums run in the order of the inner index, so the bits do not depend on
//    the tiling;
// 3. tensor cores: the library's work.
// On a GPU: right on an H200, beside the f64 reference.
//
// c [m, n], a [m, k], b [k, n]; a transposed operand lies in memory as [k, m] or [n, k].

constexpr int TILE = 64;
constexpr int STEP = 16;
constexpr int SIDE = 16;          // threads along each side of a tile
constexpr int OWN = TILE / SIDE;  // rows and columns of a thread
constexpr int THREADS = SIDE * SIDE;

// Copies inner indices first .. first + STEP of TILE rows (or columns) of an operand. `along` says
// that neighbours in memory are neighbours in the inner index, and so neighbouring threads take
// those.
static __device__ void fetch(float (*tile)[TILE + 1], const real* from, u64 start, u64 count,
                             u64 first, u64 inner, bool along) {
    for (int n = threadIdx.x; n < TILE * STEP; n += THREADS) {
        int step = along ? n % STEP : n / TILE, at = along ? n / STEP : n % TILE;
        u64 outer = start + at, k = first + step;
        bool inside = outer < count && k < inner;
        const real* element = from + (along ? outer * inner + k : k * count + outer);
        tile[step][at] = inside ? load(element) : 0.0f;
    }
}

template <typename T>
static __device__ void multiply(const real* a, const real* b, T* c, u64 m, u64 n, u64 k,
                                int a_transposed, int b_transposed, int accumulate) {
    __shared__ float left[STEP][TILE + 1], right[STEP][TILE + 1];
    u64 tiles = (n + TILE - 1) / TILE;
    u64 row = blockIdx.x / tiles * TILE, column = blockIdx.x % tiles * TILE;
    int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    float sums[OWN][OWN] = {};
    for (u64 first = 0; first < k; first += STEP) {
        fetch(left, a, row, m, first, k, !a_transposed);
        fetch(right, b, column, n, first, k, b_transposed);
        __syncthreads();
        for (int step = 0; step < STEP; step++)
            #pragma unroll
            for (int i = 0; i < OWN; i++)
                #pragma unroll
                for (int j = 0; j < OWN; j++)
                    sums[i][j] = fmaf(left[step][y + i * SIDE], right[step][x + j * SIDE],
                                      sums[i][j]);
        __syncthreads();
    }
    #pragma unroll
    for (int i = 0; i < OWN; i++)
        #pragma unroll
        for (int j = 0; j < OWN; j++) {
            u64 at_row = row + y + i * SIDE, at_column = column + x + j * SIDE;
            if (at_row >= m || at_column >= n) continue;
            T* to = &c[at_row * n + at_column];
            store(to, accumulate ? load(to) + sums[i][j] : sums[i][j]);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul(const real* a, const real* b, real* c, u64 m, u64 n, u64 k, int a_transposed,
           int b_transposed, int accumulate) {
    multiply(a, b, c, m, n, k, a_transposed, b_transposed, accumulate);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_f32(const real* a, const real* b, float* c, u64 m, u64 n, u64 k, int a_transposed,
               int b_transposed, int accumulate) {
    multiply(a, b, c, m, n, k, a_transposed, b_transposed, accumulate);
}
