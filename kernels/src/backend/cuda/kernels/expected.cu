// The sum of y dy of each row and head of attention, once before its two backward passes (Dao,
// "FlashAttention-2", algorithm 2: D). It is the gradient of a probability, as expected under the
// probabilities of the row. CPU reference: Backend::attention_backward, backend/reference.rs.
//
// Tried or considered:
// 1. by each block of the backward passes, for the rows of its tile: the pass over keys then reads
//    all of y again and again, once for every tile of keys before a row;
// 2. one warp a row of a head, neighbouring lanes neighbouring numbers: in 16 bits a lane reads 2
//    bytes at a time;
// 3. eight lanes a row of a head, 16 bytes a lane at a time where rows are aligned: this. It reads
//    y and dy once, which is little beside the passes;
// 4. at the end of the forward pass: dy is not known there.
// On a GPU: the version before was right on an H200; this one ran on the CPU under emulation.

constexpr int LANES = 8;
constexpr int ROWS = 16;

extern "C" __global__ void __launch_bounds__(LANES * ROWS)
    attention_expected(const real* __restrict__ y, const real* __restrict__ dy, float* expected,
                       u64 count, u64 size) {
    u64 row = (u64)blockIdx.x * ROWS + threadIdx.y;  // of all heads; they lie one after the other
    u64 first = row * size, end = row < count ? first + size : first;
    float sum = 0;
    if (size % CHUNK == 0 && aligned(y) && aligned(dy)) {
        for (u64 at = first + threadIdx.x * CHUNK; at < end; at += LANES * CHUNK) {
            float outs[CHUNK], d_outs[CHUNK];
            load(outs, &y[at]);
            load(d_outs, &dy[at]);
#pragma unroll
            for (int n = 0; n < CHUNK; n++) sum = fmaf(outs[n], d_outs[n], sum);
        }
    } else {
        for (u64 at = first + threadIdx.x; at < end; at += LANES)
            sum = fmaf(load(&y[at]), load(&dy[at]), sum);
    }
    sum = group_sum(sum, LANES);
    if (threadIdx.x == 0 && row < count) expected[row] = sum;
}
