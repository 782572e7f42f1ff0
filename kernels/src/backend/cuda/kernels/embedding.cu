// An embedding, forward and backward. CPU references: Backend::embedding and embedding_backward,
// backend/cpu/rows.rs.
//
// Tried or considered, backward:
// 1. one thread a column over all tokens, in their order: the bits of the CPU, and hardly a thread;
// 2. atomic additions: fast, and other bits on every run;
// 3. the host, which knows the tokens, sorts their places (stably), and one block adds the rows of
//    one token in their order: this. The additions are those of the CPU, so in f32 the bits are.
// On a GPU: right on an H200, beside the f64 reference.
//
// starts[s] .. starts[s + 1]: the places in `order` of the s-th token that occurs.

extern "C" __global__ void embedding(const u32* __restrict__ tokens,
                                     const real* __restrict__ table, real* __restrict__ y,
                                     u64 count, u64 width) {
    for (u64 row = blockIdx.x; row < count; row += gridDim.x) {
        const real* from = table + tokens[row] * width;
        for (u64 column = threadIdx.x; column < width; column += blockDim.x)
            y[row * width + column] = from[column];
    }
}

extern "C" __global__ void embedding_backward(const u32* tokens, const u32* __restrict__ order,
                                              const u32* __restrict__ starts,
                                              const real* __restrict__ dy, float* d_table,
                                              u64 width) {
    u64 column = (u64)blockIdx.y * blockDim.x + threadIdx.x;
    if (column >= width) return;
    u32 start = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    float* to = &d_table[tokens[order[start]] * width + column];
    float sum = *to;
    for (u32 place = start; place < end; place++) sum += load(&dy[order[place] * width + column]);
    *to = sum;
}
