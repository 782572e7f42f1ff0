// Causal attention of heads of any width, plainly. CPU reference: backend/cpu/attention.rs and
// backend/reference.rs.
//
// Tried or considered:
// 1. a matrix of scores in memory, three kernels: sequence^2 numbers a head, which the trait has no
//    room for;
// 2. one block a query: its threads take a key each, then a column of the output each; scores are
//    made again for the output: this;
// 3. tiles of queries and keys in shared memory: flash_attention.cu, which is checked against this.
// On a GPU: right on an H200, beside the f64 reference.
//
// q, k, v: query, key and value of a row and head, side by side in the rows of qkv. i: a query.
// j: a key. s: score. p: probability. d_...: gradients. expected, mean: the sum over keys of p dp
// (expected.cu).

constexpr int THREADS = 128;
constexpr int WARPS = THREADS / 32;

// Where the numbers of one head lie.
struct Head {
    u64 sequence, heads, size, head;

    __device__ u64 query(u64 row) const { return (3 * row * heads + head) * size; }
    __device__ u64 key(u64 row) const { return ((3 * row + 1) * heads + head) * size; }
    __device__ u64 value(u64 row) const { return ((3 * row + 2) * heads + head) * size; }
    __device__ u64 output(u64 row) const { return (row * heads + head) * size; }
    __device__ u64 first(u64 row) const { return row - row % sequence; }
    __device__ float scale() const { return 1.0f / sqrtf((float)size); }
};

static __device__ __forceinline__ float dot(const real* x, const real* y, u64 size) {
    float sum = 0;
    for (u64 d = 0; d < size; d++) sum = fmaf(load(&x[d]), load(&y[d]), sum);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention(const real* qkv, real* y, float* statistics, u64 sequence, u64 heads, u64 size) {
    __shared__ float weights[THREADS];
    Head at = {sequence, heads, size, blockIdx.x % heads};
    u64 i = blockIdx.x / heads;
    const real* q = qkv + at.query(i);
    Exponentials own = {LOWEST, 0};
    for (u64 j = at.first(i) + threadIdx.x; j <= i; j += THREADS)
        own = with(own, dot(q, qkv + at.key(j), size) * at.scale());
    own = block_exponentials<WARPS>(own);
    float base = own.peak + logf(own.sum);
    if (threadIdx.x == 0) statistics[i * heads + at.head] = base;
    for (u64 slab = 0; slab < size; slab += THREADS) {
        u64 d = slab + threadIdx.x;
        float out = 0;
        for (u64 start = at.first(i); start <= i; start += THREADS) {
            u64 j = start + threadIdx.x;
            __syncthreads();
            weights[threadIdx.x] =
                j <= i ? expf(dot(q, qkv + at.key(j), size) * at.scale() - base) : 0.0f;
            __syncthreads();
            for (u64 n = 0; n < THREADS && start + n <= i && d < size; n++)
                out = fmaf(weights[n], load(&qkv[at.value(start + n) + d]), out);
        }
        if (d < size) store(&y[at.output(i) + d], out);
    }
}

// One block a query.
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_query(const real* qkv, const float* statistics, const float* expected,
                             const real* dy, real* d_qkv, u64 sequence, u64 heads, u64 size) {
    __shared__ float d_scores[THREADS];
    Head at = {sequence, heads, size, blockIdx.x % heads};
    u64 i = blockIdx.x / heads;
    const real *q = qkv + at.query(i), *d_out = dy + at.output(i);
    float base = statistics[i * heads + at.head], mean = expected[i * heads + at.head];
    for (u64 slab = 0; slab < size; slab += THREADS) {
        u64 d = slab + threadIdx.x;
        float dq = 0;
        for (u64 start = at.first(i); start <= i; start += THREADS) {
            u64 j = start + threadIdx.x;
            float ds = 0;
            if (j <= i) {
                float p = expf(dot(q, qkv + at.key(j), size) * at.scale() - base);
                ds = p * (dot(d_out, qkv + at.value(j), size) - mean) * at.scale();
            }
            __syncthreads();
            d_scores[threadIdx.x] = ds;
            __syncthreads();
            for (u64 n = 0; n < THREADS && start + n <= i && d < size; n++)
                dq = fmaf(d_scores[n], load(&qkv[at.key(start + n) + d]), dq);
        }
        if (d < size) store(&d_qkv[at.query(i) + d], dq);
    }
}

// One block a key, which the queries from its own row to the end of the sequence attend to.
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_key(const real* qkv, const float* statistics, const float* expected,
                           const real* dy, real* d_qkv, u64 sequence, u64 heads, u64 size) {
    __shared__ float weights[THREADS], d_scores[THREADS];
    Head at = {sequence, heads, size, blockIdx.x % heads};
    u64 j = blockIdx.x / heads, end = at.first(j) + sequence;
    const real *k = qkv + at.key(j), *v = qkv + at.value(j);
    for (u64 slab = 0; slab < size; slab += THREADS) {
        u64 d = slab + threadIdx.x;
        float dk = 0, dv = 0;
        for (u64 start = j; start < end; start += THREADS) {
            u64 i = start + threadIdx.x;
            float p = 0, ds = 0;
            if (i < end) {
                const real* d_out = dy + at.output(i);
                u64 statistic = i * heads + at.head;
                p = expf(dot(qkv + at.query(i), k, size) * at.scale() - statistics[statistic]);
                ds = p * (dot(d_out, v, size) - expected[statistic]) * at.scale();
            }
            __syncthreads();
            weights[threadIdx.x] = p;
            d_scores[threadIdx.x] = ds;
            __syncthreads();
            for (u64 n = 0; n < THREADS && start + n < end && d < size; n++) {
                dv = fmaf(weights[n], load(&dy[at.output(start + n) + d]), dv);
                dk = fmaf(d_scores[n], load(&qkv[at.query(start + n) + d]), dk);
            }
        }
        if (d < size) {
            store(&d_qkv[at.key(j) + d], dk);
            store(&d_qkv[at.value(j) + d], dv);
        }
    }
}
