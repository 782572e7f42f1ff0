// Layer normalisation, forward and backward. CPU reference: backend/cpu/layer_norm.rs.
//
// Tried or considered:
// 1. one thread a row: neighbours read rows apart, nothing is coalesced;
// 2. one warp a row, sums by shuffles, 16 bytes a lane at a time where rows are aligned, the row
//    read again from the cache for the deviation and for the output: this;
// 3. the row kept in registers between the three: needs the width at compile time.
// Gradients of weight and bias: blocks of columns over chunks of rows, then partials.cu, as for
// a bias; a pass of its own, since a row's warp would have to add to all columns of all rows.
// Never run on a GPU; run on the CPU under emulation.
//
// statistics: mean and reciprocal deviation of each row. g: gradient of the normalised input.

constexpr float EPSILON = 1e-5f;
constexpr int WARP = 32;
constexpr int COLUMNS = 64;  // of a block of sums over rows: two a thread
constexpr int LANES = 8;
constexpr int BATCH = 4;  // rows that a thread of such a block reads before it waits for one

// A lane takes N numbers at a time: a chunk where all rows are aligned, else one.
template <int N>
struct Lane;

template <>
struct Lane<1> {
    float at[1];

    __device__ void read(const real* from) { at[0] = load(from); }
    __device__ void write(real* to) const { store(to, at[0]); }
};

template <>
struct Lane<CHUNK> {
    float at[CHUNK];

    __device__ void read(const real* from) { load(at, from); }
    __device__ void write(real* to) const { store(to, at); }
};

template <int N>
static __device__ void forward(const real* __restrict__ x, const real* __restrict__ weight,
                               const real* __restrict__ bias, real* __restrict__ y,
                               float* statistics, u64 width) {
    Lane<N> in, scale, shift, out;
    float sum = 0;
    for (u64 i = threadIdx.x * N; i < width; i += WARP * N) {
        in.read(&x[i]);
#pragma unroll
        for (int n = 0; n < N; n++) sum += in.at[n];
    }
    float mean = group_sum(sum, WARP) / (float)width;
    float squares = 0;
    for (u64 i = threadIdx.x * N; i < width; i += WARP * N) {
        in.read(&x[i]);
#pragma unroll
        for (int n = 0; n < N; n++) squares = fmaf(in.at[n] - mean, in.at[n] - mean, squares);
    }
    float inverse = 1.0f / sqrtf(group_sum(squares, WARP) / (float)width + EPSILON);
    for (u64 i = threadIdx.x * N; i < width; i += WARP * N) {
        in.read(&x[i]);
        scale.read(&weight[i]);
        shift.read(&bias[i]);
#pragma unroll
        for (int n = 0; n < N; n++)
            out.at[n] = (in.at[n] - mean) * inverse * scale.at[n] + shift.at[n];
        out.write(&y[i]);
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
    bool chunks = width % CHUNK == 0 && aligned(x) && aligned(weight) && aligned(bias);
    x += row * width;
    y += row * width;
    statistics += 2 * row;
    if (chunks && aligned(y)) forward<CHUNK>(x, weight, bias, y, statistics, width);
    else forward<1>(x, weight, bias, y, statistics, width);
}

template <int N>
static __device__ void backward(const real* __restrict__ x, const real* __restrict__ weight,
                                const float* statistics, const real* __restrict__ dy,
                                real* __restrict__ dx, u64 width) {
    Lane<N> in, scale, d_out, d_in;
    float mean = statistics[0], inverse = statistics[1], sum = 0, product = 0;
    for (u64 i = threadIdx.x * N; i < width; i += WARP * N) {
        in.read(&x[i]);
        scale.read(&weight[i]);
        d_out.read(&dy[i]);
#pragma unroll
        for (int n = 0; n < N; n++) {
            float g = d_out.at[n] * scale.at[n];
            sum += g;
            product = fmaf(g, (in.at[n] - mean) * inverse, product);
        }
    }
    float mean_g = group_sum(sum, WARP) / (float)width;
    float mean_product = group_sum(product, WARP) / (float)width;
    for (u64 i = threadIdx.x * N; i < width; i += WARP * N) {
        in.read(&x[i]);
        scale.read(&weight[i]);
        d_out.read(&dy[i]);
        d_in.read(&dx[i]);
#pragma unroll
        for (int n = 0; n < N; n++) {
            float g = d_out.at[n] * scale.at[n], normal = (in.at[n] - mean) * inverse;
            d_in.at[n] += inverse * (g - mean_g - normal * mean_product);
        }
        d_in.write(&dx[i]);
    }
}

extern "C" __global__ void layer_norm_backward(const real* x, const real* weight,
                                               const float* statistics, const real* dy, real* dx,
                                               u64 rows, u64 width) {
    u64 row = (u64)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    bool chunks = width % CHUNK == 0 && aligned(x) && aligned(weight) && aligned(dy);
    x += row * width;
    dy += row * width;
    dx += row * width;
    statistics += 2 * row;
    if (chunks && aligned(dx)) backward<CHUNK>(x, weight, statistics, dy, dx, width);
    else backward<1>(x, weight, statistics, dy, dx, width);
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
