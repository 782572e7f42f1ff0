// Layer normalisation, forward and backward. CPU reference: backend/cpu/layer_norm.rs.
//
// Tried or considered:
// 1. one thread a row: neighbours read rows apart, nothing is coalesced;
// 2. one warp a row, sums by shuffles, the row read again from the cache for the deviation and for
//    the output: this;
// 3. the row kept in registers between the three: needs the width at compile time.
// Gradients of weight and bias: blocks of 32 columns over chunks of rows, then partials.cu, as for
// a bias; a pass of its own, since a row's warp would have to add to all columns of all rows.
// Never run on a GPU; run on the CPU under emulation.
//
// statistics: mean and reciprocal deviation of each row. g: gradient of the normalised input.

constexpr float EPSILON = 1e-5f;
constexpr int WARP = 32;
constexpr int COLUMNS = 32;
constexpr int LANES = 8;

extern "C" __global__ void layer_norm(const real* x, const real* weight, const real* bias, real* y,
                                      float* statistics, u64 rows, u64 width) {
    u64 row = (u64)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    x += row * width;
    y += row * width;
    float sum = 0;
    for (u64 i = threadIdx.x; i < width; i += WARP) sum += load(&x[i]);
    float mean = group_sum(sum, WARP) / (float)width;
    float squares = 0;
    for (u64 i = threadIdx.x; i < width; i += WARP) {
        float centred = load(&x[i]) - mean;
        squares = fmaf(centred, centred, squares);
    }
    float inverse = 1.0f / sqrtf(group_sum(squares, WARP) / (float)width + EPSILON);
    for (u64 i = threadIdx.x; i < width; i += WARP)
        store(&y[i], (load(&x[i]) - mean) * inverse * load(&weight[i]) + load(&bias[i]));
    if (threadIdx.x == 0) {
        statistics[2 * row] = mean;
        statistics[2 * row + 1] = inverse;
    }
}

extern "C" __global__ void layer_norm_backward(const real* x, const real* weight,
                                               const float* statistics, const real* dy, real* dx,
                                               u64 rows, u64 width) {
    u64 row = (u64)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    x += row * width;
    dy += row * width;
    dx += row * width;
    float mean = statistics[2 * row], inverse = statistics[2 * row + 1];
    float sum = 0, product = 0;
    for (u64 i = threadIdx.x; i < width; i += WARP) {
        float g = load(&dy[i]) * load(&weight[i]);
        sum += g;
        product = fmaf(g, (load(&x[i]) - mean) * inverse, product);
    }
    float mean_g = group_sum(sum, WARP) / (float)width;
    float mean_product = group_sum(product, WARP) / (float)width;
    for (u64 i = threadIdx.x; i < width; i += WARP) {
        float g = load(&dy[i]) * load(&weight[i]), normal = (load(&x[i]) - mean) * inverse;
        store(&dx[i], load(&dx[i]) + inverse * (g - mean_g - normal * mean_product));
    }
}

// As bias_partials in bias.cu, for weight and bias at once.
extern "C" __global__ void layer_norm_partials(const real* x, const float* statistics,
                                               const real* dy, float* d_weight, float* d_bias,
                                               u64 rows, u64 width, u64 chunk, int direct) {
    __shared__ float weights[LANES][COLUMNS], biases[LANES][COLUMNS];
    u64 column = (u64)blockIdx.x * COLUMNS + threadIdx.x;
    u64 first = blockIdx.y * chunk, end = first + chunk < rows ? first + chunk : rows;
    float weight = 0, bias = 0;
    if (column < width)
        for (u64 row = first + threadIdx.y; row < end; row += LANES) {
            float d = load(&dy[row * width + column]), mean = statistics[2 * row];
            float normal = (load(&x[row * width + column]) - mean) * statistics[2 * row + 1];
            weight = fmaf(d, normal, weight);
            bias += d;
        }
    weights[threadIdx.y][threadIdx.x] = weight;
    biases[threadIdx.y][threadIdx.x] = bias;
    __syncthreads();
    if (threadIdx.y > 0 || column >= width) return;
    for (int lane = 1; lane < LANES; lane++) {
        weight += weights[lane][threadIdx.x];
        bias += biases[lane][threadIdx.x];
    }
    u64 at = blockIdx.y * width + column;
    d_weight[at] = direct ? d_weight[at] + weight : weight;
    d_bias[at] = direct ? d_bias[at] + bias : bias;
}
