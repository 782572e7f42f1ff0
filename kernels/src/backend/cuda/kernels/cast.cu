// Between f32 and what is stored. CPU references: reduce::encode_bf16 and decode_bf16 (the rounding
// itself is in the preamble), reduce::round_bf16_stochastically.
//
// Tried or considered:
// 1. one thread an element with a stride of the whole grid: this;
// 2. conversion on the host, which halves the bytes that cross the bus, and takes time of the
//    thread that enqueues: left for a measurement to decide.
// Never run on a GPU; run on the CPU under emulation.
//
// x: f32. y: stored. c, k: counter and key of Philox4x32-10 (random.rs).

extern "C" __global__ void cast(const float* __restrict__ x, real* __restrict__ y, u64 count) {
    for (u64 i = thread_index(); i < count; i += thread_count()) store(&y[i], x[i]);
}

extern "C" __global__ void widen(const real* __restrict__ x, float* __restrict__ y, u64 count) {
    for (u64 i = thread_index(); i < count; i += thread_count()) y[i] = load(&x[i]);
}

// The first 32 bits of the block of `index`.
static __device__ u32 philox(u64 key, u64 stream, u64 index) {
    u32 c0 = (u32)index, c1 = (u32)(index >> 32), c2 = (u32)stream, c3 = (u32)(stream >> 32);
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
    for (int round = 0; round < 10; round++) {
        u64 first = (u64)c0 * 0xD2511F53u, second = (u64)c2 * 0xCD9E8D57u;
        c0 = (u32)(second >> 32) ^ c1 ^ k0;
        c2 = (u32)(first >> 32) ^ c3 ^ k1;
        c1 = (u32)second;
        c3 = (u32)first;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

// To one of the two neighbours in bf16, the nearer one more often. `first` is the index of x[0] in
// the flat parameter vector, so that the bits do not depend on the cut into shards; the value
// stands for the stream's step.
extern "C" __global__ void cast_stochastic(const float* __restrict__ x, u16* __restrict__ y,
                                           u64 count, u64 key, u64 stream, u64 first) {
    for (u64 i = thread_index(); i < count; i += thread_count()) {
        u32 bits = __float_as_uint(x[i]);
        bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
        u32 random = philox(key, stream ^ bits, first + i) & 0xffff;
        y[i] = nan ? (u16)(bits >> 16 | 0x40) : (u16)((bits + random) >> 16);
    }
}
