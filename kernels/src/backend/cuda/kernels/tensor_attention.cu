// Causal attention of heads at most 128 wide, in tiles, on tensor cores: flash_attention.cu for
// parameters and activations of 16 bits. CPU reference: backend/reference.rs; checked against
// attention.cu, too. Needs sm_80, heads whose width is a multiple of 8, rows aligned to 16 bytes.
//
// Tried or considered:
// 1. flash_attention.cu: f32 on the common cores;
// 2. warps of 16 rows, products by mma.sync m16n8k16, operands of the left in registers and those
//    of the right by ldmatrix from padded shared memory, scores that become an operand without
//    leaving their registers (Dao, "FlashAttention-2"): this;
// 3. copies by cp.async while the tile before is computed, wgmma on sm_90: not written; to be tried
//    on a GPU first.
// Backward in two passes, as in flash_attention.cu: every sum has one owner and one order.
// Never run on a GPU; run on the CPU under emulation, where the two instructions are written out
// from their definition in the PTX manual.
//
// A fragment of 16 x 8 numbers lies four in a lane: elements 0 and 1 in row g = lane / 4, columns
// 2 t and 2 t + 1 with t = lane % 4; elements 2 and 3 eight rows below. n: fragments along columns.
// e: element. h: upper or lower half, e / 2. q, k, v: queries, keys, values. s: scores, then
// probabilities. dp: their gradients, then those of the scores. base: logarithm of the sum of
// exponentials. expected, mean: the sum over keys of p dp (expected.cu).

constexpr int THREADS = 128;
constexpr int ROWS = 64;  // of a block: 16 for each of four warps
constexpr int PAD = 8;    // keeps the rows of a matrix in different banks

// One head of one sequence, and where its numbers lie.
struct Head {
    u64 sequence, heads, size, head, first, own;

    __device__ u64 query(u64 at) const { return (3 * (first + at) * heads + head) * size; }
    __device__ u64 output(u64 at) const { return ((first + at) * heads + head) * size; }
    __device__ u64 statistic(u64 at) const { return (first + at) * heads + head; }
    __device__ u64 part() const { return heads * size; }
    __device__ u64 stride() const { return 3 * part(); }
    __device__ float scale() const { return 1.0f / sqrtf((float)size); }
};

// `own` is the first row of the block's tile. Those with most to do come first: the last tiles of
// queries, which have the most keys, and the first ones of keys.
static __device__ Head head_of_block(u64 sequence, u64 heads, u64 size, bool of_keys) {
    u64 tiles = (sequence + ROWS - 1) / ROWS, pair = blockIdx.x / tiles, n = blockIdx.x % tiles;
    u64 own = (of_keys ? n : tiles - 1 - n) * ROWS;
    return {sequence, heads, size, pair % heads, pair / heads * sequence, own};
}

static __device__ __forceinline__ int lane() {
    return threadIdx.x % 32;
}

// The row of element 0 of this lane among those of the block.
static __device__ __forceinline__ int own_row() {
    return threadIdx.x / 32 * 16 + lane() / 4;
}

// The column of an element of the n-th fragment.
static __device__ __forceinline__ int column(int n, int e) {
    return 8 * n + 2 * (lane() % 4) + e % 2;
}

// ---- The two instructions -----------------------------------------------------------------------

// Four matrices of 8 x 8, whose rows are named by eight lanes each, as fragments of right operands.
static __device__ __forceinline__ void load_matrices(u32 (&to)[4], const u16* row) {
#ifdef __CUDA_ARCH__
    u32 from = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
#else
    emulation::load_matrices(to, row, false);
#endif
}

static __device__ __forceinline__ void load_transposed(u32 (&to)[4], const u16* row) {
#ifdef __CUDA_ARCH__
    u32 from = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
#else
    emulation::load_matrices(to, row, true);
#endif
}

// c += a b, 16 x 16 times 16 x 8.
static __device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef __CUDA_ARCH__
#if REAL == 1
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#endif
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    emulation::multiply(c, a, b0, b1, REAL == 1 ? from_bf16 : from_fp16);
#endif
}

static __device__ __forceinline__ u32 pack(float low, float high) {
    return REAL == 1 ? to_bf16(low) | (u32)to_bf16(high) << 16
                     : to_fp16(low) | (u32)to_fp16(high) << 16;
}

// ---- Tiles and products -------------------------------------------------------------------------

template <int WIDTH>
struct alignas(16) Tile {
    u16 rows[ROWS][WIDTH + PAD];
};

// The first `count` rows from `start` on of a matrix whose first row is at `from`; beyond the
// sequence and beyond the head's width they are zero.
template <int WIDTH>
static __device__ void fetch(Tile<WIDTH>& tile, int count, const real* from, u64 stride, u64 start,
                             const Head& head) {
    constexpr int CHUNKS = WIDTH / 8;
    for (int n = threadIdx.x; n < count * CHUNKS; n += THREADS) {
        u64 at = start + n / CHUNKS, d = n % CHUNKS * 8;
        Chunk chunk = {};
        if (at < head.sequence && d < head.size) chunk = *(const Chunk*)(from + at * stride + d);
        *(Chunk*)&tile.rows[n / CHUNKS][d] = chunk;
    }
}

// The rows of this warp as left operands. All threads have written the tile, and may overwrite it.
template <int WIDTH>
static __device__ void take(u32 (&a)[WIDTH / 16][4], const Tile<WIDTH>& tile) {
    __syncthreads();
    int row = threadIdx.x / 32 * 16 + lane() % 16;
#pragma unroll
    for (int step = 0; step < WIDTH / 16; step++)
        load_matrices(a[step], &tile.rows[row][step * 16 + lane() / 16 * 8]);
    __syncthreads();
}

// c += a times the transposed tile: scores, and gradients of probabilities.
template <int WIDTH, int N>
static __device__ __forceinline__ void scores(float (&c)[N][4], const u32 (&a)[WIDTH / 16][4],
                                              const Tile<WIDTH>& tile) {
    int row = lane() / 16 * 8 + lane() % 8, offset = lane() / 8 % 2 * 8;
#pragma unroll
    for (int step = 0; step < WIDTH / 16; step++)
#pragma unroll
        for (int pair = 0; pair < N / 2; pair++) {
            u32 b[4];
            load_matrices(b, &tile.rows[pair * 16 + row][step * 16 + offset]);
            multiply(c[2 * pair], a[step], b[0], b[1]);
            multiply(c[2 * pair + 1], a[step], b[2], b[3]);
        }
}

// c += s times the tile: outputs, and gradients of queries, keys and values.
template <int WIDTH, int N>
static __device__ __forceinline__ void mix(float (&c)[WIDTH / 8][4], const float (&s)[N][4],
                                           const Tile<WIDTH>& tile) {
    int row = lane() % 16, offset = lane() / 16 * 8;
#pragma unroll
    for (int step = 0; step < N / 2; step++) {
        const float(&left)[4] = s[2 * step], (&right)[4] = s[2 * step + 1];
        u32 a[4] = {pack(left[0], left[1]), pack(left[2], left[3]), pack(right[0], right[1]),
                    pack(right[2], right[3])};
#pragma unroll
        for (int pair = 0; pair < WIDTH / 16; pair++) {
            u32 b[4];
            load_transposed(b, &tile.rows[step * 16 + row][pair * 16 + offset]);
            multiply(c[2 * pair], a, b[0], b[1]);
            multiply(c[2 * pair + 1], a, b[2], b[3]);
        }
    }
}

// Writes the rows of this warp; `to` is the place of the block's first row.
template <int WIDTH>
static __device__ void keep(real* to, u64 stride, const float (&c)[WIDTH / 8][4],
                            const Head& head) {
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            // Two neighbours at once; the width is even.
            u64 row = own_row() + h * 8, d = column(n, 0);
            if (head.own + row < head.sequence && d < head.size)
                *(u32*)&to[row * stride + d] = pack(c[n][2 * h], c[n][2 * h + 1]);
        }
}

// ---- The three passes ---------------------------------------------------------------------------

template <int WIDTH, int KEYS>
static __device__ void forward(const real* qkv, real* y, float* statistics, const Head& head) {
    __shared__ Tile<WIDTH> k, v;
    const real* from = qkv + head.query(0);
    float scale = head.scale(), peak[2] = {LOWEST, LOWEST}, sum[2] = {}, out[WIDTH / 8][4] = {};
    u32 q[WIDTH / 16][4];
    fetch(k, ROWS, from, head.stride(), head.own, head);
    take(q, k);
    for (u64 start = 0; start < head.own + ROWS && start < head.sequence; start += KEYS) {
        fetch(k, KEYS, from + head.part(), head.stride(), start, head);
        fetch(v, KEYS, from + 2 * head.part(), head.stride(), start, head);
        __syncthreads();
        float s[KEYS / 8][4] = {}, above[2] = {peak[0], peak[1]}, kept[2];
        scores<WIDTH>(s, q, k);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                bool seen = start + column(n, e) <= head.own + own_row() + e / 2 * 8;
                s[n][e] = seen ? s[n][e] * scale : LOWEST;
                above[e / 2] = fmaxf(above[e / 2], s[n][e]);
            }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            above[h] = group_max(above[h], 4);
            kept[h] = expf(peak[h] - above[h]);
            peak[h] = above[h];
            sum[h] *= kept[h];
        }
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[e / 2] += s[n][e] = expf(s[n][e] - peak[e / 2]);
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) out[n][e] *= kept[e / 2];
        mix<WIDTH>(out, s, v);
        __syncthreads();
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] = group_sum(sum[h], 4);
        u64 i = head.own + own_row() + h * 8;
        if (i < head.sequence && lane() % 4 == 0)
            statistics[head.statistic(i)] = peak[h] + logf(sum[h]);
    }
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) out[n][e] /= sum[e / 2];
    keep<WIDTH>(y + head.output(head.own), head.part(), out, head);
}

template <int WIDTH, int KEYS>
static __device__ void backward_query(const real* qkv, const float* statistics,
                                      const float* expected, const real* dy, real* d_qkv,
                                      const Head& head) {
    __shared__ Tile<WIDTH> k, v;
    const real* from = qkv + head.query(0);
    float scale = head.scale(), base[2], mean[2], dq[WIDTH / 8][4] = {};
    u32 q[WIDTH / 16][4], d_out[WIDTH / 16][4];
    fetch(k, ROWS, from, head.stride(), head.own, head);
    fetch(v, ROWS, dy + head.output(0), head.part(), head.own, head);
    take(q, k);
    take(d_out, v);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u64 i = head.own + own_row() + h * 8;
        base[h] = i < head.sequence ? statistics[head.statistic(i)] : 0.0f;
        mean[h] = i < head.sequence ? expected[head.statistic(i)] : 0.0f;
    }
    for (u64 start = 0; start < head.own + ROWS && start < head.sequence; start += KEYS) {
        fetch(k, KEYS, from + head.part(), head.stride(), start, head);
        fetch(v, KEYS, from + 2 * head.part(), head.stride(), start, head);
        __syncthreads();
        float s[KEYS / 8][4] = {}, dp[KEYS / 8][4] = {};
        scores<WIDTH>(s, q, k);
        scores<WIDTH>(dp, d_out, v);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                u64 i = head.own + own_row() + e / 2 * 8;
                bool seen = start + column(n, e) <= i && i < head.sequence;
                float p = expf(s[n][e] * scale - base[e / 2]);
                dp[n][e] = seen ? p * (dp[n][e] - mean[e / 2]) * scale : 0.0f;
            }
        mix<WIDTH>(dq, dp, k);
        __syncthreads();
    }
    keep<WIDTH>(d_qkv + head.query(head.own), head.stride(), dq, head);
}

// The rows of a block are keys here, and the columns of its scores are queries.
template <int WIDTH, int QUERIES>
static __device__ void backward_key(const real* qkv, const float* statistics,
                                    const float* expected, const real* dy, real* d_qkv,
                                    const Head& head) {
    __shared__ Tile<WIDTH> q, d_out;
    __shared__ float bases[QUERIES], means[QUERIES];
    const real* from = qkv + head.query(0);
    float scale = head.scale(), dk[WIDTH / 8][4] = {}, dv[WIDTH / 8][4] = {};
    u32 k[WIDTH / 16][4], v[WIDTH / 16][4];
    fetch(q, ROWS, from + head.part(), head.stride(), head.own, head);
    fetch(d_out, ROWS, from + 2 * head.part(), head.stride(), head.own, head);
    take(k, q);
    take(v, d_out);
    for (u64 start = head.own; start < head.sequence; start += QUERIES) {
        // Half of the threads take the bases, the others the means: before the tiles, which take
        // registers.
        bool takes_base = threadIdx.x < ROWS;
        int row = threadIdx.x % ROWS;
        if (row < QUERIES && start + row < head.sequence) {
            const float* of_rows = takes_base ? statistics : expected;
            (takes_base ? bases : means)[row] = of_rows[head.statistic(start + row)];
        }
        fetch(q, QUERIES, from, head.stride(), start, head);
        fetch(d_out, QUERIES, dy + head.output(0), head.part(), start, head);
        __syncthreads();
        float s[QUERIES / 8][4] = {}, dp[QUERIES / 8][4] = {};
        scores<WIDTH>(s, k, q);
        scores<WIDTH>(dp, v, d_out);
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int i = column(n, e);
                u64 j = head.own + own_row() + e / 2 * 8;
                bool seen = j <= start + i && start + i < head.sequence;
                s[n][e] = seen ? expf(s[n][e] * scale - bases[i]) : 0.0f;
                dp[n][e] = seen ? s[n][e] * (dp[n][e] - means[i]) * scale : 0.0f;
            }
        mix<WIDTH>(dv, s, d_out);
        mix<WIDTH>(dk, dp, q);
        __syncthreads();
    }
    real* to = d_qkv + head.query(head.own) + head.part();
    keep<WIDTH>(to, head.stride(), dk, head);
    keep<WIDTH>(to + head.part(), head.stride(), dv, head);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_attention_64(const real* qkv, real* y, float* statistics, u64 sequence, u64 heads,
                        u64 size) {
    forward<64, 64>(qkv, y, statistics, head_of_block(sequence, heads, size, false));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_attention_128(const real* qkv, real* y, float* statistics, u64 sequence, u64 heads,
                         u64 size) {
    forward<128, 64>(qkv, y, statistics, head_of_block(sequence, heads, size, false));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_backward_query_64(const real* qkv, const float* statistics, const float* expected,
                             const real* dy, real* d_qkv, u64 sequence, u64 heads, u64 size) {
    Head head = head_of_block(sequence, heads, size, false);
    backward_query<64, 64>(qkv, statistics, expected, dy, d_qkv, head);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_backward_query_128(const real* qkv, const float* statistics, const float* expected,
                              const real* dy, real* d_qkv, u64 sequence, u64 heads, u64 size) {
    Head head = head_of_block(sequence, heads, size, false);
    backward_query<128, 32>(qkv, statistics, expected, dy, d_qkv, head);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_backward_key_64(const real* qkv, const float* statistics, const float* expected,
                           const real* dy, real* d_qkv, u64 sequence, u64 heads, u64 size) {
    Head head = head_of_block(sequence, heads, size, true);
    backward_key<64, 64>(qkv, statistics, expected, dy, d_qkv, head);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_backward_key_128(const real* qkv, const float* statistics, const float* expected,
                            const real* dy, real* d_qkv, u64 sequence, u64 heads, u64 size) {
    Head head = head_of_block(sequence, heads, size, true);
    backward_key<128, 16>(qkv, statistics, expected, dy, d_qkv, head);
}
