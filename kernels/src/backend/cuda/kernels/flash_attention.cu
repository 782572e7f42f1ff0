// Causal attention of heads at most 128 wide, in tiles (Dao et al., "FlashAttention").
// CPU reference: backend/reference.rs; checked against attention.cu, too.
//
// Tried or considered:
// 1. one block a query: attention.cu, which reads every key once for every query;
// 2. tiles of queries and keys in shared memory, scores that never leave the block, online softmax,
//    f32 arithmetic: this;
// 3. tensor cores: tensor_attention.cu, for 16 bits.
// Backward in two passes, over the tiles of queries and over those of keys, so that every sum has
// one owner and one order: no atomics. Scores are made twice for it.
// On a GPU: right on an H200, beside the f64 reference.
//
// q, k, v: queries, keys, values. r: a thread's row of its tile. c: its lane among those of the
// row, which takes the keys (or queries) and columns c, c + LANES, ... s: score. p: probability.
// d_...: gradients. base: logarithm of the sum of exponentials. expected, mean: sum over keys of
// p dp (expected.cu).

constexpr int LANES = 8;

// One head of one sequence, and where its numbers lie.
struct Head {
    u64 sequence, heads, size, head, first;

    __device__ u64 query(u64 at) const { return (3 * (first + at) * heads + head) * size; }
    __device__ u64 output(u64 at) const { return ((first + at) * heads + head) * size; }
    __device__ u64 statistic(u64 at) const { return (first + at) * heads + head; }
    // From a query to its key, and from the key to the value.
    __device__ u64 part() const { return heads * size; }
    __device__ float scale() const { return 1.0f / sqrtf((float)size); }
};

// A block has one tile of one head of one sequence. Those with most to do come first: the last
// tiles of queries, which have the most keys, and the first ones of keys.
static __device__ Head head_of_block(u64 sequence, u64 heads, u64 size, int tile, bool of_keys,
                                     u64* own) {
    u64 tiles = (sequence + tile - 1) / tile, pair = blockIdx.x / tiles, n = blockIdx.x % tiles;
    *own = of_keys ? n : tiles - 1 - n;
    return {sequence, heads, size, pair % heads, pair / heads * sequence};
}

// Rows `start` and on of a matrix whose first row is at `from`; beyond the sequence and beyond the
// head's width it is zero.
template <int WIDTH, int TILE>
static __device__ void fetch(float (*tile)[WIDTH + 1], const real* from, u64 stride, u64 start,
                             const Head& head) {
    for (int n = threadIdx.x; n < TILE * WIDTH; n += TILE * LANES) {
        u64 at = start + n / WIDTH, d = n % WIDTH;
        bool inside = at < head.sequence && d < head.size;
        tile[n / WIDTH][d] = inside ? load(&from[at * stride + d]) : 0.0f;
    }
}

template <int WIDTH>
static __device__ __forceinline__ float dot(const float* x, const float* y) {
    float sum = 0;
    for (int d = 0; d < WIDTH; d++) sum = fmaf(x[d], y[d], sum);
    return sum;
}

template <int WIDTH>
static __device__ __forceinline__ void keep(real* to, const float* values, int c, u64 size) {
    #pragma unroll
    for (int n = 0; n < WIDTH / LANES; n++)
        if (c + n * LANES < size) store(&to[c + n * LANES], values[n]);
}

template <int WIDTH, int TILE>
static __device__ void forward(const real* qkv, real* y, float* statistics, u64 sequence,
                               u64 heads, u64 size) {
    __shared__ float q[TILE][WIDTH + 1], k[TILE][WIDTH + 1], v[TILE][WIDTH + 1];
    __shared__ float p[TILE][TILE + 1];
    u64 own;
    Head head = head_of_block(sequence, heads, size, TILE, false, &own);
    int r = threadIdx.x / LANES, c = threadIdx.x % LANES;
    const real* from = qkv + head.query(0);
    u64 stride = 3 * head.part(), i = own * TILE + r;
    float scale = head.scale(), peak = LOWEST, sum = 0, out[WIDTH / LANES] = {};
    fetch<WIDTH, TILE>(q, from, stride, own * TILE, head);
    for (u64 start = 0; start <= own * TILE; start += TILE) {
        __syncthreads();
        fetch<WIDTH, TILE>(k, from + head.part(), stride, start, head);
        fetch<WIDTH, TILE>(v, from + 2 * head.part(), stride, start, head);
        __syncthreads();
        float s[TILE / LANES], above = peak;
        #pragma unroll
        for (int n = 0; n < TILE / LANES; n++) {
            s[n] = dot<WIDTH>(q[r], k[c + n * LANES]) * scale;
            if (start + c + n * LANES <= i) above = fmaxf(above, s[n]);
        }
        above = group_max(above, LANES);
        float kept = expf(peak - above);
        peak = above;
        sum *= kept;
        #pragma unroll
        for (int n = 0; n < TILE / LANES; n++) {
            float weight = start + c + n * LANES <= i ? expf(s[n] - peak) : 0.0f;
            p[r][c + n * LANES] = weight;
            sum += weight;
        }
        __syncwarp();
        #pragma unroll
        for (int n = 0; n < WIDTH / LANES; n++) out[n] *= kept;
        for (int j = 0; j < TILE; j++)
            #pragma unroll
            for (int n = 0; n < WIDTH / LANES; n++)
                out[n] = fmaf(p[r][j], v[j][c + n * LANES], out[n]);
    }
    sum = group_sum(sum, LANES);
    if (i >= sequence) return;
    #pragma unroll
    for (int n = 0; n < WIDTH / LANES; n++) out[n] /= sum;
    keep<WIDTH>(y + head.output(i), out, c, size);
    if (c == 0) statistics[head.statistic(i)] = peak + logf(sum);
}

template <int WIDTH, int TILE>
static __device__ void backward_query(const real* qkv, const float* statistics,
                                      const float* expected, const real* dy, real* d_qkv,
                                      u64 sequence, u64 heads, u64 size) {
    __shared__ float q[TILE][WIDTH + 1], k[TILE][WIDTH + 1], v[TILE][WIDTH + 1];
    __shared__ float d_out[TILE][WIDTH + 1], ds[TILE][TILE + 1];
    u64 own;
    Head head = head_of_block(sequence, heads, size, TILE, false, &own);
    int r = threadIdx.x / LANES, c = threadIdx.x % LANES;
    const real* from = qkv + head.query(0);
    u64 stride = 3 * head.part(), i = own * TILE + r;
    float scale = head.scale(), dq[WIDTH / LANES] = {};
    float base = i < sequence ? statistics[head.statistic(i)] : 0.0f;
    float mean = i < sequence ? expected[head.statistic(i)] : 0.0f;
    fetch<WIDTH, TILE>(q, from, stride, own * TILE, head);
    fetch<WIDTH, TILE>(d_out, dy + head.output(0), head.part(), own * TILE, head);
    for (u64 start = 0; start <= own * TILE; start += TILE) {
        __syncthreads();
        fetch<WIDTH, TILE>(k, from + head.part(), stride, start, head);
        fetch<WIDTH, TILE>(v, from + 2 * head.part(), stride, start, head);
        __syncthreads();
        for (int j = c; j < TILE; j += LANES) {
            bool seen = start + j <= i && i < sequence;
            float p = seen ? expf(dot<WIDTH>(q[r], k[j]) * scale - base) : 0.0f;
            ds[r][j] = seen ? p * (dot<WIDTH>(d_out[r], v[j]) - mean) * scale : 0.0f;
        }
        __syncwarp();
        for (int j = 0; j < TILE; j++)
            #pragma unroll
            for (int n = 0; n < WIDTH / LANES; n++)
                dq[n] = fmaf(ds[r][j], k[j][c + n * LANES], dq[n]);
    }
    if (i < sequence) keep<WIDTH>(d_qkv + head.query(i), dq, c, size);
}

template <int WIDTH, int TILE>
static __device__ void backward_key(const real* qkv, const float* statistics,
                                    const float* expected, const real* dy, real* d_qkv,
                                    u64 sequence, u64 heads, u64 size) {
    __shared__ float q[TILE][WIDTH + 1], k[TILE][WIDTH + 1], v[TILE][WIDTH + 1];
    __shared__ float d_out[TILE][WIDTH + 1], p[TILE][TILE + 1], ds[TILE][TILE + 1];
    __shared__ float bases[TILE], means[TILE];
    u64 own;
    Head head = head_of_block(sequence, heads, size, TILE, true, &own);
    int r = threadIdx.x / LANES, c = threadIdx.x % LANES;
    const real* from = qkv + head.query(0);
    u64 stride = 3 * head.part(), j = own * TILE + r;
    float scale = head.scale(), dk[WIDTH / LANES] = {}, dv[WIDTH / LANES] = {};
    fetch<WIDTH, TILE>(k, from + head.part(), stride, own * TILE, head);
    fetch<WIDTH, TILE>(v, from + 2 * head.part(), stride, own * TILE, head);
    for (u64 start = own * TILE; start < sequence; start += TILE) {
        __syncthreads();
        fetch<WIDTH, TILE>(q, from, stride, start, head);
        fetch<WIDTH, TILE>(d_out, dy + head.output(0), head.part(), start, head);
        if (threadIdx.x < TILE && start + threadIdx.x < sequence) {
            u64 statistic = head.statistic(start + threadIdx.x);
            bases[threadIdx.x] = statistics[statistic];
            means[threadIdx.x] = expected[statistic];
        }
        __syncthreads();
        for (int i = c; i < TILE; i += LANES) {
            bool seen = j <= start + i && start + i < sequence;
            float weight = seen ? expf(dot<WIDTH>(q[i], k[r]) * scale - bases[i]) : 0.0f;
            float d_weight = seen ? dot<WIDTH>(d_out[i], v[r]) - means[i] : 0.0f;
            p[r][i] = weight;
            ds[r][i] = weight * d_weight * scale;
        }
        __syncwarp();
        for (int i = 0; i < TILE; i++)
            #pragma unroll
            for (int n = 0; n < WIDTH / LANES; n++) {
                dv[n] = fmaf(p[r][i], d_out[i][c + n * LANES], dv[n]);
                dk[n] = fmaf(ds[r][i], q[i][c + n * LANES], dk[n]);
            }
    }
    if (j >= sequence) return;
    keep<WIDTH>(d_qkv + head.query(j) + head.part(), dk, c, size);
    keep<WIDTH>(d_qkv + head.query(j) + 2 * head.part(), dv, c, size);
}

// Tiles of 32 rows of heads up to 64 wide, of 16 rows up to 128: what 48 KiB of shared memory hold.

extern "C" __global__ void __launch_bounds__(256)
    flash_attention_64(const real* qkv, real* y, float* statistics, u64 sequence, u64 heads,
                       u64 size) {
    forward<64, 32>(qkv, y, statistics, sequence, heads, size);
}

extern "C" __global__ void __launch_bounds__(128)
    flash_attention_128(const real* qkv, real* y, float* statistics, u64 sequence, u64 heads,
                        u64 size) {
    forward<128, 16>(qkv, y, statistics, sequence, heads, size);
}

extern "C" __global__ void __launch_bounds__(256)
    flash_backward_query_64(const real* qkv, const float* statistics, const float* expected,
                            const real* dy, real* d_qkv, u64 sequence, u64 heads, u64 size) {
    backward_query<64, 32>(qkv, statistics, expected, dy, d_qkv, sequence, heads, size);
}

extern "C" __global__ void __launch_bounds__(128)
    flash_backward_query_128(const real* qkv, const float* statistics, const float* expected,
                             const real* dy, real* d_qkv, u64 sequence, u64 heads, u64 size) {
    backward_query<128, 16>(qkv, statistics, expected, dy, d_qkv, sequence, heads, size);
}

extern "C" __global__ void __launch_bounds__(256)
    flash_backward_key_64(const real* qkv, const float* statistics, const float* expected,
                          const real* dy, real* d_qkv, u64 sequence, u64 heads, u64 size) {
    backward_key<64, 32>(qkv, statistics, expected, dy, d_qkv, sequence, heads, size);
}

extern "C" __global__ void __launch_bounds__(128)
    flash_backward_key_128(const real* qkv, const float* statistics, const float* expected,
                           const real* dy, real* d_qkv, u64 sequence, u64 heads, u64 size) {
    backward_key<128, 16>(qkv, statistics, expected, dy, d_qkv, sequence, heads, size);
}
