// The preamble of every kernel: the host puts it in front of each file, since the compiler at run
// time has no include path, and so no headers of CUDA either.
//
// REAL chooses the storage of parameters and activations: 0 f32, 1 bf16, 2 fp16. Sums, gradients
// and statistics are f32 always. Compiled without contraction of products and sums (-fmad=false):
// where a fused multiply-add is meant, it says fmaf.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Every product of counts is made in 64 bits: a matrix may have more than 2^31 elements.
static __device__ __forceinline__ u64 thread_index() {
    return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ u64 thread_count() {
    return (u64)gridDim.x * blockDim.x;
}

// What is no number has one pattern of bits, as reduce::canonical, whatever the hardware makes.
static __device__ __forceinline__ float canonical(float value) {
    bool is_nan = (__float_as_uint(value) & 0x7fffffffu) > 0x7f800000u;
    return is_nan ? __uint_as_float(0x7fc00000u) : value;
}

// ---- bf16: the upper half of an f32; to the nearest, ties to even, as reduce::encode_bf16 -------

static __device__ __forceinline__ float from_bf16(u16 bits) {
    return __uint_as_float((u32)bits << 16);
}

static __device__ __forceinline__ u16 to_bf16(float value) {
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)(bits >> 16 | 0x40);
    return (u16)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// ---- fp16: by the device's instruction, or by its definition ------------------------------------

#ifdef __CUDA_ARCH__

static __device__ __forceinline__ float from_fp16(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

static __device__ __forceinline__ u16 to_fp16(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

#else

static __device__ __forceinline__ float from_fp16(u16 bits) {
    u32 sign = (u32)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
    if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | mantissa << 13);
    // A subnormal is so many times 2^-24.
    float small = mantissa * (1.0f / (1 << 24));
    if (exponent == 0) return sign ? -small : small;
    return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

static __device__ __forceinline__ u16 to_fp16(float value) {
    u32 bits = __float_as_uint(value), size = bits & 0x7fffffffu;
    u16 sign = (u16)(bits >> 16 & 0x8000);
    if (size > 0x7f800000u) return sign | 0x7e00;
    // 65520 is half way beyond the largest.
    if (size >= 0x477ff000u) return sign | 0x7c00;
    // Below 2^-14: the addition of 1/2 leaves the multiples of 2^-24, rounded to even.
    if (size < 0x38800000u)
        return sign | (u16)(__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u);
    return sign | (u16)((size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13);
}

#endif

// ---- real: what parameters and activations are --------------------------------------------------

static __device__ __forceinline__ float load(const float* from) {
    return *from;
}

static __device__ __forceinline__ void store(float* to, float value) {
    *to = value;
}

#if REAL == 0

typedef float real;

#else

struct real {
    u16 bits;
};

static __device__ __forceinline__ float load(const real* from) {
    return REAL == 1 ? from_bf16(from->bits) : from_fp16(from->bits);
}

static __device__ __forceinline__ void store(real* to, float value) {
    to->bits = REAL == 1 ? to_bf16(value) : to_fp16(value);
}

#endif

// ---- chunks: 16 bytes at once, which a device moves faster than one number after the other ------

struct alignas(16) Chunk {
    u32 words[4];
};

constexpr int CHUNK = sizeof(Chunk) / sizeof(real);

static __device__ __forceinline__ bool aligned(const real* at) {
    return (u64)at % sizeof(Chunk) == 0;
}

// `from` and `to` are aligned.
static __device__ __forceinline__ void load(float (&values)[CHUNK], const real* from) {
    Chunk chunk = *(const Chunk*)from;
#pragma unroll
    for (int n = 0; n < CHUNK; n++) {
#if REAL == 0
        values[n] = __uint_as_float(chunk.words[n]);
#else
        real value = {(u16)(chunk.words[n / 2] >> n % 2 * 16)};
        values[n] = load(&value);
#endif
    }
}

static __device__ __forceinline__ void store(real* to, const float (&values)[CHUNK]) {
    Chunk chunk = {};
#pragma unroll
    for (int n = 0; n < CHUNK; n++) {
        real value;
        store(&value, values[n]);
#if REAL == 0
        chunk.words[n] = __float_as_uint(value);
#else
        chunk.words[n / 2] |= (u32)value.bits << n % 2 * 16;
#endif
    }
    *(Chunk*)to = chunk;
}

// ---- pairs: two neighbouring columns of a row ---------------------------------------------------

struct alignas(2 * sizeof(real)) Pair {
    real at[2];
};

// Whether each pair of a matrix's columns can be read at once.
static __device__ __forceinline__ bool in_pairs(const real* matrix, u64 columns) {
    return columns % 2 == 0 && (u64)matrix % sizeof(Pair) == 0;
}

// The first `count` of two neighbours, and zero for the others. PAIRS: they can be read at once.
template <bool PAIRS>
static __device__ __forceinline__ void load_pair(float (&values)[2], const real* from, u64 count) {
    Pair pair = {};
    if (PAIRS && count > 0) pair = *(const Pair*)from;
    if (!PAIRS && count > 0) pair.at[0] = from[0];
    if (!PAIRS && count > 1) pair.at[1] = from[1];
    values[0] = load(&pair.at[0]);
    values[1] = load(&pair.at[1]);
}

// Elementwise over two vectors that do not overlap: y = f(x, y).
template <typename F>
static __device__ __forceinline__ void combine(const real* __restrict__ x, real* __restrict__ y,
                                               u64 count, F f) {
    u64 chunks = aligned(x) && aligned(y) ? count / CHUNK : 0;
    for (u64 i = thread_index(); i < chunks; i += thread_count()) {
        float left[CHUNK], right[CHUNK];
        load(left, x + i * CHUNK);
        load(right, y + i * CHUNK);
#pragma unroll
        for (int n = 0; n < CHUNK; n++) right[n] = f(left[n], right[n]);
        store(y + i * CHUNK, right);
    }
    for (u64 i = chunks * CHUNK + thread_index(); i < count; i += thread_count())
        store(&y[i], f(load(&x[i]), load(&y[i])));
}

// ---- sums of a warp: always the same tree -------------------------------------------------------

constexpr u32 EVERY_LANE = 0xffffffffu;

// Below everything that is a number; finite, so that the difference of two of them is one.
constexpr float LOWEST = -3.4028235e38f;

// The lanes of groups of `width`, a power of two, get the sum over their group.
static __device__ __forceinline__ float group_sum(float value, int width) {
    for (int apart = width / 2; apart > 0; apart /= 2)
        value += __shfl_xor_sync(EVERY_LANE, value, apart);
    return value;
}

static __device__ __forceinline__ float group_max(float value, int width) {
    for (int apart = width / 2; apart > 0; apart /= 2)
        value = fmaxf(value, __shfl_xor_sync(EVERY_LANE, value, apart));
    return value;
}

// The sum of exp(value - peak) over values seen so far, and their peak. What is not a number stays
// in the sum.
struct Exponentials {
    float peak, sum;
};

static __device__ __forceinline__ Exponentials with(Exponentials e, float value) {
    float peak = fmaxf(e.peak, value);
    return {peak, e.sum * expf(e.peak - peak) + expf(value - peak)};
}

static __device__ __forceinline__ Exponentials group_exponentials(Exponentials e, int width) {
    float peak = group_max(e.peak, width);
    return {peak, group_sum(e.sum * expf(e.peak - peak), width)};
}

// Of all threads of a block of so many warps, each of which gets it. Once in a kernel.
template <int WARPS>
static __device__ __forceinline__ Exponentials block_exponentials(Exponentials own) {
    __shared__ float peaks[WARPS], sums[WARPS];
    own = group_exponentials(own, 32);
    if (threadIdx.x % 32 == 0) {
        peaks[threadIdx.x / 32] = own.peak;
        sums[threadIdx.x / 32] = own.sum;
    }
    __syncthreads();
    float peak = peaks[0], sum = 0;
    for (int warp = 1; warp < WARPS; warp++) peak = fmaxf(peak, peaks[warp]);
    for (int warp = 0; warp < WARPS; warp++) sum += sums[warp] * expf(peaks[warp] - peak);
    return {peak, sum};
}
