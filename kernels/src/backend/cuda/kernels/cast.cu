// Between f32 and what is stored. CPU references: reduce::encode_bf16 and decode_bf16 (the rounding
// itself is in the preamble).
//
// Tried or considered:
// 1. one thread an element with a stride of the whole grid: this;
// 2. conversion on the host, which halves the bytes that cross the bus, and takes time of the
//    thread that enqueues: left for a measurement to decide.
// On a GPU: right on an H200, beside the f64 reference.
//
// x: f32. y: stored.

extern "C" __global__ void cast(const float* __restrict__ x, real* __restrict__ y, u64 count) {
    for (u64 i = thread_index(); i < count; i += thread_count()) store(&y[i], x[i]);
}

extern "C" __global__ void widen(const real* __restrict__ x, float* __restrict__ y, u64 count) {
    for (u64 i = thread_index(); i < count; i += thread_count()) y[i] = load(&x[i]);
}
