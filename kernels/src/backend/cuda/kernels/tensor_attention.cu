// Causal attention of heads at most 128 wide, in tiles, on tensor cores: flash_attention.cu for
// parameters and activations of 16 bits. CPU reference: backend/reference.rs; checked against
// attention.cu, too. Needs sm_80, heads whose width is a multiple of 8, rows aligned to 16 bytes.
//
// Tried or considered:
// 1. flash_attention.cu: f32 on the common cores;
// 2. warps of 16 rows, products by mma.sync m16n8k16, operands of the left in registers and those
//    of the right by ldmatrix from padded shared memory, scores that become an operand without
//    leaving their registers (Dao, "FlashAttention-2"), tiles fetched into registers between two
//    barriers: every warp waits for memory at every tile, and instructions bound the rest;
// 3. the same with the next tile copied by cp.async while this one is computed, and with few
//    instructions an element: exponentials to the base 2, whose factor is folded into the scale,
//    the scale of gradients applied once to their sums, masks on the diagonal alone: this;
// 4. wgmma on sm_90: not written.
// Backward in two passes, as in flash_attention.cu: every sum has one owner and one order.
// On a GPU: the version before was right on an H200; this one ran on the CPU under emulation, where
// the instructions are written out from their definition in the PTX manual.
//
// A fragment of 16 x 8 numbers lies four in a lane: elements 0 and 1 in row g = lane / 4, columns
// 2 t and 2 t + 1 with t = lane % 4; elements 2 and 3 eight rows below. n: fragments along columns.
// e: element. h: upper or lower half, e / 2. q, k, v: queries, keys, values. s: scores, then
// probabilities. dp: their gradients, then those of the scores, both without the scale. base:
// logarithm of the sum of exponentials. expected, mean: the sum over keys of p dp (expected.cu).

constexpr int THREADS = 128;
constexpr int ROWS = 64;  // of a block: 16 for each of four warps
constexpr int PAD = 8;    // keeps the rows of a matrix in different banks
constexpr float LOG2_E = 1.4426950f;

// One head of one sequence, and where its numbers lie. `own` is the first row of the block's tile.
// Rows of a sequence, and elements of a tile's rows, are counted in 32 bits.
struct Head {
    u64 first;
    u32 sequence, heads, size, head, own;

    __device__ u64 query(u32 at) const { return (3 * (first + at) * heads + head) * size; }
    __device__ u64 output(u32 at) const { return ((first + at) * heads + head) * size; }
    __device__ u64 statistic(u32 at) const { return (first + at) * heads + head; }
    __device__ u32 part() const { return heads * size; }
    __device__ u32 stride() const { return 3 * part(); }
    __device__ float scale() const { return 1.0f / sqrtf((float)size); }
};

// Blocks with most to do come first: the last tiles of queries, which have the most keys, and the
// first ones of keys.
static __device__ Head head_of_block(u64 sequence, u64 heads, u64 size, bool of_keys) {
    u32 tiles = ((u32)sequence + ROWS - 1) / ROWS, pair = blockIdx.x / tiles;
    u32 n = blockIdx.x % tiles, own = (of_keys ? n : tiles - 1 - n) * ROWS;
    u64 first = pair / (u32)heads * sequence;
    return {first, (u32)sequence, (u32)heads, (u32)size, pair % (u32)heads, own};
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

// ---- The instructions ---------------------------------------------------------------------------

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

// Two neighbours, rounded as by `store`, but for the bits of NaN, which are the instruction's.
static __device__ __forceinline__ u32 pack(float low, float high) {
#ifdef __CUDA_ARCH__
    u32 both;
#if REAL == 1
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
    return both;
#else
    return REAL == 1 ? to_bf16(low) | (u32)to_bf16(high) << 16
                     : to_fp16(low) | (u32)to_fp16(high) << 16;
#endif
}

// 2^x, to 2 units in the last place. Subnormal results are zero.
static __device__ __forceinline__ float power_of_2(float x) {
#ifdef __CUDA_ARCH__
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
#else
    return emulation::power_of_2(x);
#endif
}

// Starts to copy 4 or 16 bytes to shared memory, or zeros where the source is not `inside`.
template <int BYTES>
static __device__ __forceinline__ void copy_async(void* to, const void* from, bool inside) {
#ifdef __CUDA_ARCH__
    u32 place = (u32)__cvta_generic_to_shared(to), bytes = inside ? BYTES : 0;
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(place), "l"(from), "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     :
                     : "r"(place), "l"(from), "r"(bytes)
                     : "memory");
#else
    emulation::copy_async(to, from, BYTES, inside);
#endif
}

// Returns when the copies of all threads are done, and all threads have come here.
static __device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDA_ARCH__
    asm volatile("cp.async.wait_all;" : : : "memory");
#else
    emulation::wait_for_copies();
#endif
    __syncthreads();
}

// ---- Tiles and products -------------------------------------------------------------------------

// Some rows of a matrix of one head. There are two of each: one is computed with while the other
// one is fetched.
template <int WIDTH, int COUNT>
struct alignas(16) Tile {
    u16 rows[COUNT][WIDTH + PAD];
};

// Starts to fetch the rows from `start` on of a matrix whose first row is at `from`; beyond the
// sequence and beyond the head's width they are zero.
template <int WIDTH, int COUNT>
static __device__ __forceinline__ void fetch(Tile<WIDTH, COUNT>& tile, const real* from,
                                             u32 stride, u32 start, const Head& head) {
    constexpr int CHUNKS = WIDTH / 8, APART = THREADS / CHUNKS;
    u32 row = threadIdx.x / CHUNKS, d = threadIdx.x % CHUNKS * 8;
    u32 end = d < head.size ? head.sequence : 0;
    const char* at = (const char*)(from + (u64)start * stride + (row * stride + d));
    u32 apart = APART * stride * sizeof(real);
#pragma unroll
    for (int n = 0; n < COUNT / APART; n++) {
        copy_async<16>(&tile.rows[row + n * APART][d], at, start + row + n * APART < end);
        at += apart;
    }
}

// The rows of this warp of a matrix whose first row is at `from`, as left operands.
template <int WIDTH>
static __device__ void take(u32 (&a)[WIDTH / 16][4], const real* from, u32 stride,
                            const Head& head) {
    from += (u64)head.own * stride;
#pragma unroll
    for (int step = 0; step < WIDTH / 16; step++)
#pragma unroll
        for (int part = 0; part < 4; part++) {
            u32 row = own_row() + part % 2 * 8, d = column(2 * step + part / 2, 0);
            bool inside = head.own + row < head.sequence && d < head.size;
            a[step][part] = inside ? *(const u32*)&from[row * stride + d] : 0;
        }
}

// c += a times the transposed tile: scores, and gradients of probabilities.
template <int WIDTH, int COUNT>
static __device__ __forceinline__ void scores(float (&c)[COUNT / 8][4],
                                              const u32 (&a)[WIDTH / 16][4],
                                              const Tile<WIDTH, COUNT>& tile) {
    int row = lane() / 16 * 8 + lane() % 8, offset = lane() / 8 % 2 * 8;
#pragma unroll
    for (int step = 0; step < WIDTH / 16; step++)
#pragma unroll
        for (int pair = 0; pair < COUNT / 16; pair++) {
            u32 b[4];
            load_matrices(b, &tile.rows[pair * 16 + row][step * 16 + offset]);
            multiply(c[2 * pair], a[step], b[0], b[1]);
            multiply(c[2 * pair + 1], a[step], b[2], b[3]);
        }
}

// c += s times the tile: outputs, and gradients of queries, keys and values.
template <int WIDTH, int COUNT>
static __device__ __forceinline__ void mix(float (&c)[WIDTH / 8][4],
                                           const float (&s)[COUNT / 8][4],
                                           const Tile<WIDTH, COUNT>& tile) {
    int row = lane() % 16, offset = lane() / 16 * 8;
#pragma unroll
    for (int step = 0; step < COUNT / 16; step++) {
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

// Makes the probability of an element zero where its query comes before its key. `ahead`: by how
// much the first key of the tile comes after the first query, which may be less than zero.
template <int N>
static __device__ __forceinline__ void hide(float (&s)[N][4], int ahead, bool rows_are_keys) {
    int apart = ahead + (rows_are_keys ? own_row() - column(0, 0) : column(0, 0) - own_row());
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int right = 8 * n + e % 2, below = e / 2 * 8;
            if (apart + (rows_are_keys ? below - right : right - below) > 0) s[n][e] = LOWEST;
        }
}

// Writes the rows of this warp; `to` is the place of the block's first row.
template <int WIDTH>
static __device__ void keep(real* to, u32 stride, const float (&c)[WIDTH / 8][4], float upper,
                            float lower, const Head& head) {
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            // Two neighbours at once; the width is even.
            u32 row = own_row() + h * 8, d = column(n, 0);
            float factor = h ? lower : upper;
            if (head.own + row < head.sequence && d < head.size)
                *(u32*)&to[row * stride + d] =
                    pack(c[n][2 * h] * factor, c[n][2 * h + 1] * factor);
        }
}

// ---- The three passes ---------------------------------------------------------------------------

// Takes the scores of a tile into the peaks and sums of their rows, makes weights of them, and says
// by what the outputs so far are to be multiplied. Scores and peaks are without the scale.
template <int N>
static __device__ __forceinline__ void weigh(float (&s)[N][4], float (&peak)[2], float (&sum)[2],
                                             float (&kept)[2], float scale) {
    float above[2] = {peak[0], peak[1]}, base[2];
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) above[e / 2] = fmaxf(above[e / 2], s[n][e]);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        above[h] = group_max(above[h], 4);
        base[h] = above[h] * scale;
        kept[h] = power_of_2(fmaf(peak[h], scale, -base[h]));
        peak[h] = above[h];
        sum[h] *= kept[h];
    }
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[e / 2] += s[n][e] = power_of_2(fmaf(s[n][e], scale, -base[e / 2]));
}

template <int WIDTH, int KEYS>
static __device__ void forward(const real* qkv, real* y, float* statistics, const Head& head) {
    __shared__ Tile<WIDTH, KEYS> k[2], v[2];
    const real *from = qkv + head.query(0), *keys = from + head.part();
    const real* values = keys + head.part();
    // The scale of powers of 2. The other one would take a register all along.
    float scale = head.scale() * LOG2_E, peak[2] = {LOWEST, LOWEST}, sum[2] = {};
    float out[WIDTH / 8][4] = {};
    u32 q[WIDTH / 16][4], stride = head.stride();
    u32 end = head.own + ROWS < head.sequence ? head.own + ROWS : head.sequence;
    fetch(k[0], keys, stride, 0, head);
    fetch(v[0], values, stride, 0, head);
    take<WIDTH>(q, from, stride, head);
    for (u32 start = 0; start < end; start += KEYS) {
        int now = start / KEYS % 2;
        wait_for_copies();
        if (start + KEYS < end) {
            fetch(k[1 - now], keys, stride, start + KEYS, head);
            fetch(v[1 - now], values, stride, start + KEYS, head);
        }
        float s[KEYS / 8][4] = {}, kept[2];
        scores(s, q, k[now]);
        if (start + KEYS > head.own + 1) hide(s, start - head.own, false);
        weigh(s, peak, sum, kept, scale);
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) out[n][e] *= kept[e / 2];
        mix(out, s, v[now]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        sum[h] = group_sum(sum[h], 4);
        u32 i = head.own + own_row() + h * 8;
        if (i < head.sequence && lane() % 4 == 0)
            statistics[head.statistic(i)] = fmaf(peak[h], head.scale(), logf(sum[h]));
    }
    real* to = y + head.output(head.own);
    keep<WIDTH>(to, head.part(), out, 1.0f / sum[0], 1.0f / sum[1], head);
}

template <int WIDTH, int KEYS>
static __device__ void backward_query(const real* qkv, const float* statistics,
                                      const float* expected, const real* dy, real* d_qkv,
                                      const Head& head) {
    __shared__ Tile<WIDTH, KEYS> k[2], v[2];
    const real *from = qkv + head.query(0), *keys = from + head.part();
    const real* values = keys + head.part();
    float scale = head.scale(), base[2], mean[2], dq[WIDTH / 8][4] = {};
    u32 q[WIDTH / 16][4], d_out[WIDTH / 16][4], stride = head.stride();
    u32 end = head.own + ROWS < head.sequence ? head.own + ROWS : head.sequence;
    fetch(k[0], keys, stride, 0, head);
    fetch(v[0], values, stride, 0, head);
    take<WIDTH>(q, from, stride, head);
    take<WIDTH>(d_out, dy + head.output(0), head.part(), head);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 i = head.own + own_row() + h * 8;
        base[h] = i < head.sequence ? statistics[head.statistic(i)] * LOG2_E : 0.0f;
        mean[h] = i < head.sequence ? expected[head.statistic(i)] : 0.0f;
    }
    for (u32 start = 0; start < end; start += KEYS) {
        int now = start / KEYS % 2;
        wait_for_copies();
        if (start + KEYS < end) {
            fetch(k[1 - now], keys, stride, start + KEYS, head);
            fetch(v[1 - now], values, stride, start + KEYS, head);
        }
        float s[KEYS / 8][4] = {}, dp[KEYS / 8][4] = {};
        scores(s, q, k[now]);
        scores(dp, d_out, v[now]);
        if (start + KEYS > head.own + 1) hide(s, start - head.own, false);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float p = power_of_2(fmaf(s[n][e], scale * LOG2_E, -base[e / 2]));
                dp[n][e] = p * (dp[n][e] - mean[e / 2]);
            }
        mix(dq, dp, k[now]);
    }
    real* to = d_qkv + head.query(head.own);
    keep<WIDTH>(to, stride, dq, scale, scale, head);
}

// The bases and means of two neighbouring queries, which a lane takes at once.
struct alignas(16) Statistics {
    float bases[2], means[2];
};

template <int WIDTH, int QUERIES>
struct QueryTiles {
    Tile<WIDTH, QUERIES> q, d_out;
    Statistics statistics[QUERIES / 2];
};

// Starts to fetch what a tile of queries has. Beyond the sequence all of it is zero, and so are the
// gradients that come from there.
template <int WIDTH, int QUERIES>
static __device__ __forceinline__ void fetch_queries(QueryTiles<WIDTH, QUERIES>& to,
                                                     const real* queries, const real* d_out,
                                                     const float* statistics,
                                                     const float* expected, u32 start,
                                                     const Head& head) {
    fetch(to.q, queries, head.stride(), start, head);
    fetch(to.d_out, d_out, head.part(), start, head);
    // Half of the threads take the bases, the others the means.
    bool takes_base = threadIdx.x < ROWS;
    u32 row = threadIdx.x % ROWS;
    if (row >= QUERIES) return;
    Statistics& pair = to.statistics[row / 2];
    const float* from = takes_base ? statistics : expected;
    copy_async<4>(&(takes_base ? pair.bases : pair.means)[row % 2],
                  from + head.statistic(start + row), start + row < head.sequence);
}

// The rows of a block are keys here, and the columns of its scores are queries.
template <int WIDTH, int QUERIES>
static __device__ void backward_key(const real* qkv, const float* statistics,
                                    const float* expected, const real* dy, real* d_qkv,
                                    const Head& head) {
    __shared__ QueryTiles<WIDTH, QUERIES> tiles[2];
    const real *from = qkv + head.query(0), *d_out = dy + head.output(0);
    float scale = head.scale(), dk[WIDTH / 8][4] = {}, dv[WIDTH / 8][4] = {};
    u32 k[WIDTH / 16][4], v[WIDTH / 16][4];
    fetch_queries(tiles[0], from, d_out, statistics, expected, head.own, head);
    take<WIDTH>(k, from + head.part(), head.stride(), head);
    take<WIDTH>(v, from + 2 * head.part(), head.stride(), head);
    for (u32 start = head.own, now = 0; start < head.sequence; start += QUERIES, now = 1 - now) {
        wait_for_copies();
        if (start + QUERIES < head.sequence)
            fetch_queries(tiles[1 - now], from, d_out, statistics, expected, start + QUERIES, head);
        const QueryTiles<WIDTH, QUERIES>& tile = tiles[now];
        float s[QUERIES / 8][4] = {}, dp[QUERIES / 8][4] = {};
        scores(s, k, tile.q);
        scores(dp, v, tile.d_out);
        if (start < head.own + ROWS) hide(s, head.own - start, true);
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++) {
            Statistics pair = tile.statistics[column(n, 0) / 2];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float base = pair.bases[e % 2] * LOG2_E;
                s[n][e] = power_of_2(fmaf(s[n][e], scale * LOG2_E, -base));
                dp[n][e] = s[n][e] * (dp[n][e] - pair.means[e % 2]);
            }
        }
        mix(dv, s, tile.d_out);
        mix(dk, dp, tile.q);
    }
    real* to = d_qkv + head.query(head.own) + head.part();
    keep<WIDTH>(to, head.stride(), dk, scale, scale, head);
    keep<WIDTH>(to + head.part(), head.stride(), dv, 1.0f, 1.0f, head);
}

// The second bound is of blocks that share a multiprocessor, and so of registers.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    tensor_attention_64(const real* qkv, real* y, float* statistics, u64 sequence, u64 heads,
                        u64 size) {
    forward<64, 64>(qkv, y, statistics, head_of_block(sequence, heads, size, false));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    tensor_attention_128(const real* qkv, real* y, float* statistics, u64 sequence, u64 heads,
                         u64 size) {
    forward<128, 32>(qkv, y, statistics, head_of_block(sequence, heads, size, false));
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
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
