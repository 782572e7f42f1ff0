// Layer normalisation, forward and backward. CPU reference: backend/cpu/layer_norm.rs.
//
// Tried or considered:
// 1. one thread a row: neighbours read rows apart, nothing is coalesced;
// 2. one warp a row, sums by shuffles, 16 bytes a lane at a time where rows are aligned, the row
//    read again from the cache for the deviation and for the output: each read waits for memory;
// 3. the row in registers meanwhile, if it is not wider than 1,024 numbers of 16 bits: this.
// Gradients of weight and bias: blocks of columns over chunks of rows, then partials.cu, as for
// a bias; a pass of its own, since a row's warp would have to add to all columns of all rows.
// On a GPU: the version before was right on an H200; this one ran on the CPU under emulation.
//
// statistics: mean and reciprocal deviation of each row. g: gradient of the normalised input.

constexpr float EPSILON = 1e-5f;
constexpr int WARP = 32;
constexpr int COLUMNS = 64;  // of a block of sums over rows: two a thread
constexpr int LANES = 8;
constexpr int BATCH = 4;  // rows that a thread of such a block reads before it waits for one

// The place of the n-th piece of a lane, of N numbers, in a row.
template <int N>
static __device__ __forceinline__ u64 place(int n) {
    return ((u64)n * WARP + threadIdx.x) * N;
}

static __device__ __forceinline__ void load(float (&values)[1], const real* from) {
    values[0] = load(from);
}

static __device__ __forceinline__ void store(real* to, const float (&values)[1]) {
    store(to, values[0]);
}

// The lane's pieces of a row of any width, of a chunk each where all rows are aligned, else of one
// number: read again each time.
template <int N>
struct InMemory {
    static constexpr int PIECE = N;
    const real* row;
    u64 width;

    __device__ InMemory(const real* row, u64 width) : row(row), width(width) {}
    __device__ int pieces() const { return (int)((width + WARP * N - 1) / (WARP * N)); }
    __device__ void read(float (&values)[N], int n) const { load(values, &row[place<N>(n)]); }
};

// Those of a narrow row whose chunks are aligned: all of them are on their way at once, and stay.
struct InRegisters {
    static constexpr int PIECE = CHUNK;
    static constexpr int MOST = 4;
    Chunk chunks[MOST];

    __device__ InRegisters(const real* row, u64 width) {
#pragma unroll
        for (int n = 0; n < MOST; n++) {
            chunks[n] = {};
            if (place<CHUNK>(n) < width) chunks[n] = *(const Chunk*)&row[place<CHUNK>(n)];
        }
    }
    __device__ static bool fits(u64 width) { return width <= MOST * WARP * CHUNK; }
    __device__ constexpr int pieces() const { return MOST; }
    __device__ void read(float (&values)[CHUNK], int n) const {
        load(values, (const real*)&chunks[n]);
    }
};

template <typename Row>
static __device__ __forceinline__ void forward(const real* x, const real* __restrict__ weight,
                                               const real* __restrict__ bias, real* y,
                                               float* statistics, u64 width) {
    constexpr int N = Row::PIECE;
    float in[N], scale[N], shift[N], out[N];
    Row row(x, width);
    float sum = 0, squares = 0;
#pragma unroll
    for (int n = 0; n < row.pieces(); n++) {
        if (place<N>(n) >= width) continue;
        row.read(in, n);
#pragma unroll
        for (int e = 0; e < N; e++) sum += in[e];
    }
    float mean = group_sum(sum, WARP) / (float)width;
#pragma unroll
    for (int n = 0; n < row.pieces(); n++) {
        if (place<N>(n) >= width) continue;
        row.read(in, n);
#pragma unroll
        for (int e = 0; e < N; e++) squares = fmaf(in[e] - mean, in[e] - mean, squares);
    }
    float inverse = 1.0f / sqrtf(group_sum(squares, WARP) / (float)width + EPSILON);
#pragma unroll
    for (int n = 0; n < row.pieces(); n++) {
        if (place<N>(n) >= width) continue;
        row.read(in, n);
        load(scale, &weight[place<N>(n)]);
        load(shift, &bias[place<N>(n)]);
#pragma unroll
        for (int e = 0; e < N; e++) out[e] = (in[e] - mean) * inverse * scale[e] + shift[e];
        store(&y[place<N>(n)], out);
    }
    if (threadIdx.x == 0) {
        statistics[0] = mean;
        statistics[1] = inverse;
    }
}

extern "C" __global__ void layer_norm(const real* x, const real* weight, const real* bias, real* y,
                                      float* statistics, u64 rows, u64 width) {
    u64 row = (u64)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    bool whole = width % CHUNK == 0 && aligned(weight) && aligned(bias);
    bool chunks = whole && aligned(x) && aligned(y);
    x += row * width;
    y += row * width;
    statistics += 2 * row;
    if (!chunks) forward<InMemory<1>>(x, weight, bias, y, statistics, width);
    else if (InRegisters::fits(width)) forward<InRegisters>(x, weight, bias, y, statistics, width);
    else forward<InMemory<CHUNK>>(x, weight, bias, y, statistics, width);
}

template <typename Row>
static __device__ __forceinline__ void backward(const real* x, const real* __restrict__ weight,
                                                const float* statistics, const real* dy, real* dx,
                                                u64 width) {
    constexpr int N = Row::PIECE;
    float in[N], scale[N], d_out[N], d_in[N];
    Row xs(x, width), dys(dy, width), dxs(dx, width);
    float mean = statistics[0], inverse = statistics[1], sum = 0, product = 0;
#pragma unroll
    for (int n = 0; n < xs.pieces(); n++) {
        if (place<N>(n) >= width) continue;
        xs.read(in, n);
        dys.read(d_out, n);
        load(scale, &weight[place<N>(n)]);
#pragma unroll
        for (int e = 0; e < N; e++) {
            float g = d_out[e] * scale[e];
            sum += g;
            product = fmaf(g, (in[e] - mean) * inverse, product);
        }
    }
    float mean_g = group_sum(sum, WARP) / (float)width;
    float mean_product = group_sum(product, WARP) / (float)width;
#pragma unroll
    for (int n = 0; n < xs.pieces(); n++) {
        if (place<N>(n) >= width) continue;
        xs.read(in, n);
        dys.read(d_out, n);
        dxs.read(d_in, n);
        load(scale, &weight[place<N>(n)]);
#pragma unroll
        for (int e = 0; e < N; e++) {
            float g = d_out[e] * scale[e], normal = (in[e] - mean) * inverse;
            d_in[e] += inverse * (g - mean_g - normal * mean_product);
        }
        store(&dx[place<N>(n)], d_in);
    }
}

extern "C" __global__ void layer_norm_backward(const real* x, const real* weight,
                                               const float* statistics, const real* dy, real* dx,
                                               u64 rows, u64 width) {
    u64 row = (u64)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    bool whole = width % CHUNK == 0 && aligned(weight);
    bool chunks = whole && aligned(x) && aligned(dy) && aligned(dx);
    x += row * width;
    dy += row * width;
    dx += row * width;
    statistics += 2 * row;
    if (!chunks) backward<InMemory<1>>(x, weight, statistics, dy, dx, width);
    else if (InRegisters::fits(width)) backward<InRegisters>(x, weight, statistics, dy, dx, width);
    else backward<InMemory<CHUNK>>(x, weight, statistics, dy, dx, width);
}

// The sums for weight and bias of two columns over some rows, those of this thread.
template <bool PAIRS>
static __device__ __forceinline__ void sum_rows(float (&weight)[2], float (&bias)[2],
                                                const real* x, const float* statistics,
                                                const real* dy, u64 first, u64 end, u64 width,
                                                u64 left) {
    for (u64 row = first + threadIdx.y; row < end; row += BATCH * LANES) {
        float in[BATCH][2], d_out[BATCH][2], mean[BATCH], inverse[BATCH];
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            u64 at = row + n * LANES;
            load_pair<PAIRS>(in[n], &x[at * width], at < end ? left : 0);
            load_pair<PAIRS>(d_out[n], &dy[at * width], at < end ? left : 0);
            mean[n] = at < end ? statistics[2 * at] : 0.0f;
            inverse[n] = at < end ? statistics[2 * at + 1] : 0.0f;
        }
#pragma unroll
        for (int n = 0; n < BATCH; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                weight[c] = fmaf(d_out[n][c], (in[n][c] - mean[n]) * inverse[n], weight[c]);
                bias[c] += d_out[n][c];
            }
    }
}

// As bias_partials in bias.cu, for weight and bias at once.
extern "C" __global__ void layer_norm_partials(const real* __restrict__ x,
                                               const float* __restrict__ statistics,
                                               const real* __restrict__ dy, float* d_weight,
                                               float* d_bias, u64 rows, u64 width, u64 chunk,
                                               int direct) {
    __shared__ float weights[LANES][COLUMNS], biases[LANES][COLUMNS];
    u64 column = (u64)blockIdx.x * COLUMNS + 2 * threadIdx.x;
    u64 first = blockIdx.y * chunk, end = first + chunk < rows ? first + chunk : rows;
    u64 left = column < width ? width - column : 0;
    float weight[2] = {}, bias[2] = {};
    x += column;
    dy += column;
    if (in_pairs(x, width) && in_pairs(dy, width))
        sum_rows<true>(weight, bias, x, statistics, dy, first, end, width, left);
    else sum_rows<false>(weight, bias, x, statistics, dy, first, end, width, left);
    for (int n = 0; n < 2; n++) {
        weights[threadIdx.y][2 * threadIdx.x + n] = weight[n];
        biases[threadIdx.y][2 * threadIdx.x + n] = bias[n];
    }
    __syncthreads();
    if (threadIdx.y > 0) return;
    for (int n = 0; n < 2 && n < left; n++) {
        for (int lane = 1; lane < LANES; lane++) {
            weight[n] += weights[lane][2 * threadIdx.x + n];
            bias[n] += biases[lane][2 * threadIdx.x + n];
        }
        u64 at = blockIdx.y * width + column + n;
        d_weight[at] = direct ? d_weight[at] + weight[n] : weight[n];
        d_bias[at] = direct ? d_bias[at] + bias[n] : bias[n];
    }
}
