// The sum of y dy of each row and head of attention, once before its two backward passes (Dao,
// "FlashAttention-2", algorithm 2: D). It is the gradient of a probability, as expected under the
// probabilities of the row. CPU reference: Backend::attention_backward, backend/reference.rs.
//
// Tried or considered:
// 1. by each block of the backward passes, for the rows of its tile: the pass over keys then reads
//    all of y again and again, once for every tile of keys before a row;
// 2. one warp a row of a head, neighbouring lanes neighbouring numbers: this. It reads y and dy
//    once, which is little beside the passes;
// 3. at the end of the forward pass: dy is not known there.
// Never run on a GPU; run on the CPU under emulation.

constexpr int WARPS = 4;

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    attention_expected(const real* __restrict__ y, const real* __restrict__ dy, float* expected,
                       u64 count, u64 size) {
    u64 row = (u64)blockIdx.x * WARPS + threadIdx.y;  // of all heads; they lie one after the other
    if (row >= count) return;
    float sum = 0;
    for (u64 at = row * size + threadIdx.x; at < (row + 1) * size; at += 32)
        sum = fmaf(load(&y[at]), load(&dy[at]), sum);
    sum = group_sum(sum, 32);
    if (threadIdx.x == 0) expected[row] = sum;
}
