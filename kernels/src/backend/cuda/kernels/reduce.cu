// The addition of two partials, left plus right. CPU reference: reduce::Sum; with bf16, after
// reduce::decode_bf16.
//
// Tried or considered: one thread an element with a stride of the grid: this; bound by memory.
// Never run on a GPU; run on the CPU under emulation.

extern "C" __global__ void accumulate(const float* __restrict__ x, float* __restrict__ y,
                                      u64 count) {
    for (u64 i = thread_index(); i < count; i += thread_count())
        y[i] = canonical(y[i] + x[i]);
}

extern "C" __global__ void accumulate_bf16(const u16* __restrict__ x, float* __restrict__ y,
                                           u64 count) {
    for (u64 i = thread_index(); i < count; i += thread_count())
        y[i] = canonical(y[i] + from_bf16(x[i]));
}
